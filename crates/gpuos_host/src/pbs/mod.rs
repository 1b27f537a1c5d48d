//! PBS, by its commands: what `pbsnodes` and `qstat` print, and a job that is run on exactly these vnodes.
//!
//! The texts are read by [`gpuos_pbs`]; here they are fetched, within limits of time and size. [`Mom`] is PBS as a mom's host has it,
//! without a command.

mod advise;
mod by_server;
mod choices;
mod choose;
mod mom;
mod room;
mod state;

pub use choices::ChoiceStore;
pub use mom::Mom;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::hook::install::programs;
use gpuos_pbs::state::jobs::{is_job, parse};
use gpuos_pbs::state::{Job, Site, Texts, fresh};

use crate::config_file;
use crate::{Machine, Output};

/// Where PBS says what it runs with, unless `$PBS_CONF_FILE` names another file, as PBS's own commands have it.
const CONF: &str = "/etc/pbs.conf";

/// Where gpuos.toml lies on a machine with PBS.
const FOLDER: &str = "/etc/gpuos";

/// How long a command that asks may take, and one that runs a job: pbs_server then waits for a hook and for a mom.
const ASK: Duration = Duration::from_secs(30);
const RUN: Duration = Duration::from_secs(60);

/// What qstat says of a job that there is not, and of one that is over.
const UNKNOWN: &str = "Unknown Job Id";
const OVER: &str = "Job has finished";

/// gpuos.toml alone: that which `given` or `$GPUOS_CONF` names, else the one in /etc/gpuos; the defaults where there is none.
///
/// # Errors
/// A named file cannot be read, or the file has a mistake.
pub fn config(machine: &dyn Machine, given: Option<&Path>) -> Result<Config> {
    Ok(config_file::read(machine, given, Path::new(FOLDER))?.1)
}

/// An installation of PBS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pbs {
    /// The folder of its programs.
    programs: String,
}

/// What PBS's commands printed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Answers {
    vnodes: String,
    jobs: String,
    queues: String,
    server: String,
}

