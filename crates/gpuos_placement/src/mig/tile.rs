//! The instances of a job in the memory slices that Slurm gave it.
//!
//! Slurm keeps bits, not placements: bit `b` of a node is memory slice `b % S` of the `b / S`-th GPU of
//! its pool. The placement takes exactly the placements of the instances, so that the bits always tile;
//! which instance stands where is found again here, by whoever carves and whoever tells of it.
use std::collections::BTreeSet;

use gpuos_model::gpu_index::PoolGpu;
use gpuos_model::mig::MigPlacement;
use gpuos_model::mig::profile::Geometry;
use gpuos_model::mig::states::{Scarce, scarce};

use super::request::Serves;

/// One instance of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobInstance {
    /// The GPU.
    pub gpu: PoolGpu,
    /// Number of the profile in the geometry.
    pub profile: usize,
    /// Its memory slices.
    pub placement: MigPlacement,
}

impl JobInstance {
    /// The slices as bits of the node; 0 for those past 64.
    pub fn bits(&self, geometry: &Geometry) -> u64 {
        let first =
            self.gpu.index() * usize::from(geometry.slices()) + usize::from(self.placement.start);
        let last = first + usize::from(self.placement.size);
        (first..last.min(64)).fold(0, |bits, bit| bits | 1 << bit)
    }
}

/// The instances of a request in exactly these bits, at placements that the geometry has, by ascending
/// bit; the same for the same arguments. `None` when they do not tile. For requests for each task the
/// caller multiplies the counts.
pub fn tile(geometry: &Geometry, bits: u64, serves: &Serves) -> Option<Vec<JobInstance>> {
    tile_beside(geometry, bits, serves, &[])
}

/// The same where other instances are on the GPUs already: what is scarce besides memory slices, such
/// as the one media extension of an H100, is not given twice.
pub fn tile_beside(
    geometry: &Geometry,
    bits: u64,
    serves: &Serves,
    beside: &[JobInstance],
) -> Option<Vec<JobInstance>> {
    let mut slices = 0;
    for &(profile, count) in serves {
        slices += u64::from(geometry.profiles().get(profile)?.size) * u64::from(count);
    }
    if slices != u64::from(bits.count_ones()) {
        return None;
    }
    let mut search = Search {
        geometry,
        serves,
        beside,
        scarce: scarce(geometry),
        left: serves.iter().map(|&(_, count)| count).collect(),
        dead: BTreeSet::new(),
        cuts: Vec::new(),
    };
    search.cover(bits, None).then_some(search.cuts)
}

/// A search by lowest bit: some instance begins there, so that there are few ways to go on.
struct Search<'a> {
    geometry: &'a Geometry,
    serves: &'a Serves,
    beside: &'a [JobInstance],
    scarce: Vec<Scarce>,
    /// How many are still to be placed, in the order of `serves`.
    left: Vec<u16>,
    /// Bits, what was used of what is scarce on the GPU of the lowest, and what was left, where it led
    /// nowhere. Without it the GPUs would be tried in all combinations.
    dead: BTreeSet<(u64, Vec<u32>, Vec<u16>)>,
    cuts: Vec<JobInstance>,
}

impl Search<'_> {
    /// Covers these bits; `on` is the GPU of the last instance and what is used there.
    fn cover(&mut self, bits: u64, on: Option<(PoolGpu, Vec<u32>)>) -> bool {
        if bits == 0 {
            return self.left.iter().all(|&left| left == 0);
        }
        let slices = usize::from(self.geometry.slices());
        let bit = bits.trailing_zeros() as usize;
        let Some(gpu) = PoolGpu::new(bit / slices) else {
            return false;
        };
        let start = (bit % slices) as u8;
        let same = on.filter(|(last, _)| *last == gpu);
        let used = same.map_or_else(|| self.used_by_others(gpu), |(_, used)| used);
        let key = (bits, used, self.left.clone());
        if self.dead.contains(&key) {
            return false;
        }
        for at in 0..self.left.len() {
            let number = self.serves[at].0;
            let profile = &self.geometry.profiles()[number];
            let cut = JobInstance {
                gpu,
                profile: number,
                placement: MigPlacement {
                    start,
                    size: profile.size,
                },
            };
            let placement = cut.bits(self.geometry);
            let whole = placement.count_ones() == u32::from(profile.size) && placement & !bits == 0;
            if self.left[at] == 0 || !profile.starts.contains(&start) || !whole {
                continue;
            }
            let mut used = key.1.clone();
            if !self.take(&mut used, number) {
                continue;
            }
            self.left[at] -= 1;
            self.cuts.push(cut);
            if self.cover(bits & !placement, Some((gpu, used))) {
                return true;
            }
            self.cuts.pop();
            self.left[at] += 1;
        }
        self.dead.insert(key);
        false
    }

    fn used_by_others(&self, gpu: PoolGpu) -> Vec<u32> {
        let mut used = vec![0; self.scarce.len()];
        for cut in self.beside.iter().filter(|cut| cut.gpu == gpu) {
            self.take(&mut used, cut.profile);
        }
        used
    }

    /// Counts an instance; whether there is still enough of everything.
    fn take(&self, used: &mut [u32], profile: usize) -> bool {
        let mut enough = true;
        for (used, (takes, limit)) in used.iter_mut().zip(&self.scarce) {
            *used += takes.get(profile).copied().unwrap_or(0);
            enough &= *used <= *limit;
        }
        enough
    }
}
