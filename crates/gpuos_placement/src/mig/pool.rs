//! The slices of a cluster as slurmctld sees them: bits of nodes that are taken or free.
//!
//! Slurm keeps which slices are taken, not what stands on them. The states of the packer are kept by
//! comparing these bits: what is free and legal beside them can be given. Only of what a GPU can run
//! out of besides slices, the one media extension of an H100, is remembered who has it.
use std::collections::HashMap;

use gpuos_model::gpu_index::{PoolGpu, PoolSet};
use gpuos_model::mig::profile::{Geometry, GeometryError};
use gpuos_model::mig::states::{NONE, State};

use super::demand::{Class, KINDS, NO_PROFILE, NODE_GPUS};
use super::pack::{Packer, Place, Prices};
use super::request::{MigRequest, Serves};
use super::set::{Effort, MOST_INSTANCES, NodeStates};
use super::tile::tile;

/// Slices of a node that can be steered.
pub const MOST_BITS: usize = 64;

/// What one job asks for on each of its nodes, by kind of GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    kinds: Vec<Option<OfKind>>,
    /// What counts for the mix, for one node.
    classes: Vec<(Class, u16)>,
}

/// The same on GPUs of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
struct OfKind {
    serves: Serves,
    /// Each instance by its profile, largest first.
    profiles: Vec<u8>,
    /// Some of them takes what a GPU can run out of besides slices.
    scarce: bool,
}

/// Slices for a job on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick {
    /// The slices as bits of the node.
    pub bits: u64,
    /// What others lose, in thousandths of a GPU.
    pub cost: u64,
}

impl Pick {
    /// The order in which nodes with room are offered, the smallest first: those that a job names, then those that are
    /// free first (0: now), then by Slurm's weight of the node and by what others lose.
    pub fn order(
        &self,
        named: bool,
        at: i64,
        weight: u64,
        node: usize,
    ) -> (bool, i64, u64, u64, usize) {
        (!named, at, weight, self.cost, node)
    }
}

/// Something of which a GPU has few, in the hands of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scarce {
    job: u32,
    gpu: PoolGpu,
    spot: usize,
}

/// What is known of one node.
#[derive(Clone, Debug)]
struct Node {
    kind: usize,
    gpus: usize,
    taken: u64,
    /// GPUs that are out of service.
    out: PoolSet,
    /// The states have to be found anew.
    stale: bool,
    scarce: Vec<Scarce>,
}

/// All nodes with GPUs that are divided.
#[derive(Clone, Debug)]
pub struct Pool {
    packer: Packer,
    nodes: Vec<Node>,
    /// The nodes where a job has something scarce.
    scarce: HashMap<u32, Vec<u32>>,
    places: Vec<Place>,
}

impl Pool {
    /// A pool without nodes.
    ///
    /// # Errors
    /// As [`Packer::new`].
    pub fn new(kinds: Vec<Geometry>) -> Result<Pool, GeometryError> {
        Ok(Pool {
            packer: Packer::new(kinds)?,
            nodes: Vec::new(),
            scarce: HashMap::new(),
            places: Vec::with_capacity(MOST_INSTANCES),
        })
    }

    /// Adds a node with so many idle GPUs of a kind; its number, from 0 on. `None`: there is no such kind, or
    /// it has more slices than [`MOST_BITS`] or more GPUs than a node can have.
    pub fn add_node(&mut self, kind: usize, gpus: usize) -> Option<u32> {
        let slices = self.geometry(kind)?.slices();
        if gpus == 0 || gpus > NODE_GPUS || gpus * usize::from(slices) > MOST_BITS {
            return None;
        }
        let number = self.nodes.len() as u32;
        (0..gpus).for_each(|_| {
            self.packer.add(number, kind);
        });
        self.nodes.push(Node {
            kind,
            gpus,
            taken: 0,
            out: PoolSet::EMPTY,
            stale: false,
            scarce: Vec::new(),
        });
        Some(number)
    }

    /// How many kinds of GPU there are.
    pub fn kinds(&self) -> usize {
        self.packer.kinds().len()
    }

    /// How a kind of GPU can be divided.
    pub fn geometry(&self, kind: usize) -> Option<&Geometry> {
        self.packer.kinds().get(kind).map(|kind| kind.geometry())
    }

