//! What users had in their hands is removed, as far as they could remove it themselves, and in steps.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{
    CWD, FileType, IFlags, Mode, OFlags, ioctl_setflags, mkdirat, mknodat, open, openat,
};

use gpuos_moverd::folder::{JobFolder, Kept};

use crate::support::*;

/// So many folders in each other, beneath one.
fn nest(at: &Path, depth: usize) {
    let (uid, gid) = owner();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut here = open(at, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = openat(&here, "d", flags, Mode::empty()).unwrap();
        let ids = (
            rustix::fs::Uid::from_raw(uid),
            rustix::fs::Gid::from_raw(gid),
        );
        rustix::fs::fchown(&here, Some(ids.0), Some(ids.1)).unwrap();
    }
}

#[test]
fn folders_in_each_other_without_end() {
    let base = Base::new();
    let folder = base.folder();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let depth = if long() { 100_000 } else { 8_000 };
    nest(&folder.path().join("1/files/rank-0-of-1"), depth);
    folder.close(1, None).unwrap();
    assert!(!folder.path().join("1").exists());
    // A step does what it is asked for and no more.
    let progress = base.trash().step(100).unwrap();
    assert!(progress.more && progress.removed <= 100, "{progress:?}");
    base.empty();
    assert_eq!(base.left().len(), 0);
}

#[test]
fn every_kind_of_file_goes_and_what_links_point_to_stays() {
    let base = Base::new();
    let folder = base.folder();
    let outside = base.beside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), b"1").unwrap();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1/files");
    user(
        &at,
        "mkdir -p w/i/d/e n; touch w/f w/i/f \"$(printf 'w/\\377\\n')\"; mkfifo w/p n/p",
    );
    for link in ["l", "w/l"] {
        symlink(&outside, at.join(link)).unwrap();
    }
    if is_root() {
        let zero = rustix::fs::makedev(1, 5);
        let device = at.join("w/zero");
        mknodat(CWD, &device, FileType::CharacterDevice, Mode::RWXU, zero).unwrap();
        user(&at, "chmod 0 w/i/d w/i n; chmod 500 w");
    }
    folder.close(1, None).unwrap();
    base.empty();
    assert_eq!(base.left().len(), 0);
    assert_eq!(names(&outside), ["f"]);
}

#[test]
fn a_folder_of_somebody_else_is_left_as_it_is() {
    if !is_root() {
        eprintln!("not root: there are no folders of others");
        return;
    }
    let base = Base::new();
    let folder = base.folder();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1/files/rank-0-of-1");
    // As if the user could move it there: a colleague's, and one of root's where all may write.
    for (name, uid) in [("theirs", 3005), ("roots", 0)] {
        fs::create_dir_all(at.join(name).join("in/it")).unwrap();
        fs::write(at.join(name).join("in/f"), b"1").unwrap();
        chown(at.join(name), Some(uid), None).unwrap();
        // Also what is the user's in there was not his to remove.
        chown(at.join(name).join("in"), Some(3001), None).unwrap();
        chown(at.join(name).join("in/f"), Some(3001), None).unwrap();
    }
    fs::write(at.join("own"), b"1").unwrap();
    folder.close(1, None).unwrap();
    let end = base.empty();
    assert_eq!(end.stuck, 2);
    let left = base.left();
    assert_eq!(left.len(), 1);
    let kept: Vec<PathBuf> = fs::read_dir(&left[0])
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(kept.len(), 2);
    for kept in &kept {
        assert_eq!(text(kept.join("in/f")), "1");
        chown(kept, Some(3001), None).unwrap();
    }
    // Nothing is in the way of others, and it is tried again.
    folder.ask(2, "asked", &[(0, 1)]).unwrap();
    folder.close(2, None).unwrap();
    fs::remove_dir(kept[0].join("in/it")).unwrap();
    chown(kept[0].join("in"), Some(3001), None).unwrap();
    assert_eq!(base.empty().stuck, 0);
    assert_eq!(base.left().len(), 0);
}

#[test]
fn a_file_that_may_not_be_changed_is_told_and_tried_again() {
    let base = Base::new();
    let folder = base.folder();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1/files/rank-0-of-1");
    user(&at, "mkdir d; touch d/f g");
    let file = fs::File::open(at.join("d/f")).unwrap();
    if ioctl_setflags(&file, IFlags::IMMUTABLE).is_err() {
        eprintln!("a file cannot be made immutable here");
        return;
    }
    folder.close(1, None).unwrap();
    assert_eq!(base.empty().stuck, 1);
    let again = JobFolder::create(&base.path(), &job(7), &kept(1));
    assert!(again.is_ok());
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    assert_eq!(base.empty().stuck, 0);
    assert_eq!(base.left().len(), 0);
}

