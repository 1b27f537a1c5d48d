//! `--gpuos-mem`: more memory than a GPU has, for each GPU of a job.
use std::fmt;

use gpuos_model::hostlist::shorten;
use gpuos_model::words::{check_value, not_understood};
use gpuos_placement::cost::Grant;

use super::{OptionError, size};

const FORM: &str =
    "SIZE[,tiers=hbm+dram][,policy=gpuos], such as 120G or 120G,policy=lru; SIZE is for each GPU";

/// Tiers that later releases may know.
const LATER: [&str; 4] = ["peer", "nvme", "file", "remote"];

/// Where the memory of a program may lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryTiers {
    /// In the GPU's own memory, and in host memory that the GPU reads in place.
    #[default]
    HbmAndDram,
    /// In the GPU's own memory only: the size is a limit.
    Hbm,
}

impl MemoryTiers {
    /// Whether memory of the host is one of them.
    pub fn has_host(self) -> bool {
        self == MemoryTiers::HbmAndDram
    }
}

/// What decides which memory leaves the GPU's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryPolicy {
    /// What gpuos has learned of the program's iterations.
    #[default]
    Gpuos,
    /// What was used least recently.
    Lru,
    /// A hand that gives what was used a second chance.
    Clock,
    /// A queue for what was used once, another for the rest.
    TwoQueues,
    /// Both, with a border that moves.
    Arc,
}

impl MemoryPolicy {
    /// All, the usual one first.
    pub const ALL: [MemoryPolicy; 5] = [
        MemoryPolicy::Gpuos,
        MemoryPolicy::Lru,
        MemoryPolicy::Clock,
        MemoryPolicy::TwoQueues,
        MemoryPolicy::Arc,
    ];

    /// The word for it, as `gpuos mem sim --policy` has it too.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPolicy::Gpuos => "gpuos",
            MemoryPolicy::Lru => "lru",
            MemoryPolicy::Clock => "clock",
            MemoryPolicy::TwoQueues => "2q",
            MemoryPolicy::Arc => "arc",
        }
    }
}

/// Memory for each GPU of a job. Its text form is what the option takes: `120G,policy=lru`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOption {
    /// MiB for each GPU, in all tiers together.
    pub mib: u32,
    /// Where it may lie.
    pub tiers: MemoryTiers,
    /// What decides which part of it leaves the GPU.
    pub policy: MemoryPolicy,
}

impl MemoryOption {
    /// Bytes for each GPU.
    pub fn bytes(&self) -> u64 {
        u64::from(self.mib) << 20
    }

    /// What the planner is told of it: of memory that may lie in the host too. `reserve_mib` is
    /// [`MemoryConfig`](crate::gpuos_toml::MemoryConfig)'s.
    pub fn grant(&self, reserve_mib: u32) -> Grant {
        match self.tiers.has_host() {
            true => Grant {
                mib: self.mib.into(),
                reserve_mib: reserve_mib.into(),
            },
            false => Grant::default(),
        }
    }

    /// Whether it takes no more than `other`, of no tier.
    pub fn is_within(&self, other: &MemoryOption) -> bool {
        let tiers = other.tiers == MemoryTiers::HbmAndDram || self.tiers == MemoryTiers::Hbm;
        self.mib <= other.mib && tiers
    }

    /// Its size, as a user writes one.
    pub fn size_text(&self) -> String {
        size::text(self.mib)
    }
}

/// Reads the value of `--gpuos-mem`.
///
/// # Errors
/// It is no size, or names a tier or a policy that there is not.
pub fn parse_memory(value: &str) -> Result<MemoryOption, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-mem", value, reason, FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let lower = value.to_ascii_lowercase();
    let mut words = lower.split(',');
    let word = words.next().unwrap_or_default();
    if word.starts_with("tiers=") || word.starts_with("policy=") {
        return Err(error("the size comes first"));
    }
    let (mut tiers, mut policy) = (None, None);
    let mib = size::of_gpu(word).map_err(|reason| error(&reason))?;
    for word in words {
        let (place, read) = match word.split_once('=') {
            Some(("tiers", list)) => (
                tiers.is_some(),
                parse_tiers(list).map(|of| tiers = Some(of)),
            ),
            Some(("policy", name)) => (
                policy.is_some(),
                parse_policy(name).map(|of| policy = Some(of)),
            ),
            _ => return Err(error(&not_understood(word))),
        };
        read.map_err(|reason| error(&reason))?;
        if place {
            let (name, _) = word.split_once('=').unwrap_or_default();
            return Err(error(&format!("{name}= stands there twice")));
        }
    }
    Ok(MemoryOption {
        mib,
        tiers: tiers.unwrap_or_default(),
        policy: policy.unwrap_or_default(),
    })
}

fn parse_tiers(list: &str) -> Result<MemoryTiers, String> {
    match list {
        "hbm+dram" | "dram+hbm" => return Ok(MemoryTiers::HbmAndDram),
        "hbm" => return Ok(MemoryTiers::Hbm),
        "dram" => return Err("without the tier hbm a GPU is of no use".into()),
        _ => {}
    }
    let later = list.split('+').find(|tier| LATER.contains(tier));
    Err(match later {
        Some(tier) => {
            format!("the tier {tier} is not part of this release; there are hbm and dram")
        }
        None if list.is_empty() => not_understood(list),
        None => format!("'{}' is neither hbm+dram nor hbm", shorten(list)),
    })
}

