//! Slurm's configuration files, read without slurmctld: where they are, what they say, and in which line.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gpuos_config::slurm_conf::{ConfFault, ConfLine, conf_lines};

use crate::Machine;
use crate::slurm::Running;

/// Where slurm.conf is, in the order of Slurm's packages: Debian and RPMs, a build of one's own, and the copy that a
/// host without files of its own was sent ("configless").
const USUAL: [&str; 3] = [
    "/etc/slurm/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
];

/// Lines of these keys describe nodes and the like: what else stands in them is no setting of slurmctld.
const TABLES: [&str; 6] = [
    "nodename",
    "partitionname",
    "nodeset",
    "downnodes",
    "frontendname",
    "switchname",
];

/// A file in slurm.conf's form, with the files that it includes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlurmFile {
    /// Its path.
    pub path: PathBuf,
    /// Its lines, comments removed; `file` is the whole path.
    pub lines: Vec<ConfLine>,
    /// What Slurm does not take in it.
    pub faults: Vec<ConfFault>,
}

/// A setting and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The value.
    pub value: String,
    /// `FILE:LINE`.
    pub place: String,
}

impl SlurmFile {
    /// Reads a file and those that it includes. `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read: a sentence.
    pub fn read(machine: &dyn Machine, path: &Path) -> Result<Option<SlurmFile>, String> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let read = |name: &str| {
            let path = folder.join(name);
            match machine.read(&path) {
                Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(e) => Err(format!("{}: {e}", path.display())),
            }
        };
        let whole = |name: &str| folder.join(name).display().to_string();
        let found = conf_lines(&path.display().to_string(), &read)?;
        Ok(found.map(|(mut lines, mut faults)| {
            for line in &mut lines {
                line.file = whole(&line.file);
            }
            for fault in &mut faults {
                fault.file = whole(&fault.file);
            }
            SlurmFile {
                path: path.to_path_buf(),
                lines,
                faults,
            }
        }))
    }

    /// Every place where a setting is given, in the order of the files. The key is in lower case.
    pub fn all(&self, key: &str) -> Vec<Setting> {
        let lines = self.lines.iter().filter(|line| !is_table(line));
        let given = lines.filter_map(|line| {
            Some(Setting {
                value: line.get(key)?.to_string(),
                place: line.place(),
            })
        });
        given.collect()
    }

    /// The setting that counts: the last one. The key is in lower case.
    pub fn get(&self, key: &str) -> Option<Setting> {
        self.all(key).pop()
    }

    /// Lines of a table: those of `nodename`, for example.
    pub fn table(&self, key: &str) -> impl Iterator<Item = &ConfLine> {
        self.lines
            .iter()
            .filter(move |line| line.get(key).is_some())
    }

    /// The settings as slurmctld would have them.
    pub fn settings(&self) -> Running {
        let lines = self.lines.iter().filter(|line| !is_table(line));
        let pairs = lines.flat_map(|line| &line.pairs);
        Running::of_file(
            &self.path,
            pairs.map(|(key, value)| (key.as_str(), value.as_str())),
        )
    }
}

fn is_table(line: &ConfLine) -> bool {
    TABLES.iter().any(|key| line.get(key).is_some())
}

/// The paths at which slurm.conf is looked for when slurmctld does not tell: `$SLURM_CONF` alone where it is set, else
/// what the installed Slurm was built with and the usual places.
pub fn slurm_conf_paths(machine: &dyn Machine) -> Vec<PathBuf> {
    if let Some(named) = machine.env("SLURM_CONF") {
        return vec![named.into()];
    }
    let mut paths: Vec<PathBuf> = built_in(machine).into_iter().collect();
    let prefix = machine.find("scontrol");
    let prefix = prefix
        .as_deref()
        .and_then(Path::parent)
        .and_then(Path::parent);
    if let Some(prefix) = prefix.filter(|prefix| *prefix != Path::new("/usr")) {
        paths.push(prefix.join("etc/slurm.conf"));
        paths.push(prefix.join("etc/slurm/slurm.conf"));
    }
    paths.extend(USUAL.iter().map(PathBuf::from));
    let mut seen = std::collections::BTreeSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths
}

