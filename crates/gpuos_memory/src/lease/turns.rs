//! Whose turn it is on GPUs that are shared in turns.
//!
//! Jobs that fit beside each other all work. Where they do not, one job has the GPU at a time, on all of its GPUs together: its
//! processes may wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Config;
use super::ids::{ClientId, GpuId, JobId};
use super::input::Effect;
use super::ledger::{Client, Job, Ledger, Turn};
use super::moves::{move_all, others};
use super::reason::Notice;
use super::record::Place;
use super::stopped::is_stopped;
use super::times::{first_ms, guess, quantum_ms, smooth};

/// Turns that say whether turns are worth it.
const TELLING: u32 = 3;

/// Counts GPU time, from the last step to this one.
pub(super) fn count(ledger: &mut Ledger, ms: u64) {
    for job in ledger.jobs.values_mut() {
        if let Turn::Holds { since: Some(_) } = job.turn {
            job.gpu_ms += ms;
            job.fair_ms += ms;
        }
    }
}

/// Who comes, or has work again while it waits, begins with the least that those beside it have: it gets no time for when it was away. What
/// it had before they came is held against it for one turn at most.
pub(super) fn catch_up(config: &Config, ledger: &mut Ledger, job: JobId, waits: bool) {
    let beside = beside(ledger, job);
    let beside = beside.iter().filter(|it| wants(ledger, **it));
    let times: Vec<u64> = beside.map(|it| ledger.jobs[it].fair_ms).collect();
    let bounds = times.iter().min().zip(times.iter().max());
    if let (Some((least, most)), Some(job)) = (bounds, ledger.jobs.get_mut(&job)) {
        let most = most.saturating_add(config.longest_ms);
        job.fair_ms = job.fair_ms.min(most);
        if waits {
            job.fair_ms = job.fair_ms.max(*least);
        }
    }
}

/// Other jobs that have something on a GPU of this one.
fn beside(ledger: &Ledger, job: JobId) -> BTreeSet<JobId> {
    let mut beside = BTreeSet::new();
    for gpu in gpus(ledger, job) {
        beside.extend(ledger.needs(gpu, false).into_keys());
    }
    beside.remove(&job);
    beside
}

/// GPUs on which a job has something.
fn gpus(ledger: &Ledger, job: JobId) -> BTreeSet<GpuId> {
    let clients = ledger.of_job(job);
    clients
        .flat_map(|(_, it)| it.leases.keys().copied())
        .collect()
}

/// It has work, or waits with work.
fn wants(ledger: &Ledger, job: JobId) -> bool {
    let mut clients = ledger.of_job(job);
    clients.any(|(_, it)| it.hears() && it.idle.is_none() && !it.leases.is_empty())
}

/// Since when all of it has no work.
fn idle(ledger: &Ledger, job: JobId) -> Option<u64> {
    let clients = ledger.of_job(job).filter(|(_, it)| it.hears());
    let since: Option<Vec<u64>> = clients.map(|(_, it)| it.idle).collect();
    since?.into_iter().max()
}

/// What a switch from this job to one beside it takes, in ms, at worst.
pub(super) fn switch_ms(config: &Config, ledger: &Ledger, job: JobId) -> u64 {
    let most = |job, took: fn(&Client) -> Option<u64>| {
        let clients = ledger.of_job(job);
        clients
            .map(|(_, it)| took(it).unwrap_or_else(|| guess(config, it.hbm())))
            .max()
            .unwrap_or(0)
    };
    let back = beside(ledger, job).into_iter();
    most(job, |it| it.park_ms) + back.map(|it| most(it, |it| it.back_ms)).max().unwrap_or(0)
}

/// Both ways of a switch from this job to one beside it were measured.
fn measured(ledger: &Ledger, job: JobId) -> bool {
    let own = ledger.of_job(job).all(|(_, it)| it.park_ms.is_some());
    let beside = beside(ledger, job);
    let mut others = beside.iter().flat_map(|it| ledger.of_job(*it));
    own && others.any(|(_, it)| it.back_ms.is_some())
}

/// All of its processes are being ended, or it has none.
fn ends(ledger: &Ledger, job: JobId) -> bool {
    ledger.of_job(job).all(|(_, it)| it.ending.is_some())
}

