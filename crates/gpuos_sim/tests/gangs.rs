//! The protocol of gangs through its public face: the same figures every time, the rules of the
//! policies, and traces that are not what they should be.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::NodeChoice;
use gpuos_placement::plan::Placement;
use gpuos_sim::gangs::philly::{self, TraceJob};
use gpuos_sim::gangs::policy::{Ask, FreeCapacity, Policy, PolicyKind};
use gpuos_sim::gangs::queue::Settings;
use gpuos_sim::gangs::site::{Site, SiteKind};
use gpuos_sim::gangs::workload::{Scale, build};
use gpuos_sim::gangs::{Options, report, run};

use crate::baseline;
use crate::packed::trace;

const BASELINE: &str = include_str!("gangs-baseline.csv");

fn options(site: SiteKind, nodes: u32, gang_scale: u32) -> Options {
    Options {
        site,
        nodes: Some(nodes),
        taper: 2.0,
        scale: Scale {
            load: 1.0,
            days: 6,
            warm_days: 1,
            gang_scale,
            most_gpus: 256,
            limit_factor: 1,
            seed: 42,
        },
        queue: Settings::default(),
        placement: Placement::Default,
        patience: 0,
        policies: PolicyKind::ALL.to_vec(),
        seeds: vec![42],
    }
}

/// Small sites: seconds in a debug build.
fn small() -> [Options; 3] {
    [
        options(SiteKind::Rail8, 128, 1),
        options(SiteKind::Rail8, 128, 4),
        options(SiteKind::Nvl72, 180, 4),
    ]
}

/// gpuos may become better than its baseline, not worse; the others are the yardstick, and stay
/// as they are. When gpuos has become better, write its new lines into the file.
#[test]
fn small_sites_keep_their_figures() {
    let trace = trace();
    let mut found = String::new();
    for options in small() {
        let outcome = run(&trace, &options, |_, _| ()).expect("it runs");
        found += &report::csv(&outcome);
    }
    let names: Vec<&str> = BASELINE.lines().next().unwrap_or("").split(',').collect();
    baseline::holds(BASELINE, &found, |known, now| {
        if !known.starts_with("gpuos,") {
            let other = (known != now).then(|| format!("it was {known}"));
            return other.into_iter().collect();
        }
        let cells = names.iter().zip(known.split(',')).zip(now.split(','));
        let worse = cells.filter_map(|((name, known), now)| {
            let (was, is): (f64, f64) = (known.parse().unwrap_or(0.0), now.parse().unwrap_or(0.0));
            let bad = match *name {
                "mean_leaf_span" | "mean_domain_span" => is > was * 1.01,
                "mean_bus_gbps" => is < was * 0.99,
                "wait_p95_hours" | "gang_wait_p95_hours" => is > was * 1.05 + 0.02,
                _ => false,
            };
            bad.then(|| format!("{name} was {was}, is {is}"))
        });
        worse.collect()
    });
}

#[test]
fn the_same_seed_gives_the_same_jobs_and_figures() {
    let trace = trace();
    let mut options = options(SiteKind::Rail8, 64, 1);
    options.scale.days = 3;
    let text = |options: &Options| {
        let outcome = run(&trace, options, |_, _| ()).expect("it runs");
        report::json(&outcome).to_string()
    };
    let first = text(&options);
    assert_eq!(first, text(&options));
    options.seeds = vec![43];
    assert_ne!(first, text(&options));
}

