//! What was cut out of GPUs is found again in its bits, and bits that hold something else are refused.

use gpuos_model::gpu_index::PoolGpu;
use gpuos_model::mig::{Geometry, MigPlacement, NONE, State, States};
use gpuos_placement::mig::tile::tile_beside;
use gpuos_placement::mig::{JobInstance, Serves, tile};

use crate::mig_support::{board, boards, numbered, profile};
use crate::random::Random;

/// The numbers of GPUs in 64 bits, and their states while instances are cut at random.
struct Node<'a> {
    geometry: &'a Geometry,
    states: &'a States,
    gpus: Vec<State>,
}

impl<'a> Node<'a> {
    fn idle(geometry: &'a Geometry, states: &'a States) -> Node<'a> {
        let gpus = 64 / usize::from(geometry.slices());
        Node {
            geometry,
            states,
            gpus: vec![0; gpus],
        }
    }

    /// Cuts one instance at random, if it fits where it falls.
    fn cut(&mut self, random: &mut Random) -> Option<JobInstance> {
        let gpu = random.index(self.gpus.len());
        let number = random.index(self.states.spots().len());
        let spot = self.states.spots()[number];
        let next = self.states.make(self.gpus[gpu], number);
        (next != NONE).then(|| {
            self.gpus[gpu] = next;
            let size = self.geometry.profiles()[usize::from(spot.profile)].size;
            JobInstance {
                gpu: PoolGpu::new(gpu).unwrap(),
                profile: usize::from(spot.profile),
                placement: MigPlacement {
                    start: spot.start,
                    size,
                },
            }
        })
    }
}

fn bits_of(geometry: &Geometry, cuts: &[JobInstance]) -> u64 {
    cuts.iter().fold(0, |bits, cut| bits | cut.bits(geometry))
}

fn serves_of(cuts: &[JobInstance]) -> Serves {
    let mut serves = Serves::new();
    for cut in cuts {
        match serves.iter_mut().find(|(known, _)| *known == cut.profile) {
            Some((_, count)) => *count += 1,
            None => serves.push((cut.profile, 1)),
        }
    }
    serves.sort_unstable();
    serves
}

/// The cuts are legal beside others, cover the bits once and are what was asked for.
fn holds(
    geometry: &Geometry,
    states: &States,
    bits: u64,
    serves: &Serves,
    (cuts, beside): (&[JobInstance], &[JobInstance]),
) {
    let mut seen = 0u64;
    for cut in cuts {
        let own = cut.bits(geometry);
        assert_eq!(own.count_ones(), u32::from(cut.placement.size));
        assert_eq!(seen & own, 0, "two instances share a slice");
        seen |= own;
    }
    assert_eq!(seen, bits);
    assert!(
        cuts.is_sorted_by_key(|cut| cut.bits(geometry).trailing_zeros()),
        "by ascending bit"
    );
    let mut sorted = serves.clone();
    sorted.sort_unstable();
    assert_eq!(serves_of(cuts), sorted);
    for gpu in 0..64 {
        let own = beside
            .iter()
            .chain(cuts)
            .filter(|cut| cut.gpu.index() == gpu);
        let spots: Option<Vec<usize>> = own
            .map(|cut| states.spot(cut.profile, cut.placement.start))
            .collect();
        let state = states.of(spots.expect("placements that the profile has"));
        assert_ne!(state, NONE, "the driver would refuse");
    }
}

#[test]
fn what_was_cut_is_found_again() {
    for (name, geometry) in boards() {
        let states = States::new(&geometry).unwrap();
        let mut random = Random(7);
        let mut divided = 0;
        for _ in 0..400 {
            let mut node = Node::idle(&geometry, &states);
            let tries = 1 + random.index(40);
            let all: Vec<JobInstance> = (0..tries).filter_map(|_| node.cut(&mut random)).collect();
            // Some are of other jobs.
            let (beside, own): (Vec<JobInstance>, Vec<JobInstance>) =
                all.iter().partition(|_| random.below(3) == 0);
            let (bits, serves) = (bits_of(&geometry, &own), serves_of(&own));
            divided += own.len();
            let found = tile_beside(&geometry, bits, &serves, &beside)
                .unwrap_or_else(|| panic!("{name}: {own:?} beside {beside:?}"));
            holds(&geometry, &states, bits, &serves, (&found, &beside));
            let alone = tile(&geometry, bits, &serves).expect("it tiles alone too");
            holds(&geometry, &states, bits, &serves, (&alone, &[]));
            assert_eq!(
                tile(&geometry, bits, &serves),
                Some(alone),
                "the same again"
            );
        }
        assert!(divided > 1000, "{name}: {divided}");
    }
}

/// All ways to put the instances anywhere, without regard to order: slow and plain.
fn brute(
    geometry: &Geometry,
    states: &States,
    bits: u64,
    left: &mut Vec<usize>,
    on: &mut [State],
) -> bool {
    let Some(profile) = left.pop() else {
        return bits == 0;
    };
    let size = usize::from(geometry.slices());
    let mut found = false;
    for gpu in 0..on.len() {
        for spot in states.spots_of(profile) {
            let placement = u64::from(states.spots()[spot].placement) << (gpu * size);
            let next = states.make(on[gpu], spot);
            if next != NONE && placement & !bits == 0 {
                let before = std::mem::replace(&mut on[gpu], next);
                found = found || brute(geometry, states, bits & !placement, left, on);
                on[gpu] = before;
            }
        }
    }
    left.push(profile);
    found
}

