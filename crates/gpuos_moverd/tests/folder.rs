//! What a program sees of the protocol.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{NodeSet, ranks};
use gpuos_mover::program::{Join, Told};
use gpuos_moverd::folder::{JobFolder, begin_all, end_all, has_all, restored_name};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::ingest::Limits;
use gpuos_store::job::New;
use gpuos_store::key::SiteKey;
use gpuos_store::restore::{Target, restore_part};
use gpuos_store::source::LocalSource;
use gpuos_store::store::Store;
use proptest::prelude::*;

use crate::support::*;

#[test]
fn the_folder_is_roots_and_ranks_is_the_users() {
    let base = Base::new();
    let folder = base.folder();
    assert_eq!(folder.path(), base.path().join("7"));
    let (uid, gid) = owner();
    let (us, _, mode) = facts(folder.path());
    assert_eq!((us, mode), (rustix::process::geteuid().as_raw(), 0o755));
    assert_eq!(facts(folder.path().join("ranks")), (uid, gid, 0o700));
    assert_eq!(names(folder.path()), ["ranks"]);
    user(&folder.path().join("ranks"), "touch 0.1.17");
    assert_eq!(folder.joins().unwrap(), [join(0, 1, 17)]);
    if is_root() {
        for attempt in [
            "touch request",
            "rmdir ranks",
            "mv ranks other",
            "ln -s /etc 1",
            "ls ../.gone",
        ] {
            let mut tried = shell(folder.path(), attempt);
            let done = tried.stderr(std::process::Stdio::null()).status();
            assert!(!done.unwrap().success(), "{attempt}");
        }
    }
}

#[test]
fn what_is_said_of_joins_stands_beside_them_and_goes_with_them() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    user(
        &ranks,
        "touch 0.3.17 1.3.18 2.3.19 any.0.17 all.1.18 any.2.20 any.1.x every.2.19; mkdir any.2.19",
    );
    assert_eq!(folder.joins().unwrap().len(), 3);
    let says = [(join(0, 3, 17), false), (join(1, 3, 18), true)];
    assert_eq!(folder.any(), says);
    for (join, _) in says {
        folder.answer(&join, "restore 4 of 2", 1).unwrap();
    }
    assert_eq!(folder.known().answered[0].told, Told::Restore(4));
    // A later start, which does not say so.
    thread::sleep(Duration::from_millis(20));
    user(&ranks, "touch 0.3.27");
    folder.joins().unwrap();
    folder.answer(&join(0, 3, 27), "new", 2).unwrap();
    assert!(!ranks.join("any.0.17").exists());
    folder.joins().unwrap();
    assert_eq!(folder.any(), says[1..]);
}

#[test]
fn files_of_all_ranks_are_there_whole_until_something_newer_is_committed() {
    let base = Base::new();
    let folder = base.folder();
    let made = begin_all(&folder, 4).unwrap();
    assert!(!has_all(&folder, 4));
    // A mover that ended in the middle of it.
    drop((made, folder));
    let folder = base.folder();
    assert!(!folder.path().join("restore.all.4").exists());
    let made = begin_all(&folder, 4).unwrap();
    end_all(&folder, 4, &made).unwrap();
    assert!(has_all(&folder, 4) && !has_all(&folder, 5));
    let (us, _, mode) = facts(folder.path().join("restored.4"));
    assert_eq!((us, mode), (rustix::process::geteuid().as_raw(), 0o755));
    drop(folder);
    let folder = base.folder();
    assert!(has_all(&folder, 4), "programs that were given it read it");
    folder.close(5, Some("it came to nothing")).unwrap();
    assert!(has_all(&folder, 4));
    folder.close(6, None).unwrap();
    assert!(!has_all(&folder, 4));
}

