//! Placement: which nodes and which GPUs in each, chosen together.
//!
//! A [`Planner`] holds the state of every node, kept current by events ([`Planner::update`]), and
//! answers one request at a time ([`Planner::decide`]) with a [`Choice`] or with the reason why
//! nothing fits. [`Planner::plan`] does both for a caller that has all states at hand. What
//! counts, first things first:
//!
//! 1. closeness: one node, then the narrowest level of the fabric that has a domain with room
//!    (a level that is wished for inside the node, `nvlink` or `node`, comes before all);
//! 2. a rule of affinity, if the job has one;
//! 3. bandwidth: the narrowest link of the best ring over the GPUs of a node, as NCCL would
//!    build it; for a job on several nodes that of its worst node;
//! 4. what speaks against a node: its penalty by rules and by what it is worth to the job
//!    ([`Planner::weigh`]; the latter counts before bandwidth for jobs that weigh it first);
//! 5. what stays usable: how much less the GPUs that stay free are worth to the next jobs; with a
//!    mix that was learned ([`Planner::learn`]), for jobs on one node, what the node loses, CPUs
//!    and memory included
//!    (`pack` and `spread` put the fullest or emptiest places before this);
//! 6. the best fit: the fullest node, the domain with the least room left over, and domains
//!    that are broken into already;
//! 7. the lowest index, so that equal states give equal answers.
//!
//! `first-fit` goes by closeness and index alone. The modules say it in full: `gpus` for the GPUs
//! of a node, `single` and `field` for jobs on one node, `pattern_figures` for what is kept for them, `learn`, `values`, `kinds`, `scores` and `supply` for the mix
//! of jobs, `reserve` for what is kept for jobs that wait, `gang` and `leaf` for the domain, `select` for the nodes in it and `rails` for the same GPUs on each; `index` and `bits` for how the state is held. A decision looks at patterns of free GPUs and
//! at domains, and at 64 nodes in one step where it has to count them; it allocates nothing. On large clusters `cache` holds ranks
//! from one decision to the next (`tree`, `cache_single`, `cache_gang`). The
//! tests compare it with brute force and with a pass over all nodes.

mod bits;
mod cache;
mod cache_gang;
mod cache_single;
mod capacity;
mod costs;
mod fabric;
mod field;
mod future;
mod gang;
mod gpus;
mod index;
mod job;
mod kinds;
mod large;
mod leaf;
mod learn;
mod links;
mod never;
mod pattern_figures;
mod rails;
mod rank;
mod reserve;
mod scores;
mod select;
mod single;
mod state;
mod supply;
mod tree;
mod types;
mod values;
mod why;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, NodeType};

use capacity::Capacity;
use fabric::FabricIndex;
use gpus::GpuTable;
use job::{Assume, Job, Rule};
use kinds::Kinds;
use scores::Scores;
use state::State;
use supply::Supplies;
use values::{Building, Values};

use crate::cost::{Condition, Score, Scoring};

pub use never::Never;
pub use reserve::{Coming, Ending, Foresight, keep};
pub use types::*;

/// `type_of` of a node without GPUs.
const NO_TYPE: u16 = u16::MAX;

/// Chooses places for jobs on one cluster. Making it computes tables; planning after that
/// allocates nothing once every form of request was seen.
#[derive(Debug)]
pub struct Planner {
    cluster: Cluster,
    types: Vec<Arc<NodeType>>,
    tables: Vec<GpuTable>,
    /// Table of each node, or [`NO_TYPE`].
    type_of: Vec<u16>,
    fabric: FabricIndex,
    state: State,
    capacity: Capacity,
    figures: pattern_figures::PatternFigures,
    single: single::Scratch,
    gang: gang::Scratch,
    future: Vec<future::Place>,
    /// What idle nodes are worth to the mix of jobs, once it is known; see [`Planner::learn`].
    values: Option<Values>,
    building: Option<Building>,
    kinds: Vec<Kinds>,
    scores: Scores,
    supplies: Supplies,
    choice: Choice,
    costs: costs::Costs,
    /// Ranks of past decisions, for clusters that are large enough.
    decision_cache: Option<Box<cache::DecisionCache>>,
}

