//! `gpuos plan --defrag`: which running jobs to preempt or to move so that a job could start.

use anyhow::{Result, bail};
use gpuos_core::defrag::{
    Action, Cost, Gang, Impossible, Job as Held, Limits, Method, Plan, Prices, Problem, solve,
};
use gpuos_core::explain::sentence;
use gpuos_core::gpuset::GpuSet;
use gpuos_core::hostlist::compress;
use gpuos_core::model::NO_DOMAIN;
use gpuos_core::plan::{Choice, GpuShape, NodeState, Planner, Request};
use gpuos_host::slurm::{Job, Preemption};
use gpuos_host::{JobRequest, Machine, Site};
use serde_json::{Value, json};

use crate::cli::PlanArgs;
use crate::figures::choice_json;
use crate::plan::notes;
use crate::reply::Reply;
use crate::table::{Table, count};

const SCHEMA: &str = "gpuos.plan-defrag/1";

/// The cheapest way to start a job that does not fit.
///
/// # Errors
/// The request is of a form that this cannot plan.
pub fn run(
    machine: &dyn Machine,
    site: &Site,
    wanted: &JobRequest,
    jobs: &[Job],
    args: &PlanArgs,
) -> Result<Reply> {
    let rules = Preemption::read(machine, &site.running, &wanted.partitions);
    let running: Vec<&Job> = jobs
        .iter()
        .filter(|job| job.is_running() && job.gpu_count() > 0)
        .collect();
    let mut classes = vec![gang_nodes(site, wanted)?];
    let (nodes, gpus) = shape(site, wanted)?;
    let free = free(site, &running);
    let held: Vec<Held> = running
        .iter()
        .map(|job| held(site, job, &rules, args, &mut classes))
        .collect();
    let preemptable = held.iter().filter(|job| job.preemptable).count();
    let problem = Problem {
        cluster: &site.cluster,
        free,
        classes,
        jobs: held,
        gang: Gang {
            nodes,
            gpus,
            level: level(site, wanted, nodes)?,
            class: 0,
        },
        prices: Prices {
            restart_seconds: args.restart_seconds,
            move_mib_per_second: args.move_rate << 10,
            ..Prices::default()
        },
    };
    let found = solve(&problem, Limits::default());
    let place = found
        .as_ref()
        .ok()
        .and_then(|plan| place(site, wanted, &running, plan));
    let mut text = match &found {
        Ok(plan) => told(site, wanted, &running, &problem, plan, place.as_ref()),
        Err(Impossible::NoRoom) => format!(
            "No set of preemptions and moves makes room for {} GPUs on each of {}.\n",
            gpus,
            count(nodes as usize, "node")
        ),
        Err(Impossible::NotFound) => {
            "No set of preemptions and moves was found in the time that the search may take.\n"
                .to_string()
        }
    };
    if !rules.nobody.is_empty() {
        text += &format!("note: {}.\n", rules.nobody);
    }
    text += &notes(site);
    let json = json!({
        "possible": found.is_ok(),
        "method": found.as_ref().ok().map(|plan| method(plan.method)),
        "cost": found.as_ref().ok().map(|plan| cost_json(plan.cost)),
        "actions": found.as_ref().map_or(Vec::new(), |plan| {
            plan.actions.iter().map(|(at, action)| action_json(site, running[*at], action)).collect()
        }),
        "place": place.map(|choice| choice_json(&choice, &site.cluster)),
        "preemptable_jobs": preemptable,
        "movable_jobs": problem.jobs.iter().filter(|job| job.movable).count(),
        "prices": {
            "restart_seconds": problem.prices.restart_seconds,
            "move_seconds": problem.prices.move_seconds,
            "move_gib_per_second": args.move_rate,
        },
        "sentence": text.trim_end(),
        "notes": site.notes,
    });
    Ok(Reply {
        schema: SCHEMA,
        json,
        text,
        yes: found.is_ok(),
    })
}

/// The nodes that the waiting job may use.
fn gang_nodes(site: &Site, wanted: &JobRequest) -> Result<Vec<bool>> {
    let request = &wanted.request;
    if request.whole_nodes {
        bail!("--defrag counts GPUs; instead of --exclusive ask for all GPUs of a node");
    }
    let named = &request.required_nodes;
    if !named.is_empty() && named.len() != request.min_nodes as usize {
        bail!("--defrag with --nodelist needs all nodes of the job in the list");
    }
    let usable = |(at, node): (u32, &gpuos_host::slurm::NodeRecord)| {
        node.is_up() && wanted.allows(node) && (named.is_empty() || named.contains(&at))
    };
    Ok((0..).zip(&site.nodes).map(usable).collect())
}

