//! Root's look at the processes that call the driver: they live for moments, so a thread looks for them all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::FLAG;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(4);

/// What one of them was seen with, in all looks at it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The process for which it calls.
    pub target: u32,
    /// Files that it has opened to run code of.
    pub files: BTreeSet<String>,
    /// Its environment.
    pub environment: String,
    /// Whose it was: root's, and then a user's.
    pub users: BTreeSet<u32>,
}

/// The thread, until it is told to end.
pub struct Watch {
    seen: Arc<Mutex<BTreeMap<u32, Seen>>>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub fn start() -> Watch {
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (to, over) = (Arc::clone(&seen), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for (pid, target) in callers() {
                    let mut all = to.lock().unwrap_or_else(PoisonError::into_inner);
                    look(pid, target, all.entry(pid).or_default());
                }
                std::thread::sleep(LOOK);
            }
        });
        Watch { seen, ends, thread }
    }

    /// Whether one that calls for this process was seen with this file.
    pub fn opened(&self, target: u32, file: &str) -> bool {
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = all.values();
        all.any(|one| one.target == target && one.files.contains(file))
    }

    /// All that was seen.
    pub fn end(self) -> BTreeMap<u32, Seen> {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

/// The processes that call the driver, each with the one for which it does.
pub fn callers() -> Vec<(u32, u32)> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let caller = |pid: u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0).skip(1);
        (words.next()? == FLAG.as_bytes()).then_some(())?;
        let target = std::str::from_utf8(words.nth(1)?).ok()?;
        Some((pid, target.parse().ok()?))
    };
    numbers.filter_map(caller).collect()
}

fn look(pid: u32, target: u32, seen: &mut Seen) {
    seen.target = target;
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let files = read("maps");
    let files = files
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    seen.files.extend(files.map(str::to_owned));
    seen.environment += &read("environ");
    let status = read("status");
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users = users.unwrap_or_default().split_whitespace();
    seen.users
        .extend(users.filter_map(|uid| uid.parse::<u32>().ok()));
}