impl Pbs {
    /// The installation that pbs.conf names.
    ///
    /// # Errors
    /// There is none: a sentence.
    pub fn find(machine: &dyn Machine) -> Result<Pbs> {
        let path = machine.env("PBS_CONF_FILE").unwrap_or_else(|| CONF.into());
        let bytes = machine.read(Path::new(&path)).with_context(|| {
            format!("cannot read {path}: run this where PBS's commands are, or name the file in $PBS_CONF_FILE")
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let programs = programs(&text)
            .map_err(|_| anyhow!("{path} has no PBS_EXEC= with the folder of PBS's programs"))?;
        Ok(Pbs { programs })
    }

    /// The cluster as pbs_server has it now, with a gpuos.toml: `config`, `$GPUOS_CONF`, or the one in /etc/gpuos.
    ///
    /// # Errors
    /// PBS does not answer, or answers what it cannot mean, or the file has a mistake.
    pub fn site(&self, machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
        self.site_with(machine, self::config(machine, config)?)
    }

    /// The same with a gpuos.toml that was read.
    ///
    /// # Errors
    /// PBS does not answer, or answers what it cannot mean, or the file contradicts it.
    pub fn site_with(&self, machine: &dyn Machine, config: Config) -> Result<Site> {
        let answers = self.answers(machine)?;
        let texts = Texts {
            vnodes: &answers.vnodes,
            jobs: &answers.jobs,
            queues: &answers.queues,
            server: &answers.server,
        };
        Site::read(&texts, config).map_err(|why| anyhow!("PBS's answer cannot be read: {why}"))
    }

    /// The jobs before the vnodes: a job that is listed as waiting and was started since then has its vnodes by now.
    fn answers(&self, machine: &dyn Machine) -> Result<Answers> {
        Ok(Answers {
            server: self.ask(machine, "qstat", &["-B", "-f", "-F", "json"])?,
            queues: self.ask(machine, "qstat", &["-Q", "-f", "-F", "json"])?,
            jobs: self.ask(machine, "qstat", &["-f", "-F", "json"])?,
            vnodes: self.ask(machine, "pbsnodes", &["-av", "-F", "json"])?,
        })
    }

    /// Whether a planned start still holds: `qrun` would start a job that is held by now, and looks at nothing of what its vnodes have left.
    ///
    /// # Errors
    /// It does not hold, or PBS does not say so: a sentence.
    pub fn still_holds(&self, machine: &dyn Machine, job: &Job, exec_vnode: &str) -> Result<()> {
        let text = self.ask(machine, "qstat", &["-f", "-F", "json", &job.id])?;
        fresh::still_waits(job, &text).map_err(|why| anyhow!(why))?;
        let vnodes = fresh::vnodes_of(exec_vnode);
        let names = vnodes.iter().map(|name| &name[..]);
        let args: Vec<&str> = ["-v", "-F", "json"].into_iter().chain(names).collect();
        let text = self.ask(machine, "pbsnodes", &args)?;
        fresh::still_free(job, exec_vnode, &text).map_err(|why| anyhow!(why))
    }

    /// A job as pbs_server has it, by its whole name or its number; `None`: it knows it no more, or it has ended.
    ///
    /// # Errors
    /// PBS does not answer, or the name is none of a job.
    pub fn job(&self, machine: &dyn Machine, job: &str) -> Result<Option<Job>> {
        if !is_job(job) {
            bail!("\"{}\" is no number of a job", job.escape_debug());
        }
        let text = match self.ask(machine, "qstat", &["-f", "-F", "json", job]) {
            Ok(text) => text,
            // Words of qstat's, of a job that there is not, and of one of the history.
            Err(why)
                if [UNKNOWN, OVER]
                    .iter()
                    .any(|words| why.to_string().contains(words)) =>
            {
                return Ok(None);
            }
            Err(why) => return Err(why),
        };
        let (jobs, _) =
            parse(&text).map_err(|why| anyhow!("PBS's answer cannot be read: {why}"))?;
        let is_asked = |one: &Job| one.id == job || one.number() == job;
        Ok(jobs.into_iter().find(is_asked))
    }

    /// Runs a job on exactly these vnodes, as an operator may.
    ///
    /// # Errors
    /// PBS refuses it, in its words, or the name is none of a job.
    pub fn run_at(&self, machine: &dyn Machine, job: &str, exec_vnode: &str) -> Result<()> {
        if !is_job(job) {
            bail!("\"{}\" is no number of a job", job.escape_debug());
        }
        self.command(machine, RUN, "qrun", &["-H", exec_vnode, job])?;
        Ok(())
    }

    /// What qmgr answers to a line, whether it fails or not.
    ///
    /// # Errors
    /// It cannot be run, or gives no answer in time.
    pub fn qmgr(&self, machine: &dyn Machine, line: &str) -> Result<Output> {
        let path = format!("{}/qmgr", self.programs);
        machine.run_within(ASK, &path, &["-c", line])
    }

    fn ask(&self, machine: &dyn Machine, program: &str, args: &[&str]) -> Result<String> {
        self.command(machine, ASK, program, args)
    }

    fn command(
        &self,
        machine: &dyn Machine,
        limit: Duration,
        program: &str,
        args: &[&str],
    ) -> Result<String> {
        let path = &format!("{}/{program}", self.programs)[..];
        let output = machine.run_within(limit, path, args)?;
        if output.ok {
            return Ok(output.stdout);
        }
        let said = [&output.stderr, &output.stdout];
        let said = said
            .into_iter()
            .find_map(|text| text.trim().lines().next_back());
        bail!(
            "`{program} {}` failed: {}",
            args.join(" "),
            said.unwrap_or("it gave no reason")
        );
    }
}
