//! Which GPU and which placement an instance gets.
//!
//! Every instance costs the placements that others lose. A lost fit of a class of requests has a price
//! in the manner of [`crate::frag::prices`]: how much of the demand leans on it, by how many such
//! fits there still are. With `w_c` the part of the recent mix that a class has (by GPU work asked
//! for), `I` the idle thousandths of GPUs and `C` all of them, `n_c(s)` how many instances of the
//! class fit at once on a GPU in state `s`, and `N_c`, `M_c` the sums of that over all GPUs as they
//! are and if they were idle,
//!
//! `cost(s -> t) = sum over c of w_c * (I + e C) / (N_c + e M_c) * (n_c(s) - n_c(t))`
//!
//! in thousandths of a GPU. Jobs for whole GPUs are classes of the same sum: a gang of `g` GPUs of a
//! node fits `floor(k / g)` times on `k` idle GPUs, and loses by the first slice that is cut out of
//! one of them. So one number weighs a slice on a divided GPU against one on an idle GPU of a broken
//! node and one on an idle GPU of a whole node.
//!
//! GPUs stand in lists by state, and the idle ones by how many idle GPUs their node has: a decision
//! looks at states, of which there are a few hundred, not at GPUs. It allocates nothing.
use gpuos_model::mig::profile::{Geometry, GeometryError};
use gpuos_model::mig::states::{NONE, State};

use super::demand::{CLASSES, Class, Demand, KINDS, NO_PROFILE, NODE_GPUS, WEIGHTS};
use super::kind::{Fits, Kind, NOBODY};

/// Part of all GPUs that counts as idle besides, in thousandths: what becomes free again. The same
/// as for whole GPUs.
const COMING: u64 = 20;
/// Costs are computed in `1 / FINE` of a thousandth of a GPU.
pub(super) const FINE: u64 = 1 << 10;

/// A GPU of a pool, by the number that [`Packer::add`] gave.
pub type Gpu = u32;

/// A GPU and a placement for one instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The GPU.
    pub gpu: Gpu,
    /// Number of the spot in its kind's [`gpuos_model::mig::States::spots`].
    pub spot: usize,
    /// What others lose, in thousandths of a GPU: the slices that it takes are not in it.
    pub cost: u64,
}

/// What stands at a GPU now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) kind: u8,
    /// [`NONE`] while it is not in the pool: given as a whole, or out of service.
    pub(super) state: State,
    node: u32,
    /// The one before and after it in its list.
    before: u32,
    after: u32,
}

/// The GPUs of a pool and what the next request costs where.
#[derive(Clone, Debug)]
pub struct Packer {
    pub(super) kinds: Vec<Kind>,
    pub(super) gpus: Vec<Slot>,
    /// By node: idle GPUs, and its GPUs.
    pub(super) nodes: Vec<(u8, Vec<Gpu>)>,
    demand: Demand,
    /// Fits of each class on all GPUs, as they are and if all were idle.
    fits: [[u64; 2]; CLASSES],
    /// The same for gangs by GPUs of a node, from 1 on.
    gangs: [[u64; 2]; NODE_GPUS],
    /// Idle thousandths, and all.
    idle: [u64; 2],
}

/// A GPU on which an instance could be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) gpu: Gpu,
    pub(super) state: State,
    /// What it costs besides to cut it, where it is idle: see [`Prices::cut`].
    pub(super) cut: u64,
}

/// What one lost fit costs, in `1 / FINE` of a thousandth of a GPU.
pub struct Prices {
    classes: [u64; CLASSES],
    /// By idle GPUs of a node: what it costs to cut one of them.
    pub(super) cut: [u64; NODE_GPUS + 1],
}

impl Prices {
    pub(super) fn value(&self, fits: &Fits) -> u64 {
        let each = self.classes.iter().zip(fits);
        each.map(|(price, &fits)| price * u64::from(fits)).sum()
    }
}

impl Packer {
    /// A pool without GPUs. Every profile of every kind counts a little from the start, so that
    /// placements have a price before the first job.
    ///
    /// # Errors
    /// Too many kinds of GPU, or one that can be divided in too many ways.
    pub fn new(kinds: Vec<Geometry>) -> Result<Packer, GeometryError> {
        if kinds.len() > KINDS {
            let given = kinds.len();
            return Err(GeometryError(format!(
                "{given} kinds of GPU in MIG mode, more than {KINDS}"
            )));
        }
        let kinds: Result<Vec<Kind>, GeometryError> = kinds.into_iter().map(Kind::new).collect();
        let mut packer = Packer {
            kinds: kinds?,
            gpus: Vec::new(),
            nodes: Vec::new(),
            demand: Demand::new(),
            fits: [[0; 2]; CLASSES],
            gangs: [[0; 2]; NODE_GPUS],
            idle: [0; 2],
        };
        for kind in 0..packer.kinds.len() {
            let profiles = packer.kinds[kind].geometry.profiles().iter().enumerate();
            let plain: Vec<u8> = profiles
                .filter(|(_, profile)| profile.suffix().is_empty())
                .map(|(number, _)| number as u8)
                .take(CLASSES / packer.kinds.len())
                .collect();
            for profile in plain {
                let mut class = [NO_PROFILE; KINDS];
                class[kind] = profile;
                packer.know(&class);
            }
        }
        Ok(packer)
    }

