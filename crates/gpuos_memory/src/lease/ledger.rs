//! What is promised to whom: jobs, processes and their leases, and sums over them.
//!
//! Sums are made anew each time: a node has few processes, and a sum that is kept can be wrong.

use std::collections::BTreeMap;

use super::config::Config;
use super::ids::{AccountId, ClientId, GpuId, JobId, Refuge};
use super::input::{Demote, Effect, JobSpec, Share, Supply};
use super::reason::Ended;
use super::record::{ClientRecord, Lease, Place};
use super::stopped::Stopped;

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It has its GPUs. `since`: when all its processes worked; `None` while they come back.
    Holds { since: Option<u64> },
    /// It has to be parked, or is.
    Waits,
}

/// A job.
pub(super) struct Job {
    pub spec: JobSpec,
    /// Its place among all jobs, by arrival.
    pub arrived: u64,
    /// What is kept for it of host memory.
    pub guaranteed: u64,
    /// The workload manager has it no more.
    pub over: bool,
    /// All of it goes to NVMe, or is there.
    pub stowed: bool,
    /// The workload manager has suspended it.
    pub suspended: bool,
    /// That failed since pressure began.
    pub refused: bool,
    /// When it was to be requeued.
    pub requeued: Option<u64>,
    /// The workload manager would do that.
    pub may_requeue: bool,
    /// Its processes were told that it will not be, since pressure began.
    pub told_last: bool,
    /// Time in which all of it waited for memory, of 1000, where that was measured.
    pub stalled: u32,
    /// Bytes that it could have of its own memory, where that was measured.
    pub free: Option<u64>,
    /// Of these, bytes that come from a GPU and were not there when it was measured, and until when that is remembered.
    pub pressed: (u64, u64),
    pub turn: Turn,
    /// GPU time in turns, in ms.
    pub gpu_ms: u64,
    /// What turns are given by: GPU time, and for who was away what those beside it had meanwhile.
    pub fair_ms: u64,
    /// Turns that have ended beside the same jobs, and what they were worth, of 1000.
    pub turns: u32,
    pub worth: u64,
    /// Turns beside these were not worth it.
    pub thrashed: bool,
    /// Its turns have no length.
    pub serial: bool,
    /// Jobs on its GPUs.
    pub beside: Vec<JobId>,
    /// It runs here again, while processes of before are not dead.
    pub next: Option<JobSpec>,
}

/// A process.
pub(super) struct Client {
    pub job: JobId,
    pub place: Place,
    /// When it was told to park or to come back, and until when it has to.
    pub told: u64,
    pub until: u64,
    pub leases: BTreeMap<GpuId, Lease>,
    /// Since when it has no work.
    pub idle: Option<u64>,
    /// Why it is to end, and when that is said again.
    pub ending: Option<(Ended, u64)>,
    /// Until when it may have no connection.
    pub away: Option<u64>,
    /// It is stopped by a signal.
    pub signalled: bool,
    /// It runs no more for now: by a signal, or with its job.
    pub stopped: Option<Stopped>,
    /// Where it had to get before it was away, and until when it has to all the same.
    pub owed: Option<(Place, u64)>,
    /// The driver takes its memory out of GPUs, has, or brings it back: bytes of host memory that this takes beyond its refuge.
    pub by_driver: Option<u64>,
    /// It was told to park, and says that its memory cannot be moved.
    pub pinned: bool,
    /// Until when it may say that work of before is under way, from the first time that it said so.
    pub works_until: Option<u64>,
    /// What it has to demote.
    pub asked: Option<Asked>,
    /// It was asked since pressure began.
    pub tried: bool,
    /// Bytes on their way from host memory to NVMe: they count on both.
    pub leaving: u64,
    /// Of what lies in host memory, bytes that would be in a GPU's if others did not use it who ask nobody.
    pub squeezed: BTreeMap<GpuId, u64>,
    /// What parking and coming back took, smoothed, in ms.
    pub park_ms: Option<u64>,
    pub back_ms: Option<u64>,
}

