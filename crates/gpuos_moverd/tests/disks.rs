//! Disks that fail under a job that runs: it runs on, its last checkpoint stays, and the reason is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::wire::CheckpointRequest;
use tempfile::TempDir;

use crate::one::*;
use crate::support::{is_root, owner};

/// A small disk for store and jobs each, until it is dropped.
struct Disks(TempDir);

impl Disks {
    fn new(mib: u32) -> Option<Disks> {
        let disks = Disks(TempDir::new().unwrap());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(disks.0.path(), mode).unwrap();
        for name in ["store", "jobs"] {
            fs::create_dir(disks.at(name)).unwrap();
            let size = format!("size={mib}m,mode=755");
            let mounted = is_root() && disks.mount(name, &["-t", "tmpfs", "-o", &size, "none"]);
            if !mounted {
                eprintln!("nothing can be mounted here");
                return None;
            }
        }
        Some(disks)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn mount(&self, name: &str, words: &[&str]) -> bool {
        let status = Command::new("mount")
            .args(words)
            .arg(self.at(name))
            .status();
        status.is_ok_and(|status| status.success())
    }

    fn mover(&self) -> Mover {
        let config = CheckpointConfig {
            enabled: true,
            least_s: 1,
            // It is the disk that is to be full.
            user_percent: 100,
            ..CheckpointConfig::default()
        };
        mover(
            &self.at("store"),
            &self.at("jobs"),
            config,
            Forbidden::default(),
        )
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for name in ["store", "jobs"] {
            let _ = Command::new("umount").arg("-l").arg(self.at(name)).output();
        }
    }
}

fn uid() -> u32 {
    owner().0
}

/// A job with a checkpoint, and one wanted each second.
fn begun(mover: &Mover, job: u32, nonce: u64) -> (Rank, u32) {
    let rank = joined(mover, job, nonce, "1s");
    let (number, outcome) = rank.checkpoint(b"good");
    assert_eq!(outcome, Ok(()));
    (rank, number)
}

fn joined(mover: &Mover, job: u32, nonce: u64, asked: &str) -> Rank {
    mover.runs(record(job, uid()));
    let folder = mover.step(job, uid(), asked).unwrap();
    let (rank, told) = Rank::join(&folder, uid(), nonce);
    assert_eq!(told, "new");
    rank
}

/// Somebody asks for a checkpoint of job 1.
fn now(mover: &Mover) {
    mover.ask(root(), CheckpointRequest::Now { job: 1.into() });
}

/// Saves what is asked for. What the program was told by is removed then, and leaves no more room on the disk later.
fn saved(rank: &Rank, bytes: &[u8]) -> u32 {
    let (number, outcome) = rank.checkpoint(bytes);
    assert_eq!(outcome, Ok(()));
    let there = || ["request", &number.to_string()].map(|name| rank.folder.join(name).exists());
    until("it is removed", || (there() == [false; 2]).then_some(()));
    number
}

/// What the next start of the program begins from.
fn again(mover: &Mover, rank: &Rank, nonce: u64) -> (Rank, String) {
    let again = Rank::join(&rank.folder, uid(), nonce);
    let name = again.0.restored().join("state");
    assert!(again.1.starts_with("restore "), "{}", again.1);
    assert!(name.exists(), "{:?}", mover.shown(1));
    again
}

/// All of a disk is taken, but for so many bytes.
fn fill(disk: &Path, rest: u64) -> PathBuf {
    let space = rustix::fs::statvfs(disk).unwrap();
    let free = space.f_bavail * space.f_frsize;
    let path = disk.join("filling");
    let file = fs::File::create(&path).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, flags, 0, free - rest).unwrap();
    path
}

#[test]
fn a_store_that_is_full() {
    let Some(disks) = Disks::new(40) else { return };
    let mover = disks.mover();
    let (rank, number) = begun(&mover, 1, 1);
    // Less than what stays free, then nothing at all.
    for rest in [1 << 20, 0] {
        let filling = fill(&disks.at("store"), rest);
        let (failed, outcome) = rank.checkpoint(&[7; 4096]);
        let why = outcome.unwrap_err();
        assert!(failed > number && why.contains("free"), "{why}");
        let shown = mover.until_shown(1, "the failure is shown", |shown| {
            shown.failures.iter().any(|text| text.contains(&why[..30]))
        });
        assert!(
            shown
                .checkpoints
                .iter()
                .any(|kept| kept.number == number && kept.committed)
        );
        fs::remove_file(filling).unwrap();
    }
    let (next, told) = again(&mover, &rank, 2);
    assert_eq!(told, format!("restore {number}"));
    assert_eq!(fs::read(next.restored().join("state")).unwrap(), b"good");
    assert_eq!(next.checkpoint(b"better").1, Ok(()));
}

#[test]
fn a_store_that_becomes_read_only() {
    let Some(disks) = Disks::new(40) else { return };
    let mover = disks.mover();
    let (rank, number) = begun(&mover, 1, 1);
    // While somebody writes there, the kernel refuses it.
    until("the store is read-only", || {
        disks.mount("store", &["-o", "remount,ro"]).then_some(())
    });
    let (_, outcome) = rank.checkpoint(b"bad");
    let why = outcome.unwrap_err();
    assert!(why.to_lowercase().contains("read-only"), "{why}");
    let (next, told) = again(&mover, &rank, 2);
    assert_eq!(told, format!("restore {number}"));
    assert!(disks.mount("store", &["-o", "remount,rw"]));
    assert_eq!(next.checkpoint(b"better").1, Ok(()));
}

#[test]
fn a_store_that_is_unmounted_is_still_the_one_that_was_opened() {
    let Some(disks) = Disks::new(40) else { return };
    let mover = disks.mover();
    let (rank, number) = begun(&mover, 1, 1);
    let lazily = Command::new("umount")
        .arg("-l")
        .arg(disks.at("store"))
        .status();
    assert!(lazily.unwrap().success());
    let (later, outcome) = rank.checkpoint(b"better");
    assert_eq!(outcome, Ok(()));
    let (next, told) = again(&mover, &rank, 2);
    assert!(
        later > number && told == format!("restore {later}"),
        "{told}"
    );
    drop(next);
    // What lies beneath the mount has got nothing.
    assert_eq!(fs::read_dir(disks.at("store")).unwrap().count(), 0);
}

#[test]
fn a_disk_of_the_jobs_folders_that_is_full() {
    let Some(disks) = Disks::new(40) else { return };
    let mover = disks.mover();
    let rank = joined(&mover, 1, 1, "1h");
    now(&mover);
    let number = saved(&rank, b"good");
    let filling = fill(&disks.at("jobs"), 0);
    now(&mover);
    // It is wanted, and the program cannot be told.
    let wanted = || {
        mover
            .shown(1)
            .making
            .filter(|making| making.number > number)
    };
    let making = until("the next one is wanted", wanted);
    assert!(!rank.folder.join("request").exists());
    let shown = mover.shown(1);
    assert!(
        shown
            .checkpoints
            .iter()
            .any(|kept| kept.number == number && kept.committed)
    );
    fs::remove_file(filling).unwrap();
    assert_eq!(saved(&rank, b"better"), making.number);
    // Nor could the next start of the program get its files back.
    let filling = fill(&disks.at("jobs"), 0);
    let (_, told) = Rank::join_where_full(&rank, 2, &filling);
    assert!(
        told.starts_with("failed ") && told.contains("free space there"),
        "{told}"
    );
    let (_, told) = again(&mover, &rank, 3);
    assert_eq!(told, format!("restore {}", making.number));
}
