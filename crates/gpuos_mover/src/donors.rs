//! Nodes that the job does not have and that hold parts of its checkpoints: which node of the job takes what from which of them.
//!
//! An own part goes before that of another node if it is as new. What nobody holds is made again from parity, for which the other
//! nodes have to have all that they need for it; so then more is taken than parts alone.
//!
//! Pure: what is there is the caller's to find out.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use serde::{Deserialize, Serialize};

use crate::roster::Claim;

/// Checkpoints that are taken at most, beside what they need: the newest that was committed, and any that was being made. Own choice.
const MOST: usize = 4;

/// A node outside the job, and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Donor {
    /// Its name.
    pub node: String,
    /// What its newest manifest says.
    pub claim: Claim,
    /// The checkpoints of which it has the part of its index.
    pub parts: Vec<HeldPart>,
}

/// A checkpoint that a donor has its part of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldPart {
    /// Which.
    pub id: CheckpointId,
    /// It knows that all nodes had it.
    pub committed: bool,
    /// Earlier ones in whose segments files of it lie, on any node whose manifest is there.
    pub needs: Vec<CheckpointId>,
}

/// What is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Taking {
    /// For these nodes of the job, by index: from this node.
    pub from: BTreeMap<u16, String>,
    /// The checkpoints, newest first.
    pub ids: Vec<CheckpointId>,
    /// With parity and with manifests of others, also of these earlier ones: a part that nobody has is made again of them.
    pub whole: Option<Vec<CheckpointId>>,
    /// The newest wanted checkpoint of which a donor knows that all nodes had it; 0: there is none.
    pub committed: u32,
    /// The highest number that a donor has something of; 0: there is none.
    pub highest: u32,
}

/// Decides it, and gives the claims of the donors whose indices no node of the job has, which nodes without claims are to take over.
/// `seats` are those of the job's nodes; `only`: nothing but this checkpoint is wanted.
pub fn decide(
    seats: &[Option<Claim>],
    donors: &[Donor],
    only: Option<u32>,
) -> (Taking, Vec<Claim>) {
    let wanted = |id: CheckpointId| only.is_none_or(|only| only == id.number);
    let parts = || donors.iter().flat_map(|donor| &donor.parts);
    let committed = parts().filter(|part| part.committed).map(|part| part.id);
    let newest = committed.filter(|id| wanted(*id)).max();
    let ids: BTreeSet<CheckpointId> = parts()
        .map(|part| part.id)
        .filter(|id| wanted(*id) && newest.is_none_or(|newest| *id >= newest))
        .collect();
    // Of those that were being made the newest are looked at, and what was committed always.
    let ids: BTreeSet<CheckpointId> = ids.into_iter().rev().take(MOST - 1).chain(newest).collect();
    let ids: Vec<CheckpointId> = ids.into_iter().rev().collect();
    let mut taking = Taking {
        committed: newest.map_or(0, |id| id.number),
        highest: parts().map(|part| part.id.number).max().unwrap_or(0),
        ..Taking::default()
    };
    let Some(oldest) = ids.last().copied() else {
        return (taking, Vec::new());
    };
    let own: BTreeMap<NodeIndex, CheckpointId> = seats
        .iter()
        .flatten()
        .map(|claim| (claim.index, claim.newest))
        .collect();
    let mut best: BTreeMap<NodeIndex, (CheckpointId, &Donor)> = BTreeMap::new();
    for donor in donors {
        let held = donor.parts.iter().map(|part| part.id);
        let newest = held.filter(|id| ids.contains(id)).max();
        let known = best.get(&donor.claim.index).map(|(known, _)| *known);
        // Of two that are alike the first holds, so that another question has the same answer.
        if let Some(newest) = newest.filter(|newest| known.is_none_or(|known| known < *newest)) {
            best.insert(donor.claim.index, (newest, donor));
        }
    }
    let nodes = usize::from(donors.first().map_or(0, |donor| donor.claim.nodes)).max(seats.len());
    let nowhere = (0..nodes)
        .filter_map(|index| u16::try_from(index).ok())
        .map(NodeIndex)
        .any(|index| !best.contains_key(&index) && own.get(&index).is_none_or(|own| *own < oldest));
    if nowhere {
        let wanted = parts().filter(|part| ids.contains(&part.id));
        let needs: BTreeSet<CheckpointId> = wanted.flat_map(|part| part.needs.clone()).collect();
        taking.whole = Some(needs.into_iter().filter(|id| !ids.contains(id)).collect());
    }
    // Of its own part the claim names the newest only: if an older one is wanted, that is likely to be there, too. Who has taken a part
    // alone lacks what others' parts are made of.
    best.retain(|index, (theirs, _)| match own.get(index) {
        Some(own) => own < theirs || (nowhere && own == theirs),
        None => true,
    });
    let claims = best
        .iter()
        .filter(|(index, _)| !own.contains_key(index))
        .map(|(_, (_, donor))| donor.claim.clone())
        .collect();
    taking.from = best
        .into_iter()
        .map(|(index, (_, donor))| (index.0, donor.node.clone()))
        .collect();
    taking.ids = ids;
    (taking, claims)
}

