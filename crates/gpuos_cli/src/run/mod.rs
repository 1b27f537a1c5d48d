//! `gpuos run`: a program in a step that outlives its nodes. When a node is lost, or the program fails, what is left of the step is
//! ended, and the program started again on the nodes that are left and a spare one, without a trip through the queue.
//!
//! - [`job`]: what Slurm says of the job and its nodes; [`choose`]: which of them the program gets; [`parts`]: which have data;
//! - [`step`]: srun, which runs it; [`signals`]: what `gpuos run` itself is told;
//! - [`tries`]: how often that may go on.
//!
//! Which checkpoint it goes on from is the movers' business: spank_gpuos tells them by [`step::START`] that the step is the program, and
//! slurmctld on which nodes.

mod choose;
mod job;
mod parts;
mod signals;
mod step;
mod tries;

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;

use crate::ckpt::brief;
use crate::cli::RunArgs;
use crate::daemons;
use choose::{Node, choose, fewer};
use job::Job;
use signals::Signals;
use step::{Ended, Step};
use tries::{Limits, Next, Tries};

/// The exit code when too few nodes are left: EX_TEMPFAIL of sysexits.h.
const TOO_FEW: u8 = 75;
/// Nodes that do not answer are looked at again for so long, as a slurmd that is restarted does not answer for a moment ...
const RETURN: Duration = Duration::from_secs(10);
/// ... so often.
const AGAIN: Duration = Duration::from_secs(1);
/// How long it takes Slurm at most to end the script of a job that is requeued.
const REQUEUED: Duration = Duration::from_secs(120);

pub fn run(machine: &dyn Machine, args: &RunArgs) -> Result<u8> {
    let job = Job::here(machine)?;
    let count = match args.nodes {
        Some(nodes) => nodes as usize,
        None => job.size.saturating_sub(job.spares).max(1),
    };
    if count > job.size {
        bail!(
            "--nodes={count}: job {} has {} nodes; write fewer, or leave the option out",
            job.target,
            job.size
        );
    }
    if let Some(least) = args.least.filter(|least| *least as usize > count) {
        bail!(
            "--least={least}: the program runs on {count} nodes; write fewer, or more with --nodes"
        );
    }
    let signals = Signals::take().context("cannot take signals")?;
    let tries = Tries::new(Limits {
        starts: args.tries,
        failures: args.tries_failed,
    });
    let program = Program {
        machine,
        args,
        job,
        count,
        signals,
        tries,
    };
    program.run()
}

struct Program<'a> {
    machine: &'a dyn Machine,
    args: &'a RunArgs,
    job: Job,
    /// Nodes that it runs on.
    count: usize,
    signals: Signals,
    tries: Tries,
}