/// Its turn is over as soon as somebody waits for one.
fn over(config: &Config, ledger: &Ledger, now: u64, id: JobId) -> bool {
    let job = &ledger.jobs[&id];
    if is_stopped(ledger, id) {
        return true;
    }
    let Turn::Holds { since: Some(since) } = job.turn else {
        return false;
    };
    let switch = switch_ms(config, ledger, id);
    let serial = job.serial || job.thrashed;
    let patience = config
        .idle_ms
        .max(if serial { 10 * switch } else { switch });
    if idle(ledger, id).is_some_and(|idle| now.saturating_sub(idle.max(since)) >= patience) {
        return true;
    }
    let quantum = quantum_ms(config, switch, false).filter(|_| !job.serial);
    let quantum = quantum.map(|quantum| match measured(ledger, id) {
        true => quantum,
        false => quantum.min(first_ms(config, switch)),
    });
    quantum.is_some_and(|quantum| now.saturating_sub(since) >= quantum)
}

/// Learns from a turn that is over by itself what it was worth.
fn learn(config: &Config, ledger: &mut Ledger, now: u64, id: JobId) {
    // One that went by a guess says nothing of what turns are worth.
    if !measured(ledger, id) {
        return;
    }
    let switch = switch_ms(config, ledger, id);
    let idle = idle(ledger, id);
    if let Some(job) = ledger.jobs.get_mut(&id)
        && let Turn::Holds { since: Some(since) } = job.turn
    {
        let until = idle.map_or(now, |idle| idle.max(since));
        let worked = until.saturating_sub(since);
        let worth = worked * 1000 / (worked + switch).max(1);
        let before = (job.turns > 0).then_some(job.worth);
        job.worth = smooth(before, worth).unwrap_or(worth);
        job.turns += 1;
        job.thrashed |= job.turns >= TELLING && job.worth < config.worth;
    }
}

fn dismiss(ledger: &mut Ledger, id: JobId) {
    if let Some(job) = ledger.jobs.get_mut(&id) {
        job.turn = Turn::Waits;
    }
}

/// Decides whose turn it is, and has processes park and come back.
///
/// `asking`: a process that asks just now, and is told with the answer that it may work.
pub(super) fn decide(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    asking: Option<ClientId>,
    out: &mut Vec<Effect>,
) {
    let jobs: Vec<JobId> = turned(ledger, |job| !job.stowed);
    let sliced: BTreeSet<GpuId> = all_gpus(ledger, &jobs)
        .into_iter()
        .filter(|gpu| ledger.sliced(*gpu))
        .collect();
    let contested: BTreeMap<JobId, BTreeSet<GpuId>> = jobs
        .iter()
        .map(|job| (*job, &gpus(ledger, *job) & &sliced))
        .collect();
    for id in turned(ledger, |job| job.stowed) {
        dismiss(ledger, id);
    }
    for (id, gpus) in &contested {
        if ends(ledger, *id) {
            dismiss(ledger, *id);
        } else if gpus.is_empty()
            && let Some(job) = ledger.jobs.get_mut(id)
            && job.turn == Turn::Waits
        {
            job.turn = Turn::Holds { since: None };
        }
    }
    worth(config, ledger, &contested, out);
    holders(config, ledger, now, &contested);
    move_all(config, ledger, now, asking, out);
}

fn turned(ledger: &Ledger, which: fn(&Job) -> bool) -> Vec<JobId> {
    let jobs = ledger.jobs.iter();
    let jobs = jobs.filter(|(_, job)| job.spec.timeslice && which(job));
    let jobs = jobs.map(|(id, _)| *id);
    jobs.filter(|id| ledger.of_job(*id).next().is_some())
        .collect()
}

fn all_gpus(ledger: &Ledger, jobs: &[JobId]) -> BTreeSet<GpuId> {
    jobs.iter().flat_map(|job| gpus(ledger, *job)).collect()
}

/// Whether turns are worth it beside who is there now, and tells those that it is about.
fn worth(
    config: &Config,
    ledger: &mut Ledger,
    contested: &BTreeMap<JobId, BTreeSet<GpuId>>,
    out: &mut Vec<Effect>,
) {
    let around: BTreeMap<JobId, Vec<JobId>> = contested
        .keys()
        .map(|id| (*id, beside(ledger, *id).into_iter().collect()))
        .collect();
    for (id, around) in &around {
        if let Some(job) = ledger.jobs.get_mut(id)
            && job.beside != *around
        {
            job.beside.clone_from(around);
            (job.turns, job.thrashed) = (0, false);
        }
    }
    let mut tell: BTreeMap<JobId, Notice> = BTreeMap::new();
    for (id, gpus) in contested {
        let around = &around[id];
        let switch = switch_ms(config, ledger, *id);
        let thrashed = |id: &JobId| ledger.jobs.get(id).is_some_and(|job| job.thrashed);
        // Who gives up its turns at once has the others switch as often.
        let thrashed = thrashed(id) || around.iter().any(thrashed);
        let Some(job) = ledger.jobs.get_mut(id) else {
            continue;
        };
        let before = job.serial;
        let long = quantum_ms(config, switch, before).is_none();
        job.serial = !gpus.is_empty() && (long || thrashed);
        let notice = match (before, job.serial) {
            (false, true) => Notice::Serialised { switch_ms: switch },
            (true, false) if !gpus.is_empty() => Notice::Sliced,
            _ => continue,
        };
        for told in around.iter().chain([id]) {
            tell.entry(*told).or_insert(notice);
        }
    }
    for (job, notice) in tell {
        for (client, it) in ledger.of_job(job) {
            if it.hears() {
                out.push(Effect::Notify { client, notice });
            }
        }
    }
}