#[test]
fn the_load_is_what_was_asked_for() {
    let trace = trace();
    let site = Site::new(SiteKind::Rail8, None, 2.0);
    for load in [0.9, 1.1] {
        let scale = Scale {
            load,
            days: 60,
            warm_days: 0,
            gang_scale: 1,
            most_gpus: 1024,
            limit_factor: 1,
            seed: 1,
        };
        let workload = build(&trace, &site, &scale).expect("it fits");
        let ratio = workload.load / load;
        assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
        assert!(workload.jobs.is_sorted_by_key(|job| job.submit));
        let sane = |job: &_| {
            let gpuos_sim::gangs::workload::Job { run, limit, .. } = *job;
            run >= 1 && limit >= run
        };
        assert!(workload.jobs.iter().all(sane));
        // What runs at the start fills the site as the load says.
        let running = workload.jobs[..workload.running_at_start].iter();
        let held = running.map(|job| job.gpus()).sum::<u32>();
        let ratio = f64::from(held) / f64::from(site.gpus()) / load;
        assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    }
}

#[test]
fn gangs_grow_by_the_scale_and_keep_their_shape() {
    let site = Site::new(SiteKind::Rail8, None, 2.0);
    let one = |gpus| TraceJob {
        submit: 0,
        run: 86_400,
        gpus,
    };
    let trace = [1, 4, 8, 12, 128].map(one);
    let shapes = |gang_scale| {
        let scale = Scale {
            load: 0.5,
            days: 1,
            warm_days: 0,
            gang_scale,
            most_gpus: 1024,
            limit_factor: 1,
            seed: 1,
        };
        let workload = build(&trace, &site, &scale).expect("it fits");
        let jobs = workload.jobs.iter();
        let mut shapes: Vec<(u32, u32)> = jobs.map(|job| (job.nodes, job.per_node)).collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes
    };
    assert_eq!(shapes(1), [(1, 1), (1, 4), (1, 8), (2, 6), (16, 8)]);
    assert_eq!(shapes(8), [(1, 1), (1, 4), (8, 8), (12, 8), (128, 8)]);
}

