//! What a mover refuses, and what a user cannot have of it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuos_config::access::{Forbid, Forbidden};
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::wire::{CheckpointPhase, CheckpointRequest, Code, Peer, Reply};
use gpuos_moverd::registrar::Ask;
use gpuos_workload::job::{Job, JobState};
use tempfile::TempDir;

use crate::one::*;
use crate::support::{facts, owner, user};

struct Base(TempDir);

impl Base {
    fn new() -> Base {
        let place = TempDir::new().unwrap();
        for name in ["store", "jobs"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(place.path(), mode).unwrap();
        Base(place)
    }

    fn mover(&self, config: CheckpointConfig, forbidden: Forbidden) -> Mover {
        let at = |name| self.0.path().join(name);
        mover(&at("store"), &at("jobs"), config, forbidden)
    }
}

fn config() -> CheckpointConfig {
    CheckpointConfig {
        enabled: true,
        least_s: 1,
        ..CheckpointConfig::default()
    }
}

fn uid() -> u32 {
    owner().0
}

/// Bytes that are not alike anywhere.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words = (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes());
    words.take(length).collect()
}

#[test]
fn a_step_waits_until_the_workload_manager_tells_of_its_job() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    mover
        .manager
        .with(|table| table.no_answer = Some("it is away".into()));
    let manager = mover.manager.clone();
    let comes_back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        manager.with(|table| table.no_answer = None);
    });
    let folder = mover.step(1, uid(), "10m,l2=single");
    comes_back.join().unwrap();
    assert!(
        folder.as_ref().is_ok_and(|folder| folder.is_dir()),
        "{folder:?}"
    );
}

#[test]
fn a_job_that_may_not_have_checkpoints_gets_no_folder() {
    let base = Base::new();
    let forbidden = Forbidden(vec![Forbid {
        options: vec!["gpuos-checkpoint"],
        partition: Some("debug".into()),
        ask: "ann".into(),
        ..Forbid::default()
    }]);
    let mover = base.mover(config(), forbidden);
    mover.runs(record(1, uid()));
    let said = mover.step(1, uid(), "10m,l2=single").unwrap_err();
    let wanted = "--gpuos-checkpoint=10m,l2=single: it is not allowed in partition debug; write no --gpuos-checkpoint, or ask ann";
    assert!(said.contains(wanted), "{said}");
    assert!(mover.handler.jobs.all().is_empty());
    let mut other = record(2, uid());
    other.partitions = vec!["long".into()];
    mover.runs(other);
    assert!(mover.step(2, uid(), "10m").is_ok());
    // Nobody knows where this one is.
    let mut unread = record(3, uid());
    unread.unreadable = "a key is repeated".into();
    mover.runs(unread);
    let said = mover.step(3, uid(), "10m").unwrap_err();
    assert!(said.contains("not all jobs may use it"), "{said}");
}

#[test]
fn what_is_over_the_quota_is_refused_and_the_last_good_one_stays() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "1s").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 1);
    assert_eq!(told, "new");
    let good = noise(1, 3 << 20);
    let (first, outcome) = rank.checkpoint(&good);
    assert_eq!(outcome, Ok(()));
    // Another daemon, by the same store, with less room: the smallest quota that can be configured is more than a test writes, so it is filled.
    let filling = base.0.path().join("store/1/filling");
    fs::File::create(&filling).unwrap();
    let limited = CheckpointConfig {
        user_gib: 1,
        ..config()
    };
    let file = fs::File::options().write(true).open(&filling).unwrap();
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        (1 << 30) - (9 << 20),
    )
    .unwrap();
    drop(file);
    drop(rank);
    let other = TempDir::new().unwrap();
    let mover = mover_at(&base, other.path(), limited);
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "1s").unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 2);
    assert_eq!(told, format!("restore {first}"));
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), good);
    // The first one of a run is written in full, and fits still.
    let (same, outcome) = rank.checkpoint(&good);
    assert_eq!(outcome, Ok(()));
    let (_, outcome) = rank.checkpoint(&noise(2, 8 << 20));
    let why = outcome.unwrap_err();
    for part in [
        format!("user {} may have 1.0 GiB", uid()),
        "has 102".into(),
        "gpuos ckpt prune".into(),
        "user-gib".into(),
    ] {
        assert!(why.contains(&part), "{part}: {why}");
    }
    let shown = mover.until_shown(1, "the failure is shown", |shown| {
        shown.failures.iter().any(|text| text.contains("1.0 GiB")) && shown.failed_in_row == 1
    });
    assert!(shown.failed_why.contains("1.0 GiB"), "{shown:?}");
    assert_eq!(shown.phase, CheckpointPhase::Running);
    let kept = shown.checkpoints.iter().map(|kept| kept.number).max();
    assert_eq!(kept, Some(same));
    let noted = || {
        mover
            .manager
            .with(|table| table.unsaved.get(&1.into()).cloned())
    };
    let why = until("the job's record says so", noted);
    assert!(why.contains("1.0 GiB"), "{why}");
    // When there is room again the next one is made.
    fs::remove_file(filling).unwrap();
    let (_, outcome) = rank.checkpoint(&noise(3, 8 << 20));
    assert_eq!(outcome, Ok(()));
    mover.until_shown(1, "it is over", |shown| {
        shown.failed_in_row == 0 && shown.failed_why.is_empty()
    });
    until("the job's record does not say so any more", || {
        noted().is_none().then_some(())
    });
}

