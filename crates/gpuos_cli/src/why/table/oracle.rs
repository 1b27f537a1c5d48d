//! What is true of a job in a generated cluster, by trying all sets of nodes: no planner, no model, nothing of the code
//! that makes the sentences.

use super::world::{End, Form, PROFILES, SLICES, Waiting, World, leaf};

/// A cluster in which some things are otherwise than they are now.
#[derive(Clone, Default)]
pub struct If {
    /// Jobs that have ended, by number.
    pub ended: Vec<u32>,
    /// All jobs have ended, also those that nobody sees.
    pub empty: bool,
    /// Nodes and GPUs that are back in service.
    pub back: Vec<(usize, Option<usize>)>,
    /// All of them are.
    pub sound: bool,
}

impl If {
    pub fn ended(jobs: Vec<u32>) -> If {
        If {
            ended: jobs,
            ..If::default()
        }
    }

    pub fn empty() -> If {
        If {
            empty: true,
            ..If::default()
        }
    }

    pub fn sound() -> If {
        If {
            sound: true,
            ..If::empty()
        }
    }
}

/// What a node offers to a job.
#[derive(Clone, Copy, Default, Debug)]
pub struct Offer {
    /// Whether the job may use it at all.
    pub usable: bool,
    pub free: u64,
    pub slices: u64,
    pub cpus: u32,
    pub memory: u64,
}

/// What a node offers in that case.
pub fn offer(world: &World, job: &Waiting, at: usize, case: &If) -> Offer {
    let node = &world.nodes[at];
    let is_back = |what| case.sound || case.back.contains(&(at, what));
    let gone = node.state.is_some() || node.reserved;
    let (mut gpus, mut slices, mut cpus, mut memory) = (0, 0, 0, 0);
    let running = world.running.iter();
    for other in running.filter(|other| !case.empty && !case.ended.contains(&other.id)) {
        for on in other.on.iter().filter(|on| on.0 == at) {
            (gpus, slices) = (gpus | on.1, slices | on.2);
            cpus += other.cpus;
            memory += other.memory;
        }
    }
    let out: u64 = (0..8)
        .filter(|gpu| node.out >> gpu & 1 == 1 && !is_back(Some(*gpu)))
        .map(|gpu| 1 << gpu)
        .sum();
    let whole = !job.whole || cpus == 0 && out == 0;
    let all = (1u64 << node.gpus) - 1;
    let pool = (0..node.pool)
        .filter(|nth| node.pool_out >> nth & 1 == 1 && !is_back(Some(node.gpus + nth)));
    let pool_out = pool.fold(0, |all, nth| all | 0xff << (nth * SLICES));
    let slots = (1u128 << (node.pool * SLICES)) - 1;
    Offer {
        usable: (!gone || is_back(None))
            && whole
            && node.partition == job.partition
            && !job.excluded.contains(&at),
        free: all & !gpus & !out,
        slices: slots as u64 & !slices & !pool_out,
        cpus: node.cpus - cpus,
        memory: node.memory - memory,
    }
}

/// Whether a node that offers this has room for a part of the job: how many units it takes at most.
pub fn units(job: &Waiting, offer: Offer) -> u32 {
    if !offer.usable || offer.cpus < job.cpus || offer.memory < job.memory {
        return 0;
    }
    let free = offer.free.count_ones();
    match job.form {
        Form::Each(gpus) => u32::from(free >= gpus),
        Form::Total(_) => free,
        Form::Task(each, _) => free / each,
        Form::Mig(profile, count) => u32::from(placements(offer.slices, profile, count)),
        Form::None => 1,
    }
}

/// Whether so many instances of a profile have placements of their own in free slices.
fn placements(free: u64, profile: usize, count: u32) -> bool {
    if count == 0 {
        return true;
    }
    let (_, size, starts) = PROFILES[profile];
    let placement = ((1u128 << size) - 1) as u64;
    (0..64 / SLICES).any(|gpu| {
        starts.iter().any(|start| {
            let mask = placement << (gpu * SLICES + start);
            // The last slice's compute part is none: no profile starts there.
            free & mask == mask && placements(free & !mask, profile, count - 1)
        })
    })
}

/// Whether nodes lie in one domain of a level.
pub fn within(level: &str, nodes: &[usize]) -> bool {
    match level {
        "node" => nodes.len() == 1,
        "leaf" => nodes.iter().all(|node| leaf(*node) == leaf(nodes[0])),
        _ => true,
    }
}

/// All sets of nodes on which the job has room.
pub fn places(world: &World, job: &Waiting, case: &If) -> Vec<Vec<usize>> {
    let count = world.nodes.len();
    let offers: Vec<u32> = (0..count)
        .map(|at| units(job, offer(world, job, at, case)))
        .collect();
    let sets = (1..1usize << count).map(|set| {
        (0..count)
            .filter(|at| set >> at & 1 == 1)
            .collect::<Vec<_>>()
    });
    let fits = |set: &Vec<usize>| {
        let size = set.len() as u32;
        let sum: u32 = set.iter().map(|at| offers[*at]).sum();
        let enough = match job.form {
            Form::Total(gpus) => sum >= gpus && gpus >= size,
            Form::Task(_, tasks) => sum >= tasks && tasks >= size,
            _ => true,
        };
        let level = job.level.filter(|(_, required)| *required);
        enough
            && (job.min..=job.max.max(job.min)).contains(&size)
            && set.iter().all(|at| offers[*at] > 0)
            && job.named.iter().all(|at| set.contains(at))
            && level.is_none_or(|(level, _)| within(level, set))
    };
    sets.filter(fits).collect()
}

pub fn fits(world: &World, job: &Waiting, case: &If) -> bool {
    !places(world, job, case).is_empty()
}

/// Nodes that have room for a part now.
pub fn nodes_with_capacity(world: &World, job: &Waiting, case: &If) -> u32 {
    (0..world.nodes.len())
        .filter(|at| units(job, offer(world, job, *at, case)) > 0)
        .count() as u32
}

/// The jobs that a user sees and that end until a moment, by minutes.
pub fn ends_until(world: &World, minutes: u32) -> Vec<u32> {
    let shown = world.running.iter().filter(|job| !job.hidden);
    let ends = shown.filter(|job| matches!(job.end, End::In(at) if at <= minutes));
    ends.map(|job| job.id).collect()
}

/// The narrowest level of the sets: 1 node, 2 leaf, 3 spine.
pub fn narrowest(sets: &[Vec<usize>]) -> Option<u32> {
    sets.iter().map(|set| level_of(set)).min()
}

pub fn level_of(set: &[usize]) -> u32 {
    match (within("node", set), within("leaf", set)) {
        (true, _) => 1,
        (_, true) => 2,
        _ => 3,
    }
}
