//! What a job does with its time.
use std::fmt;
use std::str::FromStr;

use super::WHOLE;
use crate::gang::GroupShape;

/// What limits a job, in the user's word (`--gpuos-profile`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// The GPUs' arithmetic.
    Compute,
    /// The GPUs' memory bandwidth.
    Memory,
    /// Links between GPUs.
    Communication,
    /// Files and the host.
    Io,
}

impl Profile {
    /// All profiles with their words.
    pub const ALL: [(&'static str, Profile); 4] = [
        ("compute", Profile::Compute),
        ("memory", Profile::Memory),
        ("communication", Profile::Communication),
        ("io", Profile::Io),
    ];
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Profile::ALL.iter().find(|(_, profile)| profile == self);
        f.pad(word.map_or("", |(word, _)| word))
    }
}

/// Reads one of the words, in any case.
impl FromStr for Profile {
    type Err = ();

    fn from_str(word: &str) -> Result<Profile, ()> {
        let known = Profile::ALL.iter();
        let mut same = known.filter(|(name, _)| name.eq_ignore_ascii_case(word));
        same.next().map(|&(_, profile)| profile).ok_or(())
    }
}

/// Shares of a job's time on a machine without bottleneck, in thousandths that add up to 1000.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Time that goes with the GPUs' arithmetic.
    pub compute: u32,
    /// Time that goes with the GPUs' memory bandwidth.
    pub memory: u32,
    /// Time that goes with the bandwidth between GPUs.
    pub communication: u32,
    /// Time that goes with neither.
    pub io: u32,
}

impl Default for Workload {
    /// A job that says nothing: mostly arithmetic, with all of the rest.
    fn default() -> Workload {
        Workload::UNKNOWN
    }
}

impl Workload {
    /// That of a job that says nothing: mostly arithmetic, with all of the rest.
    pub const UNKNOWN: Workload = Workload::of(500, 200, 200);

    const fn of(compute: u32, memory: u32, communication: u32) -> Workload {
        Workload {
            compute,
            memory,
            communication,
            io: WHOLE - compute - memory - communication,
        }
    }

    /// The workload of a profile: the named resource takes seven tenths of the time.
    pub const fn of_profile(profile: Profile) -> Workload {
        match profile {
            Profile::Compute => Workload::of(700, 150, 100),
            Profile::Memory => Workload::of(150, 700, 100),
            Profile::Communication => Workload::of(150, 100, 700),
            Profile::Io => Workload::of(150, 75, 75),
        }
    }

    /// The workload of a training job with these groups. Tensor, context and expert parallel groups
    /// exchange activations in each layer, data parallel ones gradients once a step, pipelines
    /// least: so many hundredths of the time for each kind with more than one rank.
    pub fn of_shape(shape: &GroupShape) -> Workload {
        let many = |ranks: u32, share: u32| if ranks > 1 { share } else { 0 };
        let communication = 50
            + many(shape.tp, 200)
            + many(shape.cp, 150)
            + many(shape.ep, 200)
            + many(shape.dp, 100)
            + many(shape.pp, 50);
        let rest = WHOLE - 50 - communication;
        Workload::of(rest * 3 / 4, rest - rest * 3 / 4, communication)
    }

    /// The same with another share of communication; the other shares keep their proportions.
    pub fn with_communication(self, communication: u32) -> Workload {
        let communication = communication.min(WHOLE);
        let others = (WHOLE - self.communication).max(1);
        let part = |share: u32| share * (WHOLE - communication) / others;
        Workload::of(part(self.compute), part(self.memory), communication)
    }
}
