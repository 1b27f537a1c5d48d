//! Where checkpoints of a job can be: by the job's `AdminComment`, which operators alone may write and in which the movers of its nodes
//! note where they made some, and by what nodes publish in their `Extra`.

use gpuos_core::health::held::{held, is_cut};
use gpuos_core::made::{MadeRecord, Run};
use gpuos_workload::action::Outcome;
use gpuos_workload::{Hint, Holder, Holders};

use super::unsaved::{unsaved_comment, without_reason};
use super::{Slurm, silent};
use crate::Machine;
use crate::slurm::NodeRecord;
use crate::slurm::rows::{Row, rows};
use crate::slurm::target::Target;

/// Somebody may write to the comment at the same moment, and take back what was noted: it is tried so often.
const TRIES: u32 = 3;

/// What the record of a job says of its checkpoints. `None`: nothing, or slurmctld knows no such job.
///
/// # Errors
/// slurmctld does not answer.
fn record(machine: &dyn Machine, job: u32) -> Result<Option<MadeRecord>, Outcome> {
    let row = super::row(machine, job)?;
    Ok(row.and_then(|row| MadeRecord::parse(&row.admin_comment)))
}

/// A job that slurmctld knows, and what its record says of its checkpoints.
#[derive(Clone, Debug)]
pub struct RecordedJob {
    /// Its own number.
    pub id: u32,
    /// Its number as users write it: `17`, `4_1`, `19+1`.
    pub label: String,
    /// Its user.
    pub uid: u32,
    /// Its user's name.
    pub user: String,
    /// `RUNNING`, …
    pub state: String,
    /// Its nodes, as Slurm writes them; empty where it has none.
    pub nodes: String,
    /// Its record.
    pub record: MadeRecord,
    /// Why its checkpoints come to nothing, if its comment says that they do.
    pub unsaved: Option<String>,
}

/// All jobs that slurmctld shows to who asks and that have a record, in the order of their numbers. `of`: this user's alone; `only`: this job, by its
/// own number.
///
/// # Errors
/// slurmctld does not answer, or does not know the job.
pub fn records(
    machine: &dyn Machine,
    of: Option<u32>,
    only: Option<u32>,
) -> Result<Vec<RecordedJob>, Outcome> {
    let (of, only) = (of.map(|it| it.to_string()), only.map(|it| it.to_string()));
    let mut which = vec!["-t", "all"];
    if let Some(of) = &of {
        which.extend(["-u", of]);
    }
    if let Some(only) = &only {
        which.extend(["-j", only]);
    }
    let mut rows = rows(machine, super::LIMIT, &which, |_| false)?;
    rows.sort_by_key(|row| row.id);
    let recorded = rows.into_iter().filter_map(|row| {
        Some(RecordedJob {
            record: MadeRecord::parse(&row.admin_comment)?,
            unsaved: unsaved_comment(&row.admin_comment).map(String::from),
            id: row.id,
            label: row.label,
            uid: row.uid,
            user: row.user,
            state: row.state,
            nodes: row.nodes,
        })
    });
    Ok(recorded.collect())
}

/// Nodes that may hold checkpoints of a job: one question about the job and one about all nodes. Where the job's record names nodes these are
/// all that there are, with those that publish that they hold something; else it is every node.
///
/// # Errors
/// slurmctld does not answer.
pub fn holders(machine: &dyn Machine, job: u32) -> Result<Holders, Outcome> {
    let record = record(machine, job)?;
    let text = Slurm::new(machine, "").run("scontrol", &["show", "nodes"])?;
    let noted = record.as_ref().and_then(MadeRecord::nodes);
    let hint = |node: &NodeRecord| {
        let names = held(&node.extra).iter().any(|held| held.job == job);
        let noted = noted.as_ref().map(|all| {
            let found = all.iter().find(|(name, _)| *name == node.name);
            found.map(|(_, asked)| *asked)
        });
        match noted {
            _ if names => Some(Hint::Holds),
            Some(None) => None,
            Some(Some(true)) => Some(Hint::Holds),
            Some(Some(false)) => Some(Hint::Nothing),
            None if is_cut(&node.extra) => Some(Hint::More),
            None => Some(Hint::Nothing),
        }
    };
    let holder = |node: NodeRecord| {
        Some(Holder {
            hint: hint(&node)?,
            is_down: silent::is_down(&node),
            node: node.name,
        })
    };
    let nodes = NodeRecord::parse_all(&text).into_iter();
    let nodes = nodes.filter_map(holder).collect();
    Ok(Holders { record, nodes })
}

/// Notes in the record of a job that runs on `node` how far a run of it has come with checkpoints.
pub fn note(machine: &dyn Machine, node: &str, job: u32, run: &Run) -> Outcome {
    let slurm = Slurm::new(machine, node);
    let noted = rewrite(&slurm, in_run(&slurm, job, run.run), |comment| {
        with_record(comment, |record| record.note(run.clone()))
    });
    noted.unwrap_or_else(|outcome| outcome)
}

/// Has the record of a job that waits say that none of its runs has made a checkpoint. `uid`: of a job of this user alone; `None`: whoever's it is.
pub fn forget(machine: &dyn Machine, node: &str, job: u32, uid: Option<u32>) -> Outcome {
    let slurm = Slurm::new(machine, node);
    let row = || {
        let (row, target) = slurm.job_known(job)?;
        match MadeRecord::parse(&row.admin_comment) {
            // Numbers of jobs come again: what was kept under this one was an earlier job's.
            _ if uid.is_some_and(|uid| row.uid != uid) => {
                Err(Outcome::Refused(format!("job {job} is another user's")))
            }
            Some(_) => Ok((row, target)),
            None => Err(Outcome::Nothing(format!("nothing is noted of job {job}"))),
        }
    };
    let forgotten = rewrite(&slurm, row, |comment| {
        without_reason(&with_record(comment, MadeRecord::forget))
    });
    forgotten.unwrap_or_else(|outcome| outcome)
}

/// A comment with another record of checkpoints in it.
fn with_record(comment: &str, change: impl Fn(&mut MadeRecord)) -> String {
    let mut record = MadeRecord::parse(comment).unwrap_or_default();
    change(&mut record);
    record.write_into(comment)
}

/// Asks for a job that is in this run, here.
pub(super) fn in_run<'a>(
    slurm: &'a Slurm<'_>,
    job: u32,
    run: u32,
) -> impl Fn() -> Result<(Row, Target), Outcome> + 'a {
    move || {
        let found = slurm.job_here(job)?;
        match found.0.restarts == run {
            true => Ok(found),
            false => Err(Outcome::Nothing(format!("job {job} is in another run"))),
        }
    }
}

/// Writes into a job's comment what `change` makes of it, until it stands there. `row` asks for the job.
pub(super) fn rewrite(
    slurm: &Slurm<'_>,
    row: impl Fn() -> Result<(Row, Target), Outcome>,
    change: impl Fn(&str) -> String,
) -> Result<Outcome, Outcome> {
    for _ in 0..TRIES {
        let (row, target) = row()?;
        let wanted = change(&row.admin_comment);
        if wanted == row.admin_comment {
            return Ok(Outcome::Done(format!(
                "the record of job {target} says what it is to say"
            )));
        }
        slurm.update_job(&target.to_string(), &[&format!("AdminComment={wanted}")])?;
    }
    Err(Outcome::NoAnswer(format!(
        "the comment of the job was written {TRIES} times, and says something else"
    )))
}
