//! Where a job has made checkpoints, by its record at slurmctld: for who reaches no gpuos_mover that has something of it, as on a login node.

use anyhow::{Error, Result};
use gpuos_core::made::{MadeRecord, Progress, Run};
use gpuos_host::Machine;
use gpuos_host::slurm::act;
use gpuos_model::hostlist::compress;
use serde_json::json;

use crate::reply::Reply;

/// What slurmctld's record of a job says. `why`: nobody else could be asked.
///
/// # Errors
/// The record says nothing: `why`.
pub fn reply(machine: &dyn Machine, label: &str, why: Error) -> Result<Reply> {
    let Ok(number) = label.parse::<u32>() else {
        return Err(why);
    };
    let Ok(Some(record)) = act::record(machine, number) else {
        return Err(why);
    };
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
        text: text(number, &record, &why),
        yes: true,
    })
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
        Progress::Made(number) => format!(
            "checkpoint {number} was made, and perhaps newer ones, below {}",
            u64::from(number) * 2
        ),
    };
    format!("run {} on {nodes}: {what}", run.run)
}

fn text(number: u32, record: &MadeRecord, why: &str) -> String {
    let mut text = format!("Job {number}, by its record at slurmctld\n");
    for run in record.runs() {
        text += &format!("  {}\n", line(run));
    }
    text + &format!("  its gpuos_movers were not asked: {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_line() {
        let field = "gpuos checkpoints: since=0; run=0 nodes=n[1-3] made=4; run=1 nodes=n4 begun";
        let record = MadeRecord::parse(field).unwrap();
        assert_eq!(
            text(7, &record, "ssh n1 failed"),
            "Job 7, by its record at slurmctld\n  run 0 on n[1-3]: checkpoint 4 was made, and perhaps newer ones, below 8\n  \
             run 1 on n4: no checkpoint was asked for\n  its gpuos_movers were not asked: ssh n1 failed\n"
        );
    }
}
