//! `gpuos ckpt restart`: requeues a job, so that it goes on from its newest checkpoint or from one that is named.

use anyhow::{Context, Result};
use gpuos_core::wire::CheckpointJob;
use gpuos_host::Machine;
use gpuos_host::slurm::Target;
use gpuos_model::screen::line;
use serde_json::json;

use super::words::{self, span};
use super::{brief, find};
use crate::cli::CkptRestartArgs;
use crate::reply::Reply;

pub fn run(machine: &dyn Machine, args: &CkptRestartArgs) -> Result<Reply> {
    let found = find::find(machine, &args.reach, &args.job, find::For::Running)?;
    let (mover, _, job) = found.leading().context("nobody has the job")?;
    let newest = brief::newest(job).map(|(number, _)| number);
    let mut fields = json!({ "job": found.id, "newest": newest, "requeued": false });
    let Some(from) = args.number.or(newest) else {
        let text = format!(
            "job {} has no checkpoint yet, and would begin anew: it is not requeued; `gpuos ckpt now {}` makes one\n",
            found.id, found.id
        );
        return Ok(reply(fields, text, false));
    };
    fields["from"] = from.into();
    if let Some(number) = args.number {
        let message = mover.choose(&found.id, number)?;
        fields["message"] = message.as_str().into();
        if args.no_requeue {
            return Ok(reply(fields, format!("{}\n", line(&message)), true));
        }
    }
    let mut name = found.id.to_string();
    let requeued = match found.id.number() {
        // By the user's own right: whether the job may be requeued, and by whom, is slurmctld's word.
        Some(number) => requeue(machine, number).map(|target| name = target.to_string()),
        // In PBS that is for operators, and gpuos has it done for a user as for itself.
        None => mover.requeue(&found.id).map(|message| {
            // The same command on another host hands it on.
            fields["message"] = message.into();
        }),
    };
    requeued.with_context(|| match args.number {
        Some(number) => format!(
            "job {} is not requeued (its next run begins from checkpoint {number} all the same)",
            found.id
        ),
        None => format!("job {} is not requeued", found.id),
    })?;
    fields["requeued"] = true.into();
    let text = told(job, &name, from, words::clock());
    Ok(reply(fields, text + "\n", true))
}

/// Requeues a job of Slurm's by its own number, which may be that of an array of which it is a task.
fn requeue(machine: &dyn Machine, number: u32) -> Result<Target> {
    let target = Target::find(machine, number)?;
    let target = target.context("slurmctld does not know it, or not any more")?;
    target.requeue(machine, false)?;
    Ok(target)
}

fn reply(json: serde_json::Value, text: String, yes: bool) -> Reply {
    Reply {
        schema: "gpuos.ckpt-restart/1",
        json,
        text,
        yes,
    }
}

/// What becomes of the job, and what of its work is done again.
fn told(job: &CheckpointJob, name: &str, from: u32, now: u64) -> String {
    let taken = job.checkpoints.iter().find(|kept| kept.number == from);
    let lost = taken.map(|kept| {
        format!(
            "; what it has done in the {} since then is done again",
            span(now.saturating_sub(kept.time))
        )
    });
    let when = match job.job.number() {
        Some(_) => "Slurm starts a requeued job after about two minutes",
        None => "its script is ended within some 15 s, once pbs_server knows that it runs again",
    };
    format!(
        "job {name} is requeued and goes on from checkpoint {from}{}; {when}",
        lost.unwrap_or_default()
    )
}
