//! Where this daemon's configuration lives.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gpuos_config::site::Site;
use gpuos_config::slurm_conf::{TopologyKeys, conf_lines};
use gpuos_config::slurm_topology::Topologies;

use crate::api;
use crate::layout::{Fields, SITE_FILE};
use crate::mem::{read, read_str};
use crate::messages;
use crate::release::Release;

/// slurm.conf itself: from slurmctld's own configuration where the release is known, else from
/// `$SLURM_CONF`, else `/etc/slurm/slurm.conf`.
pub fn slurm_conf(fields: Option<&Fields>) -> PathBuf {
    let own = fields.and_then(|fields| {
        let path = own_text(fields, "slurm_conf")?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    own.or_else(|| std::env::var_os("SLURM_CONF").map(PathBuf::from))
        .filter(|path| path.is_absolute() && path.file_name().is_some())
        .unwrap_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"))
}

/// The folder of slurm.conf.
pub fn folder(fields: Option<&Fields>) -> PathBuf {
    let mut path = slurm_conf(fields);
    path.pop();
    path
}

/// Path of gpuos.toml: `$GPUOS_CONF`, else beside slurm.conf.
pub fn gpuos_toml(fields: Option<&Fields>) -> PathBuf {
    std::env::var_os("GPUOS_CONF").map_or_else(|| folder(fields).join("gpuos.toml"), PathBuf::from)
}

/// The layout table for `release`, with the site's own table beside slurm.conf where there is one.
///
/// # Errors
/// What the table lacks, or why the site's own one cannot be read: what its administrator wants is then unknown.
pub fn fields(release: Release) -> Result<Fields, String> {
    Fields::of(release, site_table(&folder(None))?.as_deref())
}

/// The text of the site's own layout table; `None` where there is none.
fn site_table(folder: &Path) -> Result<Option<String>, String> {
    let path = folder.join(SITE_FILE);
    let unusable = |why: &str| String::from(messages::site_table_unusable(path.display(), why));
    let metadata = match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&error.to_string())),
        Ok(_) => std::fs::metadata(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => unusable("a link to a file that is not there"),
            _ => unusable(&error.to_string()),
        })?,
    };
    // A folder, or a pipe that would never end.
    if !metadata.is_file() {
        return Err(unusable("not a file"));
    }
    if metadata.len() > MAX_FILE {
        return Err(unusable("larger than any layout table"));
    }
    let bytes = std::fs::read(&path).map_err(|error| unusable(&error.to_string()))?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| unusable("not a text"))
}

/// Reads the site's files: gpuos.toml, slurm.conf, what they belong to and what they include. `release` is that of this Slurm.
///
/// # Errors
/// A mistake in one of them, or one that cannot be read, with its name.
pub fn site(fields: Option<&Fields>, release: Option<Release>) -> Result<Site, String> {
    let slurm_conf = slurm_conf(fields);
    let gpuos_toml = gpuos_toml(fields);
    Site::read(release.map(Release::topology), &|name| match name {
        "gpuos.toml" => text_of(&gpuos_toml),
        other => beside(&slurm_conf, other),
    })
}

/// The topologies that this slurmctld goes by.
#[derive(Debug, Default)]
pub struct TopologyRead {
    /// Those in force; none where there is no such file.
    pub topologies: Topologies,
    /// The topology that a partition names, by the partition's name.
    pub partitions: HashMap<String, String>,
    /// The files that were read.
    pub files: Vec<TextFile>,
}

/// A file as it was read.
#[derive(Debug)]
pub struct TextFile {
    /// Its path.
    pub path: PathBuf,
    /// What stood in it.
    pub text: String,
}