/// A level of closeness, by what it means to the planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// NVLink between all pairs in one node, or this fabric level.
    NvLink(Option<usize>),
    /// One node.
    Node,
    /// A level of the fabric.
    Fabric(usize),
    /// Anywhere.
    Any,
}

/// What NVLink between all pairs inside a node means to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Linked {
    /// Nothing more than its bandwidth.
    Ignore,
    /// Only such sets, or nodes whose fabric domain is an NVLink domain at this level.
    Must(Option<usize>),
    /// Only nodes that have no such place.
    MustNot(Option<usize>),
}

impl Planner {
    /// Makes a planner for the cluster.
    pub fn new(cluster: Cluster) -> Planner {
        let mut types: Vec<Arc<NodeType>> = Vec::new();
        let mut type_of = Vec::with_capacity(cluster.nodes.len());
        for node in &cluster.nodes {
            type_of.push(match &node.node_type {
                Some(mine) => {
                    let same = |t: &Arc<NodeType>| Arc::ptr_eq(t, mine) || t == mine;
                    types.iter().position(same).unwrap_or_else(|| {
                        types.push(mine.clone());
                        types.len() - 1
                    }) as u16
                }
                None => NO_TYPE,
            });
        }
        let fabric = FabricIndex::new(&cluster);
        let tables: Vec<GpuTable> = types.iter().map(|t| GpuTable::new(t)).collect();
        let positions = fabric.len() as usize;
        let gpus = tables.iter().map(|table| table.gpus).max().unwrap_or(0);
        let kinds: usize = tables.iter().map(GpuTable::kinds).sum();
        let with_gpus = type_of.iter().filter(|&&number| number != NO_TYPE);
        let of_nodes = with_gpus.map(|&number| (number, tables[usize::from(number)].gpus));
        let supplies = Supplies::new(of_nodes, tables.len());
        let mut planner = Planner {
            costs: costs::Costs::new(&types, &tables),
            tables,
            state: State::new(cluster.nodes.len(), &fabric, gpus, kinds),
            figures: pattern_figures::PatternFigures::new(gpus),
            capacity: Capacity::new(positions, gpus),
            single: single::Scratch::new(&fabric),
            gang: gang::Scratch::new(&fabric),
            future: Vec::with_capacity(cluster.nodes.len()),
            values: None,
            building: None,
            kinds: Vec::new(),
            scores: Scores::default(),
            supplies,
            choice: Choice {
                nodes: Vec::with_capacity(cluster.nodes.len()),
                ..Choice::default()
            },
            decision_cache: cache::DecisionCache::new(&fabric, false),
            cluster,
            types,
            type_of,
            fabric,
        };
        for at in 0..positions as u32 {
            planner.index_node(at, true);
        }
        planner
    }

    /// Whether ranks are kept from one decision to the next: `true` also where the cluster is so small
    /// that it would not pay. It makes no difference to any choice. Allocates.
    pub fn keep_ranks(&mut self, keep: bool) {
        self.decision_cache = cache::DecisionCache::new(&self.fabric, keep).filter(|_| keep);
    }

    fn invalidate_cache(&mut self) {
        if let Some(kept) = &mut self.decision_cache {
            kept.forget();
        }
    }

    /// The cluster that it plans for.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Takes over the states of all nodes ([`Planner::sync`]), then decides among all candidates
    /// ([`Planner::decide`]).
    ///
    /// Errors: why the job has to wait, or that there is no further choice.
    pub fn plan(
        &mut self,
        state: &[NodeState],
        request: &Request,
        skip: u32,
    ) -> Result<&Choice, Wait> {
        self.sync(state);
        self.decide(request, None, skip)
    }

    /// Chooses nodes and GPUs for a request, by the state that the events have left. Of the nodes
    /// whose state says that they are candidates only those in `candidates` count, a bitmap by
    /// node index (node `n` is bit `n % 64` of word `n / 64`; nodes past its end are out); `None` =
    /// all.
    ///
    /// `skip` = 0 gives the best choice, n the n-th next one: another node for a job on one node,
    /// another domain for a gang. When the scheduler refuses every choice of a domain for reasons
    /// that the planner cannot see, [`Planner::future`] names all nodes of the domains.
    ///
    /// Errors: why the job has to wait, or that there is no further choice.
    pub fn decide(
        &mut self,
        request: &Request,
        candidates: Option<&[u64]>,
        skip: u32,
    ) -> Result<&Choice, Wait> {
        let mut job = Job::new(request, self.cluster.nodes.len())?;
        job.learned &= self.values.is_some();
        let wish = self.wish(request)?;
        self.candidates(candidates);
        if self.search(&job, wish, skip) {
            Ok(&self.choice)
        } else {
            Err(why::why(self, &job, wish, skip))
        }
    }

