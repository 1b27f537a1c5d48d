//! From a small cluster's trace to a big site's day: how the jobs are multiplied.
//!
//! A site of ten thousand GPUs is taken to be many small ones side by side. The trace is copied
//! as often as the load needs; each copy keeps the pattern of its arrivals, its durations and its
//! sizes, but is turned round in time by whole days, evenly over the trace's span, so that the
//! bursts of the copies do not fall together and the time of day stays what it was. Each job is
//! moved by a further random part of an hour. The last copy keeps each job with the chance that
//! makes the load come out right.
//!
//! Time is a circle: what was submitted near the end of the span and runs longer is still running
//! at its beginning. So a simulation can start at any moment with the jobs that run then, each
//! with the time that is left to it, and a few days show the load of all months, with the long
//! jobs in it as they are.

use super::philly::TraceJob;
use super::site::Site;

const DAY: i64 = 86_400;
const HOUR: u64 = 3600;

/// Time limits as people set them, in seconds: the next one above the duration is the job's.
const LIMITS: [i64; 12] = [
    900,
    3600,
    4 * 3600,
    12 * 3600,
    DAY,
    2 * DAY,
    4 * DAY,
    7 * DAY,
    14 * DAY,
    30 * DAY,
    60 * DAY,
    120 * DAY,
];

/// What to make of a trace.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    /// GPU time submitted over the GPU time of the site; 1 = as much as it has.
    pub load: f64,
    /// Days simulated, after a start with the jobs that run at that moment.
    pub days: u32,
    /// Days at the beginning whose jobs do not count in the figures.
    pub warm_days: u32,
    /// Jobs of a whole node and more ask for this many times as many GPUs.
    pub gang_scale: u32,
    /// The most GPUs of one job.
    pub most_gpus: u32,
    /// Time limits are so many times what the trace's durations suggest; 1 = the next usual one.
    pub limit_factor: u32,
    /// Seed of everything random.
    pub seed: u64,
}

/// One job of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// Submit time in seconds from the start.
    pub submit: i64,
    /// How long it runs, in seconds.
    pub run: i64,
    /// Its time limit, which the scheduler goes by, in seconds.
    pub limit: i64,
    /// Nodes.
    pub nodes: u32,
    /// GPUs on each.
    pub per_node: u32,
    /// Whether the figures count it.
    pub counted: bool,
}

impl Job {
    /// GPUs in all.
    pub fn gpus(&self) -> u32 {
        self.nodes * self.per_node
    }
}

/// A site's jobs in the order of their submit times.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// How many times the trace was copied.
    pub copies: f64,
    /// GPU time submitted in the simulated days over that of the site.
    pub load: f64,
    /// Jobs that ran already when the simulation starts.
    pub running_at_start: usize,
    /// Jobs left out because they are larger than the site.
    pub left_out: usize,
}

