//! Node 0 conducts: epochs, answers, and one checkpoint after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};

use super::epoch::{Base, Epoch};
use super::line::Line;
use super::member::restored;
use super::pace::Pace;
use super::resume::resumed;
use super::start::{Join, Reason};
use super::types::{Answered, Making, Output, Refused, Settings, Stage, Told, Took, View};
use super::word::{Asked, Orders, Report, short, within};
use crate::output::Ready;

/// So many durations are shown.
const TOOK: usize = 8;

/// Bytes of why nothing is restored, in a sentence that goes on with what to do.
const MOST_PASSED: usize = 700;

/// Why one that not all nodes have heard of came to nothing.
const GATHERED: &str = "not all nodes had heard of it when their movers had to find each other anew; the checkpoint before is as it was";

/// Why one that all have heard of did.
const INCOMPLETE: &str = "not all nodes had their parts of it when their movers had to find each other anew; the checkpoint before is as it was";

/// So many nodes or ranks are named in a sentence, the rest is counted.
const NAMED: usize = 8;

/// A node as the leader knows it.
#[derive(Clone, Debug)]
struct Peer {
    line: Line<Orders>,
    version: u64,
    report: Report,
    /// What became of the checkpoint that was open there.
    settled: Option<(u32, Result<(), String>)>,
}

/// The checkpoint that is being made.
#[derive(Clone, Debug)]
struct Made {
    number: u32,
    reason: Reason,
    size: u16,
    /// The joins that it is made of, and their nodes.
    ranks: BTreeMap<u16, (Join, NodeIndex)>,
    asked: u64,
    /// All files are complete, and the node was told to begin.
    begun: Option<u64>,
}

/// What node 0 knows in addition to its own ranks.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    settings: Settings,
    peers: Vec<Peer>,
    ready: Option<Ready>,
    /// The newest checkpoint. `None`: not known yet.
    base: Option<Base>,
    epoch: Epoch,
    /// All that nodes know of earlier conductors is known, and the epoch is that which goes on.
    resumed: bool,
    /// Joins that were taken, and after how many of them all nodes were told to look who lives.
    seen: u64,
    look: u64,
    made: Option<Made>,
    ended: Option<(u32, Result<(), String>)>,
    /// The highest number that was used.
    highest: u32,
    wanted: Option<Reason>,
    /// The newest checkpoint could not be loaded by a rank of that node: all begins anew without it.
    refused: Option<(CheckpointId, NodeIndex, Refused)>,
    /// One for the end of the job is committed.
    over: bool,
    /// All nodes are reached: one that is not would not hear that a checkpoint is wanted, and its ranks wait for it.
    reached: bool,
    pace: Pace,
    took: VecDeque<Took>,
    /// Orders may be others than before.
    changed: bool,
}

impl Leader {
    pub(super) fn new(settings: &Settings) -> Leader {
        let peer = Peer {
            line: Line::new(settings.retry_ms, settings.retry_most_ms),
            version: 0,
            report: Report::default(),
            settled: None,
        };
        Leader {
            peers: vec![peer; settings.nodes.into()],
            ready: None,
            base: None,
            epoch: Epoch::new(1),
            resumed: false,
            seen: 0,
            look: 0,
            made: None,
            ended: None,
            highest: 0,
            wanted: None,
            refused: None,
            over: false,
            reached: true,
            pace: Pace::new(settings.every, settings.nodes, settings.least_ms),
            took: VecDeque::new(),
            changed: true,
            settings: settings.clone(),
        }
    }

    /// The job goes on after a checkpoint for its end.
    pub(super) fn end_is_off(&mut self) {
        self.over = false;
        self.wanted.take_if(|reason| *reason == Reason::End);
    }

    /// Whether all nodes are reached.
    pub(super) fn reached(&mut self, all: bool) {
        self.reached = all;
    }

    /// The restart is over: `lost` checkpoints are such that the program is not to begin anew in their place.
    pub(super) fn ready(&mut self, ready: Ready) {
        if self.ready.is_some() {
            return;
        }
        self.highest = self.highest.max(ready.highest);
        if ready.restore.is_none() {
            self.base = Some(match ready.lost {
                true => Base::Lost(format!(
                    "no checkpoint can be restored from the nodes that are left: {}; nothing was removed; have what is missing back and \
                     requeue the job; to begin from its start, requeue and hold it and have gpuos ckpt prune --anew remove what is left, \
                     or submit it with --gpuos-restart=new, which begins anew where none can be restored",
                    within(&ready.passed_over.join("; "), MOST_PASSED),
                )),
                false => Base::Nothing,
            });
        }
        self.ready = Some(ready);
    }

