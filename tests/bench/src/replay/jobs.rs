//! The jobs of a replay: a sample of Philly's trace, scaled to a few minutes.

use std::io::Read as _;

use anyhow::{Context, Result, ensure};
use gpuos_sim::gangs::philly::{self, TraceJob};

/// Time limits that users choose from, in minutes; Slurm knows no shorter unit.
const LIMITS: [u32; 5] = [1, 2, 5, 10, 30];
/// The shortest run in seconds: jobs that end before anybody looks would show nothing.
const SHORTEST: f64 = 2.0;

/// How the trace is scaled.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How many jobs.
    pub jobs: usize,
    /// Seconds in which they are submitted.
    pub seconds: f64,
    /// GPU time of all jobs over the GPU time that the cluster has in these seconds.
    pub load: f64,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// GPUs of each.
    pub node_gpus: u32,
    /// Jobs of a whole node (8 GPUs) and more ask for this many times as many GPUs.
    pub gang_scale: u32,
    /// The most nodes of one job.
    pub most_nodes: u32,
}

/// One job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Job {
    /// Submit time, seconds from the start.
    pub submit: f64,
    /// How long it holds its GPUs, seconds.
    pub run: f64,
    /// Its time limit in minutes.
    pub limit: u32,
    /// Nodes.
    pub nodes: u32,
    /// GPUs on each.
    pub per_node: u32,
}

impl Job {
    /// GPUs in all.
    pub fn gpus(&self) -> u32 {
        self.nodes * self.per_node
    }
}

/// The trace that comes with gpuos_sim.
pub fn trace() -> Result<Vec<TraceJob>> {
    let packed = include_bytes!("../../../../gpuos_sim/data/philly/philly.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .context("cannot unpack Philly's trace")?;
    Ok(philly::parse(&text)?)
}

/// Takes jobs at equal steps from the trace, without the 0.2 % at each end, where the cluster was
/// hardly watched: one half from those with one GPU, one half from those with several. In the
/// trace nearly all jobs have one GPU, and their place says nothing about bandwidth. Arrivals keep their order and their relative distances. Durations are
/// multiplied by one factor, held between two seconds and half the time of submission; the factor
/// is the one that makes the load come out right.
pub fn build(trace: &[TraceJob], scale: &Scale) -> Result<Vec<Job>> {
    let watched = &trace[trace.len() / 500..trace.len() - trace.len() / 500];
    ensure!(
        (4..=20_000).contains(&scale.jobs),
        "--jobs {}: give 4 to 20000",
        scale.jobs
    );
    let (one, several): (Vec<&TraceJob>, Vec<&TraceJob>) =
        watched.iter().partition(|job| job.gpus == 1);
    let half = scale.jobs / 2;
    let mut picked = sample(&one, scale.jobs - half);
    picked.extend(sample(&several, half));
    picked.sort_by_key(|job| job.submit);
    let first = picked[0].submit;
    let span = (picked[scale.jobs - 1].submit - first).max(1) as f64;
    let mut jobs: Vec<Job> = picked
        .iter()
        .map(|job| {
            let (nodes, per_node) = shape(job.gpus, scale);
            Job {
                submit: (job.submit - first) as f64 / span * scale.seconds,
                run: job.run as f64,
                limit: 0,
                nodes,
                per_node,
            }
        })
        .collect();
    let longest = (scale.seconds / 2.0).max(SHORTEST);
    let scaled = |run: f64, factor: f64| (run * factor).clamp(SHORTEST, longest);
    let wanted = scale.load * scale.nodes as f64 * f64::from(scale.node_gpus) * scale.seconds;
    let work = |factor: f64| -> f64 {
        jobs.iter()
            .map(|job| f64::from(job.gpus()) * scaled(job.run, factor))
            .sum()
    };
    ensure!(
        (work(0.0)..=work(1.0)).contains(&wanted),
        "a load of {} asks for {wanted:.0} GPU seconds; {} jobs in {} s on {} nodes can be given {:.0} to {:.0}",
        scale.load,
        scale.jobs,
        scale.seconds,
        scale.nodes,
        work(0.0),
        work(1.0)
    );
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        match work(middle) < wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    for job in &mut jobs {
        job.run = scaled(job.run, high);
        let minutes = LIMITS
            .iter()
            .find(|m| f64::from(**m) * 60.0 > job.run + 5.0);
        job.limit = minutes.copied().unwrap_or(60);
    }
    Ok(jobs)
}

/// So many of them, at equal steps.
fn sample<'a>(jobs: &[&'a TraceJob], count: usize) -> Vec<&'a TraceJob> {
    (0..count).map(|i| jobs[i * jobs.len() / count]).collect()
}

/// The fewest nodes, with an equal share on each.
fn shape(gpus: u32, scale: &Scale) -> (u32, u32) {
    let gpus = match gpus >= 8 {
        true => gpus * scale.gang_scale,
        false => gpus,
    };
    let gpus = gpus.min(scale.most_nodes * scale.node_gpus);
    let nodes = gpus.div_ceil(scale.node_gpus);
    (nodes, gpus.div_ceil(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_comes_out_and_nothing_is_larger_than_allowed() {
        let scale = Scale {
            jobs: 500,
            seconds: 100.0,
            load: 0.9,
            nodes: 64,
            node_gpus: 8,
            gang_scale: 4,
            most_nodes: 16,
        };
        let jobs = build(&trace().expect("the trace"), &scale).expect("jobs");
        assert_eq!(jobs.len(), 500);
        let work: f64 = jobs.iter().map(|j| f64::from(j.gpus()) * j.run).sum();
        assert!((work / (64.0 * 8.0 * 100.0) - 0.9).abs() < 0.001, "{work}");
        assert!(jobs.windows(2).all(|pair| pair[0].submit <= pair[1].submit));
        for job in &jobs {
            assert!(job.nodes <= 16 && job.per_node <= 8, "{job:?}");
            assert!(job.run < f64::from(job.limit) * 60.0, "{job:?}");
            assert!((2.0..=50.0).contains(&job.run), "{job:?}");
        }
        let absurd = Scale {
            load: 50.0,
            ..scale
        };
        assert!(build(&trace().expect("the trace"), &absurd).is_err());
    }
}
