//! Processes that do not get where they were told to be in time: since work that they gave to their GPUs before is not done, or since
//! they hear nothing.
//!
//! A kernel ends when it ends, and a program may have given many at once. Who says that it waits for them has the time that the site gives,
//! and goes on using its GPU meanwhile, which counts as its turn. Who says nothing is ended after the usual time; nobody is for whom nobody waits.

use super::config::Config;
use super::ids::{ClientId, Refuge};
use super::input::Demote;
use super::ledger::{Ledger, Turn};
use super::reason::Ended;
use super::record::Place;
use super::{returns, stopped};

/// A process has heard what it was told, and waits for its own work.
pub(super) fn says_so(config: &Config, ledger: &mut Ledger, now: u64, client: ClientId) {
    let known = ledger.clients.get(&client);
    // Nobody is sent to NVMe but under pressure.
    let waits = known.is_some_and(|it| {
        it.place == Place::Parking(Refuge::Nvme) || stopped::is_waited_for(ledger, it)
    });
    let Some(it) = ledger.clients.get_mut(&client) else {
        return;
    };
    let parks = matches!(it.place, Place::Parking(_)) && it.by_driver.is_none();
    let asked = it.asked.is_some_and(|asked| asked.what == Demote::Clean);
    if it.ending.is_some() || !(parks || asked) {
        return;
    }
    // What it takes while nobody waits is nobody's business.
    it.works_until.take_if(|_| parks && !waits);
    let most = *it.works_until.get_or_insert(now + config.work_ms);
    let until = most.min(now + config.switch_ms);
    if parks {
        it.until = it.until.max(until);
        if let Some((_, owed)) = &mut it.owed {
            *owed = (*owed).max(until);
        }
    }
    if let Some(asked) = it.asked.as_mut().filter(|_| asked) {
        asked.until = asked.until.max(until);
    }
}

/// What the time for a process is over for: why it is ended, or `None` where nobody waits for it, and it has more time.
pub(super) fn overdue(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    client: ClientId,
    pressed: bool,
) -> Option<Ended> {
    let it = ledger.clients.get(&client)?;
    let by_driver = it.by_driver.is_some();
    let why = returns::missed(it.place, by_driver)?;
    let waits = stopped::is_waited_for(ledger, it);
    let pressure = match it.place {
        Place::Parking(Refuge::Nvme) => pressed,
        // What comes back from there has room on both, which others may need.
        Place::Returning(_) => pressed || !ledger.in_turns(it.job),
        _ => false,
    };
    if waits || pressure || by_driver {
        if it.pinned && why == Ended::Deaf {
            return Some(Ended::NotCheckpointed);
        }
        // Who has said nothing since is deaf.
        let over = it.works_until.is_some_and(|most| now >= most);
        let worked = over && matches!(it.place, Place::Parking(_));
        let seconds = config.work_ms / 1000;
        return Some(if worked {
            Ended::Works { seconds }
        } else {
            why
        });
    }
    let it = ledger.clients.get_mut(&client)?;
    it.until = now + config.switch_ms;
    it.owed = None;
    None
}

/// A process has parked, and took so long for the moving alone: that it used its GPU before, after its turn, counts.
pub(super) fn count(ledger: &mut Ledger, now: u64, client: ClientId, took_ms: u64) {
    let Some(it) = ledger.clients.get(&client) else {
        return;
    };
    let worked = now.saturating_sub(it.told).saturating_sub(took_ms);
    let works = it.works_until.is_some();
    if let Some(job) = ledger.jobs.get_mut(&it.job).filter(|_| works)
        && job.turn == Turn::Waits
    {
        job.gpu_ms += worked;
        job.fair_ms += worked;
    }
}
