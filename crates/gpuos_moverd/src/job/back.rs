//! The way back from the parallel file system, when the nodes of a job cannot give what was drained there.
//!
//! Seat 0 looks what is complete there while it gathers the others. They go on as always, with what they have; if that turns out to be
//! older, seat 0 draws another roster, by which each node first copies its part in, and then all of it is found complete on the
//! nodes. So nothing is taken from there that the nodes could give themselves, or have newer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_core::job::JobId;
use gpuos_mover::hosting::place;
use gpuos_mover::output::Ready;
use gpuos_mover::roster::Claim;
use gpuos_store::drained::Complete;
use gpuos_store::error::{Error, Kind};
use gpuos_store::transfer::{Trust, copy_part};

use crate::carried::FromShared;
use crate::event::{BackDone as Done, Event};
use crate::level3::Level3;

/// Checkpoints that are looked for: the newest, and some before it if it cannot be read.
const MOST: usize = 4;
/// How long the file system is waited for in the first run of a job, which has nothing there, and where the nodes had all that they
/// need a moment ago, ...
const FIRST: Duration = Duration::from_secs(20);
/// ... and at the begin of later ones.
const LATER: Duration = Duration::from_secs(240);

enum Look {
    Not,
    Asked(Instant),
    Known(Vec<Complete>),
    Unread(String),
}

/// The way back of a job on this node.
pub struct Back {
    level3: Option<Arc<Level3>>,
    job: JobId,
    uid: u32,
    to: SyncSender<Event>,
    look: Look,
    /// Counts how often the movers have found each other anew.
    round: u32,
    /// What the next roster has the nodes copy in.
    fetch: Option<CheckpointId>,
    failed: BTreeSet<CheckpointId>,
    /// Refused by a program, as the nodes have it.
    refused: BTreeSet<CheckpointId>,
    /// This node's parts there are being marked.
    is_marking: Arc<AtomicBool>,
    /// Nothing but this one is wanted.
    only: Option<u32>,
    /// Ends a copy that nobody waits for any more.
    ended: Arc<AtomicBool>,
}

impl Drop for Back {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Back {
    /// Of a job; nothing is known yet.
    pub fn new(
        level3: Option<Arc<Level3>>,
        (job, uid): (JobId, u32),
        to: SyncSender<Event>,
    ) -> Back {
        Back {
            level3,
            job,
            uid,
            to,
            look: Look::Not,
            round: 0,
            fetch: None,
            failed: BTreeSet::new(),
            refused: BTreeSet::new(),
            is_marking: Arc::default(),
            only: None,
            ended: Arc::default(),
        }
    }

    /// The movers look for each other for another reason than a copy. What is there may be other checkpoints than at the begin of
    /// the run.
    pub fn anew(&mut self) {
        self.fetch = None;
        self.failed.clear();
        self.look = Look::Not;
        self.round = self.round.wrapping_add(1);
        // What was copied in meanwhile does no harm, and is found.
        self.stop();
    }

    fn stop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.ended = Arc::default();
    }

    /// Seat 0: whether it is known what is complete there; the first call has it looked at. `run`: of the job.
    pub fn is_known(&mut self, run: u32) -> bool {
        let Some(level3) = self.level3.clone() else {
            return true;
        };
        let begins = self.round == 0 && run > 0;
        let patience = if begins { LATER } else { FIRST };
        match &self.look {
            Look::Known(_) | Look::Unread(_) => true,
            Look::Asked(since) if since.elapsed() > patience => {
                let why = format!("{} does not answer", level3.path());
                self.look = Look::Unread(why);
                true
            }
            Look::Asked(_) => false,
            Look::Not => {
                self.look = Look::Asked(Instant::now());
                let (job, uid, round) = (self.job.clone(), self.uid, self.round);
                let work = move || Done::Looked {
                    round,
                    found: look(&level3, &job, uid),
                };
                if let Err(why) = self.spawn(work) {
                    self.look = Look::Unread(why);
                }
                false
            }
        }
    }

