//! What boards are and can do, as data with sources: [`Board`] for one GPU, [`Mig`] for how it can be
//! divided, [`Kind`] for a whole node.

mod boards;
mod kinds;
mod mig;

pub use boards::BOARDS;
pub use kinds::{KINDS, Kind, kind_at, kind_named};
pub use mig::{A30, A100_40, A100_80, B200, H100_80, H200, Mig, Profile};

/// GPUs of a node.
pub const MAX_GPUS: usize = 16;
/// NVLinks of a GPU.
pub const MAX_LINKS: usize = 18;

/// A GPU board. Units stand in the names; clocks are in MHz.
pub struct Board {
    /// Product name, as `nvmlDeviceGetName` gives it.
    pub name: &'static str,
    /// `NVML_DEVICE_ARCH_*`.
    pub architecture: u32,
    /// CUDA compute capability.
    pub capability: [i32; 2],
    /// PCI device and vendor id, and those of the subsystem.
    pub pci_ids: [u32; 2],
    /// Part number of the board, and of the GPU.
    pub parts: [&'static str; 2],
    /// VBIOS version.
    pub vbios: &'static str,
    /// InfoROM image version.
    pub inforom: &'static str,
    /// Memory that the driver keeps for itself.
    pub reserved_mib: u64,
    /// BAR1 placement.
    pub bar1_mib: u64,
    /// Multiprocessors, and CUDA cores in each.
    pub cores: [u32; 2],
    /// Width of the memory bus in bits.
    pub bus_bits: u32,
    /// Power in watts: idle, least limit, default limit, greatest limit.
    pub watts: [u32; 4],
    /// Clocks at full speed: graphics and SM, memory, video.
    pub clocks: [u32; 3],
    /// Clocks at idle, in the same order.
    pub idle_clocks: [u32; 3],
    /// Least graphics clock, and the step between supported clocks.
    pub clock_steps: [u32; 2],
    /// Default application clock.
    pub app_clock: u32,
    /// Degrees Celsius: idle, full load, GPU max, slowdown, shutdown, memory max.
    pub celsius: [u32; 6],
    /// Whether thresholds are given as a margin (`T.Limit`) too.
    pub margins: bool,
    /// Whether there is a sensor in the memory.
    pub memory_sensor: bool,
    /// PCIe generation; the width is 16 lanes.
    pub pcie_gen: u32,
    /// Fans that software sees; 0 on boards that the chassis cools.
    pub fans: u32,
    /// Version of NVLink as NVML counts (`nvmlDeviceGetNvLinkVersion`), and MB/s of a link.
    pub nvlink: [u32; 2],
    /// Banks that can remap rows; 0 for boards that do not.
    pub row_banks: u32,
    /// Whether the fabric manager registers the GPU (Hopper and later behind NVSwitch).
    pub fabric: bool,
    /// How it can be divided.
    pub mig: Option<&'static Mig>,
    /// Whether switching MIG mode waits for a reset.
    pub mig_needs_reset: bool,
    /// Where the figures come from, and which are not from a source.
    pub source: &'static str,
}

impl Board {
    /// Whether `nvmlDeviceGetRetiredPages` works: boards that remap rows do not retire pages.
    pub fn retires_pages(&self) -> bool {
        self.row_banks == 0
    }
}
