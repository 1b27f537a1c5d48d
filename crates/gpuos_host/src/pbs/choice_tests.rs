//! Which GPUs jobs have that PBS only counts: by reports of launches and lists, over restarts.

use std::collections::BTreeMap;
use std::io;
use std::thread;

use gpuos_core::health::ExtraPart;
use gpuos_core::wire::{MomChoice, MomEnd, MomGpu, MomHost, MomOrders, MomRoom, MomSlices};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::rng::Rng;

use super::super::choose::Choice;
use super::*;

/// A file in memory, and what was said in the log.
#[derive(Clone, Default)]
struct Memory {
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
    said: Arc<Mutex<Vec<String>>>,
    full: bool,
}

impl ChoiceStore for Memory {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.bytes.lock().expect("no panic").clone())
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *self.bytes.lock().expect("no panic") = Some(bytes.to_vec());
        Ok(())
    }

    fn warn(&self, sentence: &str) {
        self.said.lock().expect("no panic").push(sentence.into());
    }
}

impl Memory {
    fn said(&self) -> Vec<String> {
        self.said.lock().expect("no panic").clone()
    }
}

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

fn set(gpus: &[usize]) -> GpuSet {
    gpus.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu))
}

/// Two sets of four GPUs each; the last ones jobs share, in four parts.
fn gpus(shared: usize) -> Vec<MomGpu> {
    let gpu = |at: usize| MomGpu {
        uuid: format!("GPU-{at}"),
        nvlink: if at < 4 { "n1:a" } else { "n1:b" }.into(),
        numa: Some(at as u32 / 4),
        shares: if at + shared >= 8 { 4 } else { 0 },
        divided: false,
    };
    (0..8).map(gpu).collect()
}

fn job(name: &str, run: u64, count: u32) -> MomJob {
    MomJob {
        job: id(name),
        user: "ann".into(),
        uid: 1000,
        count,
        run,
        ..MomJob::default()
    }
}

fn sharer(name: &str, parts: u16) -> MomJob {
    MomJob {
        parts,
        ..job(name, 1, 0)
    }
}

fn list(jobs: &[MomJob], shared: usize, host: Option<MomHost>) -> MomReport {
    MomReport {
        described: gpus(shared),
        jobs: jobs.to_vec(),
        all: true,
        asked: host.is_some(),
        host,
        ..MomReport::default()
    }
}

fn launch(mom: &Mom, job: &MomJob) -> MomChoice {
    let report = MomReport {
        jobs: vec![job.clone()],
        ..MomReport::default()
    };
    let mut chosen = told(mom, &report).chosen;
    chosen.remove(&job.job).expect("a word about the job")
}

fn told(mom: &Mom, report: &MomReport) -> MomOrders {
    mom.told(report).expect("PBS").orders
}

fn ends(mom: &Mom, job: &MomJob) {
    let ended = MomEnd {
        job: job.job.clone(),
        run: job.run,
    };
    let report = MomReport {
        ended: vec![ended],
        ..MomReport::default()
    };
    told(mom, &report);
}

/// What is out of service is known.
fn out(mom: &Mom, gpus: &[usize]) {
    mom.lock().wanted = Some(ExtraPart {
        out: gpus.iter().filter_map(|gpu| GresGpu::new(*gpu)).collect(),
        ..ExtraPart::default()
    });
}

/// A host that has told its jobs, and waits for nothing.
fn host(jobs: &[MomJob], shared: usize, store: &Memory) -> Mom {
    let mut mom = Mom::remembering("n1", Box::new(store.clone()));
    mom.patience = Duration::ZERO;
    out(&mom, &[]);
    told(&mom, &list(jobs, shared, None));
    mom
}

fn has(choice: &MomChoice) -> GpuSet {
    assert_eq!(choice.refused, "");
    choice.gpus.iter().copied().collect()
}

/// Jobs with their whole GPUs, by their records.
fn whole(mom: &Mom) -> BTreeMap<String, GpuSet> {
    let jobs = mom.jobs().expect("told").into_iter();
    jobs.map(|job| (job.id.to_string(), job.whole_on("n1")))
        .collect()
}