    /// A node's report. Whether it is new, so that an answer says that it was heard in any case.
    pub(super) fn report(&mut self, from: NodeIndex, version: u64, report: Report, now: u64) {
        let Some(peer) = self.peers.get_mut(usize::from(from.0)) else {
            return;
        };
        if version <= peer.version {
            return;
        }
        peer.version = version;
        peer.line.heard(report.heard);
        let before = std::mem::replace(&mut peer.report, report.clone());
        self.highest = self.highest.max(report.known.highest);
        if report.ends > before.ends {
            self.want(Reason::End, now);
        }
        if report.asked > before.asked {
            self.want(Reason::Asked, now);
        }
        if !self.resumed {
            return;
        }
        if let Some(by) = report.refused {
            self.refuse(from, by);
        }
        let known: BTreeSet<Join> = before.joins.into_iter().collect();
        let new: Vec<Join> = report
            .joins
            .into_iter()
            .filter(|join| !known.contains(join))
            .collect();
        for join in new {
            self.join(from, join, now);
        }
    }

    fn want(&mut self, reason: Reason, now: u64) {
        self.wanted = self.wanted.max(Some(reason));
        self.pace.hurry(reason, now);
    }

    /// A rank could not load what it was given. It counts while that is the newest checkpoint, and nothing was saved of what was loaded.
    fn refuse(&mut self, from: NodeIndex, by: Refused) {
        let told = Told::Restore(by.number);
        let was_told = self.answer(by.join, from).is_some_and(|it| it.told == told);
        let storing = self.made.as_ref().is_some_and(|made| made.begun.is_some());
        let (Some(Base::Made { id, .. }), None) = (&self.base, &self.refused) else {
            return;
        };
        if was_told && id.number == by.number && !storing && !self.epoch.begun {
            self.refused = Some((*id, from, by));
            self.changed = true;
        }
    }

    fn join(&mut self, from: NodeIndex, join: Join, now: u64) {
        let epoch = self.epoch.number;
        // A file that was away for a while: it belongs to the epoch of its answer.
        if self.answer(join, from).is_some_and(|it| it.epoch != epoch) {
            return;
        }
        let before = self.epoch.of_rank(join.rank);
        let waits = before.is_some_and(|(before, node)| self.answer(before, node).is_none());
        let times = (now, self.settings.settle_ms);
        if !self.epoch.join(join, from, times, waits) {
            return;
        }
        self.changed = true;
        self.seen += 1;
        if self.epoch.number != epoch {
            self.pace.started();
        }
        let Some(made) = self.made.take_if(|made| made.begun.is_none()) else {
            return;
        };
        self.wanted = self.wanted.max(wanted(made.reason));
        let why = format!(
            "rank {} of {} has started anew on node {from} before all files were complete; the checkpoint before is as it was",
            join.rank, join.size
        );
        self.ended = Some((made.number, Err(short(why))));
    }

    /// The answer to a join, if it lies in its node's folder.
    fn answer(&self, join: Join, node: NodeIndex) -> Option<Answered> {
        let peer = self.peers.get(usize::from(node.0))?;
        let mut answered = peer.report.known.answered.iter();
        answered.find(|it| it.join == join).copied()
    }

