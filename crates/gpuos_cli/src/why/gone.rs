//! Jobs that slurmctld does not know, or not any more.

use std::time::Duration;

use gpuos_host::Machine;
use gpuos_host::slurm::Job;
use serde_json::json;

use crate::names::Name;
use crate::reply::Reply;

use super::requeue::told;

/// slurmdbd may be away.
const PATIENCE: Duration = Duration::from_secs(10);
/// Jobs that are told at most.
const TOLD: usize = 8;

/// What accounting says of a job that slurmctld has forgotten, if there is any.
pub fn from_accounting(machine: &dyn Machine, jobs: &[Job], label: &str, name: &Name) -> Reply {
    let ended = accounted(machine, label);
    let sentence = match &ended[..] {
        [] => {
            let others = jobs.iter().filter(|job| Name::Job(name.whole()).means(job));
            let others: Vec<String> = others
                .take(TOLD)
                .map(|job| Name::Job(job.id).of(job))
                .collect();
            let others = match others.is_empty() {
                true => String::new(),
                false => format!(" Of job {} it knows {}.", name.whole(), others.join(", ")),
            };
            format!(
                "Job {label} is not known: slurmctld forgets a job some minutes after its end (MinJobAge).{others} If \
                 accounting is on, `sacct -j {label}` tells what became of it."
            )
        }
        ended => ended.join("\n"),
    };
    let json = json!({ "job": label, "known": false, "sentence": sentence, "jobs": [] });
    Reply {
        schema: "gpuos.why/2",
        json,
        text: format!("{sentence}\n"),
        yes: false,
    }
}

/// A sentence for each job of that name that slurmdbd knows. Only fields that users do not write are asked for.
fn accounted(machine: &dyn Machine, label: &str) -> Vec<String> {
    // sacct knows no lists of tasks.
    let known = label
        .split('[')
        .next()
        .unwrap_or(label)
        .trim_end_matches('_');
    let args = [
        "-n",
        "-P",
        "-X",
        "-j",
        known,
        "-o",
        "JobID,State,End,NodeList,AdminComment",
    ];
    let Ok(out) = machine.run_within(PATIENCE, "sacct", &args) else {
        return Vec::new();
    };
    let sentence = |line: &str| {
        // What stands last may have the separator in it.
        let fields: Vec<&str> = line.splitn(5, '|').collect();
        let [id, state, end, nodes, comment] = fields[..] else {
            return None;
        };
        let own = id == known || id.strip_prefix(known)?.starts_with(['_', '+']);
        let over = !matches!(end, "" | "Unknown" | "None");
        (own && over).then(|| {
            let on = match nodes {
                "" | "None assigned" => String::new(),
                nodes => format!(" on {nodes}"),
            };
            let told = told(comment.trim_end_matches('|'));
            let told = told.map_or(String::new(), |told| format!(" {told}"));
            format!(
                "Job {id} has ended at {end}{on}: {state} (sacct; slurmctld has forgotten it).{told}"
            )
        })
    };
    let all = out.stdout.lines().filter_map(sentence);
    all.take(if out.ok { TOLD } else { 0 }).collect()
}