fn room(mom: &Mom) -> MomRoom {
    told(mom, &MomReport::default()).room.expect("it is known")
}

/// PBS counts it for the job, and one more would be missing if it were counted down meanwhile.
#[test]
fn a_gpu_that_is_out_of_service_counts_until_its_job_ends() {
    let mom = host(&[], 0, &Memory::default());
    let (one, two) = (job("1.head", 1, 2), job("2.head", 1, 1));
    let first = has(&launch(&mom, &one));
    assert_eq!(first, set(&[0, 1]));
    out(&mom, &[1, 7]);
    assert_eq!(room(&mom).whole, 7, "GPU 7 is nobody's");
    launch(&mom, &two);
    let asked = MomReport {
        asked: true,
        ..MomReport::default()
    };
    told(&mom, &asked);
    let at_end = |job: &MomJob| {
        let ended = vec![MomEnd {
            job: job.job.clone(),
            run: job.run,
        }];
        told(
            &mom,
            &MomReport {
                ended,
                ..MomReport::default()
            },
        )
    };
    let said = at_end(&two);
    assert_eq!((said.room.expect("known").whole, said.look), (7, false));
    let said = at_end(&one);
    assert_eq!((said.room.expect("known").whole, said.look), (6, true));
}

/// Which of them there is room for is known a moment later, and pbs_sched looks at once.
#[test]
fn when_a_job_with_slices_ends_a_start_is_tried_rather_than_missed() {
    let mom = host(&[], 0, &Memory::default());
    let described: Vec<MomGpu> = gpus(0)
        .into_iter()
        .map(|gpu| MomGpu {
            divided: true,
            ..gpu
        })
        .collect();
    let pool = PoolRoom {
        fits: 1,
        compute: 56,
        memory: 64,
    };
    mom.set_pool_room(pool);
    let slices = MomJob {
        slices: Some(MomSlices {
            request: "1g.10gb".into(),
            chunks: 1,
            compute: 1,
            memory: 1,
            ..MomSlices::default()
        }),
        ..job("1.head", 1, 0)
    };
    let all = |jobs: &[MomJob]| MomReport {
        described: described.clone(),
        ..list(jobs, 0, None)
    };
    assert_eq!(
        told(&mom, &all(std::slice::from_ref(&slices)))
            .room
            .expect("known")
            .mig_fits,
        1
    );
    ends(&mom, &slices);
    assert_eq!(room(&mom).mig_fits, 64);
    mom.set_pool_room(pool);
    assert_eq!(room(&mom).mig_fits, 1);
}

#[test]
fn a_job_has_linked_gpus_from_its_launch_to_its_end_whoever_starts_anew() {
    let store = Memory::default();
    let mom = host(&[], 0, &store);
    let (one, two) = (job("1.head", 1, 2), job("2.head", 1, 4));
    let first = has(&launch(&mom, &one));
    assert_eq!((first, room(&mom).linked), (set(&[0, 1]), 4));
    assert_eq!(has(&launch(&mom, &two)), set(&[4, 5, 6, 7]));
    assert_eq!(has(&launch(&mom, &one)), first, "another of its programs");
    assert_eq!(whole(&mom)["1.head"], first);
    assert_eq!(mom.devices(&id("1.head")), Ok(first));
    let seen = room(&mom);
    let text = "whole=0-7;free=2-3;out=-;links=n1:a@0-3+n1:b@4-7;numa=0@0-3+1@4-7";
    assert_eq!((&seen.shown[..], seen.whole, seen.linked), (text, 8, 2));
    drop(mom);

    // Before the next one has heard a list, nobody else is given what they have.
    let mut mom = Mom::remembering("n1", Box::new(store.clone()));
    mom.patience = Duration::ZERO;
    out(&mom, &[]);
    assert_eq!(has(&launch(&mom, &one)), first);
    let new = job("3.head", 1, 2);
    let early = launch(&mom, &new);
    assert!(
        early.as_stock && early.refused.contains("has not told"),
        "{early:?}"
    );
    told(&mom, &list(&[one.clone(), two, new.clone()], 0, None));
    let all = whole(&mom);
    assert_eq!((all["1.head"], all["2.head"]), (first, set(&[4, 5, 6, 7])));
    assert_eq!(has(&launch(&mom, &new)), set(&[2, 3]));
    // The next run of the first one begins before its end is told.
    let again = MomJob {
        run: 2,
        ..one.clone()
    };
    ends(&mom, &one);
    assert_eq!(has(&launch(&mom, &again)), first);
    ends(&mom, &one);
    assert_eq!(
        whole(&mom)["1.head"],
        first,
        "a late word of the run before"
    );
    ends(&mom, &again);
    assert_eq!(room(&mom).linked, 2);
    assert_eq!(store.said(), [""; 0]);
}

