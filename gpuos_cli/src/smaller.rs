//! What would start a job that has to wait: the smallest change of its request, and the jobs
//! whose end makes room.

use std::collections::HashSet;

use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::{Choice, GpuShape, NodeState, Planner, Request, TopologyWish};
use gpuos_host::slurm::Job;
use gpuos_host::{JobRequest, Site};
use serde_json::{Value, json};

use crate::figures::choice_json;

/// A change of a request with which it would start now.
pub struct Change {
    /// The option to give instead, for example `--nodes=3`.
    pub option: String,
    /// GPUs less than asked for.
    pub fewer_gpus: u32,
    /// Where it would go.
    pub choice: Choice,
}

impl Change {
    /// The change as JSON.
    pub fn json(&self, site: &Site) -> Value {
        json!({
            "option": self.option,
            "fewer_gpus": self.fewer_gpus,
            "place": choice_json(&self.choice, &site.cluster),
        })
    }
}

/// Changes that would start the request now, the smallest first: one that keeps all GPUs
/// comes before one that gives some up.
pub fn changes(planner: &mut Planner, state: &[NodeState], request: &Request) -> Vec<Change> {
    let mut found = Vec::new();
    let mut try_one = |planner: &mut Planner, request: &Request, option: String, fewer: u32| {
        let choice = planner.plan(state, request, 0).ok().cloned();
        let fits = choice.is_some();
        found.extend(choice.map(|choice| Change {
            option,
            fewer_gpus: fewer,
            choice,
        }));
        fits
    };
    if let Some(wish) = request.topology.clone().filter(|wish| wish.required) {
        let known = planner.level_names();
        let wider = known
            .iter()
            .position(|l| *l == wish.level)
            .map_or(0, |at| at + 1);
        let levels = known.iter().skip(wider).filter(|l| *l != "any");
        for level in levels {
            let mut request = request.clone();
            request.topology = Some(TopologyWish {
                level: level.clone(),
                required: true,
            });
            if try_one(
                planner,
                &request,
                format!("--gpuos-topology={level}:required"),
                0,
            ) {
                break;
            }
        }
        let mut request = request.clone();
        request.topology = Some(TopologyWish {
            required: false,
            ..wish.clone()
        });
        try_one(
            planner,
            &request,
            format!("--gpuos-topology={}:preferred", wish.level),
            0,
        );
    }
    if request.whole_nodes {
        let request = Request {
            whole_nodes: false,
            ..request.clone()
        };
        try_one(planner, &request, "no --exclusive".into(), 0);
    }
    // The same GPUs on more nodes: a total may be spread.
    if let GpuShape::Total(total) = request.gpus {
        let most = (state.len() as u32).min(total);
        let more = (request.max_nodes + 1..=most).find(|&nodes| {
            let request = Request {
                max_nodes: nodes,
                ..request.clone()
            };
            planner.plan(state, &request, 0).is_ok()
        });
        if let Some(nodes) = more {
            let request = Request {
                max_nodes: nodes,
                ..request.clone()
            };
            try_one(
                planner,
                &request,
                format!("--nodes={}-{nodes}", request.min_nodes),
                0,
            );
        }
    }
    let rest = fewer(request);
    for list in rest {
        for (request, option, fewer) in list {
            if try_one(planner, &request, option, fewer) {
                break;
            }
        }
    }
    found.sort_by_key(|change| change.fewer_gpus);
    found
}

