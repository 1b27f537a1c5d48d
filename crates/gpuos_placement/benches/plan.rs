//! The main decisions under criterion: one node's new state and one decision after it, on nodes of 8 GPUs
//! in NVLink pairs, and a decision by a list of all states, as select_gpuos makes it.
//!
//! `cargo bench -p gpuos_placement --bench plan [-- NAME]`; criterion compares with the run before. What lies
//! at the edge (p99, cold, allocations) is told by the histograms of the bench `latency`. The figures
//! are of this machine and nothing is asserted about them.

mod load;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use gpuos_placement::plan::{GpuShape, NodeState, Planner};
use load::support::{pairs, request};
use load::{Fill, Random};

const FILLS: [(&str, Fill); 3] = [
    ("idle", Fill::Percent(0)),
    ("90 % full", Fill::Percent(90)),
    ("fragmented", Fill::Fragmented),
];

fn planner(nodes: u32, fill: Fill) -> Planner {
    let levels = if nodes > 10_000 { 3 } else { 2 };
    load::planner(load::levels(pairs(), nodes, levels), fill, &mut Random(7))
}

fn decisions(criterion: &mut Criterion) {
    for nodes in [1_250, 12_500] {
        let mut group = criterion.benchmark_group(format!("{} GPUs", nodes * 8));
        for (filled, fill) in FILLS {
            let mut planner = planner(nodes, fill);
            for (name, request) in load::requests() {
                let mut random = Random(17);
                group.bench_function(BenchmarkId::new(name, filled), |bench| {
                    bench.iter(|| {
                        load::event(&mut planner, fill, &mut random);
                        black_box(planner.decide(black_box(&request), None, 0)).is_ok()
                    });
                });
            }
        }
        let mut planner = planner(nodes, Fill::Percent(90));
        load::learn(&mut planner);
        let one = request(1, GpuShape::PerNode(1));
        let mut random = Random(17);
        group.bench_function(
            BenchmarkId::new("1 GPU, a learned mix", "90 % full"),
            |bench| {
                bench.iter(|| {
                    load::event(&mut planner, Fill::Percent(90), &mut random);
                    black_box(planner.decide(black_box(&one), None, 0)).is_ok()
                });
            },
        );
        let known = |node| planner.state(node).copied().unwrap_or_default();
        let states: Vec<NodeState> = (0..nodes).map(known).collect();
        group.bench_function(BenchmarkId::new("1 GPU, by a list", "90 % full"), |bench| {
            bench.iter(|| black_box(planner.plan(black_box(&states), &one, 0)).is_ok());
        });
        group.finish();
    }
}

fn made(criterion: &mut Criterion) {
    let cluster = load::levels(pairs(), 1_250, 2);
    criterion.bench_function("a planner for 10,000 GPUs", |bench| {
        bench.iter_with_large_drop(|| Planner::new(cluster.clone()));
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    decisions(&mut criterion);
    made(&mut criterion);
    criterion.final_summary();
}
