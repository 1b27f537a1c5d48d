//! Committed checkpoints are drained to the parallel file system: the node that leads says which, each node copies its own part in a
//! thread, and when all have, older ones are removed there.
//!
//! ```text
//!  leads:   Idle ─► Beginning ─► Copying: Drain to all, Drained of all ─► Looking ─► Idle, while older ones are removed
//!                       └───────────┴── one cannot, or a part is not seen: tried again with the newest
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_config::options::Drain as Asked;
use gpuos_core::job::JobId;
use gpuos_store::error::{Error, Result as Stored};
use gpuos_store::transfer::{Trust, copy_part};

use crate::carried::Body;
use crate::event::{DrainDone as Done, Event};
use crate::level3::{Level3, over};

/// A node is told again after so long.
const TELL: Duration = Duration::from_secs(3);
/// After a failure it is tried again after so long.
const AGAIN: Duration = Duration::from_secs(60);
/// So many nodes are named that are waited for.
const NAMED: usize = 4;
/// So many complete ones are looked through for the one that was copied, as one of an attempt before may be newer.
const MOST: usize = 4;

enum Stage {
    Idle,
    Beginning(CheckpointId, Instant),
    Copying {
        id: CheckpointId,
        /// Seats that have not said that their parts are there.
        open: BTreeSet<u16>,
        told: Option<Instant>,
        since: Instant,
    },
    /// All have copied. That counts where it is one folder that they have copied to: an empty one lies beneath each mount point.
    Looking(CheckpointId, Instant),
}

/// How far this node's own part is.
enum Own {
    Idle,
    Busy,
    Done(CheckpointId),
}

