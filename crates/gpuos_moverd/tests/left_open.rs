//! Movers that end while a checkpoint is being committed: ranks on all nodes hear the same of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::numbers::Site;
use crate::one::{line, until};

/// Two nodes on which the movers have ended, when the second checkpoint was made.
struct Ended {
    site: Site,
    folders: Vec<PathBuf>,
    first: u32,
    second: u32,
    /// What each node has recorded before the second one.
    recorded: Vec<Vec<u8>>,
}

impl Ended {
    fn new() -> Ended {
        let site = Site::new(2);
        let current = |node| site.parts(node).join("CURRENT");
        let mut run = site.run(0, &[0, 1]);
        assert_eq!(run.join(2, None), ["new", "new"]);
        let first = run.save(2, "first");
        let recorded = (0..2).map(|node| fs::read(current(node)).unwrap());
        let recorded = recorded.collect();
        let second = run.save(2, "second");
        Ended {
            folders: run.stop(),
            site,
            first,
            second,
            recorded,
        }
    }

    fn line(&self, node: usize, name: &str, line: &str) {
        fs::write(self.folders[node].join(name), format!("{line}\n")).unwrap();
    }

    /// A node had its part, and no word of what became of the whole.
    fn leave_open(&self, node: usize) {
        let current = self.site.parts(node).join("CURRENT");
        fs::write(current, &self.recorded[node]).unwrap();
        self.line(node, "commit", &self.first.to_string());
        self.line(node, "request", &format!("{} asked", self.second));
    }

    /// The movers are started anew: what the ranks of each node hear. Another checkpoint is made then.
    fn told(self) -> Vec<Result<(), String>> {
        let run = self.site.run(0, &[0, 1]);
        let told = |folder: &PathBuf| until("its end", || ended(folder, self.second));
        let told: Vec<_> = self.folders.iter().map(told).collect();
        assert!(run.save(2, "third") > self.second);
        run.end();
        told
    }
}

/// What a rank makes of the lines that it finds.
fn ended(folder: &Path, number: u32) -> Option<Result<(), String>> {
    let failed = line(folder.join("failed")).unwrap_or_default();
    if let Some(why) = failed.strip_prefix(&format!("{number} ")) {
        return Some(Err(why.into()));
    }
    let commit: u32 = line(folder.join("commit"))?.parse().unwrap();
    (commit >= number).then_some(Ok(()))
}

#[test]
fn what_one_node_said_to_exist_does_on_all() {
    let ended = Ended::new();
    ended.leave_open(1);
    assert_eq!(ended.told(), [Ok(()), Ok(())]);
}

#[test]
fn what_all_have_and_nobody_has_said_exists() {
    let ended = Ended::new();
    (0..2).for_each(|node| ended.leave_open(node));
    assert_eq!(ended.told(), [Ok(()), Ok(())]);
}

#[test]
fn what_one_node_said_to_have_failed_exists_on_none() {
    let ended = Ended::new();
    ended.leave_open(1);
    ended.leave_open(0);
    fs::remove_file(ended.folders[0].join("request")).unwrap();
    ended.line(0, "failed", &format!("{} no space", ended.second));
    let told = ended.told();
    assert_eq!(told[0], Err("no space".into()));
    assert!(told[1].is_err(), "{told:?}");
}

#[test]
fn what_one_node_has_no_part_of_exists_on_none() {
    let ended = Ended::new();
    (0..2).for_each(|node| ended.leave_open(node));
    let parts = fs::read_dir(ended.site.parts(1)).unwrap();
    let second = format!("{}-", ended.second);
    let part = parts.map(|entry| entry.unwrap()).find(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(&second)
    });
    fs::remove_dir_all(part.unwrap().path()).unwrap();
    let told = ended.told();
    let why = told[1].as_ref().unwrap_err();
    assert!(why.contains("was started anew"), "{told:?}");
    assert!(told[0].is_err(), "{told:?}");
}
