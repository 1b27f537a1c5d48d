//! Memory in tiers: what `gpuos_memory::lease` is told, and what is done of what it wants.
//!
//! What a job may have follows from slurmctld's record and NVIDIA's library; that it has the option at all, from root's report of its
//! steps. A program's word counts only for how much of that it wants. [`status`] is what clients see of it.

pub mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::StepMemory;
use gpuos_memory::lease::{
    At, Broker, ClientId, Config, Effect as Want, GpuId, Granted, Input, JobId as Number, JobSpec,
    Place, Record, Refuge, Refused, Supply,
};
use gpuos_memory::protocol::{FromProgram, ToProgram, Uuid};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::Action;
use gpuos_workload::job::Job;

use super::effect::{Effect, Effects, Quota, Then};
use super::facts::Facts;
use crate::memory::line::Line;
use crate::memory::programs::{self, Member, Members, Program};
use crate::memory::watch::Order;
use crate::memory::{Notice, Saved};
use crate::queue::{Task, Why};

/// The broker is told of the time so often while somebody has a lease.
const TICK: Duration = Duration::from_millis(200);
/// Host memory that is asked for beside what a program sees, so that extents can change places: as much as moves at once.
const SLACK: u64 = 256 << 20;
/// Steps with the option; no node has more.
const MOST_STEPS: usize = 4096;

/// A job that may ask.
#[derive(Debug)]
struct Lent {
    uid: u32,
    /// What it may have. The broker is told when the first of its programs asks.
    spec: Option<JobSpec>,
}

/// A process with a lease.
#[derive(Debug)]
struct Holder {
    program: Program,
    line: Option<Line>,
    /// What it asked for of each GPU, and whether that was with [`SLACK`].
    asked: BTreeMap<GpuId, (u64, bool)>,
    pinned: bool,
    ending: bool,
    /// Bytes that went to host memory and came back: when it was parked, and in all by its last word.
    parked: [u64; 2],
    moved: [u64; 2],
    parks: u64,
}

/// The memory that the node lends.
pub struct Memory {
    broker: Broker,
    members: Members,
    supply: Supply,
    /// What the journal had, until it is known what the node has.
    restored: Option<Vec<Record>>,
    steps: BTreeMap<StepId, StepMemory>,
    /// Jobs that may ask.
    jobs: BTreeMap<JobId, Lent>,
    holders: BTreeMap<ClientId, Holder>,
    /// What is to be done when the journal of that revision is on the disk.
    pending: VecDeque<(u64, Want)>,
    revision: u64,
    saved: u64,
    due: Option<Instant>,
    host: u64,
}

impl Memory {
    /// Begins with what was saved.
    pub fn restore(saved: Saved, members: Members, host: u64, config: Config) -> Memory {
        let records = saved.journal.iter().map(|line| line.parse::<Record>());
        // A record of another release is of no use; whoever has that lease asks again.
        let records: Vec<Record> = records.filter_map(Result::ok).collect();
        Memory {
            broker: Broker::new(config),
            members,
            supply: Supply::default(),
            restored: Some(records),
            steps: saved.steps.into_iter().collect(),
            jobs: BTreeMap::new(),
            holders: BTreeMap::new(),
            pending: VecDeque::new(),
            revision: 0,
            saved: 0,
            due: None,
            host,
        }
    }

    /// What is saved.
    pub fn state(&self) -> Saved {
        let lines = |records: &[Record]| records.iter().map(Record::to_string).collect();
        let steps = self.steps.iter();
        Saved {
            steps: steps.map(|(id, memory)| (id.clone(), *memory)).collect(),
            journal: match &self.restored {
                Some(records) => lines(records),
                None => lines(&self.broker.journal()),
            },
        }
    }

    /// A step has started; `memory`: what it says of the option.
    pub fn started(&mut self, id: &StepId, memory: Option<StepMemory>) {
        match memory {
            Some(memory) if self.steps.len() < MOST_STEPS => {
                self.steps.insert(id.clone(), memory);
            }
            _ => drop(self.steps.remove(id)),
        }
        self.publish();
    }

