//! gpuosd beside a pbs_mom: a thread of the test is mom with its hook, and pbs_server's memory of the host's vnode.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::{
    HostOrder, MomChoice, MomEnd, MomGpu, MomHost, MomJob, MomOrders, MomReport, Reply, Request,
    root_socket,
};
use gpuos_host::socket::Client;
use gpuos_model::gpu_index::GresGpu;
use gpuos_pbs::published::Published;

use crate::isolation::audited;
use crate::site::{Daemon, LIMIT, Site};

pub const PBS: [&str; 2] = ["--workload", "pbs"];

/// What mom and pbs_server have.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub uuids: Vec<String>,
    jobs: BTreeMap<JobId, MomJob>,
    /// What the vnode shows of the GPUs.
    shown: String,
    drained: Option<String>,
    /// Another one gives the GPUs: what would be done is said in the host's comment, which `drained` is then.
    advise: bool,
    /// Jobs that were to run again, with the GPUs that were shown as out of service then.
    again: Vec<(JobId, BTreeSet<GresGpu>)>,
}

impl World {
    fn host(&self) -> MomHost {
        MomHost {
            offline: self.drained.is_some() && !self.advise,
            reason: self.drained.clone(),
            shown: self.shown.clone(),
            ..MomHost::default()
        }
    }

    /// GPUs that are shown as out of service.
    pub fn out(&self) -> BTreeSet<GresGpu> {
        let shown = Published::parse(&self.shown).unwrap();
        shown.out.iter().filter_map(GresGpu::new).collect()
    }

    fn report(&self, asked: bool) -> Request {
        let described = self.uuids.iter().map(|uuid| MomGpu {
            uuid: uuid.clone(),
            ..MomGpu::default()
        });
        let report = MomReport {
            described: described.collect(),
            jobs: self.jobs.values().cloned().collect(),
            all: true,
            asked,
            host: asked.then(|| self.host()),
            advise: self.advise,
            ..MomReport::default()
        };
        let report = Box::new(report);
        Request::Mom { report }
    }

    fn obey(&mut self, orders: &MomOrders) {
        if let Some(room) = &orders.room {
            self.shown.clone_from(&room.shown);
        }
        match &orders.host {
            HostOrder::Leave => {}
            HostOrder::Online => self.drained = None,
            HostOrder::Offline(reason) => self.drained = Some(reason.clone()),
        }
        for job in orders.rerun.keys() {
            if self.jobs.remove(job).is_some() {
                self.again.push((job.clone(), self.out()));
            }
        }
        for job in orders.end.keys() {
            self.jobs.remove(job);
        }
    }
}

/// Mom's hook, which comes again and again; it ends when this is dropped.
pub struct Mom {
    world: Arc<Mutex<World>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mom {
    pub fn start(site: &Site, world: World) -> Mom {
        let (world, ends) = (
            Arc::new(Mutex::new(world)),
            Arc::new(AtomicBool::new(false)),
        );
        let (own, stop) = (world.clone(), ends.clone());
        let socket = site.path("run").join(gpuos_host::socket::NAME);
        let run = move || {
            while !stop.load(Ordering::Relaxed) {
                // A gpuosd that is away, or being started.
                if let Ok(mut client) = Client::connect(&socket, LIMIT) {
                    event(&mut client, &own);
                }
                thread::sleep(Duration::from_millis(50));
            }
        };
        Mom {
            world,
            ends,
            thread: Some(thread::spawn(run)),
        }
    }

    pub fn world(&self) -> World {
        self.world.lock().unwrap().clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut World)) {
        change(&mut self.world.lock().unwrap());
    }
}

impl Drop for Mom {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "mom has failed");
    }
}

/// One event of the hook: gpuosd is told, and what it says is done, as the hook does it.
fn event(client: &mut Client, world: &Mutex<World>) {
    let mut ask = |asked: bool| {
        let request = world.lock().unwrap().report(asked);
        match client.ask(&request) {
            Ok(Reply::Mom { orders }) => Some(*orders),
            _ => None,
        }
    };
    let Some(first) = ask(false) else { return };
    if !first.look && first.rerun.is_empty() && first.end.is_empty() {
        return;
    }
    if let Some(orders) = ask(true) {
        world.lock().unwrap().obey(&orders);
    }
}

pub fn gpu(index: usize) -> GresGpu {
    GresGpu::new(index).unwrap()
}

fn set(indices: &[usize]) -> BTreeSet<GresGpu> {
    indices.iter().map(|index| gpu(*index)).collect()
}

pub fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

