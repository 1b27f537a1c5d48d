//! What a job says to gpuos.

use gpuos_config::options::{CheckpointOption, JobOptions, OPTIONS, OptionError, Restart};
use gpuos_model::gpuset::MAX_GPUS;
use gpuos_placement::plan::TopologyRequest;

use crate::refused;

/// The option that there is for jobs of these workload managers.
pub const TOPOLOGY: &str = "gpuos_topology";

/// How often a job makes checkpoints, on Grid Engine where gpuos_mover keeps them.
pub const CHECKPOINT: &str = "gpuos_checkpoint";

/// What stands between the parts of its value: a list of Grid Engine's has commas between its entries.
const BETWEEN: char = '+';

/// The levels that a job on one host can name.
const LEVELS: [&str; 3] = ["nvlink", "node", "any"];

/// What a job asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    /// GPUs on the host of its script.
    pub gpus: u32,
    /// Wished or required closeness.
    pub topology: Option<TopologyRequest>,
    /// How often it makes checkpoints.
    pub checkpoint: Option<CheckpointOption>,
}

impl Ask {
    /// Reads options by name and value, such as `gpuos_topology` and `nvlink:required`, by the function that reads sbatch's. Names that
    /// are no options of gpuos are passed over. `as_written` is how users write an option: `-l {}`.
    ///
    /// # Errors
    /// The sentence for who submitted the job.
    pub fn read<'a>(
        gpus: u32,
        options: impl Iterator<Item = (&'a str, &'a str)>,
        as_written: &str,
    ) -> Result<Ask, String> {
        let mut read = JobOptions::default();
        let mut given = "";
        for (name, value) in options {
            let dashed = name.replace('_', "-");
            if !OPTIONS.iter().any(|option| option.name == dashed) {
                continue;
            }
            let named = as_written.replace("{}", name);
            if name == CHECKPOINT {
                let set = read.set(&dashed, &value.replace(BETWEEN, ","));
                set.map_err(|error| sentence(error, &named))?;
                if read.checkpoint.is_some_and(|one| one.memory_mib.is_some()) {
                    return Err(refused::not_in_memory(value, &named).to_string());
                }
                if read
                    .checkpoint
                    .is_some_and(|one| matches!(one.restart, Restart::From { .. }))
                {
                    return Err(refused::no_other_job(value, &named).to_string());
                }
                continue;
            }
            if name != TOPOLOGY {
                return Err(
                    refused::not_here(value, &named, as_written.replace("{}", TOPOLOGY))
                        .to_string(),
                );
            }
            given = value;
            let set = read.set(&dashed, value);
            set.map_err(|error| sentence(error, &named))?;
        }
        let named = as_written.replace("{}", TOPOLOGY);
        let ask = Ask {
            gpus,
            topology: read.topology,
            checkpoint: read.checkpoint,
        };
        match &ask.topology {
            Some(wish) if !LEVELS.contains(&&wish.level[..]) => {
                Err(refused::no_level(given, &named, &wish.level, LEVELS.join(", ")).to_string())
            }
            Some(_) if gpus == 0 => Err(refused::no_gpus(given, &named).to_string()),
            _ if gpus as usize > MAX_GPUS => {
                Err(refused::too_many(gpus, "-l gpu", MAX_GPUS).to_string())
            }
            _ => Ok(ask),
        }
    }

    /// How often it makes checkpoints, as a word of a list of Grid Engine's.
    pub fn checkpoint_word(&self) -> Option<String> {
        let asked = self.checkpoint.as_ref()?;
        Some(asked.to_string().replace(',', &BETWEEN.to_string()))
    }

    /// GPUs that have to be linked by NVLink with each other: 0 where the job does not require it.
    pub fn linked(&self) -> u32 {
        let wish = self.topology.as_ref();
        let required = wish.is_some_and(|wish| wish.required && wish.level == "nvlink");
        if required { self.gpus } else { 0 }
    }
}

/// Slurm's sentence with the option as users write it here.
fn sentence(error: OptionError, named: &str) -> String {
    let error = OptionError {
        option: named.into(),
        ..error
    };
    error.to_string()
}
