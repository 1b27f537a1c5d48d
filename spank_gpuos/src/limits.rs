//! In slurmstepd: what the job asked of its GPUs while it runs.
//!
//! A step knows it by its own options, else by a variable that it inherits from its job.

use std::sync::{Mutex, PoisonError};

use gpuos_core::limits::Asked;
use gpuos_core::options::{JobOptions, OPTIONS};
use slurm_ffi::spank::{Spank, say_note};

use crate::options::Opt;

/// Variable by which steps learn what their job asked for.
pub const JOB_LIMITS: &std::ffi::CStr = c"GPUOS_JOB_LIMITS";

/// The options that Slurm handed to this slurmstepd, by [`Opt::LIMITS`].
static NOTED: Mutex<[Option<String>; 3]> = Mutex::new([const { None }; 3]);

/// What the step's user is to be told, once its standard error is there.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a sentence for the step's user.
pub fn keep_note(note: &str) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    notes.push(note.to_owned());
}

/// Tells the step's user what was kept for him.
pub fn say_notes() {
    let notes = std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner));
    for note in notes {
        say_note(&format!("gpuos: {note}"));
    }
}

/// Takes note of an option's value, if it is one of these.
pub fn note(opt: Opt, value: &str) {
    let place = Opt::LIMITS.into_iter().position(|limit| limit == opt);
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = place.and_then(|at| noted.get_mut(at)) {
        *place = Some(value.to_owned());
    }
}

/// What holds for the step: its own options over those of its job.
pub fn of_step(spank: Spank<'_>) -> JobOptions {
    let inherited = spank.getenv(JOB_LIMITS).unwrap_or_default();
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    over(&inherited, &noted)
}

fn over(inherited: &str, noted: &[Option<String>; 3]) -> JobOptions {
    let mut options = JobOptions::from_limits_text(inherited);
    for (opt, value) in Opt::LIMITS.into_iter().zip(noted) {
        if let Some(value) = value {
            // sbatch and srun have checked it; what got around them is no wish.
            let _ = options.set(OPTIONS[opt as usize].name, value);
        }
    }
    options
}

/// What gpuosd is told of it.
pub fn asked(options: &JobOptions, shared: bool) -> Asked {
    let asked = Asked {
        power: options.power,
        clocks: options.clocks,
        watch_s: options.watch_s,
        shared: false,
    };
    Asked {
        shared: shared && !asked.is_nothing(),
        ..asked
    }
}

/// Whether the step has a share of its GPUs only, by what Slurm put into its environment.
pub fn is_shared(spank: Spank<'_>) -> bool {
    let is_set = |name| {
        spank
            .getenv(name)
            .is_some_and(|value| !value.is_empty() && value != "0")
    };
    let devices = spank.getenv(c"CUDA_VISIBLE_DEVICES").unwrap_or_default();
    is_set(c"SLURM_SHARDS_ON_NODE")
        || is_set(c"SLURM_MPS_ON_NODE")
        || is_set(c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        || devices.contains("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steps_own_options_come_before_those_of_its_job() {
        let noted = [Some("80%".into()), None, Some("nonsense".into())];
        let options = over("power=300W clocks=1200 watch=5", &noted);
        assert_eq!(options.limits_text(), "power=80% clocks=1200 watch=5");
        let asked = asked(&options, true);
        assert!(asked.shared && asked.sets() && asked.watch_s == Some(300));
        assert!(super::asked(&over("topology=leaf", &[const { None }; 3]), true).is_nothing());
    }
}
