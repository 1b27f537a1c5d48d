//! A job goes on with another number of nodes: who hosts which part of what the earlier nodes have made.
//!
//! The parts of a checkpoint belong to the nodes that made it, by their indices, and parity is made for the sets that these had. So the checkpoint is
//! first made whole as it was, by the restart of the earlier nodes: each of these is *hosted* by a node that the job has now. A node hosts what
//! it has itself; what nobody has is dealt out. Then ranks get their files from where they are hosted, wherever they run, and the first checkpoint
//! of the new nodes is written in full, with sets of its own.
//!
//! ```text
//!  made by nodes 0 1 2        the job has seats 0 1             seats 0 1 2 3
//!  seat 0 has 2               hosts 2, and 1                    hosts 2
//!  seat 1 has 0               hosts 0                           1: 0   2: 1, which nobody has   3: none
//! ```
//!
//! What is known of the claims of all seats, [`Layouts`], says what to try: the newest first, of whichever number of nodes.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::Set;
use serde::{Deserialize, Serialize};

use crate::roster::{Claim, is_sound, set_of};

/// Who hosts the nodes that a checkpoint was made by. It is written and sent as [`Plain`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Plain", into = "Plain")]
pub struct Hosts {
    /// The seat of the host, by the index of the node.
    pub seat_of_index: Vec<u16>,
    /// Each index is in one of them.
    pub sets: Vec<Set>,
}

/// The same in numbers, not checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plain {
    /// Seats by index.
    pub seat_of_index: Vec<u16>,
    /// Members and parity of each set.
    pub sets: Vec<(Vec<u16>, u16)>,
}

impl From<Hosts> for Plain {
    fn from(hosts: Hosts) -> Plain {
        let numbers = |set: Set| {
            let members = set.members.into_iter().map(|node| node.0);
            (members.collect(), set.parity.into())
        };
        Plain {
            seat_of_index: hosts.seat_of_index,
            sets: hosts.sets.into_iter().map(numbers).collect(),
        }
    }
}

impl TryFrom<Plain> for Hosts {
    type Error = String;

    /// # Errors
    /// The sets are not those of as many nodes as there are indices.
    fn try_from(plain: Plain) -> Result<Hosts, String> {
        let mut members: Vec<u16> = plain.sets.iter().flat_map(|set| &set.0).copied().collect();
        members.sort_unstable();
        let nodes = plain.seat_of_index.len();
        let are_all = members.into_iter().map(usize::from).eq(0..nodes);
        let sets = plain.sets.into_iter();
        let sets = sets
            .map(|(members, parity)| set_of(members.into_iter().map(NodeIndex).collect(), parity));
        let sets: Option<Vec<Set>> = sets.collect();
        match sets.filter(|_| are_all && nodes > 0) {
            Some(sets) => Ok(Hosts {
                seat_of_index: plain.seat_of_index,
                sets,
            }),
            None => Err(format!(
                "sets came that are not those of {nodes} nodes; have the same release of gpuos on all nodes"
            )),
        }
    }
}

impl Hosts {
    /// Nodes that made it.
    pub fn nodes(&self) -> u16 {
        u16::try_from(self.seat_of_index.len()).unwrap_or(u16::MAX)
    }

    /// Who hosts a node.
    pub fn host(&self, index: NodeIndex) -> Option<u16> {
        self.seat_of_index.get(usize::from(index.0)).copied()
    }

    /// Whom a seat hosts.
    pub fn hosted(&self, seat: u16) -> Vec<NodeIndex> {
        let all = (0..).map(NodeIndex).zip(&self.seat_of_index);
        let own = all.filter(|(_, host)| **host == seat);
        own.map(|(index, _)| index).collect()
    }
}

