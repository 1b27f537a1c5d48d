//! The daemon with the broker: it carries out what the broker says, crashes and comes back.

use std::collections::BTreeSet;

use gpuos_memory::lease::{
    At, Broker, ClientId, Demote, Effect, Ended, Input, JobId, JobSpec, Place, Record, Refuge,
};

use super::process::Said;
use super::world::{Event, Moment, Mutant, World};

impl World {
    // What processes and daemon say to each other, in order on each connection.

    pub fn say(&mut self, client: ClientId, input: Input) {
        let delay = self.rng.below(4);
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if !process.connected {
            return;
        }
        let at = (self.now + delay).max(process.said_at);
        process.said_at = at;
        let generation = self.generation;
        self.at(at, Event::Deliver(generation, input));
    }

    pub fn hear(&mut self, client: ClientId, said: Said) {
        let delay = self.rng.below(4);
        if let Some(process) = self.processes.get_mut(&client) {
            let at = (self.now + delay).max(process.heard_at);
            process.heard_at = at;
            self.at(at, Event::Hear(client, said));
        }
    }

    /// Tells the broker something, and does what it answers.
    pub fn input(&mut self, input: Input) {
        match &input {
            Input::Parked { client, .. } | Input::Checkpointed { client, .. } => {
                self.truth.until.remove(client);
            }
            // It may have been told to park since.
            // Before that the driver keeps it from working.
            Input::BroughtBack { client, .. } if self.processes.contains_key(client) => {
                self.truth.until.remove(client);
                self.truth.is_back(*client);
                self.truth.works.insert(*client, true);
            }
            Input::Back { client, .. } if self.truth.works.get(client) == Some(&true) => {
                self.truth.until.remove(client);
                self.truth.is_back(*client);
            }
            // It works on, if it was not to make room for another one on its GPU.
            Input::NotParked(client) if self.is_stowing(*client) => {
                self.truth.until.remove(client);
                self.truth.is_back(*client);
                self.truth.works.insert(*client, true);
            }
            _ => {}
        }
        let here = match &input {
            Input::Return(client, _) | Input::Ask { client, .. } => Some(*client),
            _ => None,
        };
        let Some(broker) = &mut self.broker else {
            return;
        };
        let mut effects = broker.step(self.now, input.clone());
        if self.traces.is_some_and(|from| self.now >= from) {
            eprintln!("{} ms: {input:?}", self.now);
            effects.iter().for_each(|it| eprintln!("    {it:?}"));
        }
        if self.mutant == Mutant::JournalLate {
            effects.sort_by_key(|it| matches!(it, Effect::Journal(_)));
        }
        for effect in effects {
            if self.crashes > 0 && self.rng.below(1000) < self.crashes {
                self.crash();
            }
            if self.broker.is_none() {
                return;
            }
            self.perform(effect);
        }
        // From now on it has been told whose turn it is.
        if let Some(client) = here.filter(|_| self.broker.is_some()) {
            self.truth.away.remove(&client);
        }
    }

    fn is_stowing(&self, client: ClientId) -> bool {
        if !self.processes.contains_key(&client) {
            return false;
        }
        let view = self.broker.as_ref().map(Broker::view);
        let clients = view.map(|view| view.clients).unwrap_or_default();
        let stowing = Place::Parking(Refuge::Nvme);
        clients
            .iter()
            .any(|it| it.client == client && it.place == stowing)
    }