#[test]
fn a_launch_waits_for_the_end_of_the_job_before() {
    let before = job("1.head", 1, 8);
    let mut mom = host(std::slice::from_ref(&before), 0, &Memory::default());
    mom.patience = Duration::from_secs(600);
    let next = job("2.head", 1, 8);
    thread::scope(|scope| {
        let waits = scope.spawn(|| launch(&mom, &next));
        while !mom.lock().jobs.contains_key(&next.job) {
            thread::yield_now();
        }
        ends(&mom, &before);
        assert_eq!(has(&waits.join().expect("it ends")), GpuSet::first(8));
    });
    // And for a GPU that comes back into service.
    ends(&mom, &next);
    out(&mom, &[3]);
    let third = job("3.head", 1, 8);
    thread::scope(|scope| {
        let waits = scope.spawn(|| launch(&mom, &third));
        while !mom.lock().jobs.contains_key(&third.job) {
            thread::yield_now();
        }
        let publish = scope.spawn(|| mom.act(&Action::Publish(ExtraPart::default())));
        assert_eq!(has(&waits.join().expect("it ends")), GpuSet::first(8));
        told(
            &mom,
            &list(std::slice::from_ref(&third), 0, Some(MomHost::default())),
        );
        publish.join().expect("it ends");
    });
}

#[test]
fn who_gets_none_is_told_why_and_waits_once() {
    let jobs = [job("1.head", 1, 4), job("2.head", 1, 2)];
    let mut mom = host(&jobs, 0, &Memory::default());
    out(&mom, &[7]);
    let third = job("3.head", 1, 2);
    let none = launch(&mom, &third);
    assert_eq!(
        none.refused,
        "PBS counts 2 GPUs of this host for the job, and 1 of its 8 is free: 1 is out of service, and other jobs have 6"
    );
    assert!(!none.as_stock && none.gpus.is_empty());
    assert!(mom.devices(&third.job).is_err());
    assert_eq!(whole(&mom)["3.head"], GpuSet::EMPTY);
    mom.patience = Duration::from_secs(600);
    assert_eq!(launch(&mom, &third), none, "its next program");
    // A list gives it some when there are.
    ends(&mom, &jobs[1]);
    let left = launch(&mom, &jobs[1]);
    assert!(left.refused.contains("has left"), "{left:?}");
    told(&mom, &list(&[jobs[0].clone(), third.clone()], 0, None));
    assert_eq!(launch(&mom, &third).gpus.len(), 2);
}

#[test]
fn more_than_is_described_is_started_as_without_gpuos() {
    let mom = host(&[job("1.head", 1, 6)], 2, &Memory::default());
    let none = launch(&mom, &job("2.head", 1, 9));
    assert!(
        none.as_stock && none.refused.contains("by gpus.json it has"),
        "{none:?}"
    );
    // One that comes before the end of another is told is none such.
    let none = launch(&mom, &job("3.head", 1, 2));
    assert!(!none.as_stock && !none.refused.is_empty(), "{none:?}");
}

