use std::thread;

use std::collections::BTreeMap;

use gpuos_core::health::ExtraPart;
use gpuos_core::wire::{HostOrder, MomEnd, MomGpu, MomHost, MomOrders, MomSlices};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::job::JobState;

use super::super::state::LINGERS;
use super::*;

fn gpu(index: usize) -> GresGpu {
    GresGpu::new(index).expect("a GPU")
}

fn gpus(indices: &[usize]) -> Vec<GresGpu> {
    indices.iter().map(|index| gpu(*index)).collect()
}

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

fn job(name: &str, run: u64, indices: &[usize]) -> MomJob {
    MomJob {
        job: id(name),
        user: "ann".into(),
        uid: 1000,
        gpus: gpus(indices),
        run,
        ..MomJob::default()
    }
}

fn described(uuid: &str) -> MomGpu {
    MomGpu {
        uuid: uuid.into(),
        ..MomGpu::default()
    }
}

fn report(jobs: &[MomJob], host: Option<MomHost>) -> MomReport {
    MomReport {
        described: vec![described("GPU-a"), described("GPU-b")],
        jobs: jobs.to_vec(),
        all: true,
        asked: host.is_some(),
        host,
        ..MomReport::default()
    }
}

/// The host's vnode, which shows these GPUs as out of service.
fn shows(out: &[usize]) -> MomHost {
    let out = out.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu));
    MomHost {
        shown: format!("whole=0-1;free=-;out={out}"),
        ..MomHost::default()
    }
}

fn out(indices: &[usize]) -> ExtraPart {
    ExtraPart {
        out: gpus(indices),
        ..ExtraPart::default()
    }
}

fn told(mom: &Mom, report: &MomReport) -> MomOrders {
    mom.told(report).expect("PBS").orders
}

/// A host that has told its jobs and how its vnode is.
fn host(jobs: &[MomJob], vnodes: MomHost) -> Mom {
    let mom = Mom::new("n1");
    assert!(told(&mom, &report(jobs, None)).look);
    let orders = told(&mom, &report(jobs, Some(vnodes.clone())));
    // What the host shows has come to pbs_server.
    let shown = orders.room.map_or(vnodes.shown.clone(), |room| room.shown);
    let vnodes = MomHost { shown, ..vnodes };
    assert!(!told(&mom, &report(jobs, Some(vnodes))).look);
    mom
}

#[test]
fn before_mom_has_told_there_is_no_answer_and_no_order() {
    let mom = Mom::new("n1");
    assert!(matches!(mom.jobs(), Err(Outcome::NoAnswer(_))));
    assert!(matches!(mom.node(), Err(Outcome::NoAnswer(_))));
    assert!(mom.numbering().is_err());
    // A launch is not all that there is.
    let launch = MomReport {
        jobs: vec![job("1.head", 1, &[0])],
        ..MomReport::default()
    };
    let orders = told(&mom, &launch);
    assert_eq!((orders.room, orders.host), (None, HostOrder::Leave));
    assert!(matches!(mom.jobs(), Err(Outcome::NoAnswer(_))));
    assert!(mom.job(&id("1.head")).is_ok_and(|job| job.is_some()));
    let first = mom.told(&report(&[], None)).expect("PBS");
    assert!(first.renumbered && first.orders.look);
    // That list may be of before the launch.
    assert!(mom.jobs().is_ok_and(|jobs| jobs.len() == 1));
    assert!(matches!(mom.node(), Err(Outcome::NoAnswer(_))));
    assert!(!mom.told(&report(&[], None)).expect("PBS").renumbered);
    assert!(mom.jobs().is_ok_and(|jobs| jobs.is_empty()));
}

