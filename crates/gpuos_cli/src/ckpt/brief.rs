//! What `gpuos why` says of a running job's checkpoints.

use std::path::{Path, PathBuf};

use gpuos_core::job::JobId;
use gpuos_core::wire::{CheckpointJob, CheckpointPhase};
use gpuos_host::slurm::Job;
use gpuos_model::screen::line;
use serde_json::{Value, json};

use super::find::rank;
use super::mover;
use super::words::{clock, failing, span};
use crate::daemons;

/// From which checkpoint a job went on and when the newest was made, as a sentence and fields, by the gpuos_movers of this machine.
/// `None`: none of them is one of the job's, or tells this user of it.
pub fn of(runtime_dir: &Path, job: &Job) -> Option<(String, Value)> {
    let dirs: Vec<PathBuf> = match daemons::is_of_nodes(runtime_dir) {
        true => {
            let nodes = job.nodes.iter();
            nodes
                .map(|node| daemons::of_node(runtime_dir, node))
                .collect()
        }
        false => vec![runtime_dir.to_path_buf()],
    };
    let id = JobId::from(job.id);
    let told = dirs
        .iter()
        .filter_map(|dir| mover::glance(dir, &id))
        .filter(|told| told.phase != CheckpointPhase::Left)
        .min_by_key(rank)?;
    Some((sentence(&told, clock()), fields(&told)))
}

/// The number of a job's newest checkpoint, by the gpuos_mover whose socket lies in `dir`.
pub fn newest_number(dir: &Path, job: &JobId) -> Option<u32> {
    newest(&mover::glance(dir, job)?).map(|(number, _)| number)
}

/// The number of the newest checkpoint that a program can be given, and when it was made in seconds since 1970.
pub(super) fn newest(job: &CheckpointJob) -> Option<(u32, u64)> {
    let all = job.checkpoints.iter();
    let kept = all.filter(|kept| kept.can_be_given());
    let newest = kept.max_by_key(|kept| kept.number)?;
    Some((newest.number, newest.time))
}

fn sentence(job: &CheckpointJob, now: u64) -> String {
    match job.phase {
        CheckpointPhase::Failed => {
            return format!(
                "No checkpoints are made in this run: {}.",
                line(&job.why).trim_end_matches('.')
            );
        }
        CheckpointPhase::Gathering => {
            return "Its checkpoints have to wait: the movers of its nodes look for each other."
                .into();
        }
        CheckpointPhase::Rebuilding => {
            return "Its checkpoints have to wait: parts that were lost are made again.".into();
        }
        CheckpointPhase::Running | CheckpointPhase::Left => {}
    }
    let begun = match job.restored {
        Some(number) => format!("It went on from checkpoint {number}"),
        None => "It began without a checkpoint".into(),
    };
    let made = match newest(job) {
        Some((number, time)) => format!(
            "the newest is {number}, made {} ago",
            span(now.saturating_sub(time))
        ),
        None if job.failed_in_row > 0 => "none exists".into(),
        None => "none was made yet".into(),
    };
    let made = match failing(job) {
        Some(failing) => format!("{made}; {failing}"),
        None => made,
    };
    let every = job
        .interval_s
        .map_or_else(String::new, |s| format!(", one every {}", span(s)));
    format!("{begun}; {made}{every}.")
}

fn fields(job: &CheckpointJob) -> Value {
    let newest = newest(job);
    json!({
        "phase": job.phase,
        "restored": job.restored,
        "newest": newest.map(|(number, _)| number),
        "newest_at": newest.map(|(_, time)| time),
        "interval_s": job.interval_s,
        "failed_in_row": job.failed_in_row,
    })
}
