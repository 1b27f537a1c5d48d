//! The leader: has all nodes prepare, decides, and tells.
use std::collections::{BTreeMap, BTreeSet};

use super::message::{Body, Digests, Effect, short};
use super::outbox::Outbox;
use super::settings::{Backoff, Settings};
use crate::ids::{CheckpointId, Digest, LEADER, NodeIndex};
use crate::usable::words::nodes_text;

/// So many committed checkpoints can still be told to who asks, more than a site keeps.
const KNOWN: usize = 16;
/// The record of a commit is tried so often.
const TRIES: u8 = 3;

#[derive(Clone, Debug)]
enum Phase {
    /// By when, and what has come.
    Preparing(u64, Vec<Option<Digest>>),
    /// The leader's own record is on its way to the disk: it may be there already, so nothing is aborted any more.
    Deciding(Digests, u8),
}

#[derive(Clone, Debug)]
struct Attempt {
    id: CheckpointId,
    phase: Phase,
    retry: Backoff,
}

/// A commit that not all nodes have recorded.
#[derive(Clone, Debug)]
struct Announced {
    id: CheckpointId,
    waiting: BTreeSet<NodeIndex>,
    retry: Backoff,
}

/// What node 0 knows in addition to its own parts.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    nodes: u16,
    settings: Settings,
    attempt: Option<Attempt>,
    announced: Option<Announced>,
    /// Checkpoints of whose commit this node has a durable record.
    known: BTreeMap<CheckpointId, Digests>,
    /// Attempts whose record failed, so that it may be there or not.
    undecided: BTreeSet<CheckpointId>,
    lost: BTreeSet<NodeIndex>,
}

