//! What can be restored and what can still be lost, against trying all losses.

use std::collections::BTreeMap;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::usable::{HeldPart, Inventory, ManifestFacts, NodeSet, choose, judge};
use proptest::prelude::*;

use crate::random::Random;

fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 1 }
}

/// A set in which the parity of stripe s is at the places s, s + 1, ...
fn set(members: std::ops::Range<u16>, parity: usize) -> NodeSet {
    let members: Vec<NodeIndex> = members.map(NodeIndex).collect();
    let n = members.len();
    let stripes = if parity == 0 { 0 } else { n };
    let holders = |stripe: usize| (0..parity).map(|p| members[(stripe + p) % n]).collect();
    NodeSet {
        stripes: (0..stripes).map(holders).collect(),
        members,
    }
}

/// All parts of a checkpoint that refers to segments of these too; each manifest has as many copies as the set has parity.
fn add(inventory: &mut Inventory, id: CheckpointId, needs: &[CheckpointId]) {
    for set in inventory.sets.clone() {
        let n = set.members.len();
        for (at, node) in set.members.iter().enumerate() {
            let facts = ManifestFacts {
                segments: needs.iter().copied().chain([id]).collect(),
            };
            for step in 1..=set.parity() {
                let holder = set.members[(at + step) % n];
                part(inventory, holder, id)
                    .copies
                    .insert(*node, facts.clone());
            }
            let own = part(inventory, *node, id);
            own.manifest = Some(facts);
            own.segment = true;
            let stripes = set.stripes.iter().zip(0_u16..);
            own.shards = stripes
                .filter(|(h, _)| h.contains(node))
                .map(|(_, s)| (s, true))
                .collect();
        }
    }
}

fn part(inventory: &mut Inventory, node: NodeIndex, id: CheckpointId) -> &mut HeldPart {
    inventory
        .left
        .entry(node)
        .or_default()
        .entry(id)
        .or_default()
}

fn whole(sets: Vec<NodeSet>, count: u32) -> Inventory {
    let nodes = sets.iter().map(|set| set.members.len() as u16).sum();
    let mut inventory = Inventory {
        nodes,
        sets,
        ..Inventory::default()
    };
    for number in 1..=count {
        let before: Vec<CheckpointId> = (number > 1).then(|| id(number - 1)).into_iter().collect();
        add(&mut inventory, id(number), &before);
    }
    inventory
}

fn without(inventory: &Inventory, gone: &[u16]) -> Inventory {
    let mut rest = inventory.clone();
    rest.left.retain(|node, _| !gone.contains(&node.0));
    rest
}

fn why(inventory: &Inventory, number: u32) -> String {
    let verdicts = judge(inventory).unwrap();
    let verdict = verdicts
        .into_iter()
        .find(|v| v.id.number == number)
        .unwrap();
    verdict.result.unwrap_err()
}

#[test]
fn as_many_as_the_parity_can_be_lost() {
    let all = whole(vec![set(0..8, 2), set(8..10, 1), set(10..15, 1)], 3);
    let verdicts = judge(&all).unwrap();
    assert_eq!(
        verdicts.iter().map(|v| v.id.number).collect::<Vec<_>>(),
        [3, 2, 1]
    );
    let plan = choose(&verdicts).unwrap().result.clone().unwrap();
    assert_eq!(
        (plan.tolerance, plan.by_set, plan.rebuild.len()),
        (1, vec![2, 1, 1], 0)
    );
    let less = without(&all, &[3, 4, 9, 12]);
    let plan = choose(&judge(&less).unwrap())
        .unwrap()
        .result
        .clone()
        .unwrap();
    let nodes = [3, 4, 9, 12].map(NodeIndex);
    let expected: Vec<_> = [2, 3]
        .iter()
        .flat_map(|s| nodes.map(|n| (n, id(*s))))
        .collect();
    assert_eq!((plan.rebuild, plan.copied), (expected, nodes.to_vec()));
    // Two each of the set that can lose two, of two checkpoints.
    assert_eq!(plan.shards.len(), 2 * (2 + 2 + 1 + 1));
    assert_eq!(plan.shards[0], (NodeIndex(3), id(2), 2));
    assert_eq!((plan.tolerance, plan.by_set), (0, vec![0, 0, 0]));
    // Nothing of the third set's redundancy is used up.
    let plan = choose(&judge(&without(&all, &[0])).unwrap())
        .unwrap()
        .result
        .clone()
        .unwrap();
    assert_eq!(plan.by_set, [1, 1, 1]);
}

