//! What has to happen before a job with slices has room, where that is not told by the ends of jobs on full nodes: jobs
//! without a known end, CPUs and memory, or what is not in service.

use gpuos_core::explain::{Away, Claim};
use gpuos_core::mig::{Ask, Effort};
use gpuos_core::plan::Never;
use gpuos_host::Site;
use gpuos_host::slurm::Job;

use super::plan::Question;
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
    // Without jobs: nobody has a slice, nor what else a GPU has few of.
    let Ok(mut idle) = Slices::read(site, &[]) else {
        return Claim::RoomUnseen;
    };
    let away = all_away(site, question);
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
                has_room(&mut idle, question, (ask, board), *node, gone.collect())
            })
            .collect()
    };
    let enough = |able: &[usize]| {
        able.len() >= wanted && named.iter().all(|node| able.contains(&(*node as usize)))
    };
    let now = able(&vec![false; away.len()]);
    if enough(&now) {
        return ends(site, jobs, question, &now);
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
fn has_room(
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
    let gpus = own.map(|(own, _)| own.gpus.iter().collect::<Vec<usize>>());
    let gpus = gpus.unwrap_or_default().into_iter().enumerate();
    let out = gpus.filter(|(_, nvml)| gone.contains(&Some(*nvml)));
    let out = out.fold(0, |all, (nth, _)| all | 1 << nth);
    idle.pool.see(number, 0, out);
    let prices = idle.pool.prices();
    idle.pool
        .pick(&mut Effort::default(), &prices, number, ask)
        .is_some()
}

/// Nodes of the pool, and GPUs of it, that the job could use and that are not in service.
fn all_away(site: &Site, question: &Question) -> Vec<(usize, Away)> {
    let mut away = Vec::new();
    for (at, node) in site.nodes.iter().enumerate() {
        let Some((own, _)) = site.config.mig.pool_of(&node.name) else {
            continue;
        };
        if !may_use(&question.filter, node) {
            continue;
        }
        let one = |gpu: Option<usize>, state: &str| {
            let one = Away {
                node: node.name.clone(),
                gpu,
                state: state.into(),
            };
            (at, one)
        };
        let reserved = question.filter.reserved;
        away.extend(state_of(node, reserved).map(|state| one(None, state)));
        let out = out_of_service(site, node);
        let gpus = own.gpus.iter().enumerate();
        let gpus = gpus.filter(|(nth, _)| out >> nth & 1 == 1);
        away.extend(gpus.map(|(_, nvml)| one(Some(nvml), "out of service")));
    }
    away
}

/// The jobs on nodes that are enough once they are idle, and when they end.
fn ends(site: &Site, jobs: &[Job], question: &Question, able: &[usize]) -> Claim {
    let named = &question.filter.request.required_nodes;
    let on = |node: usize| {
        let name = &site.nodes[node].name;
        let on = move |job: &&Job| job.is_running() && job.nodes.contains(name);
        jobs.iter().filter(on)
    };
    // Named ones, then those that are free first.
    let free = |node: usize| {
        let last = on(node)
            .map(|job| (known_end(job).is_none(), known_end(job)))
            .max();
        (!named.contains(&(node as u32)), last, node)
    };
    let mut nodes = able.to_vec();
    nodes.sort_by_cached_key(|node| {
        let (named, last, node) = free(*node);
        (
            named,
            last.map(|(open, at)| (open, at.map(String::from))),
            node,
        )
    });
    nodes.truncate((question.nodes as usize).max(named.len()));
    let mut all: Vec<&Job> = nodes.iter().flat_map(|node| on(*node)).collect();
    all.sort_by_key(|job| job.id);
    all.dedup_by_key(|job| job.id);
    if all.is_empty() {
        return Claim::RoomUnseen;
    }
    let label = |job: &&Job| job.label.clone();
    let open: Vec<String> = all
        .iter()
        .filter(|job| known_end(job).is_none())
        .map(label)
        .collect();
    let jobs = all.iter().map(label).collect();
    match all.iter().filter_map(|job| known_end(job)).max() {
        Some(at) if open.is_empty() => Claim::RoomAt {
            at: at.into(),
            jobs,
        },
        _ => Claim::RoomAfter { jobs, open },
    }
}
