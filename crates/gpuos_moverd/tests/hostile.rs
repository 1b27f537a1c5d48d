//! The user of a job, who means harm, in the folders that are given to him.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::*;

#[test]
fn only_a_regular_file_says_that_a_rank_is_ready() {
    let base = Base::new();
    let folder = base.folder();
    folder
        .ask(
            1,
            "asked",
            &(0..6).map(|rank| (rank, 6)).collect::<Vec<_>>(),
        )
        .unwrap();
    let at = folder.path().join("1");
    user(
        &at,
        "ln -s /etc/passwd ready.0; mkfifo ready.1; mkdir ready.2; ln -s ready.5 ready.3; touch ready.5",
    );
    if is_root() {
        let zero = rustix::fs::makedev(1, 5);
        let path = at.join("ready.4");
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::RWXU, zero).unwrap();
    }
    assert_eq!(folder.saved(1).unwrap(), BTreeSet::from([5]));
    if is_root() {
        user(&at, "chmod 0 .");
        assert_eq!(folder.saved(1).unwrap(), BTreeSet::from([5]));
    }
    folder.close(1, Some("no")).unwrap();
}

#[test]
fn a_link_in_place_of_the_files_leads_nowhere() {
    let base = Base::new();
    let folder = base.folder();
    let outside = base.beside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), b"1").unwrap();
    let tricks = [
        format!("ln -s {} files", outside.display()),
        "ln -s / files".into(),
        "ln -s ../../../outside files".into(),
        "ln -s kept files".into(),
        "mkfifo files".into(),
        "touch files".into(),
        ":".into(),
    ];
    for (number, trick) in (1..).zip(tricks) {
        folder.ask(number, "asked", &[(0, 1)]).unwrap();
        let at = folder.path().join(number.to_string());
        user(&at, &format!("mv files kept; {trick}; touch ready.0"));
        assert!(folder.files(number).is_err(), "{trick}");
        folder.taken(number).unwrap();
        folder.close(number, None).unwrap();
        assert!(!at.exists());
    }
    if is_root() {
        folder.ask(9, "asked", &[]).unwrap();
        fs::rename(folder.path().join("9/files"), base.beside("moved")).unwrap();
        fs::create_dir(folder.path().join("9/files")).unwrap();
        assert!(folder.files(9).is_err(), "it is another user's");
    }
    folder.remove().unwrap();
    base.empty();
    assert_eq!(base.left().len(), 0);
    assert_eq!(text(outside.join("f")), "1");
}

#[test]
fn a_folder_is_held_by_what_was_made_and_not_by_its_name() {
    let base = Base::new();
    let folder = base.folder();
    // Whoever got root to do that could do all else; it shows that nothing goes by path.
    fs::rename(folder.path(), base.beside("elsewhere")).unwrap();
    fs::create_dir(folder.path()).unwrap();
    user(&base.beside("elsewhere/ranks"), "touch 0.1.1");
    assert_eq!(folder.joins().unwrap(), [join(0, 1, 1)]);
    folder.answer(&join(0, 1, 1), "new", 1).unwrap();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    assert_eq!(names(folder.path()).len(), 0);
    assert_eq!(text(base.beside("elsewhere/request")), "1 asked\n");
}

/// Regular files; links to a few, which costs less.
fn many(count: usize, path: impl Fn(usize) -> PathBuf) {
    for number in 0..count {
        match number % 30_000 {
            0 => fs::write(path(number), b"").unwrap(),
            rest => fs::hard_link(path(number - rest), path(number)).unwrap(),
        }
    }
}

#[test]
fn more_names_than_ranks_can_be() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    many(70_000, |number| {
        ranks.join(format!("{number}.{}.1", number + 1))
    });
    let joins = folder.joins().unwrap();
    assert!(
        joins.len() <= 65_536 && joins.len() > 60_000,
        "{}",
        joins.len()
    );
    assert_eq!(folder.joins().unwrap(), joins);
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1");
    many(70_000, |number| at.join(format!("ready.{number}")));
    assert!(folder.saved(1).unwrap().len() <= 1);
    folder.close(1, None).unwrap();
    folder.remove().unwrap();
    base.empty();
    assert_eq!(base.left().len(), 0);
}

/// A process of the user's that goes on until it is dropped, with what it starts.
struct Busy(Child);