/// Nodes, and GPUs on each.
fn shape(site: &Site, wanted: &JobRequest) -> Result<(u32, u32)> {
    let request = &wanted.request;
    let kind = wanted.gres_type.as_deref();
    let most = site.nodes.iter().map(|node| node.gpus_of_type(kind).len());
    let most = most.max().unwrap_or(0) as u32;
    match request.gpus {
        GpuShape::PerNode(gpus) => Ok((request.min_nodes, gpus)),
        GpuShape::Total(gpus) if request.min_nodes == 1 && gpus <= most => Ok((1, gpus)),
        _ => bail!(
            "--defrag plans for the same number of GPUs on each node: write --gpus-per-node=N \
             and --nodes=M"
        ),
    }
}

/// The fabric level of the wish, required or not: that is the level to make room at.
fn level(site: &Site, wanted: &JobRequest, nodes: u32) -> Result<Option<usize>> {
    let Some(wish) = &wanted.request.topology else {
        return Ok(None);
    };
    let levels = &site.cluster.fabric.levels;
    let at = levels.iter().position(|level| level.name == wish.level);
    match (wish.level.as_str(), at) {
        _ if nodes == 1 => Ok(None),
        ("any", _) => Ok(None),
        (_, Some(at)) => Ok(Some(at)),
        (name, None) => {
            let known: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
            bail!(
                "--topology={name}: a job on {nodes} nodes cannot have it; this cluster's fabric has {}",
                if known.is_empty() {
                    "no level".into()
                } else {
                    known.join(", ")
                }
            )
        }
    }
}

/// Free GPUs of each node, by what running jobs hold: some releases name no indices.
fn free(site: &Site, running: &[&Job]) -> Vec<u32> {
    let mut free: Vec<u32> = site.nodes.iter().map(|n| n.gpu_count() as u32).collect();
    for job in running {
        for (node, gpus) in shares(site, job) {
            free[node as usize] = free[node as usize].saturating_sub(gpus);
        }
    }
    free
}

fn shares(site: &Site, job: &Job) -> Vec<(u32, u32)> {
    let mut shares = Vec::new();
    for allocation in job.allocations.iter().filter(|a| a.gpu_count > 0) {
        let nodes = site.indices(&allocation.nodes).0;
        shares.extend(nodes.into_iter().map(|node| (node, allocation.gpu_count)));
    }
    shares
}

/// A running job with what may be done to it.
fn held(
    site: &Site,
    job: &Job,
    rules: &Preemption,
    args: &PlanArgs,
    classes: &mut Vec<Vec<bool>>,
) -> Held {
    let shares = shares(site, job);
    let request = JobRequest::of_job(job, &Default::default(), site);
    let nodes: Option<Vec<bool>> = request.map(|request| {
        let kind = request.gres_type.as_deref();
        let may = |node: &gpuos_host::slurm::NodeRecord| {
            node.is_up() && request.allows(node) && !node.gpus_of_type(kind).is_empty()
        };
        site.nodes.iter().map(may).collect()
    });
    // What Slurm pins to its place stays there.
    let movable = !args.no_moves
        && !job.exclusive
        && job.reservation.is_empty()
        && job.required_nodes.is_empty()
        && job.state == "RUNNING";
    let class = nodes.map(|nodes| {
        classes
            .iter()
            .position(|known| *known == nodes)
            .unwrap_or_else(|| {
                classes.push(nodes);
                classes.len() - 1
            })
    });
    let memory = shares.iter().filter_map(|&(node, _)| {
        let node_type = site.cluster.nodes.get(node as usize)?.node_type.as_ref()?;
        Some(node_type.gpu_memory_mib)
    });
    let gpus: u64 = shares.iter().map(|share| u64::from(share.1)).sum();
    Held {
        id: job.id,
        preemptable: rules.may(job),
        movable: movable && class.is_some(),
        gpu_seconds: job.run_seconds.saturating_mul(gpus),
        memory_mib: memory.max().unwrap_or(0),
        class: class.unwrap_or(0),
        level: narrowest(site, &shares),
        shares,
    }
}

/// The narrowest fabric level with all of a job's nodes in one domain; a moved job keeps it.
fn narrowest(site: &Site, shares: &[(u32, u32)]) -> Option<usize> {
    if shares.len() < 2 {
        return None;
    }
    site.cluster.fabric.levels.iter().position(|level| {
        let of = |share: &(u32, u32)| level.domain_of[share.0 as usize];
        let first = of(&shares[0]);
        first != NO_DOMAIN && shares.iter().all(|share| of(share) == first)
    })
}

