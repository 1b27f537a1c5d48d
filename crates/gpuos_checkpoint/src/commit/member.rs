//! A node's own parts: made when the leader says so, kept until it says otherwise.
use std::collections::{BTreeMap, VecDeque};

use super::message::{Body, Effect, Outcome, short};
use super::outbox::Outbox;
use super::settings::{Backoff, Settings};
use crate::ids::{CheckpointId, Digest, LEADER, NodeIndex};

/// So many ended attempts are remembered: a late `Prepare` of one of them begins nothing.
const REMEMBERED: usize = 32;
/// So many committed checkpoints are remembered, more than a site keeps.
const COMMITTED: usize = 16;

#[derive(Clone, Debug)]
enum Stage {
    /// Not durable yet. Nobody counts on it.
    Making,
    /// Durable, and the leader may count on it.
    Prepared(Digest),
    /// Not made, for this reason. What is there stays until the leader says `Abort`: it shows, over crashes too, that the part was
    /// begun, and copies of others' manifests are with it.
    Failed(String),
    /// Committed by the leader; the record is on its way to the disk.
    Recording(Digest),
    /// The record is durable.
    Committed(Digest),
}

#[derive(Clone, Debug)]
struct Part {
    stage: Stage,
    /// Made since this node's present start, so for the leader of this run.
    fresh: bool,
    /// The program knows how the attempt ended.
    told: bool,
    ask: Backoff,
}

/// The parts of one node.
#[derive(Clone, Debug)]
pub(super) struct Member {
    nodes: u16,
    settings: Settings,
    parts: BTreeMap<CheckpointId, Part>,
    /// Attempts of which this node has no part and makes none, with the reason.
    ended: VecDeque<(CheckpointId, String)>,
    leader_lost: bool,
}

impl Member {
    pub(super) fn new(nodes: u16, settings: Settings) -> Member {
        Member {
            nodes,
            settings,
            parts: BTreeMap::new(),
            ended: VecDeque::new(),
            leader_lost: false,
        }
    }

    fn insert(&mut self, id: CheckpointId, stage: Stage, fresh: bool, now: u64) {
        let ask = Backoff::new(now, self.settings.ask_ms, self.settings.retry_most_ms);
        let part = Part {
            stage,
            fresh,
            told: false,
            ask,
        };
        self.parts.insert(id, part);
    }

    fn end(&mut self, id: CheckpointId, why: String) {
        if self.ended_why(id).is_none() {
            self.ended.push_back((id, why));
            self.ended
                .drain(..self.ended.len().saturating_sub(REMEMBERED));
        }
    }

    fn ended_why(&self, id: CheckpointId) -> Option<&String> {
        self.ended.iter().find(|e| e.0 == id).map(|e| &e.1)
    }

    /// A part found on the disk at a start.
    pub(super) fn found(&mut self, id: CheckpointId, digest: Digest, committed: bool, now: u64) {
        let stage = match committed {
            true => Stage::Committed(digest),
            false => Stage::Prepared(digest),
        };
        self.insert(id, stage, false, now);
    }

    /// A part that was begun and is not complete.
    pub(super) fn begun(&mut self, id: CheckpointId, now: u64) {
        let why = "the node restarted while it stored its part, and other nodes may have used the first one; try a new attempt";
        self.insert(id, Stage::Failed(why.into()), true, now);
    }

    /// Whether it has met the attempt.
    pub(super) fn knows(&self, id: CheckpointId) -> bool {
        self.parts.contains_key(&id) || self.ended_why(id).is_some()
    }

    /// The highest number of a part.
    pub(super) fn highest(&self) -> u32 {
        self.parts.keys().next_back().map_or(0, |id| id.number)
    }

    /// The digest of the part, if it is durable.
    pub(super) fn digest(&self, id: CheckpointId) -> Option<Digest> {
        match &self.parts.get(&id)?.stage {
            Stage::Making | Stage::Failed(_) => None,
            Stage::Prepared(digest) | Stage::Recording(digest) | Stage::Committed(digest) => {
                Some(*digest)
            }
        }
    }

