//! A world around a real loop of the daemon: time that a test moves, a slurmctld that remembers, a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::{Event, ExtraPart, Sample, Verb};
use gpuos_core::step::StepId;
use gpuos_core::wire::{Peer, Reason, Reply, Request, Status};
use gpuos_host::hardware::nvml::Error;
use gpuos_host::steps::job_processes::Proc;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Allocation, Job, JobState};
use gpuos_workload::node::NodeRecord;
use gpuos_workload::recorded::Recorded;
use gpuosd::blocking::{Answer, Device};
use gpuosd::disk::Disk;
use gpuosd::event_loop::{EventLoop, Message, Ports, Start};
use gpuosd::gpus::{GpuIdentity, Library};
use gpuosd::known::Known;
use gpuosd::memory;
use gpuosd::mig::GpuThreads;
use gpuosd::mps::Runner;
use gpuosd::numbering::Numbering;
use gpuosd::peers::Peers;
use gpuosd::queue::Task;
use gpuosd::sink::Sink;
use gpuosd::slices::Slices;
use gpuosd::store;

pub const GPUS: u8 = 8;
const BATCH: u32 = StepId::BATCH;
const NODE: &str = "n1";
/// 2026-11-22, in ms.
pub const TODAY: u64 = 1_795_305_600_000;

/// A job as slurmctld has it.
#[derive(Clone, Debug, Default)]
pub struct Running {
    pub gpus: BTreeSet<u8>,
    pub requeue: bool,
    pub pending: bool,
    /// Pending, and Slurm holds it back.
    pub held: bool,
    /// It may not run on this node any more.
    pub excluded: bool,
}

/// slurmctld, and what it was told.
#[derive(Default)]
pub struct Slurm {
    pub away: bool,
    /// How long each answer takes, in ms.
    pub slow: u64,
    pub extra: String,
    pub refuses_extra: bool,
    pub drained: Option<String>,
    pub jobs: BTreeMap<u32, Running>,
    /// When, and what.
    pub log: Vec<(u64, String)>,
}

fn nth(gpu: u8) -> NodeGpu {
    NodeGpu::try_from(gpu).expect("a GPU")
}

impl Slurm {
    pub fn out(&self) -> Vec<u8> {
        let (part, wrong) = ExtraPart::read(&self.extra);
        assert_eq!(wrong, None);
        part.out.into_iter().map(u8::from).collect()
    }

    pub fn on(&self, gpu: u8) -> Vec<u32> {
        let on = |job: &Running| !job.pending && job.gpus.contains(&gpu);
        let jobs = self.jobs.iter().filter(|(_, job)| on(job));
        jobs.map(|(id, _)| *id).collect()
    }

    fn answer(&mut self, now: u64, task: &Task) -> Answer {
        if self.away {
            let away = || Outcome::NoAnswer("Unable to contact slurm controller".into());
            self.log.push((now, "away".into()));
            return match task {
                Task::Act(..) => Answer::Act(away()),
                Task::Show => Answer::Show(Err(away())),
                Task::Jobs(_) => Answer::Jobs(Err(away())),
                Task::Job(_) => Answer::Job(Err(away())),
                Task::Config => Answer::Config(Ok(Some(Box::default())), None),
            };
        }
        match task {
            Task::Act(action, _) => {
                let outcome = self.act(action);
                self.log.push((now, format!("{action:?}: {outcome:?}")));
                Answer::Act(outcome)
            }
            Task::Show => {
                let (published, damaged) = ExtraPart::read(&self.extra);
                Answer::Show(Ok(Box::new(NodeRecord {
                    name: NODE.into(),
                    drain: self.drained.clone(),
                    gpus: vec![("h100".into(), GPUS.into())],
                    published,
                    damaged: damaged.map(|why| why.to_string()),
                    ..NodeRecord::default()
                })))
            }
            Task::Jobs(_) => {
                let running = self.jobs.iter().filter(|(_, job)| !job.pending);
                Answer::Jobs(Ok(running.map(|(id, job)| shown(*id, job)).collect()))
            }
            Task::Job(id) => {
                let job = id.number().and_then(|id| self.jobs.get(&id));
                let job = job.filter(|job| !job.pending);
                Answer::Job(Ok(job.map(|job| Box::new(shown(id.number().unwrap(), job)))))
            }
            Task::Config => Answer::Config(Ok(Some(Box::<Config>::default())), None),
        }
    }

