//! Steps of a node of a lab, by their slurmstepds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use crate::error::{Context, LabError};
use crate::process;
use crate::store::Record;

/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(60);

/// Kills the slurmstepds of a node, with all that they started. Steps of several nodes run side by side here: which
/// slurmstepd is whose, only its socket in the spool folder of the node tells.
pub(super) fn kill(record: &Record, node: &str) -> Result<(), LabError> {
    let spool = record.path(&format!("spool/{node}"));
    let sockets = fs::read_to_string("/proc/net/unix");
    let sockets = sockets.context(|| "cannot read /proc/net/unix".to_string())?;
    let inodes: BTreeSet<String> = sockets
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(6);
            let (inode, path) = (fields.next()?, fields.next()?);
            path.starts_with(&*spool.to_string_lossy())
                .then(|| format!("socket:[{inode}]"))
        })
        .collect();
    let has = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| inodes.contains(&*file.to_string_lossy()))
    };
    // They are stopped until nobody is left who could start another one behind our back.
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    loop {
        let all = process::members(&record.id, &record.dir);
        let mut found: BTreeSet<u32> = all.keys().copied().filter(|pid| has(*pid)).collect();
        found.extend(ends.keys());
        loop {
            let below = |pid: &&u32| found.contains(&all[*pid].ppid) && !found.contains(*pid);
            let more: Vec<u32> = all.keys().filter(below).copied().collect();
            if more.is_empty() {
                break;
            }
            found.extend(more);
        }
        let new = found.iter().filter(|pid| !ends.contains_key(pid));
        let new: Vec<(u32, u64)> = new.map(|pid| (*pid, all[pid].start)).collect();
        if new.is_empty() {
            break;
        }
        for (pid, start) in &new {
            process::signal(*pid, *start, libc::SIGSTOP);
        }
        ends.extend(new);
    }
    for (pid, start) in &ends {
        process::signal(*pid, *start, libc::SIGKILL);
    }
    for (pid, start) in &ends {
        process::wait_gone(*pid, *start, GONE);
    }
    // What a machine that comes up does not find.
    for entry in fs::read_dir(&spool).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