#[test]
fn required_links_are_kept_and_wished_ones_as_far_as_there_are() {
    let wants = |name: &str, count, topology: &str| MomJob {
        topology: topology.into(),
        ..job(name, 1, count)
    };
    let mom = host(&[], 0, &Memory::default());
    assert_eq!(launch(&mom, &job("1.head", 1, 2)).gpus.len(), 2);
    assert_eq!(launch(&mom, &job("2.head", 1, 3)).gpus.len(), 3);
    // Two are left of the one set, and one of the other.
    let none = launch(&mom, &wants("3.head", 3, "nvlink:required"));
    assert!(
        !none.as_stock && none.refused.contains("linked by NVLink"),
        "{none:?}"
    );
    assert_eq!(room(&mom).linked, 2);
    ends(&mom, &job("3.head", 1, 3));
    assert_eq!(
        has(&launch(&mom, &wants("4.head", 2, "nvlink:required"))),
        set(&[2, 3])
    );
    ends(&mom, &job("4.head", 1, 2));
    assert_eq!(launch(&mom, &wants("5.head", 3, "nvlink")).gpus.len(), 3);
    ends(&mom, &job("5.head", 1, 3));
    // A level above the host is met on it.
    assert_eq!(
        launch(&mom, &wants("6.head", 3, "leaf:required"))
            .gpus
            .len(),
        3
    );
}

#[test]
fn parts_are_of_one_gpu_and_the_fullest_one_that_has_room() {
    let mom = host(&[], 2, &Memory::default());
    let on = |name: &str, parts| launch(&mom, &sharer(name, parts)).gpus;
    let gpu = |at| GresGpu::new(at).expect("a GPU");
    assert_eq!(on("1.head", 3), [gpu(6)]);
    assert_eq!(on("2.head", 2), [gpu(7)]);
    let seen = room(&mom);
    assert_eq!((seen.whole, seen.share_fits, seen.share_parts), (6, 2, 8));
    let none = launch(&mom, &sharer("4.head", 3));
    assert!(none.refused.contains("more than 2 left"), "{none:?}");
    assert_eq!(on("3.head", 1), [gpu(6)]);
    let jobs = mom.jobs().expect("told");
    let shared = jobs[0].shared_on("n1");
    assert_eq!((shared, jobs[0].whole_on("n1")), (set(&[6]), GpuSet::EMPTY));
    // Whole ones are never of these, and one that is out of service is nobody's.
    assert_eq!(launch(&mom, &job("5.head", 1, 6)).gpus.len(), 6);
    out(&mom, &[7]);
    assert_eq!((room(&mom).share_fits, room(&mom).share_parts), (0, 4));
    ends(&mom, &sharer("2.head", 2));
    assert!(!launch(&mom, &sharer("6.head", 2)).refused.is_empty());
}

#[test]
fn what_a_suspended_job_has_is_given_last_and_stays_its_own() {
    let stopped = MomJob {
        suspended: true,
        ..job("1.head", 1, 4)
    };
    let mom = host(&[job("1.head", 1, 4)], 0, &Memory::default());
    let own = whole(&mom)["1.head"];
    told(&mom, &list(std::slice::from_ref(&stopped), 0, None));
    let seen = room(&mom);
    assert_eq!(seen.linked, 4);
    assert!(
        seen.shown
            .contains(&format!("free={}", GpuSet::first(8).minus(own)))
    );
    let next = has(&launch(&mom, &job("2.head", 1, 2)));
    assert!(next.and(own).is_empty());
    let next = has(&launch(&mom, &job("3.head", 1, 3)));
    assert_eq!(next.and(own).len(), 1);
    assert_eq!(whole(&mom)["1.head"], own);
    // Linked ones are there only among those of the suspended one.
    let wants = MomJob {
        topology: "nvlink:required".into(),
        ..job("4.head", 1, 3)
    };
    assert_eq!(has(&launch(&mom, &wants)), own.minus(next));
}

#[test]
fn gpus_that_another_has_given_are_taken() {
    let old = MomJob {
        gpus: vec![GresGpu::new(0).expect("a GPU")],
        shared: vec![GresGpu::new(6).expect("a GPU")],
        ..job("1.head", 1, 0)
    };
    let mom = host(std::slice::from_ref(&old), 2, &Memory::default());
    assert_eq!(has(&launch(&mom, &old)), set(&[0, 6]));
    assert_eq!(
        has(&launch(&mom, &job("2.head", 1, 5))),
        set(&[1, 2, 3, 4, 5])
    );
    // Nobody says how many parts it has.
    assert_eq!(has(&launch(&mom, &sharer("3.head", 1))), set(&[7]));
}