fn mover_at(base: &Base, jobs: &Path, config: CheckpointConfig) -> Mover {
    mover(
        &base.0.path().join("store"),
        jobs,
        config,
        Forbidden::default(),
    )
}

#[test]
fn what_comes_back_is_the_users_own_and_runs_as_nobody_else() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "1s").unwrap();
    let (rank, _) = Rank::join(&folder, uid(), 1);
    let number = rank.asked();
    let at = folder.join(format!("{number}/files/rank-0-of-1"));
    user(
        &at,
        "cp /bin/true t; chmod 6755 t; mkdir -m 3777 d; touch d/f; chmod 666 d/f",
    );
    rank.save(number, b"x");
    assert_eq!(rank.outcome(number), Ok(()));
    let (rank, _) = Rank::join(&folder, uid(), 2);
    let at = rank.restored();
    for (name, mode) in [("", 0o700), ("t", 0o755), ("d", 0o777), ("d/f", 0o666)] {
        assert_eq!(facts(at.join(name)), (uid(), group(uid()), mode), "{name}");
    }
}

#[test]
fn what_is_not_the_users_own_files_makes_no_checkpoint_and_the_next_one_is_made() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "1s").unwrap();
    let (rank, _) = Rank::join(&folder, uid(), 1);
    let tricks = [
        ("ln -s /etc/shadow x", "a symbolic link"),
        ("ln -s / x", "a symbolic link"),
        ("mkfifo x", "a named pipe"),
        (
            "mkdir -p x/y; ln -s ../../../../../.. x/y/z",
            "a symbolic link",
        ),
    ];
    for (trick, said) in tricks {
        let number = rank.asked();
        user(&folder.join(format!("{number}/files/rank-0-of-1")), trick);
        rank.save(number, b"x");
        let why = rank.outcome(number).unwrap_err();
        assert!(why.contains(said), "{trick}: {why}");
    }
    let number = rank.asked();
    let at = folder.join(format!("{number}/files/rank-0-of-1/m"));
    user(at.parent().unwrap(), "mkdir m");
    let mount = |words: &[&str]| Command::new(words[0]).args(&words[1..]).arg(&at).status();
    if mount(&["mount", "-t", "tmpfs", "none"]).is_ok_and(|status| status.success()) {
        rank.save(number, b"x");
        let why = rank.outcome(number);
        // It is moved to the trash just then, with its folder.
        until("it is unmounted", || {
            let unmounted = Command::new("umount")
                .arg(find_mount(base.0.path()))
                .output();
            unmounted
                .is_ok_and(|out| out.status.success())
                .then_some(())
        });
        let why = why.unwrap_err();
        assert!(why.contains("something is mounted there"), "{why}");
    }
    assert_eq!(rank.checkpoint(b"x").1, Ok(()));
}

