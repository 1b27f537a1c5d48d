//! The step function.

use std::collections::BTreeMap;

use super::config::Config;
use super::ids::{ClientId, GpuId, JobId, Refuge};
use super::input::{Demote, Effect, Granted, Input, JobSpec, Supply};
use super::ladder::{self, Ladder};
use super::ledger::{Asked, Client, Ledger, Turn};
use super::links::Links;
use super::own::Own;
use super::reason::{Ended, Refused};
use super::record::{ClientRecord, Place, Record};
use super::view::{ClientView, GpuView, Tier, View};
use super::{checkpointed, returns, squeeze, stopped, times, turns, working};
use crate::link::Wish;

/// The broker of a node.
pub struct Broker {
    config: Config,
    now: u64,
    ledger: Ledger,
    ladder: Ladder,
    own: Own,
    links: Links,
    /// What the journal has.
    jobs: BTreeMap<JobId, (JobSpec, bool)>,
    clients: BTreeMap<ClientId, ClientRecord>,
}

impl Broker {
    /// A broker that knows nothing yet.
    pub fn new(config: Config) -> Broker {
        Broker {
            config,
            now: 0,
            ledger: Ledger::default(),
            ladder: Ladder::default(),
            own: Own::default(),
            links: Links::default(),
            jobs: BTreeMap::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Something happened at a time in ms; what is to be done about it, in this order. A time before the last one is taken for that.
    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Effect> {
        let now = now_ms.max(self.now);
        turns::count(&mut self.ledger, now - self.now);
        self.now = now;
        let mut out = Vec::new();
        let asked = match input {
            Input::Ask {
                client,
                job,
                gpu,
                bytes,
            } => Some((client, gpu, self.ask(client, job, gpu, bytes, &mut out))),
            input => {
                self.take(input, &mut out);
                None
            }
        };
        self.deadlines(&mut out);
        self.ladder
            .step(&self.config, &mut self.ledger, now, &mut out);
        self.own.step(&self.config, &mut self.ledger, now, &mut out);
        squeeze::fit(&self.config, &mut self.ledger, now, &mut out);
        let asking = asked.as_ref().map(|(client, _, _)| *client);
        turns::decide(&self.config, &mut self.ledger, now, asking, &mut out);
        self.links.begin(now, &mut out);
        if let Some((client, gpu, answer)) = asked {
            let answer = answer.map(|()| self.granted(client, gpu));
            let answer = Effect::Answer {
                client,
                gpu,
                answer,
            };
            out.insert(0, answer);
        }
        let mut effects = self.records();
        effects.append(&mut out);
        effects
    }

    fn granted(&self, client: ClientId, gpu: GpuId) -> Granted {
        let it = self.ledger.clients.get(&client);
        let lease = it.and_then(|it| it.leases.get(&gpu)).copied();
        let lease = lease.unwrap_or_default();
        Granted {
            hbm: lease.hbm,
            host: lease.host,
            // Who has nothing waits for nothing, and nobody would say that it is its turn.
            turn: it.is_none_or(|it| it.place == Place::Resident),
        }
    }

    fn ask(
        &mut self,
        client: ClientId,
        job: JobId,
        gpu: GpuId,
        bytes: u64,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refused> {
        let first = !self.ledger.in_turns(job) || self.ledger.of_job(job).next().is_some();
        // What it says of its memory while the driver has it changes nothing.
        let known = self.ledger.clients.get(&client);
        let stays = known.is_some_and(|it| {
            let driven = it.by_driver.is_some() && it.ending.is_none();
            driven && it.job == job && it.leases.contains_key(&gpu)
        });
        if !stays {
            self.ledger.ask(&self.config, client, job, gpu, bytes)?;
        }
        if !first {
            turns::catch_up(&self.config, &mut self.ledger, job, true);
        }
        // Who asks is there.
        returns::is_there(&self.config, &mut self.ledger, self.now, client, out);
        Ok(())
    }

    fn take(&mut self, input: Input, out: &mut Vec<Effect>) {
        let now = self.now;
        match input {
            Input::Supply(supply) => self.supply(supply, out),
            Input::Restored(records) => self.restore(records, out),
            Input::Account(account, share) => {
                self.ledger.accounts.entry(account).or_default().share = share;
                self.ledger.keep(account);
            }
            Input::Reserve(bytes) => self.ledger.reserve = bytes,
            Input::Suspended(job, is) => {
                stopped::suspended(&self.config, &mut self.ledger, now, job, is);
            }
            Input::Stopped(client, is) => {
                stopped::signalled(&self.config, &mut self.ledger, now, client, is);
            }
            Input::Job(spec) => self.ledger.job(&spec),
            Input::JobGone(job) => self.job_gone(job, out),
            Input::Gone(client) => {
                self.links.gone(now, client);
                if let Some(it) = self.ledger.clients.remove(&client) {
                    self.ledger.forget(it.job);
                }
            }
            Input::Away(client) => {
                let until = now + self.config.away_ms;
                if let Some(it) = self.ledger.clients.get_mut(&client) {
                    it.away.get_or_insert(until);
                }
            }
            Input::Return(client, at) => {
                returns::returned(&self.config, &mut self.ledger, now, client, at, out);
            }
            Input::Idle(client) => {
                if let Some(it) = self.ledger.clients.get_mut(&client) {
                    it.idle.get_or_insert(now);
                }
            }
            Input::Busy(client) => self.busy(client),
            Input::Parked { client, took_ms } => self.parked(client, took_ms),
            Input::NotParked(client) => self.not_parked(client, out),
            Input::Working(client) => {
                working::says_so(&self.config, &mut self.ledger, now, client);
            }
            Input::Pinned { client, bytes } => {
                checkpointed::pinned(&self.config, &mut self.ledger, now, client, bytes, out);
            }
            Input::Checkpointed { client, took_ms } => {
                checkpointed::done(&self.config, &mut self.ledger, now, client, took_ms);
            }
            Input::NotCheckpointed {
                client,
                refused,
                runs_on,
            } => {
                let how = (refused, runs_on);
                checkpointed::failed(&self.config, &mut self.ledger, now, client, how, out);
            }
            Input::BroughtBack { client, took_ms } => {
                checkpointed::back(&self.config, &mut self.ledger, now, client, took_ms);
            }
            Input::Checkpoints(are) => self.config.checkpoints = are,
            Input::Back { client, took_ms } => {
                if let Some(it) = self.ledger.clients.get_mut(&client)
                    && let (Place::Returning(_), None) = (it.place, it.by_driver)
                {
                    it.place = Place::Resident;
                    it.arrived();
                    it.back_ms = times::measured_ms(&self.config, now, it, it.back_ms, took_ms);
                }
            }
            Input::Demoted { client, bytes } => {
                if let Some(it) = self.ledger.clients.get_mut(&client) {
                    ladder::demoted(it, bytes);
                }
            }
            Input::Pressure {
                free,
                total,
                stalled,
            } => self.ladder.measure(&self.config, now, free, total, stalled),
            Input::JobPressure {
                job,
                free,
                total,
                stalled,
            } => {
                if let Some(it) = self.ledger.jobs.get_mut(&job) {
                    // What has become less has arrived.
                    let arrived = it.free.map_or(0, |before| before.saturating_sub(free));
                    it.pressed.0 = it.pressed.0.saturating_sub(arrived);
                    it.free = Some(free);
                    it.stalled = stalled;
                    self.own.measure(&self.config, job, (free, total, stalled));
                }
            }
            Input::Marks { high, low, stalled } => {
                self.config.high = high;
                self.config.low = low.min(high);
                self.config.stalled = stalled;
            }
            Input::Turns {
                quantum_ms,
                work_ms,
            } => {
                self.config.quantum_ms = quantum_ms;
                self.config.longest_ms = Config::default().longest_ms.max(quantum_ms);
                self.config.work_ms = work_ms;
            }
            Input::MayRequeue(job, may) => {
                if let Some(it) = self.ledger.jobs.get_mut(&job) {
                    it.may_requeue = may;
                }
            }
            Input::Move {
                id: what,
                client,
                link,
                bytes,
                why,
            } => {
                let known = self.ledger.clients.get(&client);
                if known.is_none_or(|it| it.ending.is_some()) {
                    out.push(Effect::NoMove(what));
                    return;
                }
                let wish = Wish { what, bytes, why };
                self.links.wish(&self.config, now, client, link, wish, out);
            }
            Input::Moved(id) => self.links.ended(now, id),
            Input::Tick => checkpointed::try_again(&self.ledger, now, out),
            Input::Ask { .. } => {}
        }
    }

    fn supply(&mut self, supply: Supply, out: &mut Vec<Effect>) {
        self.ledger.supply = supply;
        let gpus = &self.ledger.supply.gpus;
        let known = |gpu: &GpuId| gpus.iter().any(|it| it.0 == *gpu);
        let clients = self.ledger.clients.iter();
        let lost = clients.filter(|(_, it)| !it.leases.keys().all(known));
        let lost: Vec<ClientId> = lost.map(|(id, _)| *id).collect();
        for client in lost {
            let why = Ended::GpuGone;
            self.ledger.end(&self.config, self.now, client, why, out);
        }
    }

    fn job_gone(&mut self, job: JobId, out: &mut Vec<Effect>) {
        let Some(it) = self.ledger.jobs.get_mut(&job) else {
            return;
        };
        it.over = true;
        it.next = None;
        it.requeued = None;
        let clients: Vec<ClientId> = self.ledger.of_job(job).map(|(id, _)| id).collect();
        for client in clients {
            let why = Ended::JobOver;
            self.ledger.end(&self.config, self.now, client, why, out);
        }
        self.ledger.forget(job);
    }

    fn busy(&mut self, client: ClientId) {
        let Some(it) = self.ledger.clients.get(&client) else {
            return;
        };
        let job = it.job;
        if self.ledger.of_job(job).all(|(_, it)| it.idle.is_some()) {
            let known = self.ledger.jobs.get(&job);
            let waits = known.is_some_and(|job| job.turn == Turn::Waits);
            turns::catch_up(&self.config, &mut self.ledger, job, waits);
        }
        if let Some(it) = self.ledger.clients.get_mut(&client) {
            it.idle = None;
        }
    }

    fn parked(&mut self, client: ClientId, took_ms: u64) {
        let (config, now) = (&self.config, self.now);
        working::count(&mut self.ledger, now, client, took_ms);
        if let Some(it) = self.ledger.clients.get_mut(&client)
            && let (Place::Parking(to), None) = (it.place, it.by_driver)
        {
            it.place = Place::Parked(to);
            it.arrived();
            if to == Refuge::Host {
                it.park_ms = times::measured_ms(config, now, it, it.park_ms, took_ms);
            }
        }
    }

    /// NVMe did not take what was to go there. Who gives way under pressure works on, and another way is looked for; whose turn is over
    /// parks in host memory, or is ended where there is no room: others wait for the GPU.
    fn not_parked(&mut self, client: ClientId, out: &mut Vec<Effect>) {
        let it = self.ledger.clients.get_mut(&client);
        let Some(it) = it.filter(|it| it.by_driver.is_none()) else {
            return;
        };
        let job = it.job;
        if let Place::Parking(_) = it.place {
            it.arrived();
        }
        match it.place {
            Place::Parking(Refuge::Nvme) => {
                it.place = Place::Resident;
                if let Some(job) = self.ledger.jobs.get_mut(&job) {
                    (job.stowed, job.refused) = (false, true);
                }
            }
            Place::Parking(Refuge::Host) => {
                let lacks = it.on_nvme(Refuge::Host);
                // The memory of a job with NVMe of its own is for its programs.
                let known = self.ledger.jobs.get(&job);
                let room = match known.is_some_and(|it| it.spec.nvme == 0) {
                    true => self.ledger.room_of_own(job),
                    false => 0,
                };
                let (config, now) = (&self.config, self.now);
                match self.ledger.clients.get_mut(&client) {
                    Some(it) if lacks > 0 && lacks <= room => {
                        for lease in it.leases.values_mut() {
                            lease.refuge_host += std::mem::take(&mut lease.refuge_nvme);
                        }
                        // It goes another way, and has the time for that.
                        it.owed = None;
                        returns::say_again(config, now, client, it, out);
                    }
                    _ => {
                        let why = Ended::NoNvme;
                        self.ledger.end(config, now, client, why, out);
                    }
                }
            }
            _ => {}
        }
    }

    /// What has a deadline that is over.
    fn deadlines(&mut self, out: &mut Vec<Effect>) {
        let now = self.now;
        let long = stopped::too_long(&self.config, &self.ledger, now);
        let mut end: Vec<(ClientId, Ended)> =
            long.into_iter().map(|id| (id, Ended::Stopped)).collect();
        let mut late_ones = Vec::new();
        for (id, it) in &mut self.ledger.clients {
            let late = now >= it.until;
            // Of whom the driver has in hand the connection may be lost: he cannot come for a new one before the driver lets him.
            let away = it.away.filter(|_| it.by_driver.is_none());
            match (it.ending, away, it.place) {
                (Some((why, again)), ..) if now >= again => {
                    it.ending = Some((why, now + self.config.end_ms));
                    out.push(Effect::End { client: *id, why });
                }
                (Some(_), ..) => {}
                // It hears nothing.
                (None, ..) if it.stopped.is_some() => {}
                (None, Some(until), _) if now >= until => end.push((*id, Ended::Away)),
                (None, Some(_), _) => {}
                (None, None, _) if late => late_ones.push(*id),
                _ => {}
            }
        }
        let pressed = self.ladder.raised();
        for id in late_ones {
            let why = working::overdue(&self.config, &mut self.ledger, now, id, pressed);
            end.extend(why.map(|why| (id, why)));
        }
        for (client, why) in end {
            self.ledger.end(&self.config, now, client, why, out);
        }
        ladder::deaf(&self.config, &mut self.ledger, now, pressed, out);
    }

    fn restore(&mut self, records: Vec<Record>, out: &mut Vec<Effect>) {
        let away = Some(self.now + self.config.away_ms);
        let mut jobs: Vec<(JobSpec, bool)> = Vec::new();
        for record in records {
            match record {
                Record::Job(spec) => {
                    jobs.retain(|(known, _)| known.job != spec.job);
                    jobs.push((spec, false));
                }
                Record::JobOver(job) => {
                    let known = jobs.iter_mut().find(|(known, _)| known.job == job);
                    known.into_iter().for_each(|(_, over)| *over = true);
                }
                Record::Gone(client) => {
                    self.ledger.clients.remove(&client);
                }
                Record::Client(it) => {
                    let mut client = Client::new(it.job, it.place);
                    client.leases = it.leases.into_iter().collect();
                    client.leaving = it.leaving;
                    client.by_driver = it.by_driver;
                    client.away = away;
                    if client.leaving > 0 {
                        client.asked = Some(Asked {
                            what: Demote::Dirty,
                            until: 0,
                            own: it.own,
                            again: false,
                            late: it.own,
                        });
                    }
                    self.ledger.clients.insert(it.client, client);
                }
            }
        }
        jobs.iter().for_each(|(spec, _)| self.ledger.job(spec));
        self.after_restore();
        for (spec, _) in jobs.iter().filter(|(_, over)| *over) {
            self.job_gone(spec.job, out);
        }
        // Leases of a job that no record has told of cannot be held against anything.
        let jobs = &self.ledger.jobs;
        self.ledger
            .clients
            .retain(|_, it| jobs.contains_key(&it.job));
        checkpointed::say_again(&self.config, &mut self.ledger, self.now, out);
        self.supply(self.ledger.supply.clone(), out);
    }

    /// What the journal does not say follows from what it says.
    fn after_restore(&mut self) {
        let clients: Vec<(JobId, Place)> = {
            let clients = self.ledger.clients.values();
            clients.map(|it| (it.job, it.place)).collect()
        };
        for (job, place) in clients {
            let Some(job) = self.ledger.jobs.get_mut(&job) else {
                continue;
            };
            match place {
                Place::Parking(Refuge::Nvme) | Place::Parked(Refuge::Nvme) => job.stowed = true,
                Place::Resident | Place::Returning(_) => job.turn = Turn::Holds { since: None },
                _ => {}
            }
        }
    }

    /// Records of what is not in the journal as it is now.
    fn records(&mut self) -> Vec<Effect> {
        let mut records = Vec::new();
        for (id, job) in &self.ledger.jobs {
            let known = self.jobs.get(id);
            if known.is_none_or(|it| it.0 != job.spec || (it.1 && !job.over)) {
                records.push(Record::Job(job.spec.clone()));
            }
            if job.over && known.is_none_or(|it| !it.1) {
                records.push(Record::JobOver(*id));
            }
            if known.is_none_or(|it| it.0 != job.spec || it.1 != job.over) {
                self.jobs.insert(*id, (job.spec.clone(), job.over));
            }
        }
        for (id, client) in &self.ledger.clients {
            let record = client.record(*id);
            if self.clients.get(id) != Some(&record) {
                records.push(Record::Client(record.clone()));
                self.clients.insert(*id, record);
            }
        }
        let gone = |id: &ClientId| !self.ledger.clients.contains_key(id);
        let gone: Vec<ClientId> = self.clients.keys().copied().filter(gone).collect();
        for id in gone {
            self.clients.remove(&id);
            records.push(Record::Gone(id));
        }
        let over = |id: &JobId| !self.ledger.jobs.contains_key(id);
        let over: Vec<JobId> = self.jobs.keys().copied().filter(over).collect();
        for id in over {
            if self.jobs.remove(&id).is_some_and(|it| !it.1) {
                records.push(Record::JobOver(id));
            }
        }
        records.into_iter().map(Effect::Journal).collect()
    }

    /// What a new journal begins with: all that there is.
    pub fn journal(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for (id, job) in &self.ledger.jobs {
            records.push(Record::Job(job.spec.clone()));
            if job.over {
                records.push(Record::JobOver(*id));
            }
        }
        let clients = self.ledger.clients.iter();
        records.extend(clients.map(|(id, it)| Record::Client(it.record(*id))));
        records
    }

    /// What there is to see.
    pub fn view(&self) -> View {
        let ledger = &self.ledger;
        let promised = ledger.promised();
        let gpus = ledger.supply.gpus.iter().map(|(gpu, present)| {
            let jobs: Vec<JobId> = ledger.needs(*gpu, false).into_keys().collect();
            let sliced = ledger.sliced(*gpu);
            let holds = |id: &&JobId| matches!(ledger.jobs[id].turn, Turn::Holds { .. });
            GpuView {
                gpu: *gpu,
                hbm: Tier {
                    present: *present,
                    promised: ledger.promised_hbm(*gpu),
                },
                sliced,
                holder: jobs.iter().find(holds).copied().filter(|_| sliced),
                serialised: sliced && jobs.iter().any(|id| ledger.jobs[id].serial),
            }
        });
        let clients = ledger.clients.iter().map(|(id, it)| ClientView {
            client: *id,
            job: it.job,
            place: it.place,
            leases: it.leases.iter().map(|it| (*it.0, *it.1)).collect(),
            nvme: it
                .charge(ledger.jobs.get(&it.job).is_some_and(|job| job.stowed))
                .nvme,
            leaving: it.leaving,
            busy: it.idle.is_none(),
            ending: it.ending.is_some(),
            stopped: it.stopped.is_some(),
            by_driver: it.by_driver.is_some(),
            beyond: it.by_driver.unwrap_or(0),
            gpu_ms: ledger.jobs.get(&it.job).map_or(0, |job| job.gpu_ms),
            squeezed: it.squeezed.values().sum(),
        });
        View {
            gpus: gpus.collect(),
            host: Tier {
                present: ledger.supply.host,
                promised: promised.host,
            },
            nvme: Tier {
                present: ledger.supply.nvme,
                promised: promised.nvme,
            },
            clients: clients.collect(),
            pressure: self.ladder.raised(),
            rung: self.ladder.word(),
            short: self.own.short().collect(),
        }
    }

    /// Jobs whose turn it is on a GPU that they have in turns; more than one would be a fault.
    pub fn holders(&self, gpu: GpuId) -> Vec<JobId> {
        let ledger = &self.ledger;
        let jobs = ledger.needs(gpu, false).into_keys();
        let holds = |id: &JobId| matches!(ledger.jobs[id].turn, Turn::Holds { .. });
        match ledger.sliced(gpu) {
            true => jobs.filter(holds).collect(),
            false => Vec::new(),
        }
    }

    /// Nobody has anything, and nothing is moved.
    pub fn is_empty(&self) -> bool {
        self.ledger.clients.is_empty() && self.ledger.jobs.is_empty() && self.links.idle()
    }
}
