//! Parts from nodes that the job does not have any more.
//!
//! Seat 0 asks the workload manager once which nodes hold checkpoints of the job, and these what they have, while it gathers the
//! movers of the job. The roster then says which node takes what from which of them, before all go on with what they have. What a
//! node does not answer in its time is done without; that there is something it has is not forgotten, so that no program begins anew
//! for a node that is slow.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_mover::donors::{Donor, Taking, decide, lost};
use gpuos_mover::hosting::place;
use gpuos_mover::output::Ready;
use gpuos_mover::roster::Claim;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::Error;
use gpuos_store::room::size;
use gpuos_store::store::Store;
use gpuos_workload::{Hint, Holder, WorkloadManager};

use super::looking::find;
use super::{Phase, Worker, fetching, other};
use crate::carried::{Body, FromDonors, JobRoster};
use crate::donor::client::{Wanted, take};
use crate::donor::patient::ask;
use crate::event::{BackDone, Event, Found};
use crate::jobs::locked;
use crate::network::Network;

/// How long the workload manager and other nodes are waited for, all together.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// If what came is not enough, so many other rosters follow: another node may have the same, or parity is left. Own choice.
const ROUNDS: u32 = 2;

enum Look {
    Not,
    /// Since then; what is known so far is filled in by a thread.
    Asked(Instant, Arc<Mutex<Found>>),
    Known(Found),
}

/// What it needs of the node.
#[derive(Clone)]
pub struct Around {
    /// The way to other nodes.
    pub network: Arc<Network>,
    /// Who knows which nodes hold what.
    pub manager: Arc<dyn WorkloadManager>,
    /// Where parts go.
    pub store: &'static Store<LinuxDisk>,
    /// To the job's thread.
    pub to: SyncSender<Event>,
}

/// The parts that other nodes hold, as this node sees them.
pub struct Donors {
    around: Around,
    wanted: Wanted,
    uid: u32,
    look: Look,
    /// Those that could not give what they have.
    failed: BTreeSet<String>,
    /// In a drill, so many parts of each set count as gone, ...
    lose: u8,
    /// ... which are these nodes'.
    lost: Option<BTreeSet<NodeIndex>>,
    /// Rosters by which nodes gave something.
    rounds: u32,
    /// Ends a copy that nobody waits for any more.
    ended: Arc<AtomicBool>,
}

impl Drop for Donors {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Donors {
    /// Nothing is known yet.
    pub fn new(around: Around, wanted: Wanted, uid: u32) -> Donors {
        Donors {
            around,
            wanted,
            uid,
            look: Look::Not,
            failed: BTreeSet::new(),
            lose: 0,
            lost: None,
            rounds: 0,
            ended: Arc::default(),
        }
    }

    /// So many parts of each set count as gone.
    pub fn losing(mut self, lose: u8) -> Donors {
        self.lose = lose;
        self
    }

    /// Seat 0: draws the parts that count as gone, of those that no node of the job has. What other nodes have is known. Gives them the
    /// first time.
    ///
    /// # Errors
    /// The nodes have too many of them themselves, or another number of nodes has made them: a sentence.
    pub fn lose(&mut self, seats: &[Option<Claim>], draw: u64) -> Result<Option<String>, String> {
        let Look::Known(found) = &self.look else {
            return Ok(None);
        };
        if self.lose == 0 || self.lost.is_some() {
            return Ok(None);
        }
        let is_same = |donor: &&Donor| usize::from(donor.claim.nodes) == seats.len();
        let donors: Vec<Donor> = found.donors.iter().filter(is_same).cloned().collect();
        if let (true, Some(other)) = (donors.is_empty(), found.donors.first()) {
            return Err(format!(
                "parts count as gone only for as many nodes as have made the checkpoint: {}, and the drill has {}",
                other.claim.nodes,
                seats.len()
            ));
        }
        let gone = lost(seats, &donors, self.lose, draw)?;
        let names: Vec<String> = gone.iter().map(ToString::to_string).collect();
        self.lost = Some(gone);
        let what = match names.len() {
            1 => "part of node",
            _ => "parts of nodes",
        };
        Ok(Some(format!(
            "as if lost, and not read: the {what} {}",
            names.join(", ")
        )))
    }

