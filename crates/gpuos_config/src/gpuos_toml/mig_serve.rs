//! Which board of the pools serves a request for slices: what job_submit asks Slurm for, and what `gpuos mig plan` asks
//! about.
use gpuos_model::mig::Geometry;
use gpuos_placement::mig::{MigRequest, Serves};

use super::mig::{MigBoard, MigConfig, STEERED_SLICES};
use crate::options::{OptionError, refusals};

/// What serves a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// Number of the board in [`MigConfig::boards`].
    pub board: usize,
    /// Its profiles, for one node or for one task of it.
    pub serves: Serves,
    /// Memory slices of each node, for all its tasks.
    pub slices: u64,
}

/// A board that GPUs are in MIG mode of.
struct Pooled {
    /// In [`MigConfig::boards`].
    number: usize,
    /// Steered GPUs of a node, at most.
    most: u32,
    /// GPUs of all nodes.
    all: u32,
}

impl MigConfig {
    /// The board that serves a request of so many tasks on each node. Of several boards it is that of most GPUs, and of
    /// equal ones the first in the file.
    ///
    /// # Errors
    /// No board of a pool serves it: a sentence with the profiles that there are.
    pub fn serve(&self, request: &MigRequest, tasks: u32) -> Result<Served, OptionError> {
        let boards = self.pooled();
        let kinds: Vec<(&Geometry, u32)> = boards
            .iter()
            .map(|board| (&self.boards[board.number].geometry, board.most))
            .collect();
        let served = request
            .resolve(&kinds, tasks)
            .map_err(|no| refusals::not_served(request, no.reason, no.accepted))?;
        let served = boards.iter().zip(served);
        let served = served.filter_map(|(board, serves)| Some((board, serves?)));
        let best = served.min_by_key(|(board, _)| (std::cmp::Reverse(board.all), board.number));
        let (board, serves) = best.ok_or_else(|| refusals::not_of_one_kind(request))?;
        let times = if request.per_task { tasks.max(1) } else { 1 };
        let profiles = self.boards[board.number].geometry.profiles();
        let one =
            |&(profile, count): &(usize, u16)| u64::from(profiles[profile].size) * u64::from(count);
        Ok(Served {
            board: board.number,
            slices: serves.iter().map(one).sum::<u64>() * u64::from(times),
            serves,
        })
    }

    /// The boards of all pools, in the order of the file.
    fn pooled(&self) -> Vec<Pooled> {
        let of = |(number, board): (usize, &MigBoard)| {
            let steered = STEERED_SLICES / usize::from(board.geometry.slices().max(1));
            let pools = self.pools.iter().filter(|pool| pool.board == number);
            let (mut most, mut all) = (0, 0);
            for pool in pools {
                let gpus = pool.gpus.len().min(steered) as u32;
                most = most.max(gpus);
                all += gpus * pool.nodes.len() as u32;
            }
            (all > 0).then_some(Pooled { number, most, all })
        };
        self.boards.iter().enumerate().filter_map(of).collect()
    }
}
