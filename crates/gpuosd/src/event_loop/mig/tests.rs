//! Steps that wait for MIG instances, without threads: what is told to the subsystem, and what it wants done.

use std::sync::mpsc::{Receiver, sync_channel};

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::NodeHealth;
use gpuos_core::mig::Shown;
use gpuos_core::mig::carve::Effect as Call;
use gpuos_core::wire::{MigAsk, Reply};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet};
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Allocation, JobState, Unplaced};

use super::*;
use crate::event_loop::client::Client;
use crate::event_loop::effect::{Now, Starting, Then};
use crate::event_loop::facts::Node;
use crate::event_loop::gpus::Gpus;
use crate::event_loop::health::Health;
use crate::event_loop::reports::Reports;
use crate::event_loop::scheduler::Scheduler;
use crate::event_loop::troubles::Troubles;
use crate::mig::Task;

/// GPU 1 is divided, with bits 0 to 3.
const CONFIG: &str = "[[mig.board]]\nname = \"a30\"\nprofiles = [\n  \
    { id = 14, name = \"1g.6gb\", compute = 1, memory-mib = 5952, most = 4, size = 1, starts = [0, 1, 2, 3] },\n  \
    { id = 5, name = \"2g.12gb\", compute = 2, memory-mib = 11968, most = 2, size = 2, starts = [0, 2] },\n]\n\
    [[mig.pool]]\nnodes = \"n1\"\ngpus = \"1\"\nboard = \"a30\"\n";
const GPU: NvmlIndex = NvmlIndex::new(1).unwrap();

/// The subsystem, what of the node it looks at, and what is done at once: looks, slice files, the disk.
struct World {
    mig: Mig,
    node: Node,
    start: Instant,
    ms: u64,
    /// What NVML shows.
    shown: Vec<Shown>,
    /// It shows nothing.
    silent: bool,
    /// What the driver is asked to do.
    calls: Vec<Call>,
    /// What slurmctld is asked.
    asked: Vec<WorkloadTask>,
    /// Lines of the audit log.
    log: Vec<String>,
}

impl World {
    /// With a pool in gpuos.toml.
    fn new() -> World {
        let mut world = World::unread(Journal::default());
        world.read();
        world
    }

    /// gpuos.toml is read, and the workload manager tells its jobs: job 7 where it has a grant.
    fn read(&mut self) {
        let config = Config::parse(CONFIG, "gpuos.toml").unwrap();
        self.tell(|mig, on, fx| mig.configured(&config.mig, on, fx));
        let start = self.start;
        let jobs: Vec<Record> = match self.mig.records.grants.contains_key(&7.into()) {
            true => vec![unplaced()],
            false => Vec::new(),
        };
        self.tell(|mig, on, fx| mig.jobs_received(&jobs, start, on, fx));
    }

    /// With a gpuos.toml that was not read since gpuosd has started.
    fn unread(journal: Journal) -> World {
        let (start, name) = (Instant::now(), "n1".to_owned());
        let interval = Duration::from_secs(1);
        World {
            mig: Mig::restore(journal, start),
            node: Node {
                interval,
                health: Health::restore(NodeHealth::new(0, 0)),
                gpus: Gpus::new(interval, start),
                reports: Reports::restore(&name, Default::default()),
                scheduler: Scheduler::new(Vec::new(), false, start),
                troubles: Troubles::default(),
                name,
            },
            start,
            ms: 0,
            shown: Vec::new(),
            silent: false,
            calls: Vec::new(),
            asked: Vec::new(),
            log: Vec::new(),
        }
    }