    /// A step has ended.
    pub fn ended(&mut self, id: &StepId) {
        if self.steps.remove(id).is_some() {
            self.publish();
        }
    }

    /// slurmctld told of a job.
    pub fn job_received(&mut self, record: &Job, on: &Facts<'_>, fx: &mut Effects) {
        self.supply(on, fx);
        let mine = self.steps.iter().filter(|(id, _)| id.job == record.id);
        let mine: Vec<StepMemory> = mine.map(|(_, memory)| *memory).collect();
        let number = record.id.number().map(u64::from);
        let (Some(number), false) = (number, mine.is_empty()) else {
            return;
        };
        if self.restored.is_some() || self.jobs.contains_key(&record.id) || !record.is_running() {
            return;
        }
        let timeslice = mine.iter().any(|memory| memory.timeslice);
        let bytes = mine.iter().map(|memory| memory.bytes_per_gpu).max();
        let given = match timeslice {
            true => record.gpus_on(on.node),
            false => record.whole_on(on.node),
        };
        let has = |gpu: &&(GpuId, u64)| given.contains(gpu.0.0 as usize);
        let gpus: Vec<(GpuId, u64)> = self.supply.gpus.iter().filter(has).copied().collect();
        let Some(hbm) = gpus.iter().map(|(_, bytes)| *bytes).min() else {
            return;
        };
        let spec = JobSpec {
            job: Number(number),
            gpus: gpus.into_iter().map(|(gpu, _)| gpu).collect(),
            hbm_per_gpu: hbm,
            host: record.memory_on(on.node) << 20,
            bytes_per_gpu: bytes.unwrap_or(0).saturating_add(SLACK),
            timeslice,
            account: None,
            rank: 0,
            guaranteed: 0,
        };
        let (uid, spec) = (record.uid, Some(spec));
        self.jobs.insert(record.id.clone(), Lent { uid, spec });
        self.publish();
    }

    /// slurmctld told all jobs of the node, or the last step of one has ended: others than those in the table are gone.
    pub fn keep_jobs(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        self.steps
            .retain(|id, _| on.jobs.jobs.contains_key(&id.job));
        let gone = |job: &&JobId| !on.jobs.jobs.contains_key(*job);
        let gone: Vec<JobId> = self.jobs.keys().filter(gone).cloned().collect();
        for job in gone {
            self.jobs.remove(&job);
            if let Some(number) = job.number() {
                self.step(Input::JobGone(Number(number.into())), on, fx);
            }
        }
        self.publish();
    }

    /// The thread of a connection, or the one that looks after processes, tells something.
    pub fn on_notice(&mut self, told: Notice, on: &Facts<'_>, fx: &mut Effects) {
        self.supply(on, fx);
        match told {
            Notice::Came(program, line) => self.came(program, line),
            Notice::Said(client, number, said) => {
                if self.is_current(client, number) {
                    self.said(client, said, on, fx);
                }
            }
            Notice::Lost(client, number) => {
                if self.is_current(client, number)
                    && let Some(holder) = self.holders.get_mut(&client)
                {
                    holder.line = None;
                    fx.push(Effect::Programs(Order::Watch(client)));
                    self.step(Input::Away(client), on, fx);
                }
            }
            Notice::Gone(client) => {
                if let Some(holder) = self.holders.remove(&client) {
                    holder.line.iter().for_each(Line::end);
                }
                self.step(Input::Gone(client), on, fx);
            }
        }
    }

    /// The journal of this revision is on the disk, or cannot be written: then what was decided is done all the same, for a program waits,
    /// and the daemon says that it is in trouble.
    pub fn saved(&mut self, revision: u64, on: &Facts<'_>, fx: &mut Effects) {
        self.saved = self.saved.max(revision);
        self.go_on(on, fx);
    }

    /// When the broker is to be told of the time.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Time went by.
    pub fn tick(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        self.supply(on, fx);
        if self.due.is_none_or(|due| on.now.at < due) {
            return;
        }
        self.due = Some(on.now.at + TICK);
        self.step(Input::Tick, on, fx);
    }

