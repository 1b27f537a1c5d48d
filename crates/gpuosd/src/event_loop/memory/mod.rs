//! Memory in tiers: what `gpuos_memory::lease` is told, and what is done of what it wants.
//!
//! What a job may have follows from slurmctld's record and NVIDIA's library; that it has the option at all, from root's report of its
//! steps. A program's word counts only for how much of that it wants.
//!
//! - `early`: who asks before it is known which GPUs there are,
//! - [`feed`]: what the broker is told of the machine, and of shares,
//! - [`figures`]: what programs say of their memory, held against what it can be,
//! - [`status`]: what clients see of it all,
//! - `jobs`: the broker's numbers of jobs,
//! - `without`: who uses a GPU and has asked for nothing,
//! - `wants`: what is done of what the broker wants, and who hears nothing of it for now.

mod early;
pub mod feed;
pub mod figures;
mod jobs;
pub mod status;
mod wants;
mod without;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::StepMemory;
use gpuos_memory::lease::{
    At, Broker, ClientId, Config, Effect as Want, GpuId, Input, JobId as Number, JobSpec, Record,
    Refuge, Supply,
};
use gpuos_memory::protocol::{FromProgram, Uuid};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::job::{Job, JobState};

use self::early::{Early, Wish};
use self::feed::Machine;
use self::figures::Told;
use super::effect::{Effect, Effects, Then};
use super::facts::Facts;
use crate::memory::line::Line;
use crate::memory::programs::{self, Member, Members, Program};
use crate::memory::watch::Order;
use crate::memory::{Notice, Nvme, Saved};

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
    /// Which of its runs it is, by how often it was requeued; `None`: it was restored, and nobody has said since.
    restarts: Option<u32>,
    /// What it had then, until that is known.
    before: Option<jobs::Before>,
    /// slurmctld has suspended it, by its last word.
    suspended: bool,
    /// slurmctld would requeue it.
    may_requeue: bool,
}

/// What a process asked for of a GPU.
#[derive(Clone, Copy, Debug)]
struct Asked {
    bytes: u64,
    /// Not all of it has room in the GPU.
    tiers: bool,
    /// It was asked for with [`SLACK`].
    slack: bool,
    /// Since when a refusal is put off, as other processes of the job may be dead without gpuosd knowing it.
    put_off: Option<Instant>,
}

impl Asked {
    /// What the broker is asked.
    fn ask(&self, client: ClientId, program: &Program, gpu: GpuId) -> Input {
        Input::Ask {
            client,
            job: job_of(program),
            gpu,
            bytes: self
                .bytes
                .saturating_add(if self.slack { SLACK } else { 0 }),
        }
    }
}

/// A process with a lease.
#[derive(Debug)]
struct Holder {
    program: Program,
    line: Option<Line>,
    /// What it asked for of each GPU.
    asked: BTreeMap<GpuId, Asked>,
    pinned: bool,
    ending: bool,
    /// The driver has parked it, which the audit log has.
    by_driver: bool,
    /// Bytes that went to host memory and came back when it was parked.
    parked: [u64; 2],
    parks: u64,
    /// When it was told to park, to come back or to demote, and has not; then slurmctld was not asked yet whether its job is suspended.
    told: Option<Instant>,
    /// What it says of its memory.
    says: Told,
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
    /// Processes for which the driver is called just now.
    in_call: BTreeSet<ClientId>,
    /// Why the driver was called for a process in vain, the last time, as the audit log has it.
    in_vain: BTreeMap<ClientId, String>,
    /// What is to be done when the journal of that revision is on the disk.
    pending: VecDeque<(u64, Want)>,
    revision: u64,
    saved: u64,
    due: Option<Instant>,
    host: u64,
    nvme: Nvme,
    /// Bytes a second that a link between GPU and host is taken to have.
    link: u64,
    /// How long a turn is at least where gpuos.toml says nothing of it, in ms.
    turn_ms: u64,
    /// Memory of GPUs as NVIDIA's library shows it.
    cards: BTreeMap<GpuId, u64>,
    /// What is known of the machine.
    machine: Machine,
    /// Who has asked before it was known which GPUs there are.
    early: Early,
}

