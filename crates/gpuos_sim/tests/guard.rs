//! Figures of small workloads, compared exactly with those in `baseline.tsv`: a change of any of
//! them is a change of the engine's quality and has to be meant. The file is written anew with
//! GPUOS_UPDATE_BASELINE=1.

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use gpuos_sim::curve::Curve;
use gpuos_sim::policy::{Contender, Name};
use gpuos_sim::protocol::inflation::Inflation;
use gpuos_sim::protocol::lifetimes::Lifetimes;
use gpuos_sim::trace::{Job, Nodes, jobs, nodes, whole};

/// One node and one job of so many are kept.
const PART: usize = 8;
const SEEDS: [u64; 2] = [42, 43];

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("data/openb").join(name)
}

fn read(name: &str) -> String {
    let packed = fs::read(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut text = String::new();
    let mut plain = flate2::read::GzDecoder::new(&packed[..]);
    plain.read_to_string(&mut text).expect("a gzipped text");
    text
}

fn small(workload: &str) -> (Nodes, Vec<Job>) {
    let mut cluster = nodes(&read("openb_node_list_gpu_node.csv.gz")).expect("nodes");
    let list = read(&format!("openb_pod_list_{workload}.csv.gz"));
    let jobs = jobs(&list, &cluster).expect("jobs");
    cluster.nodes = cluster.nodes.into_iter().step_by(PART).collect();
    (cluster, jobs.into_iter().step_by(PART).collect())
}

/// Allocation in millionths when 100 % and 130 % have arrived.
fn inflation(cluster: &Nodes, jobs: &[Job], policy: impl Into<Contender>, seed: u64) -> (u64, u64) {
    let mut run = Inflation::new(cluster, jobs, policy, seed);
    let mut curve = Curve::new();
    let mut steps = 0;
    while let Some(standing) = run.step() {
        assert!(standing.allocated <= standing.arrived);
        assert_eq!(
            standing.allocated + standing.rejected_milli,
            standing.arrived
        );
        curve.push(&standing);
        steps += 1;
    }
    assert_eq!(steps, run.steps());
    (curve.at(100), curve.at(130))
}

const AS_SLURM: [Name; 5] = [
    Name::Select,
    Name::Gpuos,
    Name::Fgd,
    Name::BestFit,
    Name::Stock,
];

fn figures() -> String {
    let mut text = String::from("workload\tpolicy\tseed\tfigures\n");
    for workload in ["default", "cpu200", "gpushare40", "gpuspec10", "multigpu20"] {
        let (cluster, jobs) = small(workload);
        for policy in [Name::Gpuos, Name::Fgd, Name::BestFit, Name::Stock] {
            for seed in SEEDS {
                let (full, last) = inflation(&cluster, &jobs, policy, seed);
                let _ = writeln!(text, "{workload}\t{policy}\t{seed}\t{full} {last}");
            }
        }
    }
    // As Slurm's GPUs are given, with the planner that select/gpuos uses.
    for workload in ["default", "multigpu20"] {
        let (cluster, mut jobs) = small(workload);
        whole(&mut jobs);
        for policy in AS_SLURM {
            for seed in SEEDS {
                let contender = Contender {
                    policy,
                    gpu_jobs_only: true,
                };
                let (full, last) = inflation(&cluster, &jobs, contender, seed);
                let _ = writeln!(
                    text,
                    "{workload}, whole GPUs\t{policy}\t{seed}\t{full} {last}"
                );
            }
        }
    }
    let (cluster, jobs) = small("default");
    // The planner gives no shares.
    for policy in Name::ALL.into_iter().filter(|&name| name != Name::Select) {
        let mut run = Lifetimes::new(&cluster, &jobs, policy, 95, 42).expect("lifetimes");
        while run.step() {}
        let _ = writeln!(
            text,
            "default with lifetimes\t{policy}\t42\t{:?}",
            run.outcome()
        );
    }
    text
}

#[test]
fn the_figures_of_small_workloads_stay_as_they_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baseline.tsv");
    let text = figures();
    if std::env::var_os("GPUOS_UPDATE_BASELINE").is_some() {
        fs::write(&path, &text).expect("baseline.tsv can be written");
    }
    let baseline = fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<_> = text
        .lines()
        .zip(baseline.lines().chain(std::iter::repeat("(none)")))
        .filter(|(now, then)| now != then)
        .collect();
    assert!(
        changed.is_empty(),
        "now, and in {}: {changed:#?}",
        path.display()
    );
    assert_eq!(text.lines().count(), baseline.lines().count());
}

/// gpuos is above the published policies in the mean of each small workload.
#[test]
fn the_default_is_ahead_on_small_workloads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baseline.tsv");
    let baseline = fs::read_to_string(&path).expect("baseline.tsv");
    let mean = |workload: &str, policy: &str| {
        let rows = baseline
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>());
        let rows = rows.filter(|row| row[0] == workload && row[1] == policy);
        let last = rows.map(|row| row[3].split(' ').next_back().unwrap_or("0").to_string());
        let last: Vec<u64> = last
            .map(|figure| figure.parse().expect("a figure"))
            .collect();
        last.iter().sum::<u64>() / last.len() as u64
    };
    for workload in ["default", "cpu200", "gpushare40", "gpuspec10", "multigpu20"] {
        let ours = mean(workload, "gpuos");
        for other in ["fgd", "best-fit", "stock"] {
            assert!(ours > mean(workload, other), "{workload}: {other}");
        }
    }
    for workload in ["default, whole GPUs", "multigpu20, whole GPUs"] {
        let select = mean(workload, "select");
        for other in ["fgd", "best-fit", "stock"] {
            assert!(select > mean(workload, other), "{workload}: {other}");
        }
    }
}

#[test]
fn a_trace_without_lifetimes_is_told() {
    let (cluster, jobs) = small("multigpu20");
    let error = Lifetimes::new(&cluster, &jobs, Name::Fgd, 95, 1).err();
    assert!(error.is_some_and(|e| e.contains("creation_time and deletion_time")));
}