    /// A thread has looked, in this round.
    pub fn looked(&mut self, round: u32, found: Result<Vec<Complete>, String>) {
        if let (Look::Asked(_), true) = (&self.look, round == self.round) {
            self.look = match found {
                Ok(found) => Look::Known(found),
                Err(why) => Look::Unread(why),
            };
        }
    }

    fn known(&self) -> &[Complete] {
        match &self.look {
            Look::Known(known) => known,
            _ => &[],
        }
    }

    /// What could be copied in, newest first.
    fn candidates(&self, nodes: u16) -> impl Iterator<Item = &Complete> {
        self.known().iter().filter(move |it| {
            let wanted = self.only.is_none_or(|only| only == it.id.number);
            let refused = it.refused.is_some() || self.refused.contains(&it.id);
            let whole = it.sets.len() == usize::from(nodes) && !self.failed.contains(&it.id);
            wanted && whole && !refused
        })
    }

    /// Seat 0: [`Back::claims`] of each number of nodes by which something was drained.
    pub fn all_claims(&self) -> Vec<Claim> {
        let numbers = self.known().iter().map(|it| it.sets.len());
        let numbers: BTreeSet<u16> = numbers.filter_map(|it| it.try_into().ok()).collect();
        let claims = numbers.into_iter().map(|nodes| self.claims(nodes));
        claims.flatten().collect()
    }

    /// Claims of nodes that are lost, by what so many of them drained, for nodes that have none.
    pub fn claims(&self, nodes: u16) -> Vec<Claim> {
        let Some(complete) = self.candidates(nodes).next() else {
            return Vec::new();
        };
        let sets = (0..).zip(&complete.sets);
        let claim = |(index, set): (u16, &gpuos_checkpoint::manifest::NodeSet)| Claim {
            index: NodeIndex(index),
            nodes,
            set: set.members.clone(),
            parity: set.parity,
            newest: complete.id,
        };
        sets.map(claim).collect()
    }

    /// Seat 0: nothing but the checkpoint of this number is wanted, if there is one.
    pub fn want(&mut self, only: Option<u32>) {
        self.only = only;
    }

    /// Seat 0: what the next roster has the nodes copy in, if so many nodes have drained it.
    pub fn fetching(&self, nodes: u16) -> Option<CheckpointId> {
        let is_of = |id: &CheckpointId| {
            let mut known = self.known().iter();
            known.any(|it| it.id == *id && it.sets.len() == usize::from(nodes))
        };
        self.fetch.filter(is_of)
    }

    /// Seat 0: what the roster says of what so many nodes have drained.
    pub fn parts(&self, nodes: u16, run: u32) -> FromShared {
        let known = self.known();
        let fetch = self.fetching(nodes);
        let next = self
            .candidates(nodes)
            .find(|it| fetch.is_none_or(|fetch| it.id < fetch));
        // What could not be had of another number of nodes is said where that was tried.
        let useless =
            |it: &&Complete| self.failed.contains(&it.id) && it.sets.len() == usize::from(nodes);
        FromShared {
            fetch,
            better: next.map(|it| it.id),
            highest: known.iter().map(|it| it.id.number).max().unwrap_or(0),
            failed: known
                .iter()
                .filter(useless)
                .map(|it| it.id.number)
                .collect(),
            refused: known
                .iter()
                .filter_map(|it| Some((it.id.number, it.refused.as_ref()?.to_string())))
                .collect(),
            unread: match &self.look {
                // A job that has not run yet has nothing there.
                Look::Unread(why) if run > 0 => Some(why.clone()),
                _ => None,
            },
        }
    }

    /// Seat 0: the nodes have nothing as new as what is there. `said` is what the roster said by which they went on, `refused` what the nodes know
    /// that a program could not load.
    pub fn again(&mut self, said: &FromShared, refused: impl IntoIterator<Item = CheckpointId>) {
        self.failed.extend(said.fetch);
        self.refused.extend(refused);
        self.fetch = said.better.filter(|id| !self.refused.contains(id));
    }

