//! Where several instances of one job go on a node.
//!
//! The instances are placed one by one, largest first, each at its cheapest place beside those before
//! it. That can leave the last ones without a placement although there is a way; then all ways are tried,
//! up to [`MOST_STEPS`]. Prices are those before the first: what is compared are nodes, and all of
//! them get the same instances.
use std::collections::HashSet;

use gpuos_model::mig::states::{NONE, State};

use super::demand::NODE_GPUS;
use super::kind::Kind;
use super::pack::{Candidate, FINE, Gpu, Packer, Place, Prices, consider};

/// The most instances that one job can have on a node: one for each slice that is steered.
pub const MOST_INSTANCES: usize = 64;
/// Places that are tried in one decision, on all nodes together. When they are used up, the other nodes get what fits
/// with each instance at its cheapest place, and count as full where that does not work out.
pub const MOST_STEPS: u32 = 20_000;

/// The states of a node's GPUs, in the order of [`Packer::node`].
pub type NodeStates = [State; NODE_GPUS];

/// What the searches of one decision have cost and shown: for one job, and as long as nothing changes but the
/// states that are asked about.
#[derive(Clone, Debug, Default)]
pub struct Effort {
    steps: u32,
    /// Kinds and states of nodes without a way.
    failed: HashSet<(u8, NodeStates)>,
}

impl Effort {
    /// Places that were tried beside the cheapest ones; [`MOST_STEPS`] at most.
    pub fn steps(&self) -> u32 {
        self.steps
    }
}

impl Packer {
    /// The states of a node's GPUs as they are.
    pub fn node_states(&self, node: u32) -> NodeStates {
        let mut states = [NONE; NODE_GPUS];
        for (state, gpu) in states.iter_mut().zip(self.node(node)) {
            *state = self.at(*gpu).1;
        }
        states
    }

    /// Places for instances of these profiles, largest first, on the GPUs of a node, which are of one
    /// kind and in these states. They go to `places`, in the order of `profiles`; what comes back is what others
    /// lose by them, in thousandths of a GPU. `accept` may refuse a whole set, always the same in the same states.
    /// `None`, and no places, where there is no way, or none was found with the `effort` that is left. All calls
    /// with one `effort` have the same profiles for each kind, and the same `accept`.
    pub fn choose_set(
        &self,
        effort: &mut Effort,
        prices: &Prices,
        (node, states): (u32, &NodeStates),
        profiles: &[u8],
        places: &mut Vec<Place>,
        accept: Option<impl FnMut(&[Place]) -> bool>,
    ) -> Option<u64> {
        places.clear();
        if profiles.is_empty() || profiles.len() > MOST_INSTANCES {
            return None;
        }
        let number = self.gpus[*self.node(node).first()? as usize].kind;
        if !may_fit(&self.kinds[usize::from(number)], states, profiles) {
            return None;
        }
        let mut same = *states;
        // Which GPU is which matters to nobody else.
        if accept.is_none() {
            same.sort_unstable();
        }
        if effort.failed.contains(&(number, same)) {
            return None;
        }
        let mut search = Search {
            packer: self,
            prices,
            gpus: self.node(node),
            profiles,
            places,
            accept,
            steps: MOST_STEPS - effort.steps,
        };
        let mut states = *states;
        let found = search.greedy(&mut states) || search.all(&mut states, 0);
        effort.steps = MOST_STEPS - search.steps;
        if found {
            return Some(places.iter().map(|place| place.cost).sum::<u64>() / FINE);
        }
        places.clear();
        // After the last step nothing more is searched, and there is no need to know.
        if effort.steps < MOST_STEPS {
            effort.failed.insert((number, same));
        }
        None
    }
}

/// Whether enough slices are free, and placements for the instances of each profile if they were alone.
fn may_fit(kind: &Kind, states: &NodeStates, profiles: &[u8]) -> bool {
    let there = || states.iter().filter(|state| **state != NONE);
    let slices = u32::from(kind.geometry.slices());
    let free = |state: &State| slices.saturating_sub(kind.states.mask(*state).count_ones());
    let size = |profile: &u8| u32::from(kind.geometry.profiles()[usize::from(*profile)].size);
    let placements = |profile: u8| {
        let each = there().map(|state| usize::from(kind.fit(*state, profile.into())));
        each.sum::<usize>()
    };
    profiles.iter().map(size).sum::<u32>() <= there().map(free).sum()
        && profiles
            .chunk_by(|one, next| one == next)
            .all(|same| same.len() <= placements(same[0]))
}