    /// Whether [`keep`] is for a job on so many nodes: on one, or a small part of a domain that is no NVLink
    /// domain. A larger gang needs a whole domain's free nodes kept from others, or it starts far apart.
    pub fn keeps_busiest(&self, nodes: u32) -> bool {
        reserve::keeps_busiest(self, nodes)
    }

    /// The `n`-th place in which the job could start if nothing ran, those with most free GPUs
    /// first. A place is a domain of the *required* level that could hold the job on the nodes
    /// that the scheduler offers; without a required level it is all nodes. `nodes` lists every
    /// node of the place that could take a part; `gpus` says which GPUs may be used there,
    /// empty = all: at the level `nvlink` inside the node, one set with NVLink between all pairs.
    /// `None` when there is no such place, or the request is one that never fits.
    pub fn future(&mut self, state: &[NodeState], request: &Request, n: u32) -> Option<&Choice> {
        future::future(self, state, request, n)
    }

    /// [`Planner::future`] by the state that the events have left, with the candidates of
    /// [`Planner::decide`].
    pub fn foresee(
        &mut self,
        request: &Request,
        candidates: Option<&[u64]>,
        n: u32,
    ) -> Option<&Choice> {
        future::foresee(self, request, candidates, n)
    }

    /// Sets the cost byte of the penalty ([`NodeState::cost`]) of every candidate, and
    /// [`Request::cost_first`], by what the nodes are worth to the job. `conditions` are those of the
    /// nodes by index; nodes past its end are as new.
    ///
    /// Without a wish no node type counts as better than another; a node in a bad condition still counts
    /// as worse than one of its type that is as new. Where all candidates are of one type and
    /// condition, nothing is changed. The states of the call before must not be given again.
    pub fn weigh(
        &mut self,
        wish: Option<&Scoring>,
        conditions: &[Condition],
        request: &mut Request,
        states: &mut [NodeState],
    ) {
        costs::weigh(self, wish, conditions, request, states)
    }

    /// What a node is worth to a job, with its parts; `None` where the job does not fit.
    pub fn score(
        &mut self,
        node: u32,
        condition: Condition,
        wish: &Scoring,
        request: &Request,
    ) -> Option<Score> {
        costs::score(self, node, condition, wish, request)
    }

    /// The best candidate of another type or condition than the choice's worst node, with room for a
    /// share of the job, if it is worth less to the job: its index, and by how many percent less than
    /// the choice, of its own worth.
    pub fn beside(
        &mut self,
        choice: &Choice,
        wish: &Scoring,
        conditions: &[Condition],
        request: &Request,
        states: &[NodeState],
    ) -> Option<(u32, u32)> {
        costs::beside(self, choice, wish, conditions, request, states)
    }

    /// The wished level and whether it is required; an unknown level that is only preferred is
    /// no wish.
    fn wish(&self, request: &Request) -> Result<Option<(Reach, bool)>, Wait> {
        let Some(wish) = &request.topology else {
            return Ok(None);
        };
        let levels = &self.cluster.fabric.levels;
        let at = levels.iter().position(|level| level.name == wish.level);
        let reach = match wish.level.as_str() {
            "nvlink" => Reach::NvLink(at),
            "node" => Reach::Node,
            "any" => Reach::Any,
            _ => match at {
                Some(level) => Reach::Fabric(level),
                None if wish.required => {
                    return Err(Wait::UnknownLevel {
                        level: wish.level.clone(),
                        known: self.level_names(),
                    });
                }
                None => return Ok(None),
            },
        };
        Ok(Some((reach, wish.required)))
    }

