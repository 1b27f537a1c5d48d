//! A job that has another number of nodes than the one that made its checkpoints.
//!
//! ```text
//!  claims of all seats ─► the newest was made by another number of nodes ─► who hosts which of these  (gpuos_mover::hosts)
//!    ─► parts from nodes outside, or from the parallel file system ─► the restart of those nodes, hosted  (gpuos_mover::hosting) ─► whole, or why not
//!    ─► the own roster is drawn, with that as what the job begins from; the first checkpoint is written in full
//! ```
//!
//! As with another job's checkpoint, nothing is copied into the job's own: each run begins from the same one until there is a newer one. What is
//! hosted goes when two checkpoints of the new nodes are committed.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, LEADER, NodeIndex};
use gpuos_checkpoint::sets::Set;
use gpuos_core::job::JobId;
use gpuos_mover::hosting::{Hosting, Said, place};
use gpuos_mover::hosts::{Hosts, Layouts, deal};
use gpuos_mover::message::Bytes;
use gpuos_mover::node::Node;
use gpuos_mover::output::Ready;
use gpuos_mover::roster::{Claim, Roster};
use gpuos_mover::settings::Settings;
use gpuos_store::disk::LinuxDisk;

use super::back::goes_on;
use super::donors::{heed, suffices};
use super::{Phase, Worker, new_session, other};
use crate::carried::{Base, Body, FromDonors, JobRoster};

/// What seat 0 knows of what other numbers of nodes have made.
#[derive(Default)]
pub struct Elastic {
    /// These were looked at.
    tried: BTreeSet<u16>,
    /// What the job's own number of nodes has was looked at, and this can be restored of it.
    own: Option<Option<CheckpointId>>,
    /// Why what was looked at cannot be restored.
    pub whys: Vec<String>,
}

impl Elastic {
    /// The number of nodes that made what is to be looked at next, and the newest that is claimed of it. `found`: the newest that can be restored
    /// of what was looked at; `hosted`: what seats claim of nodes that they host.
    fn next(
        &self,
        nodes: u16,
        layouts: &Layouts,
        found: Option<CheckpointId>,
        hosted: &[Claim],
    ) -> Option<(u16, CheckpointId)> {
        let own = self.own.unwrap_or(layouts.newest(nodes));
        // What lies with a host is no part of the job's own, also where the numbers are the same again.
        let is_hosted = hosted
            .iter()
            .any(|claim| claim.nodes == nodes && Some(claim.newest) >= own);
        let (leave, own) = match is_hosted {
            true => (0, None),
            false => (nodes, own),
        };
        layouts.other(leave, &self.tried, found.max(own))
    }

    /// What the own number of nodes has is not as new as something else.
    pub fn passed(&mut self, restore: Option<CheckpointId>) {
        self.own = Some(restore);
    }
}

/// What all seats claim.
pub struct Claims {
    /// Of their own parts, by seat.
    pub own: Vec<Vec<Claim>>,
    /// Of those that they host, by seat.
    pub hosted: Vec<Vec<Claim>>,
}

impl Claims {
    /// By seat, of as many nodes as the job has.
    pub fn of(&self, nodes: u16) -> Vec<Option<Claim>> {
        let newest =
            |claims: &Vec<Claim>| claims.iter().find(|claim| claim.nodes == nodes).cloned();
        self.own.iter().map(newest).collect()
    }

    /// Of all nodes, also those that the job does not have.
    pub fn layouts(&self, outside: &[Claim]) -> Layouts {
        let all = self.own.iter().chain(&self.hosted).flatten();
        Layouts::of(all.chain(outside))
    }
}

/// Seat 0: the roster by which what another number of nodes has made is made whole, if that is to be done. `None`: the own one is to be drawn.
pub(super) fn roster(
    worker: &mut Worker,
    claims: &Claims,
    layouts: &Layouts,
    only: Option<u32>,
) -> Option<JobRoster> {
    let seats = worker.start.place.nodes;
    let found = own_base(worker.base.as_ref(), other::of(worker));
    let hosted: Vec<Claim> = claims.hosted.iter().flatten().cloned().collect();
    let (nodes, _) = worker.elastic.next(seats, layouts, found, &hosted)?;
    let all = claims.own.iter().zip(&claims.hosted);
    let all: Vec<Vec<Claim>> = all.map(|(own, more)| [&own[..], more].concat()).collect();
    let hosts = deal(&all, &outside(worker), nodes);
    let claimed = |index: NodeIndex| {
        let of = all.iter().flatten();
        let of = of.filter(|claim| (claim.nodes, claim.index) == (nodes, index));
        of.max_by_key(|claim| claim.newest).cloned()
    };
    let known: Vec<Option<Claim>> = (0..nodes).map(NodeIndex).map(claimed).collect();
    let (donors, _) = from_donors(worker, nodes, &known, only);
    // Whether it can be read at all is said where the own nodes' is looked at.
    let drained = worker.back.parts(nodes, 0);
    let wish = worker.wish.as_ref()?;
    Some(JobRoster {
        gid: wish.gid,
        asked: wish.asked.clone(),
        roster: alone(seats),
        only,
        drained,
        donors,
        of: worker.other.clone(),
        base: worker.base.clone(),
        hosts: Some(hosts),
        other_nodes: None,
        beyond: layouts.highest(),
        unhosted: Vec::new(),
    })
}

