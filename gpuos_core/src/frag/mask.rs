//! What a set of free GPUs of one node is worth, links included.

use crate::gpuset::{GpuSet, MAX_GPUS};

/// GPUs of a block: values are exact within one.
const BLOCK: usize = 8;
/// Thousandths of a GPU in one GPU.
const MILLI: u64 = 1000;

/// How often jobs of each number of GPUs per node come, counted by the GPUs they take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeMix {
    /// By number of GPUs.
    weights: [u64; MAX_GPUS + 1],
}

impl Default for SizeMix {
    fn default() -> SizeMix {
        SizeMix {
            weights: [0; MAX_GPUS + 1],
        }
    }
}

impl SizeMix {
    /// A mix in which these numbers of GPUs take equally many GPUs.
    pub fn even(sizes: &[usize]) -> SizeMix {
        let mut mix = SizeMix::default();
        for &size in sizes.iter().filter(|&&size| (1..=MAX_GPUS).contains(&size)) {
            mix.weights[size] = 1;
        }
        mix
    }

    /// Counts one job that takes `gpus` GPUs of a node; 0 and more than any node has are left out.
    pub fn add(&mut self, gpus: usize) {
        if (1..=MAX_GPUS).contains(&gpus) {
            self.weights[gpus] += gpus as u64;
        }
    }

    fn sizes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.weights.iter().copied().enumerate().filter(|w| w.1 > 0)
    }
}

/// The value of each set of free GPUs of a node type: how many GPUs jobs of a mix will still
/// use, if they go on arriving until none fits.
///
/// A job of `k` GPUs takes, of the sets of `k` free GPUs, one with the highest ring bandwidth,
/// and of these the one that leaves the most valuable rest. It counts `k` GPUs times its ring
/// over the best ring that `k` GPUs have on the idle node, and it does not start where that is
/// below one half. With `p_k` the part of the mix that can start, `V(free) = sum p_k * (worth_k +
/// V(free - set_k))`.
///
/// Exact, in a table of `2^gpus` entries, for up to eight GPUs. A larger node is valued in blocks
/// of eight GPUs by index, and jobs larger than a block by their number alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskValue {
    /// For each block, by set: thousandths of a GPU.
    blocks: Vec<Vec<u32>>,
    /// Jobs larger than a block, and the weight of all jobs that are not.
    large: Vec<(usize, u64)>,
    small: u64,
}

impl MaskValue {
    /// Computes the table of a node type with `gpus` GPUs. `ring` tells the narrowest link of the
    /// best ring over a set, in any unit; it is asked for sets of two GPUs or more.
    pub fn new(gpus: usize, ring: impl Fn(GpuSet) -> u32, mix: &SizeMix) -> MaskValue {
        let gpus = gpus.min(MAX_GPUS);
        let (small, large): (Vec<_>, Vec<_>) = mix
            .sizes()
            .filter(|&(size, _)| size <= gpus)
            .partition(|&(size, _)| size <= BLOCK);
        let blocks = (0..gpus.div_ceil(BLOCK))
            .map(|block| {
                let first = block * BLOCK;
                let ring = |set: usize| ring(GpuSet((set as u64) << first));
                table((gpus - first).min(BLOCK), ring, &small)
            })
            .collect();
        MaskValue {
            blocks,
            large,
            small: small.iter().map(|&(_, weight)| weight).sum(),
        }
    }

    /// The value of a set of free GPUs, in thousandths of a GPU.
    pub fn of(&self, free: GpuSet) -> u32 {
        let in_blocks: u64 = self
            .blocks
            .iter()
            .enumerate()
            .map(|(block, table)| {
                let set = free.0 >> (block * BLOCK) & 0xFF;
                u64::from(table.get(set as usize).copied().unwrap_or(0))
            })
            .sum();
        let all = self.small + self.large.iter().map(|l| l.1).sum::<u64>();
        let by_number: u64 = self
            .large
            .iter()
            .map(|&(size, weight)| weight * (free.len() / size * size) as u64 * MILLI)
            .sum();
        ((self.small * in_blocks + by_number) / all.max(1)) as u32
    }

    /// What `free` loses beyond the GPUs of `taken` themselves, in thousandths of a GPU; negative
    /// when the rest is worth more than the idle whole promised.
    pub fn loss(&self, free: GpuSet, taken: GpuSet) -> i32 {
        let rest = free.minus(taken);
        let gone = (free.and(taken).len() as u64 * MILLI) as i32;
        self.of(free) as i32 - self.of(rest) as i32 - gone
    }
}

/// The table of one block.
fn table(gpus: usize, ring: impl Fn(usize) -> u32, sizes: &[(usize, u64)]) -> Vec<u32> {
    let sets = 1usize << gpus;
    let rings: Vec<u32> = (0..sets)
        .map(|set| if set.count_ones() > 1 { ring(set) } else { 1 })
        .collect();
    let best = |size: usize| {
        let of_size = (0..sets).filter(|set| set.count_ones() as usize == size);
        of_size.map(|set| rings[set]).max().unwrap_or(0)
    };
    let jobs: Vec<(usize, u64, u32)> = sizes
        .iter()
        .map(|&(size, weight)| (size, weight, best(size)))
        .collect();
    let mut value = vec![0u32; sets];
    for free in 1..sets {
        // For each size the ring and the rest of its best set.
        let mut chosen = [None::<(u32, u32)>; BLOCK + 1];
        let mut set = free;
        while set != 0 {
            let here = (rings[set], value[free ^ set]);
            let known = &mut chosen[set.count_ones() as usize];
            if known.is_none_or(|known| here > known) {
                *known = Some(here);
            }
            set = (set - 1) & free;
        }
        let (mut sum, mut weights) = (0u64, 0u64);
        for &(size, weight, best) in &jobs {
            let Some((ring, rest)) = chosen[size].filter(|c| u64::from(c.0) * 2 >= u64::from(best))
            else {
                continue;
            };
            let full = size as u64 * MILLI;
            let worth = (full * u64::from(ring))
                .checked_div(u64::from(best))
                .unwrap_or(full);
            sum += weight * (worth + u64::from(rest));
            weights += weight;
        }
        value[free] = sum.checked_div(weights).unwrap_or(0) as u32;
    }
    value
}
