//! Whose checkpoints are removed, and at whose word: another user's never, and none that a job may come back to unless its owner says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::job::JobId;
use gpuos_core::made::MadeRecord;
use gpuos_core::wire::{CheckpointRequest, Peer, Reply};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::marks::{adopt, begin_drill};
use gpuos_store::store::Store;
use gpuos_workload::job::{Job, JobState};
use tempfile::TempDir;

use crate::one::*;
use crate::support::is_root;

const MALLORY: u32 = 3001;
const ALICE: u32 = 3003;

struct Site {
    place: TempDir,
    mover: Mover,
}

impl Site {
    fn new(ended_hours: u32) -> Site {
        Site::in_place(TempDir::new().unwrap(), ended_hours)
    }

    fn in_place(place: TempDir, ended_hours: u32) -> Site {
        Site::with_jobs(place, ended_hours, BTreeMap::new())
    }

    fn with_jobs(place: TempDir, ended_hours: u32, jobs: BTreeMap<JobId, Job>) -> Site {
        for name in ["store", "jobs"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(place.path(), mode).unwrap();
        let config = CheckpointConfig {
            enabled: true,
            least_s: 1,
            ended_hours,
            ..CheckpointConfig::default()
        };
        let at = |name| place.path().join(name);
        let mover = mover_of(
            &at("store"),
            &at("jobs"),
            config,
            Forbidden::default(),
            jobs,
        );
        Site { place, mover }
    }

    fn kept(&self, job: u32) -> PathBuf {
        self.place.path().join(format!("store/{job}/CURRENT"))
    }

    /// A job of a user runs and saves once; then it stands so for the workload manager.
    fn saved(&self, job: u32, uid: u32, then: impl Fn(&mut Job)) {
        self.mover.runs(record(job, uid));
        let folder = self.mover.step(job, uid, "1s").unwrap();
        let (rank, told) = Rank::join(&folder, uid, 1);
        assert_eq!(told, "new");
        let (_, outcome) = rank.checkpoint(b"hers");
        assert_eq!(outcome, Ok(()));
        self.mover.manager.with(|table| {
            let job = table.jobs.get_mut(&job.into()).unwrap();
            job.nodes.clear();
            then(job);
        });
        self.ended(job);
        assert!(self.kept(job).exists());
    }

    /// The thread of a job has ended, with all that it does then.
    fn ended(&self, job: u32) {
        until("the job's thread is told", || {
            self.mover
                .handler
                .jobs
                .get(&job.into())
                .is_none()
                .then_some(())
        });
        let folder = self.place.path().join(format!("jobs/{job}"));
        until("its folder is gone", || (!folder.exists()).then_some(()));
        std::thread::sleep(Duration::from_millis(500));
    }

    fn prune(&self, job: u32, uid: u32, anew: bool) -> Result<String, String> {
        let job = job.into();
        let peer = Peer { uid, pid: 1 };
        match self.mover.ask(peer, CheckpointRequest::Prune { job, anew }) {
            Reply::Done { message } => Ok(message),
            Reply::Refused { message, .. } => Err(message),
            other => panic!("{other:?}"),
        }
    }
}

fn waits(word: &'static str) -> impl Fn(&mut Job) {
    move |job| {
        (job.state, job.state_word) = (JobState::Waiting, word.into());
        job.restarts += 1;
    }
}

fn over(job: &mut Job) {
    (job.state, job.state_word) = (JobState::Over, "FAILED".into());
}

#[test]
fn a_drill_of_anothers_job_notes_nothing_of_it_and_removes_nothing() {
    if !is_root() {
        return;
    }
    let site = Site::new(24);
    let mover = &site.mover;
    // The number that comes next: nothing of it is here yet.
    let next = Job {
        nodes: Vec::new(),
        state: JobState::Waiting,
        ..record(8, ALICE)
    };
    mover.runs(next);
    mover.runs(record(7, MALLORY));
    let folder = mover.step(7, MALLORY, "1s,restart=8/1/lose:0").unwrap();
    let (_, told) = Rank::join(&folder, MALLORY, 1);
    assert!(told.contains("job 8 is another user's"), "{told}");
    assert!(
        !site.kept(8).parent().unwrap().exists(),
        "no folder of hers"
    );

    site.saved(8, ALICE, waits("PENDING"));
    // Her own drill does not wait for that of another.
    mover.runs(record(9, ALICE));
    let folder = mover.step(9, ALICE, "1s,restart=8/1/lose:0").unwrap();
    let (_, told) = Rank::join(&folder, ALICE, 1);
    assert_eq!(told, "restore 1");
    for job in [7, 9] {
        mover.manager.with(|table| table.jobs.remove(&job.into()));
        site.ended(job);
        assert!(site.kept(8).exists(), "after job {job}");
    }
    // It goes on from it.
    let again = Job {
        restarts: 1,
        ..record(8, ALICE)
    };
    mover.runs(again);
    let folder = mover.step(8, ALICE, "1s").unwrap();
    assert_eq!(Rank::join(&folder, ALICE, 2).1, "restore 1");
}

#[test]
fn a_drill_takes_along_what_it_has_copied_in_also_if_its_mover_was_away_at_its_end() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let folder = place.path().join("store");
    fs::create_dir(&folder).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&folder, private).unwrap();
    let root = LinuxDisk::folder(&folder).unwrap();
    let key = SiteKey::derive(b"a key of tests that is long enough");
    let (store, _) = Store::open(LinuxDisk, root, key).unwrap();
    // Two drills of two jobs, one of which has run here since.
    for job in [20u32, 21] {
        assert!(begin_drill(&store, &job.into(), ALICE, &30.into()).unwrap());
    }
    adopt(&store, &21.into(), ALICE).unwrap();
    fs::write(folder.join("21/chosen"), "its user's").unwrap();
    drop(store);
    let _site = Site::in_place(place, 24);
    let gone = folder.join("20");
    until("what the drill has made", || (!gone.exists()).then_some(()));
    assert!(folder.join("21").exists(), "the job's own");
}