    /// Marks this node's drained parts of checkpoints that a program could not load, in a thread of its own.
    pub fn mark(&self, index: NodeIndex, refused: &[(CheckpointId, Refusal)]) {
        let Some(level3) = self.level3.clone().filter(|_| !refused.is_empty()) else {
            return;
        };
        // One that hangs there is enough; the next gathering tries again.
        if self.is_marking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (job, uid, refused) = (self.job.clone(), self.uid, refused.to_vec());
        let busy = self.is_marking.clone();
        let run = move || {
            if let Err(error) = mark(&level3, (&job, uid), index, &refused) {
                tracing::warn!(%job, "job {job}: {error}");
            }
            busy.store(false, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().name("mark".into()).spawn(run) {
            tracing::warn!("no thread can be started: {error}");
            self.is_marking.store(false, Ordering::Relaxed);
        }
    }

    /// Copies parts of a checkpoint in, one after another: this node's own, or, of so many nodes, those that it hosts.
    ///
    /// # Errors
    /// It cannot be begun: a sentence.
    pub fn fetch(
        &mut self,
        id: CheckpointId,
        (parts, hosted): (Vec<NodeIndex>, Option<u16>),
        session: u32,
    ) -> Result<(), String> {
        let Some(level3) = self.level3.clone() else {
            return Err("gpuos.toml has no shared = \"/PATH\" in [checkpoint] on this node".into());
        };
        self.stop();
        let (job, uid, ended) = (self.job.clone(), self.uid, self.ended.clone());
        self.spawn(move || {
            let fetch = |index| fetch(&level3, (&job, uid), (id, index, hosted), &ended);
            let result = parts.into_iter().try_for_each(fetch);
            let result = result.map_err(|error| error.to_string());
            Done::Fetched { session, result }
        })
    }

    fn spawn(&self, work: impl FnOnce() -> Done + Send + 'static) -> Result<(), String> {
        let to = self.to.clone();
        let run = move || drop(to.send(Event::Back(work())));
        let thread = thread::Builder::new().name("fetch".into()).spawn(run);
        thread
            .map(|_| ())
            .map_err(|error| format!("no thread can be started: {error}"))
    }
}

fn look(level3: &Level3, job: &JobId, uid: u32) -> Result<Vec<Complete>, String> {
    let found = level3.open().and_then(|store| {
        let drained = store.existing(job)?.filter(|it| it.uid() == uid);
        drained.map_or(Ok(Vec::new()), |drained| drained.complete(MOST))
    });
    match found {
        // A folder that is not fit has never had anything.
        Err(error) if error.kind == Kind::Refused => Ok(Vec::new()),
        found => found.map_err(|error| error.to_string()),
    }
}

fn mark(
    level3: &Level3,
    (job, uid): (&JobId, u32),
    index: NodeIndex,
    refused: &[(CheckpointId, Refusal)],
) -> gpuos_store::error::Result<()> {
    let store = level3.open()?;
    let Some(drained) = store.existing(job)?.filter(|it| it.uid() == uid) else {
        return Ok(());
    };
    refused
        .iter()
        .try_for_each(|(id, refusal)| drained.refuse(index, *id, refusal))
}

fn fetch(
    level3: &Level3,
    (job, uid): (&JobId, u32),
    (id, index, hosted): (CheckpointId, NodeIndex, Option<u16>),
    ended: &Arc<AtomicBool>,
) -> gpuos_store::error::Result<()> {
    let store = level3.open()?;
    let Some(drained) = store.existing(job)?.filter(|it| it.uid() == uid) else {
        let tried = format!("copy in checkpoint {id} of job {job}");
        let next = "see whether the nodes have the same file system mounted";
        return Err(Error::refused(tried, "nothing of the job is there", next));
    };
    let (from, to) = (drained.part(index)?, level3.store.job(job, uid)?);
    let to = match hosted {
        Some(nodes) => place(level3.store, to, nodes, index)?,
        None => to,
    };
    let mut pace = |_| match ended.load(Ordering::Relaxed) {
        true => {
            let next = "nothing has to be done";
            Err(Error::refused("copy the rest", "nobody waits for it", next))
        }
        false => Ok(()),
    };
    copy_part(&from, &to, id, index, Trust::Content, &mut pace).map(|_| ())
}

/// Whether a run goes on with what its nodes have; otherwise another roster follows, by which they copy in what is better. What is
/// there and cannot be had is said, and the program does not begin anew in its place.
pub fn goes_on(said: &FromShared, ready: &mut Ready) -> bool {
    let number = ready.restore.map_or(0, |id| id.number);
    if said.better.is_some_and(|better| better.number > number) {
        return false;
    }
    ready.highest = ready.highest.max(said.highest);
    let failed = said.failed.iter().filter(|failed| **failed > number);
    let failed: Vec<String> = failed
        .map(|failed| {
            format!("checkpoint {failed} was drained and could not be copied in, as the logs of gpuos_mover say")
        })
        .collect();
    let known = |number: u32| ready.refused.iter().any(|(id, _)| id.number == number);
    let refused = said.refused.iter();
    let refused = refused.filter(|(refused, _)| *refused > number && !known(*refused));
    let refused: Vec<String> = refused
        .map(|(refused, by)| format!("checkpoint {refused}, which was drained: {by}"))
        .collect();
    let unread = said.unread.iter().filter(|_| ready.restore.is_none());
    let unread = unread.map(|why| format!("what was drained is not known: {why}"));
    let more: Vec<String> = failed.into_iter().chain(refused).chain(unread).collect();
    ready.lost |= ready.restore.is_none() && !more.is_empty();
    ready.passed_over.splice(0..0, more);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> CheckpointId {
        CheckpointId { number, attempt: 1 }
    }

    fn ready(restore: Option<u32>) -> Ready {
        Ready {
            restore: restore.map(id),
            passed_over: Vec::new(),
            refused: Vec::new(),
            highest: restore.unwrap_or(0),
            lost: false,
        }
    }

    #[test]
    fn what_the_nodes_have_goes_before_what_is_older() {
        let said = FromShared {
            better: Some(id(6)),
            highest: 6,
            ..FromShared::default()
        };
        for (restore, goes) in [
            (None, false),
            (Some(5), false),
            (Some(6), true),
            (Some(7), true),
        ] {
            let mut ready = ready(restore);
            assert_eq!(goes_on(&said, &mut ready), goes, "{restore:?}");
            assert!(!ready.lost && ready.passed_over.is_empty());
        }
    }

    #[test]
    fn numbers_go_on_above_what_is_there() {
        let said = FromShared {
            fetch: Some(id(6)),
            highest: 6,
            failed: vec![6],
            ..FromShared::default()
        };
        let mut older = ready(Some(4));
        assert!(goes_on(&said, &mut older));
        assert_eq!((older.highest, older.lost), (6, false));
        assert!(older.passed_over[0].contains("checkpoint 6 was drained"));
    }

    #[test]
    fn what_was_drained_and_refused_is_told_once_and_nothing_begins_anew_in_its_place() {
        let by = Refusal {
            rank: 2,
            node: "n3".into(),
            said: "x".into(),
        };
        let said = FromShared {
            highest: 6,
            refused: vec![(6, by.to_string())],
            ..FromShared::default()
        };
        let mut none = ready(None);
        assert!(goes_on(&said, &mut none) && none.lost);
        assert_eq!(
            none.passed_over,
            ["checkpoint 6, which was drained: rank 2 on n3 could not load it and has refused it"]
        );
        let mut known = ready(Some(5));
        known.refused = vec![(id(6), by)];
        assert!(goes_on(&said, &mut known) && known.passed_over.is_empty());
    }

    #[test]
    fn a_program_does_not_begin_anew_in_place_of_what_cannot_be_had() {
        let failed = FromShared {
            failed: vec![6],
            ..FromShared::default()
        };
        let unread = FromShared {
            unread: Some("it hangs".into()),
            ..FromShared::default()
        };
        for said in [failed, unread] {
            let mut none = ready(None);
            assert!(goes_on(&said, &mut none) && none.lost, "{said:?}");
        }
        let mut none = ready(None);
        assert!(goes_on(&FromShared::default(), &mut none) && !none.lost);
    }
}
