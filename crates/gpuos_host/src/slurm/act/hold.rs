//! Jobs that wait for the node's driver: requeued and held, so that they are not tried again and again, and let go when
//! it is back.
//!
//! Slurm has no reason for waiting that could say so; the job's `AdminComment` does, which operators alone may write. By
//! it gpuosd knows the jobs that it held itself: what an administrator holds stays held.

use gpuos_core::made::BESIDE;
use gpuos_workload::action::Outcome;

use super::{Slurm, plain};
use crate::slurm::Target;

/// What the comment begins with, before the name of the node.
const HELD: &str = "gpuos: held by node ";
/// The longest reason, in characters.
const MOST: usize = 300;

/// What gpuos has written into a job's `AdminComment` when it held the job; `None`: it has not.
pub fn held_comment(admin_comment: &str) -> Option<&str> {
    split(admin_comment).map(|(_, own)| own)
}

/// What stood in a comment before, and what is gpuos's.
fn split(comment: &str) -> Option<(&str, &str)> {
    if comment.starts_with(HELD) {
        return Some(("", comment));
    }
    let at = comment.rfind(&format!("{BESIDE}{HELD}"))?;
    Some((&comment[..at], &comment[at + BESIDE.len()..]))
}

fn comment(before: &str, node: &str, why: &str) -> String {
    let before = split(before).map_or(before, |(before, _)| before);
    let own = format!("{HELD}{node}: {}", plain(why, MOST));
    match before.is_empty() {
        true => own,
        false => format!("{before}{BESIDE}{own}"),
    }
}

pub(super) fn hold(slurm: &Slurm<'_>, job: u32, why: &str) -> Result<Outcome, Outcome> {
    let (row, target) = slurm.job_here(job)?;
    let name = target.to_string();
    let set = |text: &str| slurm.update_job(&name, &[&format!("AdminComment={text}")]);
    // First, so that whoever finds it held finds out why.
    set(&comment(&row.admin_comment, slurm.node, why))?;
    let whole = target.whole();
    if let Err(outcome) = slurm.run("scontrol", &["requeuehold", "incomplete", &whole]) {
        if matches!(outcome, Outcome::Refused(_)) {
            let _ = set(&row.admin_comment);
        }
        return Err(outcome);
    }
    let now = slurm.row(job)?;
    // Somebody may have written back what stood there before.
    if let Some((now, _)) = &now
        && now.restarts != row.restarts
        && held_comment(&now.admin_comment).is_none()
    {
        set(&comment(&now.admin_comment, slurm.node, why))?;
    }
    match now {
        Some((now, _)) if now.restarts == row.restarts && now.state != "RUNNING" => {
            Ok(Outcome::Nothing(format!("job {job} ended by itself")))
        }
        _ => Ok(Outcome::Done(format!(
            "job {job} is requeued and held: {why}"
        ))),
    }
}

pub(super) fn release_hold(slurm: &Slurm<'_>, job: u32) -> Result<Outcome, Outcome> {
    let gone = || Outcome::Nothing(format!("job {job} is gone"));
    let (row, _) = slurm.row(job)?.ok_or_else(gone)?;
    match row.state.as_str() {
        "PENDING" => {}
        "COMPLETING" | "REQUEUED" | "REQUEUE_HOLD" => {
            return Ok(Outcome::NotYet(format!("job {job} is {}", row.state)));
        }
        other => return Ok(Outcome::Nothing(format!("job {job} is {other}"))),
    }
    let own = format!("{HELD}{}: ", slurm.node);
    let Some((before, _)) = split(&row.admin_comment).filter(|(_, text)| text.starts_with(&own))
    else {
        return Ok(Outcome::Nothing(format!(
            "job {job} does not say any more that this node holds it"
        )));
    };
    let Some(target) = Target::of_row(&row) else {
        return Ok(Outcome::Nothing(format!(
            "job {job} waits with the rest of its array"
        )));
    };
    if row.held {
        slurm.run("scontrol", &["release", &target.whole()])?;
    }
    let comment = format!("AdminComment={before}");
    slurm.update_job(&target.to_string(), &[&comment])?;
    Ok(Outcome::Done(format!(
        "job {job} is not held any more: NVIDIA's driver answers again"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_of_a_site_comes_back() {
        for before in ["", "billed to X", "a | b"] {
            let held = comment(before, "n1", "no\n\"driver\"");
            assert_eq!(
                held_comment(&held),
                Some("gpuos: held by node n1: no  driver ")
            );
            assert_eq!(split(&held).map(|(before, _)| before), Some(before));
            // Once more, on another node.
            let again = comment(&held, "n2", "no");
            assert_eq!(split(&again), Some((before, "gpuos: held by node n2: no")));
        }
        assert_eq!(held_comment("billed to gpuos: held by node n1: x"), None);
        assert!(comment("", "n1", &"x".repeat(10_000)).len() < 400);
    }
}
