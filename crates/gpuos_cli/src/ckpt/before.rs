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
    let reach = here(runtime_dir);
    let mover = Mover::here(machine, &reach, runtime_dir.to_path_buf());
    let told = mover.list(None).map(|told| told.jobs).unwrap_or_default();
    let runs =
        |job: &CheckpointJob| job.phase == CheckpointPhase::Running && jobs.contains(&job.job);
    told.into_iter().filter(runs).collect()
}

/// Has each of these jobs make a checkpoint, and waits until all have ended; a sentence for each.
pub fn save(machine: &dyn Machine, runtime_dir: &Path, jobs: &[CheckpointJob]) -> Vec<String> {
    let reach = here(runtime_dir);
    let mover = Mover::here(machine, &reach, runtime_dir.to_path_buf());
    let mut waits = Vec::new();
    let mut said = Vec::new();
    for job in jobs {
        let wait = Wait::new(job);
        match mover.now(&job.job) {
            Ok(_) => waits.push((job.job.clone(), wait)),
            Err(why) => said.push(format!("job {} does not save: {why:#}", job.job)),
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while !waits.is_empty() && Instant::now() < deadline {
        sleep(LOOK);
        let Ok(told) = mover.list(None) else { break };
        waits.retain_mut(|(id, wait)| {
            let job = told.jobs.iter().find(|job| job.job == *id);
            match wait.look(job) {
                None => return true,
                Some(Outcome::Committed(number)) => {
                    said.push(format!("job {id} has saved as checkpoint {number}"));
                }
                Some(Outcome::Failed(_, why)) => {
                    said.push(format!("job {id} has not saved: {}", line(&why)));
                }
            }
            false
        });
    }
    let late = waits.iter().map(|(id, _)| {
        format!(
            "job {id} had not saved after {} s (`gpuos ckpt show {id}` tells what it waits for)",
            PATIENCE.as_secs()
        )
    });
    said.extend(late);
    said
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