    /// The number of the newest checkpoint that is known to be committed; 0: none.
    fn newest(&self) -> u32 {
        let committed = |part: &Part| matches!(part.stage, Stage::Committed(_));
        let newest = self.parts.iter().rev().find(|(_, part)| committed(part));
        newest.map_or(0, |(id, _)| id.number)
    }

    /// A message of the leader.
    pub(super) fn message(&mut self, id: CheckpointId, body: Body, now: u64, out: &mut Outbox) {
        self.leader_lost = false;
        match body {
            Body::Prepare => self.prepare(id, now, out),
            Body::Commit { digest } => self.commit(id, digest, out),
            Body::Abort { why } => self.abort(id, &why, out),
            Body::Prepared { .. } | Body::Refused { .. } | Body::Committed | Body::Status => {}
        }
    }

    fn prepare(&mut self, id: CheckpointId, now: u64, out: &mut Outbox) {
        match self.parts.get(&id).map(|part| &part.stage) {
            Some(Stage::Prepared(digest)) => {
                let digest = *digest;
                return out.say(LEADER, id, Body::Prepared { digest });
            }
            Some(Stage::Failed(why)) => {
                let why = why.clone();
                return out.say(LEADER, id, Body::Refused { why });
            }
            Some(_) => return,
            None => {}
        }
        if let Some(why) = self.ended_why(id) {
            let why = why.clone();
            return out.say(LEADER, id, Body::Refused { why });
        }
        let newest = self.newest();
        if id.number <= newest {
            let why = format!(
                "checkpoint {newest} is committed here, which is not older; take a higher number"
            );
            return out.say(LEADER, id, Body::Refused { why });
        }
        self.cancel(id, out);
        self.insert(id, Stage::Making, true, now);
        out.to(Effect::MakePart { id });
    }

    /// The leader leads one attempt at a time: what is still being made of another one is void.
    fn cancel(&mut self, by: CheckpointId, out: &mut Outbox) {
        let making =
            |(id, part): (&CheckpointId, &Part)| matches!(part.stage, Stage::Making).then_some(*id);
        let void: Vec<CheckpointId> = self.parts.iter().filter_map(making).collect();
        for id in void {
            out.to(Effect::StopPart { id });
            self.fail(id, format!("checkpoint {by} took its place"), out);
        }
    }

    fn fail(&mut self, id: CheckpointId, why: String, out: &mut Outbox) {
        self.give_up(id, &why, out);
        if let Some(part) = self.parts.get_mut(&id) {
            part.stage = Stage::Failed(why);
        }
    }

    fn drop_part(&mut self, id: CheckpointId, why: &str, out: &mut Outbox) {
        let part = self.parts.remove(&id);
        self.end(id, why.into());
        out.to(Effect::DropPart { id });
        if part.is_some_and(|part| !part.told) {
            let why = why.into();
            out.tell(id, Outcome::Failed { why });
        }
    }

    fn commit(&mut self, id: CheckpointId, committed: Digest, out: &mut Outbox) {
        let Some(part) = self.parts.get_mut(&id) else {
            let why = "this node has no part of it".into();
            return out.say(LEADER, id, Body::Refused { why });
        };
        match &part.stage {
            Stage::Prepared(digest) if *digest == committed => {
                part.stage = Stage::Recording(committed);
                out.to(Effect::MakeCommitDurable { id });
            }
            Stage::Prepared(_) => {
                let why = "this node's manifest is not the one that was committed".into();
                out.say(LEADER, id, Body::Refused { why });
            }
            Stage::Failed(why) => {
                let why = why.clone();
                out.say(LEADER, id, Body::Refused { why });
            }
            Stage::Committed(_) => out.say(LEADER, id, Body::Committed),
            Stage::Making | Stage::Recording(_) => {}
        }
    }

    fn abort(&mut self, id: CheckpointId, why: &str, out: &mut Outbox) {
        let committed =
            |part: &Part| matches!(part.stage, Stage::Recording(_) | Stage::Committed(_));
        if !self.parts.get(&id).is_some_and(committed) {
            self.drop_part(id, &short(why), out);
        }
    }

