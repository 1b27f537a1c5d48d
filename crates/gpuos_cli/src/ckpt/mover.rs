//! One gpuos_mover: on this machine by its socket, on another node by the same command there.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use gpuos_core::job::JobId;
use gpuos_core::wire::{
    CheckpointJob, CheckpointRecovery, CheckpointRequest, Reply as Answer, Request,
};
use gpuos_host::Machine;
use gpuos_host::socket::{Client, ClientError, MOVER};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::words;
use crate::cli::MoverReach;
use crate::{daemons, remote};

/// How long gpuos_mover may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take where its answer is a sentence among others.
const GLANCE: Duration = Duration::from_secs(2);
/// How long it may take to read all that is kept of a job.
const READING: Duration = Duration::from_secs(6 * 3600);

/// What gpuos_mover of one node told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    /// Slurm's name of the node.
    pub node: String,
    /// Jobs, by their ids.
    pub jobs: Vec<CheckpointJob>,
}

/// Nobody listens on the socket of gpuos_mover.
#[derive(Debug)]
pub struct NoMover(io::Error);

impl fmt::Display for NoMover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no gpuos_mover answers here ({}): start it on the node (`systemctl start gpuos_mover`; [checkpoint] enabled = true in \
             gpuos.toml), or name its directory with --runtime-dir",
            self.0
        )
    }
}

impl std::error::Error for NoMover {}

/// Where one is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// On this machine, with its socket in this directory.
    Here(PathBuf),
    /// On this node.
    Far(String),
}

/// A gpuos_mover that can be asked.
pub struct Mover<'a> {
    machine: &'a dyn Machine,
    reach: &'a MoverReach,
    place: Place,
}

impl<'a> Mover<'a> {
    /// The one whose socket lies in `dir`.
    pub fn here(machine: &'a dyn Machine, reach: &'a MoverReach, dir: PathBuf) -> Mover<'a> {
        Mover {
            machine,
            reach,
            place: Place::Here(dir),
        }
    }

    /// That of another node.
    ///
    /// # Errors
    /// The name is none that ssh and a shell take as it is.
    pub fn far(machine: &'a dyn Machine, reach: &'a MoverReach, node: &str) -> Result<Mover<'a>> {
        if !remote::is_node(node) {
            bail!("{node:?} is no name of a node that a command can be sent to");
        }
        Ok(Mover {
            machine,
            reach,
            place: Place::Far(node.into()),
        })
    }

    /// Whether it is reached over ssh, or what stands for it.
    pub fn is_far(&self) -> bool {
        matches!(self.place, Place::Far(_))
    }

    /// The node that it says it is on.
    ///
    /// # Errors
    /// It does not answer.
    pub fn node(&self) -> Result<String> {
        match &self.place {
            Place::Here(dir) => Ok(connect(dir, PATIENCE)?.daemon.1),
            Place::Far(node) => Ok(node.clone()),
        }
    }

    /// Jobs with checkpoints on its node, or the one.
    ///
    /// # Errors
    /// [`NoMover`], or another sentence.
    pub fn list(&self, job: Option<&JobId>) -> Result<Told> {
        let request = CheckpointRequest::List { job: job.cloned() };
        self.told(request, "list", PATIENCE)
    }

    /// The same after all of the job was read and held against its digests.
    ///
    /// # Errors
    /// As [`Mover::list`].
    pub fn verify(&self, job: &JobId) -> Result<Told> {
        let request = CheckpointRequest::Verify { job: job.clone() };
        self.told(request, "verify", READING)
    }

    /// Restarts and drills that it has measured since a time, in seconds since 1970.
    ///
    /// # Errors
    /// As [`Mover::list`].
    pub fn report(
        &self,
        since: u64,
        job: Option<&JobId>,
    ) -> Result<(String, Vec<CheckpointRecovery>)> {
        let job = job.cloned();
        let what = CheckpointRequest::Report { since, job };
        match &self.place {
            Place::Here(dir) => {
                let mut client = connect(dir, PATIENCE)?;
                let node = client.daemon.1.clone();
                match client.ask(&Request::Checkpoint { what }).map_err(plain)? {
                    Answer::CheckpointReport { recoveries } => Ok((node, recoveries)),
                    _ => Err(daemons::other_answer("gpuos_mover")),
                }
            }
            Place::Far(node) => {
                // The other clock may be another one by a little.
                let minutes = words::clock().saturating_sub(since).div_ceil(60);
                let verb = format!("report --since={minutes}m");
                let answer = self.there(node, &verb, (what.job(), None), PATIENCE * 9)?;
                let all: Vec<CheckpointRecovery> =
                    serde_json::from_value(answer["recoveries"].clone()).with_context(|| {
                        format!("gpuos of {node} gave another answer: {answer}")
                    })?;
                Ok((node.clone(), all))
            }
        }
    }

    /// Asks for a checkpoint; its answer, a sentence.
    ///
    /// # Errors
    /// As [`Mover::list`], or it refused.
    pub fn now(&self, job: &JobId) -> Result<String> {
        self.done(CheckpointRequest::Now { job: job.clone() }, "now --no-wait")
    }

    /// Has the next run of a job begin from a checkpoint; its answer, a sentence.
    ///
    /// # Errors
    /// As [`Mover::now`].
    pub fn choose(&self, job: &JobId, number: u32) -> Result<String> {
        let what = CheckpointRequest::Choose {
            job: job.clone(),
            number,
        };
        self.done(what, "restart --no-requeue")
    }

    /// Has it have the job run again, where its user cannot ask the workload manager for that; its answer, a sentence.
    ///
    /// # Errors
    /// As [`Mover::now`].
    pub fn requeue(&self, job: &JobId) -> Result<String> {
        self.done(CheckpointRequest::Requeue { job: job.clone() }, "restart")
    }

    /// Has it remove what it keeps of a job, with `anew` also if the job may come back to it; its answer, a sentence.
    ///
    /// # Errors
    /// As [`Mover::now`].
    pub fn prune(&self, job: &JobId, anew: bool) -> Result<String> {
        let job = job.clone();
        let verb = if anew { "prune --anew" } else { "prune" };
        self.done(CheckpointRequest::Prune { job, anew }, verb)
    }

    fn told(&self, what: CheckpointRequest, verb: &str, limit: Duration) -> Result<Told> {
        let node = match &self.place {
            Place::Here(dir) => {
                let mut client = connect(dir, limit)?;
                let node = client.daemon.1.clone();
                return match client.ask(&Request::Checkpoint { what }).map_err(plain)? {
                    Answer::Checkpoints { jobs } => Ok(Told { node, jobs }),
                    _ => Err(daemons::other_answer("gpuos_mover")),
                };
            }
            Place::Far(node) => node,
        };
        let answer = self.there(node, verb, (what.job(), None), limit)?;
        let all: Vec<Told> = serde_json::from_value(answer["told"].clone())
            .with_context(|| format!("gpuos of {node} gave another answer: {answer}"))?;
        let first = all.into_iter().next();
        Ok(first.unwrap_or(Told {
            node: node.clone(),
            jobs: Vec::new(),
        }))
    }

    fn done(&self, what: CheckpointRequest, verb: &str) -> Result<String> {
        match &self.place {
            Place::Here(dir) => {
                let mut client = connect(dir, PATIENCE)?;
                match client.ask(&Request::Checkpoint { what }).map_err(plain)? {
                    Answer::Done { message } => Ok(message),
                    _ => Err(daemons::other_answer("gpuos_mover")),
                }
            }
            Place::Far(node) => {
                let number = match &what {
                    CheckpointRequest::Choose { number, .. } => Some(*number),
                    _ => None,
                };
                let answer = self.there(node, verb, (what.job(), number), PATIENCE * 9)?;
                let message = answer["message"].as_str().map(str::to_string);
                message.with_context(|| format!("gpuos of {node} gave another answer: {answer}"))
            }
        }
    }

    /// The answer of the same command on another node.
    fn there(
        &self,
        node: &str,
        verb: &str,
        (job, number): (Option<&JobId>, Option<u32>),
        limit: Duration,
    ) -> Result<Value> {
        let mut line = format!("gpuos --json ckpt {verb} --local");
        if let Some(job) = job {
            line += &format!(" {}", remote::quoted(&job.to_string()));
        }
        if let Some(number) = number {
            line += &format!(" {number}");
        }
        line += &remote::runtime_dir(&self.reach.runtime_dir);
        let limit = limit.max(PATIENCE * 9);
        let answer = remote::ask_within(self.machine, limit, &self.reach.via, node, &line);
        Ok(answer?.0)
    }
}

