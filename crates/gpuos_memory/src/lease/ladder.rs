//! What is done when the node is short of host memory: one step at a time, the mildest first.
//!
//! Notify, demote what is clean, demote what is dirty, park the lowest on NVMe, requeue the lowest. A step that has ended is followed
//! by the next after a time in which pressure may go.

use std::cmp::Reverse;

use super::config::Config;
use super::ids::{ClientId, JobId, Refuge};
use super::input::{Demote, Effect};
use super::ledger::{Asked, Client, Ledger};
use super::reason::{Ended, Notice, Requeued};
use super::record::Place;
use super::times;

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Rung {
    #[default]
    Notify,
    Clean,
    Dirty,
    Park,
    Requeue,
}

/// Where things stand.
#[derive(Default)]
pub(super) struct Ladder {
    /// Host memory is short.
    raised: bool,
    rung: Rung,
    /// A step is under way.
    under_way: bool,
    /// Nothing before this time.
    not_before: u64,
    /// When pressure went.
    calm: u64,
    /// Processes were told of pressure, and not that it went.
    told: bool,
    /// It is short since jobs lose time waiting for memory, and not for what is used: then these jobs alone give something.
    by_stall: bool,
}

impl Ladder {
    pub fn raised(&self) -> bool {
        self.raised
    }

    /// The next step in a word.
    pub fn word(&self) -> &'static str {
        match (self.raised, self.rung) {
            (false, _) => "calm",
            (true, Rung::Notify) => "notify",
            (true, Rung::Clean) => "demote-clean",
            (true, Rung::Dirty) => "demote-dirty",
            (true, Rung::Park) => "park",
            (true, Rung::Requeue) => "requeue",
        }
    }

    /// How the host's memory is doing. Between the two marks all stays as it is. Time that is lost counts only where little is left: a job may
    /// lose it within its own limit, and a node with memory is not short.
    pub fn measure(&mut self, config: &Config, now: u64, free: u64, total: u64, stalled: u32) {
        let used = used(free, total);
        let full = used >= u128::from(config.high);
        let little = used > u128::from(config.low);
        let high = full || (little && stalled >= config.stalled);
        let low = !little || (self.by_stall && !full && stalled <= config.stalled / 4);
        if high || !self.raised {
            self.by_stall = !full && (!self.raised || self.by_stall);
        }
        if high && !self.raised {
            self.raised = true;
            // What comes back soon goes on where it was.
            if now.saturating_sub(self.calm) >= 6 * config.cool_ms {
                self.rung = Rung::Notify;
            }
        } else if low && self.raised {
            self.raised = false;
            self.calm = now;
            self.not_before = now + config.cool_ms;
        }
    }

    /// The next step, where one is due.
    pub fn step(&mut self, config: &Config, ledger: &mut Ledger, now: u64, out: &mut Vec<Effect>) {
        if !self.raised && std::mem::take(&mut self.told) {
            tell(ledger.clients.iter(), Notice::Calm, out);
            for job in ledger.jobs.values_mut() {
                job.told_last = false;
            }
        }
        // What goes on where it was begins with no notice.
        if self.raised && !self.told && self.rung != Rung::Notify {
            tell(ledger.clients.iter(), Notice::Pressure, out);
            self.told = true;
        }
        let waits = pending(config, ledger, now);
        if self.under_way && !waits {
            self.under_way = false;
            self.not_before = self.not_before.max(now + config.cool_ms);
        }
        if waits || now < self.not_before {
            return;
        }
        if !self.raised {
            if let Some(job) = comes_back(ledger) {
                set_stowed(ledger, job, false);
                self.not_before = now + config.cool_ms;
            }
            for client in ledger.clients.values_mut() {
                client.tried = false;
            }
            for job in ledger.jobs.values_mut() {
                job.refused = false;
            }
            return;
        }
        match self.rung {
            Rung::Notify => {
                tell(ledger.clients.iter(), Notice::Pressure, out);
                self.told = true;
                self.rung = Rung::Clean;
                self.not_before = now + config.notice_ms;
                return;
            }
            Rung::Clean => {
                self.rung = Rung::Dirty;
                self.under_way = clean(config, ledger, now, out);
            }
            _ => {}
        }
        // Where a step has nobody to ask, the next one follows at once.
        if !self.under_way && self.rung == Rung::Dirty {
            self.under_way = dirty(config, ledger, now, self.by_stall, out);
            if !self.under_way {
                self.rung = Rung::Park;
            }
        }
        if !self.under_way && self.rung == Rung::Park {
            self.under_way = stow(config, ledger, self.by_stall);
            if !self.under_way {
                self.rung = Rung::Requeue;
            }
        }
        if !self.under_way && self.rung == Rung::Requeue {
            self.under_way = requeue(config, ledger, now, self.by_stall, out);
        }
    }
}

