//! One poll of a GPU, as plain numbers.

/// One poll of a GPU. `None` = the board or the driver does not tell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Corrected ECC errors since the last reset.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected ECC errors since the last reset.
    pub ecc_uncorrected: Option<u64>,
    /// Corrected ECC errors in the life of the board.
    pub ecc_corrected_aggregate: Option<u64>,
    /// Uncorrected ECC errors in the life of the board.
    pub ecc_uncorrected_aggregate: Option<u64>,
    /// Uncorrected errors of on-chip memory passed NVIDIA's threshold.
    pub sram_threshold: Option<bool>,
    /// Rows remapped after corrected errors.
    pub rows_corrected: Option<u32>,
    /// Rows remapped after uncorrected errors.
    pub rows_uncorrected: Option<u32>,
    /// A row is remapped at the next reset.
    pub rows_pending: Option<bool>,
    /// A row could not be remapped.
    pub rows_failed: Option<bool>,
    /// Memory banks whose spare rows are: all left, many, some, few, none
    /// (`nvmlDeviceGetRowRemapperHistogram`).
    pub banks: Option<[u32; 5]>,
    /// Pages retired (boards before Ampere), both causes together.
    pub pages: Option<u32>,
    /// A page is retired at the next reset.
    pub pages_pending: Option<bool>,
    /// NVLink replays, all links together.
    pub nvlink_replays: Option<u64>,
    /// NVLink recoveries, all links together.
    pub nvlink_recoveries: Option<u64>,
    /// NVLink CRC errors, all links together; on newer boards the symbol and packet errors.
    pub nvlink_crc: Option<u64>,
    /// NVLinks that are up.
    pub nvlinks_up: Option<u32>,
    /// NVLinks that should be up.
    pub nvlinks: Option<u32>,
    /// PCIe replays.
    pub pcie_replays: Option<u64>,
    /// PCIe generation that the link runs at.
    pub pcie_gen: Option<u32>,
    /// The highest that board and slot can.
    pub pcie_gen_max: Option<u32>,
    /// PCIe lanes that the link runs with.
    pub pcie_width: Option<u32>,
    /// The most that board and slot can.
    pub pcie_width_max: Option<u32>,
    /// Temperature of the GPU in degrees Celsius.
    pub celsius: Option<u32>,
    /// Temperature of its memory.
    pub memory_celsius: Option<u32>,
    /// Temperature at which it slows down.
    pub slowdown_celsius: Option<u32>,
    /// Clocks are held down by heat, by hardware.
    pub thermal: Option<bool>,
    /// The power brake is on.
    pub power_brake: Option<bool>,
    /// Power drawn, in mW.
    pub power_mw: Option<u32>,
    /// Power limit, in mW.
    pub power_limit_mw: Option<u32>,
    /// Part of the time in which kernels ran, in percent.
    pub utilisation: Option<u32>,
    /// Memory in use, in MiB.
    pub memory_used_mib: Option<u64>,
    /// Processes on the GPU.
    pub processes: Option<u32>,
    /// NVML's recovery action.
    pub recovery: Option<RecoveryAction>,
}

/// NVML's recovery actions (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// End all processes, reset the GPU.
    GpuReset,
    /// Reboot the node.
    NodeReboot,
    /// Start no peer-to-peer work; what runs may end.
    DrainP2p,
    /// Let the work end, then reset.
    DrainAndReset,
    /// A number that this gpuos does not know.
    Other(u32),
}

impl RecoveryAction {
    /// From NVML's number.
    pub fn from_nvml(number: u32) -> RecoveryAction {
        match number {
            0 => RecoveryAction::None,
            1 => RecoveryAction::GpuReset,
            2 => RecoveryAction::NodeReboot,
            3 => RecoveryAction::DrainP2p,
            4 => RecoveryAction::DrainAndReset,
            other => RecoveryAction::Other(other),
        }
    }

    /// The word for people and rules.
    pub fn word(self) -> &'static str {
        match self {
            RecoveryAction::None => "none",
            RecoveryAction::GpuReset => "gpu-reset",
            RecoveryAction::NodeReboot => "node-reboot",
            RecoveryAction::DrainP2p => "drain-p2p",
            RecoveryAction::DrainAndReset => "drain-and-reset",
            RecoveryAction::Other(_) => "other",
        }
    }
}