/// What a process has to demote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub what: Demote,
    pub until: u64,
    /// Its job is short of its own memory, and not the node.
    pub own: bool,
    /// It was away since, and has had more time for that.
    pub again: bool,
    /// The time is over, and nobody waits for it: that is so where its own job alone is short.
    pub late: bool,
}

/// What counts on each tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Charge {
    pub host: u64,
    pub nvme: u64,
}

/// An account.
#[derive(Clone, Copy, Default)]
pub(super) struct Account {
    pub share: Share,
    /// What is kept for it, while it has a job here.
    pub kept: u64,
}

impl Client {
    pub fn new(job: JobId, place: Place) -> Client {
        Client {
            job,
            place,
            told: 0,
            until: 0,
            leases: BTreeMap::new(),
            idle: None,
            ending: None,
            away: None,
            signalled: false,
            stopped: None,
            owed: None,
            by_driver: None,
            pinned: false,
            works_until: None,
            asked: None,
            tried: false,
            leaving: 0,
            squeezed: BTreeMap::new(),
            park_ms: None,
            back_ms: None,
        }
    }

    pub fn record(&self, client: ClientId) -> ClientRecord {
        let dirty = self.asked.filter(|asked| asked.what == Demote::Dirty);
        ClientRecord {
            client,
            job: self.job,
            place: self.place,
            leaving: self.leaving,
            own: dirty.is_some_and(|asked| asked.own),
            by_driver: self.by_driver,
            leases: self.leases.iter().map(|it| (*it.0, *it.1)).collect(),
        }
    }

    /// It was asked for something that others wait for.
    pub fn is_waited_for(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.late)
    }

    /// It brings something to NVMe, and others wait until it has said so.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0 && self.is_waited_for()
    }

    /// It has gone where it was told to, so that nothing is on its way any more.
    pub fn arrived(&mut self) {
        self.leaving = 0;
        self.works_until = None;
        self.pinned = false;
        self.asked.take_if(|asked| asked.what == Demote::Dirty);
    }

    /// Something can be said to it, or to the driver about it, who needs no connection.
    pub fn hears(&self) -> bool {
        let there = self.away.is_none() || self.by_driver.is_some();
        self.ending.is_none() && there && self.stopped.is_none()
    }

    /// When it has to have got somewhere, which may be what it owes since before it was away.
    pub fn until(&self, to: Place, until: u64) -> u64 {
        let owed = self.owed.filter(|(place, _)| *place == to);
        owed.map_or(until, |(_, owed)| until.min(owed))
    }

    /// Bytes in GPU memory while it works.
    pub fn hbm(&self) -> u64 {
        self.leases.values().map(|lease| lease.hbm).sum()
    }

    /// Bytes of GPU and host memory that go to NVMe when all of it does.
    pub fn whole(&self) -> u64 {
        self.leases.values().map(|it| it.hbm + it.host).sum()
    }

    /// Bytes of host memory, for extents and as a refuge.
    pub fn in_host(&self) -> u64 {
        let leases = self.leases.values();
        let kept: u64 = leases.map(|it| it.host + it.refuge_host).sum();
        kept + self.by_driver.unwrap_or(0)
    }

    /// Bytes of host memory in which something of GPU memory is or will be parked.
    pub fn refuge_host(&self) -> u64 {
        self.leases.values().map(|it| it.refuge_host).sum()
    }

    /// What it takes of GPU memory now.
    pub fn resident(&self, gpu: GpuId) -> u64 {
        match (self.leases.get(&gpu), self.place) {
            (None, _) | (_, Place::Parked(_)) => 0,
            (Some(lease), _) if lease.fresh => 0,
            (Some(lease), _) => lease.hbm,
        }
    }

    /// Has it park, as it has been told until when.
    pub fn to_park(&self, client: ClientId, to: Refuge) -> Effect {
        if self.by_driver.is_some() {
            let deadline_ms = self.until;
            return Effect::Checkpoint {
                client,
                deadline_ms,
            };
        }
        Effect::Park {
            client,
            to,
            nvme: self.on_nvme(to),
            deadline_ms: self.until,
        }
    }

    /// Has it come back, as it has been told until when.
    pub fn to_come_back(&self, client: ClientId) -> Effect {
        let deadline_ms = self.until;
        match self.by_driver {
            Some(_) => Effect::Restore {
                client,
                deadline_ms,
            },
            None => Effect::Turn {
                client,
                deadline_ms,
            },
        }
    }

    /// Bytes that move when it parks there or comes back from there.
    pub fn on_nvme(&self, refuge: Refuge) -> u64 {
        match refuge {
            Refuge::Host => self.leases.values().map(|it| it.refuge_nvme).sum(),
            Refuge::Nvme => self.whole(),
        }
    }

    pub fn charge(&self, stowed: bool) -> Charge {
        let refuge_nvme: u64 = self.leases.values().map(|it| it.refuge_nvme).sum();
        let (host, nvme) = match self.place {
            Place::Parking(Refuge::Nvme) | Place::Returning(Refuge::Nvme) => {
                (self.in_host(), self.whole().max(refuge_nvme))
            }
            // Who may come back has his host memory before he is told to.
            Place::Parked(Refuge::Nvme) => match stowed || self.ending.is_some() {
                true => (0, self.whole()),
                false => (self.in_host(), self.whole()),
            },
            _ => (self.in_host(), refuge_nvme),
        };
        Charge {
            host,
            nvme: nvme + self.leaving,
        }
    }
}