    fn is_current(&self, client: ClientId, number: u64) -> bool {
        let line = self.holders.get(&client).and_then(|it| it.line.as_ref());
        line.is_some_and(|line| line.number == number)
    }

    fn came(&mut self, program: Program, line: Line) {
        let client = programs::client(program.pid, program.started);
        let holder = self.holders.entry(client).or_insert_with(|| Holder {
            program,
            line: None,
            asked: BTreeMap::new(),
            pinned: false,
            ending: false,
            parked: [0; 2],
            moved: [0; 2],
            parks: 0,
        });
        if let Some(older) = holder.line.replace(line) {
            older.end();
        }
    }

    fn said(&mut self, client: ClientId, said: FromProgram, on: &Facts<'_>, fx: &mut Effects) {
        let Some(holder) = self.holders.get_mut(&client) else {
            return;
        };
        match said {
            FromProgram::Ask { gpu, bytes, hbm } => self.ask(client, (gpu, bytes, hbm), on, fx),
            FromProgram::Return { parked } => {
                let at = match parked {
                    true => At::Parked(Refuge::Host),
                    false => At::Gpu,
                };
                self.step(Input::Return(client, at), on, fx);
            }
            FromProgram::Idle => self.step(Input::Idle(client), on, fx),
            FromProgram::Busy => self.step(Input::Busy(client), on, fx),
            FromProgram::Parked { took_ms, moved, .. } => {
                holder.parked[0] = holder.parked[0].saturating_add(moved);
                holder.parks += 1;
                self.step(Input::Parked { client, took_ms }, on, fx);
            }
            FromProgram::Back { took_ms, moved } => {
                holder.parked[1] = holder.parked[1].saturating_add(moved);
                self.step(Input::Back { client, took_ms }, on, fx);
            }
            FromProgram::Moved { down, up } => holder.moved = [down, up],
            FromProgram::Pinned => holder.pinned = true,
            // What follows is the end of the connection; a second hello says nothing.
            FromProgram::Bye | FromProgram::Hello { .. } => {}
        }
    }

    fn ask(
        &mut self,
        client: ClientId,
        (gpu, bytes, hbm): (Uuid, u64, u64),
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let found = on.gpus.found().iter();
        let found = found.filter(|found| Uuid::parse(&found.uuid) == Some(gpu));
        let number = found.filter_map(|found| found.number.gres()).next();
        let Some((holder, number)) = self.holders.get_mut(&client).zip(number) else {
            let why = "memory in tiers was asked for on a GPU that gpuosd does not know, or on a slice of one";
            return self.refuse(client, why);
        };
        let gpu = GpuId(number.index() as u32);
        let of = self.jobs.get_mut(&holder.program.job);
        let told = of.and_then(|job| job.spec.take()).map(|mut spec| {
            // The driver keeps some of what NVML shows. Who says less than that has more in host memory, as far as his job goes.
            if !spec.timeslice && hbm > 0 {
                spec.hbm_per_gpu = spec.hbm_per_gpu.min(hbm);
            }
            Input::Job(spec)
        });
        let job = Number(holder.program.job.number().unwrap_or(0).into());
        let total = self.supply.gpus.iter().find(|(of, _)| *of == gpu);
        // Only who has something in host memory needs room there to move.
        let tiers = total.is_some_and(|(_, total)| bytes > hbm.min(*total));
        let asked = if tiers {
            bytes.saturating_add(SLACK)
        } else {
            bytes
        };
        holder.asked.insert(gpu, (bytes, tiers));
        let ask = Input::Ask {
            client,
            job,
            gpu,
            bytes: asked,
        };
        for input in told.into_iter().chain([ask]) {
            self.step(input, on, fx);
        }
    }

