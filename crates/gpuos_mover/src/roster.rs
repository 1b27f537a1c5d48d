//! Which index each node of a job has, and the sets, also when some nodes are others than before.
//!
//! A node is known to the workload manager by its *seat*, its place in the list of the job's nodes, and to checkpoints by its index. A
//! node that has a part of a checkpoint *claims* the index and the set that its manifest names. Nodes without take the indices
//! that nobody claims, and with them the places in the sets of the nodes that are gone.
//!
//! Pure: all nodes could draw the same roster from the same claims.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::{NoSets, NodeDomains, Scheme, Set, arrange};
use serde::{Deserialize, Serialize};

/// What a node's newest manifest says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Its index.
    pub index: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// The members of its set, in the order of stripes.
    pub set: Vec<NodeIndex>,
    /// How many of them can be lost.
    pub parity: u16,
    /// The checkpoint of the manifest.
    pub newest: CheckpointId,
}

/// The nodes of a job. It is written and sent as [`Plain`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Plain", into = "Plain")]
pub struct Roster {
    /// By seat; each index once.
    pub index_of_seat: Vec<NodeIndex>,
    /// Each index is in one of them.
    pub sets: Vec<Set>,
    /// What an administrator should know, as sentences.
    pub notes: Vec<String>,
}

/// A roster in numbers, not checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plain {
    /// Indices by seat.
    pub index_of_seat: Vec<u16>,
    /// Members and parity of each set.
    pub sets: Vec<(Vec<u16>, u16)>,
    /// Sentences.
    pub notes: Vec<String>,
}

impl From<Roster> for Plain {
    fn from(roster: Roster) -> Plain {
        let numbers = |nodes: Vec<NodeIndex>| nodes.into_iter().map(|node| node.0).collect();
        let sets = roster.sets.into_iter();
        Plain {
            index_of_seat: numbers(roster.index_of_seat),
            sets: sets
                .map(|set| (numbers(set.members), set.parity.into()))
                .collect(),
            notes: roster.notes,
        }
    }
}

impl TryFrom<Plain> for Roster {
    type Error = String;

    /// # Errors
    /// Indices or sets are not those of as many nodes as there are seats.
    fn try_from(plain: Plain) -> Result<Roster, String> {
        let nodes = plain.index_of_seat.len();
        let is_all = |mut indices: Vec<u16>| {
            indices.sort_unstable();
            indices.into_iter().map(usize::from).eq(0..nodes)
        };
        let members = plain.sets.iter().flat_map(|(members, _)| members).copied();
        if !is_all(plain.index_of_seat.clone()) || !is_all(members.collect()) {
            return Err(format!(
                "a roster came whose indices or sets are not those of {nodes} nodes; have the same release of gpuos on all nodes"
            ));
        }
        let indices = |numbers: Vec<u16>| numbers.into_iter().map(NodeIndex).collect();
        let sets = plain.sets.into_iter();
        let sets = sets.map(|(members, parity)| set_of(indices(members), parity));
        let sets: Option<Vec<Set>> = sets.collect();
        Ok(Roster {
            index_of_seat: indices(plain.index_of_seat),
            sets: sets.ok_or(
                "a roster came with a set of impossible numbers; have the same release of gpuos on all nodes",
            )?,
            notes: plain.notes,
        })
    }
}

/// Draws the roster of a job from what its nodes claim and where they are, by seat.
///
/// A node with a claim keeps its index; of two claims to one the newer checkpoint's holds. Other nodes take the free indices
/// in the order of their seats. The sets are those of the claims; indices in none are arranged among each other.
///
/// # Errors
/// A sentence: the checkpoints were made on another number of nodes, or so many nodes cannot be arranged by the scheme. Nothing is
/// to be removed then.
pub fn draw(seats: &[(Option<Claim>, NodeDomains)], scheme: Scheme) -> Result<Roster, String> {
    let nodes = u16::try_from(seats.len()).map_err(|_| {
        format!(
            "a job of {} nodes has too many for checkpoints",
            seats.len()
        )
    })?;
    let claims = seats.iter().map(|(claim, _)| claim.as_ref());
    let mut claims: Vec<(usize, &Claim)> = claims
        .enumerate()
        .filter_map(|(seat, claim)| Some((seat, claim?)))
        .collect();
    // The newest first: what contradicts it gives way.
    claims.sort_by_key(|(seat, claim)| (std::cmp::Reverse(claim.newest), *seat));
    if let Some((_, newest)) = claims.first().filter(|(_, claim)| claim.nodes != nodes) {
        return Err(format!(
            "the checkpoints of this job were made on {} nodes, and it has {nodes} now; nothing was removed: give it {} nodes, or remove \
             its checkpoints with gpuos ckpt prune --anew",
            newest.nodes, newest.nodes
        ));
    }
    let mut notes = Vec::new();
    let held = hold(&claims, nodes, &mut notes);
    let index_of_seat = seat_all(&held, nodes);
    let mut sets = claimed_sets(&held, &mut notes);
    let parity = u16::from(scheme.parity());
    if sets.iter().any(|set| u16::from(set.parity) != parity) {
        notes.push(format!(
            "the job's sets stay as they were when its checkpoints were made, not as l2={scheme} asks for"
        ));
    }
    let mut domains = vec![NodeDomains::default(); seats.len()];
    for (index, (_, of_seat)) in index_of_seat.iter().zip(seats) {
        domains[usize::from(index.0)] = of_seat.clone();
    }
    sets.extend(arrange_rest(&sets, &domains, scheme, &mut notes)?);
    sets.sort_by(|a, b| a.members.cmp(&b.members));
    Ok(Roster {
        index_of_seat,
        sets,
        notes,
    })
}