#[test]
fn jobs_are_those_of_the_last_word_with_those_that_were_launched_since() {
    let mom = host(&[job("1.head", 1, &[0])], MomHost::default());
    told(
        &mom,
        &MomReport {
            jobs: vec![job("2[3].head", 1, &[1])],
            ..MomReport::default()
        },
    );
    let jobs = mom.jobs().expect("told");
    let gpus: Vec<_> = jobs
        .iter()
        .map(|job| (job.id.to_string(), job.gpus_on("n1")))
        .collect();
    let set = |index| GpuSet::EMPTY.with(index);
    assert_eq!(
        gpus,
        [("1.head".into(), set(0)), ("2[3].head".into(), set(1))]
    );
    // This list may have been made before the launch, and is told a second time when pbs_server was asked.
    for vnodes in [None, Some(MomHost::default())] {
        told(&mom, &report(&[job("2[3].head", 0, &[])], vnodes));
        let jobs = mom.jobs().expect("told");
        assert_eq!((jobs.len(), jobs[0].gpus_on("n1")), (1, set(1)));
    }
    told(&mom, &report(&[], None));
    assert!(mom.jobs().is_ok_and(|jobs| jobs.is_empty()));
}

fn ends(mom: &Mom, name: &str, run: u64) {
    let job = id(name);
    let report = MomReport {
        ended: vec![MomEnd { job, run }],
        ..MomReport::default()
    };
    told(mom, &report);
}

/// Names of jobs and which of their runs these are.
fn runs(mom: &Mom) -> Vec<(String, u32)> {
    let jobs = mom.jobs().expect("told").into_iter();
    jobs.map(|job| (job.id.to_string(), job.restarts + 1))
        .collect()
}

fn launches(mom: &Mom, job: MomJob) {
    let report = MomReport {
        jobs: vec![job],
        ..MomReport::default()
    };
    told(mom, &report);
}

#[test]
fn a_run_that_has_left_is_gone_at_once_and_no_late_word_ends_the_next_one() {
    let both = [job("1.head", 2, &[0]), job("2.head", 1, &[1])];
    let mom = host(&both, MomHost::default());
    let had = |run| vec![("1.head".to_string(), run), ("2.head".to_string(), 1)];
    // Of the run before, and of a job that is not here.
    ends(&mom, "1.head", 1);
    ends(&mom, "9.head", 1);
    assert_eq!(runs(&mom), had(2));
    ends(&mom, "1.head", 2);
    assert_eq!(runs(&mom), [("2.head".to_string(), 1)]);
    // This list was made before, and is told again when pbs_server was asked.
    for vnodes in [None, Some(MomHost::default())] {
        told(&mom, &report(&both, vnodes));
        assert_eq!(runs(&mom), [("2.head".to_string(), 1)]);
    }
    // Its next run is launched before any list has it, and the word comes once more.
    launches(&mom, job("1.head", 3, &[1]));
    ends(&mom, "1.head", 2);
    assert_eq!(runs(&mom), had(3));
    // One whose launch nobody told of before: mom's word is enough.
    launches(&mom, job("3.head", 1, &[0]));
    ends(&mom, "3.head", 1);
    told(&mom, &report(&[], None));
    assert_eq!(runs(&mom), [("1.head".to_string(), 3)], "it was launched");
    told(&mom, &report(&[], None));
    assert_eq!(runs(&mom), []);
}

/// As if what mom has said of ends had been said so long ago.
fn ages(mom: &Mom, by: Duration) {
    for left in mom.lock().left.values_mut() {
        left.at = left.at.checked_sub(by).expect("a time");
    }
}

#[test]
fn a_run_that_has_left_stays_away_for_as_long_as_mom_lists_it() {
    let one = [job("1.head", 2, &[0])];
    let mom = host(&one, MomHost::default());
    ends(&mom, "1.head", 2);
    // The mom of a job's first host waits for the others, or gives them up after some minutes.
    for _ in 0..6 {
        told(&mom, &report(&one, None));
        told(&mom, &report(&one, Some(MomHost::default())));
        ages(&mom, Duration::from_secs(60));
        assert_eq!(runs(&mom), []);
    }
    // A late word of the run before changes nothing, and its next run is another one.
    ends(&mom, "1.head", 1);
    told(&mom, &report(&one, None));
    assert_eq!(runs(&mom), []);
    let next = [job("1.head", 3, &[1])];
    told(&mom, &report(&next, None));
    assert_eq!(runs(&mom), [("1.head".to_string(), 3)]);
    // A list in several lines is one list.
    ends(&mom, "1.head", 3);
    for _ in 0..4 {
        launches(&mom, next[0].clone());
        let last = MomReport {
            also: vec![id("1.head")],
            ..report(&[], None)
        };
        told(&mom, &last);
        assert_eq!(runs(&mom), []);
    }
    launches(&mom, job("1.head", 4, &[0]));
    assert_eq!(runs(&mom), [("1.head".to_string(), 4)]);
}