    /// When all nodes have said what was answered before, the last epoch goes on, or the first one begins.
    fn resume(&mut self, now: u64) {
        let ready = self.peers.iter().all(|peer| peer.report.ready);
        let Some(base) = self.base.clone().filter(|_| ready && !self.resumed) else {
            return;
        };
        (self.resumed, self.changed) = (true, true);
        // Ranks on a node that never heard of it may wait for it, as others have.
        let numbers = self.peers.iter().map(|peer| peer.report.known.highest);
        let (heard, all) = (numbers.clone().max(), numbers.min());
        let newest = match &base {
            Base::Made { id, .. } => id.number,
            _ => 0,
        };
        if let Some(number) = heard.filter(|heard| Some(*heard) > all && *heard > newest) {
            self.ended = Some((number, Err(GATHERED.into())));
        }
        let open = self.peers.iter().map(|peer| peer.report.known.open);
        let settled: Vec<_> = open
            .map(|open| Some((open?, self.became(open?, newest))))
            .collect();
        for (peer, settled) in self.peers.iter_mut().zip(settled) {
            peer.settled = settled;
        }
        let reports = self.peers.iter().map(|peer| &peer.report);
        let reports: Vec<(NodeIndex, &Report)> = (0..).map(NodeIndex).zip(reports).collect();
        let refused = self.ready.iter().flat_map(|ready| &ready.refused);
        let refused = refused.map(|(id, _)| id.number).collect();
        let (epoch, unanswered) = resumed(&reports, base, &refused, now);
        self.epoch = epoch;
        let by: Vec<(NodeIndex, Refused)> = reports
            .iter()
            .filter_map(|(node, report)| Some((*node, report.refused.clone()?)))
            .collect();
        for (node, by) in by {
            self.refuse(node, by);
        }
        for (node, join) in unanswered {
            self.join(node, join, now);
        }
    }

    /// What became of a checkpoint that some nodes' programs do not know the end of. What those of other nodes were told stays true, for ranks
    /// decide by it; else it exists if the newest checkpoint that is whole is not older.
    fn became(&self, number: u32, newest: u32) -> Result<(), String> {
        let known = || self.peers.iter().map(|peer| &peer.report.known);
        let exists = known().any(|it| it.committed >= Some(number));
        let failed = known().any(|it| it.failed == Some(number));
        match exists || (newest >= number && !failed) {
            true => Ok(()),
            false => Err(INCOMPLETE.into()),
        }
    }

    /// An attempt has ended on this node, so everywhere: the others follow its record.
    pub(super) fn ended(&mut self, id: CheckpointId, outcome: Outcome, now: u64) {
        let begun = |made: &mut Made| made.number == id.number && made.begun.is_some();
        let Some(made) = self.made.take_if(begun) else {
            return;
        };
        match outcome {
            Outcome::Failed { why } => self.failed(&made, why, now),
            Outcome::Committed => self.committed(made, id, now),
        }
    }

    pub(super) fn refused(&mut self, id: CheckpointId, why: String, now: u64) {
        self.ended(id, Outcome::Failed { why }, now);
    }

    fn committed(&mut self, made: Made, id: CheckpointId, now: u64) {
        let begun = made.begun.unwrap_or(now);
        let took = Took {
            number: made.number,
            pause_ms: begun.saturating_sub(made.asked),
            background_ms: now.saturating_sub(begun),
        };
        self.pace.committed(now, took.pause_ms, took.background_ms);
        self.took.push_back(took);
        self.took.drain(..self.took.len().saturating_sub(TOOK));
        let holders = made.ranks.values().map(|(join, node)| (join.rank, *node));
        self.base = Some(Base::Made {
            id,
            size: made.size,
            holders: holders.collect(),
        });
        self.over |= made.reason == Reason::End;
        self.ended = Some((made.number, Ok(())));
        self.changed = true;
    }

    fn failed(&mut self, made: &Made, why: String, now: u64) {
        self.pace.failed(now);
        self.wanted = self.wanted.max(wanted(made.reason));
        self.ended = Some((made.number, Err(short(why))));
        self.changed = true;
    }

    /// Why a checkpoint is wanted or made, unless for the interval alone.
    pub(super) fn wanted(&self) -> Option<Reason> {
        let made = self.made.as_ref().and_then(|made| wanted(made.reason));
        self.wanted.max(made)
    }

    /// Whatever can be done now.
    pub(super) fn advance(&mut self, now: u64, out: &mut Vec<Output>) {
        self.learn_base();
        self.resume(now);
        if self.refused.is_some() {
            if std::mem::take(&mut self.changed) {
                self.tell();
            }
            return;
        }
        let Settings {
            anew_ms, ready_ms, ..
        } = self.settings;
        self.look_who_lives();
        let waits = self
            .epoch
            .has(|join, node| self.answer(join, node).is_none());
        self.changed |= self.epoch.is_given_up(now, (anew_ms, ready_ms), waits);
        let storing = self.made.as_ref().is_some_and(|made| made.begun.is_some());
        if let (None, false, Some(base)) = (&self.epoch.base, storing, &self.base) {
            self.epoch.settle(base.clone());
            self.changed = true;
        }
        let heard = self.peers.iter().all(|peer| peer.line.is_heard());
        if heard && !self.changed {
            self.epoch.heard = true;
        }
        self.store(now, out);
        if self.made.is_none() && heard && !self.changed && self.reached {
            self.ask(now);
        }
        if std::mem::take(&mut self.changed) {
            self.tell();
        }
    }