/// Reads slurm.conf for what it says of topologies, and the file that describes those in force.
///
/// # Errors
/// A file cannot be read, or has a mistake.
pub fn topology(fields: &Fields) -> Result<TopologyRead, String> {
    let slurm_conf = slurm_conf(Some(fields));
    let keys = TopologyKeys::read(&|name| beside(&slurm_conf, name))?;
    // What slurmctld itself has counts: it fills in what the file does not give.
    let own = own_text(fields, "topology_plugin");
    let plugin = own.as_deref().unwrap_or(&keys.plugin);
    let files = std::cell::RefCell::new(Vec::new());
    let folder = slurm_conf.with_file_name("");
    let release = Some(fields.release().topology());
    let topologies = Topologies::read_in(&folder, release, plugin, &|name| {
        let text = beside(&slurm_conf, name)?;
        if let Some(text) = &text {
            files.borrow_mut().push(TextFile {
                path: folder.join(name),
                text: text.clone(),
            });
        }
        Ok(text)
    })?;
    Ok(TopologyRead {
        topologies,
        partitions: keys.partitions,
        files: files.into_inner(),
    })
}

/// A text of slurmctld's own configuration.
fn own_text(fields: &Fields, name: &str) -> Option<String> {
    let conf = api::symbol(c"slurm_conf")? as usize;
    let offset = fields.offset("slurm_conf", name).ok()?;
    read_str(read::<usize>(conf + offset)?, 4096)
}

/// Value of `SelectType` in the text of slurm.conf; of two lines Slurm takes the last. `None`: it cannot be read. Slurm
/// itself sets `$SLURM_CONF` where another file was named to it.
pub fn select_type() -> Option<String> {
    select_type_in(&slurm_conf(None))
}

fn select_type_in(slurm_conf: &Path) -> Option<String> {
    /// What Slurm takes where no line says otherwise.
    const DEFAULT: &str = "select/cons_tres";
    let (lines, _) = conf_lines("slurm.conf", &|name| beside(slurm_conf, name)).ok()??;
    let named = lines.iter().rev().find_map(|line| line.get("selecttype"));
    Some(named.unwrap_or(DEFAULT).into())
}

/// The text of slurm.conf, or of a file that stands beside it; `None`: there is none.
fn beside(slurm_conf: &Path, name: &str) -> Result<Option<String>, String> {
    match name {
        "slurm.conf" => text_of(slurm_conf),
        other => text_of(&slurm_conf.with_file_name("").join(other)),
    }
}

fn text_of(path: &Path) -> Result<Option<String>, String> {
    match text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 32 << 20;

fn text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_FILE)
        .read_to_end(&mut bytes)?;
    // Comments in another encoding are no reason to refuse a slurm.conf that Slurm takes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_plugin_is_read_from_the_file_with_what_it_includes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cluster.conf");
        assert_eq!(select_type_in(&path), None);
        for (text, selected) in [
            ("ClusterName=c\n", "select/cons_tres"),
            ("SelectType=select/gpuos\n", "select/gpuos"),
            (" selecttype = select/gpuos # own\n", "select/gpuos"),
            ("#SelectType=select/gpuos\n", "select/cons_tres"),
            (
                "SelectType=select/gpuos\nSelectType=select/linear\n",
                "select/linear",
            ),
            ("Include more.conf\n", "select/gpuos"),
            ("SelectTypeParameters=CR_Core\n", "select/cons_tres"),
        ] {
            std::fs::write(dir.path().join("more.conf"), "SelectType=select/gpuos\n")
                .expect("writes");
            std::fs::write(&path, text).expect("writes");
            assert_eq!(select_type_in(&path).as_deref(), Some(selected), "{text}");
        }
    }

    #[test]
    fn a_site_table_that_cannot_be_read_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(SITE_FILE);
        assert_eq!(site_table(dir.path()), Ok(None));
        std::fs::write(&path, "# nothing\n").expect("writes");
        assert_eq!(site_table(dir.path()), Ok(Some("# nothing\n".into())));
        let told = |why: &str| {
            let error = site_table(dir.path()).expect_err("no table");
            assert!(error.contains(SITE_FILE) && error.contains(why), "{error}");
        };
        std::fs::write(&path, [0xff, 0x00, 0xfe]).expect("writes");
        told("not a text");
        std::fs::remove_file(&path).expect("removes");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &path).expect("links");
        told("a link to a file that is not there");
        std::fs::remove_file(&path).expect("removes");
        std::fs::create_dir(&path).expect("makes a folder");
        told("not a file");
    }
}
