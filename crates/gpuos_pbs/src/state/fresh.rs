//! Whether a planned start still holds: asked just before it, because `qrun` starts held jobs too, and what is planned may be
//! minutes old.
//!
//! pbs_server gives a job one vnode after the other, and where one is another job's by then, it refuses the start and leaves
//! those before in the job's hands. So a start on several vnodes is not even tried unless all of them are free.

use super::jobs::{self, Job};
use super::nodes::Nodes;
use crate::hook::vnodes::parse_exec_vnode;

/// The vnodes of an `exec_vnode`, each once.
pub fn vnodes_of(exec_vnode: &str) -> Vec<String> {
    let chunks = parse_exec_vnode(exec_vnode).unwrap_or_default();
    let mut names: Vec<String> = chunks.into_iter().flatten().map(|one| one.vnode).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether a job still waits and asks for the same as when it was planned; `text` is what `qstat -f -F json JOB` prints.
///
/// # Errors
/// It does not, or the text is not what qstat prints: a sentence.
pub fn still_waits(planned: &Job, text: &str) -> Result<(), String> {
    let (jobs, _) = jobs::parse(text)?;
    let Some(now) = jobs.iter().find(|job| job.id == planned.id) else {
        return Err("PBS does not know it any more".into());
    };
    if !now.unreadable.is_empty() {
        return Err(format!("it cannot be read: {}", now.unreadable));
    }
    if now.state != "Q" {
        return Err(format!("it is in state {} by now", now.state));
    }
    let asked = |job: &Job| {
        let Job {
            queue,
            reservation,
            resources,
            select,
            place,
            given,
            is_array,
            ..
        } = job.clone();
        (
            (queue, reservation, resources),
            (select, place, given, is_array),
        )
    };
    match asked(now) == asked(planned) {
        true => Ok(()),
        false => Err("it asks for something else by now".into()),
    }
}

/// Whether all vnodes of an `exec_vnode` are still free for a job, the planner's own reservations aside: the plan has looked whose they are; `text` is what `pbsnodes -v -F json VNODE …` prints.
///
/// # Errors
/// One is not, or the text is not what pbsnodes prints: a sentence.
pub fn still_free(job: &str, exec_vnode: &str, text: &str) -> Result<(), String> {
    let nodes = Nodes::parse(text)?;
    for name in vnodes_of(exec_vnode) {
        let vnode = nodes.vnode(&name).and_then(|at| nodes.vnodes.get(at));
        if !vnode.is_some_and(|vnode| vnode.works && !vnode.is_full(job)) {
            return Err(format!("vnode {name} is not free any more"));
        }
    }
    Ok(())
}
