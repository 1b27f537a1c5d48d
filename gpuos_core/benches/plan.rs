//! How long one plan takes on 1,250 nodes with 8 GPUs each (10,000 GPUs), idle and 90 % full.
//!
//! `cargo bench -p gpuos_core --bench plan`; the figures are of this machine and nothing is
//! asserted about them.

#[path = "../tests/plan_support/mod.rs"]
mod plan_support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpuos_core::gpuset::GpuSet;
use gpuos_core::model::NodeType;
use gpuos_core::plan::{GpuShape, NodeState, Planner, Request};
use plan_support::{idle, nvswitch, pairs, request, tree, wish};

const NODES: u32 = 1250;
const RUNS: usize = 2000;

/// Free GPUs at random: of ten nodes, `busy` are full, and of the others half are broken into.
fn fill(state: &mut [NodeState], busy: u64) {
    let mut random = 7u64;
    let mut next = || {
        random = random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        random >> 33
    };
    for state in state {
        let taken = match (next() % 10 < busy, busy > 0 && next() % 2 == 0) {
            (true, _) => 0xff,
            (false, true) => next() & 0xff,
            (false, false) => 0,
        };
        state.free = GpuSet(0xff & !taken);
    }
}

fn measure(what: &str, planner: &mut Planner, state: &[NodeState], request: &Request, skip: u32) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            black_box(planner.plan(black_box(state), black_box(request), skip)).ok();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let fits = planner.plan(state, request, skip).is_ok();
    let us = |part: usize| times[times.len() * part / 100].as_nanos() as f64 / 1000.0;
    println!(
        "{what:<44} p50 {:8.1} us  p99 {:8.1} us  {}",
        us(50),
        us(99),
        if fits { "placed" } else { "waits" }
    );
}

fn bench(name: &str, node_type: NodeType) {
    let start = Instant::now();
    let mut planner = Planner::new(tree(node_type, NODES, 16, 8));
    println!(
        "{name}: planner made in {:.1} ms",
        start.elapsed().as_secs_f64() * 1000.0
    );
    let mut state = idle(planner.cluster());
    for (load, busy) in [("idle", 0), ("90 % full", 9)] {
        fill(&mut state, busy);
        for (job, request) in [
            ("1 GPU", request(1, GpuShape::PerNode(1))),
            ("4 GPUs", request(1, GpuShape::PerNode(4))),
            ("8 nodes of 8", request(8, GpuShape::PerNode(8))),
            ("64 nodes of 8", request(64, GpuShape::PerNode(8))),
            ("64 nodes of 2", request(64, GpuShape::PerNode(2))),
            (
                "8 nodes of 8, leaf required",
                wish(request(8, GpuShape::PerNode(8)), "leaf", true),
            ),
            ("512 GPUs in all", {
                let mut total = request(1, GpuShape::Total(512));
                total.max_nodes = 128;
                total
            }),
        ] {
            measure(
                &format!("{name}, {load}, {job}"),
                &mut planner,
                &state,
                &request,
                0,
            );
        }
    }
}

fn main() {
    bench("nvswitch", nvswitch());
    bench("pairs", pairs());
}