    fn tell(&mut self, tell: impl FnOnce(&mut Mig, &Facts<'_>, &mut Effects)) {
        let now = Now {
            at: self.start + Duration::from_millis(self.ms),
            running_ms: self.ms,
            wall_ms: self.ms,
        };
        let mut fx = Effects::default();
        tell(&mut self.mig, &self.node.facts(now), &mut fx);
        for effect in fx {
            self.carry_out(effect);
        }
    }

    /// The thread of the GPU has done something.
    fn told(&mut self, told: Notice) {
        self.tell(|mig, on, fx| mig.on_notice(GPU, told, on, fx));
        self.tell(|mig, on, fx| mig.finish(on, fx));
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Mig(GPU, Task::Probe) => {
                let view = Box::new(View {
                    shown: self.shown.clone(),
                    ..View::default()
                });
                let view = match self.silent {
                    true => Err("NVML is silent".to_owned()),
                    false => Ok(view),
                };
                self.told(Notice::Shown(view));
            }
            Effect::Mig(GPU, Task::Files(layout)) => self.told(Notice::Files(layout, Ok(()))),
            Effect::Mig(GPU, Task::Call(call)) => self.calls.push(call),
            Effect::Save(Then::Mig(gpu, revision)) => {
                assert_eq!(gpu, GPU);
                self.told(Notice::Saved(revision, Ok(())));
            }
            Effect::Save(Then::MigCounted(job)) => self.tell(|mig, _, fx| mig.counted(&job, fx)),
            Effect::Carve(gpu) => self.tell(|mig, on, fx| mig.carve(gpu, on, fx)),
            Effect::Ask(task) | Effect::AskFirst(task) => self.asked.push(task),
            Effect::Log(audit, _) => self.log.push(audit.text),
            Effect::Reply(client, reply) => client.answer(reply),
            // Nothing is to be set for it.
            Effect::Prepare(one) => one.client.answer(Reply::Prepared {
                notes: Vec::new(),
                environment: one.environment,
                failed: None,
            }),
            _ => {}
        }
    }

    /// A step of job 7 with these slices.
    fn step(&mut self, step: u32, request: &str, slices: &[u8]) -> Receiver<Reply> {
        let (to, from) = sync_channel(1);
        let starting = Starting {
            id: StepId {
                job: 7.into(),
                step,
            },
            gpus: Vec::new(),
            asked: Default::default(),
            mig: Some(MigAsk {
                request: request.into(),
                slices: slices.to_vec(),
                tasks: 1,
            }),
            switchable: false,
            memory: None,
            client: Client::new(to),
        };
        self.tell(|mig, on, fx| mig.step(starting, on, fx));
        from
    }

    /// slurmctld answers about job 7, for which it was asked.
    fn record(&mut self, record: Option<&Record>) {
        assert_eq!(
            std::mem::take(&mut self.asked),
            [WorkloadTask::Job(7.into())]
        );
        self.mig.job_asked(&7.into());
        self.tell(|mig, on, fx| mig.job_received(&7.into(), record, on, fx));
    }

    /// The driver has done what it was asked to do.
    fn done(&mut self, answer: Answer) {
        self.told(Notice::Done(answer));
    }

    fn seconds(&mut self, count: u64) {
        for _ in 0..count {
            self.ms += 1000;
            self.tell(|mig, on, fx| mig.tick(on, fx));
        }
    }
}

fn record(bits: u64, requeue: bool) -> Record {
    Record {
        id: 7.into(),
        state: JobState::Running,
        nodes: vec!["n1".into()],
        may_requeue: requeue,
        allocations: vec![Allocation {
            nodes: vec!["n1".into()],
            gpus: GpuSet::EMPTY,
            slices: GpuSet(bits),
            shared: GpuSet::EMPTY,
            memory_mib: 0,
            others: Vec::new(),
        }],
        ..Record::default()
    }
}

/// The same where the workload manager has only counted the slices.
fn unplaced() -> Record {
    Record {
        unplaced: Some(Unplaced {
            request: "2g.12gb".into(),
            gpus: NvmlSet::EMPTY.with(GPU),
            compute: 2,
            memory: 2,
            chunks: 0,
        }),
        ..record(0, true)
    }
}

