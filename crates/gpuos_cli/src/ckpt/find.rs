//! Which gpuos_movers have something of a job: those of this machine, else that of the job's first node by the workload manager.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use gpuos_core::job::JobId;
use gpuos_core::wire::{CheckpointJob, CheckpointPhase};
use gpuos_host::gridengine;
use gpuos_host::pbs::Pbs;
use gpuos_host::slurm::{self, Job};
use gpuos_host::{Machine, host_name};
use gpuos_pbs::hook::vnodes::short;
use gpuos_pbs::state::Job as PbsJob;
use gpuos_pbs::state::jobs::is_job;
use gpuos_wlm::gridengine::task::numbers;

use super::mover::{self, Mover, NoMover, Told};
use crate::cli::MoverReach;
use crate::names::Name;
use crate::{daemons, pbs_why};

/// Jobs of one name that are told at most.
const TOLD: usize = 8;

/// A job, and who has something of it.
pub struct Found<'a> {
    /// By its own number.
    pub id: JobId,
    /// Each with what it told, in the order of the nodes' names.
    pub movers: Vec<(Mover<'a>, Told)>,
    /// The job's nodes in a lab whose gpuos_mover did not answer, a sentence for each.
    pub missing: Vec<String>,
    named: Named,
}

impl Found<'_> {
    /// What the node tells that decides, else the first that does not speak of the past.
    pub fn leading(&self) -> Option<(&Mover<'_>, &str, &CheckpointJob)> {
        let all = self.movers.iter().filter_map(|(mover, told)| {
            let job = told.jobs.first()?;
            Some((mover, told.node.as_str(), job))
        });
        all.min_by_key(|(_, _, job)| rank(job))
    }

    /// That the job waits, and comes back to what is kept of it, as a sentence in place of that of the phase; `None`: it does not.
    pub fn comes_back(&self, machine: &dyn Machine, label: &str) -> Option<String> {
        match whereabouts(machine, &self.named, label) {
            Ok(job) => job.filter(Whereabouts::waits).map(|job| {
                format!(
                    "the job is {} and goes on from what is kept when it begins again",
                    job.state
                )
            }),
            Err(e) => Some(format!(
                "the job does not run here; whether it comes back to what is kept is not known: {e:#}"
            )),
        }
    }

    /// What each told.
    pub fn told(&self) -> Vec<&Told> {
        self.movers.iter().map(|(_, told)| told).collect()
    }
}

/// Less for those who know more of the job as it is now.
pub fn rank(job: &CheckpointJob) -> (bool, bool) {
    (!job.leads, is_past(job))
}

/// Whether the job does not run there any more.
fn is_past(job: &CheckpointJob) -> bool {
    job.phase == CheckpointPhase::Left
}

/// What a job is looked for for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// What it does: a node that only keeps what it left there sends on to where it runs now.
    Running,
    /// What is kept of it.
    Kept,
}

/// The gpuos_movers that the flags mean, where no job is looked for.
///
/// # Errors
/// The name of the node is none.
pub fn meant<'a>(
    machine: &'a dyn Machine,
    reach: &'a MoverReach,
) -> Result<Vec<(Option<String>, Mover<'a>)>> {
    let Some(node) = &reach.node else {
        return Ok(mover::of_machine(machine, reach));
    };
    let own = Mover::here(
        machine,
        reach,
        daemons::pick(&reach.runtime_dir, Some(node)),
    );
    let told = own.node();
    let mover = match told.as_ref().is_ok_and(|told| told == node) {
        true => own,
        // All nodes of a lab are here.
        false if daemons::is_of_nodes(&reach.runtime_dir) => {
            daemons::check_known(machine, node)?;
            own
        }
        false => Mover::far(machine, reach, node)?,
    };
    Ok(vec![(Some(node.clone()), mover)])
}