    /// Seat 0: whether it is known what other nodes have; the first call has them asked. `nodes` are the job's own.
    pub fn is_known(&mut self, nodes: &[String]) -> bool {
        match &self.look {
            Look::Known(_) => true,
            Look::Asked(since, so_far) if since.elapsed() > PATIENCE => {
                let mut known = locked(so_far).clone();
                known.end();
                self.look = Look::Known(known);
                true
            }
            Look::Asked(..) => false,
            Look::Not => {
                let found = Arc::new(Mutex::new(Found::default()));
                self.look = Look::Asked(Instant::now(), found.clone());
                let (around, wanted) = (self.around.clone(), self.wanted.clone());
                let own: BTreeSet<String> = nodes.iter().cloned().collect();
                let to = around.to.clone();
                let uid = self.uid;
                let run = move || {
                    let refused = refuse(&around, &wanted, uid, &own);
                    match refused {
                        Some(why) => locked(&found).refused = Some(why),
                        None => find(&around, &wanted, &own, &found),
                    }
                    let found = locked(&found).clone();
                    let _ = to.send(Event::Donors(found));
                };
                if let Err(error) = thread::Builder::new().name("donors".into()).spawn(run) {
                    self.found(Found {
                        untold: Some(format!("no thread can be started: {error}")),
                        ..Found::default()
                    });
                }
                false
            }
        }
    }

    /// Seat 0: why the job must not begin from that of the other one.
    pub fn refused(&self) -> Option<String> {
        match &self.look {
            Look::Known(found) => found.refused.clone(),
            _ => None,
        }
    }

    /// Seat 0: what nodes outside the job know to be chosen.
    pub fn chosen(&self) -> Vec<(u32, u32)> {
        match &self.look {
            Look::Known(found) => found.chosen.clone(),
            _ => Vec::new(),
        }
    }

    /// A thread has asked.
    pub fn found(&mut self, found: Found) {
        if let Look::Asked(..) = self.look {
            self.look = Look::Known(found);
        }
    }

