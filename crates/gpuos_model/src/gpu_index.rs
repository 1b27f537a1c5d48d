//! Numbers of GPUs. One GPU has up to three, and each is of a type of its own, so that none is taken for another.
//!
//! Slurm counts the entries of `File=` in gres.conf, NVIDIA's library counts the GPUs of the machine, and slices are counted by
//! the GPUs that a `[[mig.pool]]` names. Where all GPUs of a node are in GRES `gpu`, the first two are the same.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gpuset::{GpuSet, MAX_GPUS};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(try_from = "u8", into = "u8")]
        pub struct $name(u8);

        impl $name {
            /// The last one that a node can have.
            pub const LAST: $name = $name(MAX_GPUS as u8 - 1);

            /// The GPU with this number, from 0 on. `None` from [`MAX_GPUS`] on.
            pub const fn new(index: usize) -> Option<$name> {
                match index < MAX_GPUS {
                    true => Some($name(index as u8)),
                    false => None,
                }
            }

            /// The number, for an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl TryFrom<u8> for $name {
            type Error = &'static str;

            fn try_from(number: u8) -> Result<$name, &'static str> {
                $name::new(number.into()).ok_or("no node has so many GPUs")
            }
        }

        impl From<$name> for u8 {
            fn from(gpu: $name) -> u8 {
                gpu.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! set {
    ($(#[$doc:meta])* $set:ident of $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $set(pub GpuSet);

        impl $set {
            /// No GPU.
            pub const EMPTY: $set = $set(GpuSet::EMPTY);

            /// Whether a GPU is in the set.
            pub const fn contains(self, gpu: $name) -> bool {
                self.0.contains(gpu.index())
            }

            /// The set with a GPU added.
            pub const fn with(self, gpu: $name) -> $set {
                $set(self.0.with(gpu.index()))
            }

            /// The GPUs in both sets.
            pub const fn and(self, other: $set) -> $set {
                $set(self.0.and(other.0))
            }

            /// The GPUs of `self` that are not in `other`.
            pub const fn minus(self, other: $set) -> $set {
                $set(self.0.minus(other.0))
            }

            /// How many GPUs the set has.
            pub const fn len(self) -> usize {
                self.0.len()
            }

            /// Whether the set has no GPU.
            pub const fn is_empty(self) -> bool {
                self.0.is_empty()
            }

            /// The GPUs in the set, lowest first.
            pub fn iter(self) -> impl Iterator<Item = $name> {
                self.0.iter().filter_map($name::new)
            }
        }

        impl FromIterator<$name> for $set {
            fn from_iter<I: IntoIterator<Item = $name>>(gpus: I) -> $set {
                gpus.into_iter().fold($set::EMPTY, $set::with)
            }
        }

        impl fmt::Display for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// A GPU by its place in GRES `gpu` of its node: the `IDX` of `scontrol show job -d`, and the order of `File=` in
    /// gres.conf. Sets of these are [`GpuSet`]s.
    GresGpu
}

number! {
    /// A GPU by the index that NVIDIA's library has for it, as `nvidia-smi` shows it.
    NvmlIndex
}

set! {
    /// GPUs of one node by NVML's index.
    NvmlSet of NvmlIndex
}

number! {
    /// A GPU by its place among those of its node that gpuos.toml names for MIG: GRES `gpuos` has the slices of these, one
    /// GPU after the other.
    PoolGpu
}

set! {
    /// GPUs of one node by their place among those for MIG.
    PoolSet of PoolGpu
}

impl GresGpu {
    /// The GPU alone.
    pub const fn alone(self) -> GpuSet {
        GpuSet(1 << self.0)
    }

    /// Whether a set has the GPU.
    pub const fn is_in(self, set: GpuSet) -> bool {
        set.contains(self.index())
    }
}

impl FromIterator<GresGpu> for GpuSet {
    fn from_iter<I: IntoIterator<Item = GresGpu>>(gpus: I) -> GpuSet {
        let gpus = gpus.into_iter().map(GresGpu::index);
        gpus.fold(GpuSet::EMPTY, GpuSet::with)
    }
}

impl PoolGpu {
    /// Its slices in GRES `gpuos` of its node, where each GPU has so many; none past the first 64.
    pub const fn slices(self, each: u8) -> u64 {
        let all = GpuSet::first(each as usize).0;
        match all.checked_shl(self.0 as u32 * each as u32) {
            Some(bits) => bits,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_below_the_most_gpus_of_a_node() {
        let gpu = GresGpu::new(63).expect("a GPU");
        assert_eq!((gpu.index(), gpu.alone().0), (63, 1 << 63));
        assert!(gpu.is_in(GpuSet(1 << 63)) && !gpu.is_in(GpuSet::first(63)));
        assert_eq!(GresGpu::new(64), None);
        let set: GpuSet = [2, 63].into_iter().filter_map(GresGpu::new).collect();
        assert_eq!(set, GpuSet(1 << 63 | 1 << 2));
        assert_eq!(
            NvmlIndex::new(6).map(|gpu| gpu.to_string()).as_deref(),
            Some("6")
        );
    }

    #[test]
    fn a_number_is_written_as_one_and_read_if_a_node_has_so_many() {
        let gpu = NvmlIndex::new(6).expect("a GPU");
        assert_eq!(serde_json::to_string(&gpu).expect("JSON"), "6");
        let read = |text: &str| serde_json::from_str::<NvmlIndex>(text).ok();
        assert_eq!((read("6"), read("64"), read("-1")), (Some(gpu), None, None));
        // As the key of a map, too.
        let map = std::collections::BTreeMap::from([(gpu, NvmlSet::EMPTY.with(gpu))]);
        let text = serde_json::to_string(&map).expect("JSON");
        assert_eq!(text, r#"{"6":64}"#);
        assert_eq!(serde_json::from_str(&text).ok(), Some(map));
    }

    #[test]
    fn a_set_has_what_is_put_in() {
        let all: NvmlSet = [5, 2].into_iter().filter_map(NvmlIndex::new).collect();
        assert_eq!(
            (all.0, all.to_string().as_str()),
            (GpuSet(0b10_0100), "2,5")
        );
        let [two, three] = [2, 3].map(|gpu| NvmlIndex::new(gpu).expect("a GPU"));
        assert!(all.contains(two) && !all.contains(three) && !all.is_empty());
        let numbers: Vec<usize> = all.iter().map(NvmlIndex::index).collect();
        assert_eq!(numbers, [2, 5]);
        assert!(all.and(NvmlSet::EMPTY.with(three)).is_empty());
    }

    #[test]
    fn slices_of_a_pool_follow_each_other() {
        let slices = |gpu, each| PoolGpu::new(gpu).map(|gpu| gpu.slices(each));
        assert_eq!(slices(0, 8), Some(0xff));
        assert_eq!(slices(1, 8), Some(0xff00));
        assert_eq!(slices(7, 8), Some(0xff << 56));
        // More than can be steered.
        assert_eq!(slices(8, 8), Some(0));
        assert_eq!(slices(9, 7), Some(1 << 63));
        assert_eq!(slices(3, 0), Some(0));
    }
}
