//! Processes that the driver parks by its own checkpoint calls, since nothing of them can be moved while they run.
//!
//! The driver stops a process whole, brings all that it has on its GPUs to host memory of the process itself, and back. So it is the driver
//! who says how far that is, never the process, and it needs no connection to the process. What the process cannot move itself is more than
//! its lease: contexts and small allocations go along, which have to have room in its job's memory too.

use super::config::Config;
use super::ids::{ClientId, Refuge};
use super::input::Effect;
use super::ledger::Ledger;
use super::reason::Ended;
use super::record::Place;
use super::{returns, times};

/// A process that was told to park cannot. Where the driver may do it, it is begun; else its deadline goes on. Said again it changes nothing.
pub(super) fn pinned(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    bytes: u64,
    out: &mut Vec<Effect>,
) {
    let Some(it) = ledger.clients.get_mut(&client) else {
        return;
    };
    let told = it.place == Place::Parking(Refuge::Host) && it.by_driver.is_none();
    it.pinned |= told;
    let Some(it) = ledger.clients.get(&client) else {
        return;
    };
    // The driver brings all of it to host memory.
    let goes = it.hears() && it.on_nvme(Refuge::Host) == 0;
    let beyond = bytes.saturating_sub(it.refuge_host());
    // What nobody has measured cannot be promised.
    let has_room = bytes > 0 && beyond <= ledger.room_of_own(it.job);
    if !(config.checkpoints && told && goes && has_room) {
        return;
    }
    if let Some(it) = ledger.clients.get_mut(&client) {
        it.by_driver = Some(beyond);
        it.told = now;
        it.until = it.until(it.place, times::park_until(config, now, it, Refuge::Host));
        out.push(it.to_park(client, Refuge::Host));
    }
}

/// The driver has taken it out of its GPUs.
pub(super) fn done(config: &Config, ledger: &mut Ledger, now: u64, client: ClientId, took_ms: u64) {
    if let Some(it) = ledger.clients.get_mut(&client)
        && let (Place::Parking(Refuge::Host), Some(_)) = (it.place, it.by_driver)
    {
        it.place = Place::Parked(Refuge::Host);
        it.arrived();
        it.park_ms = times::measured_ms(config, now, it, it.park_ms, took_ms);
    }
}

/// The driver has not. Others wait for the GPU, so the process is ended where the driver refuses or its time is over; before that it is tried
/// again. One that is stopped cannot be locked by the driver, and is told anew when it goes on, if the driver does not hold it.
pub(super) fn failed(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    (refused, runs_on): (bool, bool),
    out: &mut Vec<Effect>,
) {
    let Some(it) = ledger.clients.get_mut(&client) else {
        return;
    };
    if it.place != Place::Parking(Refuge::Host) || it.by_driver.is_none() {
        return;
    }
    let stopped = it.stopped.is_some();
    let ends = !stopped && (refused || now >= it.until);
    if runs_on && (stopped || ends) {
        it.by_driver = None;
    }
    if runs_on && stopped {
        it.place = Place::Resident;
    }
    if ends {
        ledger.end(config, now, client, Ended::NotCheckpointed, out);
    }
}

/// Has the driver called again for those whom it has not brought to where they are to be, while they have time for it: it may have failed as
/// they were stopped, or as whoever called it was killed.
pub(super) fn try_again(ledger: &Ledger, now: u64, out: &mut Vec<Effect>) {
    let clients = ledger.clients.iter();
    for (id, it) in clients.filter(|(_, it)| it.by_driver.is_some() && it.hears()) {
        match it.place {
            Place::Parking(to) if now < it.until => out.push(it.to_park(*id, to)),
            Place::Returning(_) if now < it.until => out.push(it.to_come_back(*id)),
            _ => {}
        }
    }
}

/// The driver has brought it back, and it works. From now on it has to be heard of again.
pub(super) fn back(config: &Config, ledger: &mut Ledger, now: u64, client: ClientId, took_ms: u64) {
    if let Some(it) = ledger.clients.get_mut(&client)
        && let (Place::Returning(_), Some(_)) = (it.place, it.by_driver)
    {
        (it.place, it.by_driver) = (Place::Resident, None);
        it.arrived();
        it.back_ms = times::measured_ms(config, now, it, it.back_ms, took_ms);
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
