//! Which jobs would have to go from a node so that the instances of one that waits fit there.
//!
//! A job goes as a whole, with all its instances. Most jobs are on one GPU, and what a GPU can take does not depend on the
//! others: for each GPU all sets of its jobs are tried, and the GPUs are put together as coins are for a sum. Jobs on
//! several GPUs of the node tie these together: all sets of them are tried, up to [`most_wide`].
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use gpuos_model::gpu_index::PoolSet;
use gpuos_model::mig::profile::{Geometry, MOST_SLICES};
use gpuos_model::mig::states::{NONE, State, States};

use super::request::Serves;

/// Parts of a request (so many of its first profile, so many of its second, …) that are told apart.
const MOST_PARTS: usize = 4096;

/// A running job, on the node that is asked about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tenant {
    /// Its slices as bits of the node.
    pub bits: u64,
    /// Its instances of profiles that a GPU can run out of while placements are free: GPU and spot.
    pub scarce: Vec<(usize, usize)>,
    /// What it costs to requeue it or to wait for it, in any unit; `None`: it stays.
    pub cost: Option<u64>,
}

/// Who would have to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The jobs, by their places in the list, ascending.
    pub goes: Vec<usize>,
    /// The sum of their costs.
    pub cost: u64,
    /// No other set of jobs makes room for less.
    pub exact: bool,
}

/// Why nobody is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoEviction {
    /// No set of those that may go makes room.
    Proved,
    /// None of the sets that were tried does; there are more.
    NotFound,
}

/// A node.
#[derive(Clone, Copy, Debug)]
pub struct Divided<'a> {
    /// How its GPUs can be divided.
    pub geometry: &'a Geometry,
    /// Their states.
    pub states: &'a States,
    /// How many there are; 64 slices in all at most.
    pub gpus: usize,
    /// Those that are out of service.
    pub out: PoolSet,
}

/// How many jobs on several GPUs may go or stay in all ways, by how many parts the request has.
fn most_wide(parts: usize) -> usize {
    match parts {
        0..=64 => 10,
        65..=512 => 6,
        _ => 3,
    }
}

/// What is best for a part of the request: cost, how many jobs go, and which, as bits of the list of the GPU.
type Best = (u64, u32, u64);
/// What a GPU can take, with what is best for it; and the same by GPU and by the jobs that are away from it.
type Takes = BTreeMap<usize, Best>;
type Known = HashMap<(usize, Vec<usize>), Rc<Takes>>;

/// The cheapest set of jobs that has to go so that all instances of a request fit; of equally cheap ones one with the
/// fewest jobs.
///
/// Whether the instances are found again in their slices ([`super::tile`](fn@super::tile)) is not looked at: with several
/// kinds of which one is scarce the room may still be refused.
///
/// # Errors
/// There is no such set, or none was found.
pub fn evict(
    node: Divided<'_>,
    tenants: &[Tenant],
    serves: &Serves,
) -> Result<Eviction, NoEviction> {
    let slices = usize::from(node.geometry.slices());
    let parts = Parts::new(serves).ok_or(NoEviction::NotFound)?;
    if node.gpus * slices > u64::BITS as usize {
        return Err(NoEviction::NotFound);
    }
    let own = |gpu: usize| mask(slices) << (gpu * slices);
    let on = |tenant: &Tenant| {
        (0..node.gpus)
            .filter(|gpu| tenant.bits & own(*gpu) != 0)
            .count()
    };
    let mut wide: Vec<usize> = (0..tenants.len())
        .filter(|at| tenants[*at].cost.is_some() && on(&tenants[*at]) > 1)
        .collect();
    wide.sort_by_key(|at| (tenants[*at].cost, *at));
    let exact = wide.len() <= most_wide(parts.count);
    wide.truncate(most_wide(parts.count));
    let mut fits = Fits::new(node.states, &parts);
    let mut known = Known::new();
    let mut best: Option<(u64, usize, Vec<usize>)> = None;
    for set in 0u32..1 << wide.len() {
        let away: Vec<usize> = (0..wide.len())
            .filter(|at| set >> at & 1 == 1)
            .map(|at| wide[at])
            .collect();
        let paid = away.iter().filter_map(|at| tenants[*at].cost);
        let paid = paid.fold(0, u64::saturating_add);
        if best.as_ref().is_some_and(|best| best.0 < paid) {
            continue;
        }
        let Some((cost, mut goes)) = without(node, tenants, &away, &parts, (&mut fits, &mut known))
        else {
            continue;
        };
        goes.extend(&away);
        goes.sort_unstable();
        let found = (paid.saturating_add(cost), goes.len(), goes);
        if best.as_ref().is_none_or(|best| found < *best) {
            best = Some(found);
        }
    }
    match best {
        Some((cost, _, goes)) => Ok(Eviction { goes, cost, exact }),
        None if exact => Err(NoEviction::Proved),
        None => Err(NoEviction::NotFound),
    }
}

