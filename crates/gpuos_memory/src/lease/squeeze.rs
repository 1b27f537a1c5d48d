//! What is done when a GPU has less memory for jobs than was promised of it: processes use it that ask nobody.
//!
//! Leases are made as small as what there is, as far as their jobs have host memory for the rest, and grow again when the others are
//! gone. Jobs in turns are not touched: their turns follow from what there is.

use std::cmp::Reverse;

use super::config::Config;
use super::ids::{ClientId, GpuId};
use super::input::{Effect, Granted};
use super::ledger::Ledger;
use super::record::Place;

/// Less than this is not worth a word: what a driver keeps for a context changes by as much.
const LEAST: u64 = 256 << 20;

/// Divides what there is, where that is something else than what was promised.
pub(super) fn fit(config: &Config, ledger: &mut Ledger, now: u64, out: &mut Vec<Effect>) {
    let gpus: Vec<(GpuId, u64)> = ledger.supply.gpus.clone();
    for (gpu, present) in gpus {
        let promised = ledger.promised_hbm(gpu);
        if promised > present {
            squeeze(config, ledger, now, gpu, promised - present, out);
        } else if now >= ledger.squeezed_at + 6 * config.cool_ms {
            give_back(ledger, now, gpu, present - promised, out);
        }
    }
}

/// Processes with something on a GPU that take no turns, those of the lowest rank first, and of these who came last.
fn holders(ledger: &Ledger, gpu: GpuId) -> Vec<ClientId> {
    let clients = ledger.clients.iter();
    let own = clients.filter(|(_, it)| {
        let works = it.place == Place::Resident && it.hears();
        works && !ledger.in_turns(it.job) && it.leases.contains_key(&gpu)
    });
    let mut own: Vec<ClientId> = own.map(|(id, _)| *id).collect();
    own.sort_by_key(|id| {
        let job = &ledger.jobs[&ledger.clients[id].job];
        (job.spec.rank, Reverse(job.arrived), *id)
    });
    own
}

fn squeeze(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    gpu: GpuId,
    mut over: u64,
    out: &mut Vec<Effect>,
) {
    for id in holders(ledger, gpu) {
        let job = ledger.clients[&id].job;
        let it = &ledger.jobs[&job];
        let of_job = it.spec.host.saturating_sub(ledger.charge(job).host);
        // The same free memory is not given twice: what is on its way there is not measured yet.
        let comes = if now < it.pressed.1 { it.pressed.0 } else { 0 };
        let free = it.free.map(|free| free.saturating_sub(comes));
        let room = [
            of_job,
            free.unwrap_or(u64::MAX),
            ledger.host_room(job),
            ledger.quota_room(job),
        ];
        let room = room.into_iter().min().unwrap_or(0);
        let moved = over.min(room);
        let moved = shift(ledger, id, gpu, moved, true, now, out);
        over -= moved;
        if let Some(it) = ledger.jobs.get_mut(&job)
            && moved > 0
        {
            it.pressed = (comes + moved, now + 6 * config.cool_ms);
        }
        if over == 0 {
            return;
        }
    }
}

fn give_back(ledger: &mut Ledger, now: u64, gpu: GpuId, mut spare: u64, out: &mut Vec<Effect>) {
    for id in holders(ledger, gpu).into_iter().rev() {
        let had = ledger.clients[&id].squeezed.get(&gpu).copied();
        // Others of its job may have been given meanwhile what the job may have of a card.
        let job = ledger.clients[&id].job;
        let own = ledger.of_job(job).filter_map(|(_, it)| it.leases.get(&gpu));
        let own: u64 = own.map(|it| it.hbm).sum();
        let own = ledger.jobs[&job].spec.hbm_per_gpu.saturating_sub(own);
        let back = had.unwrap_or(0).min(spare).min(own);
        // All of it, or enough to be worth the move.
        if back >= LEAST || (back > 0 && Some(back) == had) {
            spare -= shift(ledger, id, gpu, back, false, now, out);
        }
    }
}

/// Moves bytes of a lease from GPU to host memory, or back, and tells its process. Answers how many it were.
fn shift(
    ledger: &mut Ledger,
    id: ClientId,
    gpu: GpuId,
    bytes: u64,
    out_of_gpu: bool,
    now: u64,
    out: &mut Vec<Effect>,
) -> u64 {
    let Some(client) = ledger.clients.get_mut(&id) else {
        return 0;
    };
    let Some(lease) = client.leases.get_mut(&gpu) else {
        return 0;
    };
    let kept = client.squeezed.entry(gpu).or_insert(0);
    let bytes = match out_of_gpu {
        true => bytes.min(lease.hbm),
        false => bytes.min(lease.host).min(*kept),
    };
    if out_of_gpu {
        lease.hbm -= bytes;
        lease.host += bytes;
        *kept += bytes;
    } else {
        lease.hbm += bytes;
        lease.host -= bytes;
        *kept -= bytes;
    }
    let granted = Granted {
        hbm: lease.hbm,
        host: lease.host,
        turn: true,
    };
    client.squeezed.retain(|_, bytes| *bytes > 0);
    if bytes > 0 {
        ledger.squeezed_at = now;
        out.push(Effect::Lease {
            client: id,
            gpu,
            granted,
        });
    }
    bytes
}
