//! The field of a job on one node: the nodes with room for all of it.
use super::job::{Assume, Job};
use super::rank::{nodes_of, pick};
use super::state::State;
use super::{Linked, Planner, bits};

/// Whether a job could run on one node under the assumption of [`super::capacity::offers`].
pub(super) fn fits_one(planner: &mut Planner, job: &Job, linked: Linked) -> bool {
    field(planner, job) && found(planner, job, job.gpus_on_one() as usize, linked) > 0
}

/// Collects the nodes with room for the whole job as things are; returns how many they are.
pub(super) fn field_now(planner: &mut Planner, job: &Job) -> u32 {
    let (state, field) = (&planner.state, planner.single.field.as_mut_slice());
    planner.capacity.assume = Assume::Now;
    planner.capacity.offered = 0;
    let all = job.gpus_on_one();
    if job.unit as usize > planner.capacity.gpus() {
        return 0;
    }
    let (candidates, part) = (state.candidates(), state.now.least(job.unit as usize));
    let whole = job.whole.then(|| state.now.whole());
    let needy = job.cpus_per_node > 0 || job.cpus_per_gpu > 0 || job.memory_mib > 0;
    if all == u64::from(job.unit) && whole.is_none() && !needy {
        let mut found = 0;
        for ((field, part), candidates) in field.iter_mut().zip(part).zip(candidates) {
            *field = part & candidates;
            found += field.count_ones();
        }
        planner.capacity.offered = found;
    } else {
        planner.capacity.offered = field_with_requirements(planner, job);
    }
    if !job.required.is_empty() {
        only_required(planner, job);
    }
    match job.required.is_empty() && all == u64::from(job.unit) {
        true => planner.capacity.offered,
        false => bits::count_all(&planner.single.field),
    }
}

/// The same for a job that wants more than free GPUs for one of its units; returns how many nodes
/// have room for one.
#[inline(never)]
fn field_with_requirements(planner: &mut Planner, job: &Job) -> u32 {
    let rooms = FittingNodes::new(&planner.state, job, planner.capacity.gpus());
    let mut offered = 0;
    for (word, field) in planner.single.field.iter_mut().enumerate() {
        let (fit, enough) = rooms.word(word, u64::MAX);
        *field = enough;
        offered += fit.count_ones();
    }
    offered
}

/// Leaves only the node that the job names; none when it names several.
#[cold]
fn only_required(planner: &mut Planner, job: &Job) {
    let field = &mut planner.single.field;
    if let [first, others @ ..] = job.required {
        let only = planner.fabric.place(*first).filter(|_| others.is_empty());
        let only = only.filter(|&at| bits::has(field, at));
        field.fill(0);
        if let Some(at) = only {
            bits::set_member(field, at, true);
        }
    }
}

/// Collects the nodes with room for the whole job by what [`super::capacity::offers`] has found; false when
/// there is none.
fn field(planner: &mut Planner, job: &Job) -> bool {
    let room = &planner.capacity;
    let units = job.units.unwrap_or(1);
    let field = &mut planner.single.field;
    field.fill(0);
    for units in units..=room.most {
        let nodes = room.exactly(units);
        field.iter_mut().zip(nodes).for_each(|(word, n)| *word |= n);
    }
    only_required(planner, job);
    planner.single.field.iter().any(|&word| word != 0)
}

/// How many nodes of the field are a choice.
#[inline(never)]
pub(super) fn found(planner: &mut Planner, job: &Job, count: usize, linked: Linked) -> u32 {
    let field = &planner.single.field;
    if linked == Linked::Ignore {
        return bits::count_all(field);
    }
    let mut found = 0;
    let index = planner.state.index(planner.capacity.assume);
    for &slot in index.active() {
        let pattern = *index.pattern(slot);
        if let Some((_, side)) = pick(&mut planner.tables, &pattern, count, job, linked) {
            let nodes = nodes_of(index, &planner.fabric, slot, side);
            let here = nodes.zip(field).map(|(n, f)| (n & f).count_ones());
            found += here.sum::<u32>();
        }
    }
    found
}

/// Which nodes have room for a job on one node.
pub struct FittingNodes<'a> {
    state: &'a State,
    job: &'a Job<'a>,
    /// The nodes with free GPUs for one of its units, and for all of it.
    part: &'a [u64],
    enough: Option<&'a [u64]>,
    /// CPUs that no node with room for any part lacks.
    need: u32,
}

impl<'a> FittingNodes<'a> {
    /// `most` = GPUs of the largest node; no unit is larger.
    pub fn new(state: &'a State, job: &'a Job, most: usize) -> FittingNodes<'a> {
        let all = job.gpus_on_one();
        let with_gpus = job.cpus_per_gpu.saturating_mul(match job.units {
            Some(_) => most as u32,
            None => job.unit,
        });
        FittingNodes {
            state,
            job,
            part: state.now.least(job.unit as usize),
            enough: (all <= most as u64).then(|| state.now.least(all as usize)),
            need: job.cpus_per_node.max(with_gpus),
        }
    }

    /// Of one word of the candidates: those with room for a unit, and those with room for all.
    #[inline]
    pub fn word(&self, word: usize, mask: u64) -> (u64, u64) {
        let (state, job) = (self.state, self.job);
        let mut fit = self.part[word] & state.candidates()[word] & mask;
        if job.whole {
            fit &= state.now.whole()[word];
        }
        let mut field = fit & self.enough.map_or(0, |nodes| nodes[word]);
        let (cpus, memory) = state.floor[word];
        if fit != 0 && (cpus < self.need || memory < job.memory_mib) {
            let units = job.units.unwrap_or(1);
            for at in bits::each(word, fit) {
                let has = job.capacity(state.node(at));
                let bit = 1u64 << (at % 64);
                if has == 0 {
                    fit &= !bit;
                }
                if has < units {
                    field &= !bit;
                }
            }
        }
        (fit, field)
    }
}
