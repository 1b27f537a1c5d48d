//! Which processes belong to a lab, and how they are ended.
//!
//! A process belongs to a lab when its environment carries the lab's random id (slurmstepd
//! inherits it from slurmd), when it is in the lab's cgroup, or when it descends from such a
//! process (a job may have changed its environment). The id is random, so a recycled pid can
//! never be taken for one of ours.

use std::collections::BTreeMap;
use std::fs;
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

/// True when the process carries the lab's id in its environment and has not ended.
pub(crate) fn is_marked(pid: u32, id: &str) -> bool {
    let mark = format!("{MARK}={id}");
    let marked = fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|b| *b == 0).any(|entry| entry == mark.as_bytes()));
    marked && Stat::read(pid).is_some_and(|stat| stat.runs())
}

fn in_cgroup(pid: u32, id: &str) -> bool {
    let part = format!("{PREFIX}{id}");
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|text| text.split(['/', '\n']).any(|name| name == part))
}

/// All processes of the lab, without this process and its parents.
pub(crate) fn members(id: &str) -> BTreeMap<u32, Stat> {
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
        .filter(|(pid, _)| is_marked(**pid, id) || in_cgroup(**pid, id))
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

/// Ends all processes of the lab. Returns those that would not end in 10 s.
pub(crate) fn end_all(id: &str) -> BTreeMap<u32, Stat> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // Stop first, so that none can start another one behind our back.
        let mut stopped = 0;
        let found = loop {
            let found = members(id);
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
    fn this_process_is_alive_and_not_with_another_start() {
        let pid = std::process::id();
        let start = Stat::read(pid).expect("own stat").start;
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
    }
}
