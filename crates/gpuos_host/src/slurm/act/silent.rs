//! Nodes that their peers find silent: slurmctld is asked to set them DOWN, and to resume one that is back.

use std::time::Duration;

use gpuos_workload::Silent;
use gpuos_workload::action::Outcome;

use super::Slurm;
use crate::Machine;
use crate::slurm::NodeRecord;
use crate::slurm::rows::Row;

/// Longest time for one command. All of a question takes less than a peer keeps to the side that it took
/// (`gpuos_core::peers::HOLD_MS`).
const LIMIT: Duration = Duration::from_secs(8);

/// Reasons of nodes that were found silent start with this.
const SILENT: &str = "gpuos: silent: ";

/// Names in a reason.
const NAMED: usize = 3;

/// Asks slurmctld to set a silent node DOWN, which requeues its jobs, if that makes sense to slurmctld: it does not hold
/// `own`, which asks, for down itself; the job runs on the node; and nobody has taken the node out already.
pub fn set_down(machine: &dyn Machine, own: &str, silent: &Silent) -> Outcome {
    let Silent {
        job,
        node,
        silent_ms,
        agreed,
    } = silent;
    let of = |node| slurm(machine, node);
    let down = || {
        let asker = of(own).record()?;
        if is_down(&asker) {
            return Ok(Outcome::Nothing(format!(
                "slurmctld holds {own} itself for down: it has no say about {node}"
            )));
        }
        let row = of(own).row(super::number(job)?)?.map(|(row, _)| row);
        if row.as_ref().is_some_and(Row::is_requeued) && is_down(&of(node).record()?) {
            // slurmctld found it itself, or another node has asked just before: the job is to be let go all the same.
            return Ok(Outcome::Done(format!(
                "slurmctld has {node} DOWN already, and job {job} waits"
            )));
        }
        if !row.is_some_and(|row| row.state == "RUNNING" && row.has(node)) {
            return Ok(Outcome::Nothing(format!(
                "{node} is silent, and job {job} does not run there any more"
            )));
        }
        let record = of(node).record()?;
        if is_out(&record) {
            return Ok(Outcome::Nothing(format!(
                "{node} is silent, and {} in Slurm already",
                record.states.join("+")
            )));
        }
        let reason = format!("Reason={}", reason(node, *silent_ms, agreed));
        of(node).update(&["State=DOWN", &reason])?;
        Ok(Outcome::Done(format!("slurmctld has set {node} DOWN")))
    };
    down().unwrap_or_else(|outcome: Outcome| outcome)
}

/// Whether slurmctld has `own` DOWN because its peers found it silent.
///
/// # Errors
/// slurmctld does not answer.
pub fn is_set_down(machine: &dyn Machine, own: &str) -> Result<bool, Outcome> {
    let record = slurm(machine, own).record()?;
    Ok(is_down(&record) && record.reason.starts_with(SILENT))
}

/// Resumes `own`, if slurmctld has it DOWN because its peers found it silent, and for no other reason.
pub fn resume(machine: &dyn Machine, own: &str) -> Outcome {
    let resume = || {
        if !is_set_down(machine, own)? {
            return Ok(Outcome::Nothing("it was not set down as silent".into()));
        }
        slurm(machine, own).update(&["State=RESUME"])?;
        Ok(Outcome::Done(format!(
            "{own} was silent, is back, and slurmctld has resumed it"
        )))
    };
    resume().unwrap_or_else(|outcome: Outcome| outcome)
}

fn slurm<'a>(machine: &'a dyn Machine, node: &'a str) -> Slurm<'a> {
    Slurm {
        machine,
        node,
        limit: LIMIT,
    }
}

/// Whether slurmctld holds the node for down.
pub(super) fn is_down(record: &NodeRecord) -> bool {
    record.states.iter().any(|state| state == "DOWN")
}

/// Whether somebody has taken the node out, or slurmctld has. One that slurmctld itself hears no more is not out yet: it keeps its jobs
/// until `SlurmdTimeout`, which is what a silent node is set DOWN for.
fn is_out(record: &NodeRecord) -> bool {
    const UNHEARD: [&str; 2] = ["NOT_RESPONDING", "NO_RESPOND"];
    let mut heard = record.clone();
    heard
        .states
        .retain(|state| !UNHEARD.contains(&state.as_str()));
    !heard.is_up()
}

/// The reason as it stands in `sinfo -R`.
fn reason(node: &str, silent_ms: u64, agreed: &[String]) -> String {
    let seconds = silent_ms as f64 / 1e3;
    let named = agreed[..agreed.len().min(NAMED)].join(", ");
    let who = match agreed.len().saturating_sub(NAMED) {
        0 => named,
        1 => format!("{named} and another node"),
        more => format!("{named} and {more} others"),
    };
    format!("{SILENT}{who} did not hear {node} for {seconds:.1} s")
}
