//! What became of a job's last run, where it was requeued.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::act::told_comment;
use gpuos_host::slurm::site::{Site, seconds_between};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_placement::explain::Note;

use crate::table::count;

/// What gpuosd has told a job's user of an end or a requeue, by the job's `AdminComment`.
pub fn told(admin_comment: &str) -> Option<String> {
    let told = told_comment(admin_comment)?;
    let (node, why) = told.split_once(": ")?;
    let stop = if why.ends_with('.') { "" } else { "." };
    Some(format!("gpuosd on {node} has told its user: {why}{stop}"))
}

/// Why a job waits that Slurm holds back after a requeue: the reason is that of `--begin`, and the job's user gave none.
pub fn held_back(site: &Site, job: &Job, name: &str) -> Option<String> {
    if job.restarts == 0 || job.reason != "BeginTime" {
        return None;
    }
    let until = match seconds_between(&job.submitted, &job.eligible) {
        Some(wait) if wait > 0 => format!("until {}, {wait} s after the requeue", job.eligible),
        _ => format!("until {}", job.eligible),
    };
    let why = requeue_text(site, job)?;
    Some(format!(
        "Job {name} waits after a requeue: Slurm holds it back {until}. {why}"
    ))
}

/// What is known of the requeue of a job that waits, in sentences; `None`: it was not requeued.
pub fn requeue_text(site: &Site, job: &Job) -> Option<String> {
    if job.restarts == 0 {
        return None;
    }
    let times = match job.restarts {
        1 => "once".to_string(),
        2 => "twice".to_string(),
        more => format!("{more} times"),
    };
    let mut text = format!("It was requeued {times}");
    let note = Note::parse(&job.system_comment);
    let places = note.map(|note| note.gpus).unwrap_or_default();
    let mut failed = Vec::new();
    for place in &places {
        let node = site.nodes.iter().find(|node| node.name == place.node);
        let Some(node) = node else { continue };
        let own = match place.gpus.is_empty() {
            // Slurm chose them: some of all.
            true => GpuSet::EMPTY,
            false => place.gpus,
        };
        let out = node.gpus_out().and(own);
        failed.extend(out.iter().map(|gpu| format!("{}:{gpu}", node.name)));
        if let Some(state) = crate::outlook::state_of(node, true) {
            failed.push(format!("{} ({state})", node.name));
        }
    }
    match &failed[..] {
        [] if places.is_empty() => text += ".",
        [] => {
            let nodes = compress(places.iter().map(|place| place.node.as_str()));
            text += &format!(
                "; it ran on {nodes}, all of whose GPUs that it had are in service. gpuosd's audit log there has the fault, \
                 if there was one."
            );
        }
        gone => {
            let what = match gone {
                [one] if one.contains('(') => format!("node {one}, which is not in service"),
                [one] => format!("GPU {one}, which is out of service now"),
                more => format!("{}, which are not in service now", more.join(", ")),
            };
            text += &format!(
                "; it ran on {what}: gpuosd requeues the jobs of a GPU that fails, and its audit log there has the fault."
            );
        }
    }
    let away: Vec<&str> = job.excluded_nodes.iter().map(String::as_str).collect();
    if !away.is_empty() {
        text += &format!(
            " It keeps off {} (its ExcNodeList, where gpuosd adds a node of whose fault slurmctld has not heard).",
            compress(away)
        );
    }
    Some(text)
}

/// A job that has nodes and does not run on them: slurmctld cleans up after it.
pub fn ending(site: &Site, job: &Job, name: &str) -> Option<String> {
    if job.state != "COMPLETING" {
        return None;
    }
    let on = compress(job.nodes.iter().map(String::as_str));
    let more = requeue_text(site, job).map(|said| format!(" {said}"));
    Some(format!(
        "Job {name} is ending: slurmctld waits until {on} {} cleaned up after it.{}",
        match job.nodes.len() {
            1 => "has",
            _ => "have",
        },
        more.unwrap_or_default()
    ))
}

/// GPUs that a job shares with others: `shards of GPUs 0-1 on n1`.
pub fn shares(job: &Job) -> Option<String> {
    let parts = job
        .allocations
        .iter()
        .filter(|part| !part.shared.is_empty());
    let named: Vec<String> = parts
        .map(|part| {
            let on = compress(part.nodes.iter().map(String::as_str));
            let gpus = match part.shared.len() {
                1 => format!("GPU {}", part.shared),
                _ => format!("GPUs {}", part.shared),
            };
            format!("{gpus} on {on}")
        })
        .collect();
    match (named.is_empty(), job.shares) {
        (false, _) => Some(format!("a share of {}", named.join(", of "))),
        (true, true) => Some(format!(
            "shares of GPUs on {}, and Slurm does not say of which",
            count(job.nodes.len(), "node")
        )),
        (true, false) => None,
    }
}