impl Leader {
    pub(super) fn new(nodes: u16, settings: Settings) -> Leader {
        Leader {
            nodes,
            settings,
            attempt: None,
            announced: None,
            known: BTreeMap::new(),
            undecided: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    fn backoff(&self, now: u64) -> Backoff {
        Backoff::new(now, self.settings.retry_ms, self.settings.retry_most_ms)
    }

    fn newest(&self) -> u32 {
        self.known.keys().next_back().map_or(0, |id| id.number)
    }

    /// A committed checkpoint found on the disk.
    pub(super) fn found(&mut self, id: CheckpointId, digests: Digests) {
        self.known.insert(id, digests);
    }

    /// After a start: tells the commit again that may not have come through, or makes one of the checkpoint that the job restarts from.
    pub(super) fn resume(
        &mut self,
        adopt: Option<(CheckpointId, Digests)>,
        own: Option<Digest>,
        now: u64,
        out: &mut Outbox,
    ) {
        if let Some((id, digests)) = adopt.filter(|(id, _)| !self.known.contains_key(id)) {
            self.decide(id, digests, now, out);
        } else if let Some((id, digests)) = self.known.last_key_value()
            && own.is_some_and(|own| digests.agree(self.nodes, LEADER, own))
        {
            self.announce(*id, now, out);
        }
    }

    /// The newest committed checkpoint that this node has a record of.
    pub(super) fn newest_id(&self) -> Option<CheckpointId> {
        self.known.keys().next_back().copied()
    }

    /// Begins an attempt, or says why not.
    pub(super) fn begin(
        &mut self,
        id: CheckpointId,
        now: u64,
        out: &mut Outbox,
    ) -> Result<(), String> {
        if let Some(attempt) = &self.attempt {
            return Err(format!(
                "checkpoint {} is still being made; wait until it has ended",
                attempt.id.number
            ));
        }
        if id.number <= self.newest() {
            return Err(format!(
                "number {} is not above {}, which is committed; take a higher one",
                id.number,
                self.newest()
            ));
        }
        if !self.lost.is_empty() {
            let lost: Vec<NodeIndex> = self.lost.iter().copied().collect();
            return Err(format!(
                "{} of the job cannot store a part; restart the job without",
                nodes_text(&lost)
            ));
        }
        let deadline = now.saturating_add(self.settings.prepare_ms);
        self.attempt = Some(Attempt {
            id,
            phase: Phase::Preparing(deadline, vec![None; usize::from(self.nodes)]),
            retry: self.backoff(now),
        });
        for node in 0..self.nodes {
            out.say(NodeIndex(node), id, Body::Prepare);
        }
        Ok(())
    }

    /// A message of a node, of this one too.
    pub(super) fn message(
        &mut self,
        from: NodeIndex,
        id: CheckpointId,
        body: Body,
        now: u64,
        out: &mut Outbox,
    ) {
        self.lost.remove(&from);
        match body {
            Body::Prepared { digest } => self.prepared(from, id, digest, now, out),
            Body::Refused { why } => self.refused(from, id, &short(&why), out),
            Body::Committed => self.committed(from, id, now, out),
            Body::Status => self.answer(from, id, out),
            Body::Prepare | Body::Commit { .. } | Body::Abort { .. } => {}
        }
    }

    fn runs(&self, id: CheckpointId) -> bool {
        self.attempt.as_ref().is_some_and(|a| a.id == id)
    }

    fn prepared(
        &mut self,
        from: NodeIndex,
        id: CheckpointId,
        digest: Digest,
        now: u64,
        out: &mut Outbox,
    ) {
        let Some(attempt) = self.attempt.as_mut().filter(|a| a.id == id) else {
            return self.answer(from, id, out);
        };
        let Phase::Preparing(_, digests) = &mut attempt.phase else {
            return;
        };
        match digests.get_mut(usize::from(from.0)) {
            Some(place @ None) => *place = Some(digest),
            Some(Some(first)) if *first != digest => {
                let why =
                    format!("node {from} has named two different manifests; look into its log");
                return self.abort(&why, out);
            }
            _ => {}
        }
        let all: Option<Vec<Digest>> = digests.iter().copied().collect();
        if let Some(all) = all {
            self.decide(id, all.into(), now, out);
        }
    }

    /// All parts are there. The record of this node is the decision.
    fn decide(&mut self, id: CheckpointId, digests: Digests, now: u64, out: &mut Outbox) {
        let own = digests.of(LEADER);
        self.attempt = Some(Attempt {
            id,
            phase: Phase::Deciding(digests, 0),
            retry: self.backoff(now),
        });
        if let Some(digest) = own {
            out.say(LEADER, id, Body::Commit { digest });
        }
    }

    fn committed(&mut self, from: NodeIndex, id: CheckpointId, now: u64, out: &mut Outbox) {
        if from != LEADER {
            if let Some(announced) = self.announced.as_mut().filter(|a| a.id == id) {
                announced.waiting.remove(&from);
                if announced.waiting.is_empty() {
                    self.announced = None;
                }
            }
            return;
        }
        let Some(attempt) = self.attempt.take_if(|a| a.id == id) else {
            return;
        };
        if let Phase::Deciding(digests, _) = attempt.phase {
            self.known.insert(id, digests);
            while self.known.len() > KNOWN {
                self.known.pop_first();
            }
            let newest = self.newest();
            self.undecided.retain(|old| old.number > newest);
            self.announce(id, now, out);
        } else {
            self.attempt = Some(attempt);
        }
    }

    fn announce(&mut self, id: CheckpointId, now: u64, out: &mut Outbox) {
        let others = (1..self.nodes).map(NodeIndex);
        let waiting: BTreeSet<NodeIndex> = others.filter(|n| !self.lost.contains(n)).collect();
        for node in &waiting {
            self.answer(*node, id, out);
        }
        self.announced = (!waiting.is_empty()).then(|| Announced {
            id,
            waiting,
            retry: self.backoff(now),
        });
    }

    fn refused(&mut self, from: NodeIndex, id: CheckpointId, why: &str, out: &mut Outbox) {
        if let Some(attempt) = self.attempt.as_ref().filter(|a| a.id == id) {
            match attempt.phase {
                Phase::Preparing(..) => {
                    let why = format!("node {from} did not store its part: {why}");
                    self.abort(&why, out);
                }
                // It was to be adopted, and its part is not here.
                Phase::Deciding(..) if from == LEADER => {
                    self.attempt = None;
                    self.undecided.insert(id);
                    let (node, why) = (from, why.into());
                    out.to(Effect::Missing { id, node, why });
                }
                Phase::Deciding(..) => {}
            }
        } else if let Some(announced) = self.announced.as_mut().filter(|a| a.id == id)
            && announced.waiting.remove(&from)
        {
            let (node, why) = (from, why.into());
            out.to(Effect::Missing { id, node, why });
        }
    }

    /// What became of an attempt that is not under way.
    fn answer(&mut self, to: NodeIndex, id: CheckpointId, out: &mut Outbox) {
        if self.runs(id) {
            return;
        }
        if let Some(digests) = self.known.get(&id) {
            if let Some(digest) = digests.of(to) {
                out.say(to, id, Body::Commit { digest });
            }
        } else if !self.undecided.contains(&id) {
            let why = "node 0, which leads, has no record that it was committed".into();
            out.say(to, id, Body::Abort { why });
        }
    }

    fn abort(&mut self, why: &str, out: &mut Outbox) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        for node in 0..self.nodes {
            let why = why.into();
            out.say(NodeIndex(node), attempt.id, Body::Abort { why });
        }
    }

    /// This node's record of the commit could not be written. After some tries it is given up: then the reason is returned.
    pub(super) fn commit_failed(&mut self, id: CheckpointId, why: &str) -> Option<String> {
        let attempt = self.attempt.as_mut().filter(|a| a.id == id)?;
        let Phase::Deciding(_, tries) = &mut attempt.phase else {
            return None;
        };
        *tries += 1;
        if *tries < TRIES {
            return None;
        }
        self.attempt = None;
        self.undecided.insert(id);
        Some(format!(
            "node 0 could not record that checkpoint {} is complete ({}); its parts are kept until a newer one is committed",
            id.number,
            short(why)
        ))
    }

    /// A node of the job is gone.
    pub(super) fn lost(&mut self, node: NodeIndex, out: &mut Outbox) {
        self.lost.insert(node);
        if let Some(announced) = &mut self.announced {
            announced.waiting.remove(&node);
        }
        let preparing = |a: &Attempt| matches!(a.phase, Phase::Preparing(..));
        if self.attempt.as_ref().is_some_and(preparing) {
            let why = format!("node {node} is gone; the checkpoint before is as it was");
            self.abort(&why, out);
        }
    }

    /// A node is heard again.
    pub(super) fn returned(&mut self, node: NodeIndex) {
        self.lost.remove(&node);
    }

    /// Repeats what is not answered, and gives up what takes too long.
    pub(super) fn tick(&mut self, now: u64, out: &mut Outbox) {
        if let Some(announced) = &mut self.announced
            && announced.retry.due(now)
        {
            let (id, waiting) = (announced.id, announced.waiting.clone());
            for node in waiting {
                self.answer(node, id, out);
            }
        }
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let (id, due) = (attempt.id, attempt.retry.due(now));
        match &attempt.phase {
            Phase::Deciding(digests, _) if due => {
                if let Some(digest) = digests.of(LEADER) {
                    out.say(LEADER, id, Body::Commit { digest });
                }
            }
            Phase::Deciding(..) => {}
            Phase::Preparing(deadline, digests) => {
                let places = (0..self.nodes).map(NodeIndex).zip(digests);
                let open: Vec<NodeIndex> = places
                    .filter(|(_, d)| d.is_none())
                    .map(|(n, _)| n)
                    .collect();
                if now >= *deadline {
                    let seconds = self.settings.prepare_ms / 1000;
                    let who = nodes_text(&open);
                    let why = format!(
                        "{who} had not stored a part after {seconds} s; look there for a slow disk"
                    );
                    self.abort(&why, out);
                } else if due {
                    for node in open {
                        out.say(node, id, Body::Prepare);
                    }
                }
            }
        }
    }
}