/// Where something is mounted beneath a folder.
fn find_mount(below: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let start = format!("{}/", below.display());
    places
        .find(|place| place.starts_with(&start))
        .unwrap_or("/none")
        .to_owned()
}

#[test]
fn nobody_is_told_of_others_jobs_and_a_long_tale_fits() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    let folder = mover.step(1, uid(), "10m").unwrap();
    // As many as can be.
    user(
        &folder.join("ranks"),
        "i=0; while [ $i -lt 65535 ]; do echo $i.65535.1; i=$((i+1)); done | xargs touch",
    );
    until("they are seen", || {
        (mover.shown(1).size == Some(65535)).then_some(())
    });
    for job in 2..12 {
        mover.runs(record(job, uid()));
        mover.step(job, uid(), "10m").unwrap();
    }
    let list = |uid| match mover.ask(Peer { uid, pid: 9 }, CheckpointRequest::List { job: None }) {
        Reply::Checkpoints { jobs } => jobs,
        other => panic!("{other:?}"),
    };
    let all = list(0);
    assert_eq!(all.len(), 11);
    let reply = Reply::Checkpoints { jobs: all };
    assert!(gpuos_core::wire::encode(&reply, gpuos_core::wire::MAX_REPLY).is_ok());
    assert_eq!(list(4321).len(), 0);
}

#[test]
fn a_job_that_ends_is_not_taken_for_its_next_run() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    let job = |nodes: &[&str], state| Job {
        restarts: 1,
        nodes: nodes.iter().map(|node| node.to_string()).collect(),
        state,
        ..record(7, uid())
    };
    // A node of three is lost, and the job requeued; another mover has not heard of that yet and names it.
    mover.runs(job(&[NODE, "n2"], JobState::Ending));
    let named = Ask::Named(7.into());
    mover.handler.registrar.send(named).unwrap();
    let refused = mover.step(8, uid(), "10m");
    assert!(refused.is_err(), "nobody knows that job: {refused:?}");
    assert!(mover.handler.jobs.get(&7.into()).is_none());
    mover.runs(job(&[NODE, "n2", "n4"], JobState::Running));
    let _ = mover.step(7, uid(), "10m");
    let served = mover.handler.jobs.get(&7.into()).expect("it is served");
    assert_eq!((served.run, served.place.nodes), (1, 3));
}

#[test]
fn a_job_whose_thread_is_busy_keeps_nobody() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    mover.runs(record(1, uid()));
    mover.step(1, uid(), "10m").unwrap();
    // Whatever waits for a job is bounded, and who asks for more is told.
    let busy = (0..100_000).any(|_| {
        let told = mover.ask(root(), CheckpointRequest::Now { job: 1.into() });
        matches!(
            told,
            Reply::Refused {
                code: Code::Busy,
                ..
            }
        )
    });
    assert!(busy, "what waits has no end");
    mover.manager.with(|table| table.jobs.clear());
    mover.runs(record(2, uid()));
    let begun = Instant::now();
    assert!(mover.step(2, uid(), "10m").is_ok());
    assert!(begun.elapsed() < Duration::from_secs(60));
    until("the job that is over is let go", || {
        mover.handler.jobs.get(&1.into()).is_none().then_some(())
    });
}

/// Requeued for a lost node, a job counts its next run already while the nodes that are left clean up after it, and has these alone.
#[test]
fn a_job_that_is_ending_is_not_taken_for_its_next_run() {
    let base = Base::new();
    let mover = base.mover(config(), Forbidden::default());
    let mut next = record(1, uid());
    next.restarts = 1;
    next.state = JobState::Ending;
    next.state_word = "COMPLETING".into();
    mover.runs(next.clone());
    let why = mover.step(1, uid(), "1s").unwrap_err();
    assert!(why.contains("does not run on this node"), "{why}");
    // With another node than it had then, in the same run.
    next.state = JobState::Running;
    next.state_word = "RUNNING".into();
    next.nodes.push("n2".into());
    mover.runs(next);
    mover.step(1, uid(), "1s").unwrap();
    let nodes = until("the job is served", || {
        let nodes = mover.shown(1).nodes;
        (!nodes.is_empty()).then_some(nodes)
    });
    assert_eq!(nodes.len(), 2, "{nodes:?}");
}
