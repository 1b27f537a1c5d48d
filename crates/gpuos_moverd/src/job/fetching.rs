//! From a roster to node and conductor: what a node is to have first is copied in, from other nodes or from the parallel file system.

use gpuos_mover::hosts::Hosts;

use super::{Phase, Worker, begin, donors, elastic, other};
use crate::carried::{Base, JobRoster};

/// The roster is known: node and conductor begin, once there is on this node what they begin with.
pub(super) fn begin(worker: &mut Worker, roster: JobRoster) {
    if !matches!(worker.phase, Phase::Gathering(_)) {
        return;
    }
    if let Some(of) = &roster.of
        && let Err(why) = other::begin(worker, of)
    {
        return worker.fail(why);
    }
    other::turn_to(worker, roster.of.clone());
    let own = roster.roster.index_of_seat[usize::from(worker.own_seat())];
    let indices = match &roster.hosts {
        Some(hosts) => hosts.hosted(worker.own_seat()),
        None => vec![own],
    };
    let Some(id) = roster.drained.fetch.filter(|_| !indices.is_empty()) else {
        let from = &roster.donors.taking.from;
        let parts = indices.into_iter();
        let parts = parts.filter_map(|index| Some((index, from.get(&index.0)?.clone())));
        let parts: Vec<_> = parts.collect();
        return match parts.is_empty() {
            true => run_with(worker, roster),
            false => donors::take_from(worker, parts, roster),
        };
    };
    let named: Vec<String> = indices.iter().map(ToString::to_string).collect();
    worker.note(&format!(
        "of checkpoint {} this node's part is copied in from the parallel file system: that of node {}",
        id.number,
        named.join(", ")
    ));
    let hosted = roster.hosts.as_ref().map(Hosts::nodes);
    worker.phase = Phase::Fetching(Box::new(roster));
    let session = worker.session;
    if let Err(why) = worker.back.fetch(id, (indices, hosted), session) {
        fetched(worker, session, Err(why));
    }
}

/// What was to be copied in is here, or cannot be had. Then the job goes on with what else there is.
pub(super) fn fetched(worker: &mut Worker, session: u32, result: Result<(), String>) {
    if let Err(why) = &result {
        worker.note(why);
    }
    if let (Phase::Fetching(roster), true) = (&worker.phase, session == worker.session) {
        run_with(worker, *roster.clone());
    }
}

fn run_with(worker: &mut Worker, roster: JobRoster) {
    if let Some(hosts) = roster.hosts.clone() {
        return host(worker, roster, hosts);
    }
    if let Some(Base { job, id }) = &roster.base {
        let told = match *job == worker.start.job {
            true => format!(
                "the job goes on from checkpoint {} of another number of nodes",
                id.number
            ),
            false => format!("the job begins from checkpoint {} of job {job}", id.number),
        };
        if !worker.came.contains(&told) {
            worker.came.push(told);
        }
    }
    let begun = worker
        .wish(roster.gid, &roster.asked)
        .and_then(|()| begin::running(worker, roster));
    match begun {
        Ok(running) => {
            worker.phase = Phase::Running(Box::new(running));
            let asked = worker.wish.as_ref().and_then(|wish| wish.option.drain);
            worker.drain.begin(asked, worker.start.place.nodes);
            worker.with(|running, around| running.look_at_folder(around));
            worker.pass_wish_on();
        }
        Err(why) => worker.fail(why),
    }
}

fn host(worker: &mut Worker, roster: JobRoster, hosts: Hosts) {
    let begun = worker
        .wish(roster.gid, &roster.asked)
        .and_then(|()| elastic::hosted(worker, roster, hosts));
    match begun {
        Ok(hosted) => worker.phase = Phase::Hosting(Box::new(hosted)),
        Err(why) => worker.fail(why),
    }
}
