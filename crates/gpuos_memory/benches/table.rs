//! Time of an allocation in a table that holds a petabyte: a million ranges with 16 million extents of 64 MiB.
//!
//! `cargo bench -p gpuos_memory --bench table`; exit code 1 where a goal is missed.

use std::hint::black_box;
use std::time::Instant;

use gpuos_memory::table::{BLOCK_MIB, Range, Table};
use gpuos_model::rng::Rng;

const RANGES: usize = 1_000_000;
/// Blocks of a range: 1 GiB.
const BLOCKS: u64 = 1024 / BLOCK_MIB;
const TIMES: usize = 1_000_000;
/// Nanoseconds that the middle allocation, and one of a hundred, may take.
const GOALS: [(&str, f64, u128); 2] = [("p50", 0.5, 1000), ("p99", 0.99, 10_000)];

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let mut table = Table::new(
        RANGES as u64 / 2 * BLOCKS,
        RANGES as u64 / 2 * BLOCKS + (1 << 20),
    );
    let allocate = |table: &mut Table, blocks| table.allocate(blocks).expect("room");
    let mut ranges: Vec<Range> = (0..RANGES).map(|_| allocate(&mut table, BLOCKS)).collect();
    let extents: usize = ranges.iter().map(|range| range.extents.len()).sum();
    println!(
        "{RANGES} ranges, {extents} extents, {} GiB",
        (RANGES as u64 * BLOCKS * BLOCK_MIB) >> 10
    );
    let mut rng = Rng::new(1);
    let mut missed = 0;
    for (name, blocks) in [("2 MiB", 1), ("64 MiB", 32), ("1 GiB", BLOCKS)] {
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let at = rng.below(RANGES as u64) as usize;
            table.free(&ranges[at]).expect("it is there");
            let begin = Instant::now();
            let range = black_box(table.allocate(blocks));
            times.push(begin.elapsed().as_nanos());
            table.free(&range.expect("room")).expect("it is there");
            ranges[at] = allocate(&mut table, BLOCKS);
        }
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize];
        println!("{name}: p99.9 {} ns", at(0.999));
        for (which, share, goal) in GOALS {
            let reached = at(share) <= goal;
            let word = if reached { "reached" } else { "missed" };
            println!("{name}: {which} {} ns, goal {goal} ns: {word}", at(share));
            missed += i32::from(!reached);
        }
    }
    std::process::exit(missed.min(1));
}
