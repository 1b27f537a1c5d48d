//! Whether processes keep to the GPUs of their jobs: who is on a GPU that he does not hold, and what a job's
//! control group lets it open beyond its own.
//!
//! [`step`] is the whole of it: what was found so far, the policy, who holds what, what was seen, and the time go in;
//! effects come out. Nobody is accused before two things are so: the trouble has lasted for the policy's grace, and
//! Slurm has been asked since it began. So neither the order in which Slurm starts and ends things nor a job that
//! the daemon has not heard of yet makes a finding.

mod policy;
use std::collections::{BTreeMap, BTreeSet};

use gpuos_model::gpu_index::GresGpu;
use serde::{Deserialize, Serialize};

use crate::job::JobId;

pub use policy::{Foreign, Policy};

/// The most processes and control groups that are looked at in one round.
const MOST: usize = 4096;

/// A process on a GPU, as the driver and the kernel show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The GPU.
    pub gpu: GresGpu,
    /// MIG instance that it runs in.
    pub instance: Option<u32>,
    /// Process id.
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot: with the pid this names one process for ever.
    pub started: u64,
    /// User.
    pub uid: u32,
    /// Others whose process it is, too: a container without root runs as other users than its owner.
    pub owners: Vec<u32>,
    /// Its name, by itself; at most 15 bytes.
    pub program: String,
    /// Job and step, by its control group; `None`: it belongs to no job.
    pub step: Option<(JobId, String)>,
    /// GPU memory in MiB, where the driver knows.
    pub memory_mib: Option<u64>,
}

/// What a control group lets a step open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Job.
    pub job: JobId,
    /// Step: its number, `batch`, `extern` or `interactive`.
    pub step: String,
    /// GPUs that it may open.
    pub gpus: BTreeSet<GresGpu>,
}

/// A job on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Job.
    pub job: JobId,
    /// User.
    pub uid: u32,
    /// GPUs that it holds, its steps' included.
    pub gpus: BTreeSet<GresGpu>,
    /// GPUs of those steps that were reported, by name.
    pub steps: BTreeMap<String, BTreeSet<GresGpu>>,
    /// It shares GPUs that Slurm does not name (`shard`, `mps`): it is at home on all.
    pub shares: bool,
}

/// Who holds what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Jobs, each once.
    pub jobs: Vec<Holding>,
    /// When Slurm was asked for this, on the clock of [`step`].
    pub asked_ms: u64,
}

/// What one round showed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Processes on GPUs.
    pub processes: Vec<Process>,
    /// Control groups of steps; `None`: not looked at this time.
    pub groups: Option<Vec<Group>>,
}

/// What a finding is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    /// A process, by GPU, pid and start.
    Process(GresGpu, u32, u64),
    /// A step whose group allows more than its job holds.
    Wide(JobId, String),
    /// A step whose group allows less than it was given.
    Narrow(JobId, String),
}

/// Something that is not as planned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The GPU; of a group, the first one.
    pub gpu: GresGpu,
    /// The process; absent for a control group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The job that process or group belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Jobs that hold the GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<JobId>,
    /// A sentence.
    pub message: String,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Something was found: it is told once.
    Found(Finding),
    /// It is over.
    Over(Finding),
    /// The process is to be killed, and no other: the one that was started then.
    Kill {
        /// Process id.
        pid: u32,
        /// See [`Process::started`].
        started: u64,
        /// The GPU that it is on.
        gpu: GresGpu,
        /// What was found of it.
        finding: Finding,
    },
    /// Slurm is to be asked for jobs: a suspicion is older than what it said last.
    Ask,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Suspect {
    since_ms: u64,
    reported: bool,
    finding: Finding,
}

/// What was found so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Watch {
    suspects: BTreeMap<Key, Suspect>,
}

impl Watch {
    /// What was told and is not over.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let told = self.suspects.values().filter(|suspect| suspect.reported);
        told.map(|suspect| &suspect.finding)
    }

    /// Whether a process was named as foreign on a GPU.
    pub fn is_foreign(&self, process: &Process) -> bool {
        let suspect = self.suspects.get(&Key::of(process));
        suspect.is_some_and(|suspect| suspect.reported)
    }
}

impl Process {
    /// Whether it can be a process of a job of this user: root acts for anybody, and in a job of his for others.
    fn is_of(&self, uid: u32) -> bool {
        [0, uid].contains(&self.uid) || uid == 0 || self.owners.contains(&uid)
    }
}

impl Key {
    fn of(process: &Process) -> Key {
        Key::Process(process.gpu, process.pid, process.started)
    }
}

