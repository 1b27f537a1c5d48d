//! `gpuos ckpt now`: has a job make a checkpoint, and waits until it exists or has come to nothing.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuos_core::wire::{CheckpointJob, CheckpointPhase};
use gpuos_host::Machine;
use gpuos_model::screen::line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::find;
use super::mover::Mover;
use super::wait::{Outcome, Wait};
use super::words::{self, size, span_ms};
use crate::cli::CkptNowArgs;
use crate::reply::Reply;
use crate::table::count;

/// How often the gpuos_mover of this machine is asked, and one that takes a connection to another node.
const LOOK: Duration = Duration::from_millis(300);
const FAR_LOOK: Duration = Duration::from_secs(3);

pub fn run(machine: &dyn Machine, args: &CkptNowArgs) -> Result<Reply> {
    let found = find::find(machine, &args.reach, &args.job, find::For::Running)?;
    let (mover, node, job) = found.leading().context("nobody has the job")?;
    let mut wait = Wait::new(job);
    let message = mover.now(&found.id)?;
    let mut fields = json!({ "job": found.id, "node": node, "message": message });
    if args.no_wait {
        fields["outcome"] = "asked".into();
        return Ok(reply(fields, format!("{}\n", line(&message)), true));
    }
    let (outcome, last) = watch(mover, &mut wait, job)?;
    let (word, number, sentence) = match &outcome {
        Outcome::Committed(number) => {
            let done = committed(node, last.as_ref().unwrap_or(job), *number);
            ("committed", Some(*number), done)
        }
        Outcome::Failed(number, why) => {
            fields["why"] = why.as_str().into();
            let which = number.map_or("the checkpoint".into(), |number| {
                format!("checkpoint {number}")
            });
            let sentence = format!("{which} of job {} came to nothing: {}", found.id, line(why));
            ("failed", *number, sentence)
        }
    };
    fields["outcome"] = word.into();
    fields["number"] = number.into();
    let yes = matches!(outcome, Outcome::Committed(_));
    Ok(reply(fields, sentence + "\n", yes))
}

fn reply(json: serde_json::Value, text: String, yes: bool) -> Reply {
    Reply {
        schema: "gpuos.ckpt-now/1",
        json,
        text,
        yes,
    }
}

/// Looks until it is known how it ended; the job as it was then comes with it.
fn watch(
    mover: &Mover<'_>,
    wait: &mut Wait,
    job: &CheckpointJob,
) -> Result<(Outcome, Option<CheckpointJob>)> {
    let bar = spinner();
    let pause = if mover.is_far() { FAR_LOOK } else { LOOK };
    loop {
        let told = mover.list(Some(&job.job)).with_context(|| {
            format!(
                "the checkpoint of job {} was asked for, and how it ended is not known (`gpuos ckpt show {}` tells it once \
                 gpuos_mover answers)",
                job.job, job.job
            )
        })?;
        let job = told.jobs.into_iter().next();
        if let Some(outcome) = wait.look(job.as_ref()) {
            bar.finish_and_clear();
            return Ok((outcome, job));
        }
        bar.set_message(job.as_ref().map_or_else(String::new, progress));
        bar.tick();
        sleep(pause);
    }
}

/// A line on standard error; nothing where that is no terminal.
pub fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}{msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar
}

/// What is waited for.
fn progress(job: &CheckpointJob) -> String {
    let text = match (&job.making, job.phase) {
        (Some(making), _) => format!(
            "checkpoint {} {}: waiting for {}",
            making.number,
            words::reason(making),
            words::waits(making)
        ),
        (None, CheckpointPhase::Running) if job.leads && job.size.is_none() => {
            "no rank of the program has joined yet".into()
        }
        (None, CheckpointPhase::Running) => "it is asked for, and not begun yet".into(),
        (None, phase) => words::phase_sentence(phase).into(),
    };
    line(&text).into_owned()
}

/// `checkpoint 5 of job 17 is committed in 2.5 s: on n1 4 files, 1.2 GiB`.
fn committed(node: &str, job: &CheckpointJob, number: u32) -> String {
    let mut text = format!("checkpoint {number} of job {} is committed", job.job);
    let mut kept = job.checkpoints.iter();
    if let Some(kept) = kept.find(|kept| kept.number == number) {
        if let Some(ms) = kept.took_ms {
            text += &format!(" after {}", span_ms(ms));
        }
        let files = count(usize::try_from(kept.files).unwrap_or(usize::MAX), "file");
        text += &format!(": {files}, {} on {node}", size(kept.bytes));
    }
    text
}
