//! What can be restored, from the bytes themselves; written apart from `usable`.
use gpuos_checkpoint::ids::CheckpointId;

use super::disk::{Disk, Manifest};

/// A set of nodes with so many parity shards in each stripe. In stripe s the parity is at the places s, s + 1, ...
#[derive(Clone, Debug)]
pub struct Set {
    pub members: Vec<usize>,
    pub parity: usize,
    /// By stripe: who holds parity, and who gives a chunk.
    pub holders: Vec<Vec<usize>>,
    pub givers: Vec<Vec<usize>>,
}

impl Set {
    pub fn new(members: Vec<usize>, parity: usize) -> Set {
        let n = members.len();
        let held = |stripe: usize| (0..parity).map(|p| members[(stripe + p) % n]).collect();
        let given = |stripe: usize| (parity..n).map(|p| members[(stripe + p) % n]).collect();
        Set {
            holders: (0..n).map(held).collect(),
            givers: (0..n).map(given).collect(),
            members,
            parity,
        }
    }

    /// Who has copies of a member's manifest: as many as can be lost, so that one is left.
    pub fn copies(&self, node: usize) -> Vec<usize> {
        let n = self.members.len();
        let at = self.members.iter().position(|m| *m == node).unwrap();
        (1..=self.parity)
            .map(|step| self.members[(at + step) % n])
            .collect()
    }
}

fn segment(disks: &[Disk], node: usize, id: CheckpointId) -> Option<u64> {
    disks[node].get(&id)?.segment
}

/// Whether the bytes of a node's segment can be had in one stripe.
fn chunk(
    disks: &[Disk],
    set: &Set,
    lost: &[usize],
    stripe: usize,
    node: usize,
    id: CheckpointId,
    bytes: u64,
) -> bool {
    let holders = set.holders[stripe].iter().filter(|n| !lost.contains(n));
    let shard = |node: &&usize| disks[**node].get(&id).and_then(|f| f.shards.get(&stripe));
    let wanted = set.members.len() - set.parity;
    holders.clone().filter_map(|n| shard(&n)).any(|mix| {
        let alike = holders
            .clone()
            .filter_map(|n| shard(&n))
            .filter(|other| *other == mix)
            .count();
        let givers = mix
            .iter()
            .filter(|(n, b)| !lost.contains(n) && segment(disks, **n, id) == Some(**b))
            .count();
        mix.get(&node) == Some(&bytes) && alike + givers >= wanted
    })
}

/// Whether all members' parts of a checkpoint can be had without the lost nodes.
pub fn set_restorable(
    disks: &[Disk],
    set: &Set,
    id: CheckpointId,
    lost: &[usize],
) -> Result<(), String> {
    for node in &set.members {
        let own = (!lost.contains(node))
            .then(|| disks[*node].get(&id)?.manifest.as_ref())
            .flatten();
        let left = set.members.iter().filter(|n| !lost.contains(n));
        let copy =
            |holder: &usize| -> Option<&Manifest> { disks[*holder].get(&id)?.copies.get(node) };
        let Some(manifest) = own.or_else(|| left.clone().find_map(copy)) else {
            return Err(format!("{id}: no manifest of node {node} without {lost:?}"));
        };
        for (from, bytes) in &manifest.needs {
            let here = !lost.contains(node) && segment(disks, *node, *from) == Some(*bytes);
            let by_stripe = |s| chunk(disks, set, lost, s, *node, *from, *bytes);
            let mut stripes = (0..set.givers.len()).filter(|s| set.givers[*s].contains(node));
            if !here && (set.parity == 0 || !stripes.all(by_stripe)) {
                return Err(format!(
                    "{id}: segment {from} of node {node} is gone without {lost:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Whether each set can lose any of its nodes, as many as it has parity.
pub fn survives(disks: &[Disk], sets: &[Set], id: CheckpointId) -> Result<(), String> {
    for set in sets {
        for bits in 0..1_usize << set.members.len() {
            if bits.count_ones() as usize == set.parity {
                let at = (0..set.members.len()).filter(|at| bits & (1 << at) != 0);
                let lost: Vec<usize> = at.map(|at| set.members[at]).collect();
                set_restorable(disks, set, id, &lost)?;
            }
        }
    }
    Ok(())
}
