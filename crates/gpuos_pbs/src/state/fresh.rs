//! Whether a planned start still holds: asked just before it, because `qrun` starts held jobs too, counts nothing of what is left, and what is
//! planned may be minutes old.

use std::collections::BTreeMap;

use super::jobs::{self, Job};
use super::nodes::{Counts, Nodes, Vnode};
use super::wanted::is_alone;
use crate::hook::resources::NGPUS;
use crate::hook::vnodes::{Given, parse_exec_vnode};

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

/// Whether the vnodes of an `exec_vnode` still have what a job is to get of them, the planner's own reservations aside: the plan has looked whose
/// they are; `text` is what `pbsnodes -v -F json VNODE …` prints.
///
/// # Errors
/// One has not, or the text is not what pbsnodes prints: a sentence.
pub fn still_free(job: &Job, exec_vnode: &str, text: &str) -> Result<(), String> {
    let nodes = Nodes::parse(text)?;
    let mut wanted: BTreeMap<String, Counts> = BTreeMap::new();
    for given in parse_exec_vnode(exec_vnode)?.into_iter().flatten() {
        let more = counts(&given);
        let sum = wanted.entry(given.vnode).or_default();
        *sum = std::array::from_fn(|at| sum[at].saturating_add(more[at]));
    }
    for (name, wanted) in wanted {
        let vnode = nodes.vnode(&name).and_then(|at| nodes.vnodes.get(at));
        let open = vnode.filter(|vnode| vnode.works && !vnode.is_closed(is_alone(job)));
        let left = open.map_or([0; 3], Vnode::left);
        if open.is_none() || (0..3).any(|at| wanted[at] > left[at]) {
            return Err(format!("vnode {name} has no room for it any more"));
        }
    }
    Ok(())
}

/// What a job is given of a vnode.
fn counts(given: &Given) -> Counts {
    [given.count(NGPUS), given.count("ncpus"), given.memory_kib()]
}
