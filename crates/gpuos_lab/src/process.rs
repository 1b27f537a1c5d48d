//! Which processes belong to a lab, and how they are ended.
//!
//! A process belongs to a lab when
//! - its environment carries the lab's random id (daemons, and commands of labs with an owner);
//! - it is in the lab's cgroup, where the machine has writable cgroups;
//! - it is a slurmstepd that has a file of the lab open: slurmstepd writes its title over its
//!   environment, so that the id cannot be read there;
//! - its environment says that it is a job's process of the lab's slurm.conf;
//! - it descends from such a process: a job may have changed its environment.
//!
//! No pid is kept anywhere, so a recycled one can never be taken for one of ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sys::PidFd;

/// Environment variable of all processes of a lab: `GPUOS_LAB_ID=` and the id.
pub(crate) const MARK: &str = "GPUOS_LAB_ID";

/// Prefix of the names of a lab's cgroups and device folders; the id follows.
pub(crate) const PREFIX: &str = "gpuos-lab-";

/// What /proc/PID/stat says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    /// Name of the program, cut at 15 bytes by the kernel.
    pub(crate) comm: String,
    /// `R`, `S`, `Z`, ….
    pub(crate) state: char,
    /// Parent.
    pub(crate) ppid: u32,
    /// Threads that have not ended.
    threads: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) start: u64,
}

impl Stat {
    /// Of this process; `None` when there is no such process.
    pub(crate) fn read(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name stands in parentheses and may itself contain some.
        let (head, tail) = text.rsplit_once(')')?;
        let comm = head.split_once('(')?.1.to_string();
        let mut fields = tail.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let ppid = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let start = fields.nth(1)?.parse().ok()?;
        Some(Stat {
            comm,
            state,
            ppid,
            threads,
            start,
        })
    }

    /// False for a process that has ended and waits for its parent. While other threads of it
    /// are still ending it holds its files and cgroup.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// True when the process of this pid started then and has not ended.
pub(crate) fn is_alive(pid: u32, start: u64) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.start == start && stat.runs())
}

/// Entries of the environment that a process was started with.
fn environment(pid: u32) -> Vec<Vec<u8>> {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    text.split(|b| *b == 0).map(<[u8]>::to_vec).collect()
}

/// True when the process carries the lab's id in its environment and has not ended.
pub(crate) fn is_marked(pid: u32, id: &str) -> bool {
    let mark = format!("{MARK}={id}");
    environment(pid)
        .iter()
        .any(|entry| entry == mark.as_bytes())
        && Stat::read(pid).is_some_and(|stat| stat.runs())
}

/// True for what makes a process a lab's by itself, not by its parent.
fn is_own(pid: u32, stat: &Stat, id: &str, dir: &Path) -> bool {
    let entries = environment(pid);
    let has = |text: &str| entries.iter().any(|entry| entry == text.as_bytes());
    let conf = format!("SLURM_CONF={}", dir.join("etc/slurm.conf").display());
    let in_job = || entries.iter().any(|e| e.starts_with(b"SLURM_JOB_ID="));
    has(&format!("{MARK}={id}"))
        || has(&conf) && in_job()
        || stat.comm.starts_with("slurmstepd") && has_open(pid, dir)
        || in_cgroup(pid, id)
}

/// True when the process has a file below the folder open. In a lab with its own root the
/// kernel shows that root in front, which is below the folder too.
fn has_open(pid: u32, dir: &Path) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|file| file.starts_with(dir))
}

fn in_cgroup(pid: u32, id: &str) -> bool {
    let part = format!("{PREFIX}{id}");
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|text| text.split(['/', '\n']).any(|name| name == part))
}

/// All processes of the lab, without this process and its parents.
pub(crate) fn members(id: &str, dir: &Path) -> BTreeMap<u32, Stat> {
    let all: BTreeMap<u32, Stat> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .filter(|(_, stat)| stat.runs())
        .collect();
    let mut spared = Vec::new();
    let mut pid = std::process::id();
    while let Some(stat) = all.get(&pid) {
        spared.push(pid);
        pid = stat.ppid;
    }
    let mut found: BTreeMap<u32, Stat> = all
        .iter()
        .filter(|(pid, _)| !spared.contains(pid))
        .filter(|(pid, stat)| is_own(**pid, stat, id, dir))
        .map(|(pid, stat)| (*pid, stat.clone()))
        .collect();
    loop {
        let children: Vec<_> = all
            .iter()
            .filter(|(pid, stat)| {
                found.contains_key(&stat.ppid) && !found.contains_key(pid) && !spared.contains(pid)
            })
            .map(|(pid, stat)| (*pid, stat.clone()))
            .collect();
        if children.is_empty() {
            return found;
        }
        found.extend(children);
    }
}

/// Sends a signal to the process if it is still the one that started then.
pub(crate) fn signal(pid: u32, start: u64, signal: i32) -> bool {
    let Ok(handle) = PidFd::open(pid) else {
        return false;
    };
    // The handle keeps meaning the same process; so this test holds for the signal below.
    is_alive(pid, start) && handle.signal(signal).is_ok()
}

/// Waits until the process has ended, at most that long.
pub(crate) fn wait_gone(pid: u32, start: u64, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_alive(pid, start) {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
    true
}

/// Sends a signal until the process has ended, every `again`. False when it has not after `limit`.
pub(crate) fn end(pid: u32, start: u64, number: i32, again: Duration, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        signal(pid, start, number);
        if wait_gone(pid, start, again) {
            return true;
        }
    }
    false
}

/// Ends all processes of the lab. Returns those that would not end in a minute.
pub(crate) fn end_all(id: &str, dir: &Path) -> BTreeMap<u32, Stat> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        // Stop first, so that none can start another one behind our back.
        let mut stopped = 0;
        let found = loop {
            let found = members(id, dir);
            if found.len() == stopped {
                break found;
            }
            stopped = found.len();
            for (pid, stat) in &found {
                signal(*pid, stat.start, libc::SIGSTOP);
            }
        };
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        for (pid, stat) in &found {
            signal(*pid, stat.start, libc::SIGKILL);
        }
        for (pid, stat) in &found {
            wait_gone(*pid, stat.start, Duration::from_secs(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn stat_of_a_name_with_parentheses() {
        let text =
            "42 (a) (b) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3 4 5 6\n";
        let stat = Stat::parse(text).expect("parses");
        assert_eq!(stat.comm, "a) (b");
        assert_eq!((stat.state, stat.ppid, stat.start), ('S', 7, 987654));
    }

    #[test]
    fn a_signal_that_was_lost_is_sent_again() {
        let script =
            "trap 'trap \"exit\" TERM; echo lost' TERM; echo up; while :; do sleep 0.01; done";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut said = || lines.next().and_then(Result::ok);
        assert_eq!(said().as_deref(), Some("up"));
        let pid = child.id();
        let start = Stat::read(pid).expect("its stat").start;
        let ended = end(
            pid,
            start,
            libc::SIGTERM,
            Duration::from_millis(50),
            Duration::from_secs(60),
        );
        assert!(ended);
        assert_eq!(said().as_deref(), Some("lost"));
        child.wait().expect("ends");
    }

    #[test]
    fn this_process_is_alive_and_not_with_another_start() {
        let pid = std::process::id();
        let start = Stat::read(pid).expect("own stat").start;
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
    }
}
