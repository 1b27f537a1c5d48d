//! The GPUs of one simulated node as they are now. Whole numbers only and no pointer: every pattern
//! of bytes is a valid value, so that a file that somebody else wrote can be wrong but not undefined.

mod create;
mod physics;
mod process;
mod shared;

pub use create::{Options, node};
pub(crate) use create::{mig_uuid_text, uuid_text};
pub use process::process_start;
pub(crate) use shared::is_root;
pub use shared::{Shared, now_us};

use crate::hold::Hold;
use crate::model::{Kind, kind_at};
pub use crate::model::{MAX_GPUS, MAX_LINKS};

/// Processes on a GPU.
pub const MAX_PROCESSES: usize = 32;
/// GPU instances of a GPU, and compute instances of a GPU instance.
pub const MAX_INSTANCES: usize = 8;
/// Pages that a GPU can retire.
pub const MAX_PAGES: usize = 32;
/// Events that are kept for those who have not read them yet.
pub const MAX_EVENTS: usize = 256;
/// An instance id that says: none. NVML's value for events and processes.
pub const NO_INSTANCE: u32 = u32::MAX;

/// A simulated node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Node {
    /// Index of its kind in [`crate::model::KINDS`].
    pub kind: u32,
    /// Number of GPUs, at most [`MAX_GPUS`].
    pub gpu_count: u32,
    /// Library calls block until this time, in microseconds since 1970.
    pub hang_until_us: u64,
    /// 1 where calls take as long as on real hardware.
    pub real_latency: u32,
    /// Clique of the NVLink fabric that the GPUs are in.
    pub clique: u32,
    /// The cluster of that fabric; zero inside one node.
    pub cluster: [u8; 16],
    /// What UUIDs are made from.
    pub seed: u64,
    /// Counts MIG instances, so that each has a UUID and a handle of its own.
    pub instances_made: u64,
    /// Where a call waits for the end of its caller.
    pub hold: Hold,
    /// Number of the next event; the events before it lie in `events` at number modulo length.
    pub next_event: u64,
    /// The last events of all GPUs.
    pub events: [Event; MAX_EVENTS],
    /// The GPUs.
    pub gpus: [Gpu; MAX_GPUS],
}

/// What happened to a GPU, for those who wait on an event set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Event {
    /// GPU, by index.
    pub gpu: u32,
    /// GPU instance, or [`NO_INSTANCE`].
    pub gpu_instance: u32,
    /// Compute instance, or [`NO_INSTANCE`].
    pub compute_instance: u32,
    /// Keeps the layout without holes.
    pub reserved: u32,
    /// `nvmlEventType*`.
    pub kind: u64,
    /// The Xid for an Xid event, the recovery action for that event, else 0.
    pub data: u64,
}

/// A process that uses a GPU.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Process {
    /// Process id; 0 marks a free place.
    pub pid: u32,
    /// How busy it keeps the GPU, in percent.
    pub load: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// GPU instance it runs in, or [`NO_INSTANCE`].
    pub gpu_instance: u32,
    /// Compute instance, or [`NO_INSTANCE`].
    pub compute_instance: u32,
    /// 1 for a graphics context, 0 for a compute context.
    pub graphics: u32,
    /// Low half of the time at which it started ([`process_start`]): it is on the GPU as long as it lives.
    /// 0 for a process that stays until it is taken away, as those of `gpuos-nvml run`.
    pub started: u32,
}

/// Error counts, by place and kind.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Errors {
    /// Corrected errors in device memory.
    pub dram_corrected: u64,
    /// Uncorrected errors in device memory.
    pub dram_uncorrected: u64,
    /// Corrected errors in on-chip memory.
    pub sram_corrected: u64,
    /// Uncorrected errors in on-chip memory found by parity.
    pub sram_parity: u64,
    /// Uncorrected errors in on-chip memory found by SEC-DED.
    pub sram_secded: u64,
}

impl Errors {
    /// Corrected errors everywhere.
    pub fn corrected(&self) -> u64 {
        self.dram_corrected.saturating_add(self.sram_corrected)
    }

    /// Uncorrected errors everywhere.
    pub fn uncorrected(&self) -> u64 {
        self.dram_uncorrected
            .saturating_add(self.sram_uncorrected())
    }

    /// Uncorrected errors in on-chip memory.
    pub fn sram_uncorrected(&self) -> u64 {
        self.sram_parity.saturating_add(self.sram_secded)
    }
}

/// One NVLink.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Link {
    /// 1 when the link is down.
    pub down: u32,
    /// Keeps the layout without holes.
    pub reserved: u32,
    /// Replays of the data link layer.
    pub replay: u64,
    /// Recoveries of the data link layer.
    pub recovery: u64,
    /// CRC errors in flits.
    pub crc_flit: u64,
    /// CRC errors in data.
    pub crc_data: u64,
    /// ECC errors in data.
    pub ecc_data: u64,
}

/// A compute instance of a GPU instance.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ComputeInstance {
    /// 1 when this place is taken.
    pub exists: u32,
    /// Id inside the GPU instance.
    pub id: u32,
    /// Index of the compute instance profile (`NVML_COMPUTE_INSTANCE_PROFILE_*`).
    pub profile: u32,
    /// First compute slice inside the GPU instance.
    pub start: u32,
    /// Number among all instances ever made: makes UUID and handle.
    pub serial: u64,
}