impl Busy {
    fn start(at: &Path, script: &str) -> Busy {
        let mut command = shell(at, script);
        command.process_group(0).stderr(Stdio::null());
        Busy(command.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn whatever_is_renamed_and_made_again_meanwhile_root_leaves_what_is_outside() {
    let base = Base::new();
    let folder = base.folder();
    let outside = base.beside("outside");
    fs::create_dir_all(outside.join("d/e")).unwrap();
    fs::write(outside.join("d/e/f"), b"mine").unwrap();
    fs::write(outside.join("f"), b"mine").unwrap();
    let ticks = base.beside("ticks");
    fs::write(&ticks, b"").unwrap();
    chown(&ticks, Some(owner().0), None).unwrap();
    let turns = || fs::metadata(&ticks).unwrap().len();
    // It goes on with what is done meanwhile until the user has had his turn.
    let meanwhile = |mut what: Box<dyn FnMut() + '_>| {
        let (begun, mut rounds) = (turns(), 0);
        while turns() < begun + 3 && rounds < 1_000_000 {
            what();
            rounds += 1;
            if rounds % 100 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(turns() > begun, "the user did nothing");
    };
    for number in 1..=if long() { 200 } else { 10 } {
        folder.ask(number, "asked", &[(0, 1)]).unwrap();
        let at = folder.path().join(format!("{number}/files/rank-0-of-1"));
        user(&at, "mkdir -p a/b/c x; touch a/b/c/f x/f");
        // Its working folder is held, wherever it is moved to.
        let script = format!(
            "exec 3>>{ticks}; set +e; cd a; while echo >&3; do mv b ..; mv ../b .; mv ../x b/; mv b/x ..
             mkdir -p b/c ../y; echo 1 >b/n; ln -sfn {out} l; rm -f k; mv l k; ln -sfn {out}/d b/c/d
             mv b k2; ln -sfn {out} b; rm -f b; mv k2 b; mv ../y b/y; mv ../../../files ../../../f2; mv ../../../f2 ../../../files; done",
            ticks = ticks.display(),
            out = outside.display()
        );
        let busy = Busy::start(&at, &script);
        meanwhile(Box::new(|| {
            let _ = folder.files(number).map(drop);
            folder.saved(number).unwrap();
        }));
        folder.close(number, None).unwrap();
        assert!(!folder.path().join(number.to_string()).exists());
        let trash = base.trash();
        meanwhile(Box::new(|| {
            trash.step(20).unwrap();
        }));
        drop(busy);
    }
    folder.remove().unwrap();
    let end = base.empty();
    assert_eq!(end.stuck, 0);
    assert_eq!(base.left().len(), 0);
    for kept in ["d/e/f", "f"] {
        assert_eq!(text(outside.join(kept)), "mine");
    }
}

#[test]
fn a_hard_link_to_a_file_of_others_is_removed_and_the_file_stays() {
    if !is_root() {
        eprintln!("not root: there are no files of others");
        return;
    }
    let base = Base::new();
    let folder = base.folder();
    let secret = base.beside("secret");
    fs::write(&secret, b"secret").unwrap();
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    let at = folder.path().join("1");
    fs::hard_link(&secret, at.join("files/rank-0-of-1/f")).unwrap();
    fs::hard_link(&secret, at.join("ready.0")).unwrap();
    fs::hard_link(&secret, folder.path().join("ranks/0.1.1")).unwrap();
    assert_eq!(folder.joins().unwrap(), [join(0, 1, 1)]);
    folder.answer(&join(0, 1, 2), "new", 1).unwrap();
    folder.close(1, None).unwrap();
    folder.remove().unwrap();
    base.empty();
    assert_eq!(base.left().len(), 0);
    let facts = fs::metadata(&secret).unwrap();
    assert_eq!(
        (facts.nlink(), facts.uid(), text(&secret)),
        (1, 0, "secret".into())
    );
}

#[test]
fn names_in_ranks_that_are_no_files_stay_and_do_no_harm() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    user(&ranks, "touch -d @1000 0.1.1; touch 0.1.2");
    assert_eq!(folder.joins().unwrap(), [join(0, 1, 2)]);
    // Between the look and the answer.
    user(&ranks, "rm 0.1.1; mkdir 0.1.1; touch 0.1.1/f");
    folder.answer(&join(0, 1, 2), "new", 1).unwrap();
    assert_eq!(names(&ranks), ["0.1.1", "0.1.2"]);
    if is_root() {
        chown(ranks.join("0.1.1"), Some(0), None).unwrap();
    }
    folder.remove().unwrap();
    base.empty();
    assert_eq!(base.left().len(), usize::from(is_root()));
}
