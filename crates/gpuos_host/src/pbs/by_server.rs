//! A job that a mom's host has not, by pbs_server.

use core::time::Duration;

use gpuos_core::job::JobId;
use gpuos_workload::action::Outcome;
use gpuos_workload::job::{Job, JobState};

use super::Pbs;
use crate::Machine;

/// How long the host's list of users may take.
const USERS: Duration = Duration::from_secs(5);

/// A job as pbs_server has it.
pub(super) fn by_server(machine: &dyn Machine, job: &JobId) -> Result<Option<Job>, Outcome> {
    let none = |why: anyhow::Error| Outcome::NoAnswer(format!("{why:#}"));
    let told = Pbs::find(machine).and_then(|pbs| pbs.job(machine, &job.to_string()));
    let Some(told) = told.map_err(none)? else {
        return Ok(None);
    };
    if !told.unreadable.is_empty() {
        let why = format!(
            "what PBS says of job {job} cannot be read: {}",
            told.unreadable
        );
        return Err(Outcome::NoAnswer(why));
    }
    let state = match &told.state[..] {
        "R" | "S" | "U" => JobState::Running,
        "E" => JobState::Ending,
        "F" | "X" | "M" => return Ok(None),
        _ => JobState::Waiting,
    };
    Ok(Some(Job {
        id: job.clone(),
        user: told.user.clone(),
        // Only who asks for parts of a checkpoint needs it, and a user whom this host does not know gets none.
        uid: number_of(machine, &told.runs_as).unwrap_or(u32::MAX),
        state,
        state_word: told.state.clone(),
        nodes: match state {
            JobState::Waiting => Vec::new(),
            _ => told.hosts,
        },
        may_requeue: told.may_rerun,
        ..Job::default()
    }))
}

/// The number of a user of this host; pbs_server has names alone.
fn number_of(machine: &dyn Machine, user: &str) -> Option<u32> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if user.is_empty() || user.starts_with('-') || !user.bytes().all(plain) {
        return None;
    }
    let told = machine.run_within(USERS, "getent", &["passwd", user]);
    let told = told.ok().filter(|told| told.ok)?;
    let mut fields = told.stdout.lines().next()?.split(':');
    // The name, a password, and the number.
    (fields.next() == Some(user)).then_some(())?;
    fields.nth(1)?.parse().ok()
}
