//! A link under a storm, in a simulation that moves bytes at a set rate, one move after the other.

use std::collections::BTreeSet;

use gpuos_memory::link::{Bounds, Link, Refused, Why, Wish};
use gpuos_model::rng::Rng;

const MIB: u64 = 1 << 20;
/// Of the link: 25 GiB a second.
const BYTES_PER_MICROSECOND: u64 = 26_844;
const MICROSECOND: u64 = 1000;
const EXTENT: u64 = 16 * MIB;

const BOUNDS: Bounds = Bounds {
    ahead_rate: 8 << 30,
    at_once: 2,
    ahead_at_once: 1,
    waiting: 256,
    stays: 1_000_000_000,
};

/// Lets a program wait for an extent each so often, and answers how long it waited each time, in nanoseconds, and the bytes that
/// were moved ahead.
fn waits(storm: usize, times: usize) -> (Vec<u64>, u64) {
    let mut rng = Rng::new(5);
    let mut link = Link::new(BOUNDS);
    let (mut now, mut free_at, mut ahead) = (0, 0, 0);
    let mut waiting: Option<(u64, u64)> = None;
    let mut ends: Vec<(u64, u64, Why)> = Vec::new();
    let mut waits = Vec::new();
    let mut next_demand = 3_000_000;
    let mut number = 1 << 32;
    for wish in 0..storm as u64 {
        let wish = Wish {
            what: wish,
            bytes: EXTENT,
            why: Why::Ahead,
        };
        let _ = link.wish(now, wish);
    }
    while waits.len() < times {
        now += 10 * MICROSECOND;
        ends.sort_unstable_by_key(|(at, _, _)| *at);
        while ends.first().is_some_and(|(at, _, _)| *at <= now) {
            let (at, what, why) = ends.remove(0);
            link.ended(now, what);
            match why {
                Why::Demand => {
                    let (since, _) = waiting.take().expect("it waits");
                    waits.push(at - since);
                    next_demand = now + 2_000_000 + rng.below(4_000_000);
                }
                Why::Ahead => {
                    ahead += EXTENT;
                    // The storm does not end.
                    number += 1;
                    let wish = Wish {
                        what: number,
                        bytes: EXTENT,
                        why: Why::Ahead,
                    };
                    let _ = link.wish(now, wish);
                }
            }
        }
        if waiting.is_none() && now >= next_demand {
            number += 1;
            waiting = Some((now, number));
            let wish = Wish {
                what: number,
                bytes: EXTENT,
                why: Why::Demand,
            };
            link.wish(now, wish).expect("demand is taken");
        }
        while let Some(wish) = link.begin(now) {
            free_at = free_at.max(now) + wish.bytes * MICROSECOND / BYTES_PER_MICROSECOND;
            ends.push((free_at, wish.what, wish.why));
        }
    }
    waits.sort_unstable();
    let rate = u128::from(ahead) * 1_000_000_000 / u128::from(now);
    (waits, rate as u64)
}

#[test]
fn a_storm_of_a_thousand_leaves_who_waits_within_twice_of_idle() {
    let (idle, none) = waits(0, 2000);
    let (storm, ahead) = waits(1000, 2000);
    let p99 = |waits: &[u64]| waits[waits.len() * 99 / 100];
    assert!(
        p99(&storm) <= 2 * p99(&idle) + 10 * MICROSECOND,
        "{} and {}",
        p99(&storm),
        p99(&idle)
    );
    assert_eq!(none, 0);
    // The storm has its budget and no more.
    assert!((6 << 30..(8 << 30) + (8 << 27)).contains(&ahead), "{ahead}");
}

#[test]
fn no_more_at_once_than_the_link_takes_and_each_wish_once() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let bounds = Bounds {
            ahead_rate: rng.below(1 << 33),
            at_once: 1 + rng.below(4) as usize,
            ahead_at_once: rng.below(4) as usize,
            waiting: rng.below(8) as usize,
            stays: rng.below(100_000_000),
        };
        let mut link = Link::new(bounds);
        let (mut now, mut moving) = (0, Vec::<(u64, Why)>::new());
        let mut waiting: BTreeSet<u64> = BTreeSet::new();
        for _ in 0..500 {
            now += rng.below(2_000_000);
            let what = rng.below(40);
            match rng.below(4) {
                0 | 1 => {
                    let why = if rng.below(3) == 0 {
                        Why::Demand
                    } else {
                        Why::Ahead
                    };
                    let known = waiting.contains(&what) || moving.iter().any(|it| it.0 == what);
                    let wish = Wish {
                        what,
                        bytes: EXTENT,
                        why,
                    };
                    match link.wish(now, wish) {
                        Ok(()) => {
                            assert!(!known || why == Why::Demand);
                            waiting.insert(what);
                        }
                        Err(Refused::Known) => assert!(known),
                        Err(_) => assert!(why == Why::Ahead && !known),
                    }
                }
                2 => assert_eq!(link.give_up(what), waiting.remove(&what)),
                _ => {
                    if let Some((what, _)) = moving.pop() {
                        link.ended(now, what);
                    }
                }
            }
            while let Some(wish) = link.begin(now) {
                assert!(
                    waiting.remove(&wish.what),
                    "seed {seed}: begun twice, or never wished"
                );
                moving.push((wish.what, wish.why));
            }
            assert!(moving.len() <= bounds.at_once);
            let ahead = moving.iter().filter(|it| it.1 == Why::Ahead).count();
            assert!(ahead <= bounds.ahead_at_once);
        }
    }
}

#[test]
fn what_was_moved_stays_for_a_while_unless_somebody_waits_for_it() {
    let mut link = Link::new(BOUNDS);
    let wish = |why| Wish {
        what: 1,
        bytes: EXTENT,
        why,
    };
    let second = 1_000_000_000;
    link.wish(second, wish(Why::Ahead))
        .expect("it is the first");
    assert_eq!(link.begin(second), Some(wish(Why::Ahead)));
    link.ended(second, 1);
    assert_eq!(link.wish(second + 5, wish(Why::Ahead)), Err(Refused::Stays));
    assert_eq!(link.wish(second + 5, wish(Why::Demand)), Ok(()));
    assert_eq!(link.begin(second + 5), Some(wish(Why::Demand)));
    link.ended(second + 5, 1);
    assert_eq!(link.wish(2 * second + 5, wish(Why::Ahead)), Ok(()));
}

#[test]
fn who_asks_again_when_told_gets_on() {
    let mut link = Link::new(Bounds {
        ahead_rate: MIB,
        ..BOUNDS
    });
    for what in 0..3 {
        link.wish(
            0,
            Wish {
                what,
                bytes: EXTENT,
                why: Why::Ahead,
            },
        )
        .expect("room");
    }
    let (mut now, mut begun) = (0, 0);
    for _ in 0..2000 {
        while let Some(wish) = link.begin(now) {
            link.ended(now, wish.what);
            begun += 1;
        }
        match link.again_at() {
            Some(at) => now = at.max(now + 1),
            None => now += 1_000_000,
        }
    }
    assert_eq!(begun, 3);
    // 16 MiB at 1 MiB a second, twice; the third overdraws.
    assert!((31_000_000_000..36_000_000_000).contains(&now), "{now}");
}
