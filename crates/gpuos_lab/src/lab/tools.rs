//! Commands in a lab: Slurm's, which are waited for, and `gpuos`; and jobs, what tests need most of them in few words.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Lab;
use crate::daemons::TOOLS;
use crate::error::{Context, LabError};
use crate::pauses::{Pauses, wait_for_state};
use crate::process;
use crate::sys::PidFd;

/// How long a command may take to end in order.
const ENDS: Duration = Duration::from_secs(5);
/// How often slurmctld is asked that does not answer in time.
const ASKED: u32 = 5;
/// How long a killed process may take to go.
const GOES: Duration = Duration::from_secs(60);

impl Lab {
    /// Runs a command in the lab and returns what it wrote to standard output.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, LabError> {
        let out = self.output(program, args)?;
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(LabError::Command {
                command: format!("{program} {}", args.join(" ")),
                status: out.status.to_string(),
                stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
            })
        }
    }

    /// Runs a command in the lab, whatever it returns.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<Output, LabError> {
        let mut command = self.daemons().question(program)?;
        command
            .args(args)
            .output()
            .context(|| format!("cannot run {program} in lab {}", self.name()))
    }

    /// The same with an end: a command that takes longer than `limit` is ended, in order, and 5 s later whatever it does.
    pub fn output_within(
        &self,
        program: &str,
        args: &[&str],
        limit: Duration,
    ) -> Result<Output, LabError> {
        let what = || format!("cannot run {program} in lab {}", self.name());
        let mut command = self.daemons().question(program)?;
        let child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(what)?;
        let process = PidFd::open(child.id()).context(what)?;
        let (running, ended) = channel::<()>();
        thread::spawn(move || {
            for (wait, signal) in [(limit, libc::SIGTERM), (ENDS, libc::SIGKILL)] {
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let _ = process.signal(signal);
            }
        });
        let out = child.wait_with_output().context(what);
        drop(running);
        out
    }

    /// The command `gpuos` that made the lab, as it was then; `None` where another program made it.
    pub fn own_command(&self) -> Option<PathBuf> {
        Some(self.record.path(TOOLS).join("gpuos")).filter(|path| path.is_file())
    }

    /// `sbatch --parsable` with these options and a shell script; returns the job id. The
    /// output goes to `work/JOBID.out` in the lab's folder.
    pub fn sbatch(&self, options: &[&str], script: &str) -> Result<u32, LabError> {
        let out = format!("--output={}", self.dir().join("work/%A.out").display());
        let work = format!("--chdir={}", self.dir().join("work").display());
        let mut args = vec!["--parsable", &out, &work];
        args.extend(options);
        let wrap = format!("--wrap={script}");
        args.push(&wrap);
        let text = self.run("sbatch", &args)?;
        // "12" or "12;cluster".
        let id = text.trim().split(';').next().unwrap_or_default();
        id.parse().map_err(|_| LabError::Command {
            command: format!("sbatch {}", args.join(" ")),
            status: "no job id".to_string(),
            stderr: text.clone(),
        })
    }

    /// Sends the slurmstepd of a step (`17.batch`, `17.0`) SIGKILL and waits until it has gone; what it had started
    /// runs on. False when there is none.
    pub fn kill_slurmstepd(&self, step: &str) -> bool {
        let Some((pid, stat)) = self.slurmstepd(step) else {
            return false;
        };
        process::end(pid, stat.start, libc::SIGKILL, GOES, GOES)
    }

    /// Whether the slurmstepd of a step runs.
    pub fn has_slurmstepd(&self, step: &str) -> bool {
        self.slurmstepd(step).is_some()
    }

    fn slurmstepd(&self, step: &str) -> Option<(u32, process::Stat)> {
        let title = format!("[{step}]");
        let own = |pid: u32| {
            let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(&title)
        };
        let mut all = process::members(&self.record.id, &self.record.dir);
        all.retain(|pid, stat| stat.comm.starts_with("slurmstepd") && own(*pid));
        // What it forks has its title until it is a program.
        let first = all.iter().find(|(_, stat)| !all.contains_key(&stat.ppid));
        first.map(|(pid, stat)| (*pid, stat.clone()))
    }

    /// Output of a job that [`Lab::sbatch`] started; empty when there is none yet.
    pub fn job_output(&self, job: u32) -> String {
        let path = self.dir().join(format!("work/{job}.out"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// State of a job as scontrol names it: `PENDING`, `RUNNING`, `COMPLETED`, …. Where slurmctld does not answer in time it
    /// is asked again.
    pub fn job_state(&self, job: u32) -> Result<String, LabError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.run("scontrol", &["-o", "show", "job", &job.to_string()]) {
                Ok(text) => return Ok(field(&text, "JobState").unwrap_or_default().to_string()),
                Err(e) if tries < ASKED && is_late(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits until the job is in one of these states; returns which.
    pub fn wait_job(&self, job: u32, states: &[&str], limit: Duration) -> Result<String, LabError> {
        let deadline = Instant::now() + limit;
        let name = job.to_string();
        let look = || match self.job_state(job) {
            // slurmctld may be starting anew.
            Err(e) if is_late(&e) && Instant::now() < deadline => Ok(None),
            state => state.map(Some),
        };
        let shown = || self.run("scontrol", &["show", "job", "-d", &name]);
        wait_for_state((&name, states), limit, look, shown)
    }

    /// Waits until the output of a job of [`Lab::sbatch`] contains a text; returns the output.
    pub fn wait_output(&self, job: u32, part: &str, limit: Duration) -> Result<String, LabError> {
        let (pauses, deadline) = (Pauses::new(), Instant::now() + limit);
        loop {
            let text = self.job_output(job);
            if text.contains(part) {
                return Ok(text);
            }
            if Instant::now() > deadline {
                return Err(LabError::Command {
                    command: format!("wait for {part:?} in the output of job {job}"),
                    status: format!("not there after {} s", limit.as_secs()),
                    stderr: text,
                });
            }
            pauses.pause();
        }
    }
}

/// Whether slurmctld has not answered a question: on a busy machine it comes late to one, and while it starts to none.
fn is_late(error: &LabError) -> bool {
    let late = ["timed out", "Unable to contact slurm controller"];
    matches!(error, LabError::Command { stderr, .. } if late.iter().any(|words| stderr.contains(words)))
}

/// `KEY=VALUE` of a line of scontrol.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}
