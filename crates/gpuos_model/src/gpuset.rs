//! A set of GPUs of one node, as a bit mask.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The most GPUs that one node can have here.
pub const MAX_GPUS: usize = 64;

/// A set of GPUs of one node: bit `i` is the GPU with Slurm's index `i` (the
/// `IDX` of `scontrol show job -d`, and the order of `File=` in gres.conf).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct GpuSet(pub u64);

impl GpuSet {
    /// No GPU.
    pub const EMPTY: GpuSet = GpuSet(0);

    /// The GPUs `0..count`; `count` above [`MAX_GPUS`] counts as [`MAX_GPUS`].
    pub const fn first(count: usize) -> GpuSet {
        if count >= MAX_GPUS {
            GpuSet(u64::MAX)
        } else {
            GpuSet((1u64 << count) - 1)
        }
    }

    /// How many GPUs the set has.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no GPU.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether GPU `index` is in the set.
    pub const fn contains(self, index: usize) -> bool {
        index < MAX_GPUS && self.0 >> index & 1 == 1
    }

    /// The set with GPU `index` added; an index past [`MAX_GPUS`] is ignored.
    pub const fn with(self, index: usize) -> GpuSet {
        if index < MAX_GPUS {
            GpuSet(self.0 | 1 << index)
        } else {
            self
        }
    }

    /// The GPUs of `self` that are not in `other`.
    pub const fn minus(self, other: GpuSet) -> GpuSet {
        GpuSet(self.0 & !other.0)
    }

    /// The GPUs in both sets.
    pub const fn and(self, other: GpuSet) -> GpuSet {
        GpuSet(self.0 & other.0)
    }

    /// The indices in the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = rest.trailing_zeros() as usize;
            (rest != 0).then(|| {
                rest &= rest - 1;
                index
            })
        })
    }
}

/// Writes the set as Slurm writes index lists: `0-3,6`; the empty set is `-`.
impl fmt::Display for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        let mut index = 0;
        let mut first = true;
        while index < MAX_GPUS {
            if !self.contains(index) {
                index += 1;
                continue;
            }
            let start = index;
            while self.contains(index + 1) {
                index += 1;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if start == index {
                write!(f, "{start}")?
            } else {
                write!(f, "{start}-{index}")?
            }
            index += 1;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