pub fn job(name: &str, indices: &[usize]) -> (JobId, MomJob) {
    let held = MomJob {
        job: id(name),
        user: "ann".into(),
        uid: 1000,
        gpus: set(indices).into_iter().collect(),
        run: 1,
        ..MomJob::default()
    };
    (id(name), held)
}

/// Eight GPUs of which the administrator has not said who they are.
pub fn world(jobs: &[(JobId, MomJob)]) -> World {
    World {
        uuids: vec![String::new(); 8],
        jobs: jobs.iter().cloned().collect(),
        ..World::default()
    }
}

/// Waits until gpuosd knows the jobs, so that a fault finds them.
pub fn knows(site: &Site, daemon: &Daemon<'_>, count: usize) {
    let all = || (daemon.status().jobs.len() == count).then_some(());
    site.until("gpuosd knows the jobs", all);
}

#[test]
fn a_fault_takes_one_gpu_out_and_then_its_job_runs_again() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let mom = Mom::start(&site, world(&[job("7.head", &[5]), job("8[2].head", &[4])]));
    daemon.ready();
    knows(&site, &daemon, 2);
    site.fault(Some(5), "row-remap failure");
    let again = || mom.world().again.pop();
    let (job, offline) = site.until("the job runs again", again);
    assert_eq!((job, offline), (id("7.head"), set(&[5])));
    let now = mom.world();
    assert!(now.jobs.contains_key(&id("8[2].head")));
    assert_eq!(now.out(), set(&[5]));

    // Killed and started anew, it takes nothing back that it did, and goes on where it was.
    daemon.kill();
    let daemon = site.start_with(&PBS);
    daemon.ready();
    knows(&site, &daemon, 1);
    assert_eq!(mom.world().out(), set(&[5]));
    site.repair(5);
    daemon.admin(gpuos_core::health::Verb::Online, 5);
    let back = || mom.world().out().is_empty().then_some(());
    site.until("the GPU is back", back);
    let well = || daemon.status().daemon.troubles.is_empty().then_some(());
    site.until("no trouble", well);
}

#[test]
fn a_gpu_is_known_by_the_uuid_that_it_is_described_with() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let mom = Mom::start(&site, world(&[]));
    daemon.ready();
    let mut uuids: Vec<String> = daemon
        .status()
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    uuids.reverse();
    mom.change(|world| world.uuids.clone_from(&uuids));
    let same = || {
        let gpus = daemon.status().gpus;
        let now: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        (now == uuids).then_some(())
    };
    site.until("the numbers of the administrator", same);
    mom.change(|world| world.jobs.extend([job("7.head", &[2])]));
    knows(&site, &daemon, 1);
    site.fault(Some(5), "row-remap failure");
    let out = || (mom.world().out() == set(&[2])).then_some(());
    site.until("the GPU is out", out);
}

#[test]
fn a_mom_that_says_nothing_is_a_trouble_and_users_cannot_speak_for_it() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let trouble = || {
        let troubles = daemon.status().daemon.troubles;
        let told = troubles
            .iter()
            .any(|line| line.contains("pbs_mom has told nothing yet"));
        told.then_some(())
    };
    site.until("the trouble", trouble);
    let mom = Mom::start(&site, world(&[]));
    daemon.ready();
    let well = || daemon.status().daemon.troubles.is_empty().then_some(());
    site.until("no trouble", well);
    drop(mom);

    // A gpuosd of Slurm hears no mom.
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    let refused = daemon
        .ask(&world(&[]).report(false))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("--workload pbs"), "{refused}");
    let path = root_socket(&daemon.socket().to_string_lossy());
    assert!(std::path::Path::new(&path).exists());
}

/// Mom's hook tells that a run of a job has left.
pub fn ends(daemon: &Daemon<'_>, name: &str, run: u64) {
    let report = Box::new(MomReport {
        ended: vec![MomEnd { job: id(name), run }],
        ..MomReport::default()
    });
    let said = daemon.ask(&Request::Mom { report }).unwrap();
    assert!(matches!(said, Reply::Mom { .. }), "{said:?}");
}

#[test]
fn a_run_that_has_left_is_forgotten_at_once_and_a_late_word_ends_no_later_one() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let (name, next) = job("7.head", &[5]);
    let next = MomJob { run: 2, ..next };
    let mom = Mom::start(&site, world(&[(name, next), job("8.head", &[4])]));
    daemon.ready();
    knows(&site, &daemon, 2);
    // No list comes any more.
    drop(mom);
    ends(&daemon, "7.head", 1);
    ends(&daemon, "8.head", 1);
    let left = || {
        let jobs = daemon.status().jobs;
        (jobs.len() == 1).then(|| jobs[0].job.clone())
    };
    assert_eq!(site.until("one has left", left), id("7.head"));
    ends(&daemon, "7.head", 2);
    let none = || daemon.status().jobs.is_empty().then_some(());
    site.until("both have left", none);
}