#[test]
fn sentences_say_what_is_missing() {
    let all = whole(vec![set(0..8, 2), set(8..9, 0)], 2);
    assert_eq!(
        why(&without(&all, &[3, 4, 5]), 2),
        "checkpoint 2: what nodes 3, 4 and 5 of a set that can lose 2 had was not found"
    );
    assert_eq!(
        why(&without(&all, &[1, 4, 6]), 2),
        "checkpoint 2: what nodes 1, 4 and 6 of a set that can lose 2 had was not found; it needs data of checkpoint 1"
    );
    assert_eq!(
        why(&without(&all, &[8]), 1),
        "checkpoint 1: what node 8 of a set that can lose none had was not found"
    );
    let mut unfinished = all.clone();
    add(&mut unfinished, id(3), &[]);
    for node in 0..9 {
        let part = part(&mut unfinished, NodeIndex(node), id(3));
        part.copies.remove(&NodeIndex(2));
        if node == 2 {
            part.manifest = None;
        }
    }
    assert_eq!(
        why(&unfinished, 3),
        "checkpoint 3: the part of node 2 was not completed"
    );
    let mut damaged = without(&all, &[3]);
    for node in [4, 5] {
        let part = part(&mut damaged, NodeIndex(node), id(2));
        part.segment = false;
        part.shards.values_mut().for_each(|good| *good = false);
    }
    assert_eq!(
        why(&damaged, 2),
        "checkpoint 2: what node 3 of a set that can lose 2 had was not found, and what nodes 4 and 5 had is missing or damaged"
    );
    let mut failed = all.clone();
    failed.failed.insert(id(2));
    assert_eq!(
        why(&failed, 2),
        "checkpoint 2: a program could not load it, so it is passed over"
    );
    assert_eq!(choose(&judge(&failed).unwrap()).unwrap().id, id(1));
}

/// With one copy of a manifest, at the right neighbour, two nodes side by side take it with them, whatever the parity.
#[test]
fn parity_is_worth_no_more_than_the_copies_of_the_manifests() {
    let mut all = whole(vec![set(0..8, 2)], 1);
    for node in 0..8 {
        let left = NodeIndex((node + 7) % 8);
        part(&mut all, NodeIndex(node), id(1))
            .copies
            .retain(|of, _| *of == left);
    }
    let plan = choose(&judge(&all).unwrap())
        .unwrap()
        .result
        .clone()
        .unwrap();
    assert_eq!(plan.tolerance, 1);
    assert_eq!(
        why(&without(&all, &[3, 4]), 1),
        "checkpoint 1: nothing of node 3 was found, and no copy of its manifest"
    );
}

#[test]
fn committed_before_complete_and_attempts_apart() {
    let mut all = whole(vec![set(0..3, 1)], 1);
    let other = CheckpointId {
        number: 1,
        attempt: 9,
    };
    add(&mut all, other, &[]);
    // Both are complete: the higher attempt has no better claim than a record of the commit.
    assert_eq!(choose(&judge(&all).unwrap()).unwrap().id, other);
    part(&mut all, NodeIndex(2), id(1)).committed = true;
    let verdicts = judge(&all).unwrap();
    assert_eq!((verdicts[0].id, verdicts[0].committed), (id(1), true));
    // Of two halves of two attempts none is usable.
    let mut halves = Inventory {
        nodes: 2,
        sets: vec![set(0..1, 0), set(1..2, 0)],
        ..Inventory::default()
    };
    for (node, id) in [(0, id(1)), (1, other)] {
        let part = part(&mut halves, NodeIndex(node), id);
        part.segment = true;
        part.manifest = Some(ManifestFacts { segments: vec![id] });
    }
    assert_eq!(choose(&judge(&halves).unwrap()), None);
}

#[test]
fn earlier_checkpoints_may_have_other_sets() {
    let mut all = whole(vec![set(0..4, 1)], 1);
    let earlier = vec![set(0..2, 1), set(2..4, 1)];
    let mut old = Inventory {
        sets: earlier.clone(),
        ..all.clone()
    };
    old.left.clear();
    add(&mut old, id(1), &[]);
    all.left = old.left;
    all.earlier_sets.insert(id(1), earlier);
    add(&mut all, id(2), &[id(1)]);
    let plan = |inventory: &Inventory| choose(&judge(inventory).unwrap()).unwrap().clone();
    assert_eq!(plan(&all).id, id(2));
    let less = plan(&without(&all, &[1]));
    assert_eq!(
        (less.id, less.result.unwrap().rebuild),
        (id(2), vec![(NodeIndex(1), id(1)), (NodeIndex(1), id(2))])
    );
}

#[test]
fn contradictions_are_refused() {
    let good = whole(vec![set(0..4, 1)], 1);
    let with = |change: fn(&mut Inventory)| {
        let mut inventory = good.clone();
        change(&mut inventory);
        judge(&inventory).unwrap_err()
    };
    assert!(with(|i| i.nodes = 5).contains("have 4 of the job's 5 nodes"));
    assert!(with(|i| i.nodes = 3).contains("of a job of 3 nodes"));
    assert!(with(|i| i.sets.push(set(0..2, 1))).contains("twice"));
    assert!(with(|i| i.sets[0].stripes[0].clear()).contains("same number of parity"));
    assert!(with(|i| i.sets[0].stripes[1][0] = NodeIndex(9)).contains("same number of parity"));
    assert!(with(|i| drop(i.earlier_sets.insert(id(1), Vec::new()))).contains("0 of the job's"));
    let more = |i: &mut Inventory| drop(i.left.insert(NodeIndex(4), BTreeMap::new()));
    assert!(with(more).contains("node 4 is not of this job"));
}