/// Finds the job of this name.
///
/// # Errors
/// Nobody has anything of it: a sentence that says who was asked, and what to do.
pub fn find<'a>(
    machine: &'a dyn Machine,
    reach: &'a MoverReach,
    label: &str,
    wanted: For,
) -> Result<Found<'a>> {
    let named = match (Name::parse(label), is_of_pbs(machine, label)) {
        // PBS's jobs have such names where its server has a number for one.
        (None, _) if numbers(label).is_some() && Pbs::find(machine).is_err() => Named::Gridengine,
        (_, true) => Named::Pbs,
        (Some(name), false) => Named::Slurm(name),
        (None, false) => bail!("{label}: no job number"),
    };
    let id = match &named {
        Named::Slurm(Name::Job(number)) => JobId::from(*number),
        Named::Slurm(name) => match by_slurm(machine, name, label)? {
            Some(job) => JobId::from(job.id),
            None => bail!(
                "slurmctld does not know job {label}, or not any more: name it by its own number, as `gpuos ckpt list` on its node does"
            ),
        },
        Named::Gridengine => label.parse()?,
        Named::Pbs if label.contains('.') => label.parse()?,
        Named::Pbs => match by_pbs(machine, label)? {
            Some(job) => job.id.parse()?,
            None => bail!(
                "PBS does not know job {label}, or not any more: name it as `gpuos ckpt list` on its host does"
            ),
        },
    };
    let (mut movers, mut failed, mut nobody) = (Vec::new(), Vec::new(), None);
    for (node, mover) in meant(machine, reach)? {
        match mover.list(Some(&id)) {
            Ok(told) if told.jobs.is_empty() => nobody = Some(nothing(&told.node, &id)),
            Ok(told) => movers.push((mover, told)),
            Err(e) => failed.push((node, e)),
        }
    }
    let only_here = reach.local || reach.node.is_some() || daemons::is_of_nodes(&reach.runtime_dir);
    if !movers.is_empty() {
        let past = |(_, told): &(Mover<'_>, Told)| told.jobs.iter().all(is_past);
        if wanted == For::Running && !only_here && movers.iter().all(past) {
            // Where Slurm, or the other node, does not tell, what this one keeps is the answer.
            let now = elsewhere(machine, reach, (&id, &named, label), "");
            if let Ok(now) = now {
                return Ok(now);
            }
        }
        let missing = missing(&movers, failed);
        return Ok(Found {
            id,
            movers,
            missing,
            named,
        });
    }
    let away = failed.iter().all(|(_, e)| e.is::<NoMover>());
    let here = match (nobody, failed.into_iter().next()) {
        (Some(nobody), _) if away => nobody,
        (_, Some((_, e))) => format!("{e:#}"),
        (nobody, None) => nobody.unwrap_or_else(|| "there is no node of a lab here".into()),
    };
    if only_here || !away {
        bail!(here);
    }
    elsewhere(machine, reach, (&id, &named, label), &here)
}