    /// What the node has, whenever it is something else.
    fn supply(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let numbers = (0..).map_while(GresGpu::new);
        let gpus = numbers.zip(&on.health.gpus).filter_map(|(number, gpu)| {
            let total = gpu.last.as_ref()?.memory_total_mib?;
            Some((GpuId(number.index() as u32), total << 20))
        });
        let (host, nvme) = (self.host, 0);
        let mut now = Supply {
            gpus: gpus.collect(),
            host,
            nvme,
        };
        // One that does not answer for a moment is not gone.
        for old in &self.supply.gpus {
            if !now.gpus.iter().any(|(gpu, _)| *gpu == old.0) {
                now.gpus.push(*old);
            }
        }
        now.gpus.sort_unstable();
        if now.gpus.is_empty() || now == self.supply {
            return;
        }
        self.supply = now.clone();
        self.step(Input::Supply(now), on, fx);
        let Some(records) = self.restored.take() else {
            return;
        };
        // Reports may have come before it was known what there is.
        let waiting: BTreeSet<&JobId> = self.steps.keys().map(|id| &id.job).collect();
        for job in waiting {
            fx.ask_first(Task::Job(job.clone()));
        }
        // Nobody has looked after these processes while gpuosd was away.
        for record in &records {
            match record {
                Record::Client(it) => fx.push(Effect::Programs(Order::Watch(it.client))),
                Record::Job(spec) => {
                    // One that the table has no more is told to be gone, below.
                    let job = JobId::from(u32::try_from(spec.job.0).unwrap_or(0));
                    let uid = on.jobs.jobs.get(&job).map_or(u32::MAX, |held| held.uid);
                    self.jobs.insert(job, Lent { uid, spec: None });
                }
                Record::JobOver(_) | Record::Gone(_) => {}
            }
        }
        self.step(Input::Restored(records), on, fx);
        self.keep_jobs(on, fx);
    }

    /// Tells the broker, and does what it wants, now or when its journal is on the disk.
    fn step(&mut self, input: Input, on: &Facts<'_>, fx: &mut Effects) {
        let wants = self.broker.step(on.now.running_ms, input);
        if wants.iter().any(|want| matches!(want, Want::Journal(_))) {
            self.revision += 1;
            fx.push(Effect::Save(Then::Memory(self.revision)));
        }
        let revision = self.revision;
        self.pending
            .extend(wants.into_iter().map(|want| (revision, want)));
        let any = !self.holders.is_empty() || !self.broker.view().clients.is_empty();
        self.due = any.then(|| self.due.unwrap_or(on.now.at + TICK));
        self.go_on(on, fx);
    }

    fn go_on(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        while self
            .pending
            .front()
            .is_some_and(|(of, _)| *of <= self.saved)
        {
            if let Some((_, want)) = self.pending.pop_front() {
                self.want(want, on, fx);
            }
        }
    }

    fn want(&mut self, want: Want, on: &Facts<'_>, fx: &mut Effects) {
        let left = |deadline: u64| deadline.saturating_sub(on.now.running_ms);
        match want {
            Want::Journal(_) | Want::Move(_) | Want::NoMove(_) => {}
            Want::Answer {
                client,
                gpu,
                answer,
            } => self.answer(client, gpu, answer, on, fx),
            Want::Park {
                client,
                deadline_ms,
                ..
            } => {
                let deadline_ms = left(deadline_ms);
                self.say(client, &ToProgram::Park { deadline_ms });
            }
            Want::Turn { client, .. } => self.say(client, &ToProgram::Turn),
            Want::Demote { client, .. } => {
                // Programs keep no copies, and nothing of them goes to a disk.
                self.step(Input::Demoted { client, bytes: 0 }, on, fx);
            }
            Want::Notify { client, notice } => {
                let text = notice.to_string();
                self.say(client, &ToProgram::Note { text });
            }
            Want::End { client, why } => self.end(client, &why.to_string(), fx),
            Want::Requeue { job, why } => {
                let Ok(job) = u32::try_from(job.0).map(JobId::from) else {
                    return;
                };
                fx.note(format!("job {job}: {why}"), Some(job.clone()), None);
                fx.ask(Task::Act(Action::Requeue { job }, Why::Rule));
            }
        }
    }

