//! A kind of GPU in a pool: its states, what still fits in each, and which GPUs are in which.
use gpuos_model::mig::profile::{Geometry, GeometryError};
use gpuos_model::mig::states::{State, States};

use super::demand::{CLASSES, Class, NO_PROFILE, NODE_GPUS};

/// No GPU.
pub(super) const NOBODY: u32 = u32::MAX;

/// How many more instances of each class fit.
pub(super) type Fits = [u8; CLASSES];

/// A kind of GPU.
#[derive(Clone, Debug)]
pub struct Kind {
    pub(super) geometry: Geometry,
    pub(super) states: States,
    /// By state and profile: how many instances of it fit at once.
    fits: Vec<u8>,
    /// By state, the same by class.
    pub(super) rows: Vec<Fits>,
    /// By state: GPUs in it, and the first of them. Idle GPUs are in `idle` instead.
    pub(super) counts: Vec<u32>,
    pub(super) heads: Vec<u32>,
    /// Which states have GPUs, idle ones left aside.
    pub(super) present: Vec<u64>,
    /// By idle GPUs of their node: the first idle GPU.
    pub(super) idle: [u32; NODE_GPUS + 1],
}

impl Kind {
    pub(super) fn new(geometry: Geometry) -> Result<Kind, GeometryError> {
        let states = States::new(&geometry)?;
        let profiles = geometry.profiles().len();
        let mut fits = vec![0u8; states.count() * profiles];
        // What fits after one was made is known first: it has more slices taken.
        for state in (0..states.count()).rev() {
            for profile in 0..profiles {
                let after = states.fits(state as State, profile);
                let best = after.map(|(_, next)| 1 + fits[usize::from(next) * profiles + profile]);
                fits[state * profiles + profile] = best.max().unwrap_or(0);
            }
        }
        Ok(Kind {
            rows: vec![[0; CLASSES]; states.count()],
            counts: vec![0; states.count()],
            heads: vec![NOBODY; states.count()],
            present: vec![0; states.count().div_ceil(64)],
            idle: [NOBODY; NODE_GPUS + 1],
            geometry,
            states,
            fits,
        })
    }

    /// How the GPU can be divided.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its states.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// How many instances of a profile fit at once in a state.
    pub fn fit(&self, state: State, profile: usize) -> u8 {
        let profiles = self.geometry.profiles().len();
        match profile < profiles {
            true => self.fits[usize::from(state) * profiles + profile],
            false => 0,
        }
    }

    /// Thousandths of the GPU that are idle in a state.
    pub fn idle_milli(&self, state: State) -> u32 {
        let slices = u32::from(self.geometry.slices().max(1));
        let taken = self.states.mask(state).count_ones();
        1000 * slices.saturating_sub(taken) / slices
    }

    /// Thousandths of the GPU that an instance of a profile takes.
    pub fn milli(&self, profile: usize) -> u32 {
        let slices = u32::from(self.geometry.slices().max(1));
        let profile = self.geometry.profiles().get(profile);
        profile.map_or(0, |profile| 1000 * u32::from(profile.size) / slices)
    }

    /// Writes a class into the rows.
    pub(super) fn learn(&mut self, number: usize, class: &Class, kind: usize) {
        let profile = class[kind];
        for state in 0..self.states.count() {
            self.rows[state][number] = match profile {
                NO_PROFILE => 0,
                profile => self.fit(state as State, usize::from(profile)),
            };
        }
    }

    /// The states that have GPUs, idle ones left aside, in ascending order.
    pub(super) fn present(&self) -> impl Iterator<Item = State> {
        let words = self.present.iter().enumerate();
        words.flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some((at * 64) as State + bit as State)
            })
        })
    }
}
