//! The packer: against brute force over all states of all boards, and what it prefers.

use gpuos_model::mig::{Geometry, NONE, State, States};
use gpuos_placement::mig::{Class, Gpu, KINDS, NO_PROFILE, Packer};

use crate::counting;
use crate::mig_support::{board, boards, numbered};
use crate::random::Random;

/// A class that one profile of the first kind serves.
fn class(profile: usize) -> Class {
    let mut class = [NO_PROFILE; KINDS];
    class[0] = profile as u8;
    class
}

fn named(geometry: &Geometry, name: &str) -> Class {
    class(numbered(geometry, name))
}

fn pool(geometry: &Geometry, nodes: u32, gpus: u32) -> Packer {
    let mut packer = Packer::new(vec![geometry.clone()]).unwrap();
    for node in 0..nodes {
        (0..gpus).for_each(|_| {
            packer.add(node, 0);
        });
    }
    packer
}

/// First slice of the placement that was chosen, and the GPU; the instance is made.
fn place(packer: &mut Packer, class: &Class) -> (Gpu, u8) {
    let place = packer.choose(class).expect("it fits");
    assert!(packer.make(place.gpu, place.spot));
    (
        place.gpu,
        packer.kinds()[0].states().spots()[place.spot].start,
    )
}

/// The most instances of a profile on a GPU in a state, by trying all sets of placements.
fn brute(states: &States, state: State, profile: usize, from: usize) -> u8 {
    let spots = states.spots_of(profile).filter(|&spot| spot >= from);
    let each = spots.map(|spot| match states.make(state, spot) {
        NONE => 0,
        next => 1 + brute(states, next, profile, spot + 1),
    });
    each.max().unwrap_or(0)
}

#[test]
fn what_still_fits_is_what_trying_everything_finds() {
    for (name, geometry) in boards() {
        let packer = Packer::new(vec![geometry.clone()]).unwrap();
        let kind = &packer.kinds()[0];
        for state in 0..kind.states().count() as State {
            for profile in 0..geometry.profiles().len() {
                let found = brute(kind.states(), state, profile, 0);
                assert_eq!(kind.fit(state, profile), found, "{name} {state} {profile}");
            }
        }
    }
}

/// Random pools of two kinds: the choice is the cheapest of all GPUs looked at one by one, is legal,
/// and there is one whenever something fits.
#[test]
fn the_choice_is_the_cheapest_there_is() {
    let mut random = Random(5);
    for (first, second) in [
        ("h100-80gb", "a30"),
        ("rtx-pro-6000", "a100-40gb"),
        ("b200", "h200"),
    ] {
        let (first, second) = (board(first), board(second));
        let mut packer = Packer::new(vec![first.clone(), second.clone()]).unwrap();
        for gpu in 0..24 {
            packer.add(gpu / 4, usize::from(gpu % 8 >= 4));
        }
        let mut made: Vec<(Gpu, usize)> = Vec::new();
        let mut taken: Vec<Gpu> = Vec::new();
        for round in 0..3_000 {
            let mut class = [NO_PROFILE; KINDS];
            let which = random.below(3);
            if which != 1 {
                class[0] = random.below(first.profiles().len() as u64) as u8;
            }
            if which != 0 {
                class[1] = random.below(second.profiles().len() as u64) as u8;
            }
            packer.arrives(&class, 1 + random.below(3) as u16);
            packer.gang_arrives(random.index(6), 1);
            let chosen = packer.choose(&class);
            let each = (0..24).filter_map(|gpu| packer.choose_among(&class, &[gpu]));
            let least = each.map(|place| place.cost).min();
            assert_eq!(chosen.map(|p| p.cost), least, "{round}");
            let all: Vec<Gpu> = (0..24).collect();
            let among = packer.choose_among(&class, &all);
            assert_eq!(chosen.map(|p| p.cost), among.map(|p| p.cost));
            if let Some(place) = chosen {
                let (kind, state) = packer.at(place.gpu);
                let spot = packer.kinds()[kind].states().spots()[place.spot];
                assert_eq!(spot.profile, class[kind]);
                assert_eq!(
                    packer.kinds()[kind].states().mask(state) & spot.placement,
                    0
                );
                assert!(packer.make(place.gpu, place.spot));
                made.push((place.gpu, place.spot));
            }
            match random.below(8) {
                0..4 if !made.is_empty() => {
                    let (gpu, spot) = made.swap_remove(random.index(made.len()));
                    assert!(packer.destroy(gpu, spot));
                }
                4 => {
                    let gpu = random.below(24) as Gpu;
                    if packer.take(gpu) {
                        taken.push(gpu);
                        assert!(!packer.take(gpu) && packer.choose_among(&class, &[gpu]).is_none());
                    }
                }
                5 if !taken.is_empty() => {
                    assert!(packer.release(taken.swap_remove(random.index(taken.len()))));
                }
                _ => {}
            }
        }
        for (gpu, spot) in made {
            assert!(packer.destroy(gpu, spot));
            assert!(!packer.destroy(gpu, spot), "it is gone");
        }
        for gpu in taken {
            assert!(packer.release(gpu) && !packer.release(gpu));
        }
        assert_eq!((packer.whole(), packer.idle()), (24, [24_000; 2]));
    }
}

