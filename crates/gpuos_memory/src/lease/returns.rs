//! Processes that are there again after they had no connection.
//!
//! What they were told before they may not have heard: it is said again, and they have the time for it anew, once. Else who loses his
//! connection again and again would never have to do it.

use super::config::Config;
use super::ids::{At, ClientId, Refuge};
use super::input::Effect;
use super::ledger::{Client, Ledger};
use super::reason::Ended;
use super::record::Place;
use super::{ladder, times};

/// A process is there again. What it says has to be possible; the journal knows better. Who was not away has nothing to return from.
pub(super) fn returned(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    at: At,
    out: &mut Vec<Effect>,
) {
    let job = ledger.clients.get(&client).map(|it| it.job);
    let in_turns = job.is_some_and(|job| ledger.in_turns(job));
    let Some(it) = was_away(ledger, client) else {
        return;
    };
    // Where it is the driver knows, and what is to be done with it the driver was told.
    if it.by_driver.is_some() {
        return;
    }
    // What it owes, or else why it has to end.
    let (place, why) = match (it.place, at) {
        (Place::Parking(_), At::Gpu) => (Place::Resident, owes(config, now, it)),
        (Place::Returning(from), At::Parked(it_is)) if from == it_is => {
            (Place::Parked(from), owes(config, now, it))
        }
        (Place::Resident | Place::Returning(_), At::Gpu) => (Place::Resident, None),
        // It never heard that it may work.
        (Place::Resident, At::Parked(Refuge::Host)) if in_turns => {
            (Place::Parked(Refuge::Host), None)
        }
        (Place::Parked(known) | Place::Parking(known), At::Parked(it_is)) if known == it_is => {
            (Place::Parked(known), None)
        }
        (place, _) => (place, Some(Ended::Elsewhere)),
    };
    if let Some(why) = why {
        ledger.end(config, now, client, why, out);
        return;
    }
    it.place = place;
    say_again(config, now, client, it, out);
}

/// A process asks: so it is there.
pub(super) fn is_there(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    out: &mut Vec<Effect>,
) {
    let Some(it) = was_away(ledger, client) else {
        return;
    };
    if it.by_driver.is_some() {
        return;
    }
    match owes(config, now, it) {
        Some(why) => ledger.end(config, now, client, why, out),
        None => say_again(config, now, client, it, out),
    }
}

/// A process that was away, and is not any more.
fn was_away(ledger: &mut Ledger, client: ClientId) -> Option<&mut Client> {
    let it = ledger.clients.get_mut(&client)?;
    it.away.take().is_some().then_some(it)
}

/// Remembers until when it has to get where it was told to, from the first time that it is there again. Why it is to end, if that time is
/// over.
fn owes(config: &Config, now: u64, it: &mut Client) -> Option<Ended> {
    let why = missed(it.place, false)?;
    let until = match it.place {
        Place::Parking(to) => times::park_until(config, now, it, to),
        Place::Returning(from) => times::back_until(config, now, it, from),
        Place::Resident | Place::Parked(_) => return None,
    };
    let until = it.until(it.place, until);
    it.owed = Some((it.place, until));
    (now >= until && it.stopped.is_none()).then_some(why)
}

/// Why a process is ended that does not get to where it is on its way.
pub(super) fn missed(place: Place, by_driver: bool) -> Option<Ended> {
    match place {
        Place::Parking(Refuge::Host) if by_driver => Some(Ended::NotCheckpointed),
        Place::Parking(Refuge::Host) => Some(Ended::Deaf),
        // Nobody is sent there but under pressure.
        Place::Parking(Refuge::Nvme) => Some(Ended::DeafUnderPressure),
        Place::Returning(_) => Some(Ended::NotBack),
        Place::Resident | Place::Parked(_) => None,
    }
}

/// Says what a process may not have heard, with a new deadline as far as it has not had one.
pub(super) fn say_again(
    config: &Config,
    now: u64,
    client: ClientId,
    it: &mut Client,
    out: &mut Vec<Effect>,
) {
    match it.place {
        Place::Parking(to) => {
            it.told = now;
            it.until = it.until(it.place, times::park_until(config, now, it, to));
            out.push(it.to_park(client, to));
        }
        Place::Returning(from) => {
            it.told = now;
            it.until = it.until(it.place, times::back_until(config, now, it, from));
            out.push(it.to_come_back(client));
        }
        _ => {}
    }
    let until = ladder::demote_until(config, now, it);
    if let Some(asked) = &mut it.asked {
        if !std::mem::replace(&mut asked.again, true) {
            (asked.until, asked.late) = (until, false);
        }
        out.push(Effect::Demote {
            client,
            what: asked.what,
            deadline_ms: asked.until,
        });
    }
}
