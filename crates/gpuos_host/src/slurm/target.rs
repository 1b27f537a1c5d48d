//! One job, as Slurm's commands take it.
//!
//! The number of an array is that of one of its tasks as well, and to most commands it means all of them: `scontrol requeue 4` requeues
//! every task of array 4. So what is done to a job is never done by its number alone. A [`Target`] is made of what slurmctld says of the
//! job, or of what it told the job itself, and has the form that each command takes. The forms were seen to hold on 22.05, 24.11 and 26.05:
//!
//! | what is done | alone | task of an array | component of a heterogeneous job |
//! | --- | --- | --- | --- |
//! | show, update and cancel the job | `17` | `4_1` | `8+1` |
//! | requeue, hold, release and let it start | `17` | `4_1` | `8`: Slurm does that to all components, or refuses it |
//! | show one of its steps | `17.0` | `5.0` by the task's own number, which means this task alone; `show step 4_1.0` shows other steps, or none | `9.0` by the component's own number |
//! | cancel one of its steps | `17.0` | `4_1.0` | `9.0`; `scancel 8+1.0` cancels step 0 of the first component |
//! | all of its steps | `17` | `4_1` | `9` |

use std::fmt;

use anyhow::{Result, anyhow};
use gpuos_workload::action::Outcome;

use super::rows::{Kind, Row};
use super::{Job, act, scontrol};
use crate::Machine;

/// One job: neither an array nor several of its tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its own number.
    id: u32,
    place: Place,
}

/// Where a job stands among others.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Alone,
    Task { array: u32, task: u32 },
    Component { leader: u32, offset: u32 },
}

impl Target {
    /// The job of a row of squeue's; `None`: these are tasks of an array that wait together.
    pub(super) fn of_row(row: &Row) -> Option<Target> {
        let place = match &row.kind {
            Kind::Plain => Place::Alone,
            Kind::Array(array, task) => Place::Task {
                array: *array,
                task: task.parse().ok()?,
            },
            Kind::Het(leader, offset) => Place::Component {
                leader: *leader,
                offset: *offset,
            },
        };
        Some(Target { id: row.id, place })
    }

    /// A job that Slurm told; `None`: these are tasks of an array that wait together.
    pub fn of(job: &Job) -> Option<Target> {
        let pair = |sign: char| {
            let (whole, part) = job.label.split_once(sign)?;
            Some((whole.parse().ok()?, part.parse().ok()?))
        };
        let place = if let Some((array, task)) = pair('_') {
            Place::Task { array, task }
        } else if let Some((leader, offset)) = pair('+') {
            Place::Component { leader, offset }
        } else if job.array_tasks.is_empty() && job.label == job.id.to_string() {
            Place::Alone
        } else {
            return None;
        };
        Some(Target { id: job.id, place })
    }

    /// The job with this own number; `None`: slurmctld does not know it any more.
    ///
    /// # Errors
    /// slurmctld does not answer; or tasks of an array wait together under this number: a sentence that says how one is named.
    pub fn find(machine: &dyn Machine, id: u32) -> Result<Option<Target>> {
        let row = act::row(machine, id).map_err(|outcome| match outcome {
            Outcome::NoAnswer(why) => anyhow!(why),
            other => anyhow!("{other:?}"),
        })?;
        let Some(row) = row else {
            return Ok(None);
        };
        let together = || {
            anyhow!(
                "{id} is an array whose tasks wait together: name one of them, as {id}_TASK (squeue shows them)"
            )
        };
        Target::of_row(&row).map(Some).ok_or_else(together)
    }

    /// The job in which this process runs, by the variables that Slurm sets there; `None`: there is none.
    pub fn here(machine: &dyn Machine) -> Option<Target> {
        let number = |name: &str| machine.env(name).and_then(|text| text.parse::<u32>().ok());
        let id = number("SLURM_JOB_ID")?;
        let of_array = number("SLURM_ARRAY_JOB_ID").zip(number("SLURM_ARRAY_TASK_ID"));
        let place = match of_array {
            Some((array, task)) => Place::Task { array, task },
            // The script of a heterogeneous job, and all that it starts, have the number of the first component.
            None => Place::Alone,
        };
        Some(Target { id, place })
    }