/// One holder for each GPU on which jobs do not fit beside each other.
fn holders(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    contested: &BTreeMap<JobId, BTreeSet<GpuId>>,
) {
    let fair = |ledger: &Ledger, id: &JobId| {
        let job = &ledger.jobs[id];
        (job.fair_ms, job.arrived)
    };
    let holds = |ledger: &Ledger, id: &JobId| matches!(ledger.jobs[id].turn, Turn::Holds { .. });
    let mut order: Vec<JobId> = contested
        .iter()
        .filter(|(_, gpus)| !gpus.is_empty())
        .map(|(id, _)| *id)
        .collect();
    order.sort_by_key(|id| fair(ledger, id));
    let mut taken: BTreeMap<GpuId, JobId> = BTreeMap::new();
    for id in &order {
        let none = ledger.jobs[id].turn == (Turn::Holds { since: None });
        if none && cannot_come(ledger, *id, &contested[id]) && !has_any(ledger, *id) {
            dismiss(ledger, *id);
        }
    }
    // Those that were all there before somebody came for whom there is no room.
    for id in order
        .iter()
        .filter(|id| holds(ledger, id))
        .copied()
        .collect::<Vec<_>>()
    {
        match contested[&id].iter().any(|gpu| taken.contains_key(gpu)) {
            true => dismiss(ledger, id),
            false => taken.extend(contested[&id].iter().map(|gpu| (*gpu, id))),
        }
    }
    let mut reserved: BTreeSet<GpuId> = BTreeSet::new();
    for id in order {
        if holds(ledger, &id) || !wants(ledger, id) || parks(ledger, id) {
            continue;
        }
        let gpus = &contested[&id];
        let before: BTreeSet<JobId> = gpus
            .iter()
            .filter_map(|it| taken.get(it).copied())
            .collect();
        if cannot_come(ledger, id, gpus) {
            // Nothing is kept for it. Who is stopped gives way to it all the same.
            for other in before
                .into_iter()
                .filter(|it| is_stopped(ledger, *it))
                .collect::<Vec<_>>()
            {
                learn(config, ledger, now, other);
                dismiss(ledger, other);
                taken.retain(|_, holder| *holder != other);
            }
            continue;
        }
        let free = gpus.is_disjoint(&reserved);
        if !free || !before.iter().all(|it| over(config, ledger, now, *it)) {
            // Nobody behind it in the order takes a part of what it waits for.
            reserved.extend(gpus);
            continue;
        }
        for other in before {
            learn(config, ledger, now, other);
            dismiss(ledger, other);
            taken.retain(|_, holder| *holder != other);
        }
        taken.extend(gpus.iter().map(|gpu| (*gpu, id)));
        if let Some(job) = ledger.jobs.get_mut(&id) {
            job.turn = Turn::Holds { since: None };
        }
    }
}

/// On one of these GPUs there can be no room for a job: it has become smaller, or those stay there who are stopped.
fn cannot_come(ledger: &Ledger, id: JobId, gpus: &BTreeSet<GpuId>) -> bool {
    gpus.iter().any(|gpu| {
        let needs: u64 = ledger
            .of_job(id)
            .filter_map(|(_, it)| it.leases.get(gpu))
            .map(|it| it.hbm)
            .sum();
        let stay = others(ledger, id, *gpu).filter(|it| it.stopped.is_some());
        let stay: u64 = stay.map(|it| it.resident(*gpu)).sum();
        let most = match stay {
            0 => ledger.free_of(*gpu),
            _ => ledger.for_turns(*gpu),
        };
        needs + stay > most
    })
}

/// Something of it is on a GPU.
fn has_any(ledger: &Ledger, id: JobId) -> bool {
    let mut clients = ledger.of_job(id);
    clients.any(|(_, it)| it.leases.keys().any(|gpu| it.resident(*gpu) > 0))
}

/// Some of it is being parked.
fn parks(ledger: &Ledger, job: JobId) -> bool {
    let mut clients = ledger.of_job(job);
    clients.any(|(_, it)| it.hears() && matches!(it.place, Place::Parking(_)))
}