#[test]
fn a_base_where_others_could_write_is_refused() {
    let base = Base::new();
    let create = |at: &std::path::Path| JobFolder::create(at, &job(7), &kept(0));
    let refused = |at: &std::path::Path| {
        let said = create(at).err().expect("it is refused").to_string();
        assert!(said.contains("for the folders of jobs"), "{said}");
        assert!(said.contains("mode 0755"), "{said}");
    };
    refused(&base.beside("none"));
    symlink(base.path(), base.beside("link")).unwrap();
    refused(&base.beside("link"));
    for mode in [0o775, 0o757, 0o1777] {
        fs::set_permissions(base.path(), fs::Permissions::from_mode(mode)).unwrap();
        refused(&base.path());
    }
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if is_root() {
        chown(base.path(), Some(3001), None).unwrap();
        refused(&base.path());
        chown(base.path(), Some(0), None).unwrap();
    }
    assert!(create(&base.path()).is_ok());
}

#[test]
fn the_newest_join_of_each_rank_counts_and_odd_names_are_passed_over() {
    let base = Base::new();
    let folder = base.folder();
    assert_eq!(folder.joins().unwrap(), []);
    let ranks = folder.path().join("ranks");
    user(
        &ranks,
        "touch -d @2000 0.4.5; touch -d @1000 0.4.9; touch -d @1000 1.4.9; touch -d @1000 1.4.10
         touch 3.4.9999999999999999999 2.4.0
         touch 4.4.1 5.4.1 0.0.1 00.4.1 0.04.1 0.4.01 0.4. 0.4 .4.1 0..1 x 0.4.1.1 +0.4.1 '0.4.1 ' -- -1.4.1
         touch 0.65536.1 65536.65536.1 0.4.10000000000000000000 0.4.0x1 '0.4.1\n'
         mkdir 0.4.77; ln -s 0.4.5 0.4.78; mkfifo 0.4.79",
    );
    let expected = [
        join(0, 4, 5),
        join(1, 4, 10),
        join(2, 4, 0),
        join(3, 4, 9_999_999_999_999_999_999),
    ];
    assert_eq!(folder.joins().unwrap(), expected);
    assert_eq!(folder.joins().unwrap(), expected);
    // Of the largest program.
    user(&ranks, "rm -r ./*; touch 65534.65535.1 0.65535.1");
    let expected = [join(0, 65535, 1), join(65534, 65535, 1)];
    assert_eq!(folder.joins().unwrap(), expected);
}

#[test]
fn each_join_is_seen_at_once() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    for rank in 0..200u16 {
        fs::write(ranks.join(format!("{rank}.200.1")), b"").unwrap();
        assert_eq!(folder.joins().unwrap().len(), usize::from(rank) + 1);
    }
    // After a pause it is known that nothing has changed, until something does.
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(folder.joins().unwrap().len(), 200);
    assert_eq!(folder.joins().unwrap().len(), 200);
    fs::write(ranks.join("0.200.2"), b"").unwrap();
    assert_eq!(folder.joins().unwrap()[0], join(0, 200, 2));
    fs::remove_file(ranks.join("1.200.1")).unwrap();
    assert_eq!(folder.joins().unwrap().len(), 199);
}

#[test]
fn who_has_ended_is_known_of_those_that_lock_their_file() {
    let base = Base::new();
    let folder = base.folder();
    let ranks = folder.path().join("ranks");
    let made = |rank: u16, says: &str| {
        let file = fs::File::create(ranks.join(format!("{rank}.4.1"))).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        fs::write(ranks.join(format!("{rank}.4.1")), says).unwrap();
        file
    };
    let [runs, ended, quiet] =
        [(0, "locked\n"), (1, "locked\n"), (2, "")].map(|(rank, says)| made(rank, says));
    user(&ranks, "echo > there; ln there 3.4.1; ln -sf there 3.4.2");
    drop((ended, quiet));
    let joins = folder.joins().unwrap();
    assert_eq!(joins.len(), 4);
    // A child that another test starts just now has our files, with their locks, until it runs its program.
    let becomes = |number: usize| {
        let start = std::time::Instant::now();
        while folder.gone(&joins).len() < number && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        folder.gone(&joins)
    };
    for _ in 0..2 {
        assert_eq!(becomes(2), [join(1, 4, 1), join(3, 4, 1)]);
    }
    assert_eq!(folder.gone(&[join(3, 4, 2), join(3, 4, 3)]), []);
    drop(runs);
    assert_eq!(becomes(3).len(), 3);
}

