//! What has to happen before a job with slices has room, where that is not told by the ends of jobs on full nodes: jobs
//! without a known end, CPUs and memory, or what is not in service.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::Site;
use gpuos_model::gpu_index::{NvmlIndex, PoolGpu};
use gpuos_placement::explain::{Claim, Unavailable};
use gpuos_placement::mig::{Ask, Effort};
use gpuos_placement::plan::Never;

use super::offers::Question;
use super::pool::{Slices, out_of_service};
use crate::forecast::known_end;
use crate::outlook::{has_to_be_back, may_use, state_of};

/// The claim on such a job.
pub fn outlook(
    slices: &Slices<'_>,
    jobs: &[Job],
    question: &Question,
    ask: &Ask,
    board: usize,
) -> Claim {
    let site = slices.site;
    if let Some(claim) = ends(site, jobs, question, ask, board) {
        return claim;
    }
    // Without jobs: nobody has a slice, nor what else a GPU has few of.
    let Ok(mut idle) = Slices::read(site, &[]) else {
        return Claim::FitsAfterUnseen;
    };
    let away = all_unavailable(site, question);
    let wanted = question.nodes as usize;
    let named = &question.filter.request.required_nodes;
    let mut able = |back: &[bool]| -> Vec<usize> {
        let nodes = 0..site.nodes.len();
        nodes
            .filter(|node| {
                let mine = away.iter().zip(back).filter(|((at, _), _)| at == node);
                let gone = mine
                    .filter(|(_, back)| !**back)
                    .map(|((_, one), _)| one.gpu);
                fits(&mut idle, question, (ask, board), *node, gone.collect())
            })
            .collect()
    };
    let enough = |able: &[usize]| {
        able.len() >= wanted && named.iter().all(|node| able.contains(&(*node as usize)))
    };
    if enough(&able(&vec![false; away.len()])) {
        return Claim::FitsAfterUnseen;
    }
    if !enough(&able(&vec![true; away.len()])) {
        let what = ask.names(&slices.pool, board);
        return Claim::Never(Never::Said(format!(
            "too few nodes have GPUs, CPUs and memory for {what} even when they are idle"
        )));
    }
    has_to_be_back(&away, |back| enough(&able(back)))
}

/// Whether an idle node has room, with this of it gone.
fn fits(
    idle: &mut Slices<'_>,
    question: &Question,
    (ask, board): (&Ask, usize),
    node: usize,
    gone: Vec<Option<usize>>,
) -> bool {
    let site = idle.site;
    let record = &site.nodes[node];
    let Ok(number) = idle.numbers[node] else {
        return false;
    };
    let request = &question.filter.request;
    let considered = question
        .only
        .as_ref()
        .is_none_or(|only| only.contains(&(node as u32)));
    let fits = idle.pool.kind_of(number) == board
        && considered
        && may_use(&question.filter, record)
        && record.cpus >= request.cpus_per_node
        && (!site.memory_counts() || record.memory_mib >= request.memory_mib_per_node);
    if !fits || gone.contains(&None) {
        return false;
    }
    let own = site.config.mig.pool_of(&record.name);
    let gpus = own.map(|(own, _)| own.gpus.iter().collect::<Vec<NvmlIndex>>());
    let gpus = gpus.unwrap_or_default().into_iter().enumerate();
    let out = gpus.filter(|(_, nvml)| gone.contains(&Some(nvml.index())));
    let out = out.filter_map(|(nth, _)| PoolGpu::new(nth)).collect();
    idle.pool.see(number, 0, out);
    let prices = idle.pool.prices();
    idle.pool
        .pick(&mut Effort::default(), &prices, number, ask)
        .is_some()
}

/// Nodes of the pool, and GPUs of it, that the job could use and that are not in service.
fn all_unavailable(site: &Site, question: &Question) -> Vec<(usize, Unavailable)> {
    let mut away = Vec::new();
    for (at, node) in site.nodes.iter().enumerate() {
        let Some((own, _)) = site.config.mig.pool_of(&node.name) else {
            continue;
        };
        if !may_use(&question.filter, node) {
            continue;
        }
        let one = |gpu: Option<NvmlIndex>, state: &str| {
            let one = Unavailable {
                node: node.name.clone(),
                gpu: gpu.map(NvmlIndex::index),
                state: state.into(),
            };
            (at, one)
        };
        let reserved = question.filter.reserved;
        away.extend(state_of(node, reserved).map(|state| one(None, state)));
        let out = out_of_service(site, node);
        let gpus = own.gpus.iter().enumerate();
        let gpus = gpus.filter(|(nth, _)| out.0.contains(*nth));
        away.extend(gpus.map(|(_, nvml)| one(Some(nvml), "out of service")));
    }
    away
}

