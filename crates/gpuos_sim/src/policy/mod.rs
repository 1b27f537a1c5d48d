//! Placement policies: gpuos's default, published ones, and a model of stock Slurm's.

mod fgd;
mod planner;
mod published;
mod stock;

use std::fmt;
use std::str::FromStr;

use gpuos_placement::frag::{Choice, Chooser, Cluster, FillValue, Mix, Request, Score};

/// Something that says where a job goes.
pub trait Policy {
    /// Where a job that has just arrived starts; `None` when it fits nowhere.
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice>;

    /// A job has started on a node.
    fn started(&mut self, _node: usize, _request: &Request) {}

    /// A job has ended there.
    fn ended(&mut self, _node: usize, _request: &Request) {}
}

impl<S: Score> Policy for Chooser<S> {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        Chooser::choose(self, cluster, request)
    }
}

/// The policies by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Name {
    /// gpuos's default: the expected fill under the mix that it learns from arrivals.
    Gpuos,
    /// The planner of select/gpuos, with what it learns; for whole GPUs.
    Select,
    /// Fragmentation gradient descent as published, told the typical mix beforehand.
    Fgd,
    /// Best fit over cores and GPUs.
    BestFit,
    /// The alignment rule of Tetris (Grandl et al., SIGCOMM 2014).
    DotProduct,
    /// Shared GPUs first, then used nodes.
    Packing,
    /// Jobs of the same kind together.
    Clustering,
    /// Any node with room, equally likely.
    Random,
    /// A model of what stock Slurm does.
    Stock,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 9] = [
        Name::Gpuos,
        Name::Select,
        Name::Fgd,
        Name::BestFit,
        Name::DotProduct,
        Name::Packing,
        Name::Clustering,
        Name::Random,
        Name::Stock,
    ];

    /// How it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Name::Gpuos => "gpuos",
            Name::Select => "select",
            Name::Fgd => "fgd",
            Name::BestFit => "best-fit",
            Name::DotProduct => "dotprod",
            Name::Packing => "packing",
            Name::Clustering => "clustering",
            Name::Random => "random",
            Name::Stock => "stock",
        }
    }

    /// Makes the policy. `known` are the jobs of the trace: the published gradient is told their
    /// mix, all others know nothing of what comes. `seed` is for the random policy.
    pub fn make(self, known: &[Request], seed: u64) -> Box<dyn Policy> {
        match self {
            Name::Gpuos => Box::new(Chooser::new(FillValue::learning())),
            Name::Select => Box::new(planner::BySelect::default()),
            Name::Fgd => Box::new(Chooser::new(fgd::Fgd::new(&Mix::typical(known, 95)))),
            Name::BestFit => Box::new(Chooser::new(published::BestFit)),
            Name::DotProduct => Box::new(Chooser::new(published::DotProduct)),
            Name::Packing => Box::new(Chooser::new(published::Packing)),
            Name::Clustering => Box::new(published::Clustering::default()),
            Name::Random => Box::new(published::Random::new(seed)),
            Name::Stock => Box::new(stock::Stock),
        }
    }
}

/// A policy, and what it decides on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    /// The policy.
    pub policy: Name,
    /// Whether jobs without GPUs go where the model of stock Slurm puts them, whatever the
    /// policy: select/gpuos has no say there.
    pub gpu_jobs_only: bool,
}

impl From<Name> for Contender {
    fn from(policy: Name) -> Contender {
        Contender {
            policy,
            gpu_jobs_only: false,
        }
    }
}

impl Contender {
    /// See [`Name::make`].
    pub fn make(self, known: &[Request], seed: u64) -> Box<dyn Policy> {
        let policy = self.policy.make(known, seed);
        match self.gpu_jobs_only {
            true => Box::new(GpuJobs(policy)),
            false => policy,
        }
    }
}

/// Leaves jobs without GPUs to the model of stock Slurm.
struct GpuJobs(Box<dyn Policy>);

impl Policy for GpuJobs {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        match request.gpus {
            0 => stock::Stock.choose(cluster, request),
            _ => self.0.choose(cluster, request),
        }
    }

    fn started(&mut self, node: usize, request: &Request) {
        self.0.started(node, request);
    }

    fn ended(&mut self, node: usize, request: &Request) {
        self.0.ended(node, request);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let found = Name::ALL.into_iter().find(|name| name.as_str() == text);
        found.ok_or_else(|| {
            let all = Name::ALL.map(Name::as_str).join(", ");
            format!("no policy has the name {text:?}; there are {all}")
        })
    }
}
