//! Where a job has made checkpoints, by its record at slurmctld: for who reaches no gpuos_mover that has something of it, as on a login node.

use std::path::Path;

use anyhow::{Error, Result};
use gpuos_core::job::JobId;
use gpuos_core::made::{MadeRecord, Progress, Run};
use gpuos_host::Machine;
use gpuos_host::slurm::act::{self, RecordedJob};
use gpuos_model::hostlist::{compress, expand};
use gpuos_model::screen;
use serde_json::{Value, json};

use super::words::NONE;
use crate::reply::Reply;
use crate::table::Table;

/// What slurmctld's record of a job says. `why`: nobody else could be asked.
///
/// # Errors
/// The record says nothing: `why`.
pub fn reply(machine: &dyn Machine, label: &str, why: Error) -> Result<Reply> {
    let Ok(number) = label.parse::<u32>() else {
        return Err(why);
    };
    let jobs = act::records(machine, None, Some(number));
    let Some(job) = jobs.ok().and_then(|jobs| jobs.into_iter().next()) else {
        return Err(why);
    };
    let (record, unsaved) = (&job.record, &job.unsaved);
    let why = format!("{why:#}");
    let lines: Vec<String> = record
        .runs()
        .iter()
        .map(line)
        .chain([why.clone()])
        .collect();
    Ok(Reply {
        schema: "gpuos.ckpt/1",
        json: json!({ "job": number, "told": [], "missing": lines }),
        text: text(number, record, unsaved.as_deref(), &why),
        yes: true,
    })
}

/// A line for each of the caller's jobs, or all for root, that slurmctld has a record of; `None`: it has none, or does not answer. `why`: no
/// gpuos_mover could be asked.
pub fn list(machine: &dyn Machine, only: Option<&JobId>, why: &Error) -> Option<Reply> {
    let own = machine.stat(Path::new("/proc/self/stat")).ok()?.uid;
    let number = only
        .map(|only| only.number().ok_or(only))
        .transpose()
        .ok()?;
    let jobs = act::records(machine, (own != 0).then_some(own), number).ok()?;
    // Of an array squeue shows all tasks.
    let jobs: Vec<RecordedJob> = jobs
        .into_iter()
        .filter(|job| number.is_none_or(|number| job.id == number))
        .collect();
    if jobs.is_empty() {
        return None;
    }
    let why = format!("{why:#}");
    let rows: Vec<Value> = jobs
        .iter()
        .map(|job| {
            let made = job.record.made().map(|(_, number)| number);
            json!({
                "job": job.label,
                "uid": job.uid,
                "user": job.user,
                "nodes": expand(&job.nodes).unwrap_or_default(),
                "state": job.state,
                "made": made,
                "unsaved": job.unsaved,
            })
        })
        .collect();
    Some(Reply {
        schema: "gpuos.ckpt-list/1",
        json: json!({ "jobs": [], "told": [], "missing": [why.clone()], "recorded": rows }),
        text: table(&jobs, &why),
        yes: true,
    })
}

fn table(jobs: &[RecordedJob], why: &str) -> String {
    let mut table = Table::new(&["JOB", "USER", "STATE", "NODES", "CHECKPOINTS"]);
    for job in jobs {
        let newest = job.record.runs().iter().rev();
        let mut newest = newest.filter(|run| !matches!(run.progress, Progress::Begun));
        let none = || "none was asked for".into();
        table.row([
            job.label.clone(),
            job.user.clone(),
            job.state.clone(),
            match job.nodes.is_empty() {
                true => NONE.into(),
                false => job.nodes.clone(),
            },
            newest.next().map_or_else(none, line),
        ]);
    }
    let mut text = table.render();
    for job in jobs {
        if let Some(why) = &job.unsaved {
            let why = screen::line(why);
            text += &format!("job {}: checkpoints come to nothing: {why}\n", job.label);
        }
    }
    text +=
        "By the jobs' records at slurmctld; what is kept is shown by `gpuos ckpt show JOBID`.\n";
    text + &format!("gpuos_mover was not asked: {}\n", screen::line(why))
}

/// What is said of a run.
fn line(run: &Run) -> String {
    let nodes = match run.nodes.is_empty() {
        true => "many nodes".into(),
        false => compress(run.nodes.iter().map(String::as_str)),
    };
    let what = match run.progress {
        Progress::Begun => "no checkpoint was asked for".into(),
        Progress::Asked => "a checkpoint was asked for, and none is known to exist".into(),
        Progress::Made(number @ ..=1) => format!("checkpoint {number} was made"),
        Progress::Made(number) => format!(
            "checkpoint {number} was made, and perhaps newer ones, below {}",
            u64::from(number) * 2
        ),
    };
    format!("run {} on {nodes}: {what}", run.run)
}

fn text(number: u32, record: &MadeRecord, unsaved: Option<&str>, why: &str) -> String {
    let mut text = format!("Job {number}, by its record at slurmctld\n");
    for run in record.runs() {
        text += &format!("  {}\n", line(run));
    }
    if let Some(reason) = unsaved {
        text += &format!("  checkpoints come to nothing: {}\n", screen::line(reason));
    }
    text + &format!("  its gpuos_movers were not asked: {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_a_line_for_its_newest_run_with_checkpoints() {
        let job = |label: &str, state: &str, nodes: &str, runs: &str| RecordedJob {
            id: 7,
            label: label.into(),
            uid: 1000,
            user: "alice".into(),
            state: state.into(),
            nodes: nodes.into(),
            record: MadeRecord::parse(&format!("gpuos checkpoints: since=0; {runs}")).unwrap(),
            unsaved: (label == "7").then(|| "checkpoint 5: the store is full".into()),
        };
        let jobs = [
            job(
                "7",
                "PENDING",
                "",
                "run=0 nodes=n[1-3] made=4; run=1 nodes=n4 begun",
            ),
            job("8_1", "RUNNING", "n2", "run=0 nodes=n2 begun"),
        ];
        assert_eq!(
            table(&jobs, "no socket"),
            "\
JOB  USER   STATE    NODES  CHECKPOINTS
7    alice  PENDING  -      run 0 on n[1-3]: checkpoint 4 was made, and perhaps newer ones, below 8
8_1  alice  RUNNING  n2     none was asked for
job 7: checkpoints come to nothing: checkpoint 5: the store is full
By the jobs' records at slurmctld; what is kept is shown by `gpuos ckpt show JOBID`.
gpuos_mover was not asked: no socket
"
        );
    }

    #[test]
    fn each_run_has_a_line() {
        let field = "gpuos checkpoints: since=0; run=0 nodes=n[1-3] made=4; run=1 nodes=n4 begun";
        let record = MadeRecord::parse(field).unwrap();
        assert_eq!(
            text(7, &record, Some("no room"), "ssh n1 failed"),
            "Job 7, by its record at slurmctld\n  run 0 on n[1-3]: checkpoint 4 was made, and perhaps newer ones, below 8\n  \
             run 1 on n4: no checkpoint was asked for\n  checkpoints come to nothing: no room\n  its gpuos_movers were not asked: ssh n1 failed\n"
        );
    }
}