/// Something that is mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn on(path: &Path) -> Option<Mounted> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(path);
        let done = is_root() && mount.status().is_ok_and(|status| status.success());
        done.then(|| Mounted(path.to_path_buf()))
    }

    /// It was moved with the folder in which it lies.
    fn moved(&mut self, to: PathBuf) {
        self.0 = to;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A child that another test starts just now may have something there open, until it runs its program.
        let begun = Instant::now();
        let unmounted = || Command::new("umount").arg(&self.0).status();
        while unmounted().is_ok_and(|status| !status.success())
            && begun.elapsed() < Duration::from_secs(60)
        {
            sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn what_is_mounted_is_not_entered_and_goes_when_it_is_free() {
    let base = Base::new();
    let folder = base.folder();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1");
    user(&at, "mkdir files/rank-0-of-1/m");
    let Some(mut inner) = Mounted::on(&at.join("files/rank-0-of-1/m")) else {
        eprintln!("nothing can be mounted here");
        return;
    };
    fs::write(inner.0.join("precious"), b"1").unwrap();
    folder.close(1, None).unwrap();
    assert!(!at.exists());
    assert_eq!(base.empty().stuck, 1);
    let user = &base.left()[0];
    let kept = find(user, "precious").expect("it is there");
    inner.moved(kept.parent().unwrap().to_path_buf());

    // On the very folder: it stays in its place, and is tried again with the next one.
    folder.ask(2, "asked", &[(0, 1)]).unwrap();
    let outer = Mounted::on(&folder.path().join("2")).unwrap();
    fs::write(outer.0.join("precious"), b"1").unwrap();
    assert!(folder.saved(2).unwrap().is_empty());
    folder.close(2, None).unwrap();
    assert_eq!(text(folder.path().join("commit")), "2\n");
    assert_eq!(text(outer.0.join("precious")), "1");
    drop(outer);
    folder.ask(3, "asked", &[(0, 1)]).unwrap();
    folder.close(3, None).unwrap();
    assert_eq!(names(folder.path()), ["commit", "ranks"]);

    // The next run of the job is not held up.
    folder.ask(4, "asked", &[(0, 1)]).unwrap();
    let mut outer = Mounted::on(&folder.path().join("4")).unwrap();
    fs::write(outer.0.join("precious"), b"1").unwrap();
    let next = JobFolder::create(&base.path(), &job(7), &crate::support::kept(1)).unwrap();
    assert_eq!(names(next.path()), ["ranks"]);
    assert_eq!(base.empty().stuck, 2);
    let kept = find(&base.path().join(".gone/jobs"), "precious").expect("it is there");
    outer.moved(kept.parent().unwrap().to_path_buf());
    drop((inner, outer));
    assert_eq!(base.empty().stuck, 0);
    assert_eq!(base.left().len(), 0);
}

fn find(below: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(below).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    paths.find_map(|path| match path.is_dir() {
        true => find(&path, name),
        false => path.ends_with(name).then_some(path),
    })
}

#[test]
fn one_users_rubbish_does_not_keep_anothers() {
    if !is_root() {
        eprintln!("not root: there is one user only");
        return;
    }
    let base = Base::new();
    let mine = base.folder();
    mine.ask(1, "asked", &[(0, 1)]).unwrap();
    for number in 0..5_000 {
        let name = format!("1/files/rank-0-of-1/{number}");
        fs::write(mine.path().join(name), b"").unwrap();
    }
    mine.close(1, None).unwrap();
    let other = Kept {
        uid: 3009,
        gid: 3009,
        ..kept(0)
    };
    let other = JobFolder::create(&base.path(), &job(8), &other).unwrap();
    other.ask(1, "asked", &[(0, 1)]).unwrap();
    fs::write(other.path().join("1/files/rank-0-of-1/f"), b"").unwrap();
    other.close(1, None).unwrap();
    let trash = base.trash();
    for _ in 0..6 {
        assert!(trash.step(200).unwrap().more);
    }
    assert!(!base.path().join(".gone/3009").exists());
    assert!(base.path().join(".gone/3001").exists());
    base.empty();
    assert_eq!(base.left().len(), 0);
}

#[test]
fn what_stays_is_in_the_way_of_nothing() {
    if !is_root() {
        eprintln!("not root: there are no folders of others");
        return;
    }
    let base = Base::new();
    let pile = base.path().join(".gone/3001");
    base.trash();
    fs::create_dir(&pile).unwrap();
    for number in 0..200 {
        fs::create_dir_all(pile.join(format!("stays-{number}/d"))).unwrap();
        fs::write(pile.join(format!("goes-{number}")), b"").unwrap();
    }
    let trash = base.trash();
    for _ in 0..400 {
        trash.step(16).unwrap();
    }
    assert!(names(&pile).iter().all(|name| name.starts_with("stays")));
    assert_eq!(base.empty().stuck, 200);
}

/// Two threads of the daemon, or two daemons.
#[test]
fn several_may_empty_it_at_once() {
    let base = Base::new();
    let folder = base.folder();
    for number in 1..=30 {
        folder.ask(number, "asked", &[(0, 1)]).unwrap();
        let at = folder.path().join(format!("{number}/files/rank-0-of-1"));
        nest(&at, 50);
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| while base.trash().step(50).unwrap().more {});
        }
        for number in 31..=60 {
            folder.ask(number, "asked", &[(0, 1)]).unwrap();
            nest(&folder.path().join(format!("{number}/files")), 50);
        }
    });
    folder.remove().unwrap();
    assert_eq!(base.empty().stuck, 0);
    assert_eq!(base.left().len(), 0);
}
