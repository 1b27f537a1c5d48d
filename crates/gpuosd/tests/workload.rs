//! The loop of the daemon and the thread that asks the workload manager, against one in memory: no Slurm, no command and no file of
//! Slurm's is anywhere.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use gpuos_core::health::{Event, Sample};
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Peer, Reason, Reply, Request, Status};
use gpuos_host::Recorded as RecordedMachine;
use gpuos_host::hardware::nvml::Error;
use gpuos_host::steps::job_processes::Proc;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::Action;
use gpuos_workload::job::{Allocation, Job, JobState};
use gpuos_workload::node::NodeRecord;
use gpuos_workload::recorded::{Recorded, Table};
use gpuosd::blocking::{self, Device, Setting};
use gpuosd::disk::Disk;
use gpuosd::event_loop::{EventLoop, Message, Ports, Start};
use gpuosd::gpus::{GpuIdentity, Library};
use gpuosd::known::Known;
use gpuosd::memory;
use gpuosd::mig::GpuThreads;
use gpuosd::mps::Runner;
use gpuosd::mps::groups::Groups;
use gpuosd::numbering::Numbering;
use gpuosd::peers::Peers;
use gpuosd::sink::Sink;
use gpuosd::slices::Slices;

const NODE: &str = "n1";
const GPUS: u8 = 4;
/// Nothing takes longer, on a busy machine either.
const LONG: Duration = Duration::from_secs(60);

fn job(id: u32, gpu: usize) -> Job {
    Job {
        id: id.into(),
        uid: 1000,
        state: JobState::Running,
        nodes: vec![NODE.into()],
        may_requeue: true,
        allocations: vec![Allocation {
            nodes: vec![NODE.into()],
            gpus: GpuSet::EMPTY.with(gpu),
            ..Allocation::default()
        }],
        ..Job::default()
    }
}

/// A loop whose workload manager is the twin.
struct Node {
    manager: Recorded,
    events: EventLoop,
    from: Receiver<Message>,
    devices: Receiver<Device>,
    ticked: Instant,
    _folder: tempfile::TempDir,
}

impl Node {
    fn new(manager: &Recorded) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = sync_channel(1024);
        let (device, devices) = channel();
        let events = EventLoop::new(start(), ports(manager, folder.path(), device, to));
        let mut node = Node {
            manager: manager.clone(),
            events,
            from,
            devices,
            ticked: Instant::now(),
            _folder: folder,
        };
        let found = |gpu: u8| GpuIdentity {
            number: nth(gpu),
            nvml: gpu.try_into().unwrap(),
            uuid: format!("GPU-{gpu}"),
            name: "NVIDIA H100".into(),
            pci: gpu.to_string(),
        };
        node.take(Message::Library(Ok((0..GPUS).map(found).collect())));
        node
    }

    fn take(&mut self, message: Message) {
        assert!(self.events.handle(message));
    }

    /// The daemon's loop, and polls of GPUs that are well, until it holds.
    fn until(&mut self, what: &str, holds: impl Fn(&mut Node) -> bool) {
        let end = Instant::now() + LONG;
        while !holds(self) {
            assert!(
                Instant::now() < end,
                "{what}: {:#?}",
                self.manager.with(|table| table.calls.clone())
            );
            if let Ok(message) = self.from.recv_timeout(Duration::from_millis(20)) {
                self.take(message);
            }
            while let Ok(device) = self.devices.try_recv() {
                let (ok, message) = (true, String::new());
                self.take(Message::Health(match device {
                    Device::Reset(gpu) => Event::ResetDone {
                        gpu: gpu.number,
                        ok,
                        message,
                    },
                    Device::Check(gpu) => Event::CheckDone {
                        gpu: gpu.number,
                        ok,
                        message,
                    },
                }));
            }
            if self.ticked.elapsed() >= Duration::from_millis(200) {
                self.ticked = Instant::now();
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
                self.events.tick();
            }
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        let (reply, answer) = sync_channel(1);
        let peer = Peer { uid: 0, pid: 1 };
        self.take(Message::Asked {
            peer,
            request,
            reply,
        });
        answer.recv_timeout(LONG).unwrap()
    }

    fn status(&mut self) -> Box<Status> {
        match self.ask(Request::Status) {
            Reply::Status { status } => status,
            other => panic!("{other:?}"),
        }
    }

    fn jobs(&mut self) -> Vec<u32> {
        let jobs = self.status().jobs;
        jobs.iter().filter_map(|job| job.job.number()).collect()
    }
}

fn start() -> Start {
    Start {
        node: NODE.into(),
        boot: "b".into(),
        saved: None,
        polls: (Duration::from_millis(200), "/nonexistent".into()),
    }
}