/// Ends the running jobs one after the other, those without a known end last, until enough nodes have room.
fn ends(site: &Site, jobs: &[Job], question: &Question, ask: &Ask, board: usize) -> Option<Claim> {
    let mut then = Slices::read(site, jobs).ok()?;
    let request = &question.filter.request;
    let named = &request.required_nodes;
    let wanted = question.nodes as usize;
    let mut taken: Vec<u64> = (0..site.nodes.len()).map(|node| then.taken(node)).collect();
    let free = |node: &gpuos_host::slurm::NodeRecord| {
        let cpus = node.cpus.saturating_sub(node.cpus_allocated);
        (
            cpus,
            node.memory_mib.saturating_sub(node.memory_allocated_mib),
        )
    };
    let mut rest: Vec<(u32, u64)> = site.nodes.iter().map(free).collect();
    let fits = |then: &mut Slices<'_>, node: usize, taken: u64, (cpus, memory): (u32, u64)| {
        let record = &site.nodes[node];
        let considered = question
            .only
            .as_ref()
            .is_none_or(|only| only.contains(&(node as u32)));
        let may = record.is_up() && considered && question.filter.allows(record);
        let fits = cpus >= request.cpus_per_node
            && (!site.memory_counts() || memory >= request.memory_mib_per_node);
        let Ok(number) = then.numbers[node] else {
            return false;
        };
        if !may || !fits || then.pool.kind_of(number) != board {
            return false;
        }
        then.pool.see(number, taken, out_of_service(site, record));
        let prices = then.pool.prices();
        then.pool
            .pick(&mut Effort::default(), &prices, number, ask)
            .is_some()
    };
    // In the order in which they come to have room.
    let mut able: Vec<usize> = Vec::new();
    for node in 0..site.nodes.len() {
        if fits(&mut then, node, taken[node], rest[node]) {
            able.push(node);
        }
    }
    let mut order: Vec<&Job> = jobs.iter().filter(|job| job.is_running()).collect();
    order.sort_by_key(|job| (known_end(job).is_none(), known_end(job), job.id));
    for (nth, job) in order.iter().enumerate() {
        then.pool.ends(job.id);
        for part in &job.allocations {
            for node in site.indices(&part.nodes).0 {
                let node = node as usize;
                let own = then.tenants[node].iter().filter(|one| one.job.id == job.id);
                taken[node] &= !own.fold(0, |all, one| all | one.taken());
                rest[node].0 = rest[node].0.saturating_add(part.cpus);
                rest[node].1 = rest[node].1.saturating_add(part.memory_mib);
                if !able.contains(&node) && fits(&mut then, node, taken[node], rest[node]) {
                    able.push(node);
                }
            }
        }
        let is_named = |node: &usize| named.contains(&(*node as u32));
        if able.len() < wanted || able.iter().filter(|node| is_named(node)).count() < named.len() {
            continue;
        }
        let others = able.iter().filter(|node| !is_named(node));
        let others = others.take(wanted.saturating_sub(named.len()));
        let chosen: Vec<&str> = able
            .iter()
            .filter(|node| is_named(node))
            .chain(others)
            .map(|node| site.nodes[*node].name.as_str())
            .collect();
        let ended = order[..=nth].iter();
        let stood = |job: &&&Job| job.nodes.iter().any(|node| chosen.contains(&node.as_str()));
        let needed: Vec<&Job> = ended.filter(stood).copied().collect();
        return Some(claim_after(&needed));
    }
    None
}

/// The claim that the end of these jobs makes room.
fn claim_after(needed: &[&Job]) -> Claim {
    let label = |job: &&Job| job.label.clone();
    let open = needed.iter().filter(|job| known_end(job).is_none());
    let open: Vec<String> = open.map(label).collect();
    let jobs = needed.iter().map(label).collect();
    match needed.iter().filter_map(|job| known_end(job)).max() {
        Some(at) if open.is_empty() => Claim::FitsAt {
            at: at.into(),
            jobs,
        },
        _ => Claim::FitsAfter { jobs, open },
    }
}
