//! The verdict on each checkpoint.
use std::collections::{BTreeMap, BTreeSet};

use super::inventory::{Inventory, ManifestFacts, NodeSet};
use super::words::nodes_text;
use crate::ids::{CheckpointId, NodeIndex};

/// A checkpoint of which something is left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Which.
    pub id: CheckpointId,
    /// Whether a node has a record of its commit.
    pub committed: bool,
    /// How it can be restored, or a sentence why not.
    pub result: Result<Plan, String>,
}

/// How a checkpoint can be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Segments to be rebuilt: whose, and of which checkpoint.
    pub rebuild: Vec<(NodeIndex, CheckpointId)>,
    /// Parity shards that are missing or damaged: whose, of which checkpoint, in which stripe. The program can load without; made
    /// again, they bring back what can be lost.
    pub shards: Vec<(NodeIndex, CheckpointId, u16)>,
    /// Nodes whose own manifest is gone and comes from a copy.
    pub copied: Vec<NodeIndex>,
    /// What is left survives the loss of any `tolerance` further nodes, and not of each choice of one more.
    pub tolerance: usize,
    /// The same within each of the present sets.
    pub by_set: Vec<usize>,
}

/// The verdicts on all checkpoints, newest first: by number, then committed ones, then by the attempt's number.
///
/// # Errors
/// A sentence if the inventory contradicts itself: sets that are not sets of the job's nodes.
pub fn judge(inventory: &Inventory) -> Result<Vec<Verdict>, String> {
    inventory.check()?;
    let ids: BTreeSet<CheckpointId> = inventory
        .left
        .values()
        .flat_map(BTreeMap::keys)
        .copied()
        .collect();
    let mut all: Vec<Verdict> = ids.into_iter().map(|id| verdict(inventory, id)).collect();
    all.sort_by_key(|v| std::cmp::Reverse((v.id.number, v.committed, v.id.attempt)));
    Ok(all)
}

/// The first that can be restored.
pub fn choose(verdicts: &[Verdict]) -> Option<&Verdict> {
    verdicts.iter().find(|verdict| verdict.result.is_ok())
}

fn verdict(inventory: &Inventory, id: CheckpointId) -> Verdict {
    let committed = inventory
        .left
        .values()
        .filter_map(|parts| parts.get(&id))
        .any(|p| p.committed);
    let result = match inventory.failed.contains(&id) {
        true => Err("a program could not load it, so it is passed over".into()),
        false => plan(inventory, id),
    };
    let result = result.map_err(|why| format!("checkpoint {}: {why}", id.number));
    Verdict {
        id,
        committed,
        result,
    }
}

/// Where the manifest of a node is: on these nodes, and one of the copies.
type Manifests<'a> = BTreeMap<NodeIndex, (Vec<NodeIndex>, &'a ManifestFacts)>;

fn manifests(inventory: &Inventory, id: CheckpointId) -> Manifests<'_> {
    let mut all = Manifests::new();
    for (holder, parts) in &inventory.left {
        let Some(part) = parts.get(&id) else { continue };
        let own = part.manifest.iter().map(|facts| (holder, facts));
        // A node's own counts once, also if it has a copy of it; one of a node that the job has not says nothing.
        let copies = part.copies.iter().filter(|(node, _)| {
            node.0 < inventory.nodes && (*node != holder || part.manifest.is_none())
        });
        for (node, facts) in own.chain(copies) {
            all.entry(*node)
                .or_insert_with(|| (Vec::new(), facts))
                .0
                .push(*holder);
        }
    }
    all
}

fn plan(inventory: &Inventory, id: CheckpointId) -> Result<Plan, String> {
    let manifests = manifests(inventory, id);
    let all = (0..inventory.nodes).map(NodeIndex);
    let unknown: Vec<NodeIndex> = all.filter(|node| !manifests.contains_key(node)).collect();
    if !unknown.is_empty() {
        return Err(no_manifest(inventory, &unknown));
    }
    let mut needs: BTreeMap<CheckpointId, BTreeSet<NodeIndex>> = BTreeMap::new();
    for (node, (_, facts)) in &manifests {
        for segment in &facts.segments {
            needs.entry(*segment).or_default().insert(*node);
        }
    }
    let mut least = Least::new(inventory);
    for (node, (holders, _)) in &manifests {
        least.breaks(*node, holders.len());
    }
    let (mut rebuild, mut shards) = (Vec::new(), Vec::new());
    for (segment, users) in &needs {
        for set in inventory.sets_of(*segment) {
            let earlier = *segment != id;
            let group = Group {
                inventory,
                set,
                segment: *segment,
                users,
                earlier,
            };
            group.look(&mut rebuild, &mut least)?;
            group.lacks(&mut shards);
        }
    }
    let own = |node: &NodeIndex| {
        inventory
            .part(*node, id)
            .is_some_and(|part| part.manifest.is_some())
    };
    Ok(Plan {
        rebuild,
        shards,
        copied: manifests
            .keys()
            .filter(|node| !own(node))
            .copied()
            .collect(),
        tolerance: least.by_set.iter().min().map_or(0, |least| least - 1),
        by_set: least.by_set.iter().map(|least| least - 1).collect(),
    })
}

