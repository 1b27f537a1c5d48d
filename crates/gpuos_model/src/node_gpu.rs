//! GPUs of a node as people and messages name them: those of GRES `gpu` by Slurm's index, those of a `[[mig.pool]]`, which
//! are none of GRES `gpu`, by NVML's.
//!
//! Both are what the administrator wrote: gres.conf and `gpus = "4-7"`. A number that counted on after those of GRES gpu
//! would be another one wherever gpuosd and slurmctld do not agree how many these are.
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::gpu_index::{GresGpu, NvmlIndex};
use crate::gpuset::MAX_GPUS;

/// How people call a GPU of a pool, before NVML's index.
const WORD: &str = "mig";
/// In state and messages, the number of a pool's GPU with NVML's index 0. Those of GRES gpu have Slurm's index there.
const POOL: u8 = MAX_GPUS as u8;

/// A GPU of a node, as health rules, limits and messages name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum NodeGpu {
    /// One of GRES `gpu`: `3`.
    Gres(GresGpu),
    /// One of a pool: `mig4`.
    Pool(NvmlIndex),
}

impl NodeGpu {
    /// Its index if it is one of GRES `gpu`.
    pub const fn gres(self) -> Option<GresGpu> {
        match self {
            NodeGpu::Gres(gpu) => Some(gpu),
            NodeGpu::Pool(_) => None,
        }
    }

    /// NVML's index if it is one of a pool.
    pub const fn pool(self) -> Option<NvmlIndex> {
        match self {
            NodeGpu::Gres(_) => None,
            NodeGpu::Pool(gpu) => Some(gpu),
        }
    }

    /// Whether it is one of a pool.
    pub const fn is_of_pool(self) -> bool {
        matches!(self, NodeGpu::Pool(_))
    }
}

impl From<GresGpu> for NodeGpu {
    fn from(gpu: GresGpu) -> NodeGpu {
        NodeGpu::Gres(gpu)
    }
}

/// The number in state and messages.
impl From<NodeGpu> for u8 {
    fn from(gpu: NodeGpu) -> u8 {
        match gpu {
            NodeGpu::Gres(gpu) => gpu.into(),
            NodeGpu::Pool(gpu) => POOL + u8::from(gpu),
        }
    }
}

impl TryFrom<u8> for NodeGpu {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<NodeGpu, &'static str> {
        match number.checked_sub(POOL) {
            Some(nvml) => nvml.try_into().map(NodeGpu::Pool),
            None => number.try_into().map(NodeGpu::Gres),
        }
    }
}

/// The name for people: `3`, `mig4`.
impl fmt::Display for NodeGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeGpu::Gres(gpu) => gpu.fmt(f),
            NodeGpu::Pool(gpu) => write!(f, "{WORD}{gpu}"),
        }
    }
}

/// Reads the name for people.
impl FromStr for NodeGpu {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<NodeGpu, &'static str> {
        let (digits, of_pool) = match name.strip_prefix(WORD) {
            Some(digits) => (digits, true),
            None => (name, false),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err("no name of a GPU");
        }
        let number: u8 = digits.parse().map_err(|_| "no node has so many GPUs")?;
        match of_pool {
            true => number.try_into().map(NodeGpu::Pool),
            false => number.try_into().map(NodeGpu::Gres),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn gres(gpu: usize) -> NodeGpu {
        NodeGpu::Gres(GresGpu::new(gpu).expect("a GPU"))
    }

    fn pool(gpu: usize) -> NodeGpu {
        NodeGpu::Pool(NvmlIndex::new(gpu).expect("a GPU"))
    }

    #[test]
    fn names_lead_back_to_gpus_and_nothing_else_does() {
        for gpu in (0..MAX_GPUS).map(gres).chain((0..MAX_GPUS).map(pool)) {
            assert_eq!(gpu.to_string().parse(), Ok(gpu));
        }
        let names = [gres(3), pool(4)].map(|gpu| gpu.to_string());
        assert_eq!(names, ["3", "mig4"]);
        for wrong in [
            "", "mig", "64", "mig64", "mig-1", "+3", "MIG4", "mig4 ", "300",
        ] {
            assert!(wrong.parse::<NodeGpu>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn state_and_messages_have_one_number() {
        let json = |gpu: NodeGpu| serde_json::to_string(&gpu).expect("JSON");
        let read = |text: &str| serde_json::from_str::<NodeGpu>(text).ok();
        for number in 0..2 * POOL {
            let gpu = read(&number.to_string()).expect("a GPU");
            assert_eq!(json(gpu), number.to_string());
        }
        let ends = [gres(0), gres(63), pool(0), pool(63)].map(json);
        assert_eq!(ends, ["0", "63", "64", "127"]);
        for wrong in ["128", "255", "256", "-1", "1.5", "\"3\"", "null"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        // As the key of a map, too.
        let map = BTreeMap::from([(gres(3), "a"), (pool(4), "b")]);
        let text = serde_json::to_string(&map).expect("JSON");
        assert_eq!(text, r#"{"3":"a","68":"b"}"#);
        assert_eq!(serde_json::from_str(&text).ok(), Some(map));
        assert!(serde_json::from_str::<BTreeMap<NodeGpu, u8>>(r#"{"128":1}"#).is_err());
    }

    #[test]
    fn those_of_gres_gpu_come_first() {
        let mut all = [pool(0), gres(63), pool(9), gres(0)];
        all.sort_unstable();
        assert_eq!(all, [gres(0), gres(63), pool(0), pool(9)]);
        assert_eq!((gres(5).gres(), gres(5).pool()), (GresGpu::new(5), None));
        assert_eq!((pool(5).gres(), pool(5).pool()), (None, NvmlIndex::new(5)));
        assert!(pool(5).is_of_pool() && !gres(5).is_of_pool());
    }
}