/// What is claimed by nodes that the job does not have: of what they hold, and of what was drained.
pub(super) fn outside(worker: &Worker) -> Vec<Claim> {
    [worker.donors.claims(), worker.back.all_claims()].concat()
}

/// Seat 0: what nodes outside the job are to give of what so many nodes have made, unless that is copied in from the parallel file system, or something
/// newer lies there: parts of something older would come in vain.
pub(super) fn from_donors(
    worker: &mut Worker,
    nodes: u16,
    seats: &[Option<Claim>],
    only: Option<u32>,
) -> (FromDonors, Vec<Claim>) {
    if worker.back.fetching(nodes).is_some() {
        return Default::default();
    }
    let drained = worker.back.claims(nodes);
    let newer = drained.first().map_or(0, |claim| claim.newest.number);
    let (donors, lost) = worker.donors.decide(nodes, seats, only);
    match newer > donors.taking.highest {
        true => Default::default(),
        false => (donors, lost),
    }
}

/// Of what another number of nodes has made, or the own one has with hosts: what it was found that the job can begin from.
fn own_base(base: Option<&Base>, job: &JobId) -> Option<CheckpointId> {
    base.filter(|base| base.job == *job).map(|base| base.id)
}

/// Each seat by itself: nothing is made by this roster.
fn alone(seats: u16) -> Roster {
    let index = |seat| NodeIndex(seat);
    let set = |seat| Set {
        members: vec![NodeIndex(seat)],
        data: 1,
        parity: 0,
    };
    Roster {
        index_of_seat: (0..seats).map(index).collect(),
        sets: (0..seats).map(set).collect(),
        notes: Vec::new(),
    }
}

/// Whether something else is looked at before the own number's nodes are drawn.
pub(super) fn open(worker: &Worker, claims: &Claims, layouts: &Layouts) -> Option<CheckpointId> {
    // It was looked at, and nothing else was as new or could be restored.
    if worker.elastic.own.is_some() {
        return None;
    }
    // The own nodes' is about to be looked at: what is claimed of it does not count beside what is found.
    let found = own_base(worker.base.as_ref(), other::of(worker));
    let hosted: Vec<Claim> = claims.hosted.iter().flatten().cloned().collect();
    let looked = Elastic {
        tried: worker.elastic.tried.clone(),
        own: Some(None),
        whys: Vec::new(),
    };
    let next = looked.next(worker.start.place.nodes, layouts, found, &hosted);
    next.map(|(_, id)| id)
}

/// What the job begins from of what other numbers of nodes have made takes the place of anything older. The same on all nodes.
pub fn take_base(roster: &JobRoster, job: &JobId, ready: &mut Ready) {
    ready.highest = ready.highest.max(roster.beyond);
    if roster.of.is_some() {
        return;
    }
    match own_base(roster.base.as_ref(), job) {
        Some(id) if ready.restore.is_none_or(|own| own < id) => {
            ready.restore = Some(id);
            ready.lost = false;
        }
        _ => ready.lost |= ready.restore.is_none() && !roster.unhosted.is_empty(),
    }
    ready.passed_over.extend(roster.unhosted.iter().cloned());
}

/// The nodes that this seat hosts, as far as the roster goes.
pub struct Hosted {
    /// By which they are hosted.
    pub roster: JobRoster,
    hosting: Hosting<'static, LinuxDisk>,
    /// The seats of all hosts.
    pub seats: Vec<u16>,
    /// What came of it, at the host of node 0.
    whole: Option<Ready>,
}