/// What follows from a round at `now_ms`, on a clock that does not jump.
pub fn step(
    watch: &mut Watch,
    policy: &Policy,
    plan: &Plan,
    seen: &Seen,
    now_ms: u64,
) -> Vec<Effect> {
    let mut wrong: BTreeMap<Key, Finding> = BTreeMap::new();
    if policy.foreign != Foreign::Ignore {
        for process in seen.processes.iter().take(MOST) {
            if let Some(finding) = foreign(policy, plan, process) {
                wrong.insert(Key::of(process), finding);
            }
        }
        match &seen.groups {
            Some(groups) => {
                for group in groups.iter().take(MOST) {
                    wrong.extend(of_group(plan, group));
                }
            }
            // What was not looked at is as it was.
            None => {
                let groups = watch.suspects.iter();
                let groups = groups.filter(|(key, _)| !matches!(key, Key::Process(..)));
                wrong.extend(groups.map(|(key, one)| (key.clone(), one.finding.clone())));
            }
        }
    }
    let mut effects = Vec::new();
    watch.suspects.retain(|key, suspect| {
        let still = wrong.contains_key(key);
        if !still && suspect.reported {
            effects.push(Effect::Over(suspect.finding.clone()));
        }
        still
    });
    let mut ask = false;
    for (key, finding) in wrong {
        let suspect = watch.suspects.entry(key.clone()).or_insert(Suspect {
            since_ms: now_ms,
            reported: false,
            finding: finding.clone(),
        });
        if suspect.reported {
            continue;
        }
        // Jobs may have come and gone beside it since.
        suspect.finding = finding;
        if now_ms.saturating_sub(suspect.since_ms) < policy.grace_ms {
            continue;
        }
        if plan.asked_ms <= suspect.since_ms {
            ask = true;
            continue;
        }
        suspect.reported = true;
        effects.push(Effect::Found(suspect.finding.clone()));
        if let (Key::Process(gpu, pid, started), Foreign::Kill) = (key, policy.foreign)
            && (suspect.finding.uid != Some(0) || policy.kill_root)
        {
            let finding = suspect.finding.clone();
            effects.push(Effect::Kill {
                pid,
                started,
                gpu,
                finding,
            });
        }
    }
    if ask {
        effects.push(Effect::Ask);
    }
    effects
}

/// What is wrong with a process, if anything.
fn foreign(policy: &Policy, plan: &Plan, process: &Process) -> Option<Finding> {
    let holds = |job: &&Holding| job.gpus.contains(&process.gpu);
    let holders = || plan.jobs.iter().filter(holds);
    let whose = match &process.step {
        Some((job, _)) => {
            let own = plan.jobs.iter().find(|holding| holding.job == *job);
            match own {
                // The name of a group is not all: the job's user, or root for him, has to be behind the process.
                Some(own) if !process.is_of(own.uid) => {
                    format!("in the group of job {job}, which is uid {}'s,", own.uid)
                }
                Some(own) if own.shares || holds(&own) => return None,
                _ => format!("of job {job}"),
            }
        }
        None => {
            if policy.exempts(process.uid, &process.program) {
                return None;
            }
            // An MPS server works for the job whose user runs it, wherever it was started from.
            if policy::is_mps(&process.program) && holders().any(|job| job.uid == process.uid) {
                return None;
            }
            "of no job".into()
        }
    };
    let holders: Vec<JobId> = holders().map(|job| job.job.clone()).collect();
    let held = match &holders[..] {
        [] => "which no job holds".to_owned(),
        [one] => format!("which job {one} holds"),
        many => format!("which jobs {} hold", list(many)),
    };
    let instance = process.instance.map_or_else(String::new, |instance| {
        format!(" in MIG instance {instance}")
    });
    let message = format!(
        "process {} ({}, uid {}) {whose} is on GPU {}{instance}, {held}",
        process.pid,
        plain(&process.program),
        process.uid,
        process.gpu
    );
    Some(Finding {
        gpu: process.gpu,
        pid: Some(process.pid),
        uid: Some(process.uid),
        job: process.step.as_ref().map(|(job, _)| job.clone()),
        holders,
        message,
    })
}

/// What is wrong with a step's control group.
fn of_group(plan: &Plan, group: &Group) -> Vec<(Key, Finding)> {
    let own = plan.jobs.iter().find(|holding| holding.job == group.job);
    if own.is_some_and(|own| own.shares) {
        return Vec::new();
    }
    let none = BTreeSet::new();
    let held = own.map_or(&none, |own| &own.gpus);
    let given = own.and_then(|own| own.steps.get(&group.step));
    let more: Vec<GresGpu> = group.gpus.difference(held).copied().collect();
    let less: Vec<GresGpu> = given.map_or_else(Vec::new, |given| {
        given.difference(&group.gpus).copied().collect()
    });
    let id = (group.job.clone(), group.step.clone());
    let name = format!("{}.{}", group.job, plain(&group.step));
    let finding = |gpus: &[GresGpu], message: String| {
        let holds = |job: &&Holding| gpus.iter().any(|gpu| job.gpus.contains(gpu));
        Finding {
            gpu: gpus[0],
            pid: None,
            uid: None,
            job: Some(group.job.clone()),
            holders: plan
                .jobs
                .iter()
                .filter(holds)
                .map(|job| job.job.clone())
                .collect(),
            message,
        }
    };
    let mut found = Vec::new();
    if !more.is_empty() {
        let message = format!(
            "step {name} may open GPU {}, which its job does not hold: ConstrainDevices=yes in cgroup.conf, and \
             gres.conf with the right files, keep it out",
            list(&more)
        );
        found.push((
            Key::Wide(id.0.clone(), id.1.clone()),
            finding(&more, message),
        ));
    }
    if !less.is_empty() {
        let message = format!(
            "step {name} was given GPU {} and may not open it",
            list(&less)
        );
        found.push((Key::Narrow(id.0, id.1), finding(&less, message)));
    }
    found
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let each: Vec<String> = numbers.iter().map(T::to_string).collect();
    each.join(",")
}

/// A name from outside, as one word of a line.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(|c| !c.is_control());
    kept.take(64).collect()
}