#[test]
fn a_broken_trace_is_refused_with_its_line() {
    let head = "timestamp,duration,num_gpus,gpu_time,cluster\n";
    let good = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n";
    for (text, line, word) in [
        (String::new(), 1, "nothing"),
        ("a,b\n".into(), 1, "starts with"),
        (head.into(), 1, "no job"),
        (
            format!("{head}{good}2017-10-09 07:01:55,66.0,1,66.0\n"),
            3,
            "4 fields",
        ),
        (
            format!("{head}2017-10-32 07:01:55,66.0,1,66.0,x\n"),
            2,
            "time",
        ),
        (
            format!("{head}{good}\n2017-10-09 07:01:55,-1,1,-1,x\n"),
            4,
            "duration",
        ),
        (
            format!("{head}2017-10-09 07:01:55,NaN,1,1,x\n"),
            2,
            "duration",
        ),
        (
            format!("{head}2017-10-09 07:01:55,66.0,0,0.0,x\n"),
            2,
            "GPUs",
        ),
        (
            format!("{head}2017-10-09 07:01:55,66.0,2,66.0,x\n"),
            2,
            "gpu_time",
        ),
    ] {
        let error = philly::parse(&text).expect_err(&text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let blank_and_crlf = format!("{head}{good}").replace('\n', "\r\n") + "\r\n";
    assert_eq!(
        philly::parse(&blank_and_crlf).expect("it is sound").len(),
        1
    );
}

#[test]
fn a_scale_that_cannot_be_is_refused() {
    let trace = [TraceJob {
        submit: 0,
        run: 60,
        gpus: 64,
    }];
    let site = Site::new(SiteKind::Rail8, Some(4), 2.0);
    let scale = Scale {
        load: 0.9,
        days: 2,
        warm_days: 0,
        gang_scale: 1,
        most_gpus: 1024,
        limit_factor: 1,
        seed: 1,
    };
    for (scale, word) in [
        (Scale { load: 0.0, ..scale }, "load"),
        (
            Scale {
                load: f64::NAN,
                ..scale
            },
            "load",
        ),
        (
            Scale {
                warm_days: 2,
                ..scale
            },
            "days",
        ),
        (Scale { days: 0, ..scale }, "days"),
        (scale, "no job"),
    ] {
        let error = build(&trace, &site, &scale).expect_err(word);
        assert!(error.contains(word), "{error}");
    }
}

fn chosen(kind: PolicyKind, site: &Site, free: &[usize], wanted: (u32, u32)) -> Vec<u32> {
    // So many free GPUs on each node, those with the highest indices.
    let free: Vec<GpuSet> = free
        .iter()
        .map(|&free| GpuSet::first(8).minus(GpuSet::first(8 - free)))
        .collect();
    let room = FreeCapacity {
        free: &free,
        reserved: &[],
        until: &vec![0; free.len()],
    };
    let ask = Ask {
        nodes: wanted.0,
        per_node: wanted.1,
        until: 0,
    };
    let mut policy: Box<dyn Policy> = kind.make(site, &Placement::Default, 0);
    let choice: Option<Vec<NodeChoice>> = policy.place(room, ask, false);
    let choice = choice.unwrap_or_default();
    choice.iter().map(|at| at.node).collect()
}

#[test]
fn stock_takes_the_smallest_run_that_suffices() {
    let site = Site::new(SiteKind::Rail8, Some(6), 2.0);
    let stock = |free: &[usize], nodes, gpus| chosen(PolicyKind::Stock, &site, free, (nodes, gpus));
    // A run of three, one of two.
    assert_eq!(stock(&[8, 8, 8, 0, 8, 8], 2, 8), [4, 5]);
    assert_eq!(stock(&[8, 8, 8, 0, 8, 8], 3, 8), [0, 1, 2]);
    // None suffices: the largest, and the rest from the next.
    assert_eq!(stock(&[8, 8, 8, 0, 8, 8], 4, 8), [0, 1, 2, 4]);
    // One node: the one with the least in the smallest run, not the least of all.
    assert_eq!(stock(&[8, 2, 8, 0, 4, 5], 1, 1), [4]);
    assert!(stock(&[8, 8, 0, 0, 0, 7], 3, 8).is_empty());
}

#[test]
fn stock_with_a_tree_takes_the_fullest_leaf_that_suffices() {
    let site = Site::new(SiteKind::Rail8, Some(96), 2.0);
    let tree =
        |free: &[usize], nodes, gpus| chosen(PolicyKind::StockTree, &site, free, (nodes, gpus));
    let mut free = vec![0; 96];
    free[..4].fill(8);
    free[40..43].fill(8);
    free[70..72].fill(8);
    assert_eq!(tree(&free, 2, 8), [70, 71]);
    assert_eq!(tree(&free, 3, 8), [40, 41, 42]);
    assert_eq!(tree(&free, 6, 8), [0, 1, 2, 3, 70, 71]);
    // Inside a leaf by index, whatever is free.
    free[71] = 1;
    assert_eq!(tree(&free, 1, 1), [70]);
}

#[test]
fn best_fit_takes_the_fullest_nodes_and_gpuos_one_leaf() {
    let site = Site::new(SiteKind::Rail8, Some(96), 2.0);
    let mut free = vec![0; 96];
    free[3] = 8;
    free[40..42].fill(8);
    free[50] = 5;
    assert_eq!(chosen(PolicyKind::BestFit, &site, &free, (1, 4)), [50]);
    assert_eq!(chosen(PolicyKind::BestFit, &site, &free, (2, 8)), [3, 40]);
    assert_eq!(chosen(PolicyKind::Gpuos, &site, &free, (2, 8)), [40, 41]);
}

/// With patience, gangs of gpuos lie closer together.
#[test]
fn patience_brings_gangs_together() {
    let trace = trace();
    let mut options = options(SiteKind::Rail8, 128, 1);
    options.policies = vec![PolicyKind::Gpuos];
    options.scale.load = 1.1;
    let span = |options: &Options| {
        let outcome = run(&trace, options, |_, _| ()).expect("it runs");
        outcome.rows[0].1.leaf_span.mean()
    };
    let at_once = span(&options);
    options.patience = 4 * 3600;
    assert!(span(&options) < at_once);
}
