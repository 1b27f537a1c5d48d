//! Gangs on ten thousand GPUs: how close together a policy puts them, how much bandwidth that
//! gives them, and how long everybody waits.
//!
//! A trace of a small cluster is scaled to a site ([`workload`]), its jobs go through a queue as
//! Slurm runs it ([`queue`]), and a policy places them ([`policy`], [`stock`]).

pub mod metrics;
pub mod philly;
pub mod policy;
pub mod queue;
pub mod report;
pub mod site;
pub mod stock;
pub mod workload;

use std::fmt;

use gpuos_placement::plan::Placement;

use metrics::{Count, Metrics};
use philly::TraceJob;
use policy::PolicyKind;
use site::{Site, SiteKind};
use workload::Scale;

/// Everything that a run depends on, next to the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Which cluster.
    pub site: SiteKind,
    /// Its number of nodes; `None` = full size.
    pub nodes: Option<u32>,
    /// Ratio of the taper between leaves.
    pub taper: f32,
    /// How the trace is scaled.
    pub scale: Scale,
    /// How the queue is run.
    pub queue: queue::Settings,
    /// The rule by which gpuos places.
    pub placement: Placement,
    /// Seconds that a gang of gpuos may wait for a close place; 0, as select/gpuos does it,
    /// starts every job that fits.
    pub patience: i64,
    /// Policies to run, in this order.
    pub policies: Vec<PolicyKind>,
    /// Seeds, each a run of its own in place of that of the scale.
    pub seeds: Vec<u64>,
}

/// The figures of all policies, over all seeds together.
#[derive(Debug)]
pub struct Outcome {
    /// The options as they were run.
    pub options: Options,
    /// How many times the trace was copied.
    pub copies: f64,
    /// GPU time submitted over that of the site, mean over the seeds.
    pub load: f64,
    /// Jobs of all seeds.
    pub jobs: usize,
    /// Those of them that ran already at the start.
    pub running_at_start: usize,
    /// Jobs of the trace left out because they are larger than the site.
    pub left_out: usize,
    /// Nodes and GPUs of the site.
    pub nodes: u32,
    /// GPUs of the site.
    pub gpus: u32,
    /// By policy: its figures.
    pub rows: Vec<(PolicyKind, Metrics)>,
}

/// What cannot be run, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimError(pub String);

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SimError {}

/// Runs the policies over a trace. `progress` is called before each run with the policy's name
/// and the seed.
///
/// Errors: options that contradict each other, or a policy that breaks its contract.
pub fn run(
    trace: &[TraceJob],
    options: &Options,
    mut progress: impl FnMut(&str, u64),
) -> Result<Outcome, SimError> {
    let site = Site::new(options.site, options.nodes, options.taper);
    let day = |days: u32| i64::from(days) * 86_400;
    let window = (day(options.scale.warm_days), day(options.scale.days));
    let mut outcome = Outcome {
        options: options.clone(),
        copies: 0.0,
        load: 0.0,
        jobs: 0,
        running_at_start: 0,
        left_out: 0,
        nodes: site.nodes(),
        gpus: site.gpus(),
        rows: Vec::new(),
    };
    for &kind in &options.policies {
        outcome.rows.push((kind, Metrics::default()));
    }
    for &seed in &options.seeds {
        let scale = Scale {
            seed,
            ..options.scale
        };
        let workload = workload::build(trace, &site, &scale).map_err(SimError)?;
        outcome.copies = workload.copies;
        outcome.load += workload.load / options.seeds.len() as f64;
        outcome.jobs += workload.jobs.len();
        outcome.running_at_start += workload.running_at_start;
        outcome.left_out = workload.left_out;
        for (kind, metrics) in &mut outcome.rows {
            progress(kind.name(), seed);
            let mut policy = kind.make(&site, &options.placement, options.patience);
            let mut count = Count::new(&site, window);
            queue::run(
                &workload.jobs,
                site.nodes(),
                site.node_gpus(),
                options.queue,
                &mut *policy,
                &mut count,
            )
            .map_err(|e| SimError(format!("{}: {e}", kind.name())))?;
            metrics.append(count.metrics);
        }
    }
    Ok(outcome)
}
