//! Has processes park and come back, as far as there is room: whose turn it is was decided before.

use super::config::Config;
use super::ids::{ClientId, GpuId, JobId, Refuge};
use super::input::Effect;
use super::ledger::{Client, Ledger, Turn};
use super::record::Place;
use super::times::{back_until, park_until};

/// Brings processes to where they have to be, as far as there is room.
///
/// `asking`: a process that asks just now, and is told with the answer that it may work.
pub(super) fn move_all(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    asking: Option<ClientId>,
    out: &mut Vec<Effect>,
) {
    let clients: Vec<ClientId> = ledger.clients.keys().copied().collect();
    for id in clients {
        let client = &ledger.clients[&id];
        let job = &ledger.jobs[&client.job];
        if !client.hears() || client.leases.is_empty() {
            continue;
        }
        let works = !job.spec.timeslice || matches!(job.turn, Turn::Holds { .. });
        let to = match (job.stowed, works) {
            (true, _) => Some(Refuge::Nvme),
            (false, true) => None,
            (false, false) => Some(Refuge::Host),
        };
        let there = match to {
            Some(to) => Place::Parked(to),
            None => Place::Resident,
        };
        if client.place == there
            && client.owed.is_some()
            && let Some(client) = ledger.clients.get_mut(&id)
        {
            client.owed = None;
        }
        let client = &ledger.clients[&id];
        // Who has nothing yet and asks just now is told with the answer.
        let new = asking == Some(id) && client.leases.values().all(|it| it.fresh);
        match (client.place, to) {
            (Place::Resident, Some(Refuge::Nvme))
                if ledger.nvme_room(client.job) < client.whole() =>
            {
                let job = client.job;
                if let Some(job) = ledger.jobs.get_mut(&job) {
                    job.stowed = false;
                }
            }
            (Place::Resident | Place::Parked(Refuge::Host), Some(Refuge::Host)) if new => {
                place(ledger, id, Place::Parked(Refuge::Host));
            }
            // Who comes back is told at once, too, and parks when it has. From NVMe it comes first: what it has counts on both.
            // What the driver does it does to its end.
            (Place::Returning(Refuge::Host), Some(Refuge::Host)) if client.by_driver.is_none() => {
                park(config, ledger, now, id, Refuge::Host, out);
            }
            (Place::Resident, Some(to)) => park(config, ledger, now, id, to, out),
            (Place::Resident, None) if client.leases.values().any(|it| it.fresh) => {
                match (room(ledger, id), asking == Some(id)) {
                    (true, true) => settle(ledger, id, Place::Resident),
                    (true, false) => turn(config, ledger, now, id, Refuge::Host, out),
                    (false, _) if new => place(ledger, id, Place::Parked(Refuge::Host)),
                    (false, _) => park(config, ledger, now, id, Refuge::Host, out),
                }
            }
            (Place::Parked(from), None) if !client.is_leaving() && room(ledger, id) => match new {
                true => settle(ledger, id, Place::Resident),
                false => turn(config, ledger, now, id, from, out),
            },
            _ => {}
        }
    }
    begin(ledger, now);
}

/// What a process does not have yet of GPU memory is there now, and nobody works there whose turn is over.
fn room(ledger: &Ledger, id: ClientId) -> bool {
    let client = &ledger.clients[&id];
    let fixed = !ledger.in_turns(client.job);
    fixed
        || client.leases.iter().all(|(gpu, lease)| {
            let lacks = lease.hbm - client.resident(*gpu);
            // Alone it also has what contexts of others take: it may have been promised that before so much was kept.
            let most = match others(ledger, client.job, *gpu).next() {
                Some(_) => ledger.for_turns(*gpu),
                None => ledger.free_of(*gpu),
            };
            let fits = ledger.in_turns_now(*gpu) + lacks <= most;
            fits && !(ledger.sliced(*gpu) && others_work(ledger, client.job, *gpu))
        })
}

/// Processes of other jobs in turns that have something there.
pub(super) fn others(ledger: &Ledger, job: JobId, gpu: GpuId) -> impl Iterator<Item = &Client> {
    let others = ledger.clients.values().filter(move |it| it.job != job);
    others.filter(move |it| ledger.in_turns(it.job) && it.resident(gpu) > 0)
}

/// A process of another job works there, or comes back, and has not been told to park.
fn others_work(ledger: &Ledger, job: JobId, gpu: GpuId) -> bool {
    others(ledger, job, gpu).any(|it| {
        let works = matches!(it.place, Place::Resident | Place::Returning(_));
        works && it.hears()
    })
}

fn place(ledger: &mut Ledger, id: ClientId, place: Place) {
    if let Some(client) = ledger.clients.get_mut(&id) {
        client.place = place;
    }
}

/// It may have all of its GPU memory.
fn settle(ledger: &mut Ledger, id: ClientId, at: Place) {
    place(ledger, id, at);
    if let Some(client) = ledger.clients.get_mut(&id) {
        client.leases.values_mut().for_each(|it| it.fresh = false);
    }
}

fn turn(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    id: ClientId,
    from: Refuge,
    out: &mut Vec<Effect>,
) {
    settle(ledger, id, Place::Returning(from));
    let Some(client) = ledger.clients.get_mut(&id) else {
        return;
    };
    client.told = now;
    client.until = client.until(client.place, back_until(config, now, client, from));
    out.push(client.to_come_back(id));
}

fn park(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    id: ClientId,
    to: Refuge,
    out: &mut Vec<Effect>,
) {
    let Some(client) = ledger.clients.get_mut(&id) else {
        return;
    };
    let comes = match client.place {
        Place::Returning(_) => client.until.saturating_sub(now),
        _ => 0,
    };
    client.place = Place::Parking(to);
    client.told = now;
    let until = park_until(config, now, client, to) + comes;
    client.until = client.until(client.place, until);
    out.push(client.to_park(id, to));
}

/// A turn counts from when all processes work.
fn begin(ledger: &mut Ledger, now: u64) {
    let works = |ledger: &Ledger, id: JobId| {
        let mut clients = ledger.of_job(id).filter(|(_, it)| it.hears());
        clients.all(|(_, it)| it.place == Place::Resident || it.leases.is_empty())
    };
    let jobs: Vec<JobId> = ledger.jobs.keys().copied().collect();
    for id in jobs {
        if ledger.jobs[&id].turn == (Turn::Holds { since: None })
            && works(ledger, id)
            && let Some(job) = ledger.jobs.get_mut(&id)
        {
            job.turn = Turn::Holds { since: Some(now) };
        }
    }
}