    fn act(&mut self, action: &Action) -> Outcome {
        let done = || Outcome::Done(String::new());
        let nothing = || Outcome::Nothing(String::new());
        match action {
            Action::Publish(_) if self.refuses_extra => Outcome::Refused("no right".into()),
            Action::Publish(part) => {
                self.extra = part.write_into(&self.extra);
                done()
            }
            Action::Requeue { job } => match job.number().and_then(|job| self.jobs.get_mut(&job)) {
                Some(job) if !job.requeue => Outcome::Refused("disabled".into()),
                Some(job) if !job.pending => {
                    (job.pending, job.held) = (true, true);
                    done()
                }
                _ => nothing(),
            },
            Action::Release { job, avoid_node } => {
                match job.number().and_then(|job| self.jobs.get_mut(&job)) {
                    Some(job) if job.pending => {
                        (job.held, job.excluded) = (false, *avoid_node);
                        done()
                    }
                    _ => nothing(),
                }
            }
            // Nobody has slices here.
            Action::Hold { .. } | Action::LetGo { .. } | Action::Tell { .. } => nothing(),
            Action::Kill { job, .. } => match job.number().and_then(|job| self.jobs.remove(&job)) {
                Some(_) => done(),
                None => nothing(),
            },
            Action::Drain { reason } => {
                self.drained.get_or_insert(reason.clone());
                done()
            }
            Action::Undrain { .. } => {
                self.drained = None;
                done()
            }
        }
    }
}

fn shown(id: u32, job: &Running) -> Job {
    let gpus = job.gpus.iter().map(|gpu| usize::from(*gpu));
    Job {
        id: id.into(),
        uid: 1000,
        state: JobState::Running,
        nodes: vec![NODE.into()],
        may_requeue: job.requeue,
        allocations: vec![Allocation {
            nodes: vec![NODE.into()],
            gpus: gpus.fold(GpuSet::EMPTY, GpuSet::with),
            slices: GpuSet::EMPTY,
            shared: GpuSet::EMPTY,
            memory_mib: 0,
            others: Vec::new(),
        }],
        ..Job::default()
    }
}

/// The world.
pub struct World {
    pub slurm: Slurm,
    /// NVIDIA's library answers.
    pub library: bool,
    /// Resets and checks that were asked for, and when.
    pub device_log: Vec<(u64, String)>,
    /// GPUs that fail their check.
    pub broken: BTreeSet<u8>,
    folder: tempfile::TempDir,
    steady: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
    events: Option<EventLoop>,
    disk: Option<Disk>,
    tasks: Option<Receiver<Task>>,
    devices: Option<Receiver<Device>>,
    task: Option<(u64, Task)>,
    device: Option<(u64, Device)>,
    hands: Option<Arc<GpuThreads>>,
}

impl Drop for World {
    /// What is still to be written comes before the folder goes, or the thread that writes would make it again.
    fn drop(&mut self) {
        self.events = None;
        if let Some(disk) = self.disk.take() {
            disk.flush(Duration::from_secs(10));
        }
    }
}

impl World {
    /// Whether a GPU was ever asked about MIG instances, since the loop was started.
    pub fn asked_about_instances(&self) -> bool {
        let hands = self.hands.as_ref().unwrap();
        !hands.threads.lock().unwrap().is_empty()
    }

    pub fn new() -> World {
        let mut world = World {
            slurm: Slurm {
                extra: "rack=7".into(),
                ..Slurm::default()
            },
            library: true,
            device_log: Vec::new(),
            broken: BTreeSet::new(),
            folder: tempfile::tempdir().unwrap(),
            steady: Arc::default(),
            wall: Arc::new(AtomicU64::new(TODAY)),
            events: None,
            disk: None,
            tasks: None,
            devices: None,
            task: None,
            device: None,
            hands: None,
        };
        world.start();
        world
    }