    /// The kind of a node's GPUs.
    pub fn kind_of(&self, node: u32) -> usize {
        self.nodes[node as usize].kind
    }

    /// How many slices a node has.
    pub fn slices_of(&self, node: u32) -> usize {
        let node = &self.nodes[node as usize];
        let slices = self
            .geometry(node.kind)
            .map_or(0, |geometry| geometry.slices());
        node.gpus * usize::from(slices)
    }

    /// How many instances of each profile fit on a node as it was seen last, by profile; each as if it were the
    /// only one.
    pub fn fits(&self, node: u32) -> Vec<u32> {
        let kind = &self.packer.kinds()[self.kind_of(node)];
        let profiles = 0..kind.geometry().profiles().len();
        let states = self.packer.node_states(node);
        let count = |profile| {
            let each = states.iter().filter(|state| **state != NONE);
            each.map(|state| u32::from(kind.fit(*state, profile))).sum()
        };
        profiles.map(count).collect()
    }

    /// A node as it is now: slices that are taken, and GPUs that are out of service.
    pub fn see(&mut self, node: u32, taken: u64, out: PoolSet) {
        let known = &mut self.nodes[node as usize];
        if !known.stale && (known.taken, known.out) == (taken, out) {
            return;
        }
        let before = (known.taken, known.out, known.stale);
        (known.taken, known.out, known.stale) = (taken, out, false);
        let known = known.clone();
        let slices = usize::from(
            self.geometry(known.kind)
                .map_or(1, |geometry| geometry.slices()),
        );
        for gpu in (0..known.gpus).filter_map(PoolGpu::new) {
            let own = mask(slices) << (gpu.index() * slices);
            let same = (before.0 ^ taken) & own == 0 && before.1.contains(gpu) == out.contains(gpu);
            if same && !before.2 {
                continue;
            }
            let state = self.state(&known, gpu, taken);
            let gpu = self.packer.node(node)[gpu.index()];
            if self.packer.at(gpu).1 != state {
                self.packer.set_state(gpu, state);
            }
        }
    }

    /// The state of a GPU with these slices of its node taken.
    fn state(&self, node: &Node, gpu: PoolGpu, taken: u64) -> State {
        if node.out.contains(gpu) {
            return NONE;
        }
        let states = self.packer.kinds()[node.kind].states();
        let geometry = self.packer.kinds()[node.kind].geometry();
        let slices = usize::from(geometry.slices());
        let own = (taken >> (gpu.index() * slices) & mask(slices)) as u16;
        let mut state = 0;
        for one in node.scarce.iter().filter(|one| one.gpu == gpu) {
            let placement = states
                .spots()
                .get(one.spot)
                .map_or(0, |spot| spot.placement);
            // Of a job whose slices are free again.
            if placement & own != placement {
                continue;
            }
            match states.make(state, one.spot) {
                NONE => {}
                next => state = next,
            }
        }
        states.covering(state, own)
    }

    /// A job has these slices of these nodes.
    pub fn holds(&mut self, job: u32, ask: &Ask, on: impl IntoIterator<Item = (u32, u64)>) {
        self.ends(job);
        for (number, bits) in on {
            let Some(node) = self.nodes.get_mut(number as usize) else {
                continue;
            };
            let Some(asked) = ask.of(node.kind).filter(|asked| asked.scarce) else {
                continue;
            };
            let kind = &self.packer.kinds()[node.kind];
            node.stale = true;
            let cuts = tile(kind.geometry(), bits, &asked.serves).unwrap_or_default();
            for cut in cuts {
                let spot = kind.states().spot(cut.profile, cut.placement.start);
                if let Some(spot) = spot.filter(|_| kind.states().is_scarce(cut.profile)) {
                    let gpu = cut.gpu;
                    node.scarce.push(Scarce { job, gpu, spot });
                    self.scarce.entry(job).or_default().push(number);
                }
            }
        }
    }

    /// A job has no slices any more.
    pub fn ends(&mut self, job: u32) {
        for node in self.scarce.remove(&job).unwrap_or_default() {
            let node = &mut self.nodes[node as usize];
            node.scarce.retain(|one| one.job != job);
            node.stale = true;
        }
    }

