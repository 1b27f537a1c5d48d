//! Who chooses GPU and placement.

use gpuos_model::mig::{NONE, State};
use gpuos_placement::mig::{Class, KINDS, NO_PROFILE, Packer};

use super::board::Board;

/// GPUs of a node.
pub const NODE: u32 = 8;

/// A policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// gpuos's packer, which learns the mix as jobs come.
    Gpuos,
    /// The first GPU that has room, the first placement on it.
    FirstFit,
    /// The first GPU that has room, and there the placement that the driver takes by itself.
    NvidiaOrder,
    /// The GPU with the fewest free slices that has room, the first placement on it.
    BestFit,
}

impl Packing {
    /// All of them.
    pub const ALL: [Packing; 4] = [
        Packing::Gpuos,
        Packing::FirstFit,
        Packing::NvidiaOrder,
        Packing::BestFit,
    ];

    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Packing::Gpuos => "gpuos",
            Packing::FirstFit => "first-fit",
            Packing::NvidiaOrder => "nvidia-order",
            Packing::BestFit => "best-fit",
        }
    }

    /// The policy with this name.
    pub fn by_name(name: &str) -> Option<Packing> {
        Packing::ALL
            .into_iter()
            .find(|packing| packing.name() == name)
    }
}

/// A pool of GPUs of one board under a policy.
pub struct Pool<'a> {
    board: &'a Board,
    packing: Packing,
    states: Vec<State>,
    packer: Packer,
}

impl<'a> Pool<'a> {
    /// An idle pool.
    ///
    /// # Errors
    /// A board that cannot be packed.
    pub fn new(board: &'a Board, packing: Packing, gpus: u32) -> Result<Pool<'a>, String> {
        let mut packer = Packer::new(vec![board.geometry.clone()]).map_err(|e| e.to_string())?;
        if packing == Packing::Gpuos {
            for gpu in 0..gpus {
                packer.add(gpu / NODE, 0);
            }
        }
        Ok(Pool {
            board,
            packing,
            states: vec![0; gpus as usize],
            packer,
        })
    }

    /// The states of the GPUs.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Makes an instance of a profile where the policy wants it: its GPU and spot. `None` when it
    /// fits nowhere.
    pub fn arrive(&mut self, profile: usize) -> Option<(usize, usize)> {
        let (gpu, spot) = match self.packing {
            Packing::Gpuos => {
                let mut class: Class = [NO_PROFILE; KINDS];
                class[0] = profile as u8;
                self.packer.arrives(&class, 1);
                let place = self.packer.choose(&class)?;
                self.packer.make(place.gpu, place.spot);
                (place.gpu as usize, place.spot)
            }
            Packing::FirstFit => self.first(profile, false)?,
            Packing::NvidiaOrder => self.first(profile, true)?,
            Packing::BestFit => self.fullest(profile)?,
        };
        let next = self.board.states.make(self.states[gpu], spot);
        assert_ne!(
            next,
            NONE,
            "{} chose a placement that is taken",
            self.packing.name()
        );
        self.states[gpu] = next;
        Some((gpu, spot))
    }

    /// An instance is destroyed.
    pub fn end(&mut self, gpu: usize, spot: usize) {
        self.states[gpu] = self.board.states.destroy(self.states[gpu], spot);
        assert_ne!(self.states[gpu], NONE, "there was no such instance");
        if self.packing == Packing::Gpuos {
            self.packer.destroy(gpu as u32, spot);
        }
    }

    fn spot(&self, state: State, profile: usize, by_driver: bool) -> Option<usize> {
        let fits = |spot: &usize| self.board.states.make(state, *spot) != NONE;
        match by_driver {
            true => self.board.default_order[profile].iter().copied().find(fits),
            false => self.board.states.spots_of(profile).find(fits),
        }
    }

    fn first(&self, profile: usize, by_driver: bool) -> Option<(usize, usize)> {
        let mut gpus = self.states.iter().enumerate();
        gpus.find_map(|(gpu, &state)| Some((gpu, self.spot(state, profile, by_driver)?)))
    }

    fn fullest(&self, profile: usize) -> Option<(usize, usize)> {
        let gpus = self.states.iter().enumerate();
        let room = gpus.filter_map(|(gpu, &state)| {
            let spot = self.spot(state, profile, false)?;
            Some((self.board.states.mask(state).count_zeros(), gpu, spot))
        });
        room.min().map(|(_, gpu, spot)| (gpu, spot))
    }
}
