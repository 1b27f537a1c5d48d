//! That the checkpoints of a job come to nothing, in its `AdminComment`, which operators alone may write: for who looks at the job and not at what its
//! program prints.

use gpuos_workload::action::Outcome;

use super::checkpoints::{in_run, rewrite};
use super::tell::{parts, with_part};
use super::{Slurm, plain};
use crate::Machine;

/// What the comment has, before the reason.
const UNSAVED: &str = "gpuos: not saved: ";
/// The longest reason, in characters. Own choice: a field of the record is in slurmctld's memory for each job.
const MOST: usize = 300;

/// Why a job's checkpoints come to nothing, as its `AdminComment` says; `None`: it says nothing of that.
pub fn unsaved_comment(admin_comment: &str) -> Option<&str> {
    parts(admin_comment).find_map(|part| part.strip_prefix(UNSAVED))
}

/// The comment without the reason.
pub(super) fn without_reason(comment: &str) -> String {
    with_part(comment, UNSAVED, None)
}

/// Has the comment of a job that runs on `node`, in this run, say why its checkpoints come to nothing; `None`: that they do not.
pub fn note(machine: &dyn Machine, node: &str, job: u32, run: u32, why: Option<&str>) -> Outcome {
    let slurm = Slurm::new(machine, node);
    let own = why.map(|why| format!("{UNSAVED}{}", plain(why, MOST)));
    let noted = rewrite(&slurm, in_run(&slurm, job, run), |comment| {
        with_part(comment, UNSAVED, own.as_deref())
    });
    noted.unwrap_or_else(|outcome| outcome)
}

#[cfg(test)]
mod tests {
    use gpuos_core::made::MadeRecord;

    use super::*;

    #[test]
    fn the_part_comes_and_goes_beside_others() {
        let record = "gpuos checkpoints: since=0; run=0 nodes=n1 made=4";
        let held = "gpuos: held by node n2: no driver";
        let own = format!("{UNSAVED}checkpoint 5: the store is full");
        for before in [
            "",
            "billed to X",
            record,
            held,
            &format!("{record} | a | {held}"),
        ] {
            let with = with_part(before, UNSAVED, Some(&own));
            assert_eq!(
                unsaved_comment(&with),
                Some("checkpoint 5: the store is full")
            );
            assert_eq!(MadeRecord::parse(&with), MadeRecord::parse(before));
            assert_eq!(
                super::super::held_comment(&with),
                super::super::held_comment(before)
            );
            assert_eq!(with_part(&with, UNSAVED, None), before);
        }
        assert_eq!(unsaved_comment("why gpuos: not saved: x"), None);
    }
}
