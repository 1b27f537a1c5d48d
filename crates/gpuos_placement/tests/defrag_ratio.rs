//! How much more than the cheapest plan the quick search's plan costs, on nearly full clusters.

use gpuos_model::cluster::Cluster;
use gpuos_placement::defrag::*;

use crate::plan_support::{pcie, tree};
use crate::random::Random;

/// A cluster of nodes with eight GPUs that jobs of 1, 2, 4, 8 and 16 GPUs fill but for about
/// `idle` %; one third of them may not be preempted, one third not moved. A preemption loses up to
/// half a day of each GPU's work, a move costs less than a minute.
fn nearly_full(cluster: &Cluster, idle: u64, gang: Gang, seed: u64) -> Problem<'_> {
    let mut random = Random(seed);
    let nodes = cluster.nodes.len();
    let mut free = vec![8u32; nodes];
    let mut jobs = Vec::new();
    let mut left = 8 * nodes as u64;
    let mut failed = 0;
    while left * 100 > 8 * nodes as u64 * idle && failed < 4 * nodes {
        let (gpus, wide) = [
            (1, 1),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1),
            (8, 1),
            (8, 2),
            (4, 2),
        ][random.below(8) as usize];
        let start = random.below(nodes as u64) as usize;
        let on = (0..nodes).map(|at| (start + at) % nodes);
        let on: Vec<usize> = on.filter(|&node| free[node] >= gpus).take(wide).collect();
        if on.len() < wide {
            failed += 1;
            continue;
        }
        on.iter().for_each(|&node| free[node] -= gpus);
        left -= u64::from(gpus) * wide as u64;
        jobs.push(Job {
            id: jobs.len() as u32,
            shares: on.iter().map(|&node| (node as u32, gpus)).collect(),
            preemptable: random.below(3) > 0,
            movable: random.below(3) > 0,
            gpu_seconds: random.below(43_200) * u64::from(gpus) * wide as u64,
            memory_mib: random.below(200_000),
            ..Job::default()
        });
    }
    Problem {
        cluster,
        free,
        classes: vec![vec![true; nodes]],
        jobs,
        gang,
        prices: Prices::default(),
    }
}

/// What a search for a plan is measured by: how many problems, how often the quick plan is the cheapest,
/// mean and worst cost over that of the cheapest, in thousandths.
#[derive(Debug)]
struct Measured {
    known: u64,
    same: u64,
    mean: u64,
    worst: u64,
}

/// The quick search alone against the proved optimum, where trying `sets` sets of actions proves one.
fn measure(nodes: u32, seeds: std::ops::Range<u64>, sets: u32) -> Measured {
    let cluster = tree(pcie(), nodes, 4, 2);
    let mut ratios = Vec::new();
    for seed in seeds {
        let gang = Gang {
            nodes: 1 + (seed % 3) as u32,
            gpus: [4, 8][(seed / 3 % 2) as usize],
            level: [None, Some(0)][(seed / 6 % 2) as usize],
            class: 0,
        };
        let problem = nearly_full(&cluster, 6 + seed % 7, gang, seed);
        let steps = 100_000;
        let Ok(cheapest) = solve(&problem, Limits { sets, steps }) else {
            continue;
        };
        if cheapest.method != Method::Exact || cheapest.cost.total == 0 {
            continue;
        }
        let quick = Limits { sets: 0, steps: 0 };
        let quick = solve(&problem, quick).expect("a plan, as there is one");
        assert!(quick.bound <= cheapest.cost.total, "{seed}: {quick:?}");
        assert!(quick.cost.total >= cheapest.cost.total, "{seed}: {quick:?}");
        ratios.push(quick.cost.total * 1000 / cheapest.cost.total);
    }
    let known = ratios.len() as u64;
    Measured {
        known,
        same: ratios.iter().filter(|&&ratio| ratio == 1000).count() as u64,
        mean: ratios.iter().sum::<u64>() / known.max(1),
        worst: ratios.into_iter().max().unwrap_or(0),
    }
}

/// Whether to print the figures of docs/internals/defrag.md: more and larger problems, minutes in a release
/// build.
fn all() -> bool {
    std::env::var_os("GPUOS_DEFRAG_FIGURES").is_some()
}

#[test]
fn the_quick_search_is_near_the_optimum() {
    let found = measure(8, 0..18, 10_000);
    assert!(found.known >= 8, "{found:?}");
    assert!(found.mean <= 1020 && found.worst <= 1100, "{found:?}");
    assert!(found.same * 10 >= found.known * 8, "{found:?}");
    for (nodes, sets) in [(8, 100_000), (16, 50_000)].iter().filter(|_| all()) {
        println!("{nodes} nodes: {:?}", measure(*nodes, 0..60, *sets));
    }
}

#[test]
fn large_plans_are_near_what_none_can_cost_less_than() {
    let (sizes, seeds) = match all() {
        true => (&[(64, 4), (320, 8), (1250, 8), (1250, 32)][..], 12),
        false => (&[(64, 4)][..], 3),
    };
    for &(nodes, wide) in sizes {
        let cluster = tree(pcie(), nodes, 32, 2);
        let mut over = Vec::new();
        for seed in 0..seeds {
            let gang = Gang {
                nodes: wide,
                gpus: 8,
                level: [None, Some(0)][seed as usize % 2],
                class: 0,
            };
            let problem = nearly_full(&cluster, 4 + seed % 5, gang, seed);
            if let Ok(plan) = solve(&problem, Limits::default()) {
                assert!(plan.bound <= plan.cost.total);
                over.push(plan.cost.total * 1000 / plan.bound.max(1));
            }
        }
        let mean = over.iter().sum::<u64>() / over.len() as u64;
        let worst = over.iter().max();
        println!(
            "{nodes} nodes, gang of {wide}: {} plans, mean {mean}, worst {worst:?}",
            over.len()
        );
        assert!(mean <= 2500, "{nodes} nodes: {over:?}");
    }
}
