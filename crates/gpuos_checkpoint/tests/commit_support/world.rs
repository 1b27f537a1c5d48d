//! The nodes and the network.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::{
    Body, Commit, Digests, Effect, Input, Message, Outcome, Settings, step,
};
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::retention::{Policy, Removal, plan};

use super::disk::{Disk, Folder, Manifest, held, holdings};
use super::truth::{Set, survives};
use crate::random::Random;

const TICK: u64 = 100;
pub const SETTINGS: Settings = Settings {
    prepare_ms: 4000,
    retry_ms: 200,
    retry_most_ms: 1000,
    ask_ms: 500,
};

/// A fault of the protocol, made by changing what goes in and out of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mutant {
    None,
    /// A member drops its part when it hears nothing for a while.
    DropsOnTimeout,
    /// A member says that it is prepared when it begins.
    PreparedTooEarly,
    /// The leader takes a message of an old attempt for one of the present.
    TakesOldAttempt,
    /// A node that lost its part in a crash makes another one.
    MakesPartAgain,
}

/// Something on its way.
enum Due {
    Message(Message),
    /// The segment is written.
    Segment(usize, u64, CheckpointId),
    /// The shards can perhaps be made.
    Shards(usize, u64, CheckpointId),
    Record(usize, u64, CheckpointId),
}

struct Node {
    runs: bool,
    /// Counts its starts.
    start: u64,
    state: Commit,
    making: Option<CheckpointId>,
    prepared_at: BTreeMap<CheckpointId, u64>,
    /// Records that may be on its disk or not.
    unsure: BTreeSet<CheckpointId>,
    /// Its last word of that kind.
    prepared: Option<Message>,
}

pub struct World {
    pub random: Random,
    pub sets: Vec<Set>,
    pub disks: Vec<Disk>,
    nodes: Vec<Node>,
    mutant: Mutant,
    keep: u32,
    pub(super) run: u32,
    pub(super) adopt: Option<(CheckpointId, Digests)>,
    /// The manifests that the leader has said to be committed.
    pub(super) named: BTreeMap<(CheckpointId, usize), Digest>,
    pub now: u64,
    due: BTreeMap<(u64, u64), Due>,
    count: u64,
    /// In percent.
    pub loss: usize,
    pub repeats: usize,
    pub failures: usize,
    pub latest_ms: usize,
    /// The newest that a program was told of.
    pub told: Option<CheckpointId>,
    /// Who was told what.
    pub outcomes: BTreeMap<(usize, CheckpointId), Outcome>,
    pub begun: Option<CheckpointId>,
    number: u32,
    pub refused: Vec<String>,
    pub missing: usize,
    /// How often programs were told that an attempt failed, and that it is committed.
    pub counts: [usize; 2],
    pub(super) fault: Option<String>,
}

impl World {
    pub fn new(sets: Vec<Set>, seed: u64, mutant: Mutant) -> World {
        let count = sets.iter().map(|set| set.members.len()).sum();
        let mut world = World {
            random: Random(seed),
            sets,
            disks: vec![Disk::new(); count],
            nodes: Vec::new(),
            mutant,
            keep: 1,
            run: 0,
            adopt: None,
            named: BTreeMap::new(),
            now: 0,
            due: BTreeMap::new(),
            count: 0,
            loss: 0,
            repeats: 0,
            failures: 0,
            latest_ms: 50,
            told: None,
            outcomes: BTreeMap::new(),
            begun: None,
            number: 0,
            refused: Vec::new(),
            missing: 0,
            counts: [0; 2],
            fault: None,
        };
        world.keep = 1 + world.random.below(2) as u32;
        world.nodes = (0..count).map(|node| world.fresh(node, 0)).collect();
        (0..count).for_each(|node| world.start(node));
        world
    }

    fn fresh(&self, node: usize, start: u64) -> Node {
        let (own, count) = (NodeIndex(node as u16), self.disks.len() as u16);
        Node {
            runs: false,
            start,
            state: Commit::new(own, count, self.run, SETTINGS, self.now),
            making: None,
            prepared_at: BTreeMap::new(),
            unsure: BTreeSet::new(),
            prepared: None,
        }
    }

