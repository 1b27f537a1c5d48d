//! Processes that are stopped: with their job by the workload manager, or by a signal of their user's. They hear nothing, so nothing that
//! has to be done by a time is asked of them, and none is ended for having missed it.
//!
//! What a stopped process has stays where it is. Its turn is passed over, and where its memory is still on a GPU, others come when
//! there is room beside it. Whom the workload manager has not suspended keeps others waiting for a bounded time only: else who stops
//! himself would have the GPU for himself.

use super::config::Config;
use super::ids::{ClientId, JobId};
use super::ledger::{Client, Ledger};
use super::record::Place;

/// How a process is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stopped {
    since: u64,
    /// Since when the workload manager is known not to have suspended its job.
    own: Option<u64>,
}

/// A process is stopped by a signal, or goes on.
pub(super) fn signalled(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    id: ClientId,
    stopped: bool,
) {
    let Some(client) = ledger.clients.get_mut(&id) else {
        return;
    };
    client.signalled = stopped;
    let job = ledger.jobs.get(&client.job);
    let suspended = job.is_some_and(|job| job.suspended);
    settle(config, client, now, suspended);
}

/// The workload manager says whether a job is suspended.
pub(super) fn suspended(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    id: JobId,
    suspended: bool,
) {
    let Some(job) = ledger.jobs.get_mut(&id) else {
        return;
    };
    job.suspended = suspended;
    let clients = ledger.clients.values_mut();
    for client in clients.filter(|client| client.job == id) {
        settle(config, client, now, suspended);
        if let Some(stopped) = &mut client.stopped {
            stopped.own = match suspended {
                true => None,
                false => stopped.own.or(Some(now)),
            };
        }
    }
}

fn settle(config: &Config, client: &mut Client, now: u64, suspended: bool) {
    match (client.stopped, client.signalled || suspended) {
        (None, true) => {
            let own = None;
            client.stopped = Some(Stopped { since: now, own });
        }
        // It has the time that was left to it when it was stopped.
        (Some(Stopped { since, .. }), false) => {
            let away = now - since;
            client.stopped = None;
            (client.told, client.until) = (client.told + away, client.until + away);
            client.away = client.away.map(|_| now + config.away_ms);
            client.owed = client.owed.map(|(place, until)| (place, until + away));
            client.works_until = client.works_until.map(|until| until + away);
            if let Some(asked) = &mut client.asked {
                asked.until += away;
            }
        }
        _ => {}
    }
}

/// All processes of a job are stopped.
pub(super) fn is_stopped(ledger: &Ledger, job: JobId) -> bool {
    let mut clients = ledger.of_job(job).filter(|(_, it)| it.ending.is_none());
    let any = clients.next();
    any.is_some_and(|(_, it)| it.stopped.is_some()) && clients.all(|(_, it)| it.stopped.is_some())
}

/// Processes that nobody but their user has stopped, for longer than others have to wait for what they hold.
pub(super) fn too_long(config: &Config, ledger: &Ledger, now: u64) -> Vec<ClientId> {
    let clients = ledger.clients.iter().filter(|(_, it)| {
        let own = it.stopped.and_then(|stopped| stopped.own);
        let long = own.is_some_and(|since| now.saturating_sub(since) >= config.stopped_ms);
        long && it.ending.is_none() && is_waited_for(ledger, it)
    });
    clients.map(|(id, _)| *id).collect()
}

/// Another job waits with work for memory that the process has on a GPU.
pub(super) fn is_waited_for(ledger: &Ledger, client: &Client) -> bool {
    let mut gpus = client.leases.keys();
    gpus.any(|gpu| {
        let mut others = ledger.clients.values();
        client.resident(*gpu) > 0
            && others.any(|it| {
                let waits = it.hears() && it.idle.is_none() && it.leases.contains_key(gpu);
                it.job != client.job && waits && matches!(it.place, Place::Parked(_))
            })
    })
}