/// Requests with less, each list from the least loss on.
fn fewer(request: &Request) -> Vec<Vec<(Request, String, u32)>> {
    /// Longer searches are of no use to a person.
    const STEPS: usize = 512;
    let with = |gpus: GpuShape| Request {
        gpus,
        ..request.clone()
    };
    let mut lists = Vec::new();
    let nodes = |each: u32| -> Vec<(Request, String, u32)> {
        let less = (request.required_nodes.len().max(1) as u32..request.min_nodes).rev();
        less.take(STEPS)
            .map(|n| {
                let request = Request {
                    min_nodes: n,
                    max_nodes: n,
                    ..request.clone()
                };
                (request, format!("--nodes={n}"), 0)
            })
            .map(|(r, option, _)| {
                let lost = (request.min_nodes - r.min_nodes) * each;
                (r, option, lost)
            })
            .collect()
    };
    match request.gpus {
        GpuShape::PerNode(n) => {
            lists.push(nodes(n));
            let gpus = |m: u32| {
                (
                    with(GpuShape::PerNode(m)),
                    format!("--gpus-per-node={m}"),
                    (n - m) * request.min_nodes,
                )
            };
            lists.push((1..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::PerSocket(n) => {
            lists.push(nodes(n));
            let gpus = |m: u32| {
                (
                    with(GpuShape::PerSocket(m)),
                    format!("--gpus-per-socket={m}"),
                    (n - m) * request.min_nodes,
                )
            };
            lists.push((1..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::Total(n) => {
            let least = request.min_nodes.max(1);
            let gpus = |m: u32| (with(GpuShape::Total(m)), format!("--gpus={m}"), n - m);
            lists.push((least..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::PerTask { per_task, tasks } => {
            let less = |t: u32| {
                let shape = GpuShape::PerTask { per_task, tasks: t };
                (with(shape), format!("--ntasks={t}"), (tasks - t) * per_task)
            };
            lists.push(
                (request.min_nodes.max(1)..tasks)
                    .rev()
                    .take(STEPS)
                    .map(less)
                    .collect(),
            );
        }
    }
    lists
}

/// When running jobs will have made room.
pub struct Forecast {
    /// Local time at which the last of them ends at the latest.
    pub at: String,
    /// The jobs that have to end, in that order.
    pub jobs: Vec<String>,
    /// Where the job would go then.
    pub choice: Choice,
}

impl Forecast {
    /// The forecast as JSON.
    pub fn json(&self, site: &Site) -> Value {
        json!({ "at": self.at, "jobs": self.jobs, "place": choice_json(&self.choice, &site.cluster) })
    }
}

/// Ends the running jobs one after the other, by their latest end, until the request fits.
/// Jobs that wait are not thought of: with a higher priority they come first.
pub fn forecast(
    planner: &mut Planner,
    site: &Site,
    state: &[NodeState],
    wanted: &JobRequest,
    jobs: &[Job],
) -> Option<Forecast> {
    let mut ends: Vec<&Job> = jobs
        .iter()
        .filter(|job| job.is_running() && !job.end.is_empty())
        .collect();
    // The format sorts as time does.
    ends.sort_by(|a, b| a.end.cmp(&b.end));
    let mut state = state.to_vec();
    let mut used: Vec<u32> = site.nodes.iter().map(|node| node.cpus_allocated).collect();
    let mut ended = Vec::new();
    for job in ends {
        let mut touched = false;
        for allocation in &job.allocations {
            for at in site.indices(&allocation.nodes).0 {
                let at = at as usize;
                let node = &site.nodes[at];
                let free = &mut state[at];
                let of_type = node.gpus_of_type(wanted.gres_type.as_deref());
                free.free = GpuSet(free.free.0 | allocation.gpus.and(of_type).0);
                free.free_cpus = free.free_cpus.saturating_add(allocation.cpus);
                free.free_memory_mib = free.free_memory_mib.saturating_add(allocation.memory_mib);
                used[at] = used[at].saturating_sub(allocation.cpus);
                if wanted.request.whole_nodes && used[at] == 0 {
                    free.candidate = node.is_up() && wanted.allows(node);
                }
                touched |= free.candidate;
            }
        }
        if !touched {
            continue;
        }
        ended.push(job);
        if let Ok(choice) = planner.plan(&state, &wanted.request, 0) {
            let choice = choice.clone();
            return Some(Forecast {
                at: job.end.clone(),
                jobs: needed(site, &choice, &ended),
                choice,
            });
        }
    }
    None
}

/// Those of the ended jobs that stood on a node of the choice.
fn needed(site: &Site, choice: &Choice, ended: &[&Job]) -> Vec<String> {
    let on: HashSet<&str> = choice
        .nodes
        .iter()
        .filter_map(|chosen| site.nodes.get(chosen.node as usize))
        .map(|node| node.name.as_str())
        .collect();
    let stood = |job: &&&Job| job.nodes.iter().any(|node| on.contains(node.as_str()));
    let needed = ended.iter().filter(stood);
    needed.map(|job| job.label.clone()).collect()
}