#[test]
fn what_is_lost_is_chosen_anew_in_the_order_of_the_list_and_said() {
    let store = Memory::default();
    *store.bytes.lock().expect("no panic") = Some(b"{\"version\":1,\"jobs\":{\"1.h".to_vec());
    let mom = host(&[job("9.head", 1, 2), job("1.head", 3, 4)], 0, &store);
    assert_eq!(whole(&mom)["9.head"], set(&[0, 1]));
    assert_eq!(whole(&mom)["1.head"], set(&[4, 5, 6, 7]));
    let said = store.said();
    assert!(said[0].contains("cannot be read"), "{said:?}");
    assert!(
        said[1].contains("job 9.head") && said[1].contains("GPU 0-1"),
        "{said:?}"
    );
    assert_eq!(said.len(), 3);
    let other = Memory::default();
    *other.bytes.lock().expect("no panic") = Some(b"{\"version\":2,\"jobs\":{}}".to_vec());
    drop(host(&[], 0, &other));
    assert!(other.said()[0].contains("version 2"));
    // What cannot be saved is said once, and jobs have their GPUs.
    let full = Memory {
        full: true,
        ..Memory::default()
    };
    let mom = host(&[], 0, &full);
    for name in ["1.head", "2.head"] {
        assert_eq!(launch(&mom, &job(name, 1, 1)).gpus.len(), 1);
    }
    assert_eq!(full.said().len(), 1, "{:?}", full.said());
}

#[test]
fn nothing_is_chosen_before_it_is_known_what_is_out_and_where_another_gives_gpus() {
    let mut mom = Mom::new("n1");
    mom.patience = Duration::ZERO;
    let jobs = [job("1.head", 1, 2)];
    assert_eq!(told(&mom, &list(&jobs, 0, None)).room, None);
    assert_eq!(whole(&mom)["1.head"], GpuSet::EMPTY);
    // By what pbs_server shows of the gpuosd before.
    let shown = MomHost {
        shown: "whole=0-7;free=2-7;out=0".into(),
        ..MomHost::default()
    };
    told(&mom, &list(&jobs, 0, Some(shown)));
    assert_eq!(whole(&mom)["1.head"], set(&[1, 2]));
    let room = told(&mom, &MomReport::default()).room;
    assert_eq!(room.map(|room| room.whole), Some(7));

    let advised = MomReport {
        advise: true,
        ..list(&jobs, 0, None)
    };
    let mom = Mom::new("n1");
    out(&mom, &[]);
    told(&mom, &advised);
    assert_eq!(whole(&mom)["1.head"], GpuSet::EMPTY);
    let launched = MomReport {
        jobs: jobs.to_vec(),
        ..MomReport::default()
    };
    assert!(told(&mom, &launched).chosen.is_empty());
    let mover = Mom::with_server("n1", Arc::new(crate::Recorded::default()));
    out(&mover, &[]);
    told(&mover, &list(&jobs, 0, None));
    assert!(told(&mover, &launched).chosen.is_empty());
}

#[test]
fn pbs_server_is_looked_at_when_it_shows_something_else() {
    let mom = host(&[], 0, &Memory::default());
    let orders = told(&mom, &list(&[], 0, Some(MomHost::default())));
    assert!(orders.look);
    let shows = |orders: &MomOrders| MomHost {
        shown: orders.room.clone().expect("it is known").shown,
        ..MomHost::default()
    };
    let shown = shows(&orders);
    assert!(!told(&mom, &list(&[], 0, Some(shown.clone()))).look);
    assert!(!told(&mom, &list(&[], 0, None)).look);
    let one = job("1.head", 1, 2);
    launch(&mom, &one);
    let orders = told(&mom, &list(std::slice::from_ref(&one), 0, None));
    assert!(orders.look, "its GPUs are not free any more");
    told(&mom, &list(std::slice::from_ref(&one), 0, Some(shown)));
    let orders = told(&mom, &list(&[one], 0, Some(shows(&orders))));
    assert!(!orders.look);
}

#[path = "choice_model.rs"]
mod model;