#[test]
fn bits_of_anything_else_are_refused_as_brute_force_does() {
    let mut random = Random(11);
    let (mut yes, mut no) = (0, 0);
    for name in ["a30", "h100-80gb", "rtx-pro-6000"] {
        let geometry = board(name);
        let states = States::new(&geometry).unwrap();
        for _ in 0..600 {
            let mut node = Node::idle(&geometry, &states);
            node.gpus.truncate(2);
            let cuts: Vec<JobInstance> = (0..6).filter_map(|_| node.cut(&mut random)).collect();
            let mut bits = bits_of(&geometry, &cuts);
            let mut wanted: Vec<usize> = cuts.iter().map(|cut| cut.profile).collect();
            // Another profile of the same size, or the slices moved: often no legal placements.
            for profile in &mut wanted {
                let size = |number: usize| geometry.profiles()[number].size;
                let other = random.index(geometry.profiles().len());
                if size(other) == size(*profile) && random.below(2) == 0 {
                    *profile = other;
                }
            }
            if random.below(2) == 0 {
                let reach = 2 * u32::from(geometry.slices());
                let step = 1 + random.below(3) as u32;
                bits = (bits << step | bits >> (reach - step)) & ((1 << reach) - 1);
            }
            let mut serves: Serves = Vec::new();
            for &profile in &wanted {
                match serves.iter_mut().find(|(known, _)| *known == profile) {
                    Some((_, count)) => *count += 1,
                    None => serves.push((profile, 1)),
                }
            }
            let possible = brute(&geometry, &states, bits, &mut wanted.clone(), &mut [0; 2]);
            match tile(&geometry, bits, &serves) {
                Some(cuts) => {
                    yes += 1;
                    assert!(possible);
                    holds(&geometry, &states, bits, &serves, (&cuts, &[]));
                }
                None => {
                    no += 1;
                    assert!(!possible, "{name}: {bits:b} {serves:?}");
                }
            }
        }
    }
    assert!(yes > 300 && no > 300, "{yes} {no}");
}

#[test]
fn placements_decide_which_instance_stands_where() {
    let h100 = board("h100-80gb");
    let [one, two, three, four] =
        ["1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"].map(|name| numbered(&h100, name));
    let starts = |cuts: Option<Vec<JobInstance>>| {
        let cuts = cuts.expect("it tiles");
        let each = cuts
            .iter()
            .map(|cut| (cut.profile, cut.gpu.index(), cut.placement.start));
        each.collect::<Vec<_>>()
    };
    // 4g.40gb has only the first half, 2g.20gb not the last quarter.
    let found = starts(tile(&h100, 0xff, &vec![(three, 1), (four, 1)]));
    assert_eq!(found, [(four, 0, 0), (three, 0, 4)]);
    let found = starts(tile(&h100, 0xf000, &vec![(one, 1), (two, 1)]));
    assert_eq!(found, [(two, 1, 4), (one, 1, 6)]);
    let none = [
        (0xf0, vec![(four, 1)]),
        (0x3c, vec![(three, 1)]),
        (0xf, vec![(three, 2)]),
        (0xff, vec![(three, 1)]),
        (0, vec![(three, 1)]),
        (1, vec![(99, 1)]),
    ];
    for (bits, serves) in none {
        assert_eq!(tile(&h100, bits, &serves), None, "{bits:x} {serves:?}");
    }
    assert_eq!(tile(&h100, 0, &Vec::new()), Some(Vec::new()));
}

/// The media extension is one for each GPU: whose it is decides on which GPU the other gets it.
#[test]
fn what_others_use_is_not_given_twice() {
    let h100 = board("h100-80gb");
    let [plain, media] = ["1g.10gb", "1g.10gb+me"].map(|name| numbered(&h100, name));
    let serves = vec![(plain, 1), (media, 1)];
    let other = |gpu| JobInstance {
        gpu: PoolGpu::new(gpu).unwrap(),
        profile: media,
        placement: MigPlacement { start: 6, size: 1 },
    };
    let on = |beside: &[JobInstance]| {
        let cuts = tile_beside(&h100, 0x101, &serves, beside)?;
        cuts.iter()
            .find(|cut| cut.profile == media)
            .map(|cut| cut.gpu.index())
    };
    assert_eq!(on(&[other(0)]), Some(1));
    assert_eq!(on(&[other(1)]), Some(0));
    assert_eq!(on(&[other(0), other(1)]), None);
}

/// Many GPUs with many ways each, and none that ends well: it must not take for ever.
#[test]
fn a_node_full_of_choices_is_told_soon() {
    let names = ["1g.1gb", "1g.2gb", "1g.3gb", "1g.4gb"];
    let all: [u8; 8] = std::array::from_fn(|at| at as u8);
    let mut profiles: Vec<_> = (0..4)
        .map(|at| profile(at, names[at as usize], [1, 1], 8, &all))
        .collect();
    profiles.push(profile(9, "1g.9gb", [1, 2], 1, &[0]));
    profiles.push(profile(10, "8g.8gb", [8, 8], 1, &[0]));
    let geometry = Geometry::new(profiles).unwrap();
    let serves = vec![(4, 9), (0, 12), (1, 12), (2, 12), (3, 10)];
    assert_eq!(tile(&geometry, u64::MAX, &serves), None);
    let serves = vec![(4, 8), (0, 12), (1, 12), (2, 12), (3, 12)];
    assert_eq!(tile(&geometry, u64::MAX, &serves).unwrap().len(), 56);
}
