//! Folders of users, with all that they can put there, removed by a process with their rights.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpuosd::clear::{TIME, remove};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chownat, mkdirat, mknodat, openat};

use crate::site::{mount, unmount};

/// An ordinary user, as far as the test may be one.
fn user() -> Option<(u32, u32)> {
    rustix::process::geteuid().is_root().then_some((1000, 100))
}

fn give(path: &Path) {
    if let Some((uid, gid)) = user() {
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// A folder of the user's in one of ours, and that.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let all = tempfile::tempdir().unwrap();
    fs::set_permissions(all.path(), Permissions::from_mode(0o755)).unwrap();
    let own = all.path().join("7");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
    give(&own);
    (all, own)
}

fn cleared(own: &Path) -> Result<(), String> {
    cleared_in(own, TIME)
}

fn cleared_in(own: &Path, time: Duration) -> Result<(), String> {
    let program = Path::new(env!("CARGO_BIN_EXE_gpuosd"));
    remove(
        program,
        own.parent().unwrap(),
        own.file_name().unwrap(),
        time,
    )
}

/// Folders in each other, each a user's.
pub fn nest(own: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = openat(CWD, own, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        if let Some((uid, gid)) = user() {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(gid),
            );
            chownat(&at, "d", Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn folders_in_each_other_however_deep() {
    let (_all, own) = folder();
    nest(&own, 18_000);
    // A disk that has much to do may need more than one attempt; each goes on where the last one ended.
    let attempts = (0..12).map(|_| cleared(&own));
    let is_late = |why: &String| why.contains("in time") || why.contains("does not answer");
    let late = |done: &Result<(), String>| done.as_ref().is_err_and(is_late);
    assert_eq!(attempts.into_iter().find(|done| !late(done)), Some(Ok(())));
    assert!(!own.exists());
    // One that is not there is removed.
    assert_eq!(cleared(&own), Ok(()));
}

#[test]
fn all_kinds_of_entries_go_and_what_they_lead_to_stays() {
    let (all, own) = folder();
    let outside = all.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "text").unwrap();
    fs::set_permissions(&outside, Permissions::from_mode(0o777)).unwrap();
    let put = |path: PathBuf| {
        give(&path);
        path
    };
    for number in 0..3000 {
        fs::write(put_file(&own, &number.to_string()), "").unwrap();
    }
    for name in [
        &b"two\nlines"[..],
        b"-rf",
        b"\xff\xfe",
        b" ",
        b"$(reboot)",
        b"...",
        b"*",
    ] {
        let name = OsStr::from_bytes(name);
        fs::write(own.join(name), "x").unwrap();
        give(&own.join(name));
        let inner = own.join("inner");
        let _ = fs::create_dir(&inner);
        put(inner.clone());
        fs::create_dir(inner.join(name)).unwrap();
        fs::write(inner.join(name).join("x"), "").unwrap();
        put(inner.join(name));
    }
    symlink(&outside, own.join("link")).unwrap();
    symlink("/etc", own.join("inner/etc")).unwrap();
    symlink("..", own.join("inner/up")).unwrap();
    symlink("/nowhere", own.join("dangling")).unwrap();
    fs::hard_link(outside.join("kept"), own.join("inner/hard")).unwrap();
    let fifo = own.join("inner/fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    give(&fifo);
    // What its owner has forbidden himself.
    for (name, mode) in [("none", 0), ("unreadable", 0o300), ("unwritable", 0o500)] {
        let shut = own.join(name);
        fs::create_dir_all(shut.join("a/b")).unwrap();
        fs::write(shut.join("a/b/c"), "").unwrap();
        for path in [
            shut.join("a/b/c"),
            shut.join("a/b"),
            shut.join("a"),
            shut.clone(),
        ] {
            give(&path);
        }
        fs::set_permissions(shut.join("a/b"), Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(shut.join("a"), Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&shut, Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(&own, Permissions::from_mode(0o000)).unwrap();
    assert_eq!(cleared(&own), Ok(()));
    assert!(!own.exists());
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "text");
    assert!(Path::new("/etc/passwd").exists());
}

fn put_file(own: &Path, name: &str) -> PathBuf {
    let path = own.join(name);
    fs::write(&path, "").unwrap();
    give(&path);
    path
}

#[test]
fn a_folder_that_is_a_link_is_not_followed() {
    let (all, own) = folder();
    let outside = all.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    fs::remove_dir(&own).unwrap();
    symlink(&outside, &own).unwrap();
    assert!(cleared(&own).is_err());
    assert!(outside.join("kept").exists());
}

#[test]
fn what_is_mounted_stays_and_so_does_what_is_in_it() {
    let (_all, own) = folder();
    let inner = own.join("a/b");
    fs::create_dir_all(&inner).unwrap();
    give(&own.join("a"));
    give(&inner);
    if !mount(&inner, "1m") {
        return;
    }
    fs::write(inner.join("kept"), "").unwrap();
    let why = cleared(&own).unwrap_err();
    assert!(why.contains("something is mounted in it"), "{why}");
    let kept = Command::new("find")
        .arg(&own)
        .args(["-name", "kept"])
        .output();
    let kept = String::from_utf8(kept.unwrap().stdout).unwrap();
    assert_eq!(kept.lines().count(), 1, "{kept}");
    unmount(Path::new(kept.trim()).parent().unwrap());
    assert_eq!(cleared(&own), Ok(()));

    let (_all, own) = folder();
    assert!(mount(&own, "1m"));
    fs::write(own.join("kept"), "").unwrap();
    let why = cleared(&own).unwrap_err();
    assert!(why.contains("something is mounted on it"), "{why}");
    assert!(own.join("kept").exists());
    unmount(&own);
}

#[test]
fn what_the_owner_may_not_remove_is_not_removed_with_roots_rights() {
    if user().is_none() {
        return;
    }
    let (_all, own) = folder();
    let others = own.join("others");
    fs::create_dir_all(others.join("full")).unwrap();
    for path in [others.join("full"), others.clone()] {
        chown(path, Some(1001), Some(1001)).unwrap();
    }
    put_file(&own, "mine");
    let why = cleared(&own).unwrap_err();
    assert!(why.contains("may not be removed by its owner"), "{why}");
    assert!(others.join("full").exists() && !own.join("mine").exists());
}

#[test]
fn a_folder_that_is_filled_all_the_time_is_left_after_a_while() {
    let (_all, own) = folder();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (own, end) = (&own, &end);
            scope.spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    let _ = fs::write(own.join(name), "");
                    give_if_there(&own.join(name));
                }
            });
        }
        let why = cleared_in(&own, Duration::from_secs(2));
        end.store(true, Ordering::Relaxed);
        // It may have been empty for a moment.
        if let Err(why) = why {
            assert!(
                why.contains("in time") || why.contains("filled again"),
                "{why}"
            );
        }
    });
    assert_eq!(cleared(&own), Ok(()));
}

fn give_if_there(path: &Path) {
    if let Some((uid, gid)) = user() {
        let _ = chown(path, Some(uid), Some(gid));
    }
}

/// It becomes the owner by itself: see `as_user`.
#[test]
fn the_process_gets_two_words_and_no_environment() {
    let (all, own) = folder();
    let noted = all.path().join("noted");
    let program = all.path().join("program");
    let text = format!(
        "#!/bin/sh\n(echo \"$# $1\"; env) >{0}\nexit 4\n",
        noted.display()
    );
    crate::program::program(&program, &text);
    fs::write(&noted, "").unwrap();
    give(&noted);
    put_file(&own, "x");
    let why = remove(&program, all.path(), OsStr::new("7"), TIME).unwrap_err();
    assert!(why.contains("may not be removed by its owner"), "{why}");
    let said = fs::read_to_string(&noted).unwrap();
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("2 --empty-folder"), "{said}");
    assert!(
        lines.all(|line| line.starts_with("PWD=") || line.starts_with("_=")),
        "{said}"
    );
}
