//! Geometries and the states of GPUs, against brute force over all sets of instances.

mod mig_support;

use std::collections::BTreeSet;

use gpuos_model::mig::{Geometry, NONE, States};
use mig_support::{board, boards, profile};

/// What the driver would refuse, told without the tables: placements, limits, engines, compute slices.
fn legal(geometry: &Geometry, instances: &[(usize, u8)]) -> bool {
    let profiles = geometry.profiles();
    let apart = instances.iter().enumerate().all(|(at, &(a, from))| {
        let end = from + profiles[a].size;
        instances[..at]
            .iter()
            .all(|&(b, other)| end <= other || other + profiles[b].size <= from)
    });
    let counts = (0..profiles.len()).all(|number| {
        let same = instances.iter().filter(|i| i.0 == number).count();
        same <= usize::from(profiles[number].most)
    });
    let engines = (0..4).all(|engine| {
        let used: u32 = instances
            .iter()
            .map(|i| u32::from(profiles[i.0].engines[engine]))
            .sum();
        let limit = profiles
            .iter()
            .map(|p| u32::from(p.engines[engine]) * u32::from(p.most));
        used <= limit.max().unwrap_or(0)
    });
    let compute: u32 = instances
        .iter()
        .map(|i| u32::from(profiles[i.0].compute))
        .sum();
    apart && counts && engines && compute <= u32::from(geometry.compute())
}

/// Walks all sets of instances; gives how many there are and which states they come to.
fn walk(geometry: &Geometry, states: &States) -> (usize, BTreeSet<u16>) {
    let mut seen = BTreeSet::new();
    let mut open: Vec<Vec<(usize, u8)>> = vec![Vec::new()];
    let mut sets = 0;
    while let Some(instances) = open.pop() {
        sets += 1;
        let spots = instances
            .iter()
            .map(|&(p, start)| states.spot(p, start).unwrap());
        let state = states.of(spots);
        assert_ne!(state, NONE, "{instances:?}");
        seen.insert(state);
        let mask = instances.iter().fold(0, |mask, &(p, start)| {
            mask | geometry.profiles()[p].placement(start)
        });
        assert_eq!(states.mask(state), mask);
        let last = instances
            .last()
            .map_or(0, |&(p, s)| states.spot(p, s).unwrap() + 1);
        for (number, spot) in states.spots().iter().enumerate() {
            let mut more = instances.clone();
            more.push((usize::from(spot.profile), spot.start));
            let next = states.make(state, number);
            assert_eq!(next != NONE, legal(geometry, &more), "{more:?}");
            if next != NONE {
                assert_eq!(states.destroy(next, number), state);
                assert!(next > state);
                // Each set once: spots in ascending order.
                if number >= last {
                    open.push(more);
                }
            }
        }
    }
    (sets, seen)
}

#[test]
fn tables_say_what_the_driver_would() {
    for (name, geometry) in boards() {
        let states = States::new(&geometry).expect(&name);
        let (sets, seen) = walk(&geometry, &states);
        assert_eq!(seen.len(), states.count(), "{name}: {sets} sets");
        assert!(states.count() < 1024, "{name}: {} states", states.count());
    }
}

#[test]
fn every_mask_of_slices_that_can_be_is_a_state() {
    let states = States::new(&board("h100-80gb")).unwrap();
    let masks: BTreeSet<u16> = (0..states.count()).map(|s| states.mask(s as u16)).collect();
    // Slice 7 is taken only together with 6, by 1g.20gb and 7g.80gb.
    let reachable = (0..256u16).filter(|mask| mask & 0b1100_0000 != 0b1000_0000);
    assert_eq!(masks, reachable.collect());
}

/// The most compute slices of instances from memory slice `from` on whose placements do not overlap.
fn largest(geometry: &Geometry, from: u8) -> u8 {
    let mut most = 0;
    for profile in geometry.profiles() {
        for &start in profile.starts.iter().filter(|&&start| start >= from) {
            most = most.max(profile.compute + largest(geometry, start + profile.size));
        }
    }
    most
}