    /// A job for so many nodes has arrived; it counts for the mix.
    pub fn arrives(&mut self, ask: &Ask, nodes: u32) {
        for (class, count) in &ask.classes {
            let all = u32::from(*count).saturating_mul(nodes.max(1));
            self.packer.arrives(class, all.min(u16::MAX.into()) as u16);
        }
    }

    /// What places cost now; the same for all nodes of one decision.
    pub fn prices(&self) -> Prices {
        self.packer.prices()
    }

    /// The cheapest slices for a job on a node, as it was seen last; `None`: it has no room, or none was found
    /// with the `effort` that is left for this job's decision.
    pub fn pick(
        &mut self,
        effort: &mut Effort,
        prices: &Prices,
        node: u32,
        ask: &Ask,
    ) -> Option<Pick> {
        let states = self.packer.node_states(node);
        self.pick_of(effort, prices, node, &states, ask)
    }

    /// When a node has room for a job, as the jobs on it end, and as many slices that are free then and not before:
    /// `ends` are times with the slices that are given back, in the order of time. They are placements for its
    /// instances, unless it waits for something else that a GPU has only one of.
    pub fn pick_later(
        &mut self,
        effort: &mut Effort,
        prices: &Prices,
        number: u32,
        ask: &Ask,
        ends: &[(i64, u64)],
    ) -> Option<(i64, Pick)> {
        let node = self.nodes.get(number as usize)?.clone();
        let mut taken = node.taken;
        for same in ends.chunk_by(|(one, _), (next, _)| one == next) {
            let back = same.iter().fold(0, |all, (_, bits)| all | bits) & taken;
            taken &= !back;
            let mut states: NodeStates = [NONE; NODE_GPUS];
            let gpus = (0..node.gpus).filter_map(PoolGpu::new);
            for (gpu, state) in gpus.zip(&mut states) {
                *state = self.state(&node, gpu, taken);
            }
            let Some(mut pick) = self.pick_of(effort, prices, number, &states, ask) else {
                continue;
            };
            if pick.bits & back == 0 {
                let lowest = |bits: u64| bits & bits.wrapping_neg();
                pick.bits = pick.bits & !lowest(pick.bits) | lowest(back);
            }
            return Some((same[0].0, pick));
        }
        None
    }

    fn pick_of(
        &mut self,
        effort: &mut Effort,
        prices: &Prices,
        node: u32,
        states: &NodeStates,
        ask: &Ask,
    ) -> Option<Pick> {
        let kind = self.nodes.get(node as usize)?.kind;
        let asked = ask.of(kind)?;
        let packer = &self.packer;
        let first = *packer.node(node).first()?;
        let bits = |places: &[Place]| {
            let each = places.iter().map(|place| {
                let kind = &packer.kinds()[kind];
                let placement = kind.states().spots()[place.spot].placement;
                let gpu = (place.gpu - first) as usize;
                u64::from(placement) << (gpu * usize::from(kind.geometry().slices()))
            });
            each.fold(0, |all, bits| all | bits)
        };
        let places = &mut self.places;
        // Whoever makes the instances knows the slices only: what it finds in them must fit too.
        let accept =
            |places: &[Place]| found_again(packer, kind, states, bits(places), &asked.serves);
        let accept = asked.scarce.then_some(accept);
        let profiles = &asked.profiles;
        let at = (node, states);
        let cost = packer.choose_set(effort, prices, at, profiles, places, accept)?;
        Some(Pick {
            bits: bits(places),
            cost,
        })
    }
}

/// Whether the instances that are found in these slices fit beside what is on the GPUs.
fn found_again(
    packer: &Packer,
    kind: usize,
    states: &NodeStates,
    bits: u64,
    serves: &Serves,
) -> bool {
    let kind = &packer.kinds()[kind];
    let Some(cuts) = tile(kind.geometry(), bits, serves) else {
        return false;
    };
    let mut states = *states;
    cuts.iter().all(|cut| {
        let Some(spot) = kind.states().spot(cut.profile, cut.placement.start) else {
            return false;
        };
        let state = &mut states[cut.gpu.index()];
        *state = match *state {
            NONE => NONE,
            now => kind.states().make(now, spot),
        };
        *state != NONE
    })
}

