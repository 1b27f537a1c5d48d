//! The library.

use std::fs;
use std::thread;
use std::time::Duration;

use gpuos_program::{Checkpoints, Error, Outcome, Rank, Reason, Start};
use proptest::prelude::*;

use crate::support::Mover;

fn rank(rank: u64, size: u64) -> Rank {
    Rank::new(rank, size).expect("a rank")
}

fn client(mover: &Mover, of: Rank) -> Checkpoints {
    Checkpoints::at(Some(mover.path().into()), of)
}

fn joined(mover: &Mover, of: Rank) -> (Checkpoints, Start) {
    let mut client = client(mover, of);
    let start = client.join(None).expect("answered");
    (client, start)
}

/// Saves one file, as all ranks do here.
fn save(client: &mut Checkpoints, number: u32, text: &str) {
    let folder = client.folder(number).expect("wanted");
    fs::write(folder.join("state"), text).expect("written");
    client.ready(number).expect("taken");
}

#[test]
fn a_job_without_checkpoints_runs_on() {
    let mut client = Checkpoints::at(None, Rank::ALONE);
    assert!(!client.available());
    assert_eq!(client.join(None).expect("answered"), Start::New);
    assert_eq!(client.wanted(), None);
    assert!(matches!(client.folder(1), Err(Error::NoCheckpoints)));
    assert!(matches!(client.ready(1), Err(Error::NoCheckpoints)));
    assert!(matches!(
        client.wait(1, None).expect("known"),
        Outcome::Failed(why) if why.contains("GPUOS_CHECKPOINT_DIR is not set")
    ));
}

#[test]
fn a_rank_asks_by_a_file_once_it_has_joined() {
    Checkpoints::at(None, Rank::ALONE)
        .ask()
        .expect("nothing is done");
    let mover = Mover::start();
    let file = mover.path().join("ranks/ask.0");
    client(&mover, Rank::ALONE).ask().expect("nothing is done");
    assert!(!file.exists());
    let (client, _) = joined(&mover, Rank::ALONE);
    client.ask().expect("asked");
    client.ask().expect("asked again");
    assert!(file.is_file());
}

