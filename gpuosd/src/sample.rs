//! What the library says of a GPU, in the words of the health rules.

use gpuos_core::health;
use gpuos_host::nvml;

/// `nvmlClocksEventReasonHwThermalSlowdown` and `…HwPowerBrakeSlowdown`.
const THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// A poll.
pub fn sample(told: &nvml::Sample) -> health::Sample {
    let reason = |set: Option<bool>, bit: u64| set.map(|set| if set { bit } else { 0 });
    let reasons = [
        reason(told.thermal, THERMAL),
        reason(told.power_brake, POWER_BRAKE),
    ];
    let known = reasons.iter().any(Option::is_some);
    let links = told.nvlinks.unwrap_or(0);
    let down = links.saturating_sub(told.nvlinks_up.unwrap_or(links));
    health::Sample {
        celsius: told.celsius,
        memory_celsius: told.memory_celsius,
        slowdown_celsius: told.slowdown_celsius,
        power_mw: told.power_mw,
        power_limit_mw: told.power_limit_mw,
        clock_reasons: known.then(|| reasons.iter().flatten().sum()),
        busy_percent: told.utilisation,
        memory_used_mib: told.memory_used_mib,
        ecc_corrected: told.ecc_corrected,
        ecc_uncorrected: told.ecc_uncorrected,
        ecc_corrected_ever: told.ecc_corrected_aggregate,
        ecc_uncorrected_ever: told.ecc_uncorrected_aggregate,
        sram_threshold: told.sram_threshold,
        rows_corrected: told.rows_corrected,
        rows_uncorrected: told.rows_uncorrected,
        rows_pending: told.rows_pending,
        rows_failed: told.rows_failed,
        banks: told.banks,
        pages_double_bit: told.pages,
        pages_pending: told.pages_pending,
        nvlinks: lowest(links),
        nvlinks_down: lowest(down),
        nvlink_crc: told.nvlink_crc,
        nvlink_replays: told.nvlink_replays,
        nvlink_recoveries: told.nvlink_recoveries,
        pcie_replays: told.pcie_replays,
        pcie_generation: told.pcie_gen,
        pcie_generation_most: told.pcie_gen_max,
        pcie_width: told.pcie_width,
        pcie_width_most: told.pcie_width_max,
        recovery_action: told.recovery.map(number),
        processes: told.processes,
        ..health::Sample::default()
    }
}

/// So many bits, from the lowest on: which links they are, the library does not say.
fn lowest(count: u32) -> u64 {
    (0..count.min(64)).fold(0, |bits, at| bits | 1 << at)
}

fn number(action: nvml::RecoveryAction) -> u32 {
    match action {
        nvml::RecoveryAction::None => 0,
        nvml::RecoveryAction::GpuReset => 1,
        nvml::RecoveryAction::NodeReboot => 2,
        nvml::RecoveryAction::DrainP2p => 3,
        nvml::RecoveryAction::DrainAndReset => 4,
        nvml::RecoveryAction::Other(number) => number,
    }
}

/// A recovery action.
pub fn recovery(action: nvml::RecoveryAction) -> health::RecoveryAction {
    health::RecoveryAction::from_nvml(number(action))
}
