//! Commands in a lab of PBS, and jobs: what tests need most of them in few words.

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Duration;

use super::PbsLab;
use super::files::HEAD;
use crate::error::{Context, LabError};
use crate::pauses::wait_for_state;

impl PbsLab {
    /// Runs a command on the head as root and returns what it wrote to standard output.
    ///
    /// # Errors
    /// It cannot be run, or it failed: then with what it wrote to standard error.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, LabError> {
        self.run_on(HEAD, None, program, args)
    }

    /// The same on any host, as root or as another account.
    ///
    /// # Errors
    /// As [`PbsLab::run`], and where there is no such host or account.
    pub fn run_on(
        &self,
        host: &str,
        user: Option<&str>,
        program: &str,
        args: &[&str],
    ) -> Result<String, LabError> {
        let mut command = self.command_on(host, user, program)?;
        let out = command.args(args).stdin(Stdio::null()).output();
        let out = out.context(|| format!("cannot run {program} on {host}"))?;
        succeeded(program, args, &out)
    }

    /// Runs a command on the head as root, whatever it returns.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<Output, LabError> {
        let mut command = self.command(program)?;
        let out = command.args(args).stdin(Stdio::null()).output();
        out.context(|| format!("cannot run {program} in lab {}", self.name()))
    }

    /// `qsub` of a shell script with these options, on the head, as root or as another account; returns the job's name, for
    /// example `3.head`. Output and errors go to `work/JOB.out` in the lab's folder.
    ///
    /// # Errors
    /// PBS refuses the job: with its sentence.
    pub fn qsub(
        &self,
        user: Option<&str>,
        options: &[&str],
        script: &str,
    ) -> Result<String, LabError> {
        let work = format!("{}/", self.dir().join("work").display());
        let mut args = vec!["-j", "oe", "-o", &work];
        args.extend(options);
        let what = || format!("cannot run qsub in lab {}", self.name());
        let mut command = self.command_on(HEAD, user, "qsub")?;
        let mut child = command
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(what)?;
        if let Some(mut pipe) = child.stdin.take() {
            // One that refuses its options does not read.
            let _ = pipe.write_all(script.as_bytes());
        }
        let out = child.wait_with_output().context(what)?;
        let text = succeeded("qsub", &args, &out)?;
        Ok(text.trim().to_string())
    }

    /// Output of a job of [`PbsLab::qsub`] that has ended; empty while there is none.
    pub fn job_output(&self, job: &str) -> String {
        let path = self.dir().join(format!("work/{job}.OU"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// An attribute of a job, also of one that has ended, as `qstat -f` names it: `job_state`, `exec_vnode`,
    /// `Resource_List.ngpus`, `comment`. `None` where the job does not have it.
    ///
    /// # Errors
    /// qstat failed: the server does not answer, or does not know the job.
    pub fn job(&self, job: &str, attribute: &str) -> Result<Option<String>, LabError> {
        let text = self.run("qstat", &["-x", "-f", "-F", "json", job])?;
        let all: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| LabError::Command {
                command: format!("qstat -x -f -F json {job}"),
                status: format!("no JSON: {e}"),
                stderr: text.clone(),
            })?;
        let jobs = all.get("Jobs").and_then(|jobs| jobs.as_object());
        let first = jobs.and_then(|jobs| jobs.values().next());
        let mut keys = attribute.split('.');
        let value = first.and_then(|job| keys.try_fold(job, |value, key| value.get(key)));
        Ok(value.map(|value| match value.as_str() {
            Some(text) => text.to_string(),
            None => value.to_string(),
        }))
    }

    /// Waits until the job is in one of these states, as PBS has them: `Q`, `H`, `R`, `E`, `F`, …; returns which.
    ///
    /// # Errors
    /// It is in none of them after `limit`: with what qstat says of it.
    pub fn wait_job(
        &self,
        job: &str,
        states: &[&str],
        limit: Duration,
    ) -> Result<String, LabError> {
        let look = || self.job(job, "job_state");
        let shown = || self.run("qstat", &["-x", "-f", job]);
        wait_for_state((job, states), limit, look, shown)
    }
}

fn succeeded(program: &str, args: &[&str], out: &Output) -> Result<String, LabError> {
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(LabError::Command {
            command: format!("{program} {}", args.join(" ")),
            status: out.status.to_string(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }),
    }
}