    /// Names of the levels that a request can name, narrowest first.
    pub fn level_names(&self) -> Vec<String> {
        let mut names = vec!["nvlink".to_string(), "node".to_string()];
        let fabric = self.cluster.fabric.levels.iter().map(|l| &l.name);
        names.extend(fabric.filter(|n| *n != "nvlink").cloned());
        names.push("any".into());
        names
    }

    /// Looks for the choice number `skip`, stage by stage from close to far, and leaves it in
    /// `self.choice`.
    fn search(&mut self, job: &Job, wish: Option<(Reach, bool)>, skip: u32) -> bool {
        // Further choices hang on which domains were passed over.
        let best = skip == 0 && self.decision_cache.is_some();
        let mut skip = skip;
        let mut asked = false;
        self.stages(job, wish, &mut |planner, job, stage| match stage {
            Stage::One(linked) => single::one(planner, job, linked, &mut skip),
            Stage::Several(reach) => {
                if best && cache_gang::gang_cached(planner, job, reach) {
                    return true;
                }
                if !asked {
                    capacity::offers(planner, Assume::Now, job);
                    asked = true;
                }
                gang::gang(planner, job, reach, &mut skip)
            }
        })
    }

    /// Whether there is any choice under an assumption.
    fn fits(&mut self, assume: Assume, job: &Job, wish: Option<(Reach, bool)>) -> bool {
        capacity::offers(self, assume, job);
        self.stages(job, wish, &mut |planner, job, stage| match stage {
            Stage::One(linked) => field::fits_one(planner, job, linked),
            Stage::Several(reach) => gang::fits_gang(planner, job, reach.to, reach.within),
        })
    }

    /// Goes through the stages of a search until one of them says that it has found something.
    fn stages(
        &mut self,
        job: &Job,
        wish: Option<(Reach, bool)>,
        visit: &mut dyn FnMut(&mut Planner, &Job, Stage) -> bool,
    ) -> bool {
        let any = self.fabric.levels;
        let inside = matches!(wish, Some((Reach::Node | Reach::NvLink(_), _)));
        // A job with a share per node and a range of nodes takes what it can get, unless it is
        // better off on one node.
        let on_one = job.min == 1
            && (job.units.is_some() || job.max == 1 || inside || job.rule == Rule::Pack);
        let mut gang = *job;
        if on_one {
            gang.min = gang.min.max(2);
        }
        let spread = gang.max >= gang.min && gang.units.is_none_or(|units| units >= gang.min);
        let mut one =
            |planner: &mut Planner, linked| on_one && visit(planner, job, Stage::One(linked));
        match wish {
            Some((Reach::NvLink(at), required)) => {
                let within = if required { at } else { None };
                one(self, Linked::Must(at))
                    || at.is_some_and(|to| {
                        let stage = Stage::Several(Levels {
                            from: 0,
                            to,
                            within,
                            wished: any,
                        });
                        spread && visit(self, &gang, stage)
                    })
                    || !required
                        && (on_one && visit(self, job, Stage::One(Linked::MustNot(at)))
                            || spread && {
                                let stage = Stage::Several(Levels {
                                    from: at.map_or(0, |level| level + 1),
                                    to: any,
                                    within: None,
                                    wished: any,
                                });
                                visit(self, &gang, stage)
                            })
            }
            Some((Reach::Node, true)) => one(self, Linked::Ignore),
            _ => {
                let (to, within, wished) = match wish {
                    Some((Reach::Fabric(level), true)) => (level, Some(level), level),
                    Some((Reach::Fabric(level), false)) => (any, None, level),
                    _ => (any, None, any),
                };
                let stage = Stage::Several(Levels {
                    from: 0,
                    to,
                    within,
                    wished,
                });
                one(self, Linked::Ignore) || spread && visit(self, &gang, stage)
            }
        }
    }
}

/// A stage of a search.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// On one node.
    One(Linked),
    /// On several.
    Several(Levels),
}

/// Where a stage looks for several nodes: in a domain of the levels `from..=to`; see
/// [`gang::gang`].
#[derive(Clone, Copy, Debug)]
struct Levels {
    from: usize,
    to: usize,
    /// All nodes lie in one domain of this level.
    within: Option<usize>,
    /// The level that the job asked for; past the last one = none.
    wished: usize,
}