    /// The part is durable.
    pub(super) fn ready(&mut self, id: CheckpointId, digest: Digest, now: u64, out: &mut Outbox) {
        match self.parts.get(&id).map(|part| &part.stage) {
            Some(Stage::Making) => {
                self.parts.remove(&id);
                self.insert(id, Stage::Prepared(digest), true, now);
                out.say(LEADER, id, Body::Prepared { digest });
            }
            Some(_) => {}
            // It was told to stop, and had finished.
            None => out.to(Effect::DropPart { id }),
        }
    }

    /// The part could not be made.
    pub(super) fn failed(&mut self, id: CheckpointId, why: &str, out: &mut Outbox) {
        let making = |part: &Part| matches!(part.stage, Stage::Making);
        if self.parts.get(&id).is_some_and(making) {
            let why = short(why);
            self.fail(id, why.clone(), out);
            out.say(LEADER, id, Body::Refused { why });
        }
    }

    /// The record of the commit is durable.
    pub(super) fn commit_durable(&mut self, id: CheckpointId, out: &mut Outbox) {
        let Some(part) = self.parts.get_mut(&id) else {
            return;
        };
        let Stage::Recording(digest) = part.stage else {
            return;
        };
        part.stage = Stage::Committed(digest);
        if !std::mem::replace(&mut part.told, true) {
            out.tell(id, Outcome::Committed);
        }
        out.say(LEADER, id, Body::Committed);
        self.forget();
    }

    fn forget(&mut self) {
        let committed = |(id, part): (&CheckpointId, &Part)| {
            matches!(part.stage, Stage::Committed(_)).then_some(*id)
        };
        let all: Vec<CheckpointId> = self.parts.iter().filter_map(committed).collect();
        for id in all.iter().rev().skip(COMMITTED) {
            self.parts.remove(id);
        }
    }

    /// The record could not be written. The leader says `Commit` again.
    pub(super) fn commit_failed(&mut self, id: CheckpointId) {
        if let Some(part) = self.parts.get_mut(&id)
            && let Stage::Recording(digest) = part.stage
        {
            part.stage = Stage::Prepared(digest);
        }
    }

    /// The program is told that it is not to count on the attempt, whose part stays.
    pub(super) fn give_up(&mut self, id: CheckpointId, why: &str, out: &mut Outbox) {
        if let Some(part) = self.parts.get_mut(&id)
            && !std::mem::replace(&mut part.told, true)
        {
            let why = why.into();
            out.tell(id, Outcome::Failed { why });
        }
    }

    /// The leader's node is gone, and with it the job.
    pub(super) fn leader_lost(&mut self, out: &mut Outbox) {
        self.leader_lost = true;
        let open = |(id, part): (&CheckpointId, &Part)| {
            let open = matches!(part.stage, Stage::Making | Stage::Prepared(_));
            (open && part.fresh).then_some(*id)
        };
        let open: Vec<CheckpointId> = self.parts.iter().filter_map(open).collect();
        for id in open {
            let why = "node 0, which leads the job's checkpoints, is gone; what is complete is found when the job restarts";
            self.give_up(id, why, out);
        }
    }

    /// The leader's node is heard again.
    pub(super) fn leader_returned(&mut self) {
        self.leader_lost = false;
    }

    /// The part was removed because it is no longer kept.
    pub(super) fn removed(&mut self, id: CheckpointId) {
        self.parts.remove(&id);
        self.end(id, "it was removed".into());
    }

    /// Asks about parts of which nothing is heard.
    pub(super) fn tick(&mut self, now: u64, out: &mut Outbox) {
        if self.leader_lost {
            return;
        }
        let newest = self.newest();
        for (id, part) in &mut self.parts {
            let open = match part.stage {
                Stage::Prepared(_) => part.fresh || id.number <= newest,
                Stage::Failed(_) => true,
                _ => false,
            };
            if open && part.ask.due(now) {
                out.say(LEADER, *id, Body::Status);
            }
        }
    }

    /// Whether a node is one of the job's.
    pub(super) fn has(&self, node: NodeIndex) -> bool {
        node.0 < self.nodes
    }
}