    /// Seat 0: what nodes outside the job claim.
    pub fn claims(&self) -> Vec<Claim> {
        match &self.look {
            Look::Known(found) => {
                let donors = found.donors.iter();
                donors.map(|donor| donor.claim.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Seat 0: what the roster says of what so many nodes have made, and claims for nodes that have none. `seats`: what the job's nodes claim of
    /// it; `only`: nothing but this checkpoint is wanted.
    pub fn decide(
        &mut self,
        nodes: u16,
        seats: &[Option<Claim>],
        only: Option<u32>,
    ) -> (FromDonors, Vec<Claim>) {
        let Look::Known(found) = &self.look else {
            return Default::default();
        };
        let fit = found.donors.iter();
        let fit: Vec<Donor> = fit
            .filter(|donor| donor.claim.nodes == nodes && !self.failed.contains(&donor.node))
            .filter(|donor| {
                let gone = self.lost.as_ref();
                gone.is_none_or(|gone| !gone.contains(&donor.claim.index))
            })
            .cloned()
            .collect();
        let (taking, claims) = decide(seats, &fit, only);
        let from = FromDonors {
            taking,
            made: found.made(),
            silent: found.silent(),
            answers: found.answers(),
            last: self.rounds >= ROUNDS,
        };
        (from, claims)
    }

    /// Seat 0: a node could not give what the roster had it give.
    pub fn failed(&mut self, node: String) {
        self.failed.insert(node);
    }

    /// Seat 0: what came was not enough, and another roster follows.
    pub fn again(&mut self) {
        self.rounds += 1;
    }

    /// The movers look for each other for another reason than a copy: what was copied in meanwhile does no harm, and is found.
    pub fn stop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.ended = Arc::default();
    }

    /// Takes parts of nodes from others, one after another, in a thread. `hosted`: they are of nodes that this one hosts, which were so many.
    ///
    /// # Errors
    /// It cannot be begun: a sentence.
    pub fn take(
        &mut self,
        parts: Vec<(NodeIndex, String)>,
        hosted: Option<u16>,
        taking: &Taking,
        session: u32,
    ) -> Result<(), String> {
        self.stop();
        let (around, wanted, ended) =
            (self.around.clone(), self.wanted.clone(), self.ended.clone());
        let (taking, uid) = (taking.clone(), self.uid);
        let run = move || {
            let mut results = Vec::new();
            for (index, node) in parts {
                let begun = Instant::now();
                let (of, to) = ((&node[..], index, &taking), (uid, hosted));
                let taken = taken(&around, &wanted, to, of, &ended);
                let taken = taken.map(|bytes| {
                    format!(
                        "node {node}, which the job does not have now, gave the part of node {index}: {} in {:.1} s",
                        size(bytes),
                        begun.elapsed().as_secs_f64()
                    )
                });
                results.push(taken.map_err(|why| {
                    let told = format!(
                        "the part of node {index} could not be had from node {node}: {why}"
                    );
                    (node, told)
                }));
            }
            let _ = around
                .to
                .send(Event::Back(BackDone::Taken { session, results }));
        };
        let thread = thread::Builder::new().name("take".into()).spawn(run);
        thread
            .map(|_| ())
            .map_err(|error| format!("no thread can be started: {error}"))
    }
}

/// Why a job must not begin from another one's checkpoint. What the workload manager has forgotten is over, and whose it is its
/// checkpoints say.
fn refuse(around: &Around, wanted: &Wanted, uid: u32, own: &BTreeSet<String>) -> Option<String> {
    if wanted.of == wanted.by {
        return None;
    }
    let of = &wanted.of;
    let record = match around.manager.job(of) {
        Ok(record) => record?,
        Err(outcome) => return Some(other::untold(of, &outcome)),
    };
    if record.uid != uid {
        return Some(other::anothers(of));
    }
    // Its parts on these nodes are in use.
    let shared = record
        .is_running()
        .then(|| record.nodes.iter().find(|node| own.contains(*node)));
    let node = shared.flatten()?;
    Some(format!(
        "job {of} still runs on node {node}, which this job has, too: wait until it has ended, or keep this job off its nodes with --exclude"
    ))
}

fn taken(
    around: &Around,
    wanted: &Wanted,
    (uid, hosted): (u32, Option<u16>),
    (node, index, taking): (&str, NodeIndex, &Taking),
    ended: &Arc<AtomicBool>,
) -> Result<u64, String> {
    let to = around.store.job(&wanted.of, uid);
    let to = to.and_then(|to| match hosted {
        Some(nodes) => place(around.store, to, nodes, index),
        None => Ok(to),
    });
    let to = to.map_err(|error| error.to_string())?;
    // It has answered when it was asked what it holds.
    let holder = Holder {
        node: node.into(),
        is_down: false,
        hint: Hint::Holds,
    };
    let (mut client, holding) = ask(&around.network, &holder, wanted)?;
    let mut pace = |_| match ended.load(Ordering::Relaxed) {
        true => {
            let next = "nothing has to be done";
            Err(Error::refused("copy the rest", "nobody waits for it", next))
        }
        false => Ok(()),
    };
    take(&mut client, &holding, taking, (&to, index), &mut pace)
}

/// Parts of these nodes are taken from nodes that the job does not have.
pub(super) fn take_from(worker: &mut Worker, parts: Vec<(NodeIndex, String)>, roster: JobRoster) {
    for (index, node) in &parts {
        worker.note(&format!(
            "this node takes the part of node {index} from node {node}, which the job does not have now"
        ));
    }
    let taking = roster.donors.taking.clone();
    let hosted = roster.hosts.as_ref().map(|hosts| hosts.nodes());
    worker.phase = Phase::Fetching(Box::new(roster));
    let session = worker.session;
    let nodes: Vec<String> = parts.iter().map(|(_, node)| node.clone()).collect();
    if let Err(why) = worker.donors.take(parts, hosted, &taking, session) {
        let failed = nodes.into_iter().map(|node| Err((node, why.clone())));
        taken_in(worker, session, failed.collect());
    }
}

/// They were taken, or not. Seat 0 has to know who could not give what it has.
pub(super) fn taken_in(
    worker: &mut Worker,
    session: u32,
    results: Vec<Result<String, (String, String)>>,
) {
    for result in results {
        let (told, node) = match result {
            Ok(told) => (told, None),
            Err((node, why)) => (why, Some(node)),
        };
        worker.note(&told);
        if session != worker.session {
            continue;
        }
        worker.came.push(told);
        match node {
            Some(node) if worker.is_first() => worker.donors.failed(node),
            Some(node) => worker.say(0, Body::NotGiven(node)),
            None => {}
        }
    }
    fetching::fetched(worker, session, Ok(()));
}

/// Whether a run goes on with what its nodes have, after some of it came from others. Otherwise another roster follows, by which it
/// comes from yet others, or is made again.
pub fn suffices(said: &FromDonors, ready: &Ready) -> bool {
    let number = ready.restore.map_or(0, |id| id.number);
    said.last || said.taking.from.is_empty() || number >= said.taking.committed
}

/// With what other nodes have, or may have, a program does not begin anew where that could not be had, nor where the job's record says that
/// a checkpoint was made and nobody has it.
pub fn heed(said: &FromDonors, ready: &mut Ready) {
    let number = ready.restore.map_or(0, |id| id.number);
    ready.highest = ready.highest.max(said.taking.highest);
    let mut more = Vec::new();
    if said.taking.committed > number {
        more.push(format!(
            "checkpoint {} is held by nodes that the job does not have, and could not be had of them as a whole, as the logs of gpuos_mover say",
            said.taking.committed
        ));
    }
    if ready.restore.is_none() {
        if let Some(made) = &said.made {
            // What was made since the record was written has a number below twice that one.
            ready.highest = ready.highest.max(made.number.saturating_mul(2));
            more.push(made.sentence.clone());
        }
        let silent = said.silent.iter();
        more.extend(
            silent.map(|why| {
                format!("other nodes may hold checkpoints, and that is not known: {why}")
            }),
        );
        ready.lost |= !more.is_empty();
        if ready.lost {
            more.extend(said.answers.iter().cloned());
        }
    }
    ready.passed_over.splice(0..0, more);
}

#[cfg(test)]
mod tests {
    use gpuos_checkpoint::ids::CheckpointId;

    use super::*;
    use crate::carried::Made;

    fn ready(restore: Option<u32>) -> Ready {
        Ready {
            restore: restore.map(|number| CheckpointId { number, attempt: 1 }),
            passed_over: Vec::new(),
            highest: restore.unwrap_or(0),
            lost: false,
            refused: Vec::new(),
        }
    }

    fn committed(number: u32) -> FromDonors {
        FromDonors {
            taking: Taking {
                committed: number,
                highest: number + 1,
                ..Taking::default()
            },
            ..FromDonors::default()
        }
    }

    #[test]
    fn another_roster_follows_until_it_is_the_last() {
        let mut said = committed(4);
        assert!(suffices(&said, &ready(None)), "nobody gives anything");
        said.taking.from.insert(1, "n1".into());
        assert!(suffices(&said, &ready(Some(4))) && !suffices(&said, &ready(Some(3))));
        said.last = true;
        assert!(suffices(&said, &ready(None)));
    }

    #[test]
    fn a_program_does_not_begin_anew_in_place_of_what_another_node_holds() {
        let mut none = ready(None);
        heed(&committed(4), &mut none);
        assert!(none.lost);
        assert!(none.passed_over[0].contains("checkpoint 4 is held by nodes"));
        assert_eq!(none.highest, 5, "numbers go on above it");
        let silent = FromDonors {
            silent: vec!["node n3 is not reached".into()],
            ..FromDonors::default()
        };
        let mut none = ready(None);
        heed(&silent, &mut none);
        assert!(none.lost && none.passed_over[0].contains("n3"));
    }

    #[test]
    fn what_was_had_is_gone_on_with() {
        let mut same = ready(Some(4));
        heed(&committed(4), &mut same);
        assert!(!same.lost && same.passed_over.is_empty());
        let mut older = ready(Some(3));
        heed(&committed(4), &mut older);
        assert!(!older.lost && older.passed_over.len() == 1);
        let nothing = FromDonors {
            answers: vec!["node n1 answered that it has nothing of it".into()],
            ..FromDonors::default()
        };
        let mut none = ready(None);
        heed(&nothing, &mut none);
        assert!(!none.lost, "nobody has anything");
        assert!(none.passed_over.is_empty());
    }

    #[test]
    fn what_was_made_and_nobody_has_is_lost_and_numbers_go_on_above_it() {
        let made = FromDonors {
            made: Some(Made {
                number: 5,
                sentence: "checkpoint 5 was made in run 0 of the job, on n1".into(),
            }),
            answers: vec!["node n1 answered that it has nothing of it".into()],
            ..FromDonors::default()
        };
        let mut none = ready(None);
        heed(&made, &mut none);
        assert!(none.lost);
        assert_eq!((none.passed_over.len(), none.highest), (2, 10));
        let mut some = ready(Some(5));
        heed(&made, &mut some);
        assert!(!some.lost && some.passed_over.is_empty());
    }
}