/// A sentence for each of the job's nodes whose gpuos_mover did not answer.
fn missing(
    movers: &[(Mover<'_>, Told)],
    failed: Vec<(Option<String>, anyhow::Error)>,
) -> Vec<String> {
    let jobs = movers.iter().flat_map(|(_, told)| &told.jobs);
    let its: BTreeSet<&String> = jobs.flat_map(|job| &job.nodes).collect();
    let sentence = |(node, e): (Option<String>, anyhow::Error)| {
        let node = node.filter(|node| its.contains(node))?;
        Some(format!("{node}: {e:#}"))
    };
    failed.into_iter().filter_map(sentence).collect()
}

/// By which workload manager a job is looked for.
#[derive(Clone)]
enum Named {
    /// Slurm, by what this name means there.
    Slurm(Name),
    /// PBS.
    Pbs,
    /// Grid Engine, by job and task.
    Gridengine,
}

/// Whether a name is that of a job of PBS: this machine has nothing but PBS, or the name has its server in it.
fn is_of_pbs(machine: &dyn Machine, label: &str) -> bool {
    let whole = Name::parse(label).is_none() && label.contains('.');
    is_job(label) && (whole || pbs_why::is_meant(machine, false))
}

fn by_pbs(machine: &dyn Machine, label: &str) -> Result<Option<PbsJob>> {
    Pbs::find(machine)?.job(machine, label)
}

/// A job as its workload manager has it.
struct Whereabouts {
    label: String,
    state: String,
    nodes: Vec<String>,
    id: Option<JobId>,
    /// It has ended.
    is_over: bool,
}

impl Whereabouts {
    fn waits(&self) -> bool {
        self.nodes.is_empty() && !self.is_over
    }
}

/// Where a job is, by its workload manager; `None`: that knows it no more.
fn whereabouts(machine: &dyn Machine, named: &Named, label: &str) -> Result<Option<Whereabouts>> {
    Ok(match named {
        Named::Slurm(name) => by_slurm(machine, name, label)?.map(|job| Whereabouts {
            id: matches!(name, Name::Job(_)).then(|| JobId::from(job.id)),
            is_over: job.has_ended(),
            label: job.label,
            state: job.state,
            nodes: job.nodes,
        }),
        Named::Gridengine => {
            let found = gridengine::whereabouts(machine, &label.parse()?);
            let found = found.map_err(|why| anyhow!("{}", why.words()))?;
            found.map(|job| Whereabouts {
                label: label.into(),
                state: format!("in state {}", job.state_word),
                nodes: job.nodes,
                id: Some(job.id),
                is_over: false,
            })
        }
        Named::Pbs => by_pbs(machine, label)?.map(|job| Whereabouts {
            label: job.id.clone(),
            is_over: matches!(&job.state[..], "F" | "X" | "M"),
            state: format!("in state {}", job.state),
            id: job.id.parse().ok(),
            nodes: match job.has_vnodes() {
                true => job.hosts,
                false => Vec::new(),
            },
        }),
    })
}

/// The gpuos_mover of the job's first node, by the workload manager; `here` is why this machine's has nothing to tell.
fn elsewhere<'a>(
    machine: &'a dyn Machine,
    reach: &'a MoverReach,
    (id, named, label): (&JobId, &Named, &str),
    here: &str,
) -> Result<Found<'a>> {
    let (manager, daemon) = match named {
        Named::Slurm(_) => ("Slurm", "slurmctld"),
        Named::Pbs => ("PBS", "pbs_server"),
        Named::Gridengine => ("Grid Engine", "sge_qmaster"),
    };
    let job = whereabouts(machine, named, label).map_err(|e| {
        anyhow!("{here}; and {manager} does not tell where job {label} runs: {e:#}; name one of its nodes with --node")
    })?;
    let Some(job) = job else {
        bail!(
            "{here}; {daemon} does not know job {label}, or not any more: if it has ended, its checkpoints lie on the nodes that it \
             had; name one of them with --node"
        );
    };
    let Some(first) = job.nodes.first() else {
        bail!(
            "{here}; job {} is {} and has no nodes now: its checkpoints lie on the nodes that it had; name one of them with --node",
            job.label,
            job.state
        );
    };
    let own = Mover::here(machine, reach, reach.runtime_dir.clone()).node();
    let own = own.ok().or_else(|| host_name(machine));
    if own.is_some_and(|own| job.nodes.contains(&own) || job.nodes.contains(&short(&own))) {
        bail!("{here}");
    }
    let id = job.id.clone().unwrap_or_else(|| id.clone());
    let mover = Mover::far(machine, reach, first)?;
    let told = mover.list(Some(&id))?;
    match told.jobs.is_empty() {
        true => bail!(nothing(&told.node, &id)),
        false => Ok(Found {
            id,
            movers: vec![(mover, told)],
            missing: Vec::new(),
            named: named.clone(),
        }),
    }
}

fn nothing(node: &str, id: &JobId) -> String {
    format!(
        "gpuos_mover of {node} tells you of no checkpoints of job {id}: the job was submitted without --gpuos-checkpoint, has not \
         started a step there, or is another user's"
    )
}

/// The one job of that name, by slurmctld; where several have it the one that has nodes.
fn by_slurm(machine: &dyn Machine, named: &Name, label: &str) -> Result<Option<Job>> {
    let jobs = slurm::jobs(machine)?;
    let all: Vec<Job> = jobs.into_iter().filter(|job| named.means(job)).collect();
    let with_nodes: Vec<&Job> = all.iter().filter(|job| !job.nodes.is_empty()).collect();
    match (&all[..], &with_nodes[..]) {
        ([only], _) => Ok(Some(only.clone())),
        (_, [only]) => Ok(Some((*only).clone())),
        ([], _) => Ok(None),
        _ => {
            let names = all.iter().take(TOLD).map(|job| job.label.as_str());
            let names: Vec<&str> = names.collect();
            bail!(
                "{label} names several jobs: name one of them, for example {}",
                names.join(", ")
            )
        }
    }
}