/// The cheapest of the jobs on one GPU that have to go besides those that are away.
fn without(
    node: Divided<'_>,
    tenants: &[Tenant],
    away: &[usize],
    parts: &Parts,
    (fits, known): (&mut Fits<'_>, &mut Known),
) -> Option<(u64, Vec<usize>)> {
    let slices = usize::from(node.geometry.slices());
    let mut lists = Vec::new();
    // What the GPUs up to here can take at best, and how each of them has its share.
    let mut sums: Vec<Vec<Option<(Best, usize)>>> = Vec::new();
    let mut before = vec![None; parts.count];
    before[0] = Some((0, 0));
    for gpu in (0..node.gpus).filter(|gpu| !node.out.0.contains(*gpu)) {
        let own = mask(slices) << (gpu * slices);
        let here =
            (0..tenants.len()).filter(|at| tenants[*at].bits & own != 0 && !away.contains(at));
        let (may, stay): (Vec<usize>, Vec<usize>) =
            here.partition(|at| tenants[*at].cost.is_some() && tenants[*at].bits & !own == 0);
        let from_here = away
            .iter()
            .copied()
            .filter(|at| tenants[*at].bits & own != 0);
        let takes = known
            .entry((gpu, from_here.collect()))
            .or_insert_with(|| Rc::new(on_gpu(node, tenants, gpu, (&may, &stay), fits)))
            .clone();
        let mut after: Vec<Option<(Best, usize)>> = vec![None; parts.count];
        for (part, sum) in before.iter().enumerate() {
            let Some((cost, jobs)) = *sum else { continue };
            for (&more, &(own_cost, own_jobs, set)) in takes.iter() {
                let Some(all) = parts.add(part, more) else {
                    continue;
                };
                let found = (u64::saturating_add(cost, own_cost), jobs + own_jobs, set);
                if after[all].is_none_or(|(known, _)| (found.0, found.1) < (known.0, known.1)) {
                    after[all] = Some((found, part));
                }
            }
        }
        before = after
            .iter()
            .map(|one| one.map(|((cost, jobs, _), _)| (cost, jobs)))
            .collect();
        sums.push(after);
        lists.push(may);
    }
    let mut part = parts.count - 1;
    let (cost, _) = before[part]?;
    let mut goes = Vec::new();
    for (sum, list) in sums.iter().zip(&lists).rev() {
        let ((_, _, set), from) = sum[part]?;
        goes.extend(
            (0..list.len())
                .filter(|at| set >> at & 1 == 1)
                .map(|at| list[at]),
        );
        part = from;
    }
    Some((cost, goes))
}

/// What a GPU can take, and the cheapest set of its jobs that has to go for it.
fn on_gpu(
    node: Divided<'_>,
    tenants: &[Tenant],
    gpu: usize,
    (may, stay): (&[usize], &[usize]),
    fits: &mut Fits<'_>,
) -> Takes {
    let slices = usize::from(node.geometry.slices());
    let mut takes = Takes::new();
    if may.len() > usize::from(MOST_SLICES) {
        return takes;
    }
    let mut sets: Vec<(u64, u32, u64)> = (0..1u64 << may.len())
        .map(|set| {
            let gone = (0..may.len()).filter(|at| set >> at & 1 == 1);
            let costs = gone.filter_map(|at| tenants[may[at]].cost);
            (costs.fold(0, u64::saturating_add), set.count_ones(), set)
        })
        .collect();
    // The first that makes room for a part is the cheapest.
    sets.sort_unstable();
    for (cost, jobs, set) in sets {
        let left = (0..may.len())
            .filter(|at| set >> at & 1 == 0)
            .map(|at| may[at]);
        let (mut taken, mut state) = (0, 0);
        for tenant in left.chain(stay.iter().copied()).map(|at| &tenants[at]) {
            taken |= tenant.bits >> (gpu * slices) & mask(slices);
            for (_, spot) in tenant.scarce.iter().filter(|one| one.0 == gpu) {
                match node.states.make(state, *spot) {
                    NONE => {}
                    next => state = next,
                }
            }
        }
        let state = node.states.covering(state, taken as u16);
        for part in fits.of(state) {
            takes.entry(*part).or_insert((cost, jobs, set));
        }
    }
    takes
}

/// Parts of a request as numbers: in the digit of each profile, how many of it.
struct Parts {
    profiles: Vec<usize>,
    /// Of each digit: what one counts, and how many there are at most.
    digits: Vec<(usize, usize)>,
    /// How many parts there are; the last is the whole request.
    count: usize,
}

impl Parts {
    fn new(serves: &Serves) -> Option<Parts> {
        let (mut count, mut digits) = (1usize, Vec::new());
        for &(_, most) in serves {
            digits.push((count, usize::from(most)));
            count = count
                .checked_mul(usize::from(most) + 1)
                .filter(|all| *all <= MOST_PARTS)?;
        }
        Some(Parts {
            profiles: serves.iter().map(|one| one.0).collect(),
            digits,
            count,
        })
    }

    fn digit(&self, part: usize, at: usize) -> usize {
        let (one, most) = self.digits[at];
        part / one % (most + 1)
    }

    /// Two parts together; `None`: that is more than the request.
    fn add(&self, a: usize, b: usize) -> Option<usize> {
        let within = (0..self.digits.len())
            .all(|at| self.digit(a, at) + self.digit(b, at) <= self.digits[at].1);
        within.then_some(a + b)
    }
}

/// The parts that fit on a GPU, by its state.
struct Fits<'a> {
    states: &'a States,
    parts: &'a Parts,
    known: HashMap<State, Vec<usize>>,
}

impl<'a> Fits<'a> {
    fn new(states: &'a States, parts: &'a Parts) -> Fits<'a> {
        Fits {
            states,
            parts,
            known: HashMap::new(),
        }
    }

    fn of(&mut self, state: State) -> &[usize] {
        self.learn(state);
        self.known.get(&state).map_or(&[], Vec::as_slice)
    }

    fn learn(&mut self, state: State) {
        if self.known.contains_key(&state) {
            return;
        }
        let mut found = vec![0];
        if state != NONE {
            for at in 0..self.parts.profiles.len() {
                let next: Vec<State> = self
                    .states
                    .fits(state, self.parts.profiles[at])
                    .map(|one| one.1)
                    .collect();
                let one = self.parts.digits[at].0;
                for next in next {
                    self.learn(next);
                    let more = self.known[&next].iter();
                    found.extend(more.filter_map(|part| self.parts.add(*part, one)));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        self.known.insert(state, found);
    }
}

fn mask(slices: usize) -> u64 {
    match slices {
        64.. => u64::MAX,
        _ => (1 << slices) - 1,
    }
}