/// The claims that hold, by index, with their seats.
fn hold<'a>(
    claims: &[(usize, &'a Claim)],
    nodes: u16,
    notes: &mut Vec<String>,
) -> BTreeMap<NodeIndex, (usize, &'a Claim)> {
    let mut held: BTreeMap<NodeIndex, (usize, &Claim)> = BTreeMap::new();
    for (seat, claim) in claims {
        let index = claim.index;
        if claim.nodes != nodes || !is_sound(claim) {
            notes.push(format!(
                "the node at seat {seat} has checkpoint {} as node {index} of {}, which does not fit this job; it counts as a new node",
                claim.newest, claim.nodes
            ));
        } else if let Some((other, newer)) = held.get(&index).copied() {
            notes.push(format!(
                "the nodes at seats {other} and {seat} both have parts of node {index}; that of checkpoint {} is kept, and the node \
                 with checkpoint {} counts as a new one",
                newer.newest, claim.newest
            ));
        } else {
            held.insert(index, (*seat, *claim));
        }
    }
    held
}

/// Whether a claim is of a node in a set of the job's nodes.
pub(crate) fn is_sound(claim: &Claim) -> bool {
    let members: BTreeSet<&NodeIndex> = claim.set.iter().collect();
    claim.set.contains(&claim.index)
        && members.len() == claim.set.len()
        && members.iter().all(|node| node.0 < claim.nodes)
        && set_of(claim.set.clone(), claim.parity).is_some()
}

pub(crate) fn set_of(members: Vec<NodeIndex>, parity: u16) -> Option<Set> {
    let data = members.len().checked_sub(parity.into())?;
    let set = Set {
        data: u8::try_from(data).ok()?,
        parity: u8::try_from(parity).ok()?,
        members,
    };
    set.geometry().is_some().then_some(set)
}

fn seat_all(held: &BTreeMap<NodeIndex, (usize, &Claim)>, nodes: u16) -> Vec<NodeIndex> {
    let by_seat: BTreeMap<usize, NodeIndex> = held
        .iter()
        .map(|(index, (seat, _))| (*seat, *index))
        .collect();
    let mut free = (0..nodes)
        .map(NodeIndex)
        .filter(|index| !held.contains_key(index));
    let seats = 0..usize::from(nodes);
    let indices = seats.filter_map(|seat| by_seat.get(&seat).copied().or_else(|| free.next()));
    indices.collect()
}

/// The sets that the claims name. One that has a node of another set, named by a newer checkpoint, is none.
fn claimed_sets(held: &BTreeMap<NodeIndex, (usize, &Claim)>, notes: &mut Vec<String>) -> Vec<Set> {
    let mut claims: Vec<&Claim> = held.values().map(|(_, claim)| *claim).collect();
    claims.sort_by_key(|claim| (std::cmp::Reverse(claim.newest), claim.index));
    let mut sets: Vec<Set> = Vec::new();
    let mut set_of_node: BTreeMap<NodeIndex, usize> = BTreeMap::new();
    for claim in claims {
        let Some(set) = set_of(claim.set.clone(), claim.parity) else {
            continue;
        };
        let known = set_of_node.get(&claim.index).and_then(|at| sets.get(*at));
        if known == Some(&set) {
            continue;
        }
        if set
            .members
            .iter()
            .any(|node| set_of_node.contains_key(node))
        {
            notes.push(format!(
                "node {} has checkpoint {} in a set that contradicts those of other nodes; its set is another one now",
                claim.index, claim.newest
            ));
            continue;
        }
        set_of_node.extend(set.members.iter().map(|node| (*node, sets.len())));
        sets.push(set);
    }
    sets
}

/// Sets of the indices that are in none.
fn arrange_rest(
    sets: &[Set],
    domains: &[NodeDomains],
    scheme: Scheme,
    notes: &mut Vec<String>,
) -> Result<Vec<Set>, String> {
    let taken: BTreeSet<NodeIndex> = sets.iter().flat_map(|set| &set.members).copied().collect();
    let all = (0..).map(NodeIndex).zip(domains);
    let (rest, of_rest): (Vec<NodeIndex>, Vec<NodeDomains>) = all
        .filter(|(index, _)| !taken.contains(index))
        .map(|(index, domains)| (index, domains.clone()))
        .unzip();
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    let arranged = match arrange(&of_rest, scheme) {
        Err(why @ (NoSets::Crowded { .. } | NoSets::NotFound { .. })) => {
            notes.push(format!(
                "nodes of one set may fail together, as their failure domains cannot be kept apart: {why}"
            ));
            arrange(&vec![NodeDomains::default(); rest.len()], scheme)
        }
        arranged => arranged,
    };
    let mut arranged = arranged.map_err(|why| match taken.is_empty() {
        true => why.to_string(),
        false => format!(
            "{} nodes are in no set of the job's checkpoints and cannot be arranged: {why}; nothing was removed",
            rest.len()
        ),
    })?;
    for set in &mut arranged {
        // Places among the rest become indices.
        let places = std::mem::take(&mut set.members);
        let indices = places
            .iter()
            .filter_map(|place| rest.get(usize::from(place.0)));
        set.members = indices.copied().collect();
    }
    Ok(arranged)
}