/// Begins to host.
///
/// # Errors
/// A sentence: the roster contradicts itself, or the disk fails.
pub(super) fn hosted(worker: &Worker, roster: JobRoster, hosts: Hosts) -> Result<Hosted, String> {
    let seat = worker.own_seat();
    let (job, uid) = (other::of(worker), worker.start.uid);
    let (store, nodes) = (worker.shared.store, hosts.nodes());
    let now = worker.now();
    let mut hosting = Hosting::new(hosts.clone(), seat);
    for index in hosts.hosted(seat) {
        let parts = store.job(job, uid);
        let parts = parts.and_then(|parts| place(store, parts, nodes, index));
        let parts = parts.map_err(|error| error.to_string())?;
        let sets = hosts.sets.clone();
        let mut settings = Settings::new(job.clone(), uid, index, nodes, worker.session, sets);
        settings.keep = worker.shared.config.keep;
        settings.only = roster.only;
        settings.passed = other::passed(worker);
        hosting.add(index, Node::with(parts, &LinuxDisk, settings, now)?);
    }
    let seats: BTreeSet<u16> = hosts.seat_of_index.iter().copied().collect();
    Ok(Hosted {
        roster,
        hosting,
        seats: seats.into_iter().collect(),
        whole: None,
    })
}

/// Time went by.
pub(super) fn look(worker: &mut Worker) {
    let now = worker.now();
    let Phase::Hosting(hosted) = &mut worker.phase else {
        return;
    };
    let said = hosted.hosting.tick(now);
    let known = hosted.whole.clone();
    carry_out(worker, said);
    // Until another gathering shows that it has arrived.
    if let Some(ready) = known {
        tell(worker, ready);
    }
}

/// A message for a hosted node.
pub(super) fn came(worker: &mut Worker, seat: u16, way: (NodeIndex, NodeIndex), bytes: &[u8]) {
    let now = worker.now();
    let Phase::Hosting(hosted) = &mut worker.phase else {
        return;
    };
    match hosted.hosting.receive(seat, way, bytes, now) {
        Ok(said) => carry_out(worker, said),
        Err(refused) => worker.note(&refused.to_string()),
    }
}

fn carry_out(worker: &mut Worker, said: Vec<Said>) {
    for said in said {
        match said {
            Said::Send {
                seat,
                from,
                to,
                bytes,
            } => {
                let bytes = Bytes(bytes);
                worker.say(seat, Body::Hosted { from, to, bytes });
            }
            Said::Note(text) => worker.note(&text),
            Said::Whole(ready) => {
                if let Phase::Hosting(hosted) = &mut worker.phase {
                    hosted.whole = Some(ready.clone());
                }
                tell(worker, ready);
            }
        }
    }
}

fn tell(worker: &mut Worker, ready: Ready) {
    match worker.is_first() {
        true => whole(worker, worker.own_seat(), ready),
        false => worker.say(0, Body::Whole(Box::new(ready))),
    }
}