#[test]
fn an_answer_is_a_line_of_roots_and_its_epoch() {
    let base = Base::new();
    let folder = base.folder();
    let at = |name: &str| folder.path().join(name);
    folder.answer(&join(2, 3, 44), "restore 17", 1).unwrap();
    assert_eq!(text(at("start.2.44")), "restore 17\nepoch 1\n");
    assert_eq!(facts(at("start.2.44")).2, 0o644);
    user(
        folder.path(),
        "test \"$(head -n1 start.2.44)\" = 'restore 17'",
    );
    let odd = "failed a\nb\r\u{1b}[2J\u{2028}\u{202e}c";
    folder.answer(&join(0, 3, 1), odd, 1).unwrap();
    assert_eq!(text(at("start.0.1")), "failed a b  [2J  c\nepoch 1\n");
    let long = format!("failed {}", "ä".repeat(1000));
    folder.answer(&join(1, 3, 1), &long, 1).unwrap();
    let written = text(at("start.1.1"));
    let line = written.strip_suffix("ä\nepoch 1\n").unwrap();
    assert!((1090..=1098).contains(&line.len()));
    // Once: the program may have read it.
    folder.answer(&join(1, 3, 1), "new", 2).unwrap();
    assert_eq!(text(at("start.1.1")), written);
    assert_eq!(
        names(folder.path()),
        ["ranks", "start.0.1", "start.1.1", "start.2.44"]
    );
}

#[test]
fn what_was_made_for_an_earlier_start_of_the_program_goes_with_the_next_answer() {
    let base = Base::new();
    let folder = base.folder();
    let at = |name: &str| folder.path().join(name);
    let ranks = at("ranks");
    user(&ranks, "touch -d @1000 0.2.1; touch 1.2.1");
    assert_eq!(folder.joins().unwrap().len(), 2);
    for rank in [0, 1] {
        folder.answer(&join(rank, 2, 1), "restore 3", 1).unwrap();
        let restored = at(&restored_name(&join(rank, 2, 1)));
        fs::create_dir(&restored).unwrap();
        fs::write(restored.join("f"), b"1").unwrap();
    }
    // Two starts, of which the first was gone before it was answered; and the program has another size then.
    user(&ranks, "touch -d @2000 0.2.2; touch -d @3000 0.3.3");
    assert!(folder.joins().unwrap().contains(&join(0, 3, 3)));
    folder.answer(&join(0, 3, 3), "new", 1).unwrap();
    assert_eq!(
        names(folder.path()),
        ["ranks", "restore.1.1", "start.0.3", "start.1.1"]
    );
    assert_eq!(names(&ranks), ["0.3.3", "1.2.1"]);
    // Once more for one of them.
    folder.discard_restored(&join(1, 2, 1)).unwrap();
    folder.discard_restored(&join(1, 2, 1)).unwrap();
    assert!(!at("restore.1.1").exists());
    base.empty();
    assert_eq!(base.left().len(), 0);
}

