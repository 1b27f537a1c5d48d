//! The node.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_memory::lease::{
    At, Broker, ClientId, Config, GpuId, Input, JobId, JobSpec, Place, Refuge, Supply,
};
use gpuos_model::rng::Rng;

use super::process::{Process, Said};
use super::truth::Truth;

/// Errors that are planted into what stands between broker and processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    None,
    /// Nobody tells that a process has died.
    DeathUntold,
    /// A process that waits is told that it may work.
    TwoHolders,
    /// Who is deaf is not ended.
    DeadlineIgnored,
    /// What is given to a process that works is not in the journal.
    RecordMissing,
    /// Records are written after what they are about is done.
    JournalLate,
    /// A process says that it has parked before it has.
    ParkedEarly,
    /// Nobody tells that a job is over.
    OverUntold,
    /// A job is told with twice its host memory.
    HostTwice,
    /// A process parks all of it in host memory, also what should go to NVMe.
    ParksInHost,
    /// After a restart processes that are alive are taken for dead.
    TakenForDead,
    /// The driver says that it has taken a process out of its GPU, and has not.
    NotTakenOut,
    /// What the driver brings to host memory beyond a lease is not told.
    BeyondUntold,
}

/// Moments of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    Asked,
    Answered,
    ToldPark,
    Parking,
    ToldTurn,
    Returning,
    ToldDemote,
    Demoting,
    Checkpointing,
    Restoring,
}

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kill {
    Client,
    Mover,
    /// Whoever calls the driver for the daemon.
    Caller,
    Broker,
    Step,
    Node,
}

/// What is to happen.
#[derive(Clone, Debug)]
pub enum Event {
    Tick,
    /// To the broker of this generation.
    Deliver(u64, Input),
    Hear(ClientId, Said),
    Finished(ClientId, u64),
    /// What the driver began for the daemon of this generation is done.
    Driven(ClientId, u64, u64),
    Phase(ClientId, u64),
    Die(ClientId),
    BrokerUp,
    Connect(ClientId),
    JobGone(JobId),
}

/// What came about, so that one sees that something is tried.
#[derive(Default, Debug, Clone)]
pub struct Seen {
    pub answers: u64,
    pub refused: u64,
    pub parks: u64,
    pub stowed: u64,
    pub turns: u64,
    pub checkpoints: u64,
    pub restores: u64,
    pub demoted: u64,
    pub late: u64,
    pub ended: BTreeMap<String, u64>,
    pub requeued: u64,
    pub crashes: u64,
    pub finished: u64,
    pub most_waited: u64,
}

/// The node.
pub struct World {
    pub config: Config,
    pub rng: Rng,
    pub now: u64,
    pub broker: Option<Broker>,
    pub truth: Truth,
    pub processes: BTreeMap<ClientId, Process>,
    pub seen: Seen,
    pub mutant: Mutant,
    /// Kill this at that moment, once it has come so often.
    pub plan: Option<(Kill, Moment, u64)>,
    /// Of 1000 effects, before so many the broker dies.
    pub crashes: u64,
    /// Moves take so long: ms for a GiB.
    pub ms_per_gib: u64,
    /// From when on all that is said is printed: `GPUOS_LEASE_TRACE`, in ms.
    pub traces: Option<u64>,
    /// Nobody who has work waits for longer, in ms.
    pub patience: u64,
    /// NVMe is slow for what is demoted, and jobs are short of their own memory.
    pub slow: bool,
    /// Processes have no work now and then.
    pub idles: bool,
    /// Of 1000 processes so many cannot be moved by themselves, and the driver fails with some of them, unless it is all.
    pub pins: u64,
    /// Processes of jobs that are over, as the workload manager has it.
    pub over: BTreeSet<JobId>,
    pub journal: Vec<String>,
    pub generation: u64,
    pub queue: BTreeMap<(u64, u64), Event>,
    pub number: u64,
    pub next_client: u64,
    /// Since when who waits with work waits.
    pub waits: BTreeMap<ClientId, u64>,
    /// Since when somebody has been seen to wait for one that is late.
    pub waited: BTreeMap<ClientId, u64>,
}

const TICK: u64 = 100;

impl World {
    pub fn new(seed: u64, config: Config, supply: Supply) -> World {
        let mut broker = Broker::new(config.clone());
        broker.step(0, Input::Supply(supply.clone()));
        let mut world = World {
            config,
            rng: Rng::new(seed),
            now: 0,
            broker: Some(broker),
            waited: BTreeMap::new(),
            truth: Truth {
                supply,
                ..Truth::default()
            },
            processes: BTreeMap::new(),
            seen: Seen::default(),
            mutant: Mutant::None,
            plan: None,
            crashes: 0,
            ms_per_gib: 5,
            traces: std::env::var("GPUOS_LEASE_TRACE")
                .ok()
                .and_then(|it| it.parse().ok()),
            patience: 100_000,
            slow: false,
            idles: true,
            pins: 0,
            over: BTreeSet::new(),
            journal: Vec::new(),
            generation: 0,
            queue: BTreeMap::new(),
            number: 0,
            next_client: 1,
            waits: BTreeMap::new(),
        };
        world.at(TICK, Event::Tick);
        world
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.queue.insert((time.max(self.now), self.number), event);
    }