    /// Starts a loop with what the last one saved. That one is gone without a word.
    pub fn start(&mut self) {
        if let Some(disk) = self.disk.take() {
            assert!(disk.flush(Duration::from_secs(60)));
        }
        let saved = match store::load(self.folder.path()).unwrap() {
            store::Loaded::State(saved) => Some(*saved),
            store::Loaded::Nothing => None,
            other => panic!("{other:?}"),
        };
        let disk = Disk::start(self.folder.path().into()).unwrap();
        let ((workload, tasks), (device, devices)) = (channel(), channel());
        let (steady, wall) = (self.steady.clone(), self.wall.clone());
        let base = Instant::now();
        let hands = Arc::new(GpuThreads {
            library: Arc::new(Library::new(Box::new(|| Err(Error::Closed)))),
            slices: Slices {
                folder: self.folder.path().join("slices"),
                caps: "/dev/nvidia-caps".into(),
                minors: "/dev/null".into(),
                majors: "/dev/null".into(),
            },
            proc: Proc::at("/proc"),
            to: Sink::of(&sync_channel::<Message>(1).0),
            threads: Default::default(),
        });
        self.hands = Some(hands.clone());
        let ports = Ports {
            numbering: Arc::new(Numbering::new(Box::new(|| Err("no gres.conf".into())))),
            peers: Peers::none(),
            workload,
            // Asked by threads that this world does not have.
            manager: Arc::new(Recorded::default()),
            device,
            // Nobody looks at any.
            file_systems: channel().0,
            // No job asks for any.
            limits: channel().0,
            mps: Arc::new(Runner {
                command: String::new(),
                folder: self.folder.path().join("mps"),
                patience: Duration::default(),
                groups: gpuosd::mps::groups::Groups::NoneHere,
                proc: Proc::at("/proc"),
                to: Sink::of(&sync_channel::<Message>(1).0),
            }),
            mig: hands.clone(),
            to: sync_channel(1).0,
            isolation: channel().0,
            memory: memory::Ports {
                caller: channel().0,
                watch: channel().0,
                pressure: channel().0,
                members: Default::default(),
                host: 0,
                config: Default::default(),
                nvme: Default::default(),
            },
            disk: disk.clone(),
            known: Known::default(),
            wall: Box::new(move || wall.load(Ordering::Relaxed)),
            steady: Box::new(move || base + Duration::from_millis(steady.load(Ordering::Relaxed))),
        };
        let start = Start {
            node: NODE.into(),
            boot: "b".into(),
            saved,
            polls: (Duration::from_secs(1), "/nonexistent".into()),
        };
        self.events = Some(EventLoop::new(start, ports));
        (self.disk, self.tasks, self.devices) = (Some(disk), Some(tasks), Some(devices));
        (self.task, self.device) = (None, None);
        let found = |gpu: u8| GpuIdentity {
            number: nth(gpu),
            nvml: gpu.try_into().unwrap(),
            uuid: format!("GPU-{gpu}"),
            name: "NVIDIA H100".into(),
            pci: gpu.to_string(),
        };
        self.take(Message::Library(Ok((0..GPUS).map(found).collect())));
    }

    /// Steady time in ms.
    pub fn now(&self) -> u64 {
        self.steady.load(Ordering::Relaxed)
    }

    /// Sets the machine's clock.
    pub fn set_wall(&self, ms: u64) {
        self.wall.store(ms, Ordering::Relaxed);
    }

    pub fn jump(&self, by_ms: i64) {
        let wall = self.wall.load(Ordering::Relaxed);
        self.set_wall(wall.saturating_add_signed(by_ms));
    }

    pub fn take(&mut self, message: Message) {
        assert!(self.events.as_mut().unwrap().handle(message));
    }

    /// A second goes by: polls, what slurmctld and the driver answer, and the daemon's tick.
    pub fn second(&mut self) {
        for _ in 0..10 {
            self.steady.fetch_add(100, Ordering::Relaxed);
            self.wall.fetch_add(100, Ordering::Relaxed);
            self.answers();
        }
        if self.library {
            for gpu in 0..GPUS {
                let sample = Box::new(Sample {
                    celsius: Some(40),
                    processes: Some(0),
                    ..Sample::default()
                });
                self.take(Message::Health(Event::Sample {
                    gpu: nth(gpu),
                    sample,
                }));
            }
            self.take(Message::Polled);
        }
        self.events.as_mut().unwrap().tick();
        self.answers();
    }

    pub fn seconds(&mut self, count: u64) {
        (0..count).for_each(|_| self.second());
    }

    /// Seconds until it holds; fails after `limit` of them.
    pub fn until(&mut self, what: &str, limit: u64, holds: impl Fn(&World) -> bool) -> u64 {
        for passed in 0..limit {
            if holds(self) {
                return passed;
            }
            self.second();
        }
        panic!("not within {limit} s: {what}\n{:#?}", self.tail());
    }