    /// Whether all processes of the epoch run, by looks that were made after the last of them was known to have joined.
    fn look_who_lives(&mut self) {
        // Once all have joined, not at every join: it is told to all nodes.
        if self.look < self.seen && self.epoch.together.is_some() && self.epoch.complete.is_some() {
            self.look = self.seen;
            self.changed = true;
        }
        let looked = |peer: &Peer| peer.report.looked >= self.seen;
        let gone = |join: Join, node: NodeIndex| {
            let peer = self.peers.get(usize::from(node.0));
            peer.is_some_and(|peer| peer.report.gone.contains(&join))
        };
        let alive = self.peers.iter().all(looked) && !self.epoch.has(gone);
        self.changed |= alive != self.epoch.alive;
        self.epoch.alive = alive;
    }

    /// From the manifests of all nodes.
    fn learn_base(&mut self) {
        let restore = self.ready.as_ref().and_then(|ready| ready.restore);
        let (None, Some(id)) = (&self.base, restore) else {
            return;
        };
        let held = |(node, peer): (u16, &Peer)| {
            let (of, ranks) = peer.report.holds.as_ref()?;
            (*of == id).then(|| (NodeIndex(node), ranks.clone()))
        };
        let all: Option<Vec<_>> = (0..).zip(&self.peers).map(held).collect();
        self.base = all.map(|all| Base::of(id, &all));
    }

    /// Has a checkpoint stored when all files are complete, or gives it up.
    fn store(&mut self, now: u64, out: &mut Vec<Output>) {
        let Some(made) = self.made.take_if(|made| made.begun.is_none()) else {
            return;
        };
        let number = made.number;
        if self.is_saved(&made) {
            self.epoch.begun = true;
            self.made = Some(Made {
                begun: Some(now),
                ..made
            });
            out.push(Output::Begin { number });
        } else if now >= made.asked.saturating_add(self.settings.ready_ms) {
            let why = format!(
                "the program had not saved after {} s: {}; look at it there, the checkpoint before is as it was",
                self.settings.ready_ms / 1000,
                self.late(&made)
            );
            self.failed(&made, why, now);
        } else {
            self.made = Some(made);
        }
    }

    /// The ranks of a node whose files are complete. `None`: the node has not answered.
    fn saved(&self, made: &Made, node: NodeIndex) -> Option<&BTreeSet<u16>> {
        let peer = self.peers.get(usize::from(node.0))?;
        let saved = peer.report.saved.as_ref();
        saved
            .filter(|saved| saved.0 == made.number)
            .map(|saved| &saved.1)
    }

    fn has_saved(&self, made: &Made, join: Join, node: NodeIndex) -> bool {
        let saved = self.saved(made, node);
        saved.is_some_and(|ranks| ranks.contains(&join.rank))
    }

    fn is_saved(&self, made: &Made) -> bool {
        let mut nodes = (0..self.settings.nodes).map(NodeIndex);
        let mut ranks = made.ranks.values();
        nodes.all(|node| self.saved(made, node).is_some())
            && ranks.all(|(join, node)| self.has_saved(made, *join, *node))
    }

    /// Whom it waits for, in words.
    fn late(&self, made: &Made) -> String {
        let ranks = made.ranks.values();
        let late = ranks.filter(|(join, node)| !self.has_saved(made, *join, *node));
        let late = late.map(|(join, node)| format!("rank {} on node {node}", join.rank));
        let with: BTreeSet<NodeIndex> = made.ranks.values().map(|(_, node)| *node).collect();
        let nodes = (0..self.settings.nodes).map(NodeIndex);
        let silent = nodes.filter(|node| !with.contains(node) && self.saved(made, *node).is_none());
        let silent = silent.map(|node| format!("node {node}, which is not heard"));
        let mut who: Vec<String> = late.chain(silent).collect();
        let more = who.len().saturating_sub(NAMED);
        who.truncate(NAMED);
        if more > 0 {
            who.push(format!("{more} more"));
        }
        who.join(", ")
    }

