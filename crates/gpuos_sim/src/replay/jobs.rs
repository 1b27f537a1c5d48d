//! The jobs of a replay: a sample of Philly's trace, scaled to a few minutes.

use crate::gangs::philly::TraceJob;
use crate::gangs::workload::mix;

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
    /// Which jobs of the trace: 0 takes those at equal steps, another seed one at random from each step.
    pub seed: u64,
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

/// Takes jobs at equal steps from the trace, without the 0.2 % at each end, where the cluster was
/// hardly watched: one half from those with one GPU, one half from those with several. In the
/// trace nearly all jobs have one GPU, and their place says nothing about bandwidth. Arrivals keep their order and their relative distances. Durations are
/// multiplied by one factor, held between two seconds and half the time of submission; the factor
/// is the one that makes the load come out right.
///
/// Errors: a sentence, when the trace has too few jobs or the load cannot be reached.
pub fn build(trace: &[TraceJob], scale: &Scale) -> Result<Vec<Job>, String> {
    let watched = &trace[trace.len() / 500..trace.len() - trace.len() / 500];
    if !(4..=20_000).contains(&scale.jobs) {
        return Err(format!("{} jobs: give 4 to 20000", scale.jobs));
    }
    let (one, several): (Vec<&TraceJob>, Vec<&TraceJob>) =
        watched.iter().partition(|job| job.gpus == 1);
    let half = scale.jobs / 2;
    if one.len() < scale.jobs - half || several.len() < half {
        return Err(format!(
            "the trace has {} jobs with one GPU and {} with several; {} of each are needed",
            one.len(),
            several.len(),
            scale.jobs - half
        ));
    }
    let mut picked = sample(&one, scale.jobs - half, scale.seed);
    picked.extend(sample(&several, half, scale.seed));
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
    if !(work(0.0)..=work(1.0)).contains(&wanted) {
        return Err(format!(
            "a load of {} asks for {wanted:.0} GPU seconds; {} jobs in {} s on {} nodes can be given {:.0} to {:.0}",
            scale.load,
            scale.jobs,
            scale.seconds,
            scale.nodes,
            work(0.0),
            work(1.0)
        ));
    }
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

/// So many of them, one from each of as many equal steps.
fn sample<'a>(jobs: &[&'a TraceJob], count: usize, seed: u64) -> Vec<&'a TraceJob> {
    let at = |i: usize| {
        let (from, to) = (i * jobs.len() / count, (i + 1) * jobs.len() / count);
        match seed {
            0 => from,
            _ => from + (mix(seed, i as u64, count as u64) % (to - from) as u64) as usize,
        }
    };
    (0..count).map(|i| jobs[at(i)]).collect()
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
