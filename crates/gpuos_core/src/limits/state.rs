//! What has been set on which GPU for which job, and how it gets there and back.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_model::gpu_index::GresGpu;
use serde::{Deserialize, Serialize};

use super::requests::{Asked, ClockRange, PowerCap};
use crate::health::Audit;
use crate::job::JobId;

/// A job, and what it has on this node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Holder {
    /// Its number.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// GPUs that it holds, or held when its last step ended.
    pub gpus: BTreeSet<GresGpu>,
    /// What it asked for.
    pub asked: Asked,
    /// No step of it runs just now, and Slurm has yet to say whether it is gone.
    pub resting: bool,
}

/// A GPU as NVIDIA's library shows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Board {
    /// The power limit that was set last, in milliwatts.
    pub limit_mw: Option<u32>,
    /// Least, default and greatest limit that it takes, in milliwatts.
    pub limits_mw: Option<[u32; 3]>,
    /// Least and greatest clock of the multiprocessors, in MHz.
    pub clocks_mhz: Option<[u32; 2]>,
    /// Whether it is divided into MIG instances.
    pub divided: bool,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The daemon started with the state that it had saved.
    Started {
        /// The node was booted since: what was set is gone.
        rebooted: bool,
    },
    /// All jobs with GPUs, as they are now.
    Jobs(Vec<Holder>),
    /// [`Effect::Read`] came to its end.
    Read {
        /// The GPU.
        gpu: GresGpu,
        /// What it shows, or why not, in a clause.
        result: Result<Board, String>,
    },
    /// [`Effect::Save`] came to its end.
    Saved {
        /// Its revision.
        revision: u64,
        /// Why it could not be written.
        result: Result<(), String>,
    },
    /// [`Effect::Set`] came to its end.
    Done {
        /// The GPU.
        gpu: GresGpu,
        /// Why not.
        result: Result<(), String>,
    },
    /// A GPU was polled.
    Sample {
        /// The GPU.
        gpu: GresGpu,
        /// Its power limit, in milliwatts.
        limit_mw: u32,
    },
    /// A GPU was reset: what was set on it is gone.
    Reset {
        /// The GPU.
        gpu: GresGpu,
    },
    /// Time went by.
    Tick,
}

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Look at a GPU; answer with [`Event::Read`].
    Read {
        /// The GPU.
        gpu: GresGpu,
    },
    /// Write the state; answer with [`Event::Saved`].
    Save {
        /// Number of this state.
        revision: u64,
    },
    /// Set a GPU; answer with [`Event::Done`].
    Set {
        /// The GPU.
        gpu: GresGpu,
        /// What.
        set: Setting,
    },
    /// A line for the audit log.
    Audit(Audit),
}

/// What is set on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Setting {
    /// Power limit in milliwatts; `None` = as it is.
    pub power_mw: Option<u32>,
    /// Clocks.
    pub clocks: Clocks,
}

/// What is done with a GPU's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Clocks {
    /// Nothing.
    #[default]
    Leave,
    /// Locked to a range.
    Lock(ClockRange),
    /// Not locked any more.
    Unlock,
}

/// What gpuos has set on a GPU, or is about to: on the disk before it is done and until it is undone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AppliedLimits {
    /// For which job.
    pub job: JobId,
    /// Power limit in milliwatts: before, and set.
    pub power_mw: Option<[u32; 2]>,
    /// Clocks.
    pub clocks: Option<ClockRange>,
    /// What the job asked for.
    pub(super) wish: GpuSettings,
    /// Somebody else has set another limit since; theirs is left alone while the job runs.
    #[serde(default)]
    pub(super) overruled: bool,
    /// What the job is to know though its wish was met.
    #[serde(default)]
    pub(super) notes: Vec<String>,
}

impl AppliedLimits {
    /// In words: `300 W, clocks 1200-1500 MHz`.
    pub fn text(&self) -> String {
        let power = self.power_mw.map(|[_, set]| format!("{} W", set / 1000));
        let clocks = self.clocks.map(|range| format!("clocks {range} MHz"));
        let parts: Vec<String> = [power, clocks].into_iter().flatten().collect();
        parts.join(", ")
    }
}

/// A wish that GPUs are set for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct GpuSettings {
    pub job: JobId,
    pub power: Option<PowerCap>,
    pub clocks: Option<ClockRange>,
}

/// Where a GPU is on its way.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) enum Phase {
    /// What is set is not known to be in force: after a start, a reset or a failure.
    #[default]
    Open,
    /// [`Effect::Read`] is under way.
    Reading(GpuSettings),
    /// [`Effect::Save`] with this revision is under way.
    Saving(u64),
    /// [`Effect::Set`] is under way.
    Setting,
    /// It is as the job wants it.
    InForce,
    /// [`Effect::Set`] of what was before is under way.
    Undoing,
    /// It could not be undone; again at this time.
    Again(u64),
}

