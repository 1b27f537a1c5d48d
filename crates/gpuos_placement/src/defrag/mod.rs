//! Which running jobs to preempt or to move so that a waiting gang fits: the cheapest set.
//!
//! [`solve`] is given the free GPUs, the running jobs with what losing or moving each would cost,
//! and a gang that wants so many GPUs on each of so many nodes in one domain of a level. It
//! answers with what to do with which jobs and where everything goes. It plans only.
//!
//! The cost is counted in GPU-seconds, see [`Prices`]: what a preempted job has computed since it
//! started or was last saved, and its restart; the time that the GPUs of a moved job stand still
//! while their memory is copied.
//!
//! First `search` looks for a good plan: branch and bound over sets of nodes for the gang, the
//! cheapest first, where moved jobs may make others move in turn. Then sets of actions are tried
//! from the cheapest on (`exact`): the first one that works is the best, and when none that costs
//! less than the good plan works, that one is ([`Method::Exact`]). If [`Limits`] end that before, the good
//! plan is the answer ([`Method::Bounded`]), and [`Plan::bound`] says what none can cost less than.
//! docs/internals/defrag.md tells how good that is.
//!
//! It counts GPUs: which ones of a node a job gets is the planner's to say afterwards, and CPUs and
//! memory are the scheduler's.

mod board;
mod exact;
mod fit;
mod polish;
mod search;
use std::collections::BTreeMap;

use gpuos_model::cluster::{Cluster, NO_DOMAIN};

/// A running job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Job id, for equal costs: the higher one, usually the younger one, goes first.
    pub id: u32,
    /// Its nodes and how many GPUs it has on each.
    pub shares: Vec<(u32, u32)>,
    /// Whether the scheduler may preempt it for the gang.
    pub preemptable: bool,
    /// Whether it may be moved.
    pub movable: bool,
    /// What is lost when it is preempted, in GPU-seconds: from its start, or since it was saved.
    pub gpu_seconds: u64,
    /// GPU memory to copy when it is moved, in MiB for each GPU.
    pub memory_mib: u64,
    /// Which [`Problem::classes`] it may be moved to.
    pub class: usize,
    /// It must stay inside one domain of this fabric level when it is moved; `None` = anywhere.
    pub level: Option<usize>,
    /// Other ways to spread its GPUs over nodes that its request allows: GPUs on each node, the most
    /// first, never 0. Empty = only as it is.
    pub others: Vec<Vec<u32>>,
}

impl Job {
    /// Its GPUs.
    pub fn gpus(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.1)).sum()
    }

    /// How its GPUs may be spread over nodes, as it is first; on each the most first.
    fn splits(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        let mut own: Vec<u32> = self.shares.iter().map(|share| share.1).collect();
        own.sort_unstable_by(|a, b| b.cmp(a));
        std::iter::once(own).chain(self.others.iter().cloned())
    }
}

/// The waiting job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gang {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// GPUs on each, at least 1.
    pub gpus: u32,
    /// All nodes in one domain of this fabric level; `None` = anywhere.
    pub level: Option<usize>,
    /// Which [`Problem::classes`] it may use.
    pub class: usize,
}

/// What preemption and moves cost beside the work that is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prices {
    /// Seconds that each GPU of a preempted job needs to start again.
    pub restart_seconds: u64,
    /// Seconds that each GPU of a moved job stands still beside the copy.
    pub move_seconds: u64,
    /// How fast GPU memory is copied, in MiB/s for each GPU.
    pub move_mib_per_second: u64,
}

/// Assumptions, not measurements: two minutes for a restart, half a minute for a move, 10 GiB/s
/// for the copy through the network.
impl Default for Prices {
    fn default() -> Prices {
        Prices {
            restart_seconds: 120,
            move_seconds: 30,
            move_mib_per_second: 10 << 10,
        }
    }
}

/// All that is known.
#[derive(Clone, Debug)]
pub struct Problem<'a> {
    /// The fabric.
    pub cluster: &'a Cluster,
    /// Free GPUs of each node.
    pub free: Vec<u32>,
    /// Sets of nodes that jobs may use (partitions, GPU types, nodes in service).
    pub classes: Vec<Vec<bool>>,
    /// Running jobs.
    pub jobs: Vec<Job>,
    /// The waiting job.
    pub gang: Gang,
    /// Prices.
    pub prices: Prices,
}

/// How long the search may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Sets of actions that are tried.
    pub sets: u32,
    /// Steps that are made to find places for one set.
    pub steps: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sets: 50_000,
            steps: 2_000,
        }
    }
}

/// What is done with a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is preempted.
    Preempt,
    /// It is moved: nodes and GPUs on each.
    Move(Vec<(u32, u32)>),
}

/// What a plan costs, in its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Computed work that is lost, in GPU-seconds.
    pub gpu_seconds_lost: u64,
    /// GPUs of preempted jobs.
    pub gpus_preempted: u64,
    /// GPUs of moved jobs.
    pub gpus_moved: u64,
    /// GPU memory that is copied, in MiB.
    pub mib_moved: u64,
    /// All of it, in GPU-seconds by the [`Prices`].
    pub total: u64,
}

/// How good a plan is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// There is no cheaper one.
    Exact,
    /// The best one found within the [`Limits`].
    Bounded,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Actions, by index into [`Problem::jobs`], ascending.
    pub actions: Vec<(usize, Action)>,
    /// The gang's nodes, ascending.
    pub gang: Vec<u32>,
    /// What it costs.
    pub cost: Cost,
    /// Whether it is the cheapest.
    pub method: Method,
    /// What no plan costs less than, in GPU-seconds; [`Cost::total`] where it is the cheapest.
    pub bound: u64,
    /// Sets of nodes and of actions that were looked at.
    pub examined: u32,
}

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Impossible {
    /// Not even without all jobs that may be preempted or moved would there be room.
    DoesNotFit,
    /// None was found within the [`Limits`].
    NotFound,
}