/// On the boards known the placements alone keep to the compute slices; where they do not, the limit
/// holds besides.
#[test]
fn compute_slices_are_never_exceeded() {
    for (name, geometry) in boards() {
        assert_eq!(largest(&geometry, 0), geometry.compute(), "{name}");
    }
    let odd = Geometry::new(vec![
        profile(1, "3g.10gb", [3, 2], 2, &[0, 2, 4]),
        profile(2, "7g.30gb", [7, 6], 1, &[0]),
    ])
    .unwrap();
    let states = States::new(&odd).unwrap();
    let two = states.of([0, 1]);
    assert_eq!(
        states.fits(two, 0).count(),
        0,
        "nine of seven compute slices"
    );
}

#[test]
fn one_media_extension_on_a_gpu() {
    for (name, first, second, third) in [
        ("h100-80gb", "1g.10gb+me", "1g.10gb+me", "1g.10gb"),
        ("a30", "1g.6gb+me", "2g.12gb+me", "2g.12gb"),
        ("rtx-pro-6000", "1g.24gb+me.all", "1g.24gb", "1g.24gb-me"),
    ] {
        let geometry = board(name);
        let states = States::new(&geometry).unwrap();
        let of = |profile: &str| geometry.by_name(profile).unwrap();
        let (_, state) = states.fits(0, of(first)).next().expect("the GPU is idle");
        assert_eq!(states.fits(state, of(second)).count(), 0, "{name}");
        assert!(states.fits(state, of(third)).count() > 0, "{name}");
    }
}

#[test]
fn what_a_driver_cannot_mean_is_refused() {
    let good = || profile(19, "1g.10gb", [1, 1], 7, &[0, 1, 2, 3, 4, 5, 6]);
    let with = |change: fn(&mut gpuos_model::mig::Profile)| {
        let mut profile = good();
        change(&mut profile);
        vec![profile]
    };
    for (profiles, word) in [
        (vec![], "no MIG profile"),
        (vec![good(); 33], "more than 32"),
        (vec![good(), good()], "same id"),
        (with(|p| p.name = "MIG".into()), "name"),
        (with(|p| p.name = "1g.10gb+".into()), "name"),
        (with(|p| p.name = "x".repeat(400)), "name"),
        (with(|p| p.size = 0), "0 memory slices"),
        (with(|p| p.size = 255), "memory slice 261"),
        (with(|p| p.compute = 0), "0 compute"),
        (with(|p| p.memory_mib = 0), "0 MiB"),
        (with(|p| p.starts = vec![]), "missing"),
        (with(|p| p.starts = vec![2, 1]), "ascending"),
        (with(|p| p.starts = vec![1, 1]), "ascending"),
        (with(|p| p.starts = vec![255]), "memory slice 256"),
        (with(|p| p.most = 0), "0 instances"),
        (with(|p| p.most = 8), "8 instances"),
    ] {
        let error = Geometry::new(profiles).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let wide: Vec<u8> = (0..16).collect();
    let many = Geometry::new(vec![
        profile(1, "1g.1gb", [1, 1], 16, &wide),
        profile(2, "16g.16gb", [16, 16], 1, &[0]),
    ])
    .unwrap();
    let Err(error) = States::new(&many) else {
        panic!("there are too many");
    };
    assert!(error.to_string().contains("16384 ways"), "{error}");
}

#[test]
fn a_geometry_goes_over_the_wire_and_is_checked_there() {
    let geometry = board("h100-80gb");
    let text = serde_json::to_string(&geometry).unwrap();
    assert_eq!(serde_json::from_str::<Geometry>(&text).unwrap(), geometry);
    let broken = text.replace("\"size\":8", "\"size\":80");
    let error = serde_json::from_str::<Geometry>(&broken)
        .expect_err("80 slices")
        .to_string();
    assert!(error.contains("7g.80gb"), "{error}");
    assert_eq!((geometry.slices(), geometry.compute()), (8, 7));
    assert_eq!(geometry.by_name("MIG 3G.40GB"), geometry.by_id(9));
}
