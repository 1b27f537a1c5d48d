//! Nodes that crash, restart and are lost, and a network that loses, repeats, delays and reorders messages. Whatever happens, what a
//! program was told of stays restorable, and when it is quiet again, attempts end.

use std::collections::BTreeSet;

use gpuos_checkpoint::commit::{Input, Outcome};
use gpuos_checkpoint::ids::NodeIndex;

use crate::commit_support::truth::Set;
use crate::commit_support::world::{Mutant, World};
use crate::random::Random;

/// What came about in a run, so that one sees that the tests try something.
#[derive(Default, Debug)]
struct Seen {
    committed: usize,
    failed: usize,
    crashes: usize,
    losses: usize,
    refused: usize,
}

fn sets(random: &mut Random) -> Vec<Set> {
    let nodes = 3 + random.index(6);
    let first = match nodes >= 4 && random.index(2) == 0 {
        true => 2 + random.index(nodes - 3),
        false => nodes,
    };
    let mut sets = Vec::new();
    for (from, to) in [(0, first), (first, nodes)] {
        if to > from {
            let parity = 1 + random.index((to - from - 1).min(3));
            let members = (from..to).collect();
            sets.push(Set::new(members, parity));
        }
    }
    sets
}

/// Not more of a set than it can lose.
fn victims(world: &mut World) -> BTreeSet<usize> {
    let mut gone = BTreeSet::new();
    for set in world.sets.clone() {
        for _ in 0..world.random.index(set.parity + 1) {
            gone.insert(world.random.pick(&set.members));
        }
    }
    gone
}

fn disturb(world: &mut World, seen: &mut Seen) -> Result<(), String> {
    let node = world.random.index(world.size());
    match world.random.index(20) {
        0..=6 => drop(world.begin()),
        7..=10 => {
            world.crash(node);
            seen.crashes += 1;
            if world.random.index(3) == 0 {
                let node = NodeIndex(node as u16);
                world.everybody(&Input::Lost { node });
            }
        }
        11..=14 => {
            world.restart(node);
            let node = NodeIndex(node as u16);
            world.everybody(&Input::Returned { node });
        }
        15 => world.loss = world.random.index(50),
        16 => world.repeats = world.random.index(50),
        17 => world.latest_ms = world.random.pick(&[20, 200, 3000]),
        18 => world.failures = world.random.pick(&[0, 0, 10, 40]),
        _ => {
            let gone = victims(world);
            seen.losses += gone.len();
            world.lose(&gone)?;
        }
    }
    let ms = world.random.pick(&[50, 200, 1000, 3000]);
    world.run(ms)
}

fn heal(world: &mut World) -> Result<(), String> {
    (world.loss, world.repeats, world.failures, world.latest_ms) = (0, 0, 0, 20);
    for node in 0..world.size() {
        if !world.runs(node) {
            world.restart(node);
        }
    }
    for node in 0..world.size() {
        let node = NodeIndex(node as u16);
        world.everybody(&Input::Returned { node });
    }
    world.run(12_000)?;
    // The last attempt of the leader has ended, if it was not cut off.
    match world
        .begun
        .filter(|id| !world.outcomes.contains_key(&(0, *id)))
    {
        Some(id) => Err(format!("{id} does not end")),
        None => Ok(()),
    }
}

fn attempt_ends(world: &mut World) -> Result<(), String> {
    let refused = world.refused.len();
    let id = world.begin();
    if world.refused.len() > refused {
        return Err(format!("{id} was refused: {}", world.refused[refused]));
    }
    world.run(4000)?;
    for node in 0..world.size() {
        let outcome = world.outcomes.get(&(node, id));
        if outcome != Some(&Outcome::Committed) {
            return Err(format!("node {node} was told {outcome:?} of {id}"));
        }
    }
    world.run(4000)?;
    match world.open() {
        open if open.is_empty() => Ok(()),
        open => Err(format!("after all, {open:?}")),
    }
}

fn history(seed: u64, mutant: Mutant) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut world = World::new(sets(&mut random), random.below(u64::MAX), mutant);
    for _ in 0..12 {
        disturb(&mut world, &mut seen)?;
    }
    heal(&mut world)?;
    attempt_ends(&mut world)?;
    let gone = victims(&mut world);
    world.lose(&gone)?;
    world.run(4000)?;
    attempt_ends(&mut world)?;
    for outcome in world.outcomes.values() {
        match outcome {
            Outcome::Committed => seen.committed += 1,
            Outcome::Failed { .. } => seen.failed += 1,
        }
    }
    seen.refused = world.refused.len();
    Ok(seen)
}

fn seeds() -> u64 {
    match std::env::var_os("GPUOS_LONG") {
        Some(_) => 100_000,
        None => 300,
    }
}

#[test]
fn what_was_told_stays_restorable_and_attempts_end() {
    let mut all = Seen::default();
    for seed in 0..seeds() {
        match history(seed, Mutant::None) {
            Ok(seen) => {
                all.committed += seen.committed;
                all.failed += seen.failed;
                all.crashes += seen.crashes;
                all.losses += seen.losses;
                all.refused += seen.refused;
            }
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    eprintln!("{all:?}");
    // It is not that nothing ever happens.
    let each = [
        all.committed,
        all.failed,
        all.crashes,
        all.losses,
        all.refused,
    ];
    assert!(each.iter().all(|count| *count > 100), "{all:?}");
}

#[test]
fn faults_of_the_protocol_are_found() {
    for mutant in [
        Mutant::DropsOnTimeout,
        Mutant::PreparedTooEarly,
        Mutant::TakesOldAttempt,
        Mutant::MakesPartAgain,
    ] {
        let lost = |why: &String| why.contains("LOST") || why.contains("the truth is");
        let found =
            (0..2000).find_map(|seed| Some((seed, history(seed, mutant).err().filter(lost)?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        eprintln!("{mutant:?}: seed {seed}: {why}");
    }
}