    // The workload manager.

    /// A job begins.
    pub fn job(&mut self, spec: JobSpec) {
        self.truth.jobs.insert(spec.job, spec.clone());
        self.input(Input::Job(self.as_told(&spec)));
    }

    pub fn as_told(&self, spec: &JobSpec) -> JobSpec {
        let mut spec = spec.clone();
        if self.mutant == Mutant::HostTwice {
            spec.host *= 2;
            spec.bytes_per_gpu *= 2;
        }
        spec
    }

    /// A process of a job begins, and asks.
    pub fn process(&mut self, job: JobId, asks: Vec<(GpuId, u64)>, left: u64) -> ClientId {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.truth.of.insert(client, job);
        let mut process = Process::new(job, asks, left);
        if self.pins > 0 && self.rng.below(1000) < self.pins {
            process.pinned = Some(self.rng.below(3) << 29);
        }
        self.processes.insert(client, process);
        if self.broker.is_none() {
            self.disconnect(client);
        } else {
            self.ask_next(client);
        }
        client
    }

    pub fn ask_next(&mut self, client: ClientId) {
        let Some(process) = self.processes.get(&client) else {
            return;
        };
        let Some((gpu, bytes)) = process.asks.front().copied() else {
            self.goes_on(client);
            return;
        };
        let job = process.job;
        self.gives_back(client, gpu, bytes);
        self.say(
            client,
            Input::Ask {
                client,
                job,
                gpu,
                bytes,
            },
        );
        self.moment(client, Moment::Asked);
    }