/// By the definition: all manifests, and each segment there or with enough shards in each of its stripes.
fn restorable(inventory: &Inventory, id: CheckpointId) -> bool {
    (0..inventory.nodes).map(NodeIndex).all(|node| {
        let parts = || {
            inventory
                .left
                .iter()
                .filter_map(|(holder, parts)| Some((*holder, parts.get(&id)?)))
        };
        let own = parts()
            .find(|(holder, _)| *holder == node)
            .and_then(|(_, p)| p.manifest.clone());
        let copy = || parts().find_map(|(_, part)| part.copies.get(&node).cloned());
        let Some(facts) = own.or_else(copy) else {
            return false;
        };
        let set = inventory
            .sets
            .iter()
            .find(|set| set.members.contains(&node))
            .unwrap();
        facts.segments.iter().all(|segment| {
            let part = |node: &NodeIndex| inventory.left.get(node)?.get(segment);
            let there = |node: &NodeIndex| part(node).is_some_and(|p| p.segment);
            let stripe = |(at, holders): (usize, &Vec<NodeIndex>)| {
                let good = set
                    .members
                    .iter()
                    .filter(|member| match holders.contains(member) {
                        true => part(member)
                            .is_some_and(|p| p.shards.get(&(at as u16)).copied().unwrap_or(false)),
                        false => there(member),
                    });
                holders.contains(&node) || good.count() >= set.members.len() - holders.len()
            };
            there(&node) || !set.stripes.is_empty() && set.stripes.iter().enumerate().all(stripe)
        })
    })
}

/// How many of the nodes that are left can be lost, whichever they are.
fn tolerance(inventory: &Inventory, id: CheckpointId) -> usize {
    let left: Vec<u16> = inventory.left.keys().map(|node| node.0).collect();
    let broken = (0..1_usize << left.len()).filter(|bits| {
        let gone: Vec<u16> = (0..left.len())
            .filter(|at| bits & (1 << at) != 0)
            .map(|at| left[at])
            .collect();
        !restorable(&without(inventory, &gone), id)
    });
    broken.map(|bits| bits.count_ones() as usize).min().unwrap() - 1
}

/// Some of it is lost or damaged, more or less.
fn damage(inventory: &mut Inventory, random: &mut Random) {
    let often = random.pick(&[3, 10, 40]);
    let nodes = inventory.nodes;
    inventory.left.retain(|_, _| random.index(often) > 0);
    for part in inventory.left.values_mut().flat_map(BTreeMap::values_mut) {
        part.segment &= random.index(often) > 0;
        part.shards
            .values_mut()
            .for_each(|good| *good = random.index(often) > 0);
        part.copies.retain(|_, _| random.index(often) > 0);
        if random.index(often) == 0 {
            part.manifest = None;
        }
        for facts in part.manifest.iter_mut().chain(part.copies.values_mut()) {
            // All who know a manifest know the same one.
            let keep = facts.segments.last().unwrap().number % 2 == 0;
            facts
                .segments
                .retain(|segment| keep || segment.number != u32::from(nodes % 3));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn usable_and_tolerance_are_as_trying_all_losses_says(seed: u64) {
        let mut random = Random(seed);
        let (mut sets, mut from) = (Vec::new(), 0);
        for _ in 0..1 + random.index(2) {
            let n = 1 + random.index(4) as u16;
            sets.push(set(from..from + n, random.index(usize::from(n).min(4))));
            from += n;
        }
        let mut inventory = whole(sets, 2);
        damage(&mut inventory, &mut random);
        for verdict in judge(&inventory).unwrap() {
            prop_assert_eq!(verdict.result.is_ok(), restorable(&inventory, verdict.id), "{:?} {:?}", verdict, inventory);
            if let Ok(plan) = verdict.result {
                prop_assert_eq!(plan.tolerance, tolerance(&inventory, verdict.id), "{:?}", inventory);
                prop_assert_eq!(plan.by_set.iter().min(), Some(&plan.tolerance));
            }
        }
    }
}

/// Nodes report what is on their disks: a manifest of a node that this job has not is no reason to stop.
#[test]
fn a_copy_of_a_stranger_says_nothing() {
    let inventory = whole(vec![set(0..4, 1)], 2);
    let mut with = inventory.clone();
    for stranger in [4, u16::MAX] {
        part(&mut with, NodeIndex(1), id(2))
            .copies
            .insert(NodeIndex(stranger), ManifestFacts::default());
    }
    assert_eq!(judge(&with), judge(&inventory));
}