/// What is used, of 1000.
fn used(free: u64, total: u64) -> u128 {
    u128::from(total.saturating_sub(free)) * 1000 / u128::from(total.max(1))
}

/// Whether a job's own memory is above the upper mark, and whether it is below the lower ones.
pub(super) fn marks(config: &Config, free: u64, total: u64, stalled: u32) -> (bool, bool) {
    let used = used(free, total);
    let high = used >= u128::from(config.high) || stalled >= config.stalled;
    let low = used <= u128::from(config.low) && stalled <= config.stalled / 4;
    (high, low)
}

/// Tells processes that can hear it.
pub(super) fn tell<'a>(
    clients: impl Iterator<Item = (&'a ClientId, &'a Client)>,
    notice: Notice,
    out: &mut Vec<Effect>,
) {
    let hear = clients.filter(|(_, client)| client.hears());
    out.extend(hear.map(|(client, _)| Effect::Notify {
        client: *client,
        notice,
    }));
}

/// Something that was asked for is not done yet.
fn pending(config: &Config, ledger: &Ledger, now: u64) -> bool {
    let mut clients = ledger.clients.values();
    let asked = clients.any(|it| {
        let stows = it.place == Place::Parking(Refuge::Nvme);
        // Who hears nothing is not waited for.
        it.ending.is_none() && it.stopped.is_none() && (it.is_waited_for() || stows)
    });
    let mut jobs = ledger.jobs.values();
    let requeued = jobs.any(|job| {
        let since = job.requeued.map(|at| now.saturating_sub(at));
        since.is_some_and(|since| since < config.away_ms)
    });
    asked || requeued
}

/// Who lies past his deadline: he is parked, or ended. Whose own job alone was short has done that to nobody but himself, and is left, and so is
/// everybody where the node is not short any more (`pressed`). What he
/// was to bring to NVMe counts on both sides until he says where it is, or is back on his GPU.
pub(super) fn deaf(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    pressed: bool,
    out: &mut Vec<Effect>,
) {
    let over = |asked: Asked| now >= asked.until && !asked.late;
    let late = |it: &Client| it.hears() && it.asked.is_some_and(over);
    let clients = ledger.clients.iter().filter(|(_, it)| late(it));
    let clients: Vec<(ClientId, JobId)> = clients.map(|(id, it)| (*id, it.job)).collect();
    for (id, job) in clients {
        let client = ledger.clients.get_mut(&id);
        if let Some(client) = client
            && let Some(asked) = client.asked.take()
            && (asked.own || !pressed)
        {
            let late = Asked {
                late: true,
                ..asked
            };
            client.asked = (asked.what == Demote::Dirty).then_some(late);
            continue;
        }
        let resident = ledger.clients[&id].place == Place::Resident;
        if resident && stowable(ledger, job) {
            set_stowed(ledger, job, true);
        } else {
            ledger.end(config, now, id, Ended::DeafUnderPressure, out);
        }
    }
}

/// Everybody who works drops what is elsewhere, too.
fn clean(config: &Config, ledger: &mut Ledger, now: u64, out: &mut Vec<Effect>) -> bool {
    let before = out.len();
    for (id, client) in &mut ledger.clients {
        if client.hears() && client.asked.is_none() && client.place == Place::Resident {
            ask(config, now, (*id, client), Demote::Clean, false, out);
        }
    }
    out.len() > before
}

/// Asks a process to demote. `own`: since its own job is short.
pub(super) fn ask(
    config: &Config,
    now: u64,
    (id, client): (ClientId, &mut Client),
    what: Demote,
    own: bool,
    out: &mut Vec<Effect>,
) {
    let deadline_ms = demote_until(config, now, client);
    client.asked = Some(Asked {
        what,
        until: deadline_ms,
        own,
        again: false,
        late: false,
    });
    out.push(Effect::Demote {
        client: id,
        what,
        deadline_ms,
    });
}

/// When a process has to have demoted.
pub(super) fn demote_until(config: &Config, now: u64, client: &Client) -> u64 {
    now + config.demote_ms + times::nvme_ms(config, client.leaving)
}

/// Jobs from which something may be taken, the lowest first; of equal rank those first that wait for memory themselves. `by_stall`: of these
/// alone.
fn lowest(config: &Config, ledger: &Ledger, by_stall: bool) -> Vec<JobId> {
    let stalls = |id: &JobId| ledger.jobs[id].stalled >= config.stalled;
    let jobs = ledger.jobs.keys().copied();
    let mut jobs: Vec<JobId> = jobs
        .filter(|id| ledger.may_give(*id) && (!by_stall || stalls(id)))
        .collect();
    jobs.sort_by_key(|id| {
        let job = &ledger.jobs[id];
        (job.spec.rank, !stalls(id), Reverse(job.arrived))
    });
    jobs
}

