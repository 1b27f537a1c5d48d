//! The twin of the replay in the real slurmctld: the same jobs on the same nodes, behind the
//! queue of [`crate::gangs::queue`] instead of a slurmctld, in milliseconds for each run.
//!
//! One run in a real slurmctld tells nothing of differences below 5 %: two equal ones differ by as
//! much. Here a policy meets as many selections of jobs as are wanted, and is compared with
//! another on each of them.

pub mod jobs;
pub mod judge;
pub mod report;

use std::sync::Arc;

use gpuos_model::cluster::NodeType;
use gpuos_placement::plan::{NodeChoice, Placement};

use crate::gangs::SimError;
use crate::gangs::philly::TraceJob;
use crate::gangs::policy::{BestFit, Gpuos, Policy, PolicyKind};
use crate::gangs::queue::{self, Observer, Reserve, Settings};
use crate::gangs::stock::{StockFlat, StockTree};
use crate::gangs::workload;
use jobs::{Job, Scale};
use judge::Judge;

/// Time is counted in milliseconds.
const SECOND: f64 = 1000.0;
/// Seconds that a job holds its GPUs longer than it runs: the driver looks every 0.8 s, and a client of
/// Slurm takes its time.
const LAG: f64 = 0.6;
/// As slurm.conf of the replay has it; all else is Slurm's default. Slurm tells starts in whole seconds,
/// and the driver ends jobs by these.
const QUEUE: Settings = Settings {
    interval: 5_000,
    depth: 500,
    reserve: Reserve::All(60_000),
    clock: 1000,
};

/// Everything that a replay depends on, next to the trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the jobs are made, but for the seed.
    pub scale: Scale,
    /// Nodes of a leaf.
    pub leaf: usize,
    /// Type of the nodes.
    pub node_type: Arc<NodeType>,
    /// The rule by which gpuos places.
    pub placement: Placement,
    /// Policies to run, in this order.
    pub policies: Vec<PolicyKind>,
    /// Seeds: each is a selection of jobs of its own. 0 is that of the replay in the real slurmctld.
    pub seeds: Vec<u64>,
}

/// The figures of one run; [`report::FIGURES`] says which are better high.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Figures {
    /// Mean wait of all jobs, of those on several nodes, with several GPUs of one node, and with one,
    /// in seconds.
    pub wait: f64,
    /// See [`Figures::wait`].
    pub gang_wait: f64,
    /// See [`Figures::wait`].
    pub local_wait: f64,
    /// See [`Figures::wait`].
    pub single_wait: f64,
    /// So long waited 95 % of the jobs at most, in seconds.
    pub wait_p95: f64,
    /// Leaves that a job on several nodes lies in, mean.
    pub span: f64,
    /// Ring bandwidth of jobs with several GPUs of one node, mean in GB/s.
    pub local_gbps: f64,
    /// Ring bandwidth of jobs on several nodes, mean in GB/s.
    pub gang_gbps: f64,
    /// Ring bandwidth of both, by GPU time.
    pub gbps: f64,
    /// Share of the GPUs held while jobs were submitted.
    pub allocation: f64,
    /// First submission to last end, in seconds.
    pub makespan: f64,
}

/// By policy, its figures in the order of the seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The options as they were run.
    pub options: Options,
    /// The figures.
    pub rows: Vec<(PolicyKind, Vec<Figures>)>,
}