    /// Who asks for less has freed it before.
    pub fn gives_back(&mut self, client: ClientId, gpu: GpuId, bytes: u64) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        let Some((hbm, host)) = process.has.get(&gpu).copied() else {
            return;
        };
        if bytes >= hbm + host {
            return;
        }
        let now = (hbm.min(bytes), bytes - hbm.min(bytes));
        process.has.insert(gpu, now);
        self.truth.has.insert((client, gpu), now);
        // The answer may never come: the daemon can die once the journal has it.
        if let Some(told) = self.truth.told.get_mut(&(client, gpu)) {
            *told = now.0.min(*told);
        }
        let lies = self.truth.bytes.entry(client).or_default();
        // Of what was promised there may be nothing there yet.
        if let Some(there) = lies.hbm.get_mut(&gpu) {
            *there = now.0.min(*there);
        }
        if process.at == At::Gpu {
            lies.host -= host - now.1;
        }
    }

    /// All processes of a job die, and the workload manager forgets it.
    pub fn kill_job(&mut self, job: JobId) {
        for client in self.of_job(job) {
            self.die(client);
        }
        self.job_ends(job);
    }

    pub fn of_job(&self, job: JobId) -> Vec<ClientId> {
        let own = self.processes.iter().filter(|(_, it)| it.job == job);
        own.map(|(id, _)| *id).collect()
    }

    pub fn job_ends(&mut self, job: JobId) {
        if self.over.insert(job) {
            let later = self.now + self.rng.below(300);
            self.at(later, Event::JobGone(job));
        }
    }

    // What goes wrong.

    pub fn moment(&mut self, client: ClientId, moment: Moment) {
        let Some((kill, at, count)) = self.plan else {
            return;
        };
        if at != moment {
            return;
        }
        if count > 0 {
            self.plan = Some((kill, at, count - 1));
            return;
        }
        self.plan = None;
        self.kill(kill, client);
    }

    pub fn kill(&mut self, kill: Kill, client: ClientId) {
        match kill {
            Kill::Client => self.die(client),
            Kill::Broker => self.crash(),
            Kill::Step => {
                let job = self.processes.get(&client).map(|it| it.job);
                job.into_iter().for_each(|job| self.kill_job(job));
            }
            Kill::Node => {
                let jobs: Vec<JobId> = self.truth.jobs.keys().copied().collect();
                self.crash();
                jobs.into_iter().for_each(|job| self.kill_job(job));
            }
            // Another one is begun, which finds how far the driver is.
            Kill::Caller => {
                let driven = self.processes.get(&client).and_then(|it| it.driven);
                if let Some((parks, _)) = driven {
                    self.drive(client, parks);
                }
            }
            // What it was doing is begun anew when there is a mover again.
            Kill::Mover => {
                let movers: Vec<ClientId> = self.processes.keys().copied().collect();
                for client in movers {
                    let Some(process) = self.processes.get_mut(&client) else {
                        continue;
                    };
                    if process.doing.is_some() {
                        process.phase += 1;
                        let phase = process.phase;
                        self.at(self.now + 700, Event::Finished(client, phase));
                    }
                }
            }
        }
    }

    // Time.

    /// Goes on until a time, or until a law is broken.
    pub fn run(&mut self, until: u64) -> Result<(), String> {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((time, _), event) = entry.remove_entry();
            self.now = time;
            self.happens(event);
            self.give_time();
            self.truth
                .check(self.now, 3 * TICK + 50)
                .and_then(|()| self.nobody_waits_for_ever())
                .map_err(|why| format!("at {time} ms: {why}"))?;
        }
        self.now = until;
        Ok(())
    }

    /// Nobody has to hurry for whom nobody waits.
    fn give_time(&mut self) {
        let now = self.now;
        let late = self.truth.until.values().any(|until| now > *until);
        let Some(broker) = self.broker.as_ref().filter(|_| late) else {
            return;
        };
        let view = broker.view();
        for (client, until) in &mut self.truth.until {
            let own = view.clients.iter().find(|one| one.client == *client);
            let Some(own) = own.filter(|_| now > *until) else {
                continue;
            };
            let waits = view.clients.iter().any(|one| {
                let same = |(gpu, _): &(GpuId, _)| own.leases.iter().any(|(of, _)| of == gpu);
                let there = one.busy && !one.ending && !one.stopped;
                let parked = matches!(one.place, Place::Parked(_));
                one.job != own.job && there && parked && one.leases.iter().any(same)
            });
            let pressed = match own.place {
                Place::Parking(Refuge::Nvme) => view.pressure,
                Place::Returning(_) => {
                    let spec = self.truth.jobs.get(&own.job);
                    view.pressure || spec.is_none_or(|job| !job.timeslice)
                }
                _ => false,
            };
            if !waits && !pressed {
                self.waited.remove(client);
                *until = now + 10_000;
            } else {
                // Somebody may have come just now, when it had been given more time.
                let since = *self.waited.entry(*client).or_insert(now);
                *until = (*until).max(since + 10_000);
            }
        }
        let until = &self.truth.until;
        self.waited.retain(|client, _| until.contains_key(client));
    }

    pub fn happens(&mut self, event: Event) {
        match event {
            Event::Tick => {
                self.input(Input::Tick);
                self.at(self.now + TICK, Event::Tick);
                if self.mutant == Mutant::TwoHolders {
                    self.forge();
                }
            }
            Event::Deliver(generation, input) if generation == self.generation => self.input(input),
            Event::Deliver(..) => {}
            Event::Hear(client, said) => self.heard(client, said),
            Event::Finished(client, phase) => self.finished(client, phase),
            Event::Driven(client, drive, generation) => self.driven(client, drive, generation),
            Event::Phase(client, phase) => self.phase(client, phase),
            Event::Die(client) => match self.processes.contains_key(&client) {
                true => self.die(client),
                // It is dead already: that is told again.
                false if self.mutant != Mutant::DeathUntold => self.input(Input::Gone(client)),
                false => {}
            },
            Event::BrokerUp => self.come_up(),
            Event::Connect(client) => self.connect(client),
            Event::JobGone(job) if self.broker.is_some() => {
                self.truth.jobs.remove(&job);
                if self.mutant != Mutant::OverUntold {
                    self.input(Input::JobGone(job));
                }
            }
            Event::JobGone(_) => {}
        }
    }

    pub fn forge(&mut self) {
        let waits = |it: &Process| it.at == At::Parked(Refuge::Host) && !it.has.is_empty();
        let mut waiting = self.processes.iter().filter(|(_, it)| waits(it));
        if let Some(client) = waiting.next().map(|(id, _)| *id)
            && self.rng.below(20) == 0
        {
            self.turn(client, u64::MAX);
        }
    }

    /// Who has work and can be heard gets a turn some time.
    pub fn nobody_waits_for_ever(&mut self) -> Result<(), String> {
        for (id, process) in &self.processes {
            let waits = (process.connected || process.held)
                && process.busy
                && !process.deaf
                && process.at != At::Gpu
                && process.asks.is_empty();
            if !waits {
                self.waits.remove(id);
                continue;
            }
            let since = *self.waits.entry(*id).or_insert(self.now);
            let waited = self.now - since;
            self.seen.most_waited = self.seen.most_waited.max(waited);
            if waited > self.patience {
                return Err(format!("process {} waits since {since}", id.0));
            }
        }
        Ok(())
    }

    /// All that is left, when all should be gone.
    pub fn left(&self) -> Result<(), String> {
        if let Some(client) = self.processes.keys().next() {
            return Err(format!("process {} is left", client.0));
        }
        let Some(broker) = &self.broker else {
            return Err("there is no broker".to_owned());
        };
        if !broker.is_empty() {
            return Err(format!("left: {:?}, {:?}", broker.view(), broker.journal()));
        }
        let mut again = Broker::new(self.config.clone());
        again.step(0, Input::Supply(self.truth.supply.clone()));
        let records = self.journal.iter().map(|line| line.parse());
        let records = records.collect::<Result<_, _>>().expect("a journal");
        again.step(0, Input::Restored(records));
        match again.is_empty() {
            true => Ok(()),
            false => Err(format!("the journal has {:?}", again.journal())),
        }
    }
}
