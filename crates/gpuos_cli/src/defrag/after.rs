//! The site as it would be once a plan is carried out, and the job's place in it.

use std::collections::HashMap;

use gpuos_host::slurm::site::{JobRequest, Judge};
use gpuos_host::slurm::{Allocation, Job};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::defrag::{Action, Plan, Problem};
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Planner, Request};

use crate::network::{self, Network};
use crate::remedies::{Case, place_among};

/// Where the job would go.
pub struct Place {
    /// Nodes and GPUs.
    pub choice: Choice,
    /// What it can expect of the network beside the gangs that run then.
    pub network: Option<Network>,
}

/// The planner's choice on the nodes that a plan makes room on, by the mix of jobs that it was told and
/// under the rules. A cheapest plan leaves no other nodes to choose from: with one more that has room, an
/// action less would do. `None`: rules keep the job from them then.
pub fn place(
    planner: &mut Planner,
    case: Case<'_>,
    (problem, running): (&Problem<'_>, &[&Job]),
    plan: &Plan,
) -> Option<Place> {
    let done = plan.actions.iter();
    let done: Done = done.map(|(at, one)| (running[*at].id, one)).collect();
    let jobs = jobs(case, &done);
    let states = states(case, (problem, running), (plan, &done));
    let mut judge = Judge::new(case.site, &jobs);
    // What is left of CPUs and memory is Slurm's to say: asked for where it is there.
    let asked = Request {
        min_nodes: problem.gang.nodes,
        max_nodes: problem.gang.nodes,
        gpus: GpuShape::PerNode(problem.gang.gpus),
        topology: None,
        ..case.wanted.request.clone()
    };
    let gpus_alone = Request {
        cpus_per_node: 0,
        cpus_per_gpu: 0,
        memory_mib_per_node: 0,
        ..asked.clone()
    };
    let choice = [asked, gpus_alone].into_iter().find_map(|request| {
        let wanted = JobRequest {
            request,
            ..case.wanted.clone()
        };
        place_among(planner, &mut judge, (&wanted, case.asker), &states)
    })?;
    let traffic = network::traffic(case.site, &jobs);
    let network = traffic.and_then(|mut traffic| network::of(&mut traffic, &choice));
    Some(Place { choice, network })
}

/// What a plan does, by job.
type Done<'a> = HashMap<u32, &'a Action>;

/// The jobs that run then: without those that are preempted, and with the moved ones on their new nodes.
fn jobs(case: Case<'_>, done: &Done<'_>) -> Vec<Job> {
    let job = |job: &Job| match done.get(&job.id) {
        None => Some(job.clone()),
        Some(Action::Preempt) => None,
        Some(Action::Move(to)) => {
            let allocations = to.iter().map(|&(node, gpus)| {
                let (cpus, memory_mib) = share(job, gpus);
                Allocation {
                    nodes: vec![case.site.nodes[node as usize].name.clone()],
                    // Which ones is for Slurm to say.
                    gpus: GpuSet::EMPTY,
                    gpu_count: gpus,
                    slices: GpuSet::EMPTY,
                    shared: GpuSet::EMPTY,
                    cpus,
                    memory_mib,
                    others: Vec::new(),
                }
            });
            let allocations: Vec<Allocation> = allocations.collect();
            Some(Job {
                nodes: allocations.iter().flat_map(|on| on.nodes.clone()).collect(),
                allocations,
                ..job.clone()
            })
        }
    };
    case.jobs.iter().filter_map(job).collect()
}

/// CPUs and memory that go with so many of a job's GPUs.
fn share(job: &Job, gpus: u32) -> (u32, u64) {
    let (mut all, mut cpus, mut memory) = (0u64, 0u64, 0u64);
    for on in &job.allocations {
        let nodes = on.nodes.len() as u64;
        all += nodes * u64::from(on.gpu_count);
        cpus += nodes * u64::from(on.cpus);
        memory = memory.saturating_add(nodes.saturating_mul(on.memory_mib));
    }
    let part = |sum: u64| sum.saturating_mul(gpus.into()).div_ceil(all.max(1));
    (part(cpus).min(u32::MAX.into()) as u32, part(memory))
}

/// What is free then on the nodes that the plan is for.
fn states(
    case: Case<'_>,
    (problem, running): (&Problem<'_>, &[&Job]),
    (plan, done): (&Plan, &Done<'_>),
) -> Vec<NodeState> {
    let site = case.site;
    let kind = case.wanted.gres_type.as_deref();
    let mut used = vec![GpuSet::EMPTY; site.nodes.len()];
    let mut count = problem.free.clone();
    let mut cpus: Vec<i64> = Vec::new();
    let mut memory: Vec<i64> = Vec::new();
    for node in &site.nodes {
        let free = node.cpus.saturating_sub(node.cpus_allocated);
        cpus.push(free.into());
        let free = node.memory_mib.saturating_sub(node.memory_allocated_mib);
        memory.push(free.min(1 << 60) as i64);
    }
    for job in running {
        let action = done.get(&job.id);
        for on in &job.allocations {
            for node in site.indices(&on.nodes).0 {
                let node = node as usize;
                if action.is_none() {
                    used[node] = GpuSet(used[node].0 | on.gpus.0);
                } else {
                    count[node] += on.gpu_count;
                    cpus[node] += i64::from(on.cpus);
                    memory[node] += on.memory_mib.min(1 << 60) as i64;
                }
            }
        }
        if let Some(Action::Move(to)) = action {
            for &(node, gpus) in to {
                let (more_cpus, more_memory) = share(job, gpus);
                let node = node as usize;
                count[node] = count[node].saturating_sub(gpus);
                cpus[node] -= i64::from(more_cpus);
                memory[node] -= more_memory.min(1 << 60) as i64;
            }
        }
    }
    let mut states = vec![NodeState::default(); site.nodes.len()];
    for &node in &plan.gang {
        let at = node as usize;
        let record = &site.nodes[at];
        // Some releases name no GPUs of a job, and moved jobs take any: then the first ones count as free.
        let free = record.gpus_in_service(kind).minus(record.gpus_divided);
        let free = free.minus(used[at]).iter();
        let free = free.take(count[at] as usize);
        states[at] = NodeState {
            candidate: true,
            present: GpuSet::first(record.gpu_count()),
            free: free.fold(GpuSet::EMPTY, GpuSet::with),
            free_cpus: cpus[at].clamp(0, u32::MAX.into()) as u32,
            free_memory_mib: match site.memory_counts() {
                true => memory[at].max(0) as u64,
                false => u64::MAX,
            },
            ..case.states[at]
        };
    }
    states
}
