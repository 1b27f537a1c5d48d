//! Folders of jobs after the mover was started anew.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use gpuos_core::job::JobId;
use gpuos_mover::program::{Answered, Known, Told};
use gpuos_moverd::folder::{JobFolder, Kept};
use gpuos_moverd::left::Left;
use gpuos_workload::job::{Job, JobState};
use gpuos_workload::recorded::Recorded;

use crate::support::{Base, facts, job, join, kept, names, text, user};

/// The mover is started anew, and serves the same run of the job.
fn again(base: &Base) -> JobFolder {
    base.folder()
}

#[test]
fn the_run_stands_in_a_line_of_roots() {
    let base = Base::new();
    let folder = base.folder();
    let Kept { uid, gid, .. } = kept(0);
    let line = folder.path().join("run");
    assert_eq!(text(&line), format!("0 {uid} {gid} 10m,l2=partner\n"));
    assert_eq!(facts(&line).2, 0o644);
    assert_eq!(base.trash().kept(&job(7)), Some(kept(0)));
    assert_eq!(base.trash().kept(&job(8)), None);
    for odd in [
        String::new(),
        format!("0 {uid} {gid} 10m"),
        format!("00 {uid} {gid} 10m\n"),
        format!("0 {uid} {gid}\n"),
        format!("0 {uid} {gid} \n"),
        format!("-1 {uid} {gid} 10m\n"),
        format!("0 4294967296 {gid} 10m\n"),
        format!("0 {uid} {gid} 10m\nmore\n"),
        format!("0 {uid} {gid} 10m\u{7}\n"),
        "x".repeat(10_000),
    ] {
        fs::write(&line, &odd).unwrap();
        assert_eq!(base.trash().kept(&job(7)), None, "{odd:?}");
    }
    fs::remove_file(&line).unwrap();
    assert_eq!(base.trash().kept(&job(7)), None);
}

#[test]
fn joins_and_answers_are_there_again() {
    let base = Base::new();
    let before = base.folder();
    user(before.path(), "touch ranks/0.3.5 ranks/1.3.5 ranks/2.3.5");
    before.joins().unwrap();
    before.answer(&join(0, 3, 5), "new", 4).unwrap();
    before.answer(&join(1, 3, 5), "restore 12", 4).unwrap();
    drop(before);
    let folder = again(&base);
    assert_eq!(folder.joins().unwrap().len(), 3);
    let answered = |rank, told| Answered {
        join: join(rank, 3, 5),
        epoch: 4,
        told,
    };
    let known = Known {
        answered: vec![answered(0, Told::New), answered(1, Told::Restore(12))],
        epoch: 4,
        highest: 12,
        ..Known::default()
    };
    assert_eq!(folder.known(), known);
    // Nobody is answered twice.
    folder.answer(&join(0, 3, 5), "restore 13", 5).unwrap();
    assert_eq!(text(folder.path().join("start.0.5")), "new\nepoch 4\n");
    // A rank that starts anew is.
    user(folder.path(), "touch ranks/0.3.6");
    folder.joins().unwrap();
    folder.answer(&join(0, 3, 6), "failed it is so", 5).unwrap();
    let expected = ["ranks", "start.0.6", "start.1.5"];
    assert_eq!(names(folder.path()), expected);
    let known = again(&base).known();
    assert_eq!((known.epoch, known.answered.len()), (5, 2));
    assert_eq!(known.answered[0].told, Told::Failed);
}

#[test]
fn of_two_answers_of_a_rank_the_later_one_counts() {
    let base = Base::new();
    let before = base.folder();
    user(before.path(), "touch ranks/0.1.6");
    // The mover ended between them.
    for (nonce, epoch) in [(5, 2), (6, 3), (4, 1)] {
        let file = before.path().join(format!("start.0.{nonce}"));
        fs::write(file, format!("new\nepoch {epoch}\n")).unwrap();
    }
    drop(before);
    let folder = again(&base);
    assert_eq!(names(folder.path()), ["ranks", "start.0.6"]);
    let known = folder.known();
    assert_eq!(known.answered.len(), 1);
    assert_eq!(known.answered[0].join, join(0, 1, 6));
}

/// A checkpoint is committed, and the next one asked for.
fn asked_for_7(base: &Base) -> JobFolder {
    let folder = base.folder();
    folder.ask(6, "asked", &[(0, 1)]).unwrap();
    folder.close(6, None).unwrap();
    folder.ask(7, "interval", &[(0, 1)]).unwrap();
    user(folder.path(), "touch 7/files/rank-0-of-1/f 7/ready.0");
    folder
}

#[test]
fn what_becomes_of_a_checkpoint_is_open_until_it_is_said() {
    let gathers = |base: &Base| {
        let folder = base.folder();
        folder.leave();
        folder
    };
    let ways: [fn(&Base) -> JobFolder; 2] = [again, gathers];
    for (committed, failed) in [(Some(7), None), (Some(6), Some(7))] {
        for again in ways {
            let base = Base::new();
            let before = asked_for_7(&base);
            before.leave();
            assert_eq!(before.left_open(), Some(7), "its mover goes on");
            drop(before);
            // However often it is begun anew.
            drop(again(&base));
            let folder = again(&base);
            assert_eq!(names(folder.path()), ["commit", "ranks", "request"]);
            let known = folder.known();
            assert_eq!((known.highest, known.open), (7, Some(7)));
            assert_eq!((known.committed, known.failed), (Some(6), None));
            assert!(folder.saved(7).unwrap().is_empty());
            let why = failed.map(|_| "no space");
            folder.close(7, why).unwrap();
            folder.leave();
            let known = folder.known();
            assert_eq!(
                (known.open, known.committed, known.failed),
                (None, committed, failed)
            );
            let folder = again(&base);
            assert!(!names(folder.path()).contains(&"request".to_string()));
            assert_eq!(folder.left_open(), None);
        }
    }
}

