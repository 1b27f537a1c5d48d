//! One poll of a GPU, as plain numbers. What the board or driver does not tell is `None`.

/// What one poll found. Counters only grow until a reset of the GPU or, where they say so, for ever.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Temperature of the GPU in degrees Celsius.
    pub celsius: Option<u32>,
    /// Temperature of its memory in degrees Celsius.
    pub memory_celsius: Option<u32>,
    /// Temperature from which the GPU slows down.
    pub slowdown_celsius: Option<u32>,
    /// Temperature at which it switches itself off.
    pub shutdown_celsius: Option<u32>,
    /// Power drawn, in milliwatts.
    pub power_mw: Option<u32>,
    /// The limit in force, in milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Why clocks are lower than they could be: `nvmlClocksEventReason*` bits.
    pub clock_reasons: Option<u64>,
    /// Nanoseconds of hardware thermal slowdown since the driver was loaded.
    pub thermal_ns: Option<u64>,
    /// Nanoseconds of the power brake since the driver was loaded.
    pub power_brake_ns: Option<u64>,
    /// Share of time in which a kernel ran, in percent; not on a divided GPU.
    pub busy_percent: Option<u32>,
    /// GPU memory in use, in MiB.
    pub memory_used_mib: Option<u64>,
    /// Corrected ECC errors since the last reset.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected ECC errors since the last reset.
    pub ecc_uncorrected: Option<u64>,
    /// Corrected ECC errors ever.
    pub ecc_corrected_ever: Option<u64>,
    /// Uncorrected ECC errors ever.
    pub ecc_uncorrected_ever: Option<u64>,
    /// Uncorrected errors of on-chip memory passed the threshold for replacement.
    pub sram_threshold: Option<bool>,
    /// Rows remapped after corrected errors.
    pub rows_corrected: Option<u32>,
    /// Rows remapped after uncorrected errors.
    pub rows_uncorrected: Option<u32>,
    /// A row is remapped at the next reset.
    pub rows_pending: Option<bool>,
    /// A row could not be remapped.
    pub rows_failed: Option<bool>,
    /// Pages retired after single-bit errors (before Ampere).
    pub pages_single_bit: Option<u32>,
    /// Pages retired after double-bit errors (before Ampere).
    pub pages_double_bit: Option<u32>,
    /// A page is retired at the next reset.
    pub pages_pending: Option<bool>,
    /// NVLinks of the GPU, bit by number.
    pub nvlinks: u64,
    /// Those that are down, bit by number.
    pub nvlinks_down: u64,
    /// CRC or receive errors over all NVLinks.
    pub nvlink_crc: Option<u64>,
    /// Replays (before NVLink 5) or symbol errors, over all links.
    pub nvlink_replays: Option<u64>,
    /// Recoveries of links.
    pub nvlink_recoveries: Option<u64>,
    /// PCIe replays.
    pub pcie_replays: Option<u64>,
    /// PCIe generation now.
    pub pcie_generation: Option<u32>,
    /// PCIe lanes now.
    pub pcie_width: Option<u32>,
    /// Most lanes that board and slot can do.
    pub pcie_width_most: Option<u32>,
    /// Field 230: what NVML wants done, `NVML_GPU_RECOVERY_ACTION_*` (0 nothing, 1 reset, 2 reboot,
    /// 3 drain P2P, 4 drain and reset).
    pub recovery_action: Option<u32>,
    /// Processes that compute on the GPU.
    pub processes: Option<u32>,
}
