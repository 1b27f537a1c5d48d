//! The step in which the program runs: srun is started, watched and ended.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpuos_host::Machine;

use super::job::Job;
use super::signals::Signals;

/// Variable by which spank_gpuos learns that a step is the job's program.
pub const START: &str = "GPUOS_RUN_START";

/// How often it is looked whether srun has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How often slurmctld is asked whether the job has its nodes still: srun is told of a node that is down, and ends, but for programs
/// that it was told to leave alone.
const ASK: Duration = Duration::from_secs(5);
/// How long a step that was killed may take to end, before it is left behind.
const PATIENCE: Duration = Duration::from_secs(30);
/// srun gets so long to end after its step has.
const LAST: Duration = Duration::from_secs(2);

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// srun has ended with this code.
    By(u8),
    /// A node was lost meanwhile, and the step was killed.
    Lost,
    /// A signal asked for the end.
    Told,
}

/// The step.
pub struct Step<'a> {
    machine: &'a dyn Machine,
    job: &'a Job,
    srun: Child,
}

impl<'a> Step<'a> {
    /// Starts the program on these nodes. `start`: for the so many-th time, where these are not all of the job's.
    ///
    /// # Errors
    /// srun cannot be started.
    pub fn start(
        machine: &'a dyn Machine,
        job: &'a Job,
        nodes: &[String],
        start: Option<u32>,
        command: &[OsString],
    ) -> Result<Step<'a>> {
        let mut srun = Command::new("srun");
        srun.arg(format!("--nodes={}", nodes.len()))
            .arg(format!("--nodelist={}", nodes.join(",")))
            .arg("--kill-on-bad-exit=1")
            .args(command);
        // They speak of all nodes of the job.
        for name in ["SLURM_NNODES", "SLURM_NPROCS", "SLURM_NTASKS"] {
            srun.env_remove(name);
        }
        if let Some(tasks) = job.tasks(nodes.len()) {
            srun.env("SLURM_NTASKS", tasks.to_string());
        }
        match start {
            Some(start) => srun.env(START, start.to_string()),
            None => srun.env_remove(START),
        };
        let srun = srun.spawn().context("cannot start srun")?;
        Ok(Step { machine, job, srun })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The kernel does not tell of srun.
    pub fn wait(&mut self, nodes: &[String], signals: &Signals) -> Result<Ended> {
        let mut ask = Instant::now() + ASK;
        loop {
            if let Some(status) = self.srun.try_wait()? {
                return Ok(Ended::By(code(status)));
            }
            if signals.ends.load(Ordering::Relaxed) {
                self.end();
                return Ok(Ended::Told);
            }
            if Instant::now() >= ask {
                // Without an answer nothing is known.
                if let Ok(Some(now)) = self.job.nodes(self.machine)
                    && !nodes.iter().all(|node| now.contains(node))
                {
                    return Ok(Ended::Lost);
                }
                ask = Instant::now() + ASK;
            }
            sleep(LOOK);
        }
    }

    /// Has nothing of it run any more, on nodes that answer. Gives whether slurmctld says so.
    pub fn end(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let step = self.job.step_of(self.machine, self.srun.id());
        let mut gone = true;
        if let Some(step) = step {
            let _ = self.job.target.kill_step(self.machine, step);
            loop {
                gone = !self.job.has_step(self.machine, step);
                if gone || Instant::now() > deadline {
                    break;
                }
                sleep(LOOK * 5);
            }
        }
        let last = Instant::now() + LAST;
        while matches!(self.srun.try_wait(), Ok(None)) && Instant::now() < last {
            sleep(LOOK);
        }
        let _ = self.srun.kill();
        let _ = self.srun.wait();
        gone
    }
}

/// As a shell has it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code();
    let code = code.or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