    pub fn size(&self) -> usize {
        self.disks.len()
    }

    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].runs
    }

    pub(super) fn start(&mut self, node: usize) {
        let start = self.nodes[node].start + 1;
        self.nodes[node] = self.fresh(node, start);
        self.nodes[node].runs = true;
        // Its program hears of attempts anew.
        self.outcomes.retain(|(to, _), _| *to != node);
        if node == 0 {
            self.begun = None;
            // Found at a start, the record is the decision.
            let recorded = self.disks[0].iter().filter(|(_, f)| f.committed);
            let newest = recorded.map(|(id, _)| *id).next_back();
            self.told = self.told.max(newest);
            self.safe("after the leader found its record");
        }
        let begun: Vec<CheckpointId> = self.disks[node]
            .iter()
            .filter(|(_, f)| f.begun)
            .map(|(id, _)| *id)
            .collect();
        let input = Input::Restarted {
            held: held(&self.disks, node),
            begun: if self.mutant == Mutant::MakesPartAgain {
                Vec::new()
            } else {
                begun
            },
            adopt: self.adopt.clone().filter(|_| node == 0),
        };
        self.input(node, input);
    }

    /// The node's daemon ends. What is durable stays.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node].runs = false;
        self.nodes[node].making = None;
        for folder in self.disks[node].values_mut() {
            if folder.manifest.is_none() && folder.segment.is_some() && folder.set_needs.is_empty()
            {
                folder.begun = true;
                folder.segment = None;
                folder.draft = None;
                folder.shards.clear();
            }
        }
    }

    pub fn restart(&mut self, node: usize) {
        self.crash(node);
        self.start(node);
    }

    pub fn everybody(&mut self, input: &Input) {
        for node in 0..self.size() {
            if self.runs(node) {
                self.input(node, input.clone());
            }
        }
    }

    pub fn begin(&mut self) -> CheckpointId {
        self.number += 1;
        let id = CheckpointId {
            number: self.number,
            attempt: self.random.below(u64::MAX),
        };
        let before = self.refused.len();
        if self.runs(0) {
            self.input(0, Input::Begin { id });
            if self.refused.len() == before {
                self.begun = Some(id);
                let old: Vec<Message> = self
                    .nodes
                    .iter()
                    .filter_map(|n| n.prepared.clone())
                    .collect();
                for message in old {
                    self.later(50, Due::Message(Message { id, ..message }));
                }
            }
        }
        id
    }

    fn input(&mut self, node: usize, input: Input) {
        for effect in step(&mut self.nodes[node].state, input) {
            self.effect(node, effect);
        }
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.random.index(100) < percent
    }

    fn later(&mut self, most: usize, due: Due) {
        self.count += 1;
        let after = 1 + self.random.below(most as u64);
        self.due.insert((self.now + after, self.count), due);
    }

    fn effect(&mut self, node: usize, effect: Effect) {
        let start = self.nodes[node].start;
        match effect {
            Effect::Send(message) => {
                if let Body::Commit { digest } = message.body {
                    let to = (message.id, usize::from(message.to.0));
                    if *self.named.entry(to).or_insert(digest) != digest {
                        self.blame(format!("{}: two manifests of a node", message.id));
                    }
                }
                let copies = 1 + usize::from(self.chance(self.repeats));
                for _ in 0..copies {
                    if !self.chance(self.loss) {
                        self.later(self.latest_ms, Due::Message(message.clone()));
                    }
                }
            }
            Effect::MakePart { id } => {
                self.nodes[node].making = Some(id);
                self.later(600, Due::Segment(node, start, id));
            }
            Effect::MakeCommitDurable { id } => self.later(100, Due::Record(node, start, id)),
            Effect::StopPart { .. } => self.nodes[node].making = None,
            Effect::DropPart { id } => {
                self.drop_part(node, id);
                self.nodes[node].making.take_if(|making| *making == id);
                self.safe_without(id, "after a part was dropped");
            }
            Effect::TellProgram { id, outcome } => {
                let committed = outcome == Outcome::Committed;
                self.counts[usize::from(committed)] += 1;
                if let Some(before) = self.outcomes.insert((node, id), outcome.clone())
                    && before != outcome
                    && committed
                {
                    self.blame(format!(
                        "{id}: node {node} was told {before:?}, then {outcome:?}"
                    ));
                }
                if committed && self.told < Some(id) {
                    self.told = Some(id);
                    self.safe("after the program was told");
                }
            }
            Effect::RefuseBegin { why, .. } => self.refused.push(why),
            Effect::Missing { .. } => self.missing += 1,
        }
    }

    /// Manifests go, data only if nothing that stays refers to it.
    fn drop_part(&mut self, node: usize, id: CheckpointId) {
        let refers = |(other, f): (&CheckpointId, &Folder)| {
            *other != id && f.manifest.is_some() && f.set_needs.contains(&id)
        };
        if !self.disks[node].iter().any(refers) {
            self.disks[node].remove(&id);
        } else if let Some(folder) = self.disks[node].get_mut(&id) {
            folder.manifest = None;
            folder.committed = false;
            folder.copies.clear();
        }
    }

    pub(super) fn blame(&mut self, fault: String) {
        let now = self.now;
        self.fault
            .get_or_insert_with(|| format!("at {now} ms: {fault}"));
    }

    /// The same after something of a checkpoint is gone.
    fn safe_without(&mut self, id: CheckpointId, when: &str) {
        let Some(told) = self.told else { return };
        let folders = self.disks.iter().filter_map(|disk| disk.get(&told));
        let needs = |f: &Folder| f.set_needs.contains(&id) || f.manifest.is_none();
        if id == told || folders.clone().count() < self.size() || folders.clone().any(needs) {
            self.safe(when);
        }
    }

    pub(super) fn safe(&mut self, when: &str) {
        if let Some(told) = self.told
            && let Err(why) = survives(&self.disks, &self.sets, told)
        {
            self.blame(format!("LOST {when}: {why}"));
        }
    }

    pub(super) fn set_of(&self, node: usize) -> Set {
        self.sets
            .iter()
            .find(|set| set.members.contains(&node))
            .unwrap()
            .clone()
    }

    fn all_have(&self, set: &Set, id: CheckpointId) -> bool {
        set.members
            .iter()
            .all(|n| self.disks[*n].get(&id).is_some_and(|f| f.segment.is_some()))
    }

    /// The segment, and perhaps parts of the files in that of the checkpoint before.
    fn segment(&mut self, node: usize, id: CheckpointId) {
        let bytes = self.random.below(u64::MAX);
        let committed = |f: &Folder| f.committed && f.manifest.is_some();
        let base = self.disks[node]
            .iter()
            .rev()
            .find(|(_, f)| committed(f))
            .map(|(id, _)| *id);
        let set = self.set_of(node);
        let base = base.filter(|base| self.all_have(&set, *base) && self.random.index(2) == 0);
        let mut needs = vec![(id, bytes)];
        if let Some(base) = base {
            needs.push((base, self.disks[node][&base].segment.unwrap()));
        }
        let digest = Digest(std::array::from_fn(|at| (bytes >> (8 * (at % 8))) as u8));
        let folder = self.disks[node].entry(id).or_default();
        folder.begun = false;
        folder.segment = Some(bytes);
        folder.draft = Some(Manifest { needs, digest });
        self.later(100, Due::Shards(node, self.nodes[node].start, id));
    }

    /// Shards, copies of the manifest, the manifest.
    fn shards(&mut self, node: usize, id: CheckpointId) {
        let set = self.set_of(node);
        let ready = set.members.iter().all(|n| self.nodes[*n].runs) && self.all_have(&set, id);
        if !ready {
            return self.later(300, Due::Shards(node, self.nodes[node].start, id));
        }
        let drafts = set
            .members
            .iter()
            .filter_map(|n| self.disks[*n][&id].draft.as_ref());
        let mut set_needs: Vec<CheckpointId> =
            drafts.flat_map(|m| &m.needs).map(|(id, _)| *id).collect();
        set_needs.sort();
        set_needs.dedup();
        let failed =
            self.chance(self.failures) || set_needs.iter().any(|base| !self.all_have(&set, *base));
        if failed {
            let why = "disk full".into();
            self.nodes[node].making = None;
            return self.input(node, Input::StoreFailed { id, why });
        }
        for stripe in (0..set.holders.len()).filter(|s| set.holders[*s].contains(&node)) {
            let mix = set.givers[stripe]
                .iter()
                .copied()
                .map(|n| (n, self.disks[n][&id].segment.unwrap()))
                .collect();
            self.disks[node]
                .get_mut(&id)
                .unwrap()
                .shards
                .insert(stripe, mix);
        }
        let folder = self.disks[node].get_mut(&id).unwrap();
        let manifest = folder.draft.clone().unwrap();
        folder.set_needs = set_needs;
        folder.manifest = Some(manifest.clone());
        for holder in set.copies(node) {
            self.disks[holder]
                .entry(id)
                .or_default()
                .copies
                .insert(node, manifest.clone());
        }
        self.nodes[node].making = None;
        let now = self.now;
        self.nodes[node].prepared_at.insert(id, now);
        let digest = manifest.digest;
        self.input(node, Input::StoreReady { id, digest });
        let slower = set
            .members
            .iter()
            .find(|n| self.nodes[**n].making == Some(id));
        if let Some(slower) = slower
            .copied()
            .filter(|_| self.mutant == Mutant::MakesPartAgain)
        {
            self.restart(slower);
        }
    }

    fn record(&mut self, node: usize, id: CheckpointId) {
        let failed = self.chance(self.failures);
        let written = !failed || self.chance(50);
        if let Some(folder) = self.disks[node].get_mut(&id).filter(|_| written) {
            folder.committed = true;
        }
        let why = "read-only file system".into();
        self.nodes[node].unsure.remove(&id);
        if failed {
            self.nodes[node].unsure.insert(id);
        }
        let input = match failed {
            true => Input::CommitFailed { id, why },
            false => Input::CommitDurable { id },
        };
        self.input(node, input);
    }

    fn deliver(&mut self, message: Message) {
        let to = usize::from(message.to.0);
        match (self.mutant, &message.body) {
            (Mutant::PreparedTooEarly, Body::Prepare) if self.random.index(4) == 0 => {
                let digest = Digest([7; 32]);
                let forged = Message {
                    from: message.to,
                    to: message.from,
                    body: Body::Prepared { digest },
                    ..message.clone()
                };
                self.later(50, Due::Message(forged));
            }
            (Mutant::TakesOldAttempt, Body::Prepared { .. }) => {
                self.nodes[usize::from(message.from.0)].prepared = Some(message.clone());
            }
            _ => {}
        }
        if self.nodes[to].runs {
            self.input(to, Input::Received(message));
        }
    }

    fn arrive(&mut self, due: Due) {
        match due {
            Due::Message(message) => self.deliver(message),
            Due::Segment(node, start, id) if self.makes(node, start, id) => self.segment(node, id),
            Due::Shards(node, start, id) if self.makes(node, start, id) => self.shards(node, id),
            Due::Record(node, start, id)
                if self.nodes[node].runs && self.nodes[node].start == start =>
            {
                self.record(node, id);
            }
            _ => {}
        }
    }

    fn makes(&self, node: usize, start: u64, id: CheckpointId) -> bool {
        let node = &self.nodes[node];
        node.runs && node.start == start && node.making == Some(id)
    }

    pub fn run(&mut self, ms: u64) -> Result<(), String> {
        let end = self.now + ms;
        while self.now < end {
            self.now += TICK / 4;
            while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= self.now) {
                let due = entry.remove();
                self.arrive(due);
            }
            for node in 0..self.size() {
                // Nodes do not tick together.
                if (self.now + node as u64 * TICK / 4).is_multiple_of(TICK) && self.nodes[node].runs
                {
                    self.tick(node);
                }
            }
            if self.fault.is_some() {
                break;
            }
        }
        self.safe("after a while");
        self.belong_together();
        self.fault.take().map_or(Ok(()), Err)
    }

    fn tick(&mut self, node: usize) {
        let now = self.now;
        self.input(node, Input::Tick { now });
        if self.mutant == Mutant::DropsOnTimeout && node != 0 {
            let late = |(id, at): (&CheckpointId, &u64)| (now > at + 1500).then_some(*id);
            let late: Vec<CheckpointId> = self.nodes[node]
                .prepared_at
                .iter()
                .filter_map(late)
                .collect();
            for id in late {
                self.nodes[node].prepared_at.remove(&id);
                let message = Message {
                    from: NodeIndex(0),
                    to: NodeIndex(node as u16),
                    run: self.run,
                    id,
                    body: Body::Abort {
                        why: "it takes too long".into(),
                    },
                };
                self.input(node, Input::Received(message));
            }
        }
        if self.random.index(10) == 0 {
            self.retain(node);
        }
    }

    fn retain(&mut self, node: usize) {
        let holdings = holdings(
            &self.disks[node],
            self.nodes[node].making,
            &self.nodes[node].unsure,
        );
        for removal in plan(&holdings, Policy { keep: self.keep }) {
            match removal {
                Removal::Manifests(id) => {
                    if let Some(folder) = self.disks[node].get_mut(&id) {
                        folder.manifest = None;
                        folder.committed = false;
                        folder.copies.clear();
                    }
                    self.input(node, Input::Removed { id });
                }
                Removal::Barrier => {}
                Removal::Data(id) => drop(self.disks[node].remove(&id)),
            }
            let (Removal::Manifests(id) | Removal::Data(id)) = removal else {
                continue;
            };
            self.safe_without(id, "after a removal");
        }
    }

    /// Parts that are neither committed nor dropped although a newer checkpoint is committed, or that are still being made.
    pub fn open(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (at, disk) in self.disks.iter().enumerate() {
            let newest = disk
                .iter()
                .rev()
                .find(|(_, f)| f.committed)
                .map(|(id, _)| *id);
            let open = disk
                .iter()
                .filter(|(id, f)| f.manifest.is_some() && !f.committed && Some(**id) < newest);
            all.extend(open.map(|(id, _)| format!("{id} of node {at}")));
            all.extend(
                self.nodes[at]
                    .making
                    .map(|id| format!("{id} is made by node {at}")),
            );
        }
        all
    }
}
