//! What a job wants of its GPUs: a power cap, clocks, MPS, to be watched.
use std::fmt;

use gpuos_model::words::mib_text;
use serde::{Deserialize, Serialize};

/// A power cap for each GPU of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerCap {
    /// In watts.
    Watts(u32),
    /// In percent of the board's default limit.
    Percent(u8),
}

impl PowerCap {
    /// The cap in milliwatts on a board with these limits (least, default, greatest), and whether it had to
    /// be moved into them.
    pub fn on(self, [least, default, most]: [u32; 3]) -> (u32, bool) {
        let wanted = match self {
            PowerCap::Watts(watts) => u64::from(watts) * 1000,
            PowerCap::Percent(percent) => u64::from(default) * u64::from(percent) / 100,
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let kept = wanted.max(least).min(most);
        (kept, kept != wanted)
    }
}

impl fmt::Display for PowerCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PowerCap::Watts(watts) => write!(f, "{watts}W"),
            PowerCap::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A range of clocks of the multiprocessors, in MHz.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClockRange {
    /// Least.
    pub least: u32,
    /// Greatest.
    pub most: u32,
}

impl ClockRange {
    /// The part of it that a board with these clocks has (least, greatest), or the nearest clock.
    pub fn on(self, [least, most]: [u32; 2]) -> ClockRange {
        let kept = |clock: u32| clock.max(least).min(most);
        ClockRange {
            least: kept(self.least),
            most: kept(self.most),
        }
    }
}

impl fmt::Display for ClockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.most),
            false => write!(f, "{}-{}", self.least, self.most),
        }
    }
}

/// NVIDIA's MPS for a job. A key that it does not know is of a newer gpuos, beside which it runs or after which it came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MpsRequest {
    /// Share of a GPU's threads that each of its processes may use, in percent; 100 = as without a limit.
    pub percent: u8,
    /// The job's group, for the daemon runs as its user.
    pub gid: u32,
    /// With the user's other jobs on a GPU that it shares, as `--gpuos-share=mps:25%` asks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joint: bool,
}

/// How a job has a part of a GPU that is not divided by MIG, beside other jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// The jobs of the GPU take turns; this one counts as so many of the shards that the GPU has for Slurm.
    TimeSlice {
        /// Shards, from 1.
        shards: u16,
        /// GPU memory in MiB that it has while it is its turn, and a place in host memory for as much while it is another's; `None`: the
        /// driver takes turns with the processors of the GPU alone, and its memory is whose that comes first.
        mib: Option<u32>,
        /// The place is on NVMe, in a GRES that Slurm counts, and not in host memory.
        nvme: bool,
    },
    /// Under an MPS daemon with its user's other jobs on the GPU.
    Mps {
        /// Share of the GPU's threads, in percent, from 1 to 100.
        percent: u8,
    },
}

impl Share {
    /// GiB of NVMe on each of its nodes that the job has as a place for what is parked; 0: none, the place is in host memory.
    pub fn nvme_gib(self) -> u32 {
        match self {
            Share::TimeSlice {
                mib: Some(mib),
                nvme: true,
                ..
            } => mib.div_ceil(1 << 10),
            _ => 0,
        }
    }

    /// MiB of the GPU's memory that the job has in turns; `None`: it shares the GPU in another way.
    pub fn in_turns_mib(self) -> Option<u32> {
        match self {
            Share::TimeSlice { mib, .. } => mib,
            Share::Mps { .. } => None,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::TimeSlice { shards, mib, nvme } => {
                f.write_str("timeslice")?;
                if *shards != 1 {
                    write!(f, ":{shards}")?;
                }
                if let Some(mib) = mib {
                    write!(f, ",mem={}", mib_text(*mib))?;
                }
                f.write_str(if *nvme { ",park=nvme" } else { "" })
            }
            Share::Mps { percent } => write!(f, "mps:{percent}%"),
        }
    }
}

/// What spank_gpuos tells gpuosd that a job asked for. As for [`MpsRequest`], unknown keys are passed over.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// `--gpuos-power`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerCap>,
    /// `--gpuos-clocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockRange>,
    /// `--gpuos-watch`: after so many seconds without work; 0 = what the rule says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch_s: Option<u32>,
    /// `--gpuos-mps`, or a share of a GPU under MPS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps: Option<MpsRequest>,
    /// The job has a share of its GPUs only: shards, MPS as a GRES, or MIG instances.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The step undoes something that its job asked for: what is not said here is not asked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undone: bool,
}

impl Asked {
    /// Whether it says nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Asked::default()
    }

    /// Whether a step waits until something is done for it.
    pub fn waits(&self) -> bool {
        self.sets() || self.mps.is_some()
    }

    /// Whether GPUs have to be set for it.
    pub fn sets(&self) -> bool {
        self.power.is_some() || self.clocks.is_some()
    }
}