#[test]
fn a_checkpoint_from_the_request_to_the_commit() {
    let base = Base::new();
    let folder = base.folder();
    let at = |name: &str| folder.path().join(name);
    let (uid, gid) = owner();
    folder.ask(3, "interval", &[(0, 4), (2, 4)]).unwrap();
    assert_eq!(text(at("request")), "3 interval\n");
    for made in ["3", "3/files", "3/files/rank-0-of-4", "3/files/rank-2-of-4"] {
        assert_eq!(facts(at(made)), (uid, gid, 0o700), "{made}");
    }
    assert_eq!(folder.saved(3).unwrap(), BTreeSet::new());
    user(
        &at("3"),
        "echo a >files/rank-0-of-4/f; mkdir files/rank-2-of-4/d; touch ready.2",
    );
    assert_eq!(folder.saved(3).unwrap(), BTreeSet::from([2]));
    // Of a rank that was not asked, and what is no such name.
    user(
        &at("3"),
        "touch ready.0 ready.1 ready.00 ready. ready.+0 ready.65536 ready",
    );
    assert_eq!(folder.saved(3).unwrap(), BTreeSet::from([0, 2]));
    assert_eq!(folder.saved(2).unwrap(), BTreeSet::new());
    assert!(folder.files(2).is_err());

    let store = base.beside("store");
    fs::create_dir(&store).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
    let key = SiteKey::derive(b"a key of tests that is long enough");
    let opened = Store::open(LinuxDisk, LinuxDisk::folder(&store).unwrap(), key);
    let (store, _) = opened.unwrap();
    let stored = store.job(&job(7), uid).unwrap();
    let new = New {
        id: CheckpointId {
            number: 3,
            attempt: 1,
        },
        node: NodeIndex(0),
        nodes: 1,
        time: 1_700_000_000,
    };
    let files = folder.files(3).unwrap();
    let draft = stored.ingest(&new, &LinuxDisk, &files, &Limits::default(), None);
    let set = NodeSet {
        members: vec![NodeIndex(0)],
        parity: 0,
        chunk: 0,
    };
    let (manifest, _) = stored.prepare(draft.unwrap(), set).unwrap();
    assert_eq!(ranks(&manifest), [(0, 4), (2, 4)]);
    folder.taken(3).unwrap();
    assert_eq!(text(at("taken")), "3\n");
    assert!(at("3").exists() && at("request").exists());
    folder.close(3, None).unwrap();
    assert_eq!(text(at("commit")), "3\n");
    assert_eq!(names(folder.path()), ["commit", "ranks", "taken"]);
    assert_eq!(folder.saved(3).unwrap(), BTreeSet::new());

    // The next start of the program has it back.
    let rank = join(0, 4, 99);
    let target = Target {
        disk: &LinuxDisk,
        folder: folder.root(),
        name: &restored_name(&rank).into_bytes(),
        owner: Some((uid, gid)),
    };
    let mut source = LocalSource::new(&stored);
    restore_part(&stored, &manifest, b"rank-0-of-4", &target, &mut source).unwrap();
    folder.answer(&rank, "restore 3", 1).unwrap();
    user(&at("restore.0.99"), "test \"$(cat f)\" = a; rm f; touch g");
    assert_eq!(facts(at("restore.0.99")), (uid, gid, 0o700));
    folder.remove().unwrap();
    base.empty();
    assert_eq!(names(base.path()), [".gone"]);
    assert_eq!(base.left().len(), 0);
}

#[test]
fn a_checkpoint_that_comes_to_nothing() {
    let base = Base::new();
    let folder = base.folder();
    let at = |name: &str| folder.path().join(name);
    folder.ask(1, "asked", &[(0, 1)]).unwrap();
    folder.close(1, None).unwrap();
    folder.ask(2, "end", &[(0, 1)]).unwrap();
    user(
        &at("2"),
        "mkdir -p files/rank-0-of-1/a/b; touch files/rank-0-of-1/a/c",
    );
    let why = format!("rank 0\nis {}", "x".repeat(1200));
    folder.close(2, Some(&why)).unwrap();
    let said = text(at("failed"));
    assert!(
        said.starts_with("2 rank 0 is xxx") && said.len() == 1103,
        "{said}"
    );
    assert_eq!(text(at("commit")), "1\n");
    assert_eq!(names(folder.path()), ["commit", "failed", "ranks"]);
    // The outcome of one that was never asked for on this node.
    folder.close(5, Some("no")).unwrap();
    assert_eq!(text(at("failed")), "5 no\n");
}