/// Makes a site's jobs from a trace.
///
/// Errors: a sentence that names what is wrong with the scale or the trace.
pub fn build(trace: &[TraceJob], site: &Site, scale: &Scale) -> Result<Workload, String> {
    if !(scale.load > 0.0 && scale.load <= 10.0) {
        return Err(format!(
            "the load is {}; write a number above 0 and at most 10, where 1 is all GPUs all the time",
            scale.load
        ));
    }
    if scale.days == 0 || scale.warm_days >= scale.days {
        return Err(format!(
            "{} days are simulated and the first {} do not count; count one day at least",
            scale.days, scale.warm_days
        ));
    }
    let (from, span) = circle(trace);
    let mut left_out = 0;
    let mut shaped: Vec<(i64, Job)> = Vec::with_capacity(trace.len());
    for job in trace {
        let at = job.submit - from;
        if !(0..span).contains(&at) {
            continue;
        }
        match shape(job, site, scale) {
            Some(shape) => shaped.push((at, shape)),
            None => left_out += 1,
        }
    }
    let work: f64 = shaped
        .iter()
        .map(|(_, job)| f64::from(job.gpus()) * job.run as f64)
        .sum();
    let capacity = f64::from(site.gpus()) * span as f64;
    if work <= 0.0 {
        return Err("no job of the trace fits on the site".into());
    }
    let copies = scale.load * capacity / work;
    let end = i64::from(scale.days) * DAY;
    let warm = i64::from(scale.warm_days) * DAY;
    let mut jobs = Vec::new();
    // With the time of the true submission: the order in which the running jobs had come.
    let mut running: Vec<(i64, Job)> = Vec::new();
    let mut submitted = 0.0;
    for copy in 0..copies.ceil() as u64 {
        let kept = (copies - copy as f64).min(1.0);
        let turn = (span / DAY) * copy as i64 / copies.ceil() as i64 * DAY;
        for (index, (at, job)) in shaped.iter().enumerate() {
            let random = mix(scale.seed, copy, index as u64);
            if kept < 1.0 && (random >> 11) as f64 / (1u64 << 53) as f64 >= kept {
                continue;
            }
            let jitter = (mix(random, copy, index as u64) % HOUR) as i64;
            let mut submit = (at + turn + jitter) % span;
            while submit < end {
                submitted += f64::from(job.gpus()) * job.run as f64;
                jobs.push(Job {
                    submit,
                    counted: submit >= warm,
                    ..*job
                });
                submit += span;
            }
            // The turns before the start: what of them still runs?
            let mut before = (at + turn + jitter) % span - span;
            while before + job.run > 0 {
                let run = job.run + before;
                running.push((
                    before,
                    Job {
                        submit: 0,
                        run,
                        limit: job.limit + before,
                        counted: false,
                        ..*job
                    },
                ));
                before -= span;
            }
        }
    }
    running.sort_by_key(|(submit, _)| *submit);
    jobs.sort_by_key(|job| job.submit);
    let running_at_start = running.len();
    let mut all: Vec<Job> = running.into_iter().map(|(_, job)| job).collect();
    all.extend(jobs);
    Ok(Workload {
        jobs: all,
        copies,
        load: submitted / (f64::from(site.gpus()) * end as f64),
        running_at_start,
        left_out,
    })
}

/// The span that is made a circle: whole days, without the first and the last 0.2 % of the jobs,
/// which in a trace stand for the time before and after its cluster was really watched.
fn circle(trace: &[TraceJob]) -> (i64, i64) {
    let at = |per_mille: usize| trace[(trace.len() - 1) * per_mille / 1000].submit;
    let from = at(2).div_euclid(DAY) * DAY;
    let to = (at(998).div_euclid(DAY) + 1) * DAY;
    (from, to - from)
}

/// Nodes and GPUs on each: the fewest nodes, with an equal share on each. `None`: too large.
fn shape(job: &TraceJob, site: &Site, scale: &Scale) -> Option<Job> {
    let whole = site.reference_node_gpus;
    let mut gpus = job.gpus;
    if gpus >= whole {
        gpus = gpus
            .saturating_mul(scale.gang_scale)
            .min(scale.most_gpus.max(gpus));
    }
    let per_node = site.node_gpus();
    let nodes = gpus.div_ceil(per_node);
    if nodes > site.nodes() {
        return None;
    }
    Some(Job {
        submit: 0,
        run: job.run,
        limit: limit(job.run) * i64::from(scale.limit_factor.max(1)),
        nodes,
        per_node: gpus.div_ceil(nodes),
        counted: false,
    })
}

fn limit(run: i64) -> i64 {
    let next = LIMITS.iter().find(|limit| **limit >= run);
    next.copied().unwrap_or(run)
}

/// A random number for one job of one copy: the finaliser of SplitMix64 (Steele, Lea and Flood,
/// OOPSLA 2014) over the three.
pub(crate) fn mix(seed: u64, copy: u64, index: u64) -> u64 {
    let step = 0x9e37_79b9_7f4a_7c15u64;
    let mut z = seed;
    for word in [copy, index] {
        z = z.wrapping_add(step).wrapping_add(word.wrapping_mul(step));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}