#[test]
fn a_run_whose_end_was_told_is_not_away_for_ever() {
    let one = [job("1.head", 2, &[0])];
    let mom = host(&one, MomHost::default());
    // A list without it, and the same number is another's: PBS's own checkpoints begin a run with that of the one before.
    ends(&mom, "1.head", 2);
    told(&mom, &report(&[], None));
    told(&mom, &report(&one, None));
    assert_eq!(runs(&mom), [("1.head".to_string(), 2)]);
    // No mom keeps one that is over for so long.
    ends(&mom, "1.head", 2);
    told(&mom, &report(&one, None));
    assert_eq!(runs(&mom), []);
    ages(&mom, LINGERS + Duration::from_secs(1));
    told(&mom, &report(&one, None));
    assert_eq!(runs(&mom), [("1.head".to_string(), 2)]);
}

#[test]
fn a_suspended_job_has_what_it_has_and_does_not_run() {
    let stopped = MomJob {
        suspended: true,
        ..job("1.head", 1, &[0])
    };
    // Another one has been given its vnode meanwhile.
    let mom = host(&[stopped, job("2.head", 1, &[0])], MomHost::default());
    let jobs = mom.jobs().expect("told");
    let states: Vec<_> = jobs.iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Stopped, JobState::Running]);
    assert!(
        jobs.iter()
            .all(|job| job.is_running() && job.gpus_on("n1") == GpuSet::EMPTY.with(0))
    );
}

#[test]
fn whose_the_gpus_are_is_known_once_mom_has_told_all() {
    let mom = Mom::new("n1");
    assert!(!mom.knows_whose());
    ends(&mom, "1.head", 1);
    assert!(!mom.knows_whose());
    told(&mom, &report(&[], None));
    assert!(mom.knows_whose());
}

#[test]
fn a_gpu_of_the_pool_is_out_by_its_place_after_the_others() {
    let mom = Mom::new("n1");
    let pool = [2, 3].map(|gpu| NvmlIndex::new(gpu).expect("a GPU"));
    let report = |host: Option<MomHost>| {
        let mut told = report(&[], host);
        let divided = MomGpu {
            divided: true,
            ..MomGpu::default()
        };
        told.described.extend([divided.clone(), divided]);
        told
    };
    told(&mom, &report(None));
    mom.lock().wanted = Some(ExtraPart {
        out: gpus(&[0, 9]),
        pool_out: vec![pool[1]],
        ..ExtraPart::default()
    });
    // What the pool has room for is not known yet.
    assert_eq!(told(&mom, &report(None)).room, None);
    let pool_room = PoolRoom {
        fits: 4,
        compute: 7,
        memory: 8,
    };
    mom.set_pool_room(pool_room);
    // Of a GPU that is not described nothing is wanted.
    let orders = told(&mom, &report(Some(shows(&[0]))));
    let room = orders.room.expect("it is known");
    assert_eq!(room.shown, "whole=0-1;free=1;out=0,3");
    assert_eq!((room.whole, room.mig_fits, room.mig_memory), (1, 4, 8));
    assert!(orders.look);
    assert_eq!(mom.node().expect("told").published.pool_out, []);
    let now = MomHost {
        shown: room.shown,
        ..MomHost::default()
    };
    assert!(!told(&mom, &report(Some(now))).look);
    let node = mom.node().expect("told");
    assert_eq!(node.published.pool_out, [pool[1]]);
    assert_eq!(node.published.out, gpus(&[0]));
    assert_eq!(node.gpu_count(), 2);
}