/// Those whose sockets are on this machine: one, or in a lab one for each node, with its name.
pub fn of_machine<'a>(
    machine: &'a dyn Machine,
    reach: &'a MoverReach,
) -> Vec<(Option<String>, Mover<'a>)> {
    let all = daemons::all(&reach.runtime_dir).into_iter();
    all.map(|(node, dir)| (node, Mover::here(machine, reach, dir)))
        .collect()
}

/// What the gpuos_mover of this machine whose socket lies in `dir` tells of a job at once; `None`: nothing.
pub fn glance(dir: &Path, job: &JobId) -> Option<CheckpointJob> {
    let mut client = Client::connect(&dir.join(MOVER), GLANCE).ok()?;
    let what = CheckpointRequest::List {
        job: Some(job.clone()),
    };
    match client.ask(&Request::Checkpoint { what }) {
        Ok(Answer::Checkpoints { jobs }) => jobs.into_iter().next(),
        _ => None,
    }
}

/// Sentences about jobs whose programs save what is not stored, as the gpuos_mover whose socket lies in `dir` tells at once; none where none does.
pub fn unstored(dir: &Path) -> Vec<String> {
    let told = |client: &mut Client| {
        let ask = |what| Request::Checkpoint { what };
        // Root is told of all jobs, and nothing is read for it.
        if let Ok(Answer::CheckpointFigures { figures }) =
            client.ask(&ask(CheckpointRequest::Figures))
        {
            return figures.jobs;
        }
        match client.ask(&ask(CheckpointRequest::List { job: None })) {
            Ok(Answer::Checkpoints { jobs }) => jobs,
            _ => Vec::new(),
        }
    };
    let client = Client::connect(&dir.join(MOVER), GLANCE);
    let jobs = client.map(|mut client| told(&mut client));
    let jobs = jobs.unwrap_or_default().into_iter();
    let sentences = jobs.filter_map(|job| {
        let failing = words::failing(&job)?;
        let job = job.job;
        Some(format!(
            "job {job} saves checkpoints that are not stored: {failing}; see `gpuos ckpt show {job}`"
        ))
    });
    sentences.collect()
}

fn connect(dir: &Path, patience: Duration) -> Result<Client> {
    Client::connect(&dir.join(MOVER), patience).map_err(plain)
}

/// The client's errors speak of gpuosd.
fn plain(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::NoDaemon(e) => NoMover(e).into(),
        ClientError::Broken(e) => anyhow!(
            "gpuos_mover did not answer: {e}; `journalctl -u gpuos_mover` on its node says what it did last"
        ),
        ClientError::Wire(e) => anyhow!(
            "gpuos_mover's answer cannot be read: {e}; command and gpuos_mover have to be of one release"
        ),
        ClientError::Refused(why) => anyhow!(why),
    }
}