    /// Its own number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// For what is done to all components of a heterogeneous job together: requeue, hold, release, a new time to start.
    pub fn whole(&self) -> String {
        match self.place {
            Place::Component { leader, .. } => leader.to_string(),
            _ => self.to_string(),
        }
    }

    /// Whether it is a component of a heterogeneous job.
    pub fn is_component(&self) -> bool {
        matches!(self.place, Place::Component { .. })
    }

    /// For `scontrol show step` of one of its steps.
    pub fn show_step(&self, step: u32) -> String {
        format!("{}.{step}", self.id)
    }

    /// For `scancel` of one of its steps.
    pub fn cancel_step(&self, step: u32) -> String {
        match self.place {
            Place::Task { .. } => format!("{self}.{step}"),
            _ => self.show_step(step),
        }
    }

    /// For `scontrol show step` of all of its steps.
    pub fn steps(&self) -> String {
        match self.place {
            Place::Component { .. } => self.id.to_string(),
            _ => self.to_string(),
        }
    }

    /// Requeues it. `running`: only if it still runs or waits; else one that has ended comes back too.
    ///
    /// # Errors
    /// slurmctld refuses it or does not answer, in its words.
    pub fn requeue(&self, machine: &dyn Machine, running: bool) -> Result<()> {
        let whole = self.whole();
        let args = match running {
            true => &["requeue", "incomplete", &whole][..],
            false => &["requeue", &whole],
        };
        scontrol(machine, args).map(drop)
    }

    /// Kills one of its steps.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn kill_step(&self, machine: &dyn Machine, step: u32) -> Result<()> {
        let done = machine.run("scancel", &["--signal=KILL", &self.cancel_step(step)])?;
        match done.ok {
            true => Ok(()),
            false => Err(anyhow!("scancel: {}", done.stderr.trim())),
        }
    }
}

/// The job alone, and of a heterogeneous one the component.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Alone => write!(f, "{}", self.id),
            Place::Task { array, task } => write!(f, "{array}_{task}"),
            Place::Component { leader, offset } => write!(f, "{leader}+{offset}"),
        }
    }
}

/// A job as it stands in a command that is proposed to somebody: of tasks that wait together, those and no others of the array.
pub fn in_command(job: &Job) -> String {
    match Target::of(job) {
        Some(target) => target.to_string(),
        None => {
            // With the most that run at once behind it Slurm takes no list.
            let tasks = job.array_tasks.split('%').next().unwrap_or_default();
            format!("{}_[{tasks}]", job.label)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u32, label: &str, array_tasks: &str) -> Job {
        Job {
            id,
            label: label.into(),
            array_tasks: array_tasks.into(),
            ..Job::default()
        }
    }

    /// Alone; whole; all steps; a step shown, and cancelled.
    fn forms(job: &Job) -> Option<[String; 5]> {
        let target = Target::of(job)?;
        Some([
            target.to_string(),
            target.whole(),
            target.steps(),
            target.show_step(3),
            target.cancel_step(3),
        ])
    }

    #[test]
    fn no_form_means_more_than_the_job() {
        for (job, wanted) in [
            (job(17, "17", ""), ["17", "17", "17", "17.3", "17.3"]),
            // The task that has the number of its array.
            (job(4, "4_3", "3"), ["4_3", "4_3", "4_3", "4.3", "4_3.3"]),
            (job(5, "4_1", "1"), ["4_1", "4_1", "4_1", "5.3", "4_1.3"]),
            (job(8, "8+0", ""), ["8+0", "8", "8", "8.3", "8.3"]),
            (job(9, "8+1", ""), ["8+1", "8", "9", "9.3", "9.3"]),
        ] {
            assert_eq!(forms(&job).expect("one job"), wanted, "{}", job.label);
        }
        // An array whose tasks wait together has one number, and is no job.
        assert_eq!(forms(&job(4, "4", "2-5%1")), None);
        assert_eq!(in_command(&job(4, "4", "2-5%1")), "4_[2-5]");
        assert_eq!(in_command(&job(4, "4_3", "3")), "4_3");
    }
}
