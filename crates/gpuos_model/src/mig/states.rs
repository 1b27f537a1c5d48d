//! All that can stand on a GPU at once, as numbers.
//!
//! A state says which memory slices are taken and how much of what else is scarce: instances of a
//! profile with a limit, media engines, compute slices. What can never run out before the placements do
//! is left out, so that on every board known a state is little more than the mask of its slices
//! (A100 to B200: 8 slices, the media extension is the only scarce thing). The states that can be
//! reached from the idle GPU are numbered once, and making or destroying an instance is a look into
//! a table.
use std::collections::BTreeMap;

use super::profile::{ENGINES, Geometry, GeometryError, Profile};

/// A state of a GPU, by its number in [`States`]. 0 is the idle GPU; a state that has more memory
/// slices taken has a higher number.
pub type State = u16;

/// Where there is no such state.
pub const NONE: State = State::MAX;

/// The most states of one kind of GPU. An H100 has fewer than 512; 12 slices in any order with one
/// scarce thing make 8,192.
const MOST_STATES: usize = 16_384;

/// A profile at a placement: one thing that can be made on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Number of the profile in the geometry.
    pub profile: u8,
    /// First memory slice.
    pub start: u8,
    /// The memory slices.
    pub placement: u16,
}

/// The states of a kind of GPU, and what leads from one to another.
#[derive(Clone, Debug)]
pub struct States {
    spots: Vec<Spot>,
    /// By profile: its first spot, and one after its last.
    ranges: Vec<(u16, u16)>,
    /// By state: the slices that are taken.
    masks: Vec<u16>,
    /// By state: what is used of each scarce thing.
    used: Vec<Vec<u32>>,
    /// By profile: whether it takes something scarce.
    scarce: Vec<bool>,
    /// By state and spot: the state after it was made, and after it was destroyed.
    made: Vec<State>,
    gone: Vec<State>,
}

/// Something of which a GPU has a limited amount: what an instance of each profile takes of it.
pub type Scarce = (Vec<u32>, u32);

/// A state before it has a number: taken slices, and what is used of each scarce thing.
type Key = (u16, Vec<u32>);

impl States {
    /// Finds all states. Allocates; done once for each kind of GPU.
    ///
    /// # Errors
    /// A geometry of which more things can be made than any GPU has.
    pub fn new(geometry: &Geometry) -> Result<States, GeometryError> {
        let scarce = scarce(geometry);
        let mut spots = Vec::new();
        let mut ranges = Vec::new();
        for (number, profile) in geometry.profiles().iter().enumerate() {
            let first = spots.len() as u16;
            spots.extend(profile.starts.iter().map(|&start| Spot {
                profile: number as u8,
                start,
                placement: profile.placement(start),
            }));
            ranges.push((first, spots.len() as u16));
        }
        let mut found: BTreeMap<Key, ()> = BTreeMap::new();
        let mut open: Vec<Key> = vec![(0, vec![0; scarce.len()])];
        while let Some(key) = open.pop() {
            if found.contains_key(&key) {
                continue;
            }
            open.extend(spots.iter().filter_map(|spot| after(&key, spot, &scarce)));
            found.insert(key, ());
            if found.len() > MOST_STATES {
                return Err(GeometryError(format!(
                    "the GPU can be divided in more than {MOST_STATES} ways"
                )));
            }
        }
        // By taken slices, so that what can be made of a state comes after it.
        let mut keys: Vec<Key> = found.into_keys().collect();
        keys.sort_by_key(|key| (key.0.count_ones(), key.clone()));
        let numbers: BTreeMap<&Key, State> = keys.iter().zip(0..).collect();
        let mut made = vec![NONE; keys.len() * spots.len()];
        let mut gone = made.clone();
        for (state, key) in keys.iter().enumerate() {
            for (number, spot) in spots.iter().enumerate() {
                let next = after(key, spot, &scarce).and_then(|next| numbers.get(&next).copied());
                if let Some(next) = next {
                    made[state * spots.len() + number] = next;
                    gone[usize::from(next) * spots.len() + number] = state as State;
                }
            }
        }
        let profiles = 0..geometry.profiles().len();
        let takes = |profile: usize| scarce.iter().any(|(takes, _)| takes[profile] > 0);
        Ok(States {
            masks: keys.iter().map(|key| key.0).collect(),
            scarce: profiles.map(takes).collect(),
            used: keys.into_iter().map(|key| key.1).collect(),
            spots,
            ranges,
            made,
            gone,
        })
    }

    /// How many states there are.
    pub fn count(&self) -> usize {
        self.masks.len()
    }

    /// All spots; those of one profile stand together, by ascending start.
    pub fn spots(&self) -> &[Spot] {
        &self.spots
    }