#[test]
fn a_program_that_reads_the_files_of_any_ranks_says_so_before_it_joins() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().to_path_buf();
    fs::create_dir(path.join("ranks")).expect("made");
    let answers = {
        let path = path.clone();
        thread::spawn(move || {
            loop {
                let names = fs::read_dir(path.join("ranks")).expect("it is there");
                let names = names.map(|name| name.expect("a name").file_name().into_string());
                let names: Vec<String> = names.map(|name| name.expect("UTF-8")).collect();
                if let Some(join) = names.iter().find(|name| name.starts_with("1.3.")) {
                    let nonce = &join["1.3.".len()..];
                    let (new, start) = (path.join("new"), path.join(format!("start.1.{nonce}")));
                    fs::write(&new, "restore 4 of 2\nepoch 1\n").expect("written");
                    fs::rename(new, start).expect("renamed");
                    return names.contains(&format!("any.1.{nonce}"));
                }
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let mut client = Checkpoints::at(Some(path.clone()), rank(1, 3));
    client.any_ranks();
    assert_eq!(client.given_ranks(), None);
    let start = client.join(None).expect("answered");
    assert!(answers.join().expect("it ends"), "said before the join");
    let folder = path.join("restored.4");
    assert_eq!(start, Start::Restore { number: 4, folder });
    assert_eq!(client.given_ranks(), Some(2));
}

#[test]
fn what_was_saved_and_came_to_nothing_is_told_by_what_comes_next() {
    let mover = Mover::start();
    let (mut client, _) = joined(&mover, Rank::ALONE);
    for why in ["no room", "node n2 is gone"] {
        let number = mover.ask_in_vain("interval", why);
        let before = client.lost();
        save(&mut client, number, "17");
        assert_eq!(client.lost(), before, "not known yet");
        mover.ended(number).expect_err("fails");
        client.ask().expect("asked");
        let lost = client.lost().expect("known by now");
        assert_eq!((lost.number, &lost.why[..]), (number, why));
        assert_eq!((client.wanted(), client.lost()), (None, Some(lost)));
    }
    let number = mover.ask("interval");
    save(&mut client, number, "18");
    assert!(client.lost().is_some(), "the one before");
    mover.ended(number).expect("committed");
    assert_eq!((client.wanted(), client.lost()), (None, None));
    // Who has waited is told of it by that.
    let number = mover.ask_in_vain("end", "no room");
    save(&mut client, number, "19");
    let ended = client.wait(number, None).expect("known");
    assert_eq!(ended, Outcome::Failed("no room".into()));
    assert_eq!(client.lost().map(|lost| lost.number), Some(number));
}

#[test]
fn what_was_saved_is_there_at_the_next_start() {
    let mover = Mover::start();
    let (mut client, start) = joined(&mover, Rank::ALONE);
    assert_eq!(start, Start::New);
    assert_eq!(client.wanted(), None);
    let number = mover.ask("interval");
    let request = client.wanted().expect("wanted");
    assert_eq!((request.number, request.reason), (number, Reason::Interval));
    assert!(!request.is_end());
    assert_eq!(client.outcome(number).expect("known"), Outcome::Pending);
    save(&mut client, number, "17");
    // It may be committed by now, or not: it is wanted no more.
    assert_eq!(client.wanted(), None);
    assert_eq!(
        client.wait(number, None).expect("known"),
        Outcome::Committed
    );
    // Said twice, or too late, it is the same.
    assert!(matches!(client.ready(number), Err(Error::Over { .. })));

    mover.restart();
    let (client, start) = joined(&mover, Rank::ALONE);
    let Start::Restore {
        number: from,
        folder,
    } = start
    else {
        panic!("{start:?}");
    };
    assert_eq!(from, number);
    let state = fs::read_to_string(folder.join("state")).expect("restored");
    assert_eq!(state, "17");
    assert_eq!(client.wanted(), None);
}

#[test]
fn a_checkpoint_whose_folder_does_not_come_is_not_wanted_again() {
    let mover = Mover::start();
    let (mut client, _) = joined(&mover, Rank::ALONE);
    let number = mover.ask("interval");
    assert_eq!(client.wanted().expect("wanted").number, number);
    fs::remove_dir_all(mover.path().join(format!("{number}/files"))).expect("it was there");
    let waited = client.folder_within(number, Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
    assert_eq!(client.wanted(), None);
    mover.give_up("of the test");
    let next = mover.ask("interval");
    assert_eq!(client.wanted().expect("wanted").number, next);
    client.pass_over(next);
    assert_eq!(client.wanted(), None);
}

#[test]
fn of_two_programs_at_once_the_later_one_alone_saves() {
    let mover = Mover::start();
    let (mut first, _) = joined(&mover, Rank::ALONE);
    let (mut second, _) = joined(&mover, Rank::ALONE);
    let number = mover.ask("interval");
    assert_eq!(first.wanted(), None);
    for done in [first.folder(number).map(drop), first.ready(number)] {
        let why = done.expect_err("refused").to_string();
        assert!(why.contains("one program at a time"), "{why}");
    }
    assert_eq!(second.wanted().expect("wanted").number, number);
    second.folder(number).expect("its folder");
    second.ready(number).expect("ready");
    mover.ended(number).expect("committed");
}

#[test]
fn a_process_keeps_its_join_locked_as_long_as_it_takes_part() {
    use rustix::fs::{FlockOperation, flock};
    let mover = Mover::start();
    let (client, _) = joined(&mover, Rank::ALONE);
    let ranks = fs::read_dir(mover.path().join("ranks")).expect("there");
    let path = ranks.flatten().next().expect("a join").path();
    assert_eq!(fs::read_to_string(&path).expect("read"), "locked\n");
    let file = fs::File::open(&path).expect("opened");
    let free = || flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    assert!(!free());
    drop(client);
    // A child that another test starts just now has the file, with its lock, until it runs its program.
    let start = std::time::Instant::now();
    while !free() {
        assert!(start.elapsed() < Duration::from_secs(60), "still locked");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranks_are_answered_when_all_have_joined() {
    let mover = Mover::start();
    let ranks: Vec<_> = (0..4)
        .map(|number| client(&mover, rank(number, 4)))
        .collect();
    let mut ranks = ranks.into_iter();
    let mut first = ranks.next().expect("one");
    let waited = first.join(Some(Duration::from_millis(20)));
    assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
    assert_eq!(mover.answered(), 0);
    let threads: Vec<_> = ranks
        .chain([first])
        .map(|mut client| {
            thread::spawn(move || {
                let start = client.join(None).expect("answered");
                (client, start)
            })
        })
        .collect();
    let mut clients: Vec<Checkpoints> = threads
        .into_iter()
        .map(|thread| {
            let (client, start) = thread.join().expect("joined");
            assert_eq!(start, Start::New);
            client
        })
        .collect();
    let number = mover.ask("asked");
    for client in &mut clients {
        assert_eq!(client.outcome(number).expect("known"), Outcome::Pending);
        let text = client.rank().to_string();
        save(client, number, &text);
    }
    mover.ended(number).expect("committed");
    let kept = fs::read_to_string(mover.kept(number, 2).join("state"));
    assert_eq!(kept.expect("kept"), "rank 2 of 4");
}

#[test]
fn a_rank_waits_for_its_folder_where_another_has_seen_the_request() {
    let mover = Mover::start();
    let (mut client, _) = joined(&mover, Rank::ALONE);
    let saver = thread::spawn(move || save(&mut client, 1, "told by another"));
    assert_eq!(mover.ask("interval"), 1);
    saver.join().expect("saved");
    mover.ended(1).expect("committed");
}

#[test]
fn a_checkpoint_that_was_given_up_is_over_and_the_next_one_counts() {
    let mover = Mover::start();
    let (mut client, _) = joined(&mover, Rank::ALONE);
    let first = mover.ask("interval");
    let folder = client.folder(first).expect("wanted");
    mover.give_up("rank 0 took too long");
    assert!(fs::write(folder.join("state"), "late").is_err());
    let over = client.ready(first).expect_err("over");
    assert_eq!(
        over.to_string(),
        "checkpoint 1 is not wanted any more: rank 0 took too long"
    );
    assert!(matches!(client.folder(first), Err(Error::Over { .. })));
    assert_eq!(client.wanted(), None);

    let second = mover.ask_in_vain("interval", "node 3 is away");
    save(&mut client, second, "in vain");
    assert_eq!(
        client.wait(second, None).expect("known"),
        Outcome::Failed("node 3 is away".into())
    );
    // What `failed` says of a newer one holds for one that is not in `commit`, too.
    assert!(matches!(client.outcome(first), Ok(Outcome::Failed(_))));

    let third = mover.ask("interval");
    save(&mut client, third, "kept");
    mover.ended(third).expect("committed");
    assert!(matches!(client.outcome(second), Ok(Outcome::Failed(_))));
    assert_eq!(client.outcome(third).expect("known"), Outcome::Committed);
    assert_eq!(client.outcome(third + 1).expect("known"), Outcome::Pending);
}

/// A node whose mover ended before it heard of a checkpoint: ranks there wait for the folder, as others were told of it.
#[test]
fn a_checkpoint_that_never_came_is_over_when_a_newer_one_is_asked_for() {
    let mover = Mover::start();
    let (mut client, _) = joined(&mover, Rank::ALONE);
    assert_eq!(client.outcome(2).expect("known"), Outcome::Pending);
    fs::write(mover.path().join("request"), "3 interval\n").expect("written");
    let over = client.folder(2).expect_err("over").to_string();
    assert!(
        over.ends_with("it came to nothing, as checkpoint 3 is asked for"),
        "{over}"
    );
    assert_eq!(client.outcome(3).expect("known"), Outcome::Pending);
    fs::write(mover.path().join("commit"), "2\n").expect("written");
    assert_eq!(client.outcome(2).expect("known"), Outcome::Committed);
}

proptest! {
    /// However checkpoints ended, one after the other: what is said of each is so, at any later time.
    #[test]
    fn outcomes_stay_what_they_were(ends in proptest::collection::vec(any::<bool>(), 1..12)) {
        let folder = tempfile::tempdir().expect("a folder");
        let client = Checkpoints::at(Some(folder.path().into()), Rank::ALONE);
        for (now, exists) in ends.iter().enumerate() {
            let line = match exists {
                true => format!("{}", now + 1),
                false => format!("{} no room", now + 1),
            };
            let name = if *exists { "commit" } else { "failed" };
            fs::write(folder.path().join(name), line).expect("written");
            for before in 0..ends.len() {
                let outcome = client.outcome(before as u32 + 1).expect("known");
                let newer = ends[before..=now.max(before)].contains(&true);
                let right = match outcome {
                    Outcome::Pending => before > now,
                    Outcome::Committed => before <= now && newer,
                    Outcome::Failed(_) => before <= now && !ends[before],
                };
                prop_assert!(right, "{} of {:?} at {now}: {outcome:?}", before + 1, ends);
            }
        }
    }
}

#[test]
fn a_program_that_starts_again_leaves_one_file_for_each_rank() {
    let mover = Mover::start();
    for _ in 0..3 {
        let (_, start) = joined(&mover, Rank::ALONE);
        assert_eq!(start, Start::New);
    }
    let names = fs::read_dir(mover.path().join("ranks")).expect("a folder");
    assert_eq!(names.count(), 1);
    assert_eq!(mover.answered(), 3);
}

#[test]
fn ranks_of_a_program_that_starts_again_go_on_from_one_checkpoint() {
    let mover = Mover::start();
    let both = |start: fn(&Start) -> bool| -> Vec<Checkpoints> {
        let threads = [0, 1].map(|number| {
            let mut client = client(&mover, rank(number, 2));
            thread::spawn(move || {
                let start = client.join(None).expect("answered");
                (client, start)
            })
        });
        let joined = threads.map(|thread| thread.join().expect("joined"));
        let checked = joined.map(|(client, told)| {
            assert!(start(&told), "{told:?}");
            client
        });
        checked.into()
    };
    let mut clients = both(|start| *start == Start::New);
    let number = mover.ask("interval");
    for client in &mut clients {
        save(client, number, "1");
    }
    mover.ended(number).expect("committed");
    let second = mover.ask("interval");
    save(&mut clients[0], second, "2");
    // Rank 1 dies before it has saved, and all start again.
    let clients = both(|start| matches!(start, Start::Restore { number: 1, .. }));
    assert!(matches!(clients[0].outcome(second), Ok(Outcome::Failed(_))));
    assert_eq!(clients[1].wanted(), None);
}

#[test]
fn a_start_that_fails_says_why() {
    let mover = Mover::start();
    let why = "checkpoint 4 was made by 8 ranks, and this program has 1";
    mover.refuse(why);
    let (client, start) = joined(&mover, Rank::ALONE);
    assert_eq!(start, Start::Failed(why.into()));
    assert_eq!(client.wanted(), None);
}

#[test]
fn a_line_of_a_later_version_is_named() {
    let mover = Mover::start();
    mover.silent();
    let mut client = client(&mover, Rank::ALONE);
    let answered = thread::spawn(move || client.join(None));
    let joined = loop {
        let name = fs::read_dir(mover.path().join("ranks"))
            .expect("a folder")
            .next();
        if let Some(name) = name {
            break name.expect("an entry").file_name().into_string();
        }
        thread::yield_now();
    };
    let joined = joined.expect("a name");
    let nonce = joined.rsplit('.').next().expect("a nonce");
    let answer = mover.path().join(format!("start.0.{nonce}"));
    fs::write(mover.path().join("new"), "migrate 7\n").expect("written");
    fs::rename(mover.path().join("new"), answer).expect("renamed");
    let unknown = answered.join().expect("joined").expect_err("unknown");
    let text = unknown.to_string();
    assert!(text.contains("says \"migrate 7\""), "{text}");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_with_what_to_do() {
    let mut client = Checkpoints::at(Some("/nonexistent/7".into()), Rank::ALONE);
    let text = client.join(None).expect_err("not there").to_string();
    assert!(text.starts_with("cannot join in /nonexistent/7"), "{text}");
    assert!(text.contains("in a container"), "{text}");
}

#[test]
fn a_wait_ends_with_its_limit_or_with_the_folder() {
    let mover = Mover::start();
    let (client, _) = joined(&mover, Rank::ALONE);
    let number = mover.ask("interval");
    let limit = Some(Duration::ZERO);
    assert_eq!(client.wait(number, limit).expect("known"), Outcome::Pending);
    drop(mover);
    assert!(matches!(
        client.wait(number, None),
        Err(Error::Files { .. })
    ));
}

#[test]
fn what_cannot_be_loaded_is_refused_by_all_and_the_one_before_is_given() {
    let mover = Mover::start();
    let ranks = [rank(0, 2), rank(1, 2)];
    let start = || {
        thread::scope(|scope| {
            let mover = &mover;
            let all = ranks.map(|of| scope.spawn(move || joined(mover, of)));
            all.map(|one| one.join().expect("joined"))
        })
    };
    let mut clients = start().map(|(client, _)| client);
    for number in [1, 2] {
        assert_eq!(mover.ask("asked"), number);
        for client in &mut clients {
            save(client, number, &number.to_string());
        }
        mover.ended(number).expect("committed");
    }
    assert!(matches!(clients[0].refuse("x"), Err(Error::NothingGiven)));
    let mut given = start();
    for (client, start) in &mut given {
        assert!(
            matches!(start, Start::Restore { number: 2, .. }),
            "{start:?}"
        );
        client.refuse("no layer 7\nat all").expect("refused");
        assert_eq!(client.wanted(), None);
        assert!(matches!(client.refuse("x"), Err(Error::NothingGiven)));
    }
    let given = start();
    for (_, start) in &given {
        assert!(
            matches!(start, Start::Restore { number: 1, .. }),
            "{start:?}"
        );
    }
    assert_eq!(mover.refused(), ["no layer 7", "no layer 7"]);
}