/// Seat 0: it is known what can be restored of what another number of nodes has made.
pub(super) fn whole(worker: &mut Worker, seat: u16, mut ready: Ready) {
    let Phase::Hosting(hosted) = &worker.phase else {
        return;
    };
    let roster = hosted.roster.clone();
    let hosts = roster.hosts.as_ref();
    let Some(hosts) = hosts.filter(|hosts| hosts.host(LEADER) == Some(seat)) else {
        return worker.note(&format!(
            "seat {seat} says what hosted nodes have, and does not host the first of them; look who sends it"
        ));
    };
    if !suffices(&roster.donors, &ready) {
        worker.donors.again();
    } else if !goes_on(&roster.drained, &mut ready) {
        let refused = ready.refused.iter().map(|(id, _)| *id);
        worker.back.again(&roster.drained, refused);
    } else {
        // One part that is marked is enough. What is another job's stays as it is.
        if worker.other.is_none() {
            worker.back.mark(LEADER, &ready.refused);
        }
        heed(&roster.donors, &mut ready);
        let nodes = hosts.nodes();
        worker.elastic.tried.insert(nodes);
        let job = other::of(worker).clone();
        let before = own_base(worker.base.as_ref(), &job);
        match ready.restore {
            Some(id) if Some(id) > before => {
                worker.note(&format!(
                    "checkpoint {} of {nodes} nodes is whole, and the job goes on from it with {}",
                    id.number, worker.start.place.nodes
                ));
                other::turn_to(worker, None);
                worker.base = Some(Base { job, id });
            }
            Some(_) => {}
            None => {
                let whys = ready.passed_over.iter();
                let whys = whys.map(|why| format!("of {nodes} nodes: {why}"));
                worker.elastic.whys.extend(whys.filter(|_| ready.lost));
            }
        }
    }
    worker.gather_anew(new_session(worker.session));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carried::FromDonors;

    fn id(number: u32) -> CheckpointId {
        CheckpointId { number, attempt: 1 }
    }

    fn claim(index: u16, nodes: u16, newest: u32) -> Claim {
        Claim {
            index: NodeIndex(index),
            nodes,
            set: (0..nodes).map(NodeIndex).collect(),
            parity: 1,
            newest: id(newest),
        }
    }

    fn claims(own: Vec<Vec<Claim>>) -> Claims {
        let hosted = vec![Vec::new(); own.len()];
        Claims { own, hosted }
    }

    fn next(elastic: &Elastic, claims: &Claims, found: Option<u32>) -> Option<u16> {
        let hosted: Vec<Claim> = claims.hosted.iter().flatten().cloned().collect();
        let nodes = claims.own.len() as u16;
        let next = elastic.next(nodes, &claims.layouts(&[]), found.map(id), &hosted);
        next.map(|(nodes, _)| nodes)
    }

    #[test]
    fn the_newest_is_looked_at_first_whoever_made_it() {
        let mut elastic = Elastic::default();
        let all = claims(vec![vec![claim(0, 2, 4)], vec![claim(2, 3, 6)]]);
        assert_eq!(next(&elastic, &all, None), Some(3));
        elastic.tried.insert(3);
        assert_eq!(next(&elastic, &all, None), None, "then its own");
        let own = claims(vec![vec![claim(0, 2, 8), claim(0, 3, 6)], vec![]]);
        let elastic = Elastic::default();
        assert_eq!(next(&elastic, &own, None), None, "its own is newer");
        assert_eq!(own.of(2), [Some(claim(0, 2, 8)), None]);
        assert_eq!(own.of(3), [Some(claim(0, 3, 6)), None]);
    }

    #[test]
    fn going_back_over_a_change_is_for_where_nothing_newer_holds() {
        let mut elastic = Elastic::default();
        let all = claims(vec![vec![claim(0, 2, 8), claim(0, 3, 6)], vec![]]);
        elastic.passed(Some(id(7)));
        assert_eq!(next(&elastic, &all, None), None, "7 holds");
        elastic.passed(None);
        assert_eq!(next(&elastic, &all, None), Some(3));
        assert_eq!(next(&elastic, &all, Some(6)), None, "as new was found");
    }

    #[test]
    fn what_is_hosted_is_looked_at_though_the_numbers_are_the_same_again() {
        let mut all = claims(vec![vec![], vec![claim(1, 2, 4)]]);
        assert_eq!(next(&Elastic::default(), &all, None), None);
        all.hosted[0] = vec![claim(0, 2, 4)];
        let mut elastic = Elastic::default();
        assert_eq!(next(&elastic, &all, None), Some(2));
        elastic.tried.insert(2);
        assert_eq!(next(&elastic, &all, None), None);
    }

    fn told(base: Option<u32>, unhosted: &[&str]) -> JobRoster {
        JobRoster {
            gid: 1,
            asked: "10m".into(),
            roster: alone(2),
            drained: Default::default(),
            donors: FromDonors::default(),
            only: None,
            of: None,
            base: base.map(|number| Base {
                job: JobId::from(7),
                id: id(number),
            }),
            hosts: None,
            other_nodes: None,
            beyond: 9,
            unhosted: unhosted.iter().map(ToString::to_string).collect(),
        }
    }

    fn ready(restore: Option<u32>) -> Ready {
        Ready {
            restore: restore.map(id),
            passed_over: Vec::new(),
            highest: 2,
            lost: restore.is_none(),
            refused: Vec::new(),
        }
    }

    #[test]
    fn the_newer_of_both_is_gone_on_from_and_numbers_go_on_above_all() {
        let job = JobId::from(7);
        for (own, base, expected) in [
            (None, Some(6), Some(6)),
            (Some(4), Some(6), Some(6)),
            (Some(8), Some(6), Some(8)),
            (Some(8), None, Some(8)),
        ] {
            let mut both = ready(own);
            take_base(&told(base, &[]), &job, &mut both);
            assert_eq!(
                (both.restore, both.highest, both.lost),
                (expected.map(id), 9, false)
            );
        }
        // Of another job it is used where there is nothing else, elsewhere.
        let mut none = ready(None);
        take_base(&told(Some(6), &[]), &JobId::from(8), &mut none);
        assert_eq!(none.restore, None);
    }

    #[test]
    fn what_cannot_be_restored_is_not_replaced() {
        let mut none = Ready {
            lost: false,
            ..ready(None)
        };
        let why = "of 3 nodes: checkpoint 6: nodes 1 and 2 are gone";
        take_base(&told(None, &[why]), &JobId::from(7), &mut none);
        assert!(none.lost && none.passed_over == [why]);
    }
}
