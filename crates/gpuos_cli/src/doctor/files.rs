//! slurm.conf itself: where it is, who may read it, and what in it Slurm would not take.

use std::collections::BTreeMap;
use std::path::Path;

use gpuos_host::slurm::files::SlurmFile;
use gpuos_host::{Kind, Machine, User};

use super::Context;
use super::about::{self, About};
use super::findings::{Findings, Status, others};
use super::folders::is_trusted;

const NAME: About = about::SLURM_CONF;

/// Keys on which gpuos depends: one that is nearly such a key is a misspelt one, with which Slurm's programs end.
const OURS: [&str; 12] = [
    "selecttype",
    "selecttypeparameters",
    "plugindir",
    "plugstackconfig",
    "jobsubmitplugins",
    "grestypes",
    "taskplugin",
    "proctracktype",
    "slurmctldlogfile",
    "statesavelocation",
    "accountingstoragetres",
    "topologyplugin",
];

/// Keys that are near one of [`OURS`] and are keys of Slurm's own.
const OTHERS: [&str; 6] = [
    "taskpluginparam",
    "topologyparam",
    "slurmctldloglevel",
    "slurmdlogfile",
    "jobcompplugins",
    "authaltypes",
];

/// Files beside slurm.conf that decide what runs as root, or what jobs may have.
const BESIDE: [&str; 6] = [
    "gres.conf",
    "cgroup.conf",
    "plugstack.conf",
    "topology.conf",
    "topology.yaml",
    "job_container.conf",
];

pub fn check(look: &Context, conf: &Result<SlurmFile, String>, findings: &mut Findings) {
    let conf = match conf {
        Ok(conf) => conf,
        Err(why) => {
            // slurmctld answers: what it says is enough for all but the places.
            findings.note(
                NAME,
                format!("{why}; so only what slurmctld says was looked at"),
                "run `gpuos doctor` on the host of slurmctld, as a user who may read its files",
            );
            return;
        }
    };
    for fault in &conf.faults {
        findings
            .fail(
                NAME,
                &fault.message,
                "mend the line: Slurm's daemons and commands end with it",
            )
            .at(format!("{}:{}", fault.file, fault.line));
    }
    let mut files: Vec<&str> = vec![conf.path.to_str().unwrap_or_default()];
    files.extend(conf.lines.iter().map(|line| line.file.as_str()));
    files.sort_unstable();
    files.dedup();
    for file in files {
        let path = Path::new(file);
        let all = User::anybody();
        let user = look.user.unwrap_or(&all);
        rights(look.machine, NAME, path, Some(user), findings);
    }
    for name in BESIDE {
        let path = look.settings.directory().join(name);
        rights(look.machine, about::FILES, &path, None, findings);
    }
    twice(conf, findings);
    misspelt(conf, findings);
    if !findings.found(NAME) {
        findings.ok(NAME, conf.path.display().to_string());
    }
}

/// Whether a file that decides what runs as root or SlurmUser is in others' hands, and whether SlurmUser may read it.
pub fn rights(
    machine: &dyn Machine,
    name: About,
    path: &Path,
    reader: Option<&User>,
    findings: &mut Findings,
) {
    let Ok(stat) = machine.stat(path) else {
        return;
    };
    let shown = path.display().to_string();
    if stat.mode & 0o002 != 0 && stat.kind == Kind::File {
        findings
            .fail(
                name,
                format!("{shown} may be written by all users (mode {:o})", stat.mode),
                format!("chmod o-w {shown}"),
            )
            .at(&shown)
            .why("whoever writes it decides what runs as root and SlurmUser");
    }
    let trusted = |uid: u32| {
        let slurm = reader.is_some_and(|user| user.uid == uid);
        slurm || is_trusted(machine, uid)
    };
    if stat.kind == Kind::File && !trusted(stat.uid) {
        findings
            .fail(
                name,
                format!("{shown} is of user {}", stat.uid),
                format!("chown root:root {shown}"),
            )
            .at(&shown)
            .why("whoever owns it decides what runs as root and SlurmUser");
    }
    if let Some((user, kept)) =
        reader.and_then(|user| Some((user, user.unreadable_part(machine, path)?)))
    {
        let message = match kept == path {
            true => format!(
                "{shown} cannot be read by {} (mode {:o})",
                user.name, stat.mode
            ),
            false => format!(
                "{shown} cannot be read by {}: {} is closed to it",
                user.name,
                kept.display()
            ),
        };
        findings
            .fail(
                name,
                message,
                format!("give {} the right to read it (chmod, chown)", user.name),
            )
            .at(kept.display());
    }
}

/// Settings that stand in several lines with several values: Slurm takes the last.
fn twice(conf: &SlurmFile, findings: &mut Findings) {
    let mut keys: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &conf.lines {
        // With += and -= a key may come as often as one likes.
        if !line.text.contains("+=") && !line.text.contains("-=") {
            for (key, _) in &line.pairs {
                *keys.entry(key).or_default() += 1;
            }
        }
    }
    for (key, _) in keys.into_iter().filter(|(_, times)| *times > 1) {
        let all = conf.all(key);
        let values: std::collections::BTreeSet<&str> =
            all.iter().map(|one| one.value.as_str()).collect();
        if values.len() < 2 || ["slurmctldhost", "include"].contains(&key) {
            continue;
        }
        let places: Vec<&str> = all.iter().map(|one| one.place.as_str()).collect();
        let last = &all[all.len() - 1];
        findings
            .warn(
                NAME,
                format!(
                    "{key} is set {} times; Slurm takes the last: {}",
                    all.len(),
                    last.value
                ),
                "keep one of the lines",
            )
            .at(places.join(", "));
    }
}

fn misspelt(conf: &SlurmFile, findings: &mut Findings) {
    let mut told = Vec::new();
    for line in &conf.lines {
        let Some((key, _)) = line.pairs.first() else {
            continue;
        };
        if OURS.contains(&key.as_str()) || OTHERS.contains(&key.as_str()) {
            continue;
        }
        if let Some(near) = nearly(&OURS, key) {
            told.push((
                format!("{key} is no key of slurm.conf; {near} is"),
                line.place(),
            ));
        }
    }
    if let Some((message, place)) = told.first() {
        findings
            .add(
                NAME,
                Status::Fail,
                format!("{message}{}", others(told.len())),
                "correct the key: Slurm's daemons and commands end with one that they do not know",
            )
            .at(place);
    }
}

/// The first of these keys that nearly is this one.
pub fn nearly<'a>(keys: &[&'a str], key: &str) -> Option<&'a str> {
    let mut all = keys.iter().copied();
    all.find(|own| (1..=2).contains(&distance(own, key)))
}

/// How many letters have to be put in, taken out, exchanged or swapped with their neighbour to make one word of another.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 3 {
        return usize::MAX;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let other = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + other);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn typing_errors_are_near() {
        assert_eq!(distance("spank_gpuos.so", "spank_gpuos.so"), 0);
        assert_eq!(distance("spank_gpuos.so", "spank_gpuso.so"), 1);
        assert_eq!(distance("selecttype", "seletctype"), 1);
        assert_eq!(distance("plugindir", "plugindirs"), 1);
        assert!(distance("selecttype", "selecttypeparameters") > 2);
        assert!(distance("", "abc") == 3 && distance("topologyplugin", "topologyparam") > 2);
    }
}
