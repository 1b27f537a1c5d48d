//! Memory that a job was granted for each GPU beyond what the GPU has: it lies in the host's memory, and the GPU reads it over its link.

use gpuos_model::cluster::NodeType;

use super::WHOLE;

/// By how much memory of the host is slower for a GPU than its own, at least: where figures are missing. The least of the shipped node
/// types is 29 (A40 beside PCIe 4.0), by `memory_gbps` and `pcie_gbps`.
const LEAST_RATIO: u64 = 10;

/// What a job was granted for each of its GPUs, in GPU memory and the host's together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// MiB; 0: its programs have what the GPU has.
    pub mib: u64,
    /// MiB of each GPU that are not for programs' data.
    pub reserve_mib: u64,
}

impl Grant {
    /// Whether programs have what the GPU has, wherever the job is.
    pub fn is_none(&self) -> bool {
        self.mib == 0
    }

    /// MiB that a GPU of `gpu_mib` MiB has no room for.
    pub fn outside_mib(&self, gpu_mib: u64) -> u64 {
        self.mib
            .saturating_sub(gpu_mib.saturating_sub(self.reserve_mib))
    }

    /// The share that a GPU of this type has no room for, in thousandths rounded up; 0 where it is not known what the GPU has.
    pub fn outside(&self, node_type: &NodeType) -> u32 {
        let gpu = node_type.gpu_memory_mib;
        if self.is_none() || gpu == 0 {
            return 0;
        }
        let outside = self.outside_mib(gpu);
        let whole = u64::from(WHOLE);
        (outside * whole).div_ceil(self.mib).min(whole) as u32
    }
}

/// What the share of a job's time that goes with memory is stretched by, in thousandths beside 1000, when `outside` thousandths of its
/// memory are read over a link of `link_gbps`: all of it is touched alike, as nothing is known of the program, and in place. What moves
/// to and fro goes over the same link. `best_gbps` is the memory of the cluster's best GPUs, 0 = not known.
pub(super) fn stretch(outside: u32, best_gbps: u32, link_gbps: f32) -> u64 {
    // Figures of node types are below 10,000 GB/s.
    let link = (link_gbps.clamp(0.0, 1e6) * 100.0) as u64;
    let ratio = match link {
        0 => 0,
        link => u64::from(best_gbps) * 100 * u64::from(WHOLE) / link,
    };
    u64::from(outside) * ratio.max(LEAST_RATIO * u64::from(WHOLE)) / u64::from(WHOLE)
}