/// PBS gives what it counts for a job that it has suspended to another one.
#[test]
fn a_suspended_job_and_the_one_in_its_place_are_both_on_the_gpu() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let (name, held) = job("7.head", &[5]);
    let suspended = MomJob {
        suspended: true,
        ..held
    };
    let mom = Mom::start(&site, world(&[(name, suspended), job("8.head", &[5])]));
    daemon.ready();
    knows(&site, &daemon, 2);
    let on: Vec<GresGpu> = daemon
        .status()
        .jobs
        .into_iter()
        .flat_map(|one| one.gpus)
        .collect();
    assert_eq!(on, [gpu(5), gpu(5)]);
    // A fault hits both.
    site.fault(Some(5), "row-remap failure");
    let again = || {
        let again = mom.world().again.into_iter().map(|(job, _)| job);
        let again: BTreeSet<JobId> = again.collect();
        (again.len() == 2).then_some(again)
    };
    let again = site.until("both run again", again);
    assert_eq!(again, BTreeSet::from([id("7.head"), id("8.head")]));
}

/// gpuosd is killed while a GPU is being reset, and the host is given to pbs_cgroups meanwhile: the next gpuosd resets nothing, neither before
/// mom has told it that it only advises nor after.
#[test]
fn before_mom_has_told_no_gpu_is_reset() {
    let site = Site::new();
    let resets = site.resets();
    let flags = [PBS[0], PBS[1], "--reset-command", &resets];
    let daemon = site.start_with(&flags);
    let mom = Mom::start(&site, world(&[job("7.head", &[5])]));
    daemon.ready();
    knows(&site, &daemon, 1);
    site.fault(Some(5), "row-remap failure");
    let asked = site.path("slurm/resets.5");
    let reset = || asked.exists().then_some(());
    site.until("the GPU is being reset", reset);
    daemon.kill();
    drop(mom);
    std::fs::remove_file(&asked).unwrap();

    let daemon = site.start_with(&flags);
    let silent = || {
        let troubles = daemon.status().daemon.troubles;
        let told = troubles
            .iter()
            .any(|line| line.contains("pbs_mom has told nothing yet"));
        told.then_some(())
    };
    site.until("it waits for mom", silent);
    let advised = World {
        advise: true,
        ..world(&[])
    };
    let _mom = Mom::start(&site, advised);
    daemon.ready();
    let refused = || (audited(&site, "the reset failed: ") > 0).then_some(());
    site.until("a reset is not done", refused);
    assert_eq!(
        audited(&site, "only advises"),
        audited(&site, "the reset failed: ")
    );
    assert!(!asked.exists());
}

#[test]
fn an_administrator_drains_and_what_he_drained_comes_back_by_his_word() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let mom = Mom::start(&site, world(&[job("7.head", &[3])]));
    daemon.ready();
    knows(&site, &daemon, 1);
    daemon.admin(gpuos_core::health::Verb::Drain, 3);
    let out = || (mom.world().out() == set(&[3])).then_some(());
    site.until("the GPU is out", out);
    // Its job goes on.
    assert!(mom.world().jobs.contains_key(&id("7.head")));
    mom.change(|world| world.jobs.clear());
    daemon.admin(gpuos_core::health::Verb::Online, 3);
    let back = || mom.world().out().is_empty().then_some(());
    site.until("the GPU is back", back);
}

/// pbs_cgroups has given GPU 5 to a job. What a rule would do is said; nothing is reset, and the job goes on.
#[test]
fn where_another_one_gives_gpus_what_is_to_be_done_is_said_and_not_done() {
    let site = Site::new();
    let resets = site.resets();
    let daemon = site.start_with(&[PBS[0], PBS[1], "--reset-command", &resets]);
    let advised = World {
        advise: true,
        ..world(&[job("7.head", &[5])])
    };
    let mom = Mom::start(&site, advised);
    daemon.ready();
    knows(&site, &daemon, 1);
    assert!(daemon.status().daemon.advises);
    site.fault(Some(5), "row-remap failure");
    let advice = site.until("it is advised", || mom.world().drained);
    assert!(
        advice.starts_with("GPU 5 should get no more jobs"),
        "{advice}"
    );
    // The job ends by itself.
    mom.change(|world| assert!(world.jobs.remove(&id("7.head")).is_some()));
    let refused = || (audited(&site, "only advises") > 0).then_some(());
    site.until("a reset is not done", refused);
    assert!(!site.path("slurm/resets.5").exists());
    let world = mom.world();
    assert!(
        world.again.is_empty() && world.out().is_empty(),
        "{world:?}"
    );
}

