//! Nodes are lost for good, and the job starts again from what is left.
use std::collections::BTreeSet;

use gpuos_checkpoint::commit::Digests;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::usable::{Inventory, NodeSet, choose, judge};

use super::disk::parts;
use super::truth::{Set, set_restorable};
use super::world::World;

impl World {
    /// What is committed is of one attempt: each node has the manifest that the leader has named.
    pub(super) fn belong_together(&mut self) {
        for ((id, node), digest) in self.named.clone() {
            let manifest = self.disks[node].get(&id).and_then(|f| f.manifest.as_ref());
            if manifest.is_some_and(|m| m.digest != digest) {
                self.blame(format!(
                    "{id}: node {node} has another manifest than was committed"
                ));
            }
        }
    }

    /// Some nodes are gone with their disks, not more of a set than it can lose. The job ends and starts again with others in their places.
    pub fn lose(&mut self, nodes: &BTreeSet<usize>) -> Result<(), String> {
        (0..self.size()).for_each(|node| self.crash(node));
        for node in nodes {
            self.disks[*node].clear();
        }
        let verdicts = judge(&self.inventory(nodes))?;
        let lost: Vec<usize> = nodes.iter().copied().collect();
        for verdict in &verdicts {
            let truth = self
                .sets
                .iter()
                .try_for_each(|set| set_restorable(&self.disks, set, verdict.id, &lost));
            if verdict.result.is_ok() != truth.is_ok() {
                return Err(format!(
                    "at {} ms: usable says {verdict:?}, the truth is {truth:?}",
                    self.now
                ));
            }
        }
        let chosen = choose(&verdicts).map(|verdict| verdict.id);
        if chosen < self.told {
            return Err(format!(
                "at {} ms: told {:?}, and {chosen:?} is left: {verdicts:?}",
                self.now, self.told
            ));
        }
        self.run += 1;
        self.adopt = chosen.map(|id| (id, self.rebuild(id)));
        self.told = self.told.max(chosen);
        self.begun = None;
        self.safe("after a rebuild");
        (0..self.size()).for_each(|node| self.start(node));
        self.fault.take().map_or(Ok(()), Err)
    }

    fn inventory(&self, gone: &BTreeSet<usize>) -> Inventory {
        let index = |nodes: Vec<usize>| {
            nodes
                .into_iter()
                .map(|n| NodeIndex(n as u16))
                .collect::<Vec<_>>()
        };
        let set = |set: &Set| NodeSet {
            members: index(set.members.clone()),
            stripes: (0..set.holders.len())
                .map(|s| index(set.holders[s].clone()))
                .collect(),
        };
        let left = (0..self.size()).filter(|node| !gone.contains(node));
        Inventory {
            nodes: self.size() as u16,
            sets: self.sets.iter().map(set).collect(),
            left: left
                .map(|n| (NodeIndex(n as u16), parts(&self.disks[n])))
                .collect(),
            ..Inventory::default()
        }
    }

    /// Writes again what nodes lack, and returns the digests of all manifests.
    fn rebuild(&mut self, id: CheckpointId) -> Digests {
        let mut digests = Vec::new();
        for node in 0..self.size() {
            let set = self.set_of(node);
            let any = |n: &usize| self.disks[*n].get(&id)?.copies.get(&node).cloned();
            let own = self.disks[node].get(&id).and_then(|f| f.manifest.clone());
            let manifest = own.or_else(|| set.members.iter().find_map(any)).unwrap();
            digests.push(manifest.digest);
            let folder = self.disks[node].entry(id).or_default();
            folder.manifest = Some(manifest.clone());
            folder.begun = false;
            for holder in set.copies(node) {
                self.disks[holder]
                    .entry(id)
                    .or_default()
                    .copies
                    .insert(node, manifest.clone());
            }
            for (from, bytes) in manifest.needs {
                self.disks[node].entry(from).or_default().segment = Some(bytes);
            }
        }
        // A node that is there may lack its part too: it dropped it after an abort that the others have not heard of.
        for node in 0..self.size() {
            let set = self.set_of(node);
            let needs = |n: &usize| Some(self.disks[*n].get(&id)?.set_needs.clone());
            let needs = set.members.iter().filter_map(needs).find(|n| !n.is_empty());
            let needs = needs.unwrap_or_else(|| vec![id]);
            for from in &needs {
                self.rebuild_shards(&set, node, *from);
            }
            self.disks[node].get_mut(&id).unwrap().set_needs = needs;
        }
        digests.into()
    }

    /// A segment that only others of the set refer to is rebuilt from the parity that is left.
    fn rebuild_shards(&mut self, set: &Set, node: usize, from: CheckpointId) {
        let mixes = set.members.iter().filter_map(|n| self.disks[*n].get(&from));
        let own = mixes
            .flat_map(|f| f.shards.values())
            .find_map(|mix| mix.get(&node).copied());
        let folder = self.disks[node].entry(from).or_default();
        folder.segment = folder.segment.or(own);
        if folder.set_needs.is_empty() {
            folder.set_needs = vec![from];
        }
        let stripes: Vec<usize> = (0..set.holders.len())
            .filter(|s| set.holders[*s].contains(&node))
            .collect();
        for stripe in stripes {
            let known = |n: usize| {
                let mixes = set.members.iter().filter_map(|m| self.disks[*m].get(&from));
                let other = mixes
                    .flat_map(|f| f.shards.values())
                    .find_map(|mix| mix.get(&n).copied());
                self.disks[n].get(&from).and_then(|f| f.segment).or(other)
            };
            let mix = set.givers[stripe]
                .iter()
                .copied()
                .filter_map(|n| Some((n, known(n)?)))
                .collect();
            self.disks[node]
                .get_mut(&from)
                .unwrap()
                .shards
                .insert(stripe, mix);
        }
    }
}
