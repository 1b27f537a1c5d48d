//! The user chooses from which checkpoint the next run begins: all nodes note it, as any of them may be lost or not be among those of
//! the next run.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_store::choice::{Chosen, choose as choose_in};

use super::Worker;
use crate::carried::Body;
use crate::donor::serve::chosen;

/// How long the other nodes are waited for: less than the client waits for its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A choice that nodes have yet to note.
pub struct Choosing {
    number: u32,
    begun: Instant,
    left: BTreeSet<u16>,
    reply: SyncSender<Result<(), String>>,
}

/// What this node knows to be chosen.
pub(super) fn known(worker: &Worker) -> Option<(u32, u32)> {
    let store = worker.shared.store.job(&worker.start.job, worker.start.uid);
    chosen(&store.ok()?)
}

/// Has all nodes note it.
pub(super) fn choose(worker: &mut Worker, number: u32, reply: SyncSender<Result<(), String>>) {
    if let Err(why) = write(worker, number) {
        let _ = reply.try_send(Err(why));
        return;
    }
    let own = worker.own_seat();
    let left = (0..worker.start.place.nodes).filter(|seat| *seat != own);
    worker.choosing = Some(Choosing {
        number,
        begun: Instant::now(),
        left: left.collect(),
        reply,
    });
    look(worker);
}

/// Says it to those that have not noted it, and what came of it to who has asked.
pub(super) fn look(worker: &mut Worker) {
    let Some(choosing) = worker.choosing.take() else {
        return;
    };
    if choosing.left.is_empty() {
        let _ = choosing.reply.try_send(Ok(()));
        return;
    }
    if choosing.begun.elapsed() > PATIENCE {
        let whys: Vec<String> = choosing
            .left
            .iter()
            .take(3)
            .map(|seat| worker.links.why(*seat))
            .collect();
        // Half a choice would be one for who requeues the job for another reason.
        let taken_back = write(worker, 0);
        for seat in 0..worker.start.place.nodes {
            worker.say(seat, Body::Choose(0));
        }
        let why = match taken_back {
            Ok(()) => whys.join("; "),
            Err(error) => format!("{}; {error}", whys.join("; ")),
        };
        let _ = choosing.reply.try_send(Err(why));
        return;
    }
    for seat in &choosing.left {
        worker.links.want(*seat);
        worker.say(*seat, Body::Choose(choosing.number));
    }
    worker.choosing = Some(choosing);
}

/// Another node's user has chosen.
pub(super) fn note(worker: &mut Worker, seat: u16, number: u32) {
    match write(worker, number) {
        Ok(()) => worker.say(seat, Body::ChoiceNoted(number)),
        Err(why) => worker.note(&why),
    }
}

/// A node has noted it.
pub(super) fn noted(worker: &mut Worker, seat: u16, number: u32) {
    if let Some(choosing) = &mut worker.choosing
        && choosing.number == number
    {
        choosing.left.remove(&seat);
    }
}

fn write(worker: &Worker, number: u32) -> Result<(), String> {
    let store = worker.shared.store.job(&worker.start.job, worker.start.uid);
    let run = worker.start.run.saturating_add(1);
    let chosen = (number > 0).then_some(Chosen { run, number });
    let noted = store.and_then(|store| choose_in(&store, chosen));
    noted.map_err(|error| error.to_string())
}