/// The draining of a job on this node.
pub struct Drain {
    level3: Option<Arc<Level3>>,
    job: JobId,
    uid: u32,
    to: SyncSender<Event>,
    /// One of so many; `None`: none.
    every: Option<u32>,
    nodes: u16,
    newest: Option<CheckpointId>,
    wanted: bool,
    round: u32,
    not_before: Option<Instant>,
    stage: Stage,
    /// Also that of an earlier agreement: nothing may be written meanwhile.
    is_pruning: bool,
    own: Own,
    drained: Option<CheckpointId>,
    why: Option<String>,
    notes: Vec<String>,
    ended: Arc<AtomicBool>,
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Drain {
    /// Of a job; nothing is drained before [`Drain::begin`].
    pub fn new(
        level3: Option<Arc<Level3>>,
        (job, uid): (JobId, u32),
        to: SyncSender<Event>,
    ) -> Drain {
        Drain {
            level3,
            job,
            uid,
            to,
            every: None,
            nodes: 0,
            newest: None,
            wanted: false,
            round: 0,
            not_before: None,
            stage: Stage::Idle,
            is_pruning: false,
            own: Own::Idle,
            drained: None,
            why: None,
            notes: Vec::new(),
            ended: Arc::default(),
        }
    }

    /// Movers have found each other, anew perhaps: what was agreed before does not count.
    pub fn begin(&mut self, asked: Option<Asked>, nodes: u16) {
        self.nodes = nodes;
        let site = self.level3.as_ref().map(|level3| level3.every);
        self.every = match asked {
            Some(Asked::Off) => None,
            Some(Asked::Every(every)) => Some(every),
            None => site,
        };
        self.newest = None;
        self.wanted = false;
        self.stage = Stage::Idle;
    }

    /// The newest checkpoint that exists on all nodes; the first that is told of is that from which the run went on.
    pub fn committed(&mut self, id: CheckpointId, restored: bool) {
        let before = self.newest.map_or(0, |newest| newest.number);
        if self.newest == Some(id) {
            return;
        }
        self.newest = Some(id);
        // Numbers of checkpoints that came to nothing are missing.
        let due = |every| id.number / every > before / every;
        self.wanted |= !restored && self.every.is_some_and(due);
    }

    /// Notes for the log.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Time went by on the node that leads. What is to be said to which seats; to the own one by [`Drain::asked`].
    pub fn tick(&mut self) -> Vec<(u16, Body)> {
        let early = self.not_before.is_some_and(|due| Instant::now() < due) || self.is_pruning;
        if let (Stage::Idle, true, false, Some(id)) = (&self.stage, self.wanted, early, self.newest)
        {
            match self.usable() {
                Ok(level3) => self.begin_with(id, &level3),
                Err(why) => self.failed(why),
            }
        }
        let Stage::Copying { id, open, told, .. } = &mut self.stage else {
            return Vec::new();
        };
        if told.is_some_and(|told| told.elapsed() < TELL) {
            return Vec::new();
        }
        *told = Some(Instant::now());
        let (id, round) = (*id, self.round);
        open.iter()
            .map(|seat| (*seat, Body::Drain { id, round }))
            .collect()
    }

    fn usable(&self) -> Result<Arc<Level3>, String> {
        let Some(level3) = &self.level3 else {
            return Err("gpuos.toml has no shared = \"/PATH\" in [checkpoint]".into());
        };
        level3.why_off().map_or(Ok(level3.clone()), Err)
    }

    fn begin_with(&mut self, id: CheckpointId, level3: &Arc<Level3>) {
        self.wanted = false;
        self.round = self.round.wrapping_add(1);
        self.stage = Stage::Beginning(id, Instant::now());
        let (job, uid) = (self.job.clone(), self.uid);
        let work = move |level3: &Level3| {
            let store = level3.open()?;
            store.make(&job, uid)?.lead(&level3.node)
        };
        self.spawn(level3, work, |result| Done::Begun(said(result)));
    }

    /// The node that leads wants the part of a checkpoint drained that this node, of that index, has. What is to be said to it.
    pub fn asked(&mut self, id: CheckpointId, round: u32, index: NodeIndex) -> Option<Body> {
        match self.own {
            Own::Busy => return None,
            Own::Done(done) if done == id => {
                let failed = None;
                return Some(Body::Drained { id, round, failed });
            }
            Own::Done(_) | Own::Idle => {}
        }
        let level3 = match self.usable() {
            Ok(level3) => level3,
            Err(why) => {
                let failed = Some(why);
                return Some(Body::Drained { id, round, failed });
            }
        };
        self.own = Own::Busy;
        let (job, uid, ended) = (self.job.clone(), self.uid, self.ended.clone());
        // It may wait for long, and newer ones come meanwhile: retention leaves this one until it is copied.
        let read = level3.store.read(&job, id);
        let work = move |level3: &Level3| {
            let _read = read;
            let mut turn = level3.turns.enter(uid, &ended).ok_or_else(over)?;
            let mut pace = level3.pace(ended.clone());
            let mut pace = move |bytes: u64| {
                // The site's rate is that of the node: who has waited does not make up for it.
                if turn.give_way(&ended).ok_or_else(over)? {
                    pace = level3.pace(ended.clone());
                }
                pace(bytes)
            };
            let store = level3.open()?;
            let Some(drained) = store.existing(&job)?.filter(|it| it.uid() == uid) else {
                let tried = format!("drain a checkpoint of job {job}");
                let why = "the node that leads the job has made no folder for it there";
                let next = "see whether the nodes have the same file system mounted";
                return Err(Error::refused(tried, why, next));
            };
            let (from, to) = (level3.store.job(&job, uid)?, drained.part(index)?);
            copy_part(&from, &to, id, index, Trust::Length, &mut pace).map(|_| ())
        };
        let told = move |result| Done::Drained {
            id,
            round,
            result: said(result),
        };
        self.spawn(&level3, work, told);
        None
    }

    /// A thread has ended. What is to be said to the node that leads.
    pub fn done(&mut self, done: Done) -> Option<Body> {
        match done {
            Done::Begun(result) => {
                let Stage::Beginning(id, since) = self.stage else {
                    return None;
                };
                match result {
                    Ok(()) => {
                        // The folder may have taken long, and the one that was the newest may be gone.
                        let id = self.newest.map_or(id, |newest| newest.max(id));
                        self.stage = Stage::Copying {
                            id,
                            open: (0..self.nodes).collect(),
                            told: None,
                            since,
                        }
                    }
                    Err(why) => self.failed(why),
                }
                None
            }
            Done::Drained { id, round, result } => {
                self.own = match result {
                    Ok(()) => Own::Done(id),
                    Err(_) => Own::Idle,
                };
                let failed = result.err();
                Some(Body::Drained { id, round, failed })
            }
            Done::Seen(id, result) => {
                let waits = matches!(self.stage, Stage::Looking(own, _) if own == id);
                match result {
                    _ if !waits => {}
                    Ok(()) => self.seen(id),
                    Err(why) => {
                        // Parts are copied once more.
                        self.own = Own::Idle;
                        self.failed(why);
                    }
                }
                None
            }
            Done::Pruned(result) => {
                self.is_pruning = false;
                // What is left goes after the next one.
                self.notes.extend(result.err());
                None
            }
        }
    }

    /// A node says how it stands with its part.
    pub fn answered(
        &mut self,
        seat: u16,
        (id, round): (CheckpointId, u32),
        failed: Option<String>,
    ) {
        let Stage::Copying { id: own, open, .. } = &mut self.stage else {
            return;
        };
        if (*own, self.round) != (id, round) {
            return;
        }
        if let Some(why) = failed {
            return self.failed(why);
        }
        open.remove(&seat);
        if !open.is_empty() {
            return;
        }
        self.stage = Stage::Looking(id, Instant::now());
        if let Some(level3) = self.level3.clone() {
            let job = self.job.clone();
            let work = move |level3: &Level3| is_seen(level3, &job, id);
            self.spawn(&level3, work, move |result| Done::Seen(id, said(result)));
        }
    }

    /// It is there. Older ones can go.
    fn seen(&mut self, id: CheckpointId) {
        let again = self.why.take().is_some();
        if again || self.drained.is_none() {
            self.notes
                .push(format!("checkpoint {} is drained", id.number));
        }
        self.drained = Some(id);
        self.stage = Stage::Idle;
        if let Some(level3) = self.level3.clone() {
            self.is_pruning = true;
            let (job, uid) = (self.job.clone(), self.uid);
            let work = move |level3: &Level3| {
                let store = level3.open()?;
                let drained = store.existing(&job)?.filter(|it| it.uid() == uid);
                drained.map_or(Ok(()), |drained| drained.prune(level3.keep))
            };
            self.spawn(&level3, work, |result| Done::Pruned(said(result)));
        }
    }

    /// It is tried again later, and said once.
    fn failed(&mut self, why: String) {
        self.stage = Stage::Idle;
        self.wanted = true;
        self.not_before = Some(Instant::now() + AGAIN);
        if self.why.as_ref() != Some(&why) {
            let again = AGAIN.as_secs();
            self.notes.push(format!(
                "no checkpoint is drained: {why}; it is tried again every {again} s"
            ));
        }
        self.why = Some(why);
    }

    fn spawn(
        &mut self,
        level3: &Arc<Level3>,
        work: impl FnOnce(&Level3) -> Stored<()> + Send + 'static,
        done: impl FnOnce(Stored<()>) -> Done + Send + 'static,
    ) {
        let (level3, to) = (level3.clone(), self.to.clone());
        let run = move || {
            let done = done(work(&level3));
            // Nobody listens any more when the job has ended here.
            let _ = to.send(Event::Drain(done));
        };
        if let Err(error) = thread::Builder::new().name("drain".into()).spawn(run) {
            self.own = Own::Idle;
            self.failed(format!("no thread can be started: {error}"));
        }
    }

    /// The newest checkpoint that all nodes have drained in this run, and how it stands, in a sentence for the node that leads.
    pub fn told(&self, nodes: &[String]) -> (Option<u32>, String) {
        let drained = self.drained.map(|id| id.number);
        let Some(every) = self.every else {
            return (drained, String::new());
        };
        let Some(level3) = &self.level3 else {
            return (drained, "off: this site has no shared folder".into());
        };
        let off = self.why.clone().or_else(|| level3.why_off());
        if let Some(why) = off {
            return (drained, format!("off: {why}"));
        }
        let which = match every {
            1 => "each checkpoint is drained".into(),
            every => format!("one checkpoint of {every} is drained"),
        };
        let mut text = format!("{which} to {}", level3.path());
        if let Stage::Beginning(id, since) | Stage::Looking(id, since) = &self.stage {
            let seconds = since.elapsed().as_secs();
            text += &format!("; {} has been wanted for {seconds} s", id.number);
        }
        if let Stage::Copying {
            id, open, since, ..
        } = &self.stage
        {
            let waits = open.iter().map_while(|seat| nodes.get(usize::from(*seat)));
            let waits: Vec<&str> = waits.take(NAMED).map(String::as_str).collect();
            text += &format!(
                "; {} has been under way for {} s, and waits for {}",
                id.number,
                since.elapsed().as_secs(),
                waits.join(", ")
            );
        }
        (drained, text)
    }
}

/// Whether this node sees all parts of a checkpoint.
fn is_seen(level3: &Level3, job: &JobId, id: CheckpointId) -> Stored<()> {
    let store = level3.open()?;
    let complete = store.existing(job)?.map(|drained| drained.complete(MOST));
    let complete = complete.transpose()?.unwrap_or_default();
    if complete.iter().any(|it| it.id == id) {
        return Ok(());
    }
    let tried = format!("find checkpoint {id} of job {job} in {}", level3.path());
    let why = "this node does not see the parts that the others have copied";
    let next = "see whether all nodes of the job have the same file system mounted, this one too";
    Err(Error::refused(tried, why, next))
}

fn said(result: Stored<()>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}