/// Runs the policies over the trace. `progress` is called before each run with the policy's name
/// and the seed.
///
/// Errors: a scale that cannot be reached, or a policy that breaks its contract.
pub fn run(
    trace: &[TraceJob],
    options: &Options,
    mut progress: impl FnMut(&str, u64),
) -> Result<Outcome, SimError> {
    let mut rows: Vec<_> = options.policies.iter().map(|&p| (p, Vec::new())).collect();
    let (nodes, leaf) = (options.scale.nodes, options.leaf);
    let mut judge = Judge::new(nodes, leaf, &options.node_type);
    for &seed in &options.seeds {
        let scale = Scale {
            seed,
            ..options.scale
        };
        let jobs = jobs::build(trace, &scale).map_err(SimError)?;
        let queued: Vec<workload::Job> = jobs.iter().map(queued).collect();
        for (kind, runs) in &mut rows {
            progress(kind.name(), seed);
            let cluster = judge::cluster(nodes, leaf, &options.node_type);
            let mut policy: Box<dyn Policy> = match kind {
                PolicyKind::Stock => Box::new(StockFlat),
                PolicyKind::StockTree => Box::new(StockTree::new(&cluster)),
                PolicyKind::BestFit => Box::new(BestFit),
                PolicyKind::Gpuos => {
                    let placement = options.placement.clone();
                    Box::new(Gpuos::learning(cluster, placement))
                }
            };
            let mut count = Count {
                judge: &mut judge,
                until: scale.seconds * SECOND,
                tally: Tally::default(),
            };
            let (size, gpus) = (nodes as u32, scale.node_gpus);
            queue::run(&queued, size, gpus, QUEUE, &mut *policy, &mut count)
                .map_err(|e| SimError(format!("{}: {e}", kind.name())))?;
            let tally = count.tally;
            runs.push(tally.figures(f64::from(judge.gpus()) * scale.seconds));
        }
    }
    Ok(Outcome {
        options: options.clone(),
        rows,
    })
}

fn queued(job: &Job) -> workload::Job {
    workload::Job {
        submit: (job.submit * SECOND) as i64,
        run: (((job.run + LAG) * SECOND) as i64).max(1),
        limit: i64::from(job.limit) * 60 * SECOND as i64,
        nodes: job.nodes,
        per_node: job.per_node,
        counted: true,
    }
}

/// Sums, and how many there are of them.
#[derive(Clone, Copy, Default)]
struct Mean(f64, f64);

impl Mean {
    fn add(&mut self, value: f64, weight: f64) {
        self.0 += value * weight;
        self.1 += weight;
    }

    fn of(self) -> f64 {
        self.0 / self.1.max(f64::MIN_POSITIVE)
    }
}

#[derive(Default)]
struct Tally {
    waits: Vec<f64>,
    gang_wait: Mean,
    local_wait: Mean,
    single_wait: Mean,
    span: Mean,
    local_gbps: Mean,
    gang_gbps: Mean,
    gbps: Mean,
    /// GPU seconds held while jobs were submitted.
    held: f64,
    makespan: f64,
}

impl Tally {
    fn figures(mut self, capacity: f64) -> Figures {
        self.waits.sort_unstable_by(f64::total_cmp);
        let all = self.waits.len();
        Figures {
            wait: self.waits.iter().sum::<f64>() / all.max(1) as f64,
            gang_wait: self.gang_wait.of(),
            local_wait: self.local_wait.of(),
            single_wait: self.single_wait.of(),
            wait_p95: self.waits.get(all * 95 / 100).copied().unwrap_or(0.0),
            span: self.span.of(),
            local_gbps: self.local_gbps.of(),
            gang_gbps: self.gang_gbps.of(),
            gbps: self.gbps.of(),
            allocation: self.held / capacity,
            makespan: self.makespan,
        }
    }
}

struct Count<'a> {
    judge: &'a mut Judge,
    /// When the last job is submitted, ms.
    until: f64,
    tally: Tally,
}

impl Observer for Count<'_> {
    fn started(&mut self, now: i64, job: &workload::Job, nodes: &[NodeChoice]) {
        let tally = &mut self.tally;
        let wait = (now - job.submit) as f64 / SECOND;
        tally.waits.push(wait);
        let kind = match (job.nodes, job.per_node) {
            (1, 1) => &mut tally.single_wait,
            (1, _) => &mut tally.local_wait,
            _ => &mut tally.gang_wait,
        };
        kind.add(wait, 1.0);
        let gpus = f64::from(job.gpus());
        let inside = (now + job.run).min(self.until as i64) - now;
        tally.held += gpus * inside.max(0) as f64 / SECOND;
        if job.gpus() < 2 {
            return;
        }
        let gbps = self.judge.ring_gbps(job.nodes, job.per_node, nodes);
        tally.gbps.add(gbps, gpus * job.run as f64);
        if job.nodes == 1 {
            tally.local_gbps.add(gbps, 1.0);
        } else {
            tally.gang_gbps.add(gbps, 1.0);
            tally.span.add(self.judge.span(nodes) as f64, 1.0);
        }
    }

    fn ended(&mut self, now: i64, _job: &workload::Job, _nodes: &[NodeChoice]) {
        self.tally.makespan = self.tally.makespan.max(now as f64 / SECOND);
    }
}