/// What may be done with a job, without the place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Preempt,
    Move,
}

/// The cheapest actions after which the gang fits; none when it fits already.
///
/// # Errors
/// There is no such set, or none was found.
pub fn solve(problem: &Problem<'_>, limits: Limits) -> Result<Plan, Impossible> {
    let everything: Vec<Option<Kind>> = problem
        .jobs
        .iter()
        .map(|job| (job.preemptable || job.movable).then_some(Kind::Preempt))
        .collect();
    let domains = Domains::new(problem);
    if !fit::could_fit(problem, &domains, &everything) {
        return Err(Impossible::DoesNotFit);
    }
    let board = board::Board::new(problem, &domains);
    let least = board.least();
    let (good, looked) = search::solve(&board, least);
    let found = exact::solve(problem, &domains, limits, good, least)?;
    Ok(Plan {
        examined: found.examined + looked,
        ..found
    })
}

impl Problem<'_> {
    /// What preempting (`true`) or moving a job costs, by its index.
    pub fn cost_of(&self, job: usize, preempt: bool) -> Cost {
        let kind = if preempt { Kind::Preempt } else { Kind::Move };
        self.jobs
            .get(job)
            .map_or_else(Cost::default, |job| self.cost(job, kind))
    }

    /// What an action costs, in its parts.
    fn cost(&self, job: &Job, kind: Kind) -> Cost {
        let gpus = job.gpus();
        let prices = self.prices;
        match kind {
            Kind::Preempt => Cost {
                gpu_seconds_lost: job.gpu_seconds,
                gpus_preempted: gpus,
                total: job
                    .gpu_seconds
                    .saturating_add(gpus.saturating_mul(prices.restart_seconds)),
                ..Cost::default()
            },
            Kind::Move => {
                let copy = job.memory_mib.div_ceil(prices.move_mib_per_second.max(1));
                Cost {
                    gpus_moved: gpus,
                    mib_moved: gpus.saturating_mul(job.memory_mib),
                    total: gpus.saturating_mul(prices.move_seconds.saturating_add(copy)),
                    ..Cost::default()
                }
            }
        }
    }

    /// What a job's cheapest allowed action is.
    fn cheapest(&self, job: &Job) -> Option<(u64, Kind)> {
        let allowed = [(job.preemptable, Kind::Preempt), (job.movable, Kind::Move)];
        let allowed = allowed.into_iter().filter(|(may, _)| *may);
        allowed
            .map(|(_, kind)| (self.cost(job, kind).total, kind))
            .min()
    }

    /// What a set of actions costs.
    fn sum(&self, kinds: &[Option<Kind>]) -> Cost {
        let done = kinds.iter().zip(&self.jobs);
        let costs = done.filter_map(|(kind, job)| kind.map(|kind| self.cost(job, kind)));
        costs.fold(Cost::default(), |sum, cost| Cost {
            gpu_seconds_lost: sum.gpu_seconds_lost.saturating_add(cost.gpu_seconds_lost),
            gpus_preempted: sum.gpus_preempted + cost.gpus_preempted,
            gpus_moved: sum.gpus_moved + cost.gpus_moved,
            mib_moved: sum.mib_moved.saturating_add(cost.mib_moved),
            total: sum.total.saturating_add(cost.total),
        })
    }

    /// Free GPUs once the jobs with an action are gone.
    fn freed(&self, kinds: &[Option<Kind>]) -> Vec<u32> {
        let mut free = self.free.clone();
        for (job, _) in self
            .jobs
            .iter()
            .zip(kinds)
            .filter(|(_, kind)| kind.is_some())
        {
            for &(node, gpus) in &job.shares {
                if let Some(free) = free.get_mut(node as usize) {
                    *free += gpus;
                }
            }
        }
        free
    }

    /// Whether a job of that class may use a node.
    fn allows(&self, class: usize, node: usize) -> bool {
        let class = self.classes.get(class);
        class
            .and_then(|class| class.get(node))
            .copied()
            .unwrap_or(false)
    }

    /// Domain of a node at a level: `None` = anywhere is one domain for all. Nodes in no domain
    /// have [`NO_DOMAIN`] and are alone.
    fn domain(&self, level: Option<usize>, node: usize) -> u32 {
        let Some(level) = level else { return 0 };
        let level = self.cluster.fabric.levels.get(level);
        let of = level.and_then(|level| level.domain_of.get(node));
        of.copied().unwrap_or(NO_DOMAIN)
    }
}

/// The nodes of each domain of each level, ascending; made once for a search.
struct Domains {
    /// By level, and at last those of "anywhere".
    of: Vec<Vec<Vec<usize>>>,
}

impl Domains {
    fn new(problem: &Problem<'_>) -> Domains {
        let levels = problem.cluster.fabric.levels.len();
        let levels = (0..levels).map(Some).chain([None]);
        let of = levels.map(|level| {
            let mut all: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            let mut alone = Vec::new();
            for node in 0..problem.free.len() {
                match problem.domain(level, node) {
                    NO_DOMAIN => alone.push(vec![node]),
                    domain => all.entry(domain).or_default().push(node),
                }
            }
            all.into_values().chain(alone).collect()
        });
        Domains { of: of.collect() }
    }

    fn at(&self, level: Option<usize>) -> &[Vec<usize>] {
        let anywhere = self.of.len() - 1;
        &self.of[level.map_or(anywhere, |level| level.min(anywhere))]
    }
}
