//! Files that were edited since slurmctld read them.

use gpuos_host::Machine;
use gpuos_model::fnv::fnv;

use super::about;
use super::findings::Findings;
use super::{Context, toml};

/// Settings whose value in the file counts only after a restart.
const RESTART: [&str; 7] = [
    "SelectType",
    "PluginDir",
    "JobSubmitPlugins",
    "GresTypes",
    "TaskPlugin",
    "ProctrackType",
    "TopologyPlugin",
];

pub fn check(look: &Context, findings: &mut Findings) {
    slurm_conf(look, findings);
    if look.selected() {
        gpuos_toml(look, findings);
    }
}

/// A value in one form: newer releases show nothing for `task/none`, and lists in an order of their own.
fn meant(key: &str, value: &str) -> Vec<String> {
    if key == "PluginDir" {
        return value
            .split(':')
            .map(|dir| dir.trim_end_matches('/').to_string())
            .collect();
    }
    let words = value.split(',').map(|word| {
        let word = word.trim().to_ascii_lowercase();
        word.rsplit_once('/')
            .map_or(word.clone(), |(_, name)| name.to_string())
    });
    // What a topology without a plugin is called changed with the releases.
    let nothing = ["", "none", "(null)", "default", "flat"];
    let mut words: Vec<String> = words
        .filter(|word| !nothing.contains(&word.as_str()))
        .collect();
    if key != "JobSubmitPlugins" {
        words.sort();
    }
    words
}

fn slurm_conf(look: &Context, findings: &mut Findings) {
    let (Some(running), Some(conf)) = (look.running, look.conf) else {
        return;
    };
    let differs = |key: &&str| {
        let file = conf.get(&key.to_ascii_lowercase())?;
        let runs = running.get(key).unwrap_or("");
        let same = meant(key, runs) == meant(key, &file.value);
        (!same).then_some((file.value, runs, file.place))
    };
    let mut told = false;
    for key in RESTART {
        if let Some((file, runs, place)) = differs(&key) {
            told = true;
            let runs = if runs.is_empty() { "none" } else { runs };
            findings
                .warn(
                    about::RESTART,
                    format!("{key} is {file} in the file, and slurmctld runs with {runs}"),
                    "restart slurmctld, and the slurmds with it",
                )
                .at(place);
        }
    }
    if !told
        && running
            .get("HASH_VAL")
            .is_some_and(|hash| hash.starts_with("Different"))
    {
        findings
            .warn(
                about::RESTART,
                format!("slurmctld runs with another slurm.conf than {}: one was edited since, or is another file", conf.path.display()),
                "run `scontrol reconfigure`, or restart slurmctld where a plugin was changed",
            )
            .at(conf.path.display());
    }
}

/// gpuos.toml and the topology file, against what select/gpuos logged when it read them.
fn gpuos_toml(look: &Context, findings: &mut Findings) {
    let folder = look.settings.directory();
    let own = toml::path(look);
    for path in [
        own.clone(),
        folder.join("topology.conf"),
        folder.join("topology.yaml"),
    ] {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let now = look.machine.read(&path).ok();
        let read = last_read(look, name);
        let fix = "run `scontrol reconfigure`, and `gpuos health --reload` on the nodes";
        match (now, read) {
            (Some(bytes), Some(Read::Sum(_, sum))) if fnv(bytes.iter().copied()) != sum => {
                findings
                    .warn(
                        about::RESTART,
                        format!("{} was edited since slurmctld read it", path.display()),
                        fix,
                    )
                    .at(path.display())
                    .why("jobs are placed by the old text");
            }
            (Some(_), Some(Read::Sum(other, _))) if other != path.display().to_string() => {
                findings
                    .warn(
                        about::RESTART,
                        format!("slurmctld read {other}, and this is {}", path.display()),
                        "look at the file that slurmctld reads: --config, or GPUOS_CONF",
                    )
                    .at(other);
            }
            (Some(_), Some(Read::None)) => {
                findings
                    .warn(
                        about::RESTART,
                        format!(
                            "{} was written since slurmctld looked for it",
                            path.display()
                        ),
                        fix,
                    )
                    .at(path.display())
                    .why("every key has its default meanwhile");
            }
            (None, Some(Read::Sum(_, _))) => {
                findings
                    .warn(
                        about::RESTART,
                        format!("{} is gone since slurmctld read it", path.display()),
                        fix,
                    )
                    .at(path.display());
            }
            (Some(_), None) if path == own => by_time(look, findings),
            _ => {}
        }
    }
}

enum Read {
    /// The path and the checksum.
    Sum(String, u64),
    /// There was no such file.
    None,
}

/// What select/gpuos last said of a file of that name.
fn last_read(look: &Context, name: &str) -> Option<Read> {
    let lines = look.log.text.lines().rev();
    let mut said = lines.filter_map(|line| line.split_once("select/gpuos: ").map(|(_, said)| said));
    let end = format!("/{name}");
    said.find_map(|said| {
        if let Some((path, sum)) = said.split_once(" is read, checksum ") {
            let sum = u64::from_str_radix(sum.trim(), 16).ok()?;
            return path
                .ends_with(&end)
                .then(|| Read::Sum(path.to_string(), sum));
        }
        let (path, _) = said
            .strip_prefix("there is no ")?
            .split_once(": every key")?;
        path.ends_with(&end).then_some(Read::None)
    })
}

/// Where the log does not tell: by the clock, which cannot know of a reconfigure.
fn by_time(look: &Context, findings: &mut Findings) {
    let path = toml::path(look);
    let written = look.machine.stat(&path).map(|stat| stat.modified);
    let boot = look.running.and_then(|running| running.get("BOOT_TIME"));
    let boot = boot.and_then(|text| seconds(look.machine, text));
    if let (Ok(written), Some(boot)) = (written, boot)
        && written > boot
    {
        findings
            .note(
                about::RESTART,
                format!("{} was written after slurmctld started; whether it was read since then cannot be seen here", path.display()),
                "run `scontrol reconfigure` if in doubt",
            )
            .at(path.display());
    }
}

/// Seconds since 1970 of a moment as scontrol prints it, in the time zone of both.
pub fn seconds(machine: &dyn Machine, text: &str) -> Option<u64> {
    let output = machine
        .run("date", &["-d", text, "+%s"])
        .ok()
        .filter(|out| out.ok)?;
    output.stdout.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn releases_show_values_in_forms_of_their_own() {
        for (key, file, runs) in [
            ("TaskPlugin", "task/none", ""),
            (
                "TaskPlugin",
                "task/cgroup,task/affinity",
                "task/affinity,task/cgroup",
            ),
            (
                "TaskPlugin",
                "affinity, cgroup",
                "task/cgroup,task/affinity",
            ),
            ("PluginDir", "/a/:/b", "/a:/b"),
            ("TopologyPlugin", "topology/none", "topology/flat"),
            ("GresTypes", "gpu,MPS", "gpu,mps"),
        ] {
            assert_eq!(meant(key, file), meant(key, runs), "{key}");
        }
        assert_ne!(
            meant("JobSubmitPlugins", "a,b"),
            meant("JobSubmitPlugins", "b,a")
        );
        assert_ne!(meant("PluginDir", "/a:/b"), meant("PluginDir", "/b:/a"));
        assert_ne!(
            meant("SelectType", "select/gpuos"),
            meant("SelectType", "select/cons_tres")
        );
    }
}
