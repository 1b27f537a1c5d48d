//! One MIG-switchable GPU.
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};

/// How a GPU serves jobs. Also the GRES in which it is given so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuMode {
    /// As a whole, or by shards: GRES `gpu`.
    Whole,
    /// By slices: GRES `gpuos`.
    Slices,
}

impl GpuMode {
    /// The other one.
    pub const fn other(self) -> GpuMode {
        match self {
            GpuMode::Whole => GpuMode::Slices,
            GpuMode::Slices => GpuMode::Whole,
        }
    }
}

/// What of a node's GPUs is given to anybody.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Allocated {
    /// Devices of GRES `gpu`.
    pub gpus: u64,
    /// GPUs, as devices of GRES `gpu`, of which shards are in use or that MPS serves.
    pub shared: u64,
    /// Devices of GRES `gpuos`.
    pub slices: u64,
}

impl Allocated {
    /// The devices of the GRES of a mode.
    pub const fn of(self, mode: GpuMode) -> u64 {
        match mode {
            GpuMode::Whole => self.gpus,
            GpuMode::Slices => self.slices,
        }
    }
}

/// A MIG-switchable GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// NVML's index.
    pub nvml: NvmlIndex,
    /// Its number in GRES `gpu`.
    pub gres: GresGpu,
    /// Its devices in GRES `gpuos`.
    pub slices: u64,
    /// How it served last.
    pub mode: GpuMode,
    /// Since when, in seconds since 1970; 0 = since slurmctld started.
    pub since: i64,
}

impl Gpu {
    /// Its devices in the GRES of a mode.
    pub const fn devices(&self, mode: GpuMode) -> u64 {
        match mode {
            GpuMode::Whole => self.gres.alone().0,
            GpuMode::Slices => self.slices,
        }
    }

    /// How somebody has it, if anybody has. A job that takes the whole node has it both ways: whole.
    pub const fn held(&self, given: Allocated) -> Option<GpuMode> {
        if self.gres.alone().0 & (given.gpus | given.shared) != 0 {
            Some(GpuMode::Whole)
        } else if self.slices & given.slices != 0 {
            Some(GpuMode::Slices)
        } else {
            None
        }
    }

    /// Remembers how it serves.
    pub fn learn(&mut self, given: Allocated, now: i64) {
        if let Some(mode) = self.held(given).filter(|mode| *mode != self.mode) {
            (self.mode, self.since) = (mode, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_of_the_mode_in_which_it_served_last() {
        let mut gpu = Gpu {
            nvml: NvmlIndex::new(6).expect("a GPU"),
            gres: GresGpu::new(6).expect("a GPU"),
            slices: 0xff00,
            mode: GpuMode::Whole,
            since: 0,
        };
        for (now, gpus, slices, mode, since) in [
            (10, 0, 0, GpuMode::Whole, 0),
            (20, 1 << 5, 0xff, GpuMode::Whole, 0),
            (30, 0, 0x0100, GpuMode::Slices, 30),
            (40, 0, 0, GpuMode::Slices, 30),
            (50, 0, 0x8000, GpuMode::Slices, 30),
            (60, 1 << 6, 0, GpuMode::Whole, 60),
            // A job that took the whole node.
            (70, 1 << 6, 0xff00, GpuMode::Whole, 60),
        ] {
            let given = Allocated {
                gpus,
                slices,
                ..Allocated::default()
            };
            gpu.learn(given, now);
            assert_eq!((gpu.mode, gpu.since), (mode, since), "at {now}");
        }
        // A shard of it is as good as the whole.
        let given = Allocated {
            shared: 1 << 6,
            slices: 0xff00,
            ..Allocated::default()
        };
        assert_eq!(gpu.held(given), Some(GpuMode::Whole));
    }
}