impl Memory {
    /// Begins with what was saved.
    pub fn restore(
        saved: Saved,
        members: Members,
        (host, nvme): (u64, Nvme),
        config: Config,
    ) -> Memory {
        let records = saved.journal.iter().map(|line| line.parse::<Record>());
        // A record of another release is of no use; whoever has that lease asks again.
        let records: Vec<Record> = records.filter_map(Result::ok).collect();
        Memory {
            link: config.rate,
            turn_ms: config.quantum_ms,
            cards: BTreeMap::new(),
            machine: Machine::default(),
            early: Early::default(),
            broker: Broker::new(config),
            members,
            supply: Supply::default(),
            restored: Some(records),
            steps: saved.steps.into_iter().collect(),
            jobs: BTreeMap::new(),
            holders: BTreeMap::new(),
            in_call: BTreeSet::new(),
            in_vain: BTreeMap::new(),
            pending: VecDeque::new(),
            revision: 0,
            saved: 0,
            due: None,
            host,
            nvme,
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
        self.suspended(record, on, fx);
        let mine = self.steps.iter().filter(|(id, _)| id.job == record.id);
        let mine: Vec<StepMemory> = mine.map(|(_, memory)| *memory).collect();
        if mine.is_empty() {
            return;
        }
        let number = jobs::number(&record.id);
        self.next_run(record, on, fx);
        if let Some(lent) = self.jobs.get_mut(&record.id)
            && lent.may_requeue != record.may_requeue
        {
            lent.may_requeue = record.may_requeue;
            let told = Input::MayRequeue(number, record.may_requeue);
            self.step(told, on, fx);
        }
        if self.restored.is_some() || self.jobs.contains_key(&record.id) || !record.is_running() {
            return;
        }
        let timeslice = mine.iter().any(|memory| memory.timeslice);
        let bytes = mine.iter().map(|memory| memory.bytes_per_gpu).max();
        // In turns are GPUs that slurmctld has given in parts, and no others.
        let given = match timeslice {
            true => record.shared_on(on.node),
            false => record.whole_on(on.node),
        };
        let has = |gpu: &&(GpuId, u64)| given.contains(gpu.0.0 as usize);
        let cards = self.cards.iter().map(|(gpu, bytes)| (*gpu, *bytes));
        let gpus: Vec<(GpuId, u64)> = cards.filter(|gpu| has(&gpu)).collect();
        let Some(hbm) = gpus.iter().map(|(_, bytes)| *bytes).min() else {
            return;
        };
        let share = self.machine.share_of(record);
        // GRES without a name there is none.
        let nvme = record.count_on(on.node, &self.nvme.counted.0);
        let spec = JobSpec {
            job: number,
            gpus: gpus.into_iter().map(|(gpu, _)| gpu).collect(),
            hbm_per_gpu: hbm,
            host: record.memory_on(on.node) << 20,
            nvme: nvme.min(1 << 30) << 30,
            bytes_per_gpu: bytes.unwrap_or(0).saturating_add(SLACK),
            timeslice,
            account: share.map(feed::account),
            rank: share.map_or(0, |share| share.rank.into()),
            guaranteed: 0,
        };
        let lent = Lent {
            uid: record.uid,
            spec: Some(spec),
            restarts: Some(record.restarts),
            before: None,
            suspended: false,
            may_requeue: record.may_requeue,
        };
        self.jobs.insert(record.id.clone(), lent);
        self.publish();
    }

    /// A job of PBS that runs again here before its run of before was known to be over: what that had is not this one's. Slurm counts the next
    /// run while the one before still ends, and says by its steps when it has ended.
    fn next_run(&mut self, record: &Job, on: &Facts<'_>, fx: &mut Effects) {
        if record.id.number().is_some() || record.state != JobState::Running {
            return;
        }
        let Some(lent) = self.jobs.get_mut(&record.id) else {
            return;
        };
        let before = lent.restarts.replace(record.restarts);
        let moved = lent
            .before
            .take()
            .is_some_and(|had| !had.is_of(record, on.node));
        if moved || before.is_some_and(|before| before != record.restarts) {
            self.jobs.remove(&record.id);
            self.step(Input::JobGone(jobs::number(&record.id)), on, fx);
        }
    }

    /// slurmctld told all jobs of the node, or the last step of one has ended: others than those in the table are gone.
    pub fn keep_jobs(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        self.steps
            .retain(|id, _| on.jobs.jobs.contains_key(&id.job));
        let gone = |job: &&JobId| !on.jobs.jobs.contains_key(*job);
        let gone: Vec<JobId> = self.jobs.keys().filter(gone).cloned().collect();
        for job in gone {
            self.jobs.remove(&job);
            self.step(Input::JobGone(jobs::number(&job)), on, fx);
        }
        self.publish();
    }

    /// The thread of a connection, or the one that looks after processes, tells something.
    pub fn on_notice(&mut self, told: Notice, on: &Facts<'_>, fx: &mut Effects) {
        self.supply(on, fx);
        match told {
            Notice::Came(program, line) => self.came(program, line, on, fx),
            Notice::Pressure(seen) => self.on_pressure(*seen, on, fx),
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
                    self.early.forget(client);
                    fx.push(Effect::Programs(Order::Watch(client)));
                    self.step(Input::Away(client), on, fx);
                }
            }
            Notice::Stopped(client, is) => self.signalled(client, is, on, fx),
            Notice::Called(client, way, done) => self.called(client, way, done, on, fx),
            Notice::Gone(client) => {
                if let Some(holder) = self.holders.remove(&client) {
                    holder.line.iter().for_each(Line::end);
                }
                self.in_vain.remove(&client);
                self.step(Input::Gone(client), on, fx);
                self.ask_again(|_| true, on, fx);
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
        self.look(on, fx);
        if self.due.is_none_or(|due| on.now.at < due) {
            return;
        }
        self.due = Some(on.now.at + TICK);
        for (client, wish) in self.early.take(!on.gpus.is_empty(), on.now.at) {
            self.ask(client, wish, on, fx);
        }
        self.ask_of_the_slow(on, fx);
        self.ask_again(|since| wants::is_late(since, on), on, fx);
        self.step(Input::Tick, on, fx);
    }

    fn is_current(&self, client: ClientId, number: u64) -> bool {
        let line = self.holders.get(&client).and_then(|it| it.line.as_ref());
        line.is_some_and(|line| line.number == number)
    }

    fn came(&mut self, program: Program, line: Line, on: &Facts<'_>, fx: &mut Effects) {
        let client = programs::client(program.pid, program.started);
        self.forget_budgets(client);
        self.early.forget(client);
        let holder = self.holders.entry(client).or_insert_with(|| Holder {
            program,
            line: None,
            asked: BTreeMap::new(),
            pinned: false,
            ending: false,
            by_driver: false,
            parked: [0; 2],
            parks: 0,
            told: None,
            says: Told::new(on.now.at),
        });
        if let Some(older) = holder.line.replace(line) {
            older.end();
            // That the older one is lost comes later, and counts no more. Who returns was away.
            self.step(Input::Away(client), on, fx);
        }
    }

    fn said(&mut self, client: ClientId, said: FromProgram, on: &Facts<'_>, fx: &mut Effects) {
        self.is_awake(client, fx);
        let Some(holder) = self.holders.get_mut(&client) else {
            return;
        };
        match said {
            FromProgram::Ask { gpu, bytes, hbm } => self.asks(client, (gpu, bytes, hbm), on, fx),
            FromProgram::Return { parked } => {
                let at = match parked {
                    true => At::Parked(Refuge::Host),
                    false => At::Gpu,
                };
                self.step(Input::Return(client, at), on, fx);
            }
            FromProgram::ReturnStowed => {
                let at = At::Parked(Refuge::Nvme);
                self.step(Input::Return(client, at), on, fx);
            }
            FromProgram::NotParked => self.step(Input::NotParked(client), on, fx),
            FromProgram::Demoted { bytes } => {
                holder.told = None;
                self.step(Input::Demoted { client, bytes }, on, fx);
            }
            FromProgram::Idle => self.step(Input::Idle(client), on, fx),
            FromProgram::Busy => self.step(Input::Busy(client), on, fx),
            FromProgram::Parked { took_ms, moved, .. } => {
                holder.told = None;
                holder.parked[0] = holder.parked[0].saturating_add(moved);
                holder.parks += 1;
                self.step(Input::Parked { client, took_ms }, on, fx);
            }
            FromProgram::Back { took_ms, moved } => {
                holder.told = None;
                holder.parked[1] = holder.parked[1].saturating_add(moved);
                self.step(Input::Back { client, took_ms }, on, fx);
            }
            FromProgram::Moved { down, up } => holder.says.moved(on.now.at, [down, up]),
            FromProgram::Figures(figures) => {
                let view = self.broker.view().clients.into_iter();
                let own = view.filter(|one| one.client == client);
                let leases = own.flat_map(|one| one.leases);
                let bytes = leases.map(|(_, lease)| lease.hbm + lease.host).sum();
                holder.says.figures(on.now.at, figures, bytes);
            }
            FromProgram::Working => self.step(Input::Working(client), on, fx),
            FromProgram::Pinned => {
                holder.pinned = true;
                let bytes = self.machine.used.get(&client).copied().unwrap_or(0);
                self.step(Input::Pinned { client, bytes }, on, fx);
            }
            // What follows is the end of the connection; a second hello says nothing.
            FromProgram::Bye | FromProgram::Hello { .. } => {}
        }
    }

    /// A program asks; it waits where it is not known yet which GPUs there are.
    fn asks(&mut self, client: ClientId, wish: Wish, on: &Facts<'_>, fx: &mut Effects) {
        if !on.gpus.is_empty() {
            return self.ask(client, wish, on, fx);
        }
        self.early.keep(client, wish, on.now.at);
        self.due.get_or_insert(on.now.at + TICK);
    }

    fn ask(&mut self, client: ClientId, (gpu, bytes, hbm): Wish, on: &Facts<'_>, fx: &mut Effects) {
        let found = on.gpus.found().iter();
        let found = found.filter(|found| Uuid::parse(&found.uuid) == Some(gpu));
        let number = found.filter_map(|found| found.number.gres()).next();
        let Some((holder, number)) = self.holders.get_mut(&client).zip(number) else {
            let why = "memory in tiers was asked for on a GPU that gpuosd does not know, or on a slice of one";
            return self.refuse(client, why);
        };
        let gpu = GpuId(number.index() as u32);
        let of = self.jobs.get_mut(&holder.program.job);
        let may_requeue = of.as_ref().is_none_or(|job| job.may_requeue);
        let told = of.and_then(|job| job.spec.take()).map(|mut spec| {
            // The driver keeps some of what NVML shows. Who says less than that has more in host memory, as far as his job goes.
            if !spec.timeslice && hbm > 0 {
                spec.hbm_per_gpu = spec.hbm_per_gpu.min(hbm);
            }
            Input::Job(spec)
        });
        let job = job_of(&holder.program);
        let total = self.supply.gpus.iter().find(|(of, _)| *of == gpu);
        // Only who has something in host memory needs room there to move.
        let tiers = total.is_some_and(|(_, total)| bytes > hbm.min(*total));
        let asked = Asked {
            bytes,
            tiers,
            slack: tiers,
            put_off: None,
        };
        holder.asked.insert(gpu, asked);
        let ask = asked.ask(client, &holder.program, gpu);
        let may = told
            .is_some()
            .then_some(Input::MayRequeue(job, may_requeue));
        for input in told.into_iter().chain(may).chain([ask]) {
            self.step(input, on, fx);
        }
    }

    /// Tells the broker, and does what it wants, now or when its journal is on the disk.
    fn step(&mut self, input: Input, on: &Facts<'_>, fx: &mut Effects) {
        let wants = self.broker.step(on.now.running_ms, input);
        // Who works where is in the journal: nothing else changes what links are shared by.
        let changed = wants.iter().any(|want| matches!(want, Want::Journal(_)));
        if changed {
            self.revision += 1;
            fx.push(Effect::Save(Then::Memory(self.revision)));
        }
        let revision = self.revision;
        self.pending
            .extend(wants.into_iter().map(|want| (revision, want)));
        let any = !self.holders.is_empty() || !self.broker.view().clients.is_empty();
        self.due = any.then(|| self.due.unwrap_or(on.now.at + TICK));
        self.go_on(on, fx);
        if changed {
            self.share_links(on);
        }
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

/// The broker's number of a program's job.
fn job_of(program: &Program) -> Number {
    jobs::number(&program.job)
}

/// A GPU as programs call it.
fn uuid(gpu: GpuId, on: &Facts<'_>) -> Option<Uuid> {
    let mut found = on.gpus.found().iter();
    let found = found.find(|found| Some(found.number) == number(gpu))?;
    Uuid::parse(&found.uuid)
}

/// A GPU as people call it.
fn number(gpu: GpuId) -> Option<NodeGpu> {
    GresGpu::new(gpu.0 as usize).map(NodeGpu::Gres)
}