#[test]
fn one_of_which_ranks_here_have_no_request_yet_is_open_too() {
    let base = Base::new();
    let before = base.folder();
    fs::create_dir_all(before.path().join("9/files/rank-0-of-2")).unwrap();
    drop(before);
    let folder = again(&base);
    assert_eq!(folder.left_open(), Some(9));
    folder.close(9, Some("no space")).unwrap();
    assert_eq!(text(folder.path().join("failed")), "9 no space\n");
}

#[test]
fn after_one_that_was_left_open_the_next_one_is_made() {
    let base = Base::new();
    drop(asked_for_7(&base));
    let folder = again(&base);
    folder.close(7, None).unwrap();
    // The next one is made as ever.
    folder.ask(8, "interval", &[(0, 1)]).unwrap();
    user(folder.path(), "touch 8/ready.0");
    assert_eq!(folder.saved(8).unwrap().len(), 1);
    base.empty();
}

#[test]
fn one_that_was_committed_is_not_said_to_have_failed() {
    let base = Base::new();
    let before = base.folder();
    before.ask(7, "end", &[(0, 1)]).unwrap();
    fs::write(before.path().join("commit"), "7\n").unwrap();
    drop(before);
    let folder = again(&base);
    assert_eq!(names(folder.path()), ["commit", "ranks"]);
    assert_eq!(folder.known().highest, 7);
}

#[test]
fn what_was_half_done_is_removed_and_what_was_told_stays() {
    let base = Base::new();
    let before = base.folder();
    user(before.path(), "touch ranks/0.2.5 ranks/1.2.5");
    before.joins().unwrap();
    let restored = |name: &str| {
        let folder = before.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("f"), b"1").unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    };
    restored("restore.0.5");
    before.answer(&join(0, 2, 5), "restore 3", 1).unwrap();
    restored("restore.1.5");
    restored("restore.1.5.restoring-0");
    fs::write(before.path().join(".start.1.5"), b"resto").unwrap();
    // Asked for, and the request was not there yet.
    fs::create_dir_all(before.path().join("9/files/rank-0-of-2")).unwrap();
    let folder = again(&base);
    let expected = ["ranks", "restore.0.5", "start.0.5"];
    assert_eq!(names(folder.path()), expected);
    let known = folder.known();
    assert_eq!((known.highest, known.answered.len()), (9, 1));
    assert_eq!(text(folder.path().join("restore.0.5/f")), "1");
}

#[test]
fn a_folder_of_another_run_or_user_is_not_gone_on_with() {
    let other = [
        kept(1),
        Kept { uid: 7, ..kept(0) },
        Kept { gid: 7, ..kept(0) },
    ];
    for other in other {
        let base = Base::new();
        let before = base.folder();
        before.answer(&join(0, 1, 5), "new", 1).unwrap();
        drop(before);
        match JobFolder::create(&base.path(), &job(7), &other) {
            Ok(folder) => {
                assert_eq!(names(folder.path()), ["ranks"]);
                assert_eq!(folder.known(), Known::default());
            }
            // Who is not root cannot give a folder away.
            Err(_) => assert!(!crate::support::is_root()),
        }
    }
    // One whose line is not there was never whole.
    let base = Base::new();
    let before = base.folder();
    before.answer(&join(0, 1, 5), "new", 1).unwrap();
    fs::remove_file(before.path().join("run")).unwrap();
    drop(before);
    assert_eq!(names(again(&base).path()), ["ranks"]);
}

#[test]
fn folders_of_jobs_that_run_here_stay_and_others_go() {
    let base = Base::new();
    let make = |number: u32, run| {
        drop(JobFolder::create(&base.path(), &job(number), &kept(run)).unwrap());
    };
    let record = |number: u32, restarts, node: &str, state| Job {
        id: job(number),
        uid: kept(0).uid,
        restarts,
        nodes: vec!["n0".into(), node.into()],
        state,
        ..Job::default()
    };
    let jobs = [
        record(1, 2, "n1", JobState::Running),
        record(2, 1, "n1", JobState::Running),
        record(3, 2, "n2", JobState::Running),
        record(4, 2, "n1", JobState::Waiting),
        Job {
            uid: 9,
            ..record(5, 2, "n1", JobState::Running)
        },
        record(7, 1, "n1", JobState::Running),
    ];
    (1..8).for_each(|number| make(number, 2));
    let manager = Recorded::default();
    manager.with(|table| {
        table.jobs = jobs.into_iter().map(|job| (job.id.clone(), job)).collect();
        table.no_answer = Some("it is away".into());
    });
    let mut left = Left::find(Arc::new(base.trash())).unwrap();
    let served = |known: &JobId| *known == job(7);
    assert_eq!(left.decide(&manager, "n1", served), []);
    assert_eq!(
        names(base.path()).len(),
        8,
        "nothing is known, and nothing removed"
    );
    assert!(!left.is_empty());
    manager.with(|table| table.no_answer = None);
    let goes = left.decide(&manager, "n1", served);
    assert!(left.is_empty());
    assert_eq!(goes.len(), 1);
    assert_eq!((&goes[0].record.id, &goes[0].kept), (&job(1), &kept(2)));
    assert_eq!(names(base.path()), [".gone", "1", "7"]);
}
