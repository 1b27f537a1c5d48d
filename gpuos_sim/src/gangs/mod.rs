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

use metrics::{Count, Metrics};
use philly::TraceJob;
use policy::PolicyKind;
use site::{Site, SiteKind};
use workload::{Scale, Workload};

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
    /// Seconds that a gang of gpuos may wait for a close place; 0, as select/gpuos does it,
    /// starts every job that fits.
    pub patience: i64,
    /// Policies to run, in this order.
    pub policies: Vec<PolicyKind>,
}

/// The figures of all policies on one workload.
#[derive(Debug)]
pub struct Outcome {
    /// The options as they were run.
    pub options: Options,
    /// The jobs.
    pub workload: Workload,
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

/// Runs the policies over a trace. `progress` is called before each policy with its name.
///
/// Errors: options that contradict each other, or a policy that breaks its contract.
pub fn run(
    trace: &[TraceJob],
    options: &Options,
    mut progress: impl FnMut(&str),
) -> Result<Outcome, SimError> {
    let site = Site::new(options.site, options.nodes, options.taper);
    let workload = workload::build(trace, &site, &options.scale).map_err(SimError)?;
    let day = |days: u32| i64::from(days) * 86_400;
    let window = (day(options.scale.warm_days), day(options.scale.days));
    let mut rows = Vec::new();
    for &kind in &options.policies {
        progress(kind.name());
        let mut policy = kind.make(&site, options.patience);
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
        rows.push((kind, count.metrics));
    }
    Ok(Outcome {
        options: options.clone(),
        workload,
        gpus: site.gpus(),
        rows,
    })
}