struct Search<'a, A> {
    packer: &'a Packer,
    prices: &'a Prices,
    gpus: &'a [Gpu],
    profiles: &'a [u8],
    places: &'a mut Vec<Place>,
    accept: Option<A>,
    steps: u32,
}

impl<A: FnMut(&[Place]) -> bool> Search<'_, A> {
    fn accepts(&mut self) -> bool {
        let accept = self.accept.as_mut();
        accept.is_none_or(|accept| accept(self.places))
    }

    /// Each at its cheapest place; nothing has changed where that does not work out.
    fn greedy(&mut self, states: &mut NodeStates) -> bool {
        let before = *states;
        for &profile in self.profiles {
            let Some(place) = self.cheapest(states, profile) else {
                break;
            };
            self.make(states, place);
        }
        if self.places.len() == self.profiles.len() && self.accepts() {
            return true;
        }
        self.places.clear();
        *states = before;
        false
    }

    /// The cheapest place of one more instance; its cost is fine.
    fn cheapest(&self, states: &NodeStates, profile: u8) -> Option<Place> {
        let mut best = None;
        for (&gpu, &state) in self.gpus.iter().zip(states) {
            if state == NONE {
                continue;
            }
            let slot = self.packer.gpus[gpu as usize];
            let kind = &self.packer.kinds[usize::from(slot.kind)];
            let cut = self.cut(states, state);
            let candidate = Candidate { gpu, state, cut };
            consider(&mut best, self.prices, kind, candidate, profile);
        }
        best.map(|(place, _)| place)
    }

    /// What it costs besides to take a slice of a GPU in this state.
    fn cut(&self, states: &NodeStates, state: State) -> u64 {
        match state {
            0 => {
                let idle = states.iter().filter(|state| **state == 0).count();
                self.prices.cut[idle]
            }
            _ => 0,
        }
    }

    fn make(&mut self, states: &mut NodeStates, place: Place) {
        let at = self.gpus.iter().position(|gpu| *gpu == place.gpu);
        let kind = usize::from(self.packer.gpus[place.gpu as usize].kind);
        if let Some(state) = at.and_then(|at| states.get_mut(at)) {
            *state = self.packer.kinds[kind].states.make(*state, place.spot);
            self.places.push(place);
        }
    }

    /// Tries all places of the instances from `from` on. Equal instances go to ascending places.
    fn all(&mut self, states: &mut NodeStates, from: usize) -> bool {
        let Some(&profile) = self.profiles.get(from) else {
            return self.accepts();
        };
        let last = match from.checked_sub(1) {
            Some(before) if self.profiles[before] == profile => self.places.last().copied(),
            _ => None,
        };
        for at in 0..self.gpus.len() {
            let (gpu, state) = (self.gpus[at], states[at]);
            if state == NONE || last.is_some_and(|last| gpu < last.gpu) {
                continue;
            }
            let kind = &self.packer.kinds[usize::from(self.packer.gpus[gpu as usize].kind)];
            for spot in kind.states.spots_of(usize::from(profile)) {
                let next = kind.states.make(state, spot);
                let before = last.is_some_and(|last| last.gpu == gpu && spot < last.spot);
                if next == NONE || before {
                    continue;
                }
                let Some(steps) = self.steps.checked_sub(1) else {
                    return false;
                };
                self.steps = steps;
                let value = |state: State| self.prices.value(&kind.rows[usize::from(state)]);
                let cost = (value(state) + self.cut(states, state)).saturating_sub(value(next));
                states[at] = next;
                self.places.push(Place { gpu, spot, cost });
                if self.all(states, from + 1) {
                    return true;
                }
                self.places.pop();
                states[at] = state;
            }
        }
        false
    }
}
