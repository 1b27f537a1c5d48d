//! Which process of a program this is.

use std::fmt;

use crate::error::Error;
use crate::words::number;

/// A process of a program: its rank, and how many ranks there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rank {
    rank: u16,
    size: u16,
}

/// Variables with rank and size, of Open MPI, of PMI (MPICH, Intel MPI, `srun --mpi=pmi2`), and of programs that start ranks as torchrun does.
const LAUNCHERS: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "PMI_SIZE"],
    TORCH,
];
const TORCH: [&str; 2] = ["RANK", "WORLD_SIZE"];
const SLURM: [&str; 2] = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"];
/// torchrun sets it for its processes alone.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// Slurm's numbers of steps from here on are the batch script, the interactive shell and the like.
const SPECIAL_STEP: u64 = 0xffff_fff0;

impl Rank {
    /// The only process of a program.
    pub const ALONE: Rank = Rank { rank: 0, size: 1 };

    /// Rank `rank` of `size`.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] unless `rank` < `size` <= 65535.
    pub fn new(rank: u64, size: u64) -> Result<Rank, Error> {
        match (u16::try_from(rank), u16::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size => Ok(Rank { rank, size }),
            _ => Err(Error::Rank(format!(
                "rank {rank} of {size} cannot be: ranks count from 0, and there are at most 65535"
            ))),
        }
    }

    /// What the launcher has set: torchrun, Open MPI, PMI, `RANK` and `WORLD_SIZE`, or Slurm for the tasks of a step; the first that has
    /// both numbers. [`Rank::ALONE`] where there is none, as in a batch script.
    ///
    /// torchrun comes first when it has started this process: srun may have started torchrun, and its variables are inherited.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`]: the numbers contradict each other.
    pub fn from_environment() -> Result<Rank, Error> {
        Rank::found(|name| std::env::var(name).ok())
    }

    /// The same with variables from `variable`.
    pub(crate) fn found(variable: impl Fn(&str) -> Option<String>) -> Result<Rank, Error> {
        let value = |name| variable(name).as_deref().and_then(number::<u64>);
        let torchrun = variable(TORCHRUN).is_some().then_some(TORCH);
        let step = value("SLURM_STEP_ID").filter(|step| *step < SPECIAL_STEP);
        let pairs = torchrun.into_iter().chain(LAUNCHERS);
        for [rank, size] in pairs.chain(step.map(|_| SLURM)) {
            if let (Some(number), Some(of)) = (value(rank), value(size)) {
                return Rank::new(number, of)
                    .map_err(|error| Error::Rank(format!("{rank} and {size}: {error}")));
            }
        }
        Ok(Rank::ALONE)
    }

    /// Counts from 0.
    pub fn rank(self) -> u16 {
        self.rank
    }

    /// How many there are.
    pub fn size(self) -> u16 {
        self.size
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<(u16, u16), String> {
        let found = Rank::found(|name| {
            let value = set.iter().find(|(known, _)| *known == name);
            value.map(|(_, value)| value.to_string())
        });
        found
            .map(|found| (found.rank(), found.size()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_launcher_says_which_rank_it_is() {
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
        ];
        let pmi = [("PMI_RANK", "2"), ("PMI_SIZE", "4")];
        let ompi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")];
        let torch = [("RANK", "5"), ("WORLD_SIZE", "16")];
        let torchrun = [("TORCHELASTIC_RUN_ID", "none")];
        assert_eq!(of(&[]), Ok((0, 1)));
        assert_eq!(of(&slurm), Ok((1, 2)));
        assert_eq!(of(&[&slurm[..], &torch].concat()), Ok((5, 16)));
        assert_eq!(of(&[&slurm[..], &torch, &pmi].concat()), Ok((2, 4)));
        assert_eq!(of(&[&slurm[..], &pmi, &ompi].concat()), Ok((3, 8)));
        // srun --mpi=pmi2 torchrun: all processes of a node inherit the PMI_RANK of torchrun's task.
        assert_eq!(
            of(&[&slurm[..], &pmi, &torch, &torchrun].concat()),
            Ok((5, 16))
        );
    }

    #[test]
    fn a_batch_script_is_alone() {
        for step in ["4294967291", "4294967290", "", "batch"] {
            let set = [
                ("SLURM_STEP_ID", step),
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_NUM_TASKS", "4"),
            ];
            assert_eq!(of(&set), Ok((0, 1)), "{step}");
        }
        let without = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(of(&without), Ok((0, 1)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_variables() {
        let refused = of(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).expect_err("refused");
        assert!(
            refused.starts_with("PMI_RANK and PMI_SIZE: rank 4 of 4"),
            "{refused}"
        );
        assert!(Rank::new(0, 65536).is_err());
        assert!(Rank::new(0, 0).is_err());
        assert!(Rank::new(65534, 65535).is_ok());
        // Half of a pair, or no number, says nothing.
        assert_eq!(of(&[("RANK", "1")]), Ok((0, 1)));
        assert_eq!(of(&[("RANK", "+1"), ("WORLD_SIZE", "4")]), Ok((0, 1)));
    }
}