/// Deals the nodes that made a checkpoint to hosts. `seats`: what each of the job's nodes claims; `outside`: what nodes claim that the job does not
/// have; `nodes`: which of these claims count. A node that several have goes to who has the newest part, one that none has to who hosts the
/// fewest. A set that no claim tells is one without parity, whose loss the restart finds out.
pub fn deal(seats: &[Vec<Claim>], outside: &[Claim], nodes: u16) -> Hosts {
    let fits = |claim: &&Claim| claim.nodes == nodes && is_sound(claim);
    let of_seats = (0u16..).zip(seats);
    let claims = of_seats.flat_map(|(seat, claims)| claims.iter().map(move |it| (seat, it)));
    let mut claims: Vec<(u16, &Claim)> = claims.filter(|(_, claim)| fits(claim)).collect();
    claims.sort_by_key(|(seat, claim)| (std::cmp::Reverse(claim.newest), *seat));
    let mut host: BTreeMap<NodeIndex, u16> = BTreeMap::new();
    for (seat, claim) in &claims {
        host.entry(claim.index).or_insert(*seat);
    }
    let mut load: Vec<usize> = vec![0; seats.len()];
    for seat in host.values() {
        load[usize::from(*seat)] += 1;
    }
    for index in (0..nodes).map(NodeIndex) {
        if !host.contains_key(&index)
            && let Some((least, _)) = load.iter().enumerate().min_by_key(|(_, load)| **load)
        {
            load[least] += 1;
            host.insert(index, u16::try_from(least).unwrap_or(0));
        }
    }
    let mut known: Vec<&Claim> = outside.iter().filter(fits).collect();
    known.extend(claims.iter().map(|(_, claim)| *claim));
    Hosts {
        seat_of_index: host.into_values().collect(),
        sets: sets(known, nodes),
    }
}

/// The sets of claims, those of newer ones first, and sets of one for whoever is in none.
fn sets(mut claims: Vec<&Claim>, nodes: u16) -> Vec<Set> {
    claims.sort_by_key(|claim| (std::cmp::Reverse(claim.newest), claim.index));
    let mut taken: BTreeSet<NodeIndex> = BTreeSet::new();
    let mut sets = Vec::new();
    for claim in claims {
        let free = claim.set.iter().all(|member| !taken.contains(member));
        if let Some(set) = set_of(claim.set.clone(), claim.parity).filter(|_| free) {
            taken.extend(&set.members);
            sets.push(set);
        }
    }
    let rest = (0..nodes).map(NodeIndex).filter(|it| !taken.contains(it));
    sets.extend(rest.filter_map(|index| set_of(vec![index], 0)));
    sets.sort_by(|a, b| a.members.cmp(&b.members));
    sets
}

/// Numbers of nodes by which checkpoints of a job were made, as far as claims tell, each with the newest that is claimed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layouts(BTreeMap<u16, CheckpointId>);

impl Layouts {
    /// Of these claims.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Layouts {
        let mut newest: BTreeMap<u16, CheckpointId> = BTreeMap::new();
        for claim in claims.into_iter().filter(|claim| is_sound(claim)) {
            let known = newest.entry(claim.nodes).or_insert(claim.newest);
            *known = (*known).max(claim.newest);
        }
        Layouts(newest)
    }

    /// The newest that as many nodes have made.
    pub fn newest(&self, nodes: u16) -> Option<CheckpointId> {
        self.0.get(&nodes).copied()
    }

    /// The highest number of all; 0: there is none.
    pub fn highest(&self) -> u32 {
        self.0.values().map(|id| id.number).max().unwrap_or(0)
    }

    /// What is to be looked at next, of those that were made by another number of nodes than `nodes` and not looked at (`tried`): the one with
    /// the newest claim, if that is newer than what was found (`found`).
    pub fn other(
        &self,
        nodes: u16,
        tried: &BTreeSet<u16>,
        found: Option<CheckpointId>,
    ) -> Option<(u16, CheckpointId)> {
        let open = self.0.iter().map(|(nodes, id)| (*nodes, *id));
        let open = open.filter(|(of, id)| {
            *of != nodes && !tried.contains(of) && found.is_none_or(|found| found < *id)
        });
        open.max_by_key(|(_, id)| *id)
    }
}