    /// The numbers of the spots of a profile.
    pub fn spots_of(&self, profile: usize) -> std::ops::Range<usize> {
        let (from, to) = self.ranges.get(profile).copied().unwrap_or_default();
        usize::from(from)..usize::from(to)
    }

    /// The number of a spot.
    pub fn spot(&self, profile: usize, start: u8) -> Option<usize> {
        self.spots_of(profile)
            .find(|&spot| self.spots[spot].start == start)
    }

    /// The memory slices taken in a state.
    pub fn mask(&self, state: State) -> u16 {
        self.masks.get(usize::from(state)).copied().unwrap_or(0)
    }

    /// The state after a spot was made; [`NONE`] where it does not fit.
    pub fn make(&self, state: State, spot: usize) -> State {
        let at = usize::from(state) * self.spots.len() + spot;
        self.made.get(at).copied().unwrap_or(NONE)
    }

    /// The state after a spot was destroyed; [`NONE`] where it cannot be there.
    pub fn destroy(&self, state: State, spot: usize) -> State {
        let at = usize::from(state) * self.spots.len() + spot;
        self.gone.get(at).copied().unwrap_or(NONE)
    }

    /// Whether a GPU can run out of something for an instance of this profile while placements are free.
    pub fn is_scarce(&self, profile: usize) -> bool {
        self.scarce.get(profile).copied().unwrap_or(false)
    }

    /// The state of a GPU of which these slices are taken, by whom or what is not known, and on which
    /// there are the instances of `state`. Where no instances have just these slices, that of the
    /// fewest more: what fits in it fits beside what is there. [`NONE`] where there is none.
    pub fn covering(&self, state: State, taken: u16) -> State {
        let Some(used) = self.used.get(usize::from(state)) else {
            return NONE;
        };
        let taken = taken | self.mask(state);
        let covers = |&at: &usize| {
            self.masks[at] & taken == taken
                && self.used[at].iter().zip(used).all(|(has, is)| has >= is)
        };
        (0..self.count())
            .find(covers)
            .map_or(NONE, |at| at as State)
    }

    /// The spots of a profile that fit in a state, with the states after them.
    pub fn fits(&self, state: State, profile: usize) -> impl Iterator<Item = (usize, State)> {
        let all = self
            .spots_of(profile)
            .map(move |spot| (spot, self.make(state, spot)));
        all.filter(|&(_, next)| next != NONE)
    }

    /// The state of a GPU on which these spots are; [`NONE`] when they cannot be together.
    pub fn of(&self, spots: impl IntoIterator<Item = usize>) -> State {
        let make = |state, spot| match state {
            NONE => NONE,
            state => self.make(state, spot),
        };
        spots.into_iter().fold(0, make)
    }
}

/// The state after a spot was made.
fn after((mask, used): &Key, spot: &Spot, scarce: &[Scarce]) -> Option<Key> {
    if mask & spot.placement != 0 {
        return None;
    }
    let mut used = used.clone();
    for (used, (takes, limit)) in used.iter_mut().zip(scarce) {
        *used += takes[usize::from(spot.profile)];
        if *used > *limit {
            return None;
        }
    }
    Some((mask | spot.placement, used))
}

/// What can run out on a GPU while placements are still free.
pub fn scarce(geometry: &Geometry) -> Vec<Scarce> {
    let profiles = geometry.profiles();
    let each = |of: &dyn Fn(&Profile) -> u32| profiles.iter().map(of).collect::<Vec<u32>>();
    let mut all: Vec<Scarce> = vec![(
        each(&|p| u32::from(p.compute)),
        u32::from(geometry.compute()),
    )];
    for engine in 0..ENGINES {
        // As many engines as the instances of one profile have that NVML allows at once.
        let takes = each(&|p| u32::from(p.engines[engine]));
        let most = profiles.iter().zip(&takes);
        let limit = most.map(|(p, takes)| takes * u32::from(p.most)).max();
        all.push((takes, limit.unwrap_or(0)));
    }
    for limited in profiles {
        let takes = each(&|p| u32::from(p.id == limited.id));
        all.push((takes, u32::from(limited.most)));
    }
    let mut binding: Vec<Scarce> = Vec::new();
    for (takes, limit) in all {
        if most_of(geometry, &takes) > limit && !binding.contains(&(takes.clone(), limit)) {
            binding.push((takes, limit));
        }
    }
    binding
}

/// The most of something that instances take whose placements do not overlap.
fn most_of(geometry: &Geometry, takes: &[u32]) -> u32 {
    let slices = usize::from(geometry.slices());
    // By first free slice.
    let mut best = vec![0; slices + 1];
    for from in (0..slices).rev() {
        best[from] = best[from + 1];
        for (profile, takes) in geometry.profiles().iter().zip(takes) {
            if profile.starts.contains(&(from as u8)) {
                best[from] = best[from].max(takes + best[from + usize::from(profile.size)]);
            }
        }
    }
    best[0]
}