/// The planner's choice on the nodes that are free after the plan.
fn place(site: &Site, wanted: &JobRequest, running: &[&Job], plan: &Plan) -> Option<Choice> {
    let kind = wanted.gres_type.as_deref();
    let mut states = vec![NodeState::default(); site.nodes.len()];
    for &node in &plan.gang {
        let record = &site.nodes[node as usize];
        let mut used = GpuSet::EMPTY;
        for (at, job) in running.iter().enumerate() {
            if plan.actions.iter().any(|(done, _)| *done == at) {
                continue;
            }
            for allocation in &job.allocations {
                if allocation.nodes.contains(&record.name) {
                    used = GpuSet(used.0 | allocation.gpus.0);
                }
            }
        }
        states[node as usize] = NodeState {
            candidate: true,
            present: GpuSet::first(record.gpu_count()),
            free: record.gpus_of_type(kind).minus(used),
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        };
    }
    let request = Request {
        cpus_per_node: 0,
        cpus_per_gpu: 0,
        memory_mib_per_node: 0,
        topology: None,
        ..wanted.request.clone()
    };
    let mut planner = Planner::new(site.cluster.clone());
    planner.plan(&states, &request, 0).ok().cloned()
}

fn told(
    site: &Site,
    wanted: &JobRequest,
    running: &[&Job],
    problem: &Problem<'_>,
    plan: &Plan,
    place: Option<&Choice>,
) -> String {
    let names = |nodes: &[u32]| {
        let nodes = nodes
            .iter()
            .map(|&node| site.nodes[node as usize].name.as_str());
        compress(nodes)
    };
    let gets = match place {
        Some(choice) => sentence(choice, &wanted.request, &site.cluster),
        None => format!(
            "{} GPUs on each of {}.",
            problem.gang.gpus,
            names(&plan.gang)
        ),
    };
    if plan.actions.is_empty() {
        return format!("By its GPUs it fits as things are: {gets}\n");
    }
    let mut table = Table::new(&["JOB", "USER", "GPUS", "ON", "ACTION", "TO", "GPU-SECONDS"]);
    for (at, action) in &plan.actions {
        let (job, held) = (running[*at], &problem.jobs[*at]);
        let on: Vec<u32> = held.shares.iter().map(|share| share.0).collect();
        let (word, to, cost) = match action {
            Action::Preempt => ("preempt", "-".to_string(), problem.cost_of(*at, true)),
            Action::Move(to) => {
                let mut nodes: Vec<u32> = to.iter().map(|share| share.0).collect();
                nodes.sort_unstable();
                ("move", names(&nodes), problem.cost_of(*at, false))
            }
        };
        table.row([
            job.label.clone(),
            job.user.clone(),
            held.gpus().to_string(),
            names(&on),
            word.to_string(),
            to,
            cost.total.to_string(),
        ]);
    }
    let cost = plan.cost;
    let how = match plan.method {
        Method::Exact => "there is no cheaper way",
        Method::Bounded => "the best that was found; there may be a cheaper way",
    };
    format!(
        "With {} out of its way it could start: {gets}\n\n{}\n\
         Cost: {:.2} GPU-hours of work lost with {} preempted; {} moved, {:.0} GiB of GPU memory \
         copied. That is {} GPU-seconds with restarts and standstill ({how}).\n\
         Nothing was done. Counted are GPUs; CPUs and memory, fair share and limits are for Slurm to judge.\n",
        count(plan.actions.len(), "job"),
        table.render(),
        cost.gpu_seconds_lost as f64 / 3600.0,
        count(cost.gpus_preempted as usize, "GPU"),
        count(cost.gpus_moved as usize, "GPU"),
        cost.mib_moved as f64 / 1024.0,
        cost.total,
    )
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Exact => "exact",
        Method::Bounded => "bounded",
    }
}

fn cost_json(cost: Cost) -> Value {
    json!({
        "gpu_hours_lost": cost.gpu_seconds_lost as f64 / 3600.0,
        "gpus_preempted": cost.gpus_preempted,
        "gpus_moved": cost.gpus_moved,
        "gib_moved": cost.mib_moved as f64 / 1024.0,
        "gpu_seconds": cost.total,
    })
}

fn action_json(site: &Site, job: &Job, action: &Action) -> Value {
    let list = |shares: &[(u32, u32)]| -> Vec<Value> {
        let one = |&(node, gpus): &(u32, u32)| json!({ "node": site.nodes[node as usize].name, "gpus": gpus });
        shares.iter().map(one).collect()
    };
    let (word, to) = match action {
        Action::Preempt => ("preempt", None),
        Action::Move(to) => ("move", Some(list(to))),
    };
    json!({
        "job": job.label, "user": job.user, "action": word,
        "from": list(&shares(site, job)), "to": to,
    })
}