    /// Asks for a checkpoint when one is due and all ranks are there.
    fn ask(&mut self, now: u64) {
        let Some(complete) = self.epoch.complete else {
            return;
        };
        let any = self.epoch.own_alone(complete.size, &self.any()).is_none();
        let runs = self
            .epoch
            .base
            .as_ref()
            .is_some_and(|base| base.admits(complete.size, any));
        if !runs || !self.peers.iter().all(|peer| peer.report.ready) {
            return;
        }
        let reason = match self.wanted {
            Some(reason) if self.pace.may(now) && self.pace.is_time(reason, now) => reason,
            // What is asked for too soon waits, and the interval goes on beside it.
            None | Some(Reason::Asked) if !self.over && self.pace.is_due(now, complete.since) => {
                Reason::Interval
            }
            _ => return,
        };
        // The last number is not used, so that a node can always name a higher one.
        let Some(number) = self
            .highest
            .checked_add(1)
            .filter(|number| *number < u32::MAX)
        else {
            return;
        };
        self.highest = number;
        self.wanted = None;
        self.pace.begun(now);
        self.made = Some(Made {
            number,
            reason,
            size: complete.size,
            ranks: self.epoch.ranks(complete.size),
            asked: now,
            begun: None,
        });
        self.changed = true;
    }

    /// Who can begin from the files of any number of ranks.
    fn any(&self) -> BTreeMap<Join, bool> {
        let any = self.peers.iter().flat_map(|peer| &peer.report.any);
        any.copied().collect()
    }

    /// Tells all nodes how things are.
    fn tell(&mut self) {
        // Nobody is given any more what is refused.
        let mut answers = match self.refused {
            Some(_) => BTreeMap::new(),
            None => self.epoch.answers(&self.any()),
        };
        let mut asked: BTreeMap<NodeIndex, Vec<Join>> = BTreeMap::new();
        if let Some(made) = &self.made {
            for (join, node) in made.ranks.values() {
                asked.entry(*node).or_default().push(*join);
            }
        }
        for (node, peer) in (0..).map(NodeIndex).zip(&mut self.peers) {
            let ask = self.made.as_ref().map(|made| Asked {
                number: made.number,
                reason: made.reason,
                joins: asked.remove(&node).unwrap_or_default(),
            });
            peer.line.tell(Orders {
                epoch: self.epoch.number,
                look: self.look,
                answers: answers
                    .remove(&node)
                    .unwrap_or_default()
                    .into_iter()
                    .collect(),
                ask,
                ended: self.ended.clone(),
                settled: peer.settled.clone(),
                refused: self.refused.clone(),
            });
        }
    }

    /// What is to be said to nodes now.
    pub(super) fn due(&mut self, now: u64) -> Vec<(NodeIndex, u64, Orders)> {
        let peers = (0..).map(NodeIndex).zip(&mut self.peers);
        let due = peers.filter_map(|(node, peer)| {
            let (version, orders) = peer.line.due(now)?;
            Some((node, version, orders))
        });
        due.collect()
    }

    /// What the leader knows better than a member.
    pub(super) fn view(&self, member: View) -> View {
        View {
            interval: Some(self.pace.interval()),
            joined: self.epoch.count(),
            size: self.epoch.size(),
            making: self.made.as_ref().map(|made| Making {
                number: made.number,
                reason: made.reason,
                stage: match made.begun {
                    Some(_) => Stage::Storing,
                    None => Stage::Saving,
                },
                since: made.begun.unwrap_or(made.asked),
            }),
            newest: match &self.base {
                Some(Base::Made { id, .. }) => Some(*id),
                _ => None,
            },
            took: self.took.iter().copied().collect(),
            restored: restored(
                self.ready.as_ref(),
                self.peers.iter().map(|peer| &peer.report.known),
            ),
            ..member
        }
    }
}

/// One that somebody wanted and that came to nothing is still wanted.
fn wanted(reason: Reason) -> Option<Reason> {
    (reason != Reason::Interval).then_some(reason)
}