#[test]
fn slices_are_told_as_counts() {
    let slices = MomSlices {
        request: "1g.10gb:2".into(),
        gpus: vec![NvmlIndex::new(3).expect("a GPU")],
        compute: 2,
        memory: 2,
        chunks: 0,
    };
    let anywhere = MomSlices {
        gpus: Vec::new(),
        chunks: 3,
        ..slices.clone()
    };
    let told = MomJob {
        slices: Some(slices),
        ..job("1.head", 4, &[])
    };
    let mom = host(&[told], MomHost::default());
    let jobs = mom.jobs().expect("told");
    let unplaced = jobs[0].unplaced.clone().expect("slices");
    assert_eq!((&unplaced.request[..], jobs[0].restarts), ("1g.10gb:2", 3));
    assert_eq!(unplaced.gpus.to_string(), "3");
    assert_eq!((unplaced.compute, unplaced.memory), (2, 2));
    assert!(jobs[0].slices_on("n1").is_empty());
    let told = MomJob {
        slices: Some(anywhere),
        ..job("1.head", 4, &[])
    };
    let mom = host(&[told], MomHost::default());
    let unplaced = mom.jobs().expect("told")[0].unplaced.clone();
    let unplaced = unplaced.expect("slices");
    assert!(unplaced.gpus.is_empty() && unplaced.chunks == 3);
}

#[test]
fn a_gpu_is_out_once_pbs_server_shows_it_and_its_jobs_follow() {
    let mom = Arc::new(host(&[job("1.head", 1, &[0])], MomHost::default()));
    let other = Arc::clone(&mom);
    let loops = thread::spawn(move || {
        let shown = other.act(&Action::Publish(out(&[0])));
        assert!(matches!(shown, Outcome::Done(_)), "{shown:?}");
        other.act(&Action::Requeue { job: id("1.head") })
    });
    let jobs = [job("1.head", 1, &[0])];
    let is_out = |orders: MomOrders| {
        let room = orders.room.unwrap_or_default();
        // PBS counts it for the job until that ends.
        room.whole == 2 && room.shown.contains("out=0")
    };
    while !is_out(told(&mom, &report(&jobs, None))) {
        thread::yield_now();
    }
    let orders = told(&mom, &report(&jobs, Some(MomHost::default())));
    assert!(orders.look && orders.rerun.is_empty(), "{orders:?}");
    // With the answer to the report that shows it, unless the thread gets no time for so long; then with one of the next.
    let mut orders = told(&mom, &report(&jobs, Some(shows(&[0]))));
    while orders.rerun.is_empty() {
        orders = told(&mom, &report(&jobs, Some(shows(&[0]))));
    }
    assert!(matches!(loops.join(), Ok(Outcome::Done(_))));
    assert_eq!(orders.rerun, BTreeMap::from([(id("1.head"), 0)]));
    assert_eq!(mom.node().expect("shown").published, out(&[0]));
    // The next event knows that mom was told, and another run of the job is another job.
    let orders = told(&mom, &report(&jobs, Some(shows(&[0]))));
    assert_eq!(orders.rerun, BTreeMap::from([(id("1.head"), 1)]));
    let orders = told(&mom, &report(&[job("1.head", 2, &[1])], None));
    assert!(orders.rerun.is_empty(), "{orders:?}");
    assert_eq!(orders.room.expect("it is known").whole, 1);
}

/// gpuosd was started anew: what pbs_server shows is what gpuos did before, and stays until the rules say otherwise.
#[test]
fn after_a_start_what_gpuos_took_offline_stays_so() {
    let mom = host(&[], shows(&[1]));
    assert_eq!(mom.node().expect("shown").published, out(&[1]));
    let orders = told(&mom, &report(&[], None));
    let room = orders.room.expect("it is known");
    assert!(room.shown.ends_with("out=1"), "{room:?}");
    assert_eq!((room.whole, orders.host), (1, HostOrder::Leave));
}