/// The books of a node.
#[derive(Default)]
pub(super) struct Ledger {
    pub supply: Supply,
    /// Of each GPU in turns, bytes that nobody gets.
    pub reserve: u64,
    pub accounts: BTreeMap<AccountId, Account>,
    pub jobs: BTreeMap<JobId, Job>,
    pub clients: BTreeMap<ClientId, Client>,
    pub arrivals: u64,
    /// When what a GPU has was divided anew.
    pub squeezed_at: u64,
}

impl Ledger {
    /// Processes of a job.
    pub fn of_job(&self, job: JobId) -> impl Iterator<Item = (ClientId, &Client)> {
        self.clients
            .iter()
            .filter(move |(_, client)| client.job == job)
            .map(|(id, client)| (*id, client))
    }

    pub fn in_turns(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.spec.timeslice)
    }

    fn stowed(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.stowed)
    }

    pub fn present(&self, gpu: GpuId) -> u64 {
        let mut gpus = self.supply.gpus.iter();
        gpus.find(|(it, _)| *it == gpu).map_or(0, |it| it.1)
    }

    /// GPU memory for jobs in turns: all but what others have, and contexts of programs.
    pub fn for_turns(&self, gpu: GpuId) -> u64 {
        self.free_of(gpu).saturating_sub(self.reserve)
    }

    /// GPU memory that no job has for all its time.
    pub fn free_of(&self, gpu: GpuId) -> u64 {
        self.present(gpu).saturating_sub(self.fixed(gpu))
    }

    /// GPU memory of those that take no turns. It stays theirs while they are parked.
    fn fixed(&self, gpu: GpuId) -> u64 {
        let clients = self.clients.values();
        let fixed = clients.filter(|client| !self.in_turns(client.job));
        fixed
            .filter_map(|it| it.leases.get(&gpu))
            .map(|it| it.hbm)
            .sum()
    }

    pub fn promised_hbm(&self, gpu: GpuId) -> u64 {
        self.fixed(gpu) + self.in_turns_now(gpu)
    }

    /// What jobs in turns have of a GPU now.
    pub fn in_turns_now(&self, gpu: GpuId) -> u64 {
        let clients = self.clients.values();
        let turns = clients.filter(|client| self.in_turns(client.job));
        turns.map(|client| client.resident(gpu)).sum()
    }

    /// What each job in turns needs of a GPU while it has it. `stowed`: also those that are on NVMe.
    pub fn needs(&self, gpu: GpuId, stowed: bool) -> BTreeMap<JobId, u64> {
        let mut needs = BTreeMap::new();
        for client in self.clients.values() {
            if let Some(lease) = client.leases.get(&gpu)
                && self.in_turns(client.job)
                && (stowed || !self.stowed(client.job))
            {
                *needs.entry(client.job).or_insert(0) += lease.hbm;
            }
        }
        needs
    }

    /// Jobs in turns do not fit beside each other.
    pub fn sliced(&self, gpu: GpuId) -> bool {
        self.needs(gpu, false).values().sum::<u64>() > self.for_turns(gpu)
    }

    /// GPU memory that jobs in turns cannot do without: what all of them have where they fit, else what the largest needs.
    pub fn kept_for_turns(&self, gpu: GpuId) -> u64 {
        let all: u64 = self.needs(gpu, false).values().sum();
        let largest = self.needs(gpu, true).into_values().max().unwrap_or(0);
        let there = self.in_turns_now(gpu);
        match all > self.for_turns(gpu) {
            true => largest.max(there),
            false => all.max(largest).max(there),
        }
    }

    pub fn charge(&self, job: JobId) -> Charge {
        let stowed = self.stowed(job);
        self.of_job(job)
            .fold(Charge::default(), |sum, (_, client)| {
                let charge = client.charge(stowed);
                Charge {
                    host: sum.host + charge.host,
                    nvme: sum.nvme + charge.nvme,
                }
            })
    }

    pub fn promised(&self) -> Charge {
        let clients = self.clients.values();
        clients.fold(Charge::default(), |sum, client| {
            let charge = client.charge(self.stowed(client.job));
            Charge {
                host: sum.host + charge.host,
                nvme: sum.nvme + charge.nvme,
            }
        })
    }

    /// Promised host memory, or what is guaranteed where that is more.
    fn reserved(&self, job: JobId) -> u64 {
        let guaranteed = self.jobs.get(&job).map_or(0, |job| match job.over {
            true => 0,
            false => job.guaranteed,
        });
        self.charge(job).host.max(guaranteed)
    }

    pub fn of_account(&self, account: AccountId) -> impl Iterator<Item = JobId> {
        let jobs = self.jobs.iter();
        let same = jobs.filter(move |(_, job)| job.spec.account == Some(account));
        same.map(|(id, _)| *id)
    }

    /// What an account's jobs have reserved, and what is kept for it beyond that.
    fn account_reserved(&self, account: AccountId) -> (u64, u64) {
        let jobs = self.of_account(account).map(|job| self.reserved(job)).sum();
        let runs = self.of_account(account).any(|job| !self.jobs[&job].over);
        let kept = self.accounts.get(&account).map_or(0, |it| it.kept);
        let slack = if runs { kept.saturating_sub(jobs) } else { 0 };
        (jobs, slack)
    }

    /// Host memory that is neither promised nor kept for anybody.
    pub fn free_host(&self) -> u64 {
        let mut reserved: u64 = 0;
        for (id, job) in &self.jobs {
            if job.spec.account.is_none() {
                reserved += self.reserved(*id);
            }
        }
        let mut accounts: Vec<_> = self
            .jobs
            .values()
            .filter_map(|it| it.spec.account)
            .collect();
        accounts.sort_unstable();
        accounts.dedup();
        for account in accounts {
            let (jobs, slack) = self.account_reserved(account);
            reserved += jobs + slack;
        }
        self.supply.host.saturating_sub(reserved)
    }

    /// Host memory that a job could be promised beyond what it has, as far as the node goes.
    pub fn host_room(&self, job: JobId) -> u64 {
        let Some(it) = self.jobs.get(&job) else {
            return 0;
        };
        let own = it.guaranteed.saturating_sub(self.charge(job).host);
        let account = it.spec.account.map_or(0, |it| self.account_reserved(it).1);
        self.free_host() + own + account
    }

    /// The same, as far as its account's quota goes.
    pub fn quota_room(&self, job: JobId) -> u64 {
        let account = self.jobs.get(&job).and_then(|job| job.spec.account);
        let Some(account) = account else {
            return u64::MAX;
        };
        let jobs = self.of_account(account);
        let has: u64 = jobs.map(|job| self.charge(job).host).sum();
        let share = self.accounts.get(&account).copied().unwrap_or_default();
        share.share.at_most.saturating_sub(has)
    }

    /// The same of its own by the workload manager's record, its account's and the node's together.
    pub fn room_of_own(&self, job: JobId) -> u64 {
        let given = self.jobs.get(&job).map_or(0, |it| it.spec.host);
        let left = given.saturating_sub(self.charge(job).host);
        left.min(self.quota_room(job)).min(self.host_room(job))
    }

    /// NVMe that a job could be promised beyond what it has: what is left of its own, and what is not counted.
    pub fn nvme_room(&self, job: JobId) -> u64 {
        let own = |job: JobId| self.jobs.get(&job).map_or(0, |job| job.spec.nvme);
        let beyond = |job: &JobId| self.charge(*job).nvme.saturating_sub(own(*job));
        let others: u64 = self.jobs.keys().map(beyond).sum();
        let free = self.supply.nvme.saturating_sub(self.supply.nvme_counted);
        let left = own(job).saturating_sub(self.charge(job).nvme);
        let room = left.saturating_add(free.saturating_sub(others));
        // More may be counted than there is, and jobs be told of before their disk is.
        room.min(self.supply.nvme.saturating_sub(self.promised().nvme))
    }

    /// Takes nothing away that is guaranteed to the job or its account.
    pub fn may_give(&self, job: JobId) -> bool {
        let Some(it) = self.jobs.get(&job) else {
            return false;
        };
        let has = self.charge(job).host;
        let account = it.spec.account.is_none_or(|account| {
            let all: u64 = self
                .of_account(account)
                .map(|job| self.charge(job).host)
                .sum();
            let kept = self.accounts.get(&account).map_or(0, |it| it.kept);
            all > kept
        });
        !it.over && has > it.guaranteed && account
    }

    /// A job runs here.
    pub fn job(&mut self, spec: &JobSpec) {
        if let Some(known) = self.jobs.get_mut(&spec.job) {
            if known.over {
                known.next = Some(spec.clone());
            }
            return;
        }
        let wished = spec.guaranteed.min(spec.host);
        let id = spec.job;
        self.arrivals += 1;
        let arrived = self.arrivals;
        self.jobs.insert(
            id,
            Job {
                spec: spec.clone(),
                arrived,
                guaranteed: 0,
                over: false,
                stowed: false,
                suspended: false,
                refused: false,
                requeued: None,
                may_requeue: true,
                told_last: false,
                stalled: 0,
                free: None,
                pressed: (0, 0),
                turn: Turn::Waits,
                gpu_ms: 0,
                fair_ms: 0,
                turns: 0,
                worth: 1000,
                thrashed: false,
                serial: false,
                beside: Vec::new(),
                next: None,
            },
        );
        if let Some(account) = spec.account {
            self.keep(account);
        }
        let room = self.host_room(id) + self.charge(id).host;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.guaranteed = wished.min(room);
        }
    }

    /// Keeps an account's guarantee, as far as there is room for it now.
    pub fn keep(&mut self, account: AccountId) {
        if let Some(it) = self.accounts.get_mut(&account) {
            it.kept = 0;
        }
        let reserved = self.account_reserved(account).0;
        let room = self.free_host() + reserved;
        if let Some(it) = self.accounts.get_mut(&account) {
            it.kept = it.share.guaranteed.min(room);
        }
    }

    /// Forgets a job that is over, once none of its processes is left.
    pub fn forget(&mut self, job: JobId) {
        let last = self.of_job(job).next().is_none();
        if last
            && self.jobs.get(&job).is_some_and(|job| job.over)
            && let Some(job) = self.jobs.remove(&job)
            && let Some(next) = job.next
        {
            self.job(&next);
        }
    }

    /// Has a process ended.
    pub fn end(
        &mut self,
        config: &Config,
        now: u64,
        client: ClientId,
        why: Ended,
        out: &mut Vec<Effect>,
    ) {
        if let Some(it) = self.clients.get_mut(&client)
            && it.ending.is_none()
        {
            it.ending = Some((why, now + config.end_ms));
            out.push(Effect::End { client, why });
        }
    }
}