fn no_manifest(inventory: &Inventory, unknown: &[NodeIndex]) -> String {
    let gone = |node: &&NodeIndex| !inventory.left.contains_key(node);
    for set in &inventory.sets {
        let gone: Vec<NodeIndex> = set.members.iter().filter(gone).copied().collect();
        if gone.len() > set.parity() {
            return set_gone(&gone, set.parity());
        }
    }
    let gone: Vec<NodeIndex> = unknown.iter().filter(gone).copied().collect();
    let text = nodes_text(unknown);
    let more = nodes_text(&gone);
    match (gone.len(), unknown.len()) {
        (0, _) => format!("the part of {text} was not completed"),
        (some, all) if some == all => {
            let their = if all == 1 {
                "its manifest"
            } else {
                "their manifests"
            };
            format!("nothing of {text} was found, and no copy of {their}")
        }
        _ => format!("no manifest of {text} is left; nothing of {more} was found"),
    }
}

fn set_gone(gone: &[NodeIndex], parity: usize) -> String {
    let who = nodes_text(gone);
    format!("what {who} of {} had was not found", set_that(parity))
}

fn set_that(parity: usize) -> String {
    match parity {
        0 => "a set that can lose none".into(),
        most => format!("a set that can lose {most}"),
    }
}

/// The smallest number of nodes of each present set whose loss is too much; nodes in no set of an earlier arrangement count with
/// the set of their first member.
struct Least {
    set_of: Vec<usize>,
    by_set: Vec<usize>,
}

impl Least {
    fn new(inventory: &Inventory) -> Least {
        let mut set_of = vec![0; usize::from(inventory.nodes)];
        for (at, set) in inventory.sets.iter().enumerate() {
            for node in &set.members {
                set_of[usize::from(node.0)] = at;
            }
        }
        Least {
            set_of,
            by_set: vec![usize::MAX; inventory.sets.len()],
        }
    }

    fn breaks(&mut self, node: NodeIndex, lost: usize) {
        let set = &mut self.by_set[self.set_of[usize::from(node.0)]];
        *set = (*set).min(lost);
    }
}

/// A segment of all members of a set.
struct Group<'a> {
    inventory: &'a Inventory,
    set: &'a NodeSet,
    segment: CheckpointId,
    /// The nodes whose manifests refer to their segment.
    users: &'a BTreeSet<NodeIndex>,
    /// Whether it is another checkpoint's than the one that is looked at.
    earlier: bool,
}

impl Group<'_> {
    fn has_segment(&self, node: NodeIndex) -> bool {
        self.inventory
            .part(node, self.segment)
            .is_some_and(|part| part.segment)
    }

    fn has_shard(&self, node: NodeIndex, stripe: usize) -> bool {
        let part = self.inventory.part(node, self.segment);
        let stripe = u16::try_from(stripe).ok();
        part.zip(stripe)
            .is_some_and(|(part, s)| part.shards.get(&s) == Some(&true))
    }

    /// The parity shards that are not there.
    fn lacks(&self, shards: &mut Vec<(NodeIndex, CheckpointId, u16)>) {
        for (stripe, holders) in (0_u16..).zip(&self.set.stripes) {
            let lacking = holders
                .iter()
                .filter(|node| !self.has_shard(**node, usize::from(stripe)));
            shards.extend(lacking.map(|node| (*node, self.segment, stripe)));
        }
    }

    /// What has to be rebuilt and whether it can be, and how many losses are too much.
    fn look(
        &self,
        rebuild: &mut Vec<(NodeIndex, CheckpointId)>,
        least: &mut Least,
    ) -> Result<(), String> {
        let uses = |node: &&NodeIndex| self.users.contains(node);
        let used: Vec<NodeIndex> = self.set.members.iter().filter(uses).copied().collect();
        let (there, missing): (Vec<NodeIndex>, Vec<NodeIndex>) =
            used.into_iter().partition(|node| self.has_segment(*node));
        if self.set.stripes.is_empty() {
            if !missing.is_empty() {
                return Err(self.too_much(&missing, 0));
            }
            there.iter().for_each(|node| least.breaks(*node, 1));
            return Ok(());
        }
        let data = self.set.members.len() - self.set.parity();
        for (stripe, holders) in self.set.stripes.iter().enumerate() {
            let has = |node: &&NodeIndex| match holders.contains(node) {
                true => self.has_shard(**node, stripe),
                false => self.has_segment(**node),
            };
            let (good, bad): (Vec<NodeIndex>, Vec<NodeIndex>) =
                self.set.members.iter().partition(|node| has(node));
            let gives = |nodes: &[NodeIndex]| nodes.iter().find(|n| !holders.contains(n)).copied();
            if let Some(node) = gives(&missing) {
                if good.len() < data {
                    return Err(self.too_much(&bad, self.set.parity()));
                }
                least.breaks(node, good.len() + 1 - data);
            } else if let Some(node) = gives(&there) {
                // One of the lost has to be a node that gives a chunk: losses of parity alone cost nothing.
                least.breaks(node, (good.len() + 1).saturating_sub(data).max(1));
            }
        }
        rebuild.extend(missing.iter().map(|node| (*node, self.segment)));
        Ok(())
    }

    fn too_much(&self, bad: &[NodeIndex], parity: usize) -> String {
        let gone = |node: &&NodeIndex| !self.inventory.left.contains_key(node);
        let (gone, damaged): (Vec<NodeIndex>, Vec<NodeIndex>) = bad.iter().partition(gone);
        let (set, who) = (set_that(parity), nodes_text(&damaged));
        let what = match (gone.is_empty(), damaged.is_empty()) {
            (_, true) => set_gone(&gone, parity),
            (true, false) => format!("what {who} of {set} had is missing or damaged"),
            (false, false) => format!(
                "{}, and what {who} had is missing or damaged",
                set_gone(&gone, parity)
            ),
        };
        match self.earlier {
            true => format!(
                "{what}; it needs data of checkpoint {}",
                self.segment.number
            ),
            false => what,
        }
    }
}
