//! The jobs of the replay and its twin through their public face.

use std::sync::Arc;

use gpuos_model::node_types::by_name;
use gpuos_placement::plan::Placement;
use gpuos_sim::gangs::policy::PolicyKind;
use gpuos_sim::replay::jobs::{Scale, build};
use gpuos_sim::replay::report::{FIGURES, change, csv, estimate};
use gpuos_sim::replay::{Options, run};

use crate::packed::trace;

fn scale() -> Scale {
    Scale {
        jobs: 500,
        seconds: 100.0,
        load: 0.9,
        nodes: 64,
        node_gpus: 8,
        gang_scale: 4,
        most_nodes: 16,
        seed: 0,
    }
}

#[test]
fn the_load_comes_out_and_nothing_is_larger_than_allowed() {
    let trace = trace();
    for seed in [0, 1, 7] {
        let scale = Scale { seed, ..scale() };
        let jobs = build(&trace, &scale).expect("jobs");
        assert_eq!(jobs.len(), 500);
        let work: f64 = jobs.iter().map(|j| f64::from(j.gpus()) * j.run).sum();
        assert!((work / (64.0 * 8.0 * 100.0) - 0.9).abs() < 0.001, "{work}");
        assert!(jobs.windows(2).all(|pair| pair[0].submit <= pair[1].submit));
        for job in &jobs {
            assert!(job.nodes <= 16 && job.per_node <= 8, "{job:?}");
            assert!(job.run < f64::from(job.limit) * 60.0, "{job:?}");
            assert!((2.0..=50.0).contains(&job.run), "{job:?}");
        }
    }
}

#[test]
fn what_cannot_be_made_is_said() {
    let trace = trace();
    let absurd = Scale {
        load: 50.0,
        ..scale()
    };
    assert!(build(&trace, &absurd).is_err_and(|why| why.contains("GPU seconds")));
    let few = Scale { jobs: 1, ..scale() };
    assert!(build(&trace, &few).is_err_and(|why| why.contains("4 to 20000")));
    let short = build(&trace[..600], &scale());
    assert!(short.is_err_and(|why| why.contains("are needed")));
}

fn options(policies: &[PolicyKind], seeds: &[u64]) -> Options {
    Options {
        scale: scale(),
        leaf: 8,
        node_type: Arc::new(by_name("pairs-8").expect("a shipped type")),
        placement: Placement::Default,
        policies: policies.to_vec(),
        seeds: seeds.to_vec(),
    }
}

#[test]
fn a_seed_is_a_selection_of_its_own_and_gives_the_same_figures_again() {
    let trace = trace();
    let outcome = run(
        &trace,
        &options(&[PolicyKind::Gpuos], &[1, 2, 1]),
        |_, _| {},
    );
    let runs = &outcome.expect("it runs").rows[0].1;
    assert_eq!(runs[0], runs[2]);
    assert_ne!(runs[0], runs[1]);
}

#[test]
fn gpuos_keeps_linked_pairs_together_where_stock_does_not() {
    let policies = [PolicyKind::StockTree, PolicyKind::Gpuos];
    let outcome = run(&trace(), &options(&policies, &[1, 2, 3]), |_, _| {}).expect("it runs");
    let named = |name: &str| {
        let found = FIGURES.iter().find(|figure| figure.0.starts_with(name));
        found.expect("a figure of that name")
    };
    let inside = change(&outcome, named("ring bandwidth, several GPUs"), 1, 0);
    assert!(inside.mean > 5.0, "{inside:?}");
    let held = named("GPUs held");
    for (_, runs) in &outcome.rows {
        let held = estimate(runs.iter().map(held.1));
        assert!((50.0..=100.0).contains(&held.mean), "{held:?}");
    }
    let lines = csv(&outcome);
    assert_eq!(lines.lines().count(), 1 + 2 * 3 * FIGURES.len());
}

#[test]
fn errors_of_means_are_those_of_the_mean() {
    let found = estimate([1.0, 3.0].into_iter());
    assert_eq!((found.mean, found.error), (2.0, 1.0));
    assert_eq!(estimate([5.0].into_iter()).error, 0.0);
}