/// The path that stands in Slurm's own library: `sysconfdir` of its build.
fn built_in(machine: &dyn Machine) -> Option<PathBuf> {
    let scontrol = machine.find("scontrol")?;
    let prefix = scontrol.parent()?.parent()?.to_path_buf();
    let arch = std::env::consts::ARCH;
    let folders = [
        format!("lib/{arch}-linux-gnu/slurm-wlm"),
        format!("lib/{arch}-linux-gnu/slurm"),
        "lib64/slurm".into(),
        "lib/slurm".into(),
        "lib/slurm-wlm".into(),
    ];
    let paths = folders
        .iter()
        .map(|folder| prefix.join(folder).join("libslurmfull.so"));
    let bytes = paths
        .into_iter()
        .find_map(|path| machine.read(&path).ok())?;
    const END: &[u8] = b"/slurm.conf\0";
    bytes
        .windows(END.len())
        .enumerate()
        .find_map(|(at, window)| {
            let start =
                (window == END).then(|| bytes[..at].iter().rposition(|byte| *byte == 0))??;
            let path = std::str::from_utf8(&bytes[start + 1..at + END.len() - 1]).ok()?;
            // The other one is the copy of a host without files.
            (path.starts_with('/') && !path.starts_with("/run/")).then(|| PathBuf::from(path))
        })
}

/// slurm.conf: at `known` where slurmctld told, else at the first of [`slurm_conf_paths`] that is there.
///
/// # Errors
/// There is none, or it cannot be read: a sentence that names the paths.
pub fn slurm_conf(machine: &dyn Machine, known: Option<&Path>) -> Result<SlurmFile, String> {
    let paths = match known {
        Some(path) => vec![path.to_path_buf()],
        None => slurm_conf_paths(machine),
    };
    for path in &paths {
        if let Some(file) = SlurmFile::read(machine, path)? {
            return Ok(file);
        }
    }
    let shown: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(format!(
        "there is no slurm.conf: not at {}",
        shown.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    #[test]
    fn settings_are_those_of_the_last_line_and_of_no_table() {
        let machine = Recorded::default()
            .file(
                "/etc/slurm/slurm.conf",
                "plugindir=/a\nInclude more.conf\nPartitionName=p SelectTypeParameters=CR_Core\nPLUGINDIR=/b:/c\n",
            )
            .file("/etc/slurm/more.conf", "SelectType=select/gpuos\nNodeName=n1 Gres=gpu:8\n");
        let conf = slurm_conf(&machine, None).unwrap();
        let running = conf.settings();
        assert_eq!(running.get("PluginDir"), Some("/b:/c"));
        assert_eq!(running.get("SelectTypeParameters"), None);
        assert_eq!(running.directory(), Path::new("/etc/slurm"));
        assert_eq!(conf.all("plugindir").len(), 2);
        assert_eq!(
            conf.get("selecttype").unwrap().place,
            "/etc/slurm/more.conf:1"
        );
        assert_eq!(conf.table("nodename").count(), 1);
        let none = slurm_conf(&Recorded::default(), None).unwrap_err();
        assert!(none.contains("/etc/slurm/slurm.conf"), "{none}");
    }

    #[test]
    fn the_path_of_the_build_comes_first() {
        let machine = Recorded::default()
            .command("scontrol show config", "")
            .file(
                "/usr/lib/slurm/libslurmfull.so",
                "x\0/run/slurm/conf/slurm.conf\0/opt/site/etc/slurm.conf\0y",
            );
        assert_eq!(
            slurm_conf_paths(&machine)[0],
            Path::new("/opt/site/etc/slurm.conf")
        );
        let mut named = machine;
        named
            .env
            .insert("SLURM_CONF".into(), "/x/slurm.conf".into());
        assert_eq!(slurm_conf_paths(&named), [PathBuf::from("/x/slurm.conf")]);
    }
}