impl Program<'_> {
    fn run(mut self) -> Result<u8> {
        let mut nodes = match self.nodes(&[])? {
            Nodes::These(nodes, _) => nodes,
            Nodes::TooFew(why) => return self.too_few(&why),
            Nodes::Over => bail!("job {} does not run any more", self.job.target),
        };
        loop {
            self.tries.start();
            // Where the program always has all nodes, its steps are the job's as any others are.
            let some = self.count < self.job.size || self.args.least.is_some();
            let start = some.then_some(self.tries.starts);
            let mut step = Step::start(self.machine, &self.job, &nodes, start, &self.args.command)?;
            self.tell(&format!("srun is started on {}", list(&nodes)));
            let ended = step.wait(&nodes, &self.signals)?;
            let code = match ended {
                Ended::By(0) => return Ok(0),
                Ended::By(code) => code,
                Ended::Lost | Ended::Told => 1,
            };
            self.tell(&match ended {
                Ended::By(code) => format!("srun has ended with code {code}"),
                Ended::Lost => "a node is lost, and the step was ended".into(),
                Ended::Told => "a signal asked for the end".into(),
            });
            if !step.end() {
                say(
                    "what is left of the program does not end on a node that does not answer; it is started again elsewhere",
                );
            }
            self.tell("nothing of the step is left");
            if ended == Ended::Told || self.signals.stops.load(Ordering::Relaxed) {
                return Ok(code.max(1));
            }
            let (next, lost) = match self.nodes(&nodes)? {
                Nodes::These(next, lost) => (next, lost),
                Nodes::TooFew(why) => return self.too_few(&why),
                // It is cancelled, requeued or at its limit.
                Nodes::Over => return Ok(code),
            };
            self.tell("nodes are chosen");
            let newest = self.newest();
            let from = match newest {
                Some(number) => format!("checkpoint {number}"),
                None => "its start, as this node knows of no checkpoint".into(),
            };
            let what = what_happened(&lost, code);
            match self.tries.failed(!lost.is_empty(), newest) {
                Next::Again => say(&format!(
                    "{what}; the program is started again on {} from {from} (start {} of at most {})",
                    list(&next),
                    self.tries.starts + 1,
                    self.args.tries
                )),
                Next::Started => {
                    say(&format!(
                        "{what}; it is not started again after {} starts (--tries)",
                        self.tries.starts
                    ));
                    return Ok(code);
                }
                Next::Failed => {
                    say(&format!(
                        "{what}; it is not started again, as it has failed {} times without a new checkpoint (--tries-failed)",
                        self.args.tries_failed
                    ));
                    return Ok(code);
                }
            }
            nodes = next;
        }
    }

    /// The nodes for the next start, and which of those before are lost, with the reasons.
    fn nodes(&self, before: &[String]) -> Result<Nodes> {
        let deadline = Instant::now() + RETURN;
        loop {
            let Some(mut all) = self.job.look(self.machine, !before.is_empty())? else {
                return Ok(Nodes::Over);
            };
            // A spare node may have what one of the first has not.
            if before.is_empty() && self.job.restarts > 0 && all.len() > self.count {
                parts::look(
                    self.machine,
                    self.job.target.id(),
                    &mut all,
                    &self.args.runtime_dir,
                );
            }
            if let Some(chosen) = choose(&all, before, self.count) {
                return Ok(Nodes::These(chosen, lost(before, &all)));
            }
            // Those that Slurm has taken from the job do not come back.
            if Instant::now() > deadline || all.len() < self.count {
                let least = self.args.least.map(|least| least as usize);
                if let Some(chosen) = fewer(&all, before, self.count, least) {
                    return Ok(Nodes::These(chosen, lost(before, &all)));
                }
                let left = all.iter().filter(|node| node.lost.is_none()).count();
                let lost = lost(before, &all);
                let lost = match lost.is_empty() {
                    true => String::new(),
                    false => format!("{}; ", sentence(&lost)),
                };
                return Ok(Nodes::TooFew(format!(
                    "{lost}{left} of the job's nodes are left, and the program needs {}",
                    least.unwrap_or(self.count)
                )));
            }
            if self.signals.ends.load(Ordering::Relaxed) {
                return Ok(Nodes::Over);
            }
            sleep(AGAIN);
        }
    }

    /// The job has to have other nodes, which it gets through the queue alone.
    fn too_few(&self, why: &str) -> Result<u8> {
        if self.args.no_requeue {
            say(&format!("{why}; it is not started again"));
            return Ok(TOO_FEW);
        }
        if let Err(refused) = self.job.target.requeue(self.machine, true) {
            say(&format!(
                "{why}; the job is not requeued: {} (sbatch --requeue has Slurm allow it)",
                line(&format!("{refused:#}"))
            ));
            return Ok(TOO_FEW);
        }
        say(&format!("{why}; job {} is requeued", self.job.target));
        // What stands behind this command in the script is not to be done.
        let deadline = Instant::now() + REQUEUED;
        while !self.signals.ends.load(Ordering::Relaxed) && Instant::now() < deadline {
            sleep(AGAIN);
        }
        Ok(TOO_FEW)
    }

    /// The newest checkpoint that gpuos_mover of this node knows of.
    fn newest(&self) -> Option<u32> {
        let node = self.machine.env("SLURMD_NODENAME");
        let dir = daemons::pick(&self.args.runtime_dir, node.as_deref());
        brief::newest_number(&dir, &self.job.name())
    }

    /// With `--verbose`, something with the time in seconds since 1970.
    fn tell(&self, text: &str) {
        if self.args.verbose {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.unwrap_or_default().as_secs_f64();
            say(&format!("[{now:.3}] {text}"));
        }
    }
}

/// What there is to run on.
enum Nodes {
    /// These, and the lost ones.
    These(Vec<String>, Vec<(String, String)>),
    /// Not enough: a clause.
    TooFew(String),
    /// The job does not run any more.
    Over,
}

/// Those of the nodes before that are lost, and why.
fn lost(before: &[String], all: &[Node]) -> Vec<(String, String)> {
    let why = |name: &String| match all.iter().find(|node| node.name == *name) {
        None => Some("Slurm has taken it from the job".to_string()),
        Some(node) => node.lost.clone(),
    };
    let lost = before
        .iter()
        .filter_map(|name| Some((name.clone(), why(name)?)));
    lost.collect()
}

/// A clause.
fn what_happened(lost: &[(String, String)], code: u8) -> String {
    match lost {
        [] => format!("the program has ended with code {code}"),
        lost => sentence(lost),
    }
}

fn sentence(lost: &[(String, String)]) -> String {
    let names = lost.iter().map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.collect();
    let why = lost.first().map_or("", |(_, why)| why.as_str());
    match names.len() {
        1 => format!("node {} is lost ({why})", names[0]),
        _ => format!("nodes {} are lost ({why})", compress(names)),
    }
}

fn list(nodes: &[String]) -> String {
    compress(nodes.iter().map(String::as_str))
}

fn say(text: &str) {
    eprintln!("gpuos run: {text}");
}