    /// Adds an idle GPU to a node; nodes are numbered from 0 on. Allocates.
    ///
    /// # Panics
    /// There is no such kind, or the node has [`NODE_GPUS`] already.
    pub fn add(&mut self, node: u32, kind: usize) -> Gpu {
        let gpu = self.gpus.len() as Gpu;
        let at = node as usize;
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, Default::default);
        }
        let members = &mut self.nodes[at].1;
        assert!(
            members.len() < NODE_GPUS,
            "a node has at most {NODE_GPUS} GPUs"
        );
        members.push(gpu);
        let all = members.len();
        self.gpus.push(Slot {
            kind: kind as u8,
            state: NONE,
            node,
            before: NOBODY,
            after: NOBODY,
        });
        let row = self.kinds[kind].rows[0];
        for (fits, row) in self.fits.iter_mut().zip(row) {
            fits[1] += u64::from(row);
        }
        for (gang, fits) in (1..).zip(&mut self.gangs) {
            fits[1] += (all / gang - (all - 1) / gang) as u64;
        }
        self.idle[1] += 1000;
        self.enter(gpu, 0);
        gpu
    }

    /// The kinds of GPU.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// How many GPUs there are.
    pub fn count(&self) -> usize {
        self.gpus.len()
    }

    /// Kind of a GPU, and its state: [`NONE`] while it is out of the pool.
    pub fn at(&self, gpu: Gpu) -> (usize, State) {
        let slot = self.gpus[gpu as usize];
        (usize::from(slot.kind), slot.state)
    }

    /// Idle thousandths of GPUs in the pool, and all of them.
    pub fn idle(&self) -> [u64; 2] {
        self.idle
    }

    /// GPUs on which nothing is.
    pub fn whole(&self) -> usize {
        self.nodes.iter().map(|node| usize::from(node.0)).sum()
    }

    /// A request for `count` instances of a class has arrived; it counts for the mix.
    pub fn arrives(&mut self, class: &Class, count: u16) {
        self.know(class);
        let each = self.kinds.iter().zip(class);
        let milli = each.filter(|(_, profile)| **profile != NO_PROFILE);
        let milli = milli
            .map(|(kind, &profile)| kind.milli(usize::from(profile)))
            .min();
        let milli = u64::from(milli.unwrap_or(0)) * u64::from(count);
        self.demand.slices(class, milli);
    }

    /// A job for so many whole GPUs on each of so many nodes has arrived; it counts for the mix.
    pub fn gang_arrives(&mut self, gpus: usize, nodes: u32) {
        self.demand.gang_arrived(gpus, nodes);
    }

    /// The cheapest place for one instance among the GPUs of all nodes.
    pub fn choose(&mut self, class: &Class) -> Option<Place> {
        self.know(class);
        let prices = self.prices();
        let mut best: Option<(Place, u32)> = None;
        for (kind, &profile) in self.kinds.iter().zip(class) {
            if profile == NO_PROFILE {
                continue;
            }
            for state in kind.present() {
                let gpu = kind.heads[usize::from(state)];
                let cut = 0;
                let candidate = Candidate { gpu, state, cut };
                consider(&mut best, &prices, kind, candidate, profile);
            }
            for (&gpu, &cut) in kind.idle.iter().zip(&prices.cut) {
                if gpu != NOBODY {
                    let candidate = Candidate { gpu, state: 0, cut };
                    consider(&mut best, &prices, kind, candidate, profile);
                }
            }
        }
        best.map(rounded)
    }

    /// The cheapest place for one instance among some GPUs, for example those of one node.
    pub fn choose_among(&mut self, class: &Class, gpus: &[Gpu]) -> Option<Place> {
        self.know(class);
        let prices = self.prices();
        let mut best = None;
        for &gpu in gpus {
            let slot = self.gpus[gpu as usize];
            let profile = class[usize::from(slot.kind)];
            if slot.state == NONE || profile == NO_PROFILE {
                continue;
            }
            let cut = match slot.state {
                0 => prices.cut[usize::from(self.nodes[slot.node as usize].0)],
                _ => 0,
            };
            let kind = &self.kinds[usize::from(slot.kind)];
            let state = slot.state;
            let candidate = Candidate { gpu, state, cut };
            consider(&mut best, &prices, kind, candidate, profile);
        }
        best.map(rounded)
    }

    /// The GPUs of a node.
    pub fn node(&self, node: u32) -> &[Gpu] {
        self.nodes.get(node as usize).map_or(&[], |node| &node.1)
    }

    /// An instance was made. `false` when it does not fit, and nothing has changed.
    pub fn make(&mut self, gpu: Gpu, spot: usize) -> bool {
        let (kind, state) = self.at(gpu);
        let next = self.kinds[kind].states.make(state, spot);
        self.move_to(gpu, next)
    }

    /// An instance was destroyed. `false` when there was none, and nothing has changed.
    pub fn destroy(&mut self, gpu: Gpu, spot: usize) -> bool {
        let (kind, state) = self.at(gpu);
        let next = self.kinds[kind].states.destroy(state, spot);
        self.move_to(gpu, next)
    }

    /// An idle GPU leaves the pool: a job has it as a whole, or it is out of service. `false` when
    /// it is not idle or not there.
    pub fn take(&mut self, gpu: Gpu) -> bool {
        let idle = self.at(gpu).1 == 0;
        if idle {
            self.leave(gpu);
        }
        idle
    }

    /// A GPU that was taken is back, idle. `false` when it was not taken.
    pub fn release(&mut self, gpu: Gpu) -> bool {
        let taken = self.at(gpu).1 == NONE;
        if taken {
            self.enter(gpu, 0);
        }
        taken
    }

    /// A GPU is in this state, by what others say of it: [`NONE`] takes it out of the pool.
    pub fn set_state(&mut self, gpu: Gpu, state: State) {
        let now = self.at(gpu).1;
        if now != NONE {
            self.leave(gpu);
        }
        if state != NONE {
            self.enter(gpu, state);
        }
    }

    fn move_to(&mut self, gpu: Gpu, next: State) -> bool {
        if next != NONE {
            self.leave(gpu);
            self.enter(gpu, next);
        }
        next != NONE
    }

    /// Makes a class known, and counts its fits.
    pub(super) fn know(&mut self, class: &Class) {
        let Some(number) = self.demand.know(class) else {
            return;
        };
        let mut fits = [0; 2];
        for (at, kind) in self.kinds.iter_mut().enumerate() {
            kind.learn(number, class, at);
            let rows = kind.rows.iter().zip(&kind.counts);
            fits[0] += rows
                .map(|(row, &n)| u64::from(row[number]) * u64::from(n))
                .sum::<u64>();
            let all = self
                .gpus
                .iter()
                .filter(|gpu| usize::from(gpu.kind) == at)
                .count();
            fits[1] += u64::from(kind.rows[0][number]) * all as u64;
        }
        self.fits[number] = fits;
    }

    /// What a lost fit costs as things are now.
    pub fn prices(&self) -> Prices {
        let total = self.demand.total().max(1);
        let idle = self.idle[0] + self.idle[1] * COMING / 1000;
        let price = |count: u64, [now, all]: [u64; 2]| {
            // In thousandths, so that small pools round little.
            let supply = u128::from((now * 1000 + all * COMING).max(1));
            let weight = u128::from(count) * u128::from(WEIGHTS) / u128::from(total);
            let leans = weight * u128::from(idle * FINE) * 1000;
            (leans / supply / u128::from(WEIGHTS)) as u64
        };
        let mut prices = Prices {
            classes: [0; CLASSES],
            cut: [0; NODE_GPUS + 1],
        };
        let known = self.demand.classes().iter().zip(&self.fits);
        for (mine, (&(_, count), &fits)) in prices.classes.iter_mut().zip(known) {
            *mine = price(count, fits);
        }
        for (gang, &fits) in (1..).zip(&self.gangs) {
            let count = self.demand.gang(gang);
            if count > 0 {
                let price = price(count, fits);
                let cuts = prices.cut.iter_mut().enumerate().skip(1);
                cuts.for_each(|(k, cut)| *cut += price * (k / gang - (k - 1) / gang) as u64);
            }
        }
        prices
    }

    /// Puts a GPU into the list of a state.
    fn enter(&mut self, gpu: Gpu, state: State) {
        self.gpus[gpu as usize].state = state;
        if state == 0 {
            self.idle_count(gpu, true);
        } else {
            self.link(gpu);
        }
        self.count_fits(gpu, state, true);
    }

    /// Takes a GPU out of the list of its state.
    fn leave(&mut self, gpu: Gpu) {
        let state = self.gpus[gpu as usize].state;
        self.count_fits(gpu, state, false);
        if state == 0 {
            self.idle_count(gpu, false);
        } else {
            self.unlink(gpu);
        }
        self.gpus[gpu as usize].state = NONE;
    }

    fn count_fits(&mut self, gpu: Gpu, state: State, more: bool) {
        let kind = &mut self.kinds[usize::from(self.gpus[gpu as usize].kind)];
        let idle = u64::from(kind.idle_milli(state));
        let add = |sum: &mut u64, by: u64| *sum = if more { *sum + by } else { *sum - by };
        add(&mut self.idle[0], idle);
        let row = &kind.rows[usize::from(state)];
        for (fits, &row) in self.fits.iter_mut().zip(row) {
            add(&mut fits[0], u64::from(row));
        }
        let count = &mut kind.counts[usize::from(state)];
        *count = if more { *count + 1 } else { *count - 1 };
    }

    /// A GPU becomes idle or is no longer: its node's idle GPUs change lists, all of them.
    fn idle_count(&mut self, gpu: Gpu, more: bool) {
        let node = self.gpus[gpu as usize].node as usize;
        let members = std::mem::take(&mut self.nodes[node].1);
        for &member in members.iter().filter(|&&member| member != gpu) {
            if self.gpus[member as usize].state == 0 {
                self.unlink(member);
            }
        }
        if !more {
            self.unlink(gpu);
        }
        let before = usize::from(self.nodes[node].0);
        let now = if more { before + 1 } else { before - 1 };
        self.nodes[node].0 = now as u8;
        for (gang, fits) in (1..).zip(&mut self.gangs) {
            fits[0] = fits[0] + (now / gang) as u64 - (before / gang) as u64;
        }
        for &member in members.iter().filter(|&&member| member != gpu) {
            if self.gpus[member as usize].state == 0 {
                self.link(member);
            }
        }
        if more {
            self.link(gpu);
        }
        self.nodes[node].1 = members;
    }

    /// The head of the list in which a GPU stands by its state.
    fn head(&mut self, gpu: Gpu) -> &mut u32 {
        let slot = self.gpus[gpu as usize];
        let kind = &mut self.kinds[usize::from(slot.kind)];
        match slot.state {
            0 => &mut kind.idle[usize::from(self.nodes[slot.node as usize].0)],
            state => &mut kind.heads[usize::from(state)],
        }
    }

    fn link(&mut self, gpu: Gpu) {
        let first = std::mem::replace(self.head(gpu), gpu);
        if first != NOBODY {
            self.gpus[first as usize].before = gpu;
        }
        let slot = &mut self.gpus[gpu as usize];
        (slot.before, slot.after) = (NOBODY, first);
        if slot.state != 0 {
            let (kind, state) = (usize::from(slot.kind), usize::from(slot.state));
            self.kinds[kind].present[state / 64] |= 1 << (state % 64);
        }
    }

    fn unlink(&mut self, gpu: Gpu) {
        let slot = self.gpus[gpu as usize];
        match slot.before {
            NOBODY => *self.head(gpu) = slot.after,
            before => self.gpus[before as usize].after = slot.after,
        }
        if slot.after != NOBODY {
            self.gpus[slot.after as usize].before = slot.before;
        }
        if slot.state != 0 && slot.before == NOBODY && slot.after == NOBODY {
            let (kind, state) = (usize::from(slot.kind), usize::from(slot.state));
            self.kinds[kind].present[state / 64] &= !(1 << (state % 64));
        }
    }
}

/// Costs are compared finely and told in whole thousandths of a GPU.
fn rounded((place, _): (Place, u32)) -> Place {
    let cost = place.cost / FINE;
    Place { cost, ..place }
}

/// Looks at the placements of one GPU. Of equally cheap places the fullest GPU wins, and on it the
/// placement at the far end, as the driver has it.
pub(super) fn consider(
    best: &mut Option<(Place, u32)>,
    prices: &Prices,
    kind: &Kind,
    Candidate { gpu, state, cut }: Candidate,
    profile: u8,
) {
    let mut worth = None;
    for (spot, next) in kind.states.fits(state, usize::from(profile)) {
        let worth =
            *worth.get_or_insert_with(|| prices.value(&kind.rows[usize::from(state)]) + cut);
        let cost = worth - prices.value(&kind.rows[usize::from(next)]);
        let taken = kind.states.mask(state).count_ones();
        let better = best.is_none_or(|(place, filled)| {
            (cost, std::cmp::Reverse(taken)) < (place.cost, std::cmp::Reverse(filled))
                || (cost == place.cost && taken == filled && gpu == place.gpu)
        });
        if better {
            *best = Some((Place { gpu, spot, cost }, taken));
        }
    }
}