#[test]
fn what_pbs_cannot_do_is_refused_and_what_is_gone_is_nothing_to_do() {
    let mom = host(&[job("1.head", 1, &[0])], MomHost::default());
    let (job, why) = (id("1.head"), String::new());
    let hold = Action::Hold { job, why };
    assert!(matches!(mom.act(&hold), Outcome::Refused(_)));
    let requeue = Action::Requeue { job: id("2.head") };
    assert!(matches!(mom.act(&requeue), Outcome::Nothing(_)));
    let release = |name: &str| {
        let (job, avoid_node) = (id(name), true);
        mom.act(&Action::Release { job, avoid_node })
    };
    assert!(matches!(release("1.head"), Outcome::NotYet(_)));
    assert!(matches!(release("2.head"), Outcome::Nothing(_)));
    let (job, step) = (id("1.head"), None);
    assert!(matches!(
        mom.act(&Action::Kill { job, step }),
        Outcome::Done(_)
    ));
    let orders = told(&mom, &report(&[self::job("1.head", 1, &[0])], None));
    assert_eq!(orders.end.len(), 1);
}

#[test]
fn a_host_is_drained_once_its_vnode_is_offline() {
    let mom = Arc::new(host(&[], MomHost::default()));
    let other = Arc::clone(&mom);
    let reason = "gpuos: fan".to_string();
    let drain = Action::Drain {
        reason: reason.clone(),
    };
    let loops = thread::spawn(move || other.act(&drain));
    while told(&mom, &report(&[], None)).host != HostOrder::Offline(reason.clone()) {
        thread::yield_now();
    }
    let all = MomHost {
        offline: true,
        reason: Some("gpuos: f".into()),
        ..MomHost::default()
    };
    told(&mom, &report(&[], Some(all)));
    assert!(matches!(loops.join(), Ok(Outcome::Done(_))));
    let record = mom.node().expect("shown");
    assert_eq!(record.drain, Some(reason));
    assert_eq!(record.published, out(&[]));
}

#[test]
fn where_gpuos_only_advises_it_is_said_and_nothing_is_done() {
    let advised = |jobs: &[MomJob], comment: Option<&str>| MomReport {
        advise: true,
        ..report(
            jobs,
            Some(MomHost {
                reason: comment.map(str::to_owned),
                ..MomHost::default()
            }),
        )
    };
    let jobs = [job("1.head", 1, &[1])];
    let mom = Mom::new("n1");
    assert!(!mom.advises());
    let orders = told(&mom, &advised(&jobs, None));
    assert!(mom.advises());
    assert_eq!(orders.host, HostOrder::Leave, "nobody has said what is out");
    // What is published is shown by the comment.
    let waits = thread::scope(|scope| {
        let publish = scope.spawn(|| mom.act(&Action::Publish(out(&[1]))));
        let advice = loop {
            match told(&mom, &advised(&jobs, None)).host {
                HostOrder::Offline(advice) => break advice,
                _ => thread::yield_now(),
            }
        };
        assert!(
            advice.starts_with("GPU 1 should get no more jobs"),
            "{advice}"
        );
        told(&mom, &advised(&jobs, Some(&advice)));
        publish.join().expect("it ends")
    });
    assert!(matches!(waits, Outcome::Done(_)), "{waits:?}");
    let node = mom.node().expect("it is known");
    assert_eq!((node.published.out, node.drain), (gpus(&[1]), None));
    for action in [
        Action::Requeue { job: id("1.head") },
        Action::Kill {
            job: id("1.head"),
            step: None,
        },
    ] {
        let said = mom.act(&action);
        assert!(matches!(said, Outcome::Nothing(_)), "{said:?}");
    }
    let orders = told(&mom, &advised(&jobs, None));
    assert!(orders.rerun.is_empty() && orders.end.is_empty() && orders.room.is_none());
    assert_eq!(
        mom.node().expect("it is known").published.out,
        gpus(&[]),
        "the comment is gone"
    );
    // Another's comment is in its place.
    let other = MomReport {
        host: Some(MomHost {
            commented: true,
            ..MomHost::default()
        }),
        ..advised(&jobs, None)
    };
    told(&mom, &other);
    assert_eq!(mom.node().expect("it is known").published.out, gpus(&[1]));
}