#[test]
fn small_slices_leave_the_placements_of_large_ones() {
    let h100 = board("h100-80gb");
    let one = named(&h100, "1g.10gb");
    let mut packer = pool(&h100, 1, 2);
    // On one GPU, all of them, before the other is cut; and not into the only placement of 4g.40gb.
    let places: Vec<(Gpu, u8)> = (0..3).map(|_| place(&mut packer, &one)).collect();
    assert!(
        places
            .iter()
            .all(|&(gpu, start)| gpu == places[0].0 && start >= 4),
        "{places:?}"
    );
    let (gpu, start) = place(&mut packer, &named(&h100, "4g.40gb"));
    assert_eq!((gpu, start), (places[0].0, 0));
    let (gpu, start) = place(&mut packer, &named(&h100, "3g.40gb"));
    assert_eq!(
        (gpu, start),
        (1 - places[0].0, 4),
        "4g.40gb keeps its placement"
    );
    assert_eq!(place(&mut packer, &named(&h100, "4g.40gb")), (gpu, 0));
    assert!(packer.choose(&named(&h100, "7g.80gb")).is_none());
}

#[test]
fn seven_small_then_a_mix_then_a_whole_one_fill_a_gpu_exactly() {
    let h100 = board("h100-80gb");
    let mut packer = pool(&h100, 1, 1);
    let sets: [&[&str]; 3] = [
        &["1g.10gb"; 7],
        &["1g.10gb", "2g.20gb", "4g.40gb"],
        &["7g.80gb"],
    ];
    for set in sets {
        let mut made = Vec::new();
        for name in set {
            let chosen = packer.choose(&named(&h100, name)).expect(name);
            assert!(packer.make(chosen.gpu, chosen.spot));
            made.push(chosen);
        }
        assert!(packer.choose(&named(&h100, "1g.10gb")).is_none(), "{set:?}");
        for place in made {
            assert!(packer.destroy(place.gpu, place.spot));
        }
    }
    assert_eq!(packer.whole(), 1);
}

/// Slices and gangs in one score: where gangs of eight come, the node that is broken already is cut.
#[test]
fn whole_nodes_are_kept_for_gangs() {
    let h100 = board("h100-80gb");
    for gangs in [true, false] {
        let mut packer = pool(&h100, 3, 8);
        assert!(packer.take(11));
        if gangs {
            (0..50).for_each(|_| packer.gang_arrives(8, 2));
            let (gpu, _) = place(&mut packer, &named(&h100, "1g.10gb"));
            assert!((8..16).contains(&gpu), "{gpu}");
            // All placements of that GPU go before another node is broken.
            let (other, _) = place(&mut packer, &named(&h100, "7g.80gb"));
            assert!((8..16).contains(&other) && other != gpu, "{other}");
        } else {
            assert!(packer.choose(&named(&h100, "7g.80gb")).is_some());
        }
    }
}

/// The mix counts: the only placement of 4g.40gb is dear where 4g.40gb come, and a half like the other
/// where 3g.40gb do.
#[test]
fn placements_cost_what_the_mix_makes_of_them() {
    let h100 = board("h100-80gb");
    let (three, four) = (named(&h100, "3g.40gb"), named(&h100, "4g.40gb"));
    let costs = |comes: &Class| {
        let mut packer = pool(&h100, 4, 8);
        (0..2000).for_each(|_| packer.arrives(comes, 1));
        let spot = |name, start| {
            let states = packer.kinds()[0].states();
            states.spot(numbered(&h100, name), start).unwrap()
        };
        let (second, first) = (spot("3g.40gb", 4), spot("4g.40gb", 0));
        assert!(packer.make(0, second) && packer.make(1, first));
        let one = named(&h100, "1g.10gb");
        let mut cost = |gpu| packer.choose_among(&one, &[gpu]).unwrap().cost;
        // The first half is free, the second half is free.
        (cost(0), cost(1))
    };
    let (first, second) = costs(&four);
    assert!(second * 10 < first, "{first} {second}");
    let (first, second) = costs(&three);
    assert!(first < second * 2 && second < first * 2, "{first} {second}");
}

#[test]
fn too_many_kinds_are_refused_and_many_classes_are_not() {
    let error = Packer::new(vec![board("a30"); 9]).expect_err("nine kinds");
    assert!(error.to_string().contains("9 kinds"), "{error}");
    let rtx = board("rtx-pro-6000");
    let mut packer = Packer::new(vec![rtx.clone(), board("h100-80gb")]).unwrap();
    packer.add(0, 0);
    packer.add(0, 1);
    for first in 0..rtx.profiles().len() as u8 {
        for second in 0..7 {
            let mut class = [NO_PROFILE; KINDS];
            (class[0], class[1]) = (first, second);
            packer.arrives(&class, 1);
            assert!(packer.choose(&class).is_some());
        }
    }
}

#[test]
fn a_decision_allocates_nothing() {
    let h100 = board("h100-80gb");
    let mut packer = pool(&h100, 125, 8);
    let mut random = Random(9);
    let mut made: Vec<(Gpu, usize)> = Vec::with_capacity(8_000);
    for round in 0..20_000 {
        let class = class(random.index(7));
        let before = counting::allocations();
        packer.arrives(&class, 1);
        let place = packer.choose(&class);
        if let Some(place) = place {
            packer.make(place.gpu, place.spot);
            made.push((place.gpu, place.spot));
        }
        if made.len() > 2_500 || place.is_none() {
            let (gpu, spot) = made.swap_remove(random.index(made.len()));
            packer.destroy(gpu, spot);
        }
        assert_eq!(counting::allocations(), before, "round {round}");
    }
}