fn refused(reply: &Receiver<Reply>) -> String {
    match reply.try_recv() {
        Ok(Reply::Refused { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

/// A world in which job 7 has an instance for its first step.
fn served() -> World {
    let world = serve(&[2, 3], &record(0b1100, true));
    assert_eq!(world.shown[0].placement.start, 2);
    world
}

/// The same with slices that the step names, and what the workload manager says of the job.
fn serve(slices: &[u8], record: &Record) -> World {
    let mut world = World::new();
    let step = world.step(0, "2g.12gb", slices);
    assert_eq!(world.calls, [], "nothing before slurmctld's word");
    world.record(Some(record));
    let calls = std::mem::take(&mut world.calls);
    let [
        Call::MakeGpu {
            profile: 5,
            placement,
        },
    ] = calls[..]
    else {
        panic!("{calls:?}");
    };
    assert_eq!(placement.size, 2);
    world.shown.push(Shown {
        gi: 4,
        profile: 5,
        placement,
        computes: vec![(0, "MIG-1".into())],
        busy: false,
    });
    world.done(Answer::GpuMade { gi: 4 });
    assert_eq!(
        std::mem::take(&mut world.calls),
        [Call::MakeCompute { gi: 4 }]
    );
    assert!(step.try_recv().is_err(), "not ready yet");
    let uuid = "MIG-1".to_owned();
    world.done(Answer::ComputeMade { ci: 0, uuid });
    match step.try_recv() {
        Ok(Reply::Prepared {
            environment,
            failed: None,
            ..
        }) => {
            assert_eq!(environment["CUDA_VISIBLE_DEVICES"], "MIG-1");
        }
        other => panic!("{other:?}"),
    }
    world
}

#[test]
fn a_step_gets_its_instance_once_slurm_has_given_it_and_the_driver_has_made_it() {
    let mut world = served();
    let has = "job 7 has 2g.12gb in memory slices 2-3 of GPU 1: MIG-1";
    assert_eq!(world.log, [has]);
    // Another step beside it has what is there at once, and slurmctld is not asked.
    let beside = world.step(1, "2g.12gb", &[2, 3]);
    assert!(matches!(beside.try_recv(), Ok(Reply::Prepared { .. })));
    assert_eq!((&world.asked[..], &world.calls[..]), (&[][..], &[][..]));
    // One with slices of somebody else is refused.
    let other = world.step(2, "1g.6gb", &[0]);
    let why = "none of the memory slices that step 2 names is one that Slurm gave to job 7";
    assert_eq!(refused(&other), why);
}

#[test]
fn after_the_last_step_slurm_is_asked_ever_more_seldom_whether_the_job_is_gone() {
    let mut world = served();
    world.tell(|mig, on, _| {
        mig.ended(
            &StepId {
                job: 7.into(),
                step: 0,
            },
            on,
        )
    });
    let mut asked = Vec::new();
    for second in 1..=60 {
        world.seconds(1);
        if !world.asked.is_empty() {
            asked.push(second);
            world.record(Some(&record(0b1100, true)));
        }
    }
    assert_eq!(asked, [1, 2, 4, 8, 16, 31, 46]);
    assert_eq!(world.calls, []);
    world.seconds(1);
    world.record(None);
    assert_eq!(world.calls, [Call::DestroyCompute { gi: 4 }]);
}

#[test]
fn a_step_to_which_slurm_has_given_nothing_is_refused() {
    for record in [None, Some(record(0, true))] {
        let mut world = World::new();
        let step = world.step(0, "2g.12gb", &[0, 1]);
        world.record(record.as_ref());
        let why = "Slurm has not given job 7 any memory slice of this node";
        assert_eq!(refused(&step), why);
        assert_eq!(world.calls, []);
    }
}

#[test]
fn a_step_with_a_whole_gpu_waits_for_the_library_while_gpuos_toml_was_not_read() {
    let journal = Journal {
        switchable: [(GPU, GresGpu::new(4).unwrap())].into(),
        ..Journal::default()
    };
    let mut world = World::unread(journal);
    let (to, reply) = sync_channel(1);
    let starting = Starting {
        id: StepId {
            job: 7.into(),
            step: 0,
        },
        gpus: vec![4],
        asked: Default::default(),
        mig: None,
        switchable: true,
        memory: None,
        client: Client::new(to),
    };
    world.tell(|mig, on, fx| mig.step(starting, on, fx));
    // Another part of gpuosd has asked about the job. What is MIG-switchable of its GPUs cannot be told from the record.
    world.mig.job_asked(&7.into());
    world.tell(|mig, on, fx| mig.job_received(&7.into(), Some(&record(0, true)), on, fx));
    assert!(reply.try_recv().is_err());
    // A job that is not here has none.
    world.tell(|mig, on, fx| mig.job_received(&7.into(), None, on, fx));
    assert_eq!(
        refused(&reply),
        "Slurm has not given job 7 these GPUs of this node"
    );
}

#[test]
fn an_answer_that_is_older_than_the_step_is_asked_for_once_more() {
    let mut world = World::new();
    let step = world.step(0, "2g.12gb", &[0, 1]);
    world.asked.clear();
    // It was asked for before the step came: of the job's run before, perhaps.
    world.tell(|mig, on, fx| mig.job_received(&7.into(), None, on, fx));
    assert!(step.try_recv().is_err());
    world.record(Some(&record(0b11, true)));
    assert_eq!(world.calls.len(), 1);
}

/// Whether a job's user is told something, as he is before the job is requeued or ended.
fn tells(task: &WorkloadTask) -> bool {
    matches!(task, WorkloadTask::Act(Action::Tell { .. }, _))
}

#[test]
fn a_driver_that_refuses_has_the_job_requeued_once_that_is_on_the_disk() {
    for (requeue, action) in [
        (true, Action::Requeue { job: 7.into() }),
        (
            false,
            Action::Kill {
                job: 7.into(),
                step: None,
            },
        ),
    ] {
        let mut world = World::new();
        let step = world.step(0, "2g.12gb", &[0, 1]);
        world.record(Some(&record(0b11, requeue)));
        let why = "no room".to_owned();
        world.done(Answer::Refused { why });
        match step.try_recv() {
            Ok(Reply::Prepared {
                failed: Some(why), ..
            }) => assert!(why.contains("no room")),
            other => panic!("{other:?}"),
        }
        let act = WorkloadTask::Act(action.clone(), crate::queue::Why::Rule);
        let asked = std::mem::take(&mut world.asked);
        assert!(tells(&asked[0]), "{asked:?}");
        assert_eq!(asked[1..], *std::slice::from_ref(&act));
        // A slurmctld that is away is asked again, and a step that comes meanwhile is told the same.
        let away = Outcome::NoAnswer("no contact".into());
        world.tell(|mig, _, fx| mig.acted(&action, &away, fx));
        let late = world.step(1, "2g.12gb", &[0, 1]);
        assert!(matches!(
            late.try_recv(),
            Ok(Reply::Prepared {
                failed: Some(_),
                ..
            })
        ));
        world.seconds(1);
        let mut asked = std::mem::take(&mut world.asked);
        asked.retain(|task| !tells(task));
        assert_eq!(asked, [act]);
        let done = Outcome::Done(String::new());
        world.tell(|mig, _, fx| mig.acted(&action, &done, fx));
        world.seconds(1);
        assert_eq!(world.asked, []);
    }
}

#[test]
fn a_step_waits_forty_seconds_and_no_longer() {
    let mut world = World::new();
    let step = world.step(0, "2g.12gb", &[0, 1]);
    world.record(Some(&record(0b11, true)));
    world.seconds(39);
    assert!(step.try_recv().is_err());
    world.seconds(1);
    match step.try_recv() {
        Ok(Reply::Prepared {
            failed: Some(why), ..
        }) => {
            assert_eq!(
                why,
                "they were not there within 40 s: see `gpuos mig` on the node"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_running_job_keeps_slices_that_were_chosen_while_nvml_is_silent_after_a_restart() {
    let before = serve(&[], &unplaced());
    let journal = serde_json::to_string(&before.mig.journal()).unwrap();
    let mut world = World::unread(serde_json::from_str(&journal).unwrap());
    world.silent = true;
    world.read();
    let second = world.step(0, "2g.12gb", &[]);
    world.record(Some(&unplaced()));
    world.seconds(40);
    let why = refused(&second);
    assert!(why.contains("within 40 s"), "{why}");
    assert_eq!((&world.calls[..], &world.asked[..]), (&[][..], &[][..]));
    // Once NVML answers, the next one has what the job had before.
    (world.silent, world.shown) = (false, before.shown);
    world.tell(|mig, on, fx| mig.probe(GPU, on, fx));
    let third = world.step(0, "2g.12gb", &[]);
    world.record(Some(&unplaced()));
    match third.try_recv() {
        Ok(Reply::Prepared { environment, .. }) => {
            assert_eq!(environment["CUDA_VISIBLE_DEVICES"], "MIG-1");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.calls, []);
}

#[test]
fn a_running_job_whose_chosen_instance_is_gone_is_requeued() {
    let mut world = serve(&[], &unplaced());
    world.shown.clear();
    world.tell(|mig, on, fx| mig.probe(GPU, on, fx));
    let action = Action::Requeue { job: 7.into() };
    let act = WorkloadTask::Act(action, crate::queue::Why::Rule);
    assert!(tells(&world.asked[0]), "{:?}", world.asked);
    assert_eq!(world.asked[1..], [act]);
}

#[test]
fn a_start_with_chosen_slices_that_the_driver_refuses_is_only_refused() {
    let mut world = World::new();
    let step = world.step(0, "2g.12gb", &[]);
    world.record(Some(&unplaced()));
    let why = "no room".to_owned();
    world.done(Answer::Refused { why });
    assert!(refused(&step).contains("no room"));
    assert_eq!(world.asked, []);
}

#[test]
fn nothing_is_placed_on_a_gpu_that_shows_nothing_of_itself() {
    let mut world = World::unread(Journal::default());
    world.silent = true;
    world.read();
    let step = world.step(0, "2g.12gb", &[]);
    world.record(Some(&unplaced()));
    assert!(step.try_recv().is_err());
    assert!(world.mig.journal().grants.is_empty());
    world.silent = false;
    world.seconds(1);
    world.record(Some(&unplaced()));
    world.seconds(1);
    world.record(Some(&unplaced()));
    assert!(matches!(world.calls[..], [Call::MakeGpu { .. }]));
}

/// The same on any GPU of the pool.
fn anywhere(request: &str, chunks: u32) -> Record {
    Record {
        unplaced: Some(Unplaced {
            request: request.into(),
            gpus: NvmlSet::EMPTY,
            compute: 2,
            memory: 2,
            chunks,
        }),
        ..record(0, true)
    }
}

#[test]
fn slices_on_any_gpu_are_chosen_once_one_shows_what_is_on_it() {
    let mut world = World::unread(Journal::default());
    world.silent = true;
    world.read();
    let step = world.step(0, "1g.6gb", &[]);
    world.record(Some(&anywhere("1g.6gb", 2)));
    assert!(step.try_recv().is_err() && world.mig.journal().grants.is_empty());
    world.silent = false;
    world.seconds(1);
    world.record(Some(&anywhere("1g.6gb", 2)));
    world.seconds(1);
    world.record(Some(&anywhere("1g.6gb", 2)));
    assert!(matches!(world.calls[..], [Call::MakeGpu { .. }, ..]));
    let grants = world.mig.journal().grants;
    let grant = &grants[&7.into()];
    assert_eq!((grant.bits.count_ones(), grant.pieces.len()), (2, 2));
}

#[test]
fn the_room_of_the_pool_is_told_once_it_is_known_and_without_what_is_out() {
    let room = |world: &mut World| {
        let mut told = None;
        world.tell(|mig, on, _| told = mig.room(on));
        told.map(|room| (room.fits, room.compute, room.memory))
    };
    let mut world = World::unread(Journal::default());
    assert_eq!(room(&mut world), None);
    world.silent = true;
    world.read();
    assert_eq!(room(&mut world), Some((0, 2, 4)));
    world.silent = false;
    world.tell(|mig, on, fx| mig.probe(GPU, on, fx));
    assert_eq!(room(&mut world), Some((2, 2, 4)));
    // It has all compute slices.
    let mut world = serve(&[], &anywhere("2g.12gb", 1));
    assert_eq!(room(&mut world), Some((0, 2, 4)));
}