fn ports(
    manager: &Recorded,
    folder: &std::path::Path,
    device: std::sync::mpsc::Sender<Device>,
    to: SyncSender<Message>,
) -> Ports {
    let setting = Arc::new(Setting {
        node: NODE.into(),
        config: None,
        reset: String::new(),
        check: String::new(),
        limit: LONG,
        switchable: folder.join("switchable"),
    });
    // A machine without any command and file: who would run scontrol fails.
    let machine = Arc::new(RecordedMachine::default());
    let manager = Arc::new(manager.clone());
    let began = Instant::now();
    Ports {
        numbering: Arc::new(Numbering::new(Box::new(|| Err("none".into())))),
        peers: Peers::none(),
        workload: blocking::workload(manager.clone(), machine, setting, Sink::of(&to)).unwrap(),
        manager,
        device,
        file_systems: channel().0,
        limits: channel().0,
        mps: Arc::new(Runner {
            command: String::new(),
            folder: folder.join("mps"),
            patience: Duration::default(),
            proc: Proc::at("/proc"),
            groups: Groups::NoneHere,
            to: Sink::of(&sync_channel::<Message>(1).0),
        }),
        mig: Arc::new(GpuThreads {
            library: Arc::new(Library::new(Box::new(|| Err(Error::Closed)))),
            slices: Slices {
                folder: folder.join("slices"),
                caps: "/dev/nvidia-caps".into(),
                minors: "/dev/null".into(),
                majors: "/dev/null".into(),
            },
            proc: Proc::at("/proc"),
            to: Sink::of(&sync_channel::<Message>(1).0),
            threads: Default::default(),
        }),
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
        disk: Disk::start(folder.into()).unwrap(),
        known: Known::default(),
        to,
        wall: Box::new(move || 1_795_305_600_000 + began.elapsed().as_millis() as u64),
        steady: Box::new(Instant::now),
    }
}

fn cluster(jobs: impl IntoIterator<Item = Job>) -> Recorded {
    let jobs = jobs.into_iter().map(|job| (job.id.clone(), job)).collect();
    Recorded::new(Table {
        node: NodeRecord {
            name: NODE.into(),
            gpus: vec![("h100".into(), GPUS.into())],
            ..NodeRecord::default()
        },
        jobs,
        config_folder: Some("/nowhere".into()),
        ..Table::default()
    })
}

fn nth(gpu: u8) -> NodeGpu {
    NodeGpu::try_from(gpu).expect("a GPU")
}

fn xid(gpu: u8) -> Message {
    Message::Health(Event::Xid {
        gpu: nth(gpu),
        code: 48,
        gpu_instance: None,
        compute_instance: None,
        pid: None,
    })
}

#[test]
fn a_fault_is_published_then_its_job_is_requeued_and_let_go() {
    let manager = cluster([job(7, 2), job(8, 3)]);
    let mut node = Node::new(&manager);
    node.until("both jobs are known", |node| node.jobs() == [7, 8]);
    node.take(xid(2));
    node.until("the GPU is back", |node| {
        let over = |action: &Action| matches!(action, Action::Publish(part) if part.is_empty());
        node.manager.done().iter().any(over)
    });
    let mut done = manager.done();
    // It is let go as often as it takes until it starts, and may be once more by now.
    done.dedup();
    let over = |action: &Action| matches!(action, Action::Publish(part) if part.is_empty());
    let back = done.iter().position(over).expect("the GPU is back");
    done.truncate(back + 1);
    let told: Vec<String> = done
        .iter()
        .map(|action| match action {
            Action::Publish(part) => {
                let out: Vec<u8> = part.out.iter().map(|gpu| u8::from(*gpu)).collect();
                format!("publish {out:?}")
            }
            Action::Requeue { job } => format!("requeue {job}"),
            Action::Release { job, .. } => format!("release {job}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        ["publish [2]", "requeue 7", "release 7", "publish []"]
    );
    assert_eq!(
        manager.with(|table| table.jobs[&8.into()].state),
        JobState::Running
    );
    assert_eq!(node.jobs(), [8]);
}

#[test]
fn a_workload_manager_that_is_away_is_told_once_it_answers() {
    let manager = cluster([job(7, 2)]);
    let mut node = Node::new(&manager);
    node.until("the job is known", |node| node.jobs() == [7]);
    manager.with(|table| table.no_answer = Some("no answer".into()));
    node.take(xid(2));
    node.until("it is asked", |node| {
        !node.manager.with(|table| table.calls.is_empty())
    });
    assert_eq!(manager.done(), []);
    manager.with(|table| table.no_answer = None);
    node.until("the job is requeued", |node| {
        node.manager
            .done()
            .contains(&Action::Requeue { job: 7.into() })
    });
}

#[test]
fn a_job_without_gpus_that_an_option_needs_is_known_to_its_end() {
    let without = |id| Job {
        allocations: Vec::new(),
        ..job(id, 0)
    };
    let manager = cluster([job(7, 2), without(8), without(9)]);
    let mut node = Node::new(&manager);
    let step = |job| StepId {
        job,
        step: StepId::BATCH,
    };
    for (job, reason) in [(8, Reason::Devices), (9, Reason::Option)] {
        node.ask(Request::StepStart {
            id: step(job.into()),
            uid: 1000,
            gpus: Vec::new(),
            asked: Asked::default(),
            mig: None,
            switchable: false,
            memory: None,
            reason,
        });
    }
    assert_eq!(node.jobs(), [9]);
    // What the workload manager says of all jobs leaves it there.
    node.until("job 7 is known", |node| node.jobs().contains(&7));
    let jobs = node.status().jobs;
    let nine = jobs.iter().find(|job| job.job == 9.into()).unwrap();
    assert!(nine.gpus.is_empty() && nine.steps == [StepId::BATCH]);
    node.ask(Request::StepEnd { id: step(9.into()) });
    assert_eq!(node.jobs(), [7]);
}
