//! A job's user is told why gpuos ends or requeues something of it: on the job's standard error, by `scontrol notify`, and in its
//! `AdminComment`, which operators alone may write, and which slurmctld and accounting keep when the job has ended.

use std::cell::Cell;
use std::time::Duration;

use gpuos_core::made::BESIDE;
use gpuos_workload::action::Outcome;

use super::checkpoints::rewrite;
use super::{Slurm, plain};

/// What the comment has, before the name of the node.
const TOLD: &str = "gpuos: told by node ";
/// The longest sentence, in characters.
const MOST: usize = 400;
/// The end itself waits for it.
const LIMIT: Duration = Duration::from_secs(10);

/// What gpuos has told a job's user, as `NODE: WHY` in the job's `AdminComment`; `None`: nothing.
pub fn told_comment(admin_comment: &str) -> Option<&str> {
    parts(admin_comment).find_map(|part| part.strip_prefix(TOLD))
}

pub(super) fn parts(comment: &str) -> impl Iterator<Item = &str> {
    comment.split(BESIDE)
}

fn comment(before: &str, own: &str) -> String {
    with_part(before, TOLD, Some(own))
}

/// The comment with this part in the place of an earlier one that begins with `start`, or without such a one; what others have written stays, and
/// what gpuos says of a job that it holds stays the last.
pub(super) fn with_part(before: &str, start: &str, own: Option<&str>) -> String {
    let others = parts(before).filter(|part| !part.starts_with(start) && !part.is_empty());
    let (held, mut all): (Vec<&str>, Vec<&str>) =
        others.partition(|part| super::held_comment(part).is_some());
    all.extend(own);
    all.extend(held);
    all.join(BESIDE)
}

pub(super) fn tell(slurm: &Slurm<'_>, job: u32, why: &str) -> Result<Outcome, Outcome> {
    let slurm = Slurm {
        limit: LIMIT,
        ..Slurm::new(slurm.machine, slurm.node)
    };
    let why = plain(why, MOST);
    let own = format!("{TOLD}{}: {why}", slurm.node);
    let is_new = Cell::new(false);
    rewrite(
        &slurm,
        || slurm.job_known(job),
        |before| {
            // Another node of the job may tell something at the same moment: one sentence is enough, whosever it is.
            if is_new.get() && told_comment(before).is_some() {
                return before.to_owned();
            }
            let wanted = comment(before, &own);
            is_new.set(wanted != before);
            wanted
        },
    )?;
    if !is_new.get() {
        return Ok(Outcome::Nothing(format!("job {job} has been told")));
    }
    // A job that has ended since has no standard error any more, and its record says it.
    let said = format!("gpuos: {why}");
    let _ = slurm.run("scontrol", &["notify", &job.to_string(), &said]);
    Ok(Outcome::Nothing(format!("job {job} is told: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_written_stays() {
        let own = "gpuos: told by node n1: ended";
        let held = "gpuos: held by node n2: no driver";
        for (before, wanted) in [
            ("", own.to_string()),
            ("billed to X", format!("billed to X | {own}")),
            ("a | b", format!("a | b | {own}")),
            (held, format!("{own} | {held}")),
        ] {
            let once = comment(before, own);
            assert_eq!(once, wanted);
            assert_eq!(told_comment(&once), Some("n1: ended"));
            // The same again, and another one.
            assert_eq!(comment(&once, own), once);
            let next = comment(&once, "gpuos: told by node n2: requeued");
            assert_eq!(told_comment(&next), Some("n2: requeued"));
            assert_eq!(next.matches("told by").count(), 1);
            let is_held = super::super::held_comment(&next).is_some();
            assert_eq!(is_held, before == held);
        }
        assert_eq!(told_comment("billed for gpuos: told by node n1: x"), None);
        assert_eq!(plain("a \"b\" | c\n\u{1b}d", MOST), "a  b    c  d");
        assert_eq!(plain(&"x".repeat(1000), MOST).len(), MOST);
    }
}
