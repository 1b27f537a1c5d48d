//! How long the packer takes for one slice on 10,000 GPUs, and from 1,000 to 100,000: p50, p99 and
//! p99.9 of a request that arrives, is placed and made, with the allocations counted.
//!
//! `cargo bench -p gpuos_placement --bench mig`. Figures are of the machine that it runs on; nothing is
//! asserted about them but that no decision allocates. A decision during which the kernel gave the
//! processor to another program is not counted.

#[path = "../tests/counting/mod.rs"]
mod counting;
mod interruptions;
#[path = "../../gpuos_model/tests/mig_support/mod.rs"]
mod mig_support;
#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpuos_placement::mig::{Class, Gpu, KINDS, NO_PROFILE, Packer};
use interruptions::interruptions;
use mig_support::board;
use random::Random;

/// Slices of random profiles come and go on a pool that is that full, in percent.
fn measure(boards: &[&str], gpus: u32, full: u64, runs: usize) {
    let kinds: Vec<_> = boards.iter().map(|name| board(name)).collect();
    let mut packer = Packer::new(kinds.clone()).expect("the boards are sound");
    for gpu in 0..gpus {
        packer.add(gpu / 8, (gpu / 8) as usize % kinds.len());
    }
    let mut random = Random(11);
    let mut made: Vec<(Gpu, usize)> = Vec::with_capacity(gpus as usize * 8);
    let mut times = Vec::with_capacity(runs);
    let mut allocations = 0;
    while times.len() < runs {
        let mut class: Class = [NO_PROFILE; KINDS];
        let kind = random.index(kinds.len());
        class[kind] = random.index(kinds[kind].profiles().len()) as u8;
        let [idle, all] = packer.idle();
        let busy = (all - idle) * 100 >= all * full;
        let quiet = interruptions();
        let before = counting::allocations();
        let start = Instant::now();
        packer.arrives(&class, 1);
        let place = black_box(packer.choose(black_box(&class)));
        if let Some(place) = place {
            packer.make(place.gpu, place.spot);
        }
        let time = start.elapsed();
        allocations += counting::allocations() - before;
        if busy && interruptions() == quiet {
            times.push(time);
        }
        made.extend(place.map(|place| (place.gpu, place.spot)));
        while busy && !made.is_empty() && packer.idle()[0] * 100 < all * (100 - full) {
            let (gpu, spot) = made.swap_remove(random.index(made.len()));
            packer.destroy(gpu, spot);
        }
    }
    times.sort_unstable();
    let us = |per_mille: usize| {
        let at = (times.len() * per_mille / 1000).min(times.len() - 1);
        Duration::as_nanos(&times[at]) as f64 / 1000.0
    };
    println!(
        "{gpus:>7} GPUs, {:<24} {full:>3} % full: p50 {:6.2} us, p99 {:6.2} us, p99.9 {:6.2} us, {allocations} allocations",
        boards.join(" and "),
        us(500),
        us(990),
        us(999),
    );
    assert_eq!(allocations, 0, "a decision allocated");
}

fn main() {
    for full in [0, 50, 80, 90] {
        measure(&["h100-80gb"], 10_000, full, 20_000);
    }
    measure(&["a30"], 10_000, 80, 20_000);
    measure(&["rtx-pro-6000"], 10_000, 80, 20_000);
    measure(&["h100-80gb", "rtx-pro-6000"], 10_000, 80, 20_000);
    for gpus in [1_000, 100_000] {
        measure(&["h100-80gb"], gpus, 80, 20_000);
    }
}
