//! The policies that the fragmentation gradient was published against, by their descriptions.

use std::collections::BTreeMap;

use gpuos_model::rng::Rng;
use gpuos_placement::frag::{Choice, Cluster, MAX_DEVICES, MILLI, Request, Score, Slot, State};

use super::Policy;

/// Figures that cores and GPUs are divided by: the largest node of the trace.
const LARGEST_CPU: u64 = 128_000;
const LARGEST_GPU: u64 = 8_000;

/// The fullest GPU with room for a sharing request, any for others.
fn tightest(state: &State, request: &Request) -> Slot {
    let room = |&free: &u16| free >= request.share;
    let found = state.free.iter().position(room);
    found.unwrap_or(MAX_DEVICES - 1)
}

/// What is left of cores and GPUs, each against the largest node, as little as possible.
pub struct BestFit;

impl Score for BestFit {
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let cpu = u64::from(state.cpu - request.cpu);
        let gpu = u64::from(state.idle() - request.milli());
        // 100 * (cpu / LARGEST_CPU + gpu / LARGEST_GPU) / 2, rounded up.
        let left = 50 * (cpu * LARGEST_GPU + gpu * LARGEST_CPU);
        let score = 100 - left.div_ceil(LARGEST_CPU * LARGEST_GPU) as i64;
        Some((score, tightest(state, request)))
    }
}

/// The node whose idle part points least into the direction of the request.
pub struct DotProduct;

impl Score for DotProduct {
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let product = |idle: u32, wanted: u32, largest: u64| {
            // In 2^-40 of one.
            ((u128::from(idle) * u128::from(wanted)) << 40) / u128::from(largest * largest)
        };
        let both = product(state.cpu, request.cpu, LARGEST_CPU)
            + product(state.idle(), request.milli(), LARGEST_GPU);
        let score = 100 - (50 * both).div_ceil(1 << 40) as i64;
        Some((score, tightest(state, request)))
    }
}

/// Shared GPUs before idle GPUs of used nodes before idle nodes.
pub struct Packing;

impl Score for Packing {
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let slot = tightest(state, request);
        let whole = state.whole() as i64;
        let score = if request.gpus == 0 {
            0
        } else if whole == i64::from(state.gpus) {
            (33 - whole).max(whole)
        } else if state.free[slot] == MILLI {
            (50 - i64::from(request.gpus)).max(33)
        } else {
            (100 - i64::from(state.free[slot]) / 100).max(50)
        };
        Some((score, slot))
    }
}

/// Nodes that run jobs of the same kind: sharing, or the same number of whole GPUs.
#[derive(Default)]
pub struct Clustering {
    /// By node: jobs of each kind.
    kinds: Vec<BTreeMap<u8, u32>>,
}

/// 0 for a sharing job, else the number of GPUs.
fn kind(request: &Request) -> Option<u8> {
    let kind = if request.shares() { 0 } else { request.gpus };
    (request.gpus > 0).then_some(kind)
}

impl Policy for Clustering {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        self.kinds.resize(cluster.states().len(), BTreeMap::new());
        let score = |node: usize, state: &State| {
            let Some(kind) = kind(request) else { return 0 };
            let here = &self.kinds[node];
            let base = match (here.contains_key(&kind), here.len()) {
                (true, 1) => 75,
                (true, _) => 50,
                (false, 0) => 25,
                (false, _) => 0,
            };
            base + 25 * LARGEST_GPU.saturating_sub(u64::from(state.idle())) / LARGEST_GPU
        };
        let mut best: Option<(u64, Choice)> = None;
        for (node, state) in fitting(cluster, request) {
            let score = score(node, state);
            if best.is_none_or(|(known, _)| score > known) {
                let slot = tightest(state, request);
                best = Some((score, Choice { node, slot }));
            }
        }
        best.map(|(_, choice)| choice)
    }

    fn started(&mut self, node: usize, request: &Request) {
        if let Some(kind) = kind(request) {
            *self.kinds[node].entry(kind).or_default() += 1;
        }
    }

    fn ended(&mut self, node: usize, request: &Request) {
        let Some(kind) = kind(request) else { return };
        if let Some(jobs) = self.kinds[node].get_mut(&kind) {
            *jobs -= 1;
            if *jobs == 0 {
                self.kinds[node].remove(&kind);
            }
        }
    }
}

/// Any node with room and any GPU with room there.
pub struct Random(Rng);

impl Random {
    /// Random choices from a seed.
    pub fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }
}

impl Policy for Random {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        let count = fitting(cluster, request).count() as u64;
        let pick = self.0.below(count) as usize;
        let (node, state) = fitting(cluster, request).nth(pick)?;
        let first = tightest(state, request);
        let slot = if request.shares() {
            first + self.0.below((MAX_DEVICES - first) as u64) as usize
        } else {
            first
        };
        Some(Choice { node, slot })
    }
}

/// The nodes where a request can start, by index.
pub fn fitting<'a>(
    cluster: &'a Cluster,
    request: &'a Request,
) -> impl Iterator<Item = (usize, &'a State)> {
    let nodes = cluster.states().iter().enumerate();
    nodes.filter(|(_, state)| state.fits(request))
}
