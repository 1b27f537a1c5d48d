//! What is left of the checkpoints of a job, as its nodes find it.
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{CheckpointId, NodeIndex};

/// A set of nodes that keep parity for each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSet {
    /// Its nodes.
    pub members: Vec<NodeIndex>,
    /// The nodes that hold the parity of each stripe, by the stripe's number. The other members give a chunk of their segments each.
    /// All stripes have the same number of parity shards: so many members can be lost. A set that keeps nothing has no stripes.
    pub stripes: Vec<Vec<NodeIndex>>,
}

impl NodeSet {
    /// How many members can be lost when all is there.
    pub fn parity(&self) -> usize {
        self.stripes.first().map_or(0, Vec::len)
    }
}

/// A node's manifest, as far as it matters here. Who gives it has checked its key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManifestFacts {
    /// The segments of this node that the files stand in, each named by the checkpoint that wrote it.
    pub segments: Vec<CheckpointId>,
}

/// What a node that is left has of one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldPart {
    /// Its own manifest.
    pub manifest: Option<ManifestFacts>,
    /// Its record that the checkpoint was committed.
    pub committed: bool,
    /// Copies of the manifests of other nodes.
    pub copies: BTreeMap<NodeIndex, ManifestFacts>,
    /// Its own segment is there and verifies.
    pub segment: bool,
    /// Parity shards, by the number of their stripe, and whether they verify.
    pub shards: BTreeMap<u16, bool>,
}

/// What all nodes that are left have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inventory {
    /// The number of the job's nodes, gone ones too.
    pub nodes: u16,
    /// The sets; each node is in one.
    pub sets: Vec<NodeSet>,
    /// Checkpoints that were made when the sets were others.
    pub earlier_sets: BTreeMap<CheckpointId, Vec<NodeSet>>,
    /// By node. Who is not here is gone.
    pub left: BTreeMap<NodeIndex, BTreeMap<CheckpointId, HeldPart>>,
    /// Checkpoints that a program could not load. They are passed over.
    pub failed: BTreeSet<CheckpointId>,
}

impl Inventory {
    /// The sets that a checkpoint's segments were encoded in.
    pub(super) fn sets_of(&self, id: CheckpointId) -> &[NodeSet] {
        self.earlier_sets.get(&id).unwrap_or(&self.sets)
    }

    pub(super) fn part(&self, node: NodeIndex, id: CheckpointId) -> Option<&HeldPart> {
        self.left.get(&node)?.get(&id)
    }

    /// Whether the sets are sets of these nodes; if not, in what.
    pub(super) fn check(&self) -> Result<(), String> {
        let all = self.earlier_sets.values().chain([&self.sets]);
        for sets in all {
            let mut seen = BTreeSet::new();
            for set in sets {
                check_set(set)?;
                for node in &set.members {
                    if node.0 >= self.nodes {
                        return Err(format!(
                            "a set has node {node} of a job of {} nodes; the list of sets is of another job",
                            self.nodes
                        ));
                    }
                    if !seen.insert(*node) {
                        return Err(format!(
                            "node {node} is twice in the sets; arrange them again"
                        ));
                    }
                }
            }
            if seen.len() != usize::from(self.nodes) {
                return Err(format!(
                    "the sets have {} of the job's {} nodes; arrange them again",
                    seen.len(),
                    self.nodes
                ));
            }
        }
        match self.left.keys().next_back() {
            Some(node) if node.0 >= self.nodes => Err(format!(
                "node {node} is not of this job of {} nodes; ask the nodes again",
                self.nodes
            )),
            _ => Ok(()),
        }
    }
}

fn check_set(set: &NodeSet) -> Result<(), String> {
    let parity = set.parity();
    for holders in &set.stripes {
        let distinct: BTreeSet<&NodeIndex> = holders.iter().collect();
        let inside = holders.iter().all(|node| set.members.contains(node));
        if holders.len() != parity
            || distinct.len() != parity
            || !inside
            || parity >= set.members.len()
        {
            return Err(
                "the stripes of a set do not all have the same number of parity shards on different members; arrange the sets again"
                    .into(),
            );
        }
    }
    Ok(())
}
