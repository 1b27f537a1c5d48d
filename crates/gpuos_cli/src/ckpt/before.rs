//! Checkpoints of jobs that are about to be ended by an administrator.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::wire::{CheckpointJob, CheckpointPhase};
use gpuos_host::Machine;
use gpuos_model::screen::line;

use super::mover::Mover;
use super::wait::{Outcome, Wait};
use crate::cli::MoverReach;

/// How long all of them together are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often gpuos_mover is asked.
const LOOK: Duration = Duration::from_millis(300);

/// Those of these jobs that make checkpoints, each with its number and how it is, as gpuos_mover of this node tells; none where it does
/// not run.
pub fn among(machine: &dyn Machine, runtime_dir: &Path, jobs: &[JobId]) -> Vec<CheckpointJob> {
    let mut all = running(machine, runtime_dir);
    all.retain(|job| jobs.contains(&job.job));
    all
}

/// All jobs that make checkpoints on this node, as its gpuos_mover tells; none where it does not run.
pub fn running(machine: &dyn Machine, runtime_dir: &Path) -> Vec<CheckpointJob> {
    let reach = here(runtime_dir);
    let mover = Mover::here(machine, &reach, runtime_dir.to_path_buf());
    let told = mover.list(None).map(|told| told.jobs).unwrap_or_default();
    let runs = |job: &CheckpointJob| job.phase == CheckpointPhase::Running;
    told.into_iter().filter(runs).collect()
}

/// Has each of these jobs make a checkpoint, and waits until all have ended; a sentence for each.
pub fn save(machine: &dyn Machine, runtime_dir: &Path, jobs: &[CheckpointJob]) -> Vec<String> {
    let all = saved(machine, runtime_dir, jobs, PATIENCE, |_| {});
    let sentence = |(id, saved): (JobId, Saved)| match saved {
        Saved::As(number) => format!("job {id} has saved as checkpoint {number}"),
        Saved::Not(why) => format!("job {id} has not saved: {}", line(&why)),
        Saved::Unasked(why) => format!("job {id} does not save: {}", line(&why)),
        Saved::Late => format!(
            "job {id} had not saved after {} s (`gpuos ckpt show {id}` tells what it waits for)",
            PATIENCE.as_secs()
        ),
    };
    all.into_iter().map(sentence).collect()
}

/// What became of a checkpoint that a job was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Saved {
    /// It exists, with this number.
    As(u32),
    /// It came to nothing.
    Not(String),
    /// It could not be asked for.
    Unasked(String),
    /// The time was over first.
    Late,
}

/// The same with what became of each, in the order in which that was known. `watch` is told how many are waited for.
pub fn saved(
    machine: &dyn Machine,
    runtime_dir: &Path,
    jobs: &[CheckpointJob],
    patience: Duration,
    watch: impl Fn(usize),
) -> Vec<(JobId, Saved)> {
    let reach = here(runtime_dir);
    let mover = Mover::here(machine, &reach, runtime_dir.to_path_buf());
    let mut waits = Vec::new();
    let mut ended = Vec::new();
    for job in jobs {
        let wait = Wait::new(job);
        match mover.now(&job.job) {
            Ok(_) => waits.push((job.job.clone(), wait)),
            Err(why) => ended.push((job.job.clone(), Saved::Unasked(format!("{why:#}")))),
        }
    }
    let deadline = Instant::now() + patience;
    while !waits.is_empty() && Instant::now() < deadline {
        watch(waits.len());
        sleep(LOOK);
        let Ok(told) = mover.list(None) else { break };
        waits.retain_mut(|(id, wait)| {
            let job = told.jobs.iter().find(|job| job.job == *id);
            let saved = match wait.look(job) {
                None => return true,
                Some(Outcome::Committed(number)) => Saved::As(number),
                Some(Outcome::Failed(_, why)) => Saved::Not(why),
            };
            ended.push((id.clone(), saved));
            false
        });
    }
    ended.extend(waits.into_iter().map(|(id, _)| (id, Saved::Late)));
    ended
}

/// This machine's gpuos_mover and no other.
fn here(runtime_dir: &Path) -> MoverReach {
    MoverReach {
        node: None,
        local: true,
        via: String::new(),
        runtime_dir: runtime_dir.to_path_buf(),
    }
}