#[test]
fn only_one_checkpoint_is_wanted_at_a_time() {
    let base = Base::new();
    let folder = base.folder();
    let at = |name: &str| folder.path().join(name);
    folder.ask(1, "asked", &[(0, 1), (0, 1)]).unwrap();
    assert!(folder.ask(1, "asked", &[(0, 1)]).is_err());
    assert!(at("1/files/rank-0-of-1").exists());
    folder.ask(2, "interval", &[]).unwrap();
    assert_eq!(names(folder.path()), ["2", "ranks", "request"]);
    assert_eq!(names(at("2/files")).len(), 0);
    // A late word of the first one does not take the second with it.
    folder.close(1, Some("late")).unwrap();
    assert_eq!(text(at("request")), "2 interval\n");
    assert!(folder.files(2).is_ok());
    // Something that is there by this name.
    fs::write(at("3"), b"").unwrap();
    assert!(folder.ask(3, "interval", &[(0, 1)]).is_err());
    assert_eq!(names(folder.path()), ["3", "failed", "ranks"]);
}

#[test]
fn what_an_earlier_run_has_left_is_gone() {
    let base = Base::new();
    let earlier = base.folder();
    earlier.answer(&join(0, 1, 1), "new", 1).unwrap();
    earlier.ask(1, "asked", &[(0, 1)]).unwrap();
    user(
        earlier.path(),
        "touch ranks/0.1.1 1/ready.0; mkdir -p 1/files/rank-0-of-1/a/b/c",
    );
    // A restored folder that a crash has left half done; nobody else could enter it.
    let half = earlier.path().join("restore.0.1.restoring-0");
    fs::create_dir_all(half.join("a/b")).unwrap();
    fs::write(half.join("a/b/f"), b"1").unwrap();
    fs::set_permissions(&half, fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(half.join("a"), Some(3001), None).unwrap();
    }
    let folder = JobFolder::create(&base.path(), &job(7), &kept(1)).unwrap();
    assert_eq!(names(folder.path()), ["ranks"]);
    assert_eq!(folder.joins().unwrap(), []);
    // The earlier one does no harm any more, not even by being removed.
    let _ = earlier.answer(&join(0, 1, 1), "new", 1);
    let _ = earlier.close(1, None);
    let _ = earlier.joins();
    earlier.remove().unwrap();
    assert_eq!(names(folder.path()), ["ranks"]);
    base.empty();
    assert_eq!(base.left().len(), 0);
    // Nor does what is no folder.
    drop(folder);
    for make in [
        |path: &std::path::Path| fs::write(path, b"1").unwrap(),
        |path: &std::path::Path| symlink("/etc", path).unwrap(),
    ] {
        fs::remove_dir_all(base.path().join("7")).unwrap();
        make(&base.path().join("7"));
        assert_eq!(names(base.folder().path()), ["ranks"]);
    }
    assert_eq!(base.trash().jobs().unwrap(), [job(7)]);
    base.trash().remove_job(&job(7)).unwrap();
    base.trash().remove_job(&job(7)).unwrap();
    assert_eq!(base.trash().jobs().unwrap(), []);
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(20)
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_name_is_a_join_only_if_it_is_written_so(
        names in prop::collection::btree_set("[0-9]{1,6}\\.[0-9]{1,6}\\.[0-9]{1,21}|[0-9.+x-]{3,9}", 1..40),
        rank in 0..u16::MAX, more in 1..u16::MAX, nonce in 0..10u64.pow(19),
    ) {
        let base = Base::new();
        let folder = base.folder();
        let good = join(rank, rank.saturating_add(more), nonce);
        let own = format!("{}.{}.{}", good.rank, good.size, good.nonce);
        let ranks = folder.path().join("ranks");
        for name in names.iter().filter(|name| !matches!(&name[..], "." | "..")) {
            fs::write(ranks.join(name), b"").unwrap();
        }
        fs::write(ranks.join(&own), b"").unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(100);
        fs::File::open(ranks.join(&own)).unwrap().set_modified(later).unwrap();
        let joins = folder.joins().unwrap();
        prop_assert!(joins.contains(&good));
        for Join { rank, size, nonce } in joins {
            let name = format!("{rank}.{size}.{nonce}");
            prop_assert!(rank < size && nonce < 10u64.pow(19));
            prop_assert!(name == own || names.contains(&name), "{}", name);
        }
    }
}
