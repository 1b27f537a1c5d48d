//! What Grid Engine's commands say of a job. `qstat -xml -j JOB` asks sge_qmaster for that job alone, `qstat -xml -s rs -u USER` for the
//! running jobs of one user: the record of a job does not say on which host it runs.

use core::time::Duration;

use gpuos_core::job::JobId;
use gpuos_wlm::gridengine::task::{self, Task};
use gpuos_workload::action::Outcome;

use crate::Machine;

/// How long a command may take.
const ASK: Duration = Duration::from_secs(20);

/// The numbers of job and task.
///
/// # Errors
/// It is no job of Grid Engine.
pub(super) fn numbers(job: &JobId) -> Result<(String, String), Outcome> {
    let name = job.to_string();
    match task::numbers(&name) {
        Some((job, task)) => Ok((job.into(), task.into())),
        None => Err(Outcome::NoAnswer(format!(
            "{name} is no job of Grid Engine: these are JOB.TASK, such as 17.1"
        ))),
    }
}

/// A task as sge_qmaster has it; `None`: it knows no such job any more.
pub(super) fn task(machine: &dyn Machine, job: &JobId) -> Result<Option<Task>, Outcome> {
    let (number, task) = numbers(job)?;
    let text = command(machine, "qstat", &["-xml", "-j", &number])?;
    Task::read(&text, &number, &task).map_err(Outcome::NoAnswer)
}

/// The host on which it runs; `None`: nowhere.
pub(super) fn host(
    machine: &dyn Machine,
    job: &JobId,
    of: &Task,
) -> Result<Option<String>, Outcome> {
    let (number, task) = numbers(job)?;
    if !task::is_user(&of.user) {
        let why = format!("the name of job {job}'s user cannot be asked for");
        return Err(Outcome::NoAnswer(why));
    }
    let text = command(machine, "qstat", &["-xml", "-s", "rs", "-u", &of.user])?;
    task::host(&text, &number, &task).map_err(Outcome::NoAnswer)
}

/// Those of some names that are exec hosts.
pub(super) fn exec_hosts(machine: &dyn Machine, hosts: &[String]) -> Result<Vec<String>, Outcome> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    let list = command(machine, "qconf", &["-sel"])?;
    Ok(task::known(&list, hosts))
}

/// Has sge_qmaster remember that a job was on a host.
pub(super) fn remember(machine: &dyn Machine, job: &JobId, host: &str) -> Result<(), Outcome> {
    let (number, _) = numbers(job)?;
    let entry = task::host_entry(host);
    let entry = entry.ok_or_else(|| Outcome::Refused(format!("{host} is no name of a host")))?;
    command(machine, "qalter", &["-ac", &entry, &number]).map(drop)
}

fn command(machine: &dyn Machine, program: &str, args: &[&str]) -> Result<String, Outcome> {
    let failed =
        |why: String| Outcome::NoAnswer(format!("`{program} {}` failed: {why}", args.join(" ")));
    let output = machine.run_within(ASK, program, args);
    let output = output.map_err(|why| failed(format!("{why:#}")))?;
    if output.ok {
        return Ok(output.stdout);
    }
    let said = [&output.stderr, &output.stdout];
    let mut said = said.into_iter();
    let last = said.find_map(|text| text.trim().lines().next_back());
    Err(failed(last.unwrap_or("it gave no reason").to_owned()))
}