/// A GPU instance.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GpuInstance {
    /// 1 when this place is taken.
    pub exists: u32,
    /// Id on the GPU.
    pub id: u32,
    /// Id of its profile as users know it (19 for 1g…).
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Keeps the layout without holes.
    pub reserved: u32,
    /// Number among all instances ever made.
    pub serial: u64,
    /// Uncorrected errors of on-chip memory in this instance.
    pub sram_uncorrected: u64,
    /// Its compute instances.
    pub compute: [ComputeInstance; MAX_INSTANCES],
}

/// A page of device memory that is not used any more.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Page {
    /// Address.
    pub address: u64,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// `NVML_PAGE_RETIREMENT_CAUSE_*`.
    pub cause: u32,
    /// 1 until the next reset.
    pub pending: u32,
}

/// A simulated GPU.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Gpu {
    /// UUID without the prefix `GPU-`.
    pub uuid: [u8; 16],
    /// Serial number of the board.
    pub serial: u64,
    /// 1 once the GPU has fallen off the bus.
    pub lost: u32,
    /// 1 when it needs a reset before it works again.
    pub reset_required: u32,
    /// `NVML_GPU_RECOVERY_ACTION_*`.
    pub recovery_action: u32,
    /// Calls for this GPU time out until then: 1 while the fault lasts.
    pub driver_timeout: u32,
    /// Calls for this GPU block until this time, in microseconds since 1970.
    pub hang_until_us: u64,

    /// Degrees Celsius that a fault holds the GPU at; 0 without one.
    pub heat: u32,
    /// Throttle reasons that faults add.
    pub throttle: u32,
    /// Microseconds that power brakes and thermal slowdowns lasted, as far as they ended.
    pub throttled_us: u64,
    /// Since when `throttle` holds, in microseconds since 1970; 0 when it does not.
    pub throttled_since_us: u64,

    /// Power limit that was set, in milliwatts.
    pub power_limit_mw: u32,
    /// Locked graphics clocks in MHz; 0 when not locked.
    pub clock_lock: [u32; 2],
    /// Locked memory clocks in MHz; 0 when not locked.
    pub memory_clock_lock: [u32; 2],
    /// Application clocks in MHz: graphics, memory; 0 for the default.
    pub app_clocks: [u32; 2],
    /// 1 with persistence mode.
    pub persistence: u32,
    /// `NVML_COMPUTEMODE_*`.
    pub compute_mode: u32,
    /// 1 while new clients are kept away (drain state).
    pub draining: u32,

    /// ECC mode: current, and after the next reset.
    pub ecc: [u32; 2],
    /// Errors since the last reset.
    pub volatile: Errors,
    /// Errors since the board was made.
    pub aggregate: Errors,
    /// 1 when uncorrected errors of on-chip memory passed the threshold.
    pub sram_threshold: u32,

    /// Rows remapped for corrected errors.
    pub rows_corrected: u32,
    /// Rows remapped for uncorrected errors.
    pub rows_uncorrected: u32,
    /// 1 when a remapping waits for a reset.
    pub rows_pending: u32,
    /// 1 when a remapping failed.
    pub rows_failed: u32,
    /// Banks that have no spare row left.
    pub banks_exhausted: u32,
    /// Number of `pages` in use.
    pub page_count: u32,
    /// Retired pages.
    pub pages: [Page; MAX_PAGES],

    /// PCIe replays since the driver was loaded.
    pub pcie_replays: u64,
    /// PCIe generation and width while a link fault lasts; 0 for what the board can do.
    pub pcie_degraded: [u32; 2],
    /// NVLinks.
    pub links: [Link; MAX_LINKS],

    /// MIG mode: current, and after the next reset.
    pub mig: [u32; 2],
    /// GPU instances.
    pub instances: [GpuInstance; MAX_INSTANCES],

    /// Processes.
    pub processes: [Process; MAX_PROCESSES],
    /// Energy in millijoules up to `energy_at_us`.
    pub energy_mj: u64,
    /// When `energy_mj` was true, in microseconds since 1970.
    pub energy_at_us: u64,
}

// `derive` stops at arrays of 32 with Default: the rest is written out.
impl Default for Node {
    fn default() -> Node {
        Node {
            kind: 0,
            gpu_count: 0,
            hang_until_us: 0,
            real_latency: 0,
            clique: 0,
            cluster: [0; 16],
            seed: 0,
            instances_made: 0,
            hold: Hold::default(),
            next_event: 0,
            events: [Event::default(); MAX_EVENTS],
            gpus: [Gpu::default(); MAX_GPUS],
        }
    }
}

impl Node {
    /// What kind of node this is.
    pub fn model(&self) -> &'static Kind {
        kind_at(self.kind)
    }

    /// The GPUs that there are.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus[..(self.gpu_count as usize).min(MAX_GPUS)]
    }

    /// The same, to change them.
    pub fn gpus_mut(&mut self) -> &mut [Gpu] {
        &mut self.gpus[..(self.gpu_count as usize).min(MAX_GPUS)]
    }

    /// Adds an event for all who wait for its kind.
    pub fn post(&mut self, event: Event) {
        self.events[self.next_event as usize % MAX_EVENTS] = event;
        self.next_event += 1;
    }
}
