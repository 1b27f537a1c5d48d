//! What gpuosd makes Slurm do, by Slurm's own commands. Every action can be repeated: it looks first,
//! changes nothing that is as wanted already, and tells a slurmctld that is away from a refusal.

use std::time::Duration;

use anyhow::Result as Started;
use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_model::screen::is_control;
use gpuos_workload::action::{Action, Outcome};

use super::rows::{Row, error_line};
use super::{Job, NodeRecord, Target, read, rows};
use crate::{Machine, Output};

mod checkpoints;
mod hold;
mod silent;
mod step;
mod tell;
mod unsaved;

pub use checkpoints::{
    RecordedJob, forget as forget_checkpoints, holders, note as note_checkpoints, records,
};
pub use hold::held_comment;
pub use silent::{is_set_down, resume, set_down};
pub use step::step_nodes;
pub use tell::told_comment;
pub use unsaved::{note as note_unsaved, unsaved_comment};

/// Longest time for one command: Slurm's own wait for slurmctld ends after `MessageTimeout`, 10 s by
/// default, and scontrol asks more than once.
pub(super) const LIMIT: Duration = Duration::from_secs(45);

/// Reasons of ours start with this.
const OURS: &str = "gpuos: ";

/// Slurm's times of credentials are whole seconds of slurmctld's clock.
const REVOKED: Duration = Duration::from_secs(1);

/// What squeue says of the job of that number; `None`: slurmctld knows it no more.
pub(super) fn row(machine: &dyn Machine, job: u32) -> Result<Option<Row>, Outcome> {
    Ok(Slurm::new(machine, "").row(job)?.map(|(row, _)| row))
}

/// A text for a job's comment: without what ends a value there, or a part of it; so many characters at most.
fn plain(text: &str, most: usize) -> String {
    let plain = |c: char| match is_control(c) || "\"|".contains(c) {
        true => ' ',
        false => c,
    };
    text.chars().map(plain).take(most).collect()
}

/// Does `action` for the node of that name.
pub fn act(machine: &dyn Machine, node: &str, action: &Action) -> Outcome {
    let slurm = Slurm::new(machine, node);
    let done = match action {
        Action::Publish(part) => slurm.publish(part),
        Action::Requeue { job } => number(job).and_then(|job| slurm.requeue(job)),
        Action::Release { job, avoid_node } => {
            number(job).and_then(|job| slurm.release(job, *avoid_node))
        }
        Action::Hold { job, why } => number(job).and_then(|job| hold::hold(&slurm, job, why)),
        Action::LetGo { job } => number(job).and_then(|job| hold::release_hold(&slurm, job)),
        Action::Tell { job, why } => number(job).and_then(|job| tell::tell(&slurm, job, why)),
        Action::Kill { job, step } => number(job).and_then(|job| slurm.kill(job, *step)),
        Action::Drain { reason } => slurm.drain(reason),
        Action::Undrain { reason } => slurm.undrain(reason),
    };
    done.unwrap_or_else(|outcome| outcome)
}

/// Slurm's number of a job.
fn number(job: &JobId) -> Result<u32, Outcome> {
    let why = || Outcome::Refused(format!("{job} is no job of Slurm's: those have numbers"));
    job.number().ok_or_else(why)
}

/// The node's record.
///
/// # Errors
/// slurmctld does not answer, or does not know the node.
pub fn node(machine: &dyn Machine, node: &str) -> Result<NodeRecord, Outcome> {
    Slurm::new(machine, node).record()
}

/// Jobs that have GPUs on the node. One question for their numbers, and one for each of them.
///
/// # Errors
/// slurmctld does not answer.
pub fn jobs_on(machine: &dyn Machine, node: &str) -> Result<Vec<Job>, Outcome> {
    let slurm = Slurm::new(machine, node);
    // Without -t: to 22.05 a job whose prolog runs is no running one.
    let list = slurm.rows(&["-w", node])?;
    let mut jobs = Vec::new();
    for row in &list {
        // One that is not there has ended meanwhile.
        jobs.extend(slurm.record_of(row, &list)?);
    }
    Ok(jobs)
}

