//! Processes that the driver parks by its own checkpoint calls, since nothing of them can be moved while they run.
//!
//! The driver stops a process whole, brings all that it has on its GPUs to host memory of the process itself, and back. So it is the driver
//! who says how far that is, never the process, and it needs no connection to the process. What the process cannot move itself is more than
//! its lease: contexts and small allocations go along, which have to have room in its job's memory too.

use super::config::Config;
use super::ids::{ClientId, JobId, Refuge};
use super::input::Effect;
use super::ledger::Ledger;
use super::reason::Ended;
use super::record::Place;
use super::{returns, turns};

/// A process that was told to park cannot. Where the driver may do it, it is begun; else its deadline goes on. Said again it changes nothing.
pub(super) fn pinned(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    bytes: u64,
    out: &mut Vec<Effect>,
) {
    let Some(it) = ledger.clients.get(&client) else {
        return;
    };
    let told = it.place == Place::Parking(Refuge::Host) && it.by_driver.is_none();
    // The driver brings all of it to host memory.
    let goes = it.hears() && it.on_nvme(Refuge::Host) == 0;
    let beyond = bytes.saturating_sub(it.refuge_host());
    if !(config.checkpoints && told && goes && beyond <= room(ledger, it.job)) {
        return;
    }
    if let Some(it) = ledger.clients.get_mut(&client) {
        it.by_driver = Some(beyond);
        it.told = now;
        it.until = it.until(it.place, turns::park_until(config, now, it, Refuge::Host));
        out.push(it.to_park(client, Refuge::Host));
    }
}

/// Host memory that a job could be promised beyond what it has: of its own by the workload manager's record, its account's and the node's.
fn room(ledger: &Ledger, job: JobId) -> u64 {
    let given = ledger.jobs.get(&job).map_or(0, |it| it.spec.host);
    let left = given.saturating_sub(ledger.charge(job).host);
    left.min(ledger.quota_room(job)).min(ledger.host_room(job))
}

/// The driver has taken it out of its GPUs.
pub(super) fn done(config: &Config, ledger: &mut Ledger, now: u64, client: ClientId, took_ms: u64) {
    if let Some(it) = ledger.clients.get_mut(&client)
        && let (Place::Parking(Refuge::Host), Some(_)) = (it.place, it.by_driver)
    {
        it.place = Place::Parked(Refuge::Host);
        it.arrived();
        it.park_ms = turns::measured_ms(config, now, it, it.park_ms, took_ms);
    }
}

/// The driver has not, and the process is as it was. Others wait for the GPU, so it is ended; one that is stopped cannot be locked by the
/// driver, and is told anew when it goes on.
pub(super) fn failed(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    out: &mut Vec<Effect>,
) {
    let Some(it) = ledger.clients.get_mut(&client) else {
        return;
    };
    if it.place != Place::Parking(Refuge::Host) || it.by_driver.is_none() {
        return;
    }
    it.by_driver = None;
    match it.stopped {
        Some(_) => it.place = Place::Resident,
        None => ledger.end(config, now, client, Ended::NotCheckpointed, out),
    }
}

/// The driver has brought it back, and it works. From now on it has to be heard of again.
pub(super) fn back(config: &Config, ledger: &mut Ledger, now: u64, client: ClientId, took_ms: u64) {
    if let Some(it) = ledger.clients.get_mut(&client)
        && let (Place::Returning(_), Some(_)) = (it.place, it.by_driver)
    {
        (it.place, it.by_driver) = (Place::Resident, None);
        it.arrived();
        it.back_ms = turns::measured_ms(config, now, it, it.back_ms, took_ms);
        it.away = it.away.map(|_| now + config.away_ms);
    }
}

/// After a restart: what the driver was told is said again. It knows how far it has come, also where nobody heard of that any more.
pub(super) fn say_again(config: &Config, ledger: &mut Ledger, now: u64, out: &mut Vec<Effect>) {
    for (id, it) in &mut ledger.clients {
        if it.by_driver.is_some() && it.ending.is_none() {
            returns::say_again(config, now, *id, it, out);
        }
    }
}
