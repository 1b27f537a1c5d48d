//! What recording adds to a decision: the changes of some nodes, the question and its answer.
//!
//! `cargo bench -p gpuos_placement --bench record`; the figures are of this machine and nothing is
//! asserted about them.

#[path = "../tests/plan_support/mod.rs"]
mod plan_support;

use std::time::{Duration, Instant};

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{GpuShape, Planner};
use gpuos_placement::record::{By, Outcome, Purpose, Sizes, Writer};
use plan_support::{idle, nvswitch, request, tree};

const RUNS: u32 = 20_000;

fn bench(nodes: u32, gang: u32) {
    let cluster = tree(nvswitch(), nodes, 16, 8);
    let mut states = idle(&cluster);
    let mut planner = Planner::new(cluster.clone());
    let request = request(gang, GpuShape::PerNode(4));
    let choice = planner.plan(&states, &request, 0).unwrap().clone();
    let sizes = Sizes::new(4096, cluster.nodes.len());
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, cluster.nodes.len());
    writer.model(&mut memory, &cluster, None);
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|job| {
            // A job of that size ended meanwhile, and another one started.
            for node in 0..gang {
                let node = job.wrapping_mul(31).wrapping_add(node) as usize % states.len();
                states[node].free = GpuSet(u64::from(job % 256));
            }
            let start = Instant::now();
            writer.states(&mut memory, &states);
            let answer = Ok(&choice);
            writer.asked(
                &mut memory,
                job,
                Purpose::Start,
                (0, By::Order),
                &request,
                answer,
                1_800_000_000,
            );
            writer.ended(&mut memory, job, Outcome::Taken);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let us = |share: f64| times[(f64::from(RUNS - 1) * share) as usize].as_nanos() as f64 / 1000.0;
    println!(
        "{nodes:>6} nodes, job on {gang:>2}: p50 {:6.2} us  p99 {:6.2} us  p99.9 {:6.2} us  most {:6.2} us  ring {} KiB",
        us(0.5),
        us(0.99),
        us(0.999),
        us(1.0),
        sizes.total() >> 10
    );
}

fn main() {
    for nodes in [100, 1250, 12_500] {
        for gang in [1, 64] {
            bench(nodes, gang);
        }
    }
}