fn parse_policy(name: &str) -> Result<MemoryPolicy, String> {
    let mut all = MemoryPolicy::ALL.into_iter();
    all.find(|policy| policy.name() == name).ok_or_else(|| {
        let known = MemoryPolicy::ALL.map(MemoryPolicy::name).join(", ");
        match name {
            "" => not_understood(name),
            _ => format!("'{}' is not one of {known}", shorten(name)),
        }
    })
}

impl fmt::Display for MemoryOption {
    /// As [`parse_memory`] reads it, without what is usual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.size_text())?;
        if self.tiers == MemoryTiers::Hbm {
            f.write_str(",tiers=hbm")?;
        }
        match self.policy {
            MemoryPolicy::Gpuos => Ok(()),
            policy => write!(f, ",policy={}", policy.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::JobOptions;
    use super::*;

    #[test]
    fn host_memory_is_needed_for_tiers_and_for_turns_that_park_there() {
        let needs = |name: &str, value: &str| {
            let mut options = JobOptions::default();
            options.set(name, value).unwrap();
            options.needs_host_memory()
        };
        for (name, value, wanted) in [
            ("gpuos-mem", "120G", true),
            ("gpuos-mem", "120G,tiers=hbm", false),
            ("gpuos-share", "timeslice,mem=60G", true),
            ("gpuos-share", "timeslice:2", false),
            ("gpuos-share", "mps:25%", false),
            ("gpuos-checkpoint", "10m,l0=16G", false),
        ] {
            assert_eq!(needs(name, value), wanted, "{name}={value}");
        }
        assert!(!JobOptions::default().needs_host_memory());
    }

    #[test]
    fn a_size_for_each_gpu_with_tiers_and_a_policy() {
        let plain = MemoryOption {
            mib: 120 << 10,
            tiers: MemoryTiers::HbmAndDram,
            policy: MemoryPolicy::Gpuos,
        };
        for (text, option, written) in [
            ("120G", plain, "120G"),
            ("120g,tiers=HBM+DRAM,policy=gpuos", plain, "120G"),
            ("122880M", plain, "120G"),
            ("120GB", plain, "120G"),
            ("120GiB,policy=gpuos", plain, "120G"),
            ("2M", MemoryOption { mib: 2, ..plain }, "2M"),
            (
                "16T",
                MemoryOption {
                    mib: 16 << 20,
                    ..plain
                },
                "16T",
            ),
            (
                "120G,policy=2q,tiers=hbm",
                MemoryOption {
                    tiers: MemoryTiers::Hbm,
                    policy: MemoryPolicy::TwoQueues,
                    ..plain
                },
                "120G,tiers=hbm,policy=2q",
            ),
        ] {
            assert_eq!(parse_memory(text), Ok(option), "{text}");
            assert_eq!(option.to_string(), written);
        }
        assert_eq!(plain.bytes(), 128_849_018_880);
    }

    #[test]
    fn what_is_none_says_what_is() {
        let form = "; write SIZE[,tiers=hbm+dram][,policy=gpuos], such as 120G or 120G,policy=lru; SIZE is for each GPU";
        for (value, reason) in [
            ("", "a value is missing"),
            (
                "120",
                "'120' is not understood: the unit M, G or T is missing",
            ),
            ("0G", "memory of a GPU is 2M to 16T"),
            ("1M", "memory of a GPU is 2M to 16T"),
            ("17T", "memory of a GPU is 2M to 16T"),
            ("999999999T", "'999999999t' is not understood"),
            ("-5G", "'-5g' is not understood"),
            ("1.5G", "'1.5g' is not understood"),
            (
                "150%",
                "'150%' is not understood: a size is no share, as GPUs of a cluster may differ",
            ),
            ("policy=lru", "the size comes first"),
            ("80G,", "a value is missing"),
            ("80G,fast", "'fast' is not understood"),
            ("80G,tiers=", "a value is missing"),
            ("80G,tiers=dram", "without the tier hbm a GPU is of no use"),
            (
                "80G,tiers=hbm+nvme",
                "the tier nvme is not part of this release; there are hbm and dram",
            ),
            (
                "80G,tiers=hbm+tape",
                "'hbm+tape' is neither hbm+dram nor hbm",
            ),
            (
                "80G,policy=belady",
                "'belady' is not one of gpuos, lru, clock, 2q, arc",
            ),
            ("80G,policy=lru,policy=arc", "policy= stands there twice"),
        ] {
            let said = parse_memory(value).unwrap_err().to_string();
            assert_eq!(said, format!("--gpuos-mem={value}: {reason}{form}"));
        }
        assert!(parse_memory(&"9".repeat(2000)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_taken_reads_back(text in "\\PC{0,30}|[0-9]{1,9}[mMgGtT](,(tiers|policy)=[a-z0-9+]{0,9}){0,3}") {
            if let Ok(option) = parse_memory(&text) {
                prop_assert_eq!(parse_memory(&option.to_string()), Ok(option));
                prop_assert!((2..=16 << 20).contains(&option.mib));
            }
        }
    }
}