/// One process that is parked in host memory goes to NVMe.
fn dirty(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    by_stall: bool,
    out: &mut Vec<Effect>,
) -> bool {
    for job in lowest(config, ledger, by_stall) {
        let room = ledger.nvme_room(job);
        let found = ledger.of_job(job).find(|(_, it)| {
            let has = it.leases.values().filter(|it| !it.fresh);
            let has: u64 = has.map(|it| it.refuge_host).sum();
            let parked = it.place == Place::Parked(Refuge::Host);
            parked
                && it.hears()
                && it.by_driver.is_none()
                && !it.tried
                && it.asked.is_none()
                && has > 0
                && it.refuge_host() <= room
        });
        let Some(id) = found.map(|(id, _)| id) else {
            continue;
        };
        if let Some(client) = ledger.clients.get_mut(&id) {
            client.leaving = client.refuge_host();
            client.tried = true;
            ask(config, now, (id, client), Demote::Dirty, false, out);
        }
        return true;
    }
    false
}

/// What a process freed by demoting.
pub(super) fn demoted(client: &mut Client, bytes: u64) {
    let dirty = client.asked.is_some_and(|it| it.what == Demote::Dirty);
    if let (Place::Parking(_), true) = (client.place, dirty) {
        // It was late, and was told since to come back and to park: what then goes where it knows. Until it has, so much is on NVMe.
        client.leaving = bytes.min(client.leaving);
        return;
    }
    client.asked = None;
    if !dirty {
        if !matches!(client.place, Place::Parking(_)) {
            client.works_until = None;
        }
        return;
    }
    let mut moved = bytes.min(client.leaving);
    client.leaving = 0;
    for lease in client.leases.values_mut() {
        let part = moved.min(lease.refuge_host);
        lease.refuge_host -= part;
        lease.refuge_nvme += part;
        moved -= part;
    }
}

/// All of its processes that work can go to NVMe now.
fn stowable(ledger: &Ledger, job: JobId) -> bool {
    let given = &ledger.jobs[&job];
    if !ledger.may_give(job) || given.stowed || given.refused {
        return false;
    }
    let works = |it: &Client| it.place == Place::Resident;
    let still = |it: &Client| matches!(it.place, Place::Resident | Place::Parked(Refuge::Host));
    let takes = ledger.of_job(job).filter(|(_, it)| works(it));
    let takes: u64 = takes.map(|(_, it)| it.whole()).sum();
    takes > 0
        && takes <= ledger.nvme_room(job)
        && ledger.of_job(job).all(|(_, it)| it.hears() && still(it))
}

/// The lowest job is parked on NVMe.
fn stow(config: &Config, ledger: &mut Ledger, by_stall: bool) -> bool {
    let job = lowest(config, ledger, by_stall)
        .into_iter()
        .find(|job| stowable(ledger, *job));
    job.is_some_and(|job| {
        set_stowed(ledger, job, true);
        true
    })
}

fn set_stowed(ledger: &mut Ledger, job: JobId, stowed: bool) {
    if let Some(job) = ledger.jobs.get_mut(&job) {
        job.stowed = stowed;
    }
}

/// The highest of those on NVMe for which there is room.
fn comes_back(ledger: &Ledger) -> Option<JobId> {
    let stowed = ledger
        .jobs
        .iter()
        .filter(|(_, job)| job.stowed && !job.over);
    let mut jobs: Vec<JobId> = stowed.map(|(id, _)| *id).collect();
    jobs.sort_by_key(|id| {
        let job = &ledger.jobs[id];
        (Reverse(job.spec.rank), job.arrived)
    });
    jobs.into_iter().find(|job| {
        let away = ledger
            .of_job(*job)
            .filter(|(_, it)| it.place == Place::Parked(Refuge::Nvme));
        let takes: u64 = away.map(|(_, it)| it.in_host()).sum();
        takes <= ledger.host_room(*job) && takes <= ledger.quota_room(*job)
    })
}

/// The lowest job that may be is requeued; those that may not are told, once. One for which that did not happen is asked for again.
fn requeue(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    by_stall: bool,
    out: &mut Vec<Effect>,
) -> bool {
    let mut lowest = lowest(config, ledger, by_stall);
    for id in &lowest {
        let job = &ledger.jobs[id];
        if !job.may_requeue && !job.told_last {
            let own = ledger.clients.iter().filter(|(_, it)| it.job == *id);
            tell(own, Notice::NoRequeue, out);
        }
    }
    for id in &lowest {
        if let Some(job) = ledger.jobs.get_mut(id) {
            job.told_last |= !job.may_requeue;
        }
    }
    lowest.retain(|id| ledger.jobs[id].may_requeue);
    let again = lowest.iter().find(|id| ledger.jobs[id].requeued.is_some());
    let Some(id) = again.or(lowest.first()).copied() else {
        return false;
    };
    if let Some(job) = ledger.jobs.get_mut(&id) {
        job.requeued = Some(now);
    }
    let why = Requeued::Pressure;
    out.push(Effect::Requeue { job: id, why });
    true
}
