//! Proposals of what would have to go, against all sets of instances looked at one by one.

mod mig_support;
mod random;

use gpuos_core::mig::repack::{Instance, Proposal, make_room};
use gpuos_core::mig::{NONE, States};
use mig_support::{board, boards, numbered};
use random::Random;

/// The least cost of a set whose windows and limits give way, built up from what stays.
fn least(states: &States, gpu: &[Instance], profile: usize) -> Option<u64> {
    let sets = 0u32..1 << gpu.len();
    let fitting = sets.filter_map(|stays| {
        let kept = gpu
            .iter()
            .enumerate()
            .filter(|(at, _)| stays >> at & 1 == 1);
        let state = states.of(kept.map(|(_, instance)| instance.spot));
        let free = states
            .spots_of(profile)
            .any(|spot| states.make(state, spot) != NONE);
        let gone = gpu
            .iter()
            .enumerate()
            .filter(|(at, _)| stays >> at & 1 == 0);
        let costs: Option<Vec<u64>> = gone.map(|(_, instance)| instance.cost).collect();
        free.then_some(costs?.iter().sum())
    });
    fitting.min()
}

#[test]
fn the_proposal_is_the_cheapest_there_is() {
    let mut random = Random(3);
    for (name, geometry) in boards() {
        let states = States::new(&geometry).unwrap();
        for round in 0..120 {
            let gpus: Vec<Vec<Instance>> = (0..3)
                .map(|_| {
                    let (mut state, mut on) = (0, Vec::new());
                    for _ in 0..30 {
                        let spot = random.index(states.spots().len());
                        let next = states.make(state, spot);
                        if next != NONE {
                            state = next;
                            let cost = (random.below(6) > 0).then(|| random.below(20));
                            on.push(Instance { spot, cost });
                        }
                    }
                    on
                })
                .collect();
            let profile = random.index(geometry.profiles().len());
            let found = make_room(&states, &gpus, profile);
            let costs = gpus.iter().filter_map(|gpu| least(&states, gpu, profile));
            assert_eq!(
                found.as_ref().map(|f| f.cost),
                costs.min(),
                "{name} {round}"
            );
            if let Some(Proposal {
                gpu, goes, spot, ..
            }) = found
            {
                let kept = gpus[gpu]
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !goes.contains(at));
                let left = states.of(kept.map(|(_, instance)| instance.spot));
                assert_ne!(states.make(left, spot), NONE, "{name} {round}");
            }
        }
    }
}

#[test]
fn one_small_slice_in_the_way_goes_and_not_three() {
    let h100 = board("h100-80gb");
    let states = States::new(&h100).unwrap();
    let at = |name: &str, start, cost| Instance {
        spot: states.spot(numbered(&h100, name), start).unwrap(),
        cost,
    };
    let gpus = [
        vec![at("4g.40gb", 0, Some(9)), at("1g.10gb", 5, Some(4))],
        vec![at("1g.10gb", 0, Some(1)), at("3g.40gb", 4, None)],
        vec![at("1g.10gb+me", 6, Some(2)), at("3g.40gb", 0, Some(50))],
    ];
    let room = |name: &str| make_room(&states, &gpus, numbered(&h100, name)).unwrap();
    let four = room("4g.40gb");
    assert_eq!((four.gpu, four.goes, four.cost), (1, vec![0], 1));
    // The media extension is free on other GPUs; the whole GPU never where something must stay.
    assert_eq!(room("1g.10gb+me").cost, 0);
    assert_eq!((room("7g.80gb").gpu, room("7g.80gb").cost), (0, 13));
    assert_eq!(
        make_room(&states, &gpus[1..2], numbered(&h100, "7g.80gb")),
        None
    );
    // Records that cannot be are left aside.
    let odd = vec![vec![at("4g.40gb", 0, Some(1)), at("3g.40gb", 0, Some(1))]];
    assert_eq!(make_room(&states, &odd, numbered(&h100, "1g.10gb")), None);
    assert_eq!(make_room(&states, &[], 0), None);
}
