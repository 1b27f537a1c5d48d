//! gpuos's policy beside the others.

use gpuos_memory::bound;
use gpuos_memory::patterns::{PATTERNS, Pattern};
use gpuos_memory::policy::named;
use gpuos_memory::replay::replay;
use gpuos_memory::trace::Trace;
use gpuos_model::rng::Rng;

fn fetched(trace: &Trace, capacity: usize, name: &str) -> f64 {
    let mut policy = named(name, capacity).expect("a policy");
    let moved = replay(trace, capacity, policy.as_mut());
    moved.expect("it keeps the rules").fetched as f64
}

/// With room for three quarters of what the program has.
fn room(trace: &Trace) -> usize {
    trace.footprint() * 3 / 4
}

#[test]
fn each_pattern_fetches_less_than_with_lru_and_five_come_close_to_the_bound() {
    let mut close = Vec::new();
    for pattern in &PATTERNS {
        let trace = pattern.trace(1);
        let room = room(&trace);
        let ours = fetched(&trace, room, "gpuos");
        let lru = fetched(&trace, room, "lru");
        assert!(ours < lru, "{}: {ours} and {lru}", pattern.name);
        if ours <= 1.10 * bound::fetches(&trace, room) as f64 {
            close.push(pattern.name);
        }
    }
    assert_eq!(close, ["training", "kv-cache", "scan", "loop", "stencil"]);
}

/// What is drawn at random, each time anew, cannot be foreseen: no policy that does not know the future fetches less on average than
/// one that holds the most frequent extents all the time.
#[test]
fn what_is_at_random_comes_close_to_holding_the_most_frequent() {
    let trace = Pattern::named("zipf").expect("a pattern").trace(1);
    let room = room(&trace);
    let mut uses = std::collections::HashMap::new();
    for touch in &trace.touches {
        *uses.entry(touch.extent()).or_insert(0u64) += 1;
    }
    let mut uses: Vec<u64> = uses.into_values().collect();
    uses.sort_unstable_by(|one, other| other.cmp(one));
    let best: u64 = uses[room..].iter().sum();
    let ours = fetched(&trace, room, "gpuos");
    assert!(ours < 1.3 * best as f64, "{ours} and {best}");
}

/// Programs that do one thing after the other, and where nothing that was learned before holds.
#[test]
fn it_is_never_much_worse_than_lru() {
    let mut rng = Rng::new(7);
    for round in 0..8 {
        let mut trace = Trace {
            extent_mib: 16,
            touches: Vec::new(),
        };
        for _ in 0..3 {
            let pattern = &PATTERNS[rng.below(PATTERNS.len() as u64) as usize];
            let part = pattern.trace(rng.bits()).touches;
            let from = rng.below(part.len() as u64 / 2) as usize;
            let length = 2000 + rng.below(8000) as usize;
            trace
                .touches
                .extend(part.into_iter().skip(from).take(length));
        }
        let room = 1 + trace.footprint() * (10 + rng.below(80) as usize) / 100;
        let (ours, lru) = (fetched(&trace, room, "gpuos"), fetched(&trace, room, "lru"));
        assert!(
            ours <= 1.05 * lru + 100.0,
            "round {round}: {ours} and {lru}"
        );
    }
}