/// A job of which PBS counts GPUs alone.
pub fn counted(name: &str, count: u32) -> (JobId, MomJob) {
    let (job, held) = job(name, &[]);
    (job, MomJob { count, ..held })
}

/// Mom's hook tells of a program of a job that is about to start; what gpuosd has chosen.
pub fn launches(daemon: &Daemon<'_>, held: &MomJob) -> MomChoice {
    let report = Box::new(MomReport {
        jobs: vec![held.clone()],
        ..MomReport::default()
    });
    match daemon.ask(&Request::Mom { report }).unwrap() {
        Reply::Mom { mut orders } => orders.chosen.remove(&held.job).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// GPUs of a job as gpuosd tells everybody.
fn told_of(daemon: &Daemon<'_>, name: &str) -> Vec<GresGpu> {
    let jobs = daemon.status().jobs;
    let mut own = jobs.into_iter().filter(|one| one.job == id(name));
    own.next().map(|one| one.gpus).unwrap_or_default()
}

#[test]
fn gpus_are_chosen_for_jobs_that_pbs_counts_and_are_theirs_over_a_kill() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let mom = Mom::start(&site, world(&[]));
    daemon.ready();
    let has = |held: &(JobId, MomJob)| mom.change(|world| world.jobs.extend([held.clone()]));
    let first = counted("7.head", 6);
    has(&first);
    let chosen = launches(&daemon, &first.1);
    assert_eq!((chosen.gpus.len(), &chosen.refused[..]), (6, ""));
    knows(&site, &daemon, 1);
    assert_eq!(told_of(&daemon, "7.head"), chosen.gpus);
    daemon.kill();

    let daemon = site.start_with(&PBS);
    let (name, second) = counted("8.head", 2);
    has(&(name.clone(), second.clone()));
    let others = launches(&daemon, &second).gpus;
    assert!(others.len() == 2 && others.iter().all(|gpu| !chosen.gpus.contains(gpu)));
    assert_eq!(launches(&daemon, &first.1), chosen);
    knows(&site, &daemon, 2);
    // Its GPU fails: it runs again, and on GPUs that are in service.
    let bad = others[0];
    site.fault(Some(bad.index()), "row-remap failure");
    let again = || mom.world().again.pop();
    let (job, shown) = site.until("the job runs again", again);
    assert_eq!((job, shown), (name.clone(), BTreeSet::from([bad])));
    let next = MomJob { run: 2, ..second };
    has(&(name.clone(), next.clone()));
    let none = launches(&daemon, &next);
    assert!(none.refused.contains("1 is out of service"), "{none:?}");
    let next = MomJob {
        run: 3,
        count: 1,
        ..next
    };
    has(&(name, next.clone()));
    assert_eq!(launches(&daemon, &next).gpus, others[1..]);
}

#[test]
fn a_damaged_file_of_choices_is_gone_on_without() {
    let site = Site::new();
    let file = site.path("state").join(gpuosd::chosen_gpus::NAME);
    std::fs::create_dir_all(site.path("state")).unwrap();
    std::fs::write(&file, "{").unwrap();
    let daemon = site.start_with(&PBS);
    let _mom = Mom::start(&site, world(&[counted("7.head", 3)]));
    daemon.ready();
    knows(&site, &daemon, 1);
    assert_eq!(told_of(&daemon, "7.head").len(), 3);
    let saved = std::fs::read_to_string(&file).unwrap();
    assert!(saved.contains("7.head"), "{saved}");
}

#[test]
fn power_is_set_on_the_gpus_that_were_chosen() {
    let site = Site::new();
    let daemon = site.start_with(&PBS);
    let (name, held) = counted("7.head", 2);
    let mom = Mom::start(&site, world(&[(name.clone(), held.clone())]));
    daemon.ready();
    let chosen = launches(&daemon, &held).gpus;
    let asked = Asked {
        power: Some(PowerCap::Watts(300)),
        ..Asked::default()
    };
    let step = StepId {
        job: name,
        step: StepId::BATCH,
    };
    let said = daemon.start_step(step, &[], asked);
    assert!(matches!(said, Reply::Prepared { .. }), "{said:?}");
    let watts = |gpu: usize| site.gpu(gpu).power_limit_mw / 1000;
    let capped = (0..8).filter(|gpu| watts(*gpu) == 300);
    let capped: Vec<GresGpu> = capped.map(gpu).collect();
    assert_eq!(capped, chosen);
    mom.change(|world| world.jobs.clear());
    let free = || (0..8).all(|gpu| watts(gpu) != 300).then_some(());
    site.until("the caps are gone", free);
}