#[test]
fn what_a_job_may_come_back_to_is_removed_at_its_owners_word_alone() {
    if !is_root() {
        return;
    }
    let site = Site::new(24);
    for (job, word) in [(8, "PENDING"), (9, "REQUEUE_HOLD")] {
        site.saved(job, ALICE, waits(word));
        let why = site.prune(job, ALICE, false).unwrap_err();
        assert!(
            why.contains(&format!("it waits ({word}) and goes on from it"))
                && why.contains("--anew"),
            "{why}"
        );
        assert!(site.kept(job).exists());
    }
    // Whoever got past the socket.
    let why = site.prune(8, MALLORY, true).unwrap_err();
    assert!(why.contains("another user's"), "{why}");
    let elsewhere = |job: &mut Job| {
        job.nodes = vec!["n2".into()];
        job.restarts += 1;
    };
    site.saved(10, ALICE, elsewhere);
    let why = site.prune(10, ALICE, false).unwrap_err();
    assert!(why.contains("RUNNING on n2"), "{why}");
    let table = &site.mover.manager;
    table.with(|table| table.no_answer = Some("no route to it".into()));
    for anew in [false, true] {
        let why = site.prune(8, ALICE, anew).unwrap_err();
        assert!(
            why.starts_with("nothing is removed of job 8") && why.contains("no route to it"),
            "{why}"
        );
    }
    table.with(|table| table.no_answer = None);
    assert!(site.kept(8).exists() && site.kept(10).exists());
    let said = site.prune(8, ALICE, true).unwrap();
    assert!(
        said.ends_with("is removed; it begins from its start where no other node keeps any of it"),
        "{said}"
    );
    assert!(!site.kept(8).exists());
    // Nothing is left, and its record may say otherwise.
    let said = site.prune(8, ALICE, true).unwrap();
    assert_eq!(
        said,
        "n1: nothing was kept of job 8; it begins from its start where no other node keeps any of it"
    );
    site.saved(11, ALICE, over);
    let said = site.prune(11, ALICE, false).unwrap();
    assert_eq!(said, "n1: what was kept of job 11 is removed");
}

#[test]
fn what_is_kept_goes_after_the_jobs_end_and_never_while_it_may_come_back() {
    if !is_root() {
        return;
    }
    let place = TempDir::new().unwrap();
    let site = Site::in_place(place, 0);
    site.saved(8, ALICE, waits("SPECIAL_EXIT"));
    site.saved(9, ALICE, over);
    let jobs = site.mover.manager.with(|table| table.jobs.clone());
    // Another mover on the same store and table, which sweeps at its start.
    let Site { place, mover } = site;
    drop(mover);
    let copy = TempDir::new().unwrap();
    let said = std::process::Command::new("cp")
        .args(["-a"])
        .arg(place.path().join("store"))
        .arg(copy.path())
        .status();
    assert!(said.unwrap().success());
    let later = Site::with_jobs(copy, 0, jobs);
    let gone = later.kept(9);
    until("what is kept of the job that is over", || {
        (!gone.exists()).then_some(())
    });
    assert!(later.kept(8).exists(), "it waits");
}

#[test]
fn the_record_of_a_job_stays_where_an_earlier_one_had_its_number() {
    if !is_root() {
        return;
    }
    let site = Site::new(24);
    let table = &site.mover.manager;
    site.saved(8, MALLORY, over);
    // The number came again.
    let hers = Job {
        restarts: 1,
        ..record(8, ALICE)
    };
    table.with(|table| {
        let hers = Job {
            state: JobState::Waiting,
            state_word: "PENDING".into(),
            nodes: Vec::new(),
            ..hers
        };
        table.jobs.insert(8.into(), hers);
        let made = MadeRecord::parse("gpuos checkpoints: since=0; run=0 nodes=n2 made=4");
        table.holders.entry(8.into()).or_default().record = made;
    });
    let made = || {
        let record = table.with(|table| table.holders.get(&8.into())?.record.clone());
        record.is_some_and(|record| record.made().is_some())
    };
    for word in [
        "what was kept of job 8 is removed",
        "nothing was kept of job 8",
    ] {
        let said = site.prune(8, MALLORY, true).unwrap();
        assert_eq!(said, format!("n1: {word}; job 8 is another user's"));
        assert!(made(), "{word}");
    }
    let said = site.prune(8, ALICE, true).unwrap();
    assert!(said.contains("it begins from its start"), "{said}");
    assert!(!made());
}
