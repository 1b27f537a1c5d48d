//! `gpuos plan --defrag`: which running jobs to preempt or to move so that a job could start.

mod after;

use std::collections::HashMap;

use anyhow::{Result, anyhow, bail};
use gpuos_host::Machine;
use gpuos_host::slurm::site::{JobRequest, Judge, Site};
use gpuos_host::slurm::{Job, NodeRecord, Preemption};
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_placement::defrag::{
    Action, Cost, Gang, Impossible, Job as RunningJob, Limits, Method, Plan, Prices, Problem, solve,
};
use gpuos_placement::explain::sentence;
use gpuos_placement::plan::{Choice, GpuShape, Never, NodeState, Planner, Wait};
use serde_json::{Value, json};

use crate::cli::PlanArgs;
use crate::figures::choice_json;
use crate::mix::Mix;
use crate::network::Network;
use crate::notes::notes;
use crate::remedies::Case;
use crate::reply::Reply;
use crate::table::{Table, count};

const SCHEMA: &str = "gpuos.plan-defrag/2";
/// Ways to spread GPUs over nodes that are looked at, for the waiting job and for each other one.
const SPLITS: usize = 24;

/// The cheapest way to start a job that does not fit.
///
/// # Errors
/// The request is of a form that this cannot plan.
pub fn run(
    machine: &dyn Machine,
    planner: &mut Planner,
    mix: &Mix,
    case: Case<'_>,
    args: &PlanArgs,
) -> Result<Reply> {
    let Case {
        site, wanted, jobs, ..
    } = case;
    if let Some(why) = never(planner, site, wanted) {
        return Ok(cannot(&why, site, mix, args));
    }
    let rules = Preemption::read(machine, &site.running, &wanted.partitions);
    let running: Vec<&Job> = jobs
        .iter()
        .filter(|job| job.is_running() && job.gpu_count() > 0)
        .collect();
    let mut classes = Classes {
        lists: vec![gang_nodes(case)?],
        known: HashMap::new(),
    };
    let shapes = shapes(site, wanted)?;
    let free = free(site, &running);
    let mut judge = Judge::new(site, jobs);
    let held: Vec<RunningJob> = running
        .iter()
        .map(|job| held(&mut judge, case, job, &rules, args, &mut classes))
        .collect();
    let preemptable = held.iter().filter(|job| job.preemptable).count();
    let mut problem = Problem {
        cluster: &site.cluster,
        free,
        classes: classes.lists,
        jobs: held,
        gang: Gang {
            nodes: 0,
            gpus: 0,
            level: None,
            class: 0,
        },
        prices: prices(args),
    };
    let mut tried = Vec::new();
    for &(nodes, gpus) in &shapes {
        (problem.gang.nodes, problem.gang.gpus) = (nodes, gpus);
        problem.gang.level = level(site, wanted, nodes)?;
        tried.push((problem.gang, solve(&problem, Limits::default())));
    }
    let (gang, found) = cheapest(tried)
        .ok_or_else(|| anyhow!("--defrag: there is no form of the job to plan for"))?;
    problem.gang = gang;
    let place = found
        .as_ref()
        .ok()
        .map(|plan| after::place(planner, case, (&problem, &running), plan));
    // What the actions change may have a reserve keep other nodes.
    let kept = matches!(place, Some(None));
    let found = found.and_then(|plan| match kept {
        true => Err(Impossible::NotFound),
        false => Ok(plan),
    });
    let place = place.flatten();
    let choice = place.as_ref().map(|place| &place.choice);
    let network = place.as_ref().and_then(|place| place.network.as_ref());
    let mut text = match &found {
        Ok(plan) => reply_of(site, wanted, &running, &problem, plan, choice),
        Err(_) if kept => {
            "The cheapest set of preemptions and moves that was found makes room on nodes that \
             rules would then keep from the job.\n"
                .to_string()
        }
        Err(Impossible::DoesNotFit) => format!(
            "No set of preemptions and moves makes room for {} GPUs on each of {}.\n",
            gang.gpus,
            count(gang.nodes as usize, "node")
        ),
        Err(Impossible::NotFound) => {
            "No set of preemptions and moves was found in the time that the search may take.\n"
                .to_string()
        }
    };
    text += &network.map(Network::text).unwrap_or_default();
    if found.is_ok() {
        text += &mix.text(&wanted.request);
    }
    if !rules.nobody.is_empty() {
        text += &format!("note: {}.\n", rules.nobody);
    }
    text += &notes(site);
    let json = json!({
        "possible": found.is_ok(),
        "never": null,
        "method": found.as_ref().ok().map(|plan| method(plan.method)),
        "cost": found.as_ref().ok().map(|plan| cost_json(plan.cost)),
        "bound_gpu_seconds": found.as_ref().ok().map(|plan| plan.bound),
        "looked_at": found.as_ref().ok().map(|plan| plan.examined),
        "actions": found.as_ref().map_or(Vec::new(), |plan| {
            plan.actions.iter().map(|(at, action)| action_json(site, running[*at], action)).collect()
        }),
        "place": choice.map(|choice| choice_json(choice, &site.cluster)),
        "network": network.map(Network::json),
        "mix": mix.json(),
        "preemptable_jobs": preemptable,
        "movable_jobs": problem.jobs.iter().filter(|job| job.movable).count(),
        "prices": prices_json(&problem.prices, args),
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

/// Why the job would not fit if nothing ran at all: no set of actions mends that.
fn never(planner: &mut Planner, site: &Site, wanted: &JobRequest) -> Option<Never> {
    let kind = wanted.gres_type.as_deref();
    let idle = |node: &NodeRecord| NodeState {
        candidate: node.is_up() && wanted.allows(node),
        present: GpuSet::first(node.gpu_count()),
        free: node.gpus_of_type(kind),
        free_cpus: node.cpus,
        free_memory_mib: match site.memory_counts() {
            true => node.memory_mib,
            false => u64::MAX,
        },
        ..NodeState::default()
    };
    let states: Vec<NodeState> = site.nodes.iter().map(idle).collect();
    match planner.plan(&states, &wanted.request, 0) {
        Err(Wait::Never { why }) => Some(why),
        _ => None,
    }
}

fn cannot(why: &Never, site: &Site, mix: &Mix, args: &PlanArgs) -> Reply {
    let text = format!(
        "No set of preemptions and moves can make room, not even on idle nodes: {why}.\n{}",
        notes(site)
    );
    let json = json!({
        "possible": false,
        "never": why.to_string(),
        "method": null, "cost": null, "bound_gpu_seconds": null, "looked_at": null,
        "actions": [], "place": null, "network": null,
        "mix": mix.json(),
        "preemptable_jobs": null, "movable_jobs": null,
        "prices": prices_json(&prices(args), args),
        "sentence": text.trim_end(),
        "notes": site.notes,
    });
    Reply {
        schema: SCHEMA,
        json,
        text,
        yes: false,
    }
}

fn prices(args: &PlanArgs) -> Prices {
    Prices {
        restart_seconds: args.restart_seconds,
        move_mib_per_second: args.move_rate << 10,
        ..Prices::default()
    }
}

fn prices_json(prices: &Prices, args: &PlanArgs) -> Value {
    json!({
        "restart_seconds": prices.restart_seconds,
        "move_seconds": prices.move_seconds,
        "move_gib_per_second": args.move_rate,
    })
}

/// The nodes that the waiting job may use. Those that rules keep from it now are none of them: whether they
/// would after the plan is not looked into.
fn gang_nodes(case: Case<'_>) -> Result<Vec<bool>> {
    let Case { site, wanted, .. } = case;
    let request = &wanted.request;
    if request.whole_nodes {
        bail!("--defrag counts GPUs; instead of --exclusive ask for all GPUs of a node");
    }
    let named = &request.required_nodes;
    if !named.is_empty() && named.len() != request.min_nodes as usize {
        bail!("--defrag with --nodelist needs all nodes of the job in the list");
    }
    let open = NodeState {
        candidate: true,
        ..NodeState::default()
    };
    let mut states = vec![open; site.nodes.len()];
    Judge::new(site, case.jobs).mark(wanted, case.asker, &mut states);
    let usable = |(at, node): (u32, &NodeRecord)| {
        node.is_up()
            && wanted.allows(node)
            && (named.is_empty() || named.contains(&at))
            && states[at as usize].candidate
    };
    Ok((0..).zip(&site.nodes).map(usable).collect())
}

/// Nodes, and GPUs on each: all even forms of the request, the fewest nodes first.
fn shapes(site: &Site, wanted: &JobRequest) -> Result<Vec<(u32, u32)>> {
    let request = &wanted.request;
    let kind = wanted.gres_type.as_deref();
    let most = site
        .nodes
        .iter()
        .map(|node| node.gpus_in_service(kind).len());
    let most = most.max().unwrap_or(0) as u32;
    let shapes: Vec<(u32, u32)> = match request.gpus {
        GpuShape::PerNode(gpus) => vec![(request.min_nodes, gpus)],
        GpuShape::Total(gpus) => {
            let last = request.max_nodes.max(request.min_nodes);
            let last = last.min(gpus).min(site.nodes.len() as u32);
            let even = (request.min_nodes.max(1)..=last)
                .filter(|nodes| gpus % nodes == 0 && gpus / nodes <= most);
            even.take(SPLITS)
                .map(|nodes| (nodes, gpus / nodes))
                .collect()
        }
        _ => Vec::new(),
    };
    if shapes.is_empty() {
        bail!(
            "--defrag plans for the same number of GPUs on each node: write --gpus-per-node=N \
             and --nodes=M"
        );
    }
    Ok(shapes)
}

/// The cheapest of the plans for the forms of the job. What none costs less than is so for all of
/// them together.
fn cheapest(
    tried: Vec<(Gang, Result<Plan, Impossible>)>,
) -> Option<(Gang, Result<Plan, Impossible>)> {
    let bounds = tried.iter().filter_map(|(_, found)| match found {
        Ok(plan) => Some(plan.bound),
        Err(Impossible::DoesNotFit) => None,
        Err(Impossible::NotFound) => Some(0),
    });
    let bound = bounds.min();
    let looked = tried
        .iter()
        .flat_map(|one| &one.1)
        .map(|plan| plan.examined);
    let looked = looked.fold(0, u32::saturating_add);
    let cost = |found: &Result<Plan, Impossible>| match found {
        Ok(plan) => (0, plan.cost.total),
        Err(Impossible::NotFound) => (1, 0),
        Err(Impossible::DoesNotFit) => (2, 0),
    };
    let (gang, mut found) = tried.into_iter().min_by_key(|one| cost(&one.1))?;
    if let (Ok(plan), Some(bound)) = (&mut found, bound) {
        (plan.bound, plan.examined) = (bound, looked);
        if plan.cost.total > bound {
            plan.method = Method::Bounded;
        }
    }
    Some((gang, found))
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
    // Whoever has slices of a MIG-switchable GPU stays.
    let whole = |node: &NodeRecord| (node.gpu_count() - node.gpus_divided.len()) as u32;
    let mut free: Vec<u32> = site.nodes.iter().map(whole).collect();
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

/// Nodes that jobs may use, a list for each kind of job.
struct Classes {
    lists: Vec<Vec<bool>>,
    known: HashMap<Filters, usize>,
}

/// What Slurm filters nodes by: partitions, reservation, features, excluded nodes, GPU type.
type Filters = (Vec<String>, bool, String, Vec<String>, Option<String>);

impl Classes {
    /// The list of a job. The nodes are looked through once for all jobs that are filtered alike.
    fn of(&mut self, site: &Site, request: JobRequest) -> usize {
        let filters = (
            request.partitions.clone(),
            request.reserved,
            request.features.clone(),
            request.excluded.clone(),
            request.gres_type.clone(),
        );
        if let Some(&class) = self.known.get(&filters) {
            return class;
        }
        let class = self.list(site.nodes.iter().map(|node| may(&request, node)).collect());
        self.known.insert(filters, class);
        class
    }

    /// The list of a job that rules keep from the nodes that are not open to it.
    fn within(&mut self, site: &Site, request: &JobRequest, open: &[bool]) -> usize {
        let nodes = site.nodes.iter().zip(open);
        self.list(
            nodes
                .map(|(node, open)| *open && may(request, node))
                .collect(),
        )
    }

    fn list(&mut self, nodes: Vec<bool>) -> usize {
        let same = self.lists.iter().position(|known| *known == nodes);
        same.unwrap_or_else(|| {
            self.lists.push(nodes);
            self.lists.len() - 1
        })
    }
}

/// Whether a job could use a node if it were idle.
fn may(request: &JobRequest, node: &NodeRecord) -> bool {
    let kind = request.gres_type.as_deref();
    node.is_up() && request.allows(node) && !node.gpus_in_service(kind).is_empty()
}

/// A running job with what may be done to it.
fn held(
    judge: &mut Judge<'_>,
    Case { site, .. }: Case<'_>,
    job: &Job,
    rules: &Preemption,
    args: &PlanArgs,
    classes: &mut Classes,
) -> RunningJob {
    let shares = shares(site, job);
    let request = JobRequest::of_job(job, &Default::default(), site);
    // What Slurm pins to its place stays there.
    let movable = !args.no_moves
        && !job.exclusive
        && job.reservation.is_empty()
        && job.required_nodes.is_empty()
        && job.state == "RUNNING";
    let class = request.map(|request| match judge.elsewhere(job, &request) {
        None => classes.of(site, request),
        Some(open) => classes.within(site, &request, &open),
    });
    let memory = shares.iter().filter_map(|&(node, _)| {
        let node_type = site.cluster.nodes.get(node as usize)?.node_type.as_ref()?;
        Some(node_type.gpu_memory_mib)
    });
    let gpus: u64 = shares.iter().map(|share| u64::from(share.1)).sum();
    let others = match job.tres_per_job.is_empty() {
        true => Vec::new(),
        false => others(site, &shares),
    };
    RunningJob {
        id: job.id,
        preemptable: rules.may(job),
        movable: movable && class.is_some(),
        gpu_seconds: job.run_seconds.saturating_mul(gpus),
        memory_mib: memory.max().unwrap_or(0),
        class: class.unwrap_or(0),
        level: narrowest(site, &shares),
        others,
        shares,
    }
}

/// Other ways to spread the GPUs of a job with `--gpus=N` over as many nodes as it has: the range of
/// nodes that its user gave is not shown for a running job.
fn others(site: &Site, shares: &[(u32, u32)]) -> Vec<Vec<u32>> {
    fn parts(left: u32, nodes: usize, most: u32, begun: &mut Vec<u32>, all: &mut Vec<Vec<u32>>) {
        if all.len() >= SPLITS || nodes == 0 {
            if nodes == 0 && left == 0 && all.len() < SPLITS {
                all.push(begun.clone());
            }
            return;
        }
        let rest = nodes as u32 - 1;
        let even = left.div_ceil(nodes as u32);
        // The most even first.
        for first in even..=most.min(left.saturating_sub(rest)) {
            begun.push(first);
            parts(left - first, nodes - 1, first, begun, all);
            begun.pop();
        }
    }
    let most = site.nodes.iter().map(|node| node.gpu_count() as u32).max();
    let mut own: Vec<u32> = shares.iter().map(|share| share.1).collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    let mut all = Vec::new();
    if own.len() > 1 {
        parts(
            own.iter().sum(),
            own.len(),
            most.unwrap_or(0),
            &mut Vec::new(),
            &mut all,
        );
    }
    all.retain(|split| *split != own);
    all
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

fn reply_of(
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
        Method::Exact => "proved cheapest: no other set of actions costs less".to_string(),
        Method::Bounded if plan.bound == 0 => format!("best of {} looked at", plan.examined),
        Method::Bounded => format!(
            "best of {} looked at, at most {} % above the bound of {} that none can cost less than",
            plan.examined,
            (cost.total - plan.bound)
                .saturating_mul(100)
                .div_ceil(plan.bound),
            plan.bound
        ),
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