    fn answer(
        &mut self,
        client: ClientId,
        gpu: GpuId,
        answer: Result<Granted, Refused>,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let Some(holder) = self.holders.get_mut(&client) else {
            return;
        };
        let asked = holder.asked.get_mut(&gpu);
        let (bytes, slack) = asked.as_deref().copied().unwrap_or((0, false));
        let found = on.gpus.found().iter();
        let mut found = found.filter(|found| Some(found.number) == number(gpu));
        let uuid = found.next().and_then(|found| Uuid::parse(&found.uuid));
        match answer {
            Ok(granted) => {
                let Some(uuid) = uuid else {
                    return;
                };
                let (refuge, wait) = self.standing(client, gpu);
                let lease = ToProgram::Lease {
                    gpu: uuid,
                    hbm: granted.hbm,
                    host: granted.host,
                    refuge,
                    wait,
                };
                self.say(client, &lease);
            }
            // Without the room for moves it may do: then extents stay where they are.
            Err(why) if slack && !matches!(why, Refused::NoJob | Refused::NotItsGpu { .. }) => {
                if let Some(asked) = asked {
                    asked.1 = false;
                }
                let job = Number(holder.program.job.number().unwrap_or(0).into());
                let ask = Input::Ask {
                    client,
                    job,
                    gpu,
                    bytes,
                };
                self.step(ask, on, fx);
            }
            Err(why) => match uuid.filter(|_| !why.is_about_all()) {
                // Its other GPUs are not concerned.
                Some(gpu) => {
                    let why = why.to_string();
                    self.say(client, &ToProgram::Without { gpu, why });
                }
                None => self.refuse(client, &why.to_string()),
            },
        }
    }

    /// Host memory that is kept for what a process has in a GPU's, and whether it has to wait for its turn. Who was told that it has it need
    /// not: a process with several GPUs asks for each.
    fn standing(&self, client: ClientId, gpu: GpuId) -> (u64, bool) {
        let view = self.broker.view();
        let Some(own) = view.clients.iter().find(|one| one.client == client) else {
            return (0, false);
        };
        let mut leases = own.leases.iter().filter(|(of, _)| *of == gpu);
        let refuge = leases.next().map_or(0, |(_, lease)| lease.refuge_host);
        let waits = matches!(own.place, Place::Parked(_) | Place::Parking(_));
        (refuge, waits)
    }

    fn end(&mut self, client: ClientId, why: &str, fx: &mut Effects) {
        fx.push(Effect::Programs(Order::Kill(client)));
        let Some(holder) = self.holders.get_mut(&client).filter(|it| !it.ending) else {
            return;
        };
        holder.ending = true;
        let (job, uid) = (holder.program.job.clone(), holder.program.uid);
        let text = format!("process {} of job {job}: {why}", holder.program.pid);
        tracing::warn!(%job, uid, "{text}");
        self.say(client, &ToProgram::Note { text: why.into() });
        fx.push(Effect::Note {
            text,
            job: Some(job),
            uid: Some(uid),
            quota: Quota::User(Some(uid)),
        });
    }

    fn refuse(&self, client: ClientId, why: &str) {
        self.say(client, &ToProgram::Refused { why: why.into() });
    }

    fn say(&self, client: ClientId, what: &ToProgram) {
        if let Some(line) = self.holders.get(&client).and_then(|it| it.line.as_ref()) {
            line.say(what);
        }
    }

    /// Tells those who answer programs which jobs there are: jobs of which the broker knows, and their steps with the option.
    fn publish(&self) {
        let one = |(job, lent): (&JobId, &Lent)| {
            let own = self.steps.keys().filter(|id| id.job == *job);
            let steps: BTreeSet<u32> = own.map(|id| id.step).collect();
            let uid = lent.uid;
            (job.clone(), Member { uid, steps })
        };
        self.members.set(self.jobs.iter().map(one).collect());
    }
}

/// A GPU as people call it.
fn number(gpu: GpuId) -> Option<NodeGpu> {
    GresGpu::new(gpu.0 as usize).map(NodeGpu::Gres)
}