    pub fn tail(&self) -> Vec<&(u64, String)> {
        let log = self.slurm.log.iter().chain(&self.device_log);
        let mut log: Vec<_> = log.collect();
        log.sort();
        log.split_off(log.len().saturating_sub(40))
    }

    fn answers(&mut self) {
        loop {
            let now = self.now();
            if self.task.is_none() {
                let next = self.tasks.as_ref().unwrap().try_recv();
                self.task = next.ok().map(|task| (now + self.slurm.slow, task));
            }
            let Some((due, task)) = self.task.take() else {
                break;
            };
            if due > now {
                self.task = Some((due, task));
                break;
            }
            let answer = self.slurm.answer(now, &task);
            self.take(Message::Workload(task, answer));
        }
        let now = self.now();
        if self.device.is_none() {
            let next = self.devices.as_ref().unwrap().try_recv();
            self.device = next.ok().map(|device| (now + 1500, device));
            if let Some((_, Device::Reset(gpu) | Device::Check(gpu))) = &self.device {
                let what = match self.device {
                    Some((_, Device::Reset(_))) => "reset",
                    _ => "check",
                };
                let on = self.slurm.on(u8::from(gpu.number));
                assert!(
                    on.is_empty(),
                    "{what} of GPU {} under jobs {on:?}\n{:#?}",
                    gpu.number,
                    self.tail()
                );
                self.device_log
                    .push((now, format!("{what} {}", gpu.number)));
            }
        }
        let Some((_, device)) = self.device.take_if(|(due, _)| *due <= now) else {
            return;
        };
        let message = String::new();
        let event = match device {
            Device::Reset(gpu) => Event::ResetDone {
                gpu: gpu.number,
                ok: true,
                message,
            },
            Device::Check(gpu) => Event::CheckDone {
                gpu: gpu.number,
                ok: !self.broken.contains(&u8::from(gpu.number)),
                message,
            },
        };
        self.take(Message::Health(event));
    }

    fn ask(&mut self, request: Request) -> Reply {
        let (reply, answer) = sync_channel(1);
        let peer = Peer { uid: 0, pid: 1 };
        self.take(Message::Asked {
            peer,
            request,
            reply,
        });
        answer.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    pub fn admin(&mut self, verb: Verb, gpu: u8) {
        self.say(verb, vec![gpu]);
    }

    /// Of the whole node.
    pub fn admin_node(&mut self, verb: Verb) {
        self.say(verb, Vec::new());
    }

    fn say(&mut self, verb: Verb, gpus: Vec<u8>) {
        let request = Request::Admin {
            verb,
            gpus: gpus.into_iter().map(nth).collect(),
            reason: "test".into(),
            force: false,
        };
        assert!(matches!(self.ask(request), Reply::Done { .. }));
    }

    pub fn status(&mut self) -> Status {
        match self.ask(Request::Status) {
            Reply::Status { status } => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn xid(&mut self, gpu: u8, code: u32) {
        self.take(Message::Health(Event::Xid {
            gpu: nth(gpu),
            code,
            gpu_instance: None,
            compute_instance: None,
            pid: None,
        }));
    }

    /// slurmctld starts a job here; `told`: spank_gpuos says so.
    pub fn job(&mut self, id: u32, gpus: &[u8], requeue: bool, told: bool) {
        let job = Running {
            gpus: gpus.iter().copied().collect(),
            requeue,
            ..Running::default()
        };
        self.slurm.jobs.insert(id, job);
        if told {
            let id = StepId {
                job: id.into(),
                step: BATCH,
            };
            let gpus = gpus.to_vec();
            self.ask(Request::StepStart {
                id,
                uid: 1000,
                gpus,
                asked: Default::default(),
                mig: None,
                switchable: false,
                memory: None,
                reason: Reason::Devices,
            });
        }
    }

    pub fn ended(&mut self, id: u32) {
        self.slurm.jobs.remove(&id);
        let id = StepId {
            job: id.into(),
            step: BATCH,
        };
        self.ask(Request::StepEnd { id });
    }

    pub fn device_at(&self, what: &str) -> Option<u64> {
        let done = self.device_log.iter().find(|(_, done)| done == what);
        done.map(|(at, _)| *at)
    }
}
