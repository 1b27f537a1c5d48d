//! Placement: which nodes and which GPUs in each, chosen together.
//!
//! [`Planner::plan`] is given the state of every candidate node and one request, and answers with
//! a [`Choice`] or with the reason why nothing fits. What counts, first things first:
//!
//! 1. closeness: one node, then the narrowest level of the fabric that has a domain with room
//!    (a level that is wished for inside the node, `nvlink` or `node`, comes before all);
//! 2. a rule of affinity, if the job has one;
//! 3. bandwidth: the narrowest link of the best ring over the GPUs of a node, as NCCL would
//!    build it; for a job on several nodes that of its worst node;
//! 4. what stays usable: how much less the GPUs that stay free are worth to the next jobs
//!    (`pack` and `spread` put the fullest or emptiest places before this);
//! 5. the best fit: the fullest node, the domain with the least room left over, and domains
//!    that are broken into already;
//! 6. the lowest index, so that equal states give equal answers.
//!
//! The modules say it in full: `gpus` for the GPUs of a node, `single` for jobs on one node,
//! `gang` for the domain and `select` for the nodes in it. A plan costs a few passes over the
//! nodes and no allocation; the tests compare it with brute force.

mod fabric;
mod future;
mod gang;
mod gpus;
mod job;
mod large;
mod links;
mod select;
mod single;
mod types;
mod why;

use std::sync::Arc;

use crate::model::{Cluster, NodeType};
use fabric::FabricIndex;
use gpus::GpuTable;
use job::{Assume, Job, Rule, View};

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
    single: single::Scratch,
    gang: gang::Scratch,
    future: Vec<future::Place>,
    choice: Choice,
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
        Planner {
            tables: types.iter().map(|t| GpuTable::new(t)).collect(),
            single: single::Scratch::new(&fabric, cluster.nodes.len()),
            gang: gang::Scratch::new(&fabric, cluster.nodes.len()),
            future: Vec::with_capacity(cluster.nodes.len()),
            choice: Choice {
                nodes: Vec::with_capacity(cluster.nodes.len()),
                ..Choice::default()
            },
            cluster,
            types,
            type_of,
            fabric,
        }
    }

    /// The cluster that it plans for.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Chooses nodes and GPUs for a request. `state` has one entry per node; missing entries
    /// count as nodes that the job may not use.
    ///
    /// `skip` = 0 gives the best choice, n the n-th next one: another node for a job on one node,
    /// another domain for a gang. When the scheduler refuses every choice of a domain for reasons
    /// that the planner cannot see, [`Planner::future`] names all nodes of the domains.
    ///
    /// Errors: why the job has to wait, or that there is no further choice.
    pub fn plan(
        &mut self,
        state: &[NodeState],
        request: &Request,
        skip: u32,
    ) -> Result<&Choice, Wait> {
        let job = Job::new(request, self.cluster.nodes.len())?;
        let wish = self.wish(request)?;
        let view = View {
            state,
            assume: Assume::Now,
        };
        if self.search(view, &job, wish, skip) {
            Ok(&self.choice)
        } else {
            Err(self.why(view, &job, wish, skip))
        }
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
    fn search(&mut self, view: View, job: &Job, wish: Option<(Reach, bool)>, skip: u32) -> bool {
        let mut skip = skip;
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
        let one = |planner: &mut Planner, linked, skip: &mut u32| {
            on_one && planner.one(view, job, linked, skip)
        };
        let several = |planner: &mut Planner, from, to, within, skip: &mut u32| {
            spread && planner.gang(view, &gang, from, to, within, skip)
        };
        let skip = &mut skip;
        match wish {
            Some((Reach::NvLink(at), required)) => {
                let across = |planner: &mut Planner, skip: &mut u32| {
                    let within = if required { at } else { None };
                    at.is_some_and(|level| several(planner, 0, level, within, skip))
                };
                one(self, Linked::Must(at), skip)
                    || across(self, skip)
                    || !required
                        && (one(self, Linked::MustNot(at), skip)
                            || several(self, at.map_or(0, |level| level + 1), any, None, skip))
            }
            Some((Reach::Node, true)) => one(self, Linked::Ignore, skip),
            Some((Reach::Fabric(level), true)) => {
                one(self, Linked::Ignore, skip) || several(self, 0, level, Some(level), skip)
            }
            _ => one(self, Linked::Ignore, skip) || several(self, 0, any, None, skip),
        }
    }
}