/// Limits of a node's GPUs. [`super::step`] is the only way to change it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    #[serde(rename = "kept")]
    pub(super) applied: BTreeMap<GresGpu, AppliedLimits>,
    #[serde(skip)]
    pub(super) now: BTreeMap<GresGpu, Now>,
    #[serde(skip)]
    pub(super) holders: Vec<Holder>,
    /// Whether the jobs were told since the start: before that nobody knows what is wanted.
    #[serde(skip)]
    pub(super) told: bool,
    #[serde(skip)]
    pub(super) revision: u64,
}

/// What is known of a GPU while the daemon runs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Now {
    pub phase: Phase,
    /// A wish that cannot be met here, so that it is not tried again, and why.
    pub failed: Option<(GpuSettings, String)>,
    /// Polls in a row that showed another limit than was set.
    pub strange: u8,
    /// Attempts at undoing that failed.
    pub tries: u32,
}

impl Limits {
    /// What is set, by GPU.
    pub fn applied(&self) -> &BTreeMap<GresGpu, AppliedLimits> {
        &self.applied
    }

    /// What a job is to be told, once all of its GPUs are set or cannot be; `None` before. What holds for some of them
    /// only names them, and those that are set as well.
    pub fn job_notes(&self, job: &JobId) -> Option<Vec<String>> {
        let mut said: Vec<(Deviation, Vec<GresGpu>)> = Vec::new();
        let mut set = Vec::new();
        for holder in self.holders.iter().filter(|holder| holder.job == *job) {
            for &gpu in &holder.gpus {
                let (notes, is_set) = self.gpu_notes(gpu, holder)?;
                set.extend(is_set.then_some(gpu));
                for note in notes {
                    match said.iter_mut().find(|(other, _)| *other == note) {
                        Some((_, gpus)) => gpus.push(gpu),
                        None => said.push((note, vec![gpu])),
                    }
                }
            }
        }
        let sentence = |(told, gpus): (Deviation, Vec<GresGpu>)| match told {
            Deviation::NotSet(why) if !set.is_empty() => {
                format!("{}: {why}; {}", named(&gpus), are_set(&set))
            }
            Deviation::NotSet(why) | Deviation::Moved(why) => format!("{}: {why}", named(&gpus)),
        };
        Some(said.into_iter().map(sentence).collect())
    }

    /// Notes for a job about one of its GPUs, and whether it is set.
    fn gpu_notes(&self, gpu: GresGpu, holder: &Holder) -> Option<(Vec<Deviation>, bool)> {
        let not_set = |why: &str| (vec![Deviation::NotSet(why.to_owned())], false);
        let wish = match self.wanted(gpu) {
            Wanted::Shared if holder.asked.sets() => {
                let why = "it is shared with other jobs: power and clocks stay as they are";
                return Some(not_set(why));
            }
            Wanted::Set(wish) if wish.job == holder.job => wish,
            _ => return Some((Vec::new(), false)),
        };
        let now = self.now.get(&gpu)?;
        if let Some((_, why)) = now.failed.as_ref().filter(|(of, _)| *of == wish) {
            return Some(not_set(why));
        }
        let applied = self.applied.get(&gpu)?;
        let notes = || {
            applied
                .notes
                .iter()
                .cloned()
                .map(Deviation::Moved)
                .collect()
        };
        (applied.wish == wish && now.phase == Phase::InForce).then(|| (notes(), true))
    }

    /// What is wanted of a GPU now.
    pub(super) fn wanted(&self, gpu: GresGpu) -> Wanted {
        let on: Vec<&Holder> = self
            .holders
            .iter()
            .filter(|holder| holder.gpus.contains(&gpu))
            .collect();
        let working: Vec<&&Holder> = on.iter().filter(|holder| !holder.resting).collect();
        let holder = match working[..] {
            // A job between two steps keeps what it has as long as nobody else comes.
            [] => on.iter().find(|holder| {
                let own = |kept: &AppliedLimits| kept.job == holder.job;
                self.applied.get(&gpu).is_some_and(own)
            }),
            [one] => Some(one),
            _ => return Wanted::Shared,
        };
        match holder {
            Some(holder) if holder.asked.sets() && holder.asked.shared => Wanted::Shared,
            Some(holder) if holder.asked.sets() => Wanted::Set(GpuSettings {
                job: holder.job.clone(),
                power: holder.asked.power,
                clocks: holder.asked.clocks,
            }),
            _ => Wanted::Nothing,
        }
    }
}

/// What is wanted of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Nothing.
    Nothing,
    /// Several have it: nobody's wish counts.
    Shared,
    /// That it is set.
    Set(GpuSettings),
}

/// What a job is told of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Deviation {
    /// It is set to something else than was asked.
    Moved(String),
    /// It is not set.
    NotSet(String),
}

/// `GPU 3` or `GPUs 3,4`.
fn named(gpus: &[GresGpu]) -> String {
    let list: Vec<String> = gpus.iter().map(GresGpu::to_string).collect();
    match gpus.len() {
        1 => format!("GPU {}", list.join(",")),
        _ => format!("GPUs {}", list.join(",")),
    }
}

fn are_set(gpus: &[GresGpu]) -> String {
    let verb = if gpus.len() == 1 { "is" } else { "are" };
    format!("{} {verb} set", named(gpus))
}