/// A job's record; `None`: slurmctld knows it no more.
///
/// # Errors
/// slurmctld does not answer.
pub fn job(machine: &dyn Machine, job: u32) -> Result<Option<Job>, Outcome> {
    Slurm::new(machine, "").job(job)
}

struct Slurm<'a> {
    machine: &'a dyn Machine,
    node: &'a str,
    /// Of one command.
    limit: Duration,
}

impl<'a> Slurm<'a> {
    fn new(machine: &'a dyn Machine, node: &'a str) -> Slurm<'a> {
        Slurm {
            machine,
            node,
            limit: LIMIT,
        }
    }
}

impl Slurm<'_> {
    /// What a command printed; `Err` is how the action ends.
    fn run(&self, program: &str, args: &[&str]) -> Result<String, Outcome> {
        let output = self.machine.run_within(self.limit, program, args);
        Slurm::printed(output, program, args)
    }

    /// The same of a command that has ended.
    fn printed(output: Started<Output>, program: &str, args: &[&str]) -> Result<String, Outcome> {
        let output = match output {
            Ok(output) => output,
            Err(e) => return Err(Outcome::NoAnswer(format!("{e:#}"))),
        };
        if output.ok {
            return Ok(output.stdout);
        }
        let said = error_line(&output);
        let sentence = format!("`{program} {}`: {said}", args.join(" "));
        match is_refusal(&said) {
            true => Err(Outcome::Refused(sentence)),
            false => Err(Outcome::NoAnswer(sentence)),
        }
    }

    fn record(&self) -> Result<NodeRecord, Outcome> {
        let text = self.run("scontrol", &["show", "node", self.node])?;
        let record = NodeRecord::parse_all(&text).into_iter().next();
        let record = record.filter(|record| record.name == self.node);
        record.ok_or_else(|| {
            Outcome::NoAnswer(format!(
                "scontrol shows no node {}, or a record of it that is not Slurm's alone",
                self.node
            ))
        })
    }

    fn update(&self, fields: &[&str]) -> Result<String, Outcome> {
        let name = format!("NodeName={}", self.node);
        let mut args = vec!["update", &name];
        args.extend(fields);
        self.run("scontrol", &args)
    }

    fn update_job(&self, name: &str, fields: &[&str]) -> Result<(), Outcome> {
        let name = format!("JobId={name}");
        let args = [&["update", &name], fields].concat();
        self.run("scontrol", &args).map(drop)
    }

    fn publish(&self, part: &ExtraPart) -> Result<Outcome, Outcome> {
        let extra = self.record()?.extra;
        let wanted = part.write_into(&extra);
        if wanted == extra {
            return Ok(Outcome::Nothing("Extra says so already".into()));
        }
        self.update(&[&format!("Extra={wanted}")])?;
        // An administrator who wrote at the same moment may have put the old part back.
        let shown = self.record()?.extra;
        match ExtraPart::read(&shown) {
            (shown, None) if shown == *part => Ok(Outcome::Done(format!(
                "Slurm's record of the node has Extra={wanted:?}"
            ))),
            _ => Err(Outcome::NoAnswer(format!(
                "Extra was written as {wanted:?} and is {shown:?}"
            ))),
        }
    }

    fn rows(&self, which: &[&str]) -> Result<Vec<Row>, Outcome> {
        rows::rows(self.machine, self.limit, which, is_refusal)
    }

    /// What squeue says of the job of that number, with what it says of others that this number means as well.
    fn row(&self, job: u32) -> Result<Option<(Row, Vec<Row>)>, Outcome> {
        let all = match self.rows(&["-t", "all", "-j", &job.to_string()]) {
            Err(Outcome::Refused(_)) => return Ok(None),
            all => all?,
        };
        let own = all.iter().find(|row| row.id == job).cloned();
        Ok(own.map(|row| (row, all)))
    }

    /// The whole job; one whose record cannot be read says so. `None`: slurmctld knows it no more.
    fn record_of(&self, row: &Row, all: &[Row]) -> Result<Option<Job>, Outcome> {
        let name = read::name(row);
        let args = ["-d", "show", "job", &name];
        // Local times jump when clocks are changed.
        let output =
            self.machine
                .run_with_env(self.limit, ("SLURM_TIME_FORMAT", "%s"), "scontrol", &args);
        match Slurm::printed(output, "scontrol", &args) {
            Ok(text) => Ok(Some(read::single(&text, row, all))),
            Err(Outcome::Refused(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The job of that number.
    fn job(&self, job: u32) -> Result<Option<Job>, Outcome> {
        match self.row(job)? {
            Some((row, all)) => self.record_of(&row, &all),
            None => Ok(None),
        }
    }

    /// What squeue says of the job, where it has this node. One that has left is not to be ended where it runs now.
    fn job_here(&self, job: u32) -> Result<(Row, Target), Outcome> {
        let states = ["RUNNING", "SUSPENDED", "CONFIGURING"];
        let gone = || Outcome::Nothing(format!("job {job} does not run here any more"));
        let (row, _) = self.row(job)?.ok_or_else(gone)?;
        let target = Target::of_row(&row).ok_or_else(gone)?;
        let here = states.contains(&&row.state[..]) && row.has(self.node);
        here.then_some((row, target)).ok_or_else(gone)
    }

    /// What squeue says of the job, wherever it is. A number that means more than one job is none for a comment.
    fn job_known(&self, job: u32) -> Result<(Row, Target), Outcome> {
        let gone = || Outcome::Nothing(format!("job {job} is gone"));
        let (row, _) = self.row(job)?.ok_or_else(gone)?;
        let target = Target::of_row(&row).ok_or_else(gone)?;
        Ok((row, target))
    }

    fn requeue(&self, job: u32) -> Result<Outcome, Outcome> {
        let (row, target) = self.job_here(job)?;
        // Without "incomplete" a job that its user cancels just now would come back: Slurm requeues what has ended, too.
        self.run("scontrol", &["requeue", "incomplete", &target.whole()])?;
        match self.row(job) {
            Ok(Some((now, _))) if now.restarts == row.restarts => {
                Ok(Outcome::Nothing(format!("job {job} ended by itself")))
            }
            _ => Ok(Outcome::Done(format!("job {job} is requeued"))),
        }
    }

    fn release(&self, job: u32, avoid_node: bool) -> Result<Outcome, Outcome> {
        let Some((row, all)) = self.row(job)? else {
            return Ok(Outcome::Nothing(format!("job {job} is gone")));
        };
        match row.state.as_str() {
            "PENDING" => {}
            // The node still cleans up after it.
            "REQUEUED" | "COMPLETING" => {
                return Ok(Outcome::NotYet(format!("job {job} is {}", row.state)));
            }
            "RUNNING" if row.has(self.node) => {
                return Ok(Outcome::NotYet(format!("job {job} still runs")));
            }
            other => return Ok(Outcome::Nothing(format!("job {job} is {other}"))),
        }
        let Some(target) = Target::of_row(&row) else {
            return Ok(Outcome::Nothing(format!(
                "job {job} waits with the rest of its array"
            )));
        };
        if avoid_node && row.requires(self.node) {
            let what =
                format!("job {job} asks for this node, whose GPUs slurmctld does not know of");
            return Ok(Outcome::NotYet(what));
        }
        // Not at once: a start within the second in which slurmd revoked the credential of the last one is refused there
        // as revoked, and the job is ended. And not a time to come: slurmctld schedules when it is told, and not before its
        // next round otherwise, which may be half a minute later.
        self.machine.pause(REVOKED);
        let excluded = match avoid_node {
            false => None,
            true => match self.record_of(&row, &all)? {
                None => return Ok(Outcome::Nothing(format!("job {job} is gone"))),
                // What else it avoids is not known and must not be lost.
                Some(record) if !record.unreadable.is_empty() => {
                    return Ok(Outcome::Nothing(format!(
                        "job {job} starts when Slurm says, for its record cannot be read: {}",
                        record.unreadable
                    )));
                }
                Some(mut record) => {
                    if !record.excluded_nodes.iter().any(|name| name == self.node) {
                        record.excluded_nodes.push(self.node.into());
                    }
                    Some(format!("ExcNodeList={}", record.excluded_nodes.join(",")))
                }
            },
        };
        let start = "StartTime=now";
        match excluded {
            // The nodes that other components avoid are theirs.
            Some(excluded) if target.is_component() => {
                self.update_job(&target.to_string(), &[&excluded])?;
                self.update_job(&target.whole(), &[start])?;
            }
            Some(excluded) => self.update_job(&target.to_string(), &[start, &excluded])?,
            None => self.update_job(&target.whole(), &[start])?,
        }
        Ok(Outcome::Done(format!("job {job} may start")))
    }

    fn kill(&self, job: u32, step: Option<u32>) -> Result<Outcome, Outcome> {
        let (_, target) = self.job_here(job)?;
        // The batch script and the like are the job.
        let what = match step.filter(|step| !StepId::is_special_number(*step)) {
            Some(step) => target.cancel_step(step),
            None => target.to_string(),
        };
        self.run("scancel", &[&what])?;
        Ok(Outcome::Done(format!("{what} is ended")))
    }

    fn drain(&self, reason: &str) -> Result<Outcome, Outcome> {
        let record = self.record()?;
        if is_drained(&record) {
            return Ok(Outcome::Nothing(format!(
                "the node is drained already: {}",
                record.reason
            )));
        }
        self.update(&["State=DRAIN", &format!("Reason={}", ours(reason))])?;
        Ok(Outcome::Done(format!("the node is drained: {reason}")))
    }

    fn undrain(&self, reason: &str) -> Result<Outcome, Outcome> {
        let record = self.record()?;
        if !is_drained(&record) {
            return Ok(Outcome::Nothing("the node is not drained".into()));
        }
        // Slurm adds who and when: "gpuos: … [root@2026-11-20T21:40:00]".
        let shown = record
            .reason
            .rsplit_once(" [")
            .map_or(&record.reason[..], |(text, _)| text);
        if shown.trim() != ours(reason).trim() {
            return Ok(Outcome::Nothing(format!(
                "the node is drained for another reason, which is not gpuos's to end: {shown}"
            )));
        }
        self.update(&["State=RESUME"])?;
        Ok(Outcome::Done("the node is back in service".into()))
    }
}

/// A reason as it goes into the node's record: with our name, in one line.
fn ours(reason: &str) -> String {
    let plain = |c: char| match is_control(c) || c == '"' {
        true => ' ',
        false => c,
    };
    let line: String = reason.chars().map(plain).collect();
    match line.starts_with(OURS) {
        true => line,
        false => format!("{OURS}{line}"),
    }
}

fn is_drained(record: &NodeRecord) -> bool {
    let drained = ["DRAIN", "DRAINED", "DRAINING"];
    record
        .states
        .iter()
        .any(|state| drained.contains(&state.as_str()))
}

/// Whether slurmctld said no, rather than nothing. Its words for that (slurm_errno.h) are the same from
/// 22.05 to 26.05. All else is taken for a slurmctld that is away: to ask again harms nobody.
fn is_refusal(said: &str) -> bool {
    const WORDS: [&str; 12] = [
        "Invalid job id",
        "Job/step already completing or completed",
        "already completed",
        "Job has already finished",
        "Requested operation is presently disabled",
        "Only batch jobs are accepted",
        "Invalid user id",
        "Access/permission denied",
        "Job is no longer pending",
        "Job is pending execution",
        "Job is not running",
        "Job not heterogeneous job leader",
    ];
    WORDS.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests;
