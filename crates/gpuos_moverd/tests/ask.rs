//! A program that asks for a checkpoint itself, by a file beside its joins.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use tempfile::TempDir;

use crate::one::*;
use crate::support::owner;

/// Seconds between two that a program asks for: more than a busy machine takes for one.
const PACE: u32 = 4;

fn site() -> (TempDir, Mover) {
    let site = TempDir::new().unwrap();
    let at = |name: &str| site.path().join(name);
    for name in ["store", "jobs"] {
        fs::create_dir(at(name)).unwrap();
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(site.path(), mode).unwrap();
    let config = CheckpointConfig {
        enabled: true,
        least_s: PACE,
        ..CheckpointConfig::default()
    };
    let mover = mover(&at("store"), &at("jobs"), config, Forbidden::default());
    (site, mover)
}

fn ask(folder: &Path, rank: u32) {
    let file = folder.join(format!("ranks/ask.{rank}"));
    fs::write(&file, b"").unwrap();
    // Who is not root asks as himself.
    let _ = chown(file, Some(owner().0), Some(group(owner().0)));
}

#[test]
fn what_a_program_asks_for_is_made_and_asking_all_the_time_makes_no_more() {
    let (_site, mover) = site();
    let uid = owner().0;
    mover.runs(record(1, uid));
    let folder = mover.step(1, uid, "1h").unwrap();
    let (rank, told) = Rank::join(&folder, uid, 1);
    assert_eq!(told, "new");
    let begun = std::time::Instant::now();
    ask(&folder, 0);
    let (first, outcome) = rank.checkpoint(b"one");
    assert_eq!((first, outcome), (1, Ok(())));
    // Two more asks at once are one, and it waits for its time.
    ask(&folder, 0);
    until("it is seen", || {
        (!folder.join("ranks/ask.0").exists()).then_some(())
    });
    ask(&folder, 0);
    let (second, outcome) = rank.checkpoint(b"two");
    assert_eq!((second, outcome), (2, Ok(())));
    assert!(
        begun.elapsed().as_millis() + 500 > u128::from(PACE) * 1000,
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn what_is_no_file_of_a_rank_that_has_joined_asks_for_nothing() {
    let (_site, mover) = site();
    let uid = owner().0;
    mover.runs(record(1, uid));
    let folder = mover.step(1, uid, "1h").unwrap();
    let ranks = folder.join("ranks");
    let outside = folder.parent().unwrap().join("outside");
    fs::write(&outside, b"kept").unwrap();
    fs::create_dir(ranks.join("ask.0")).unwrap();
    symlink(&outside, ranks.join("ask.00")).unwrap();
    for name in ["ask.", "ask.1", "ask.65536", "ask.-1", "ask.0.1", "ASK.0"] {
        fs::write(ranks.join(name), b"").unwrap();
    }
    let (rank, _) = Rank::join(&folder, uid, 1);
    // A look is over after a checkpoint that somebody asks for: its number says that there was none before.
    let now = gpuos_core::wire::CheckpointRequest::Now { job: 1.into() };
    mover.ask(root(), now);
    let (number, outcome) = rank.checkpoint(b"one");
    assert_eq!((number, outcome), (1, Ok(())));
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(!folder.join("2").exists(), "no second one is wanted");
    assert_eq!(fs::read(&outside).unwrap(), b"kept");
    assert!(ranks.join("ask.0").is_dir() && ranks.join("ask.1").exists());
    // One by a link is none, and the link stays.
    fs::remove_dir(ranks.join("ask.0")).unwrap();
    symlink(&outside, ranks.join("ask.0")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(!folder.join("2").exists() && ranks.join("ask.0").is_symlink());
}