/// In a drill: which nodes' parts count as gone, so many of each set, of those that no node of the job has itself: what is there
/// would be found. `draw` decides between them.
///
/// # Errors
/// The job's nodes have too many of the parts themselves: a sentence.
pub fn lost(
    seats: &[Option<Claim>],
    donors: &[Donor],
    count: u8,
    mut draw: u64,
) -> Result<BTreeSet<NodeIndex>, String> {
    let own: BTreeSet<NodeIndex> = seats.iter().flatten().map(|claim| claim.index).collect();
    let claims = seats.iter().flatten();
    let claims = claims.chain(donors.iter().map(|donor| &donor.claim));
    let sets: BTreeSet<&Vec<NodeIndex>> = claims.map(|claim| &claim.set).collect();
    let mut lost = BTreeSet::new();
    for set in sets {
        let mut away: Vec<NodeIndex> = set.iter().filter(|it| !own.contains(it)).copied().collect();
        if away.len() < usize::from(count) {
            return Err(format!(
                "of each set {count} are to count as gone, and the drill's own nodes hold {} of the {} parts of one: run it on other nodes, or \
                 remove what an earlier drill has left there (`gpuos ckpt prune`)",
                set.len() - away.len(),
                set.len()
            ));
        }
        for _ in 0..count {
            // A step of SplitMix64.
            draw = draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (draw ^ (draw >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let at = (mixed ^ (mixed >> 27)) % away.len() as u64;
            lost.insert(away.swap_remove(at as usize));
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u32) -> CheckpointId {
        CheckpointId { number, attempt: 7 }
    }

    fn claim(index: u16, nodes: u16, newest: u32) -> Claim {
        Claim {
            index: NodeIndex(index),
            nodes,
            set: (0..nodes).map(NodeIndex).collect(),
            parity: 1,
            newest: id(newest),
        }
    }

    /// Of three nodes, with these parts, of which those up to `committed` are.
    fn donor(node: &str, index: u16, numbers: &[u32], committed: u32) -> Donor {
        let parts = numbers.iter().map(|number| HeldPart {
            id: id(*number),
            committed: *number <= committed,
            needs: vec![id(1)],
        });
        Donor {
            node: node.into(),
            claim: claim(index, 3, numbers.last().copied().unwrap_or(0)),
            parts: parts.collect(),
        }
    }

    fn from(taking: &Taking) -> Vec<(u16, &str)> {
        let from = taking.from.iter();
        from.map(|(index, node)| (*index, node.as_str())).collect()
    }

    #[test]
    fn all_parts_come_from_outside_where_no_node_has_one() {
        let donors = [
            donor("n1", 0, &[3, 4], 4),
            donor("n2", 1, &[3, 4], 4),
            donor("n3", 2, &[3, 4], 3),
        ];
        let (taking, claims) = decide(&[None, None, None], &donors, None);
        assert_eq!(from(&taking), [(0, "n1"), (1, "n2"), (2, "n3")]);
        assert_eq!(taking.ids, [id(4)], "the newest that was committed");
        assert_eq!(taking.whole, None, "no part has to be made again");
        assert_eq!((taking.committed, taking.highest), (4, 4));
        assert_eq!(claims.len(), 3);
    }

    #[test]
    fn what_was_being_made_comes_along_as_it_may_be_complete() {
        let donors = [donor("n1", 0, &[4, 5], 4), donor("n2", 1, &[4, 5], 4)];
        let (taking, _) = decide(&[None, None], &donors, None);
        assert_eq!(taking.ids, [id(5), id(4)]);
    }

    #[test]
    fn own_parts_go_before_others_of_the_same_age_and_after_newer_ones() {
        let seats = [Some(claim(0, 3, 4)), Some(claim(1, 3, 2)), None];
        let donors = [
            donor("n7", 0, &[4], 4),
            donor("n8", 1, &[4], 4),
            donor("n9", 2, &[4], 4),
        ];
        let (taking, claims) = decide(&seats, &donors, None);
        assert_eq!(from(&taking), [(1, "n8"), (2, "n9")]);
        assert_eq!(claims, [claim(2, 3, 4)], "the others have claims");
        assert_eq!(taking.whole, None);
    }

    #[test]
    fn parity_comes_along_where_a_part_is_nowhere() {
        let donors = [donor("n1", 0, &[4], 4), donor("n3", 2, &[4], 4)];
        let (taking, claims) = decide(&[None, None, None], &donors, None);
        assert_eq!(from(&taking), [(0, "n1"), (2, "n3")]);
        assert_eq!(taking.whole, Some(vec![id(1)]), "with what it needs");
        assert_eq!(claims.len(), 2);
    }

    #[test]
    fn who_has_taken_a_part_alone_takes_the_rest_where_another_one_is_lost_after_all() {
        let seats = [Some(claim(0, 3, 4)), None, Some(claim(2, 3, 4))];
        let donors = [donor("n1", 0, &[4], 4), donor("n3", 2, &[4], 4)];
        let (taking, _) = decide(&seats, &donors, None);
        assert_eq!(from(&taking), [(0, "n1"), (2, "n3")]);
        assert!(taking.whole.is_some());
    }

    #[test]
    fn of_two_that_hold_a_part_the_newer_gives_it() {
        let donors = [
            donor("n1", 0, &[2], 2),
            donor("n2", 0, &[4], 4),
            donor("n3", 0, &[4], 4),
        ];
        let (taking, _) = decide(&[None], &donors, None);
        assert_eq!(from(&taking), [(0, "n2")]);
    }

    #[test]
    fn one_checkpoint_can_be_asked_for() {
        let donors = [donor("n1", 0, &[2, 3, 4], 4)];
        let (taking, _) = decide(&[None], &donors, Some(3));
        assert_eq!(taking.ids, [id(3)]);
        assert_eq!((taking.committed, taking.highest), (3, 4));
        let (none, claims) = decide(&[None], &donors, Some(9));
        assert!(none.from.is_empty() && claims.is_empty());
    }

    #[test]
    fn a_drill_leaves_out_so_many_of_each_set_and_none_that_is_on_its_nodes() {
        let donors: Vec<Donor> = (0..3)
            .map(|index| donor(&format!("n{index}"), index, &[4], 4))
            .collect();
        let mut seen = BTreeSet::new();
        for draw in 0..100 {
            let gone = lost(&[None, None, None], &donors, 1, draw).unwrap();
            assert_eq!(gone.len(), 1);
            seen.extend(gone);
            let own = [Some(claim(1, 3, 4)), None, None];
            let gone = lost(&own, &donors, 2, draw).unwrap();
            assert_eq!(gone, [NodeIndex(0), NodeIndex(2)].into());
            let why = lost(&own, &donors, 3, draw).unwrap_err();
            assert!(
                why.contains("the drill's own nodes hold 1 of the 3 parts of one"),
                "{why}"
            );
        }
        assert_eq!(seen.len(), 3, "any of them");
        assert_eq!(lost(&[], &donors, 0, 1), Ok(BTreeSet::new()));
        // Of two sets each loses one.
        let mut four: Vec<Donor> = (0..4).map(|index| donor("n", index, &[4], 4)).collect();
        for (index, donor) in (0..).zip(&mut four) {
            let first = index / 2 * 2;
            donor.claim.set = vec![NodeIndex(first), NodeIndex(first + 1)];
        }
        let gone = lost(&[], &four, 1, 7).unwrap();
        assert_eq!(gone.iter().filter(|index| index.0 < 2).count(), 1);
        assert_eq!(gone.len(), 2);
    }

    #[test]
    fn nothing_is_taken_where_nobody_has_anything() {
        assert_eq!(decide(&[None], &[], None), (Taking::default(), Vec::new()));
    }

    proptest! {
        #[test]
        fn whatever_is_held_each_index_is_taken_once_and_never_for_something_older(
            seats in proptest::collection::vec(proptest::option::of((0u16..5, 1u32..9)), 1..5),
            donors in proptest::collection::vec((0u16..5, proptest::collection::btree_set(1u32..9, 0..4), 0u32..9), 0..6),
            only in proptest::option::of(1u32..9),
        ) {
            let seats: Vec<Option<Claim>> = seats
                .into_iter()
                .map(|seat| seat.map(|(index, newest)| claim(index, 5, newest)))
                .collect();
            let donors: Vec<Donor> = donors
                .iter()
                .enumerate()
                .map(|(at, (index, numbers, committed))| {
                    let numbers: Vec<u32> = numbers.iter().copied().collect();
                    donor(&format!("n{at}"), *index, &numbers, *committed)
                })
                .collect();
            let (taking, claims) = decide(&seats, &donors, only);
            prop_assert!(taking.ids.len() <= MOST);
            prop_assert!(taking.ids.is_sorted_by(|a, b| a > b));
            for id in &taking.ids {
                prop_assert!(only.is_none_or(|only| only == id.number));
            }
            for (index, node) in &taking.from {
                let giver = donors.iter().find(|donor| donor.node == *node).unwrap();
                prop_assert_eq!(giver.claim.index.0, *index);
                let newest = giver.parts.iter().map(|part| part.id).filter(|id| taking.ids.contains(id)).max();
                prop_assert!(newest.is_some());
                for seat in seats.iter().flatten().filter(|seat| seat.index.0 == *index) {
                    // Of two claims to an index one is looked at.
                    prop_assert!(seats.iter().flatten().filter(|other| other.index == seat.index).count() > 1 || Some(seat.newest) < newest
                        || (taking.whole.is_some() && Some(seat.newest) == newest));
                }
            }
            for claim in &claims {
                prop_assert!(taking.from.contains_key(&claim.index.0));
                prop_assert!(seats.iter().flatten().all(|seat| seat.index != claim.index));
            }
        }
    }
}