impl Ask {
    /// What a job with `--gpuos-mig` asks for that Slurm has to give so many slices of each node. `None`: on no
    /// kind of GPU are these as many as the request takes.
    pub fn of_request(request: &MigRequest, pool: &Pool, slices: u64) -> Option<Ask> {
        let mut classes = vec![([NO_PROFILE; KINDS], 0); request.items.len()];
        let mut each = 1;
        let kinds = pool.packer.kinds().iter().enumerate().map(|(at, kind)| {
            let geometry = kind.geometry();
            let mut serves = request.serves(geometry)?;
            let unit = taken(geometry, &serves);
            let times = match request.per_task {
                true if unit > 0 && slices.is_multiple_of(unit) => slices / unit,
                _ => 1,
            };
            let times = u16::try_from(times).ok()?;
            for (_, count) in &mut serves {
                *count = count.checked_mul(times)?;
            }
            if taken(geometry, &serves) != slices {
                return None;
            }
            each = times;
            for ((class, _), item) in classes.iter_mut().zip(&request.items) {
                class[at] = item.profile(geometry)? as u8;
            }
            OfKind::new(pool, at, serves)
        });
        let kinds: Vec<Option<OfKind>> = kinds.collect();
        for ((_, count), item) in classes.iter_mut().zip(&request.items) {
            *count = item.count.saturating_mul(each);
        }
        let any = kinds.iter().any(Option::is_some);
        any.then_some(Ask { kinds, classes })
    }

    /// What a job asks for that only says how many slices of each node it wants: one placement of the smallest
    /// profile with so many. `None`: no kind of GPU has such a profile.
    pub fn of_slices(pool: &Pool, slices: u64) -> Option<Ask> {
        let mut class = [NO_PROFILE; KINDS];
        let kinds = pool.packer.kinds().iter().enumerate().map(|(at, kind)| {
            let all = kind.geometry().profiles().iter().enumerate();
            let fits = all.filter(|(_, p)| u64::from(p.size) == slices && p.suffix().is_empty());
            let (number, _) = fits.min_by_key(|(_, p)| (p.compute, p.memory_mib, p.id))?;
            class[at] = number as u8;
            OfKind::new(pool, at, vec![(number, 1)])
        });
        let kinds: Vec<Option<OfKind>> = kinds.collect();
        let any = kinds.iter().any(Option::is_some);
        any.then(|| Ask {
            kinds,
            classes: vec![(class, 1)],
        })
    }

    fn of(&self, kind: usize) -> Option<&OfKind> {
        self.kinds.get(kind)?.as_ref()
    }

    /// Its instances on GPUs of a kind.
    pub fn serves(&self, kind: usize) -> Option<&Serves> {
        Some(&self.of(kind)?.serves)
    }

    /// Whether GPUs of a kind serve it.
    pub fn fits_kind(&self, kind: usize) -> bool {
        self.of(kind).is_some()
    }

    /// The profiles with their counts on GPUs of a kind: `3g.40gb:1,1g.10gb:2`.
    pub fn names(&self, pool: &Pool, kind: usize) -> String {
        let (Some(asked), Some(geometry)) = (self.of(kind), pool.geometry(kind)) else {
            return String::new();
        };
        let name = |&(profile, count): &(usize, u16)| {
            format!("{}:{count}", geometry.profiles()[profile].name)
        };
        let names: Vec<String> = asked.serves.iter().map(name).collect();
        names.join(",")
    }
}

impl OfKind {
    fn new(pool: &Pool, kind: usize, serves: Serves) -> Option<OfKind> {
        let count: usize = serves.iter().map(|&(_, count)| usize::from(count)).sum();
        if count == 0 || count > MOST_INSTANCES {
            return None;
        }
        let states = pool.packer.kinds()[kind].states();
        let each = serves
            .iter()
            .map(|&(profile, count)| vec![profile as u8; usize::from(count)]);
        Some(OfKind {
            profiles: each.flatten().collect(),
            scarce: serves.iter().any(|&(profile, _)| states.is_scarce(profile)),
            serves,
        })
    }
}

/// How many slices instances take.
fn taken(geometry: &Geometry, serves: &Serves) -> u64 {
    let size = |profile: usize| u64::from(geometry.profiles()[profile].size);
    let each = serves
        .iter()
        .map(|&(profile, count)| size(profile) * u64::from(count));
    each.sum()
}

fn mask(slices: usize) -> u64 {
    match slices {
        64.. => u64::MAX,
        _ => (1 << slices) - 1,
    }
}