    pub fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Journal(record) => self.write(&record),
            Effect::Answer {
                client,
                gpu,
                answer,
            } => {
                self.seen.answers += 1;
                if let Err(why) = &answer {
                    self.seen.refused += 1;
                    assert!(why.to_string().len() > 20);
                }
                let alive = self.processes.contains_key(&client);
                let answer = answer.ok();
                if let Some(granted) = answer.filter(|_| alive) {
                    self.truth
                        .has
                        .insert((client, gpu), (granted.hbm, granted.host));
                    // What it gave back it does not use any more.
                    if let Some(told) = self.truth.told.get_mut(&(client, gpu)) {
                        *told = granted.hbm.min(*told);
                    }
                    if granted.turn {
                        self.truth.told.insert((client, gpu), granted.hbm);
                        if granted.hbm + granted.host > 0 {
                            self.truth.works.insert(client, true);
                        }
                    }
                }
                let answer = answer.map(|it| (it.hbm, it.host, it.turn));
                self.hear(client, Said::Answer(gpu, answer));
                self.moment(client, Moment::Answered);
            }
            Effect::Park {
                client,
                to,
                nvme,
                deadline_ms,
            } => {
                self.seen.parks += 1;
                if self.processes.contains_key(&client) {
                    self.truth.works.insert(client, false);
                    self.truth.until.insert(client, deadline_ms);
                    if to == Refuge::Nvme {
                        self.seen.stowed += 1;
                        let job = self.truth.of.get(&client);
                        self.truth.stowed.extend(job.map(|job| (client, *job)));
                    }
                }
                self.hear(client, Said::Park(to, nvme));
                self.moment(client, Moment::ToldPark);
            }
            Effect::Turn {
                client,
                deadline_ms,
            } => self.turn(client, deadline_ms),
            Effect::Checkpoint { client, .. } | Effect::Restore { client, .. }
                if self.calls(client) => {}
            Effect::Checkpoint {
                client,
                deadline_ms,
            } => {
                self.seen.checkpoints += 1;
                if self.processes.contains_key(&client) {
                    self.truth.works.insert(client, false);
                    self.truth.until.insert(client, deadline_ms);
                }
                self.drive(client, true);
            }
            Effect::Restore {
                client,
                deadline_ms,
            } => {
                self.seen.restores += 1;
                self.may_have(client, deadline_ms);
                self.drive(client, false);
            }
            Effect::Demote {
                client,
                what,
                deadline_ms,
            } => {
                self.seen.demoted += 1;
                if let Some(process) = self.processes.get_mut(&client) {
                    process.due = deadline_ms;
                }
                self.hear(client, Said::Demote(what));
                if what == Demote::Dirty {
                    self.moment(client, Moment::ToldDemote);
                }
            }
            Effect::Notify { notice, .. } => assert!(notice.to_string().len() > 20),
            Effect::End { client, why } => {
                if self.mutant == Mutant::DeadlineIgnored
                    && matches!(why, Ended::Deaf | Ended::NotBack | Ended::Works { .. })
                {
                    return;
                }
                assert!(why.to_string().len() > 20);
                *self.seen.ended.entry(format!("{why:?}")).or_default() += 1;
                let later = self.now + self.rng.below(50);
                self.truth.until.remove(&client);
                // Its GPUs are still taken, and it does not count as one that has them.
                if let Some(works) = self.truth.works.get_mut(&client) {
                    *works = false;
                }
                self.at(later, Event::Die(client));
            }
            Effect::Requeue { job, .. } => {
                self.seen.requeued += 1;
                self.kill_job(job);
            }
            // No GPU of the simulation is used by anybody who asks nobody.
            Effect::Lease { .. } => panic!("{effect:?}"),
            Effect::Move(_) | Effect::NoMove(_) => {}
        }
    }

    pub fn turn(&mut self, client: ClientId, deadline_ms: u64) {
        self.seen.turns += 1;
        self.may_have(client, deadline_ms);
        if self.processes.contains_key(&client) {
            self.truth.works.insert(client, true);
        }
        self.hear(client, Said::Turn);
        self.moment(client, Moment::ToldTurn);
    }

    fn may_have(&mut self, client: ClientId, deadline_ms: u64) {
        if self.processes.contains_key(&client) {
            let has = self.truth.has.iter().filter(|it| it.0.0 == client);
            let told: Vec<_> = has.map(|(key, it)| (*key, it.0)).collect();
            self.truth.told.extend(told);
            self.truth.until.insert(client, deadline_ms);
        }
    }

    pub fn write(&mut self, record: &Record) {
        let works = |record: &Record| match record {
            Record::Client(it) => matches!(it.place, Place::Resident | Place::Returning(_)),
            _ => false,
        };
        if self.mutant == Mutant::RecordMissing && works(record) {
            return;
        }
        // It goes to NVMe, whether it hears of it before the next restart or after; and its job does also where it is dead by now.
        if let Record::Client(it) = record
            && it.place == Place::Parking(Refuge::Nvme)
        {
            self.truth.stowed.insert(it.client, it.job);
        }
        let line = record.to_string();
        assert_eq!(line.parse().as_ref(), Ok(record));
        self.journal.push(line);
    }

    // The daemon.

    /// The broker's daemon dies, and comes back a little later.
    pub fn crash(&mut self) {
        if self.broker.take().is_none() {
            return;
        }
        self.seen.crashes += 1;
        self.generation += 1;
        let clients: Vec<ClientId> = self.processes.keys().copied().collect();
        for client in clients {
            self.disconnect(client);
        }
        let later = self.now + 20 + self.rng.below(500);
        self.at(later, Event::BrokerUp);
    }

    pub fn disconnect(&mut self, client: ClientId) {
        self.truth.until.remove(&client);
        self.truth.away.insert(client);
        if let Some(process) = self.processes.get_mut(&client) {
            process.connected = false;
        }
        self.waits.remove(&client);
    }

    pub fn come_up(&mut self) {
        let mut broker = Broker::new(self.config.clone());
        broker.step(self.now, Input::Supply(self.truth.supply.clone()));
        self.broker = Some(broker);
        let records = self.journal.iter().map(|line| line.parse());
        let records: Vec<Record> = records.collect::<Result<_, _>>().expect("a journal");
        let known: BTreeSet<ClientId> = records
            .iter()
            .filter_map(|record| match record {
                Record::Client(it) => Some(it.client),
                _ => None,
            })
            .collect();
        self.input(Input::Restored(records));
        for client in known {
            let dead = !self.processes.contains_key(&client);
            let untold = self.mutant == Mutant::DeathUntold;
            if (dead && !untold) || self.mutant == Mutant::TakenForDead {
                self.input(Input::Gone(client));
            }
        }
        let jobs: Vec<JobSpec> = self.truth.jobs.values().cloned().collect();
        for spec in jobs {
            self.input(Input::Job(self.as_told(&spec)));
        }
        let over: Vec<JobId> = self.over.iter().copied().collect();
        for job in over {
            self.at(self.now, Event::JobGone(job));
        }
        let clients: Vec<ClientId> = self.processes.keys().copied().collect();
        for client in clients {
            let later = self.now + self.rng.below(2000);
            self.at(later, Event::Connect(client));
        }
    }

    /// A process finds the daemon again and says where its memory is.
    pub fn connect(&mut self, client: ClientId) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if self.broker.is_none() || process.connected || process.lost || process.deaf {
            return;
        }
        if process.doing.is_some() || !process.inbox.is_empty() {
            self.at(self.now + 50, Event::Connect(client));
            return;
        }
        process.connected = true;
        // Nothing of who was told to park and cannot was moved by himself.
        let at = if process.held { At::Gpu } else { process.at };
        let (knows, busy) = (!process.has.is_empty(), process.busy);
        if knows {
            self.say(client, Input::Return(client, at));
            let idle = Input::Idle(client);
            self.say(client, if busy { Input::Busy(client) } else { idle });
        }
        let asks = self
            .processes
            .get(&client)
            .is_some_and(|it| !it.asks.is_empty());
        if asks {
            self.ask_next(client);
        }
        // What works goes on.
        self.goes_on(client);
    }
}
