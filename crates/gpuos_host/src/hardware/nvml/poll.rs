//! One poll: many small questions, and one for all field values.

use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::field_id as id;

use super::driver::{MAX_LINKS, Session, optional};
use super::raw::{Ask, Device, Raw};
use super::{Answer, Error, Sample};

const THERMAL_NS: u32 = id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN;
const BRAKE_NS: u32 = id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN;

/// What is asked of every GPU, in this order.
const FIELDS: [u32; 20] = [
    id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    id::NVML_FI_DEV_REMAPPED_COR,
    id::NVML_FI_DEV_REMAPPED_UNC,
    id::NVML_FI_DEV_REMAPPED_PENDING,
    id::NVML_FI_DEV_REMAPPED_FAILURE,
    id::NVML_FI_DEV_RETIRED_SBE,
    id::NVML_FI_DEV_RETIRED_DBE,
    id::NVML_FI_DEV_RETIRED_PENDING,
    id::NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    id::NVML_FI_DEV_MEMORY_TEMP,
    id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    // Before NVLink 5.
    id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    // How long clocks were held down, in ns: shows what was over before the poll.
    THERMAL_NS,
    BRAKE_NS,
];

/// Counters of NVLink 5, each asked link by link: packets with errors, symbol errors, recoveries.
const PER_LINK: [u32; 3] = [
    id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
    id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
];

/// One poll of a GPU. Error when the GPU or the driver does not answer at all.
pub(super) fn poll(raw: &Raw, session: &Session, device: Device) -> Answer<Sample> {
    let asked = FIELDS.map(|field| (session.numbering.number(field), 0));
    // A library without field values still tells the rest.
    let fields = optional(raw.fields(device, &asked))?.unwrap_or_default();
    let field = |wanted: u32| {
        let place = FIELDS.iter().position(|field| *field == wanted)?;
        fields.get(place)?.as_ref().ok().copied()
    };
    if let Some(Err(error)) = fields.iter().find(|found| is_silent(found)) {
        return Err(error.clone());
    }
    let memory = optional(raw.memory(device))?;
    let small = |wanted: u32| field(wanted).map(|value| value as u32);
    let flag = |wanted: u32| field(wanted).map(|value| value != 0);
    let reasons = match raw.reasons(device) {
        Err(Error::Symbol(_)) => raw.reasons_v1(device),
        other => other,
    };
    let mut sample = Sample {
        celsius: optional(raw.temperature(device))?.map(|celsius| celsius.max(0).cast_unsigned()),
        memory_celsius: small(id::NVML_FI_DEV_MEMORY_TEMP),
        slowdown_celsius: optional(raw.threshold(device, SLOWDOWN))?,
        shutdown_celsius: optional(raw.threshold(device, SHUTDOWN))?,
        power_mw: optional(raw.power(device))?,
        power_limit_mw: optional(raw.enforced_limit(device))?,
        sm_mhz: optional(raw.clock(device, nvml::nvmlClockType_enum_NVML_CLOCK_SM))?,
        clock_reasons: optional(reasons)?,
        thermal_ns: field(THERMAL_NS),
        power_brake_ns: field(BRAKE_NS),
        busy_percent: optional(raw.utilization(device))?.map(|busy| busy.gpu),
        memory_mhz: optional(raw.clock(device, nvml::nvmlClockType_enum_NVML_CLOCK_MEM))?,
        energy_mj: optional(raw.energy(device))?,
        memory_used_mib: memory.map(|[_, used]| used >> 20),
        memory_total_mib: memory.map(|[total, _]| total >> 20),
        ecc_corrected: field(id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
        ecc_uncorrected: field(id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
        ecc_corrected_ever: field(id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
        ecc_uncorrected_ever: field(id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
        sram_threshold: optional(raw.sram_threshold(device))?,
        rows_corrected: small(id::NVML_FI_DEV_REMAPPED_COR),
        rows_uncorrected: small(id::NVML_FI_DEV_REMAPPED_UNC),
        rows_pending: flag(id::NVML_FI_DEV_REMAPPED_PENDING),
        rows_failed: flag(id::NVML_FI_DEV_REMAPPED_FAILURE),
        banks: optional(raw.banks(device))?,
        pages_single_bit: small(id::NVML_FI_DEV_RETIRED_SBE),
        pages_double_bit: small(id::NVML_FI_DEV_RETIRED_DBE),
        pages_pending: flag(id::NVML_FI_DEV_RETIRED_PENDING),
        pcie_replays: field(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER),
        pcie_generation: optional(raw.pcie_generation(device))?,
        pcie_generation_most: optional(raw.pcie_generation_most(device))?,
        pcie_width: optional(raw.pcie_width(device))?,
        pcie_width_most: optional(raw.pcie_width_most(device))?,
        recovery_action: small(id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        processes: optional(raw.processes(device, false))?.map(|list| list.len() as u32),
        ..Sample::default()
    };
    nvlinks(raw, device, &mut sample)?;
    if sample.nvlinks != 0 {
        let flits = field(id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL);
        let data = field(id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL);
        sample.nvlink_crc = match (flits, data) {
            (None, None) => None,
            (flits, data) => Some(flits.unwrap_or(0).saturating_add(data.unwrap_or(0))),
        };
        sample.nvlink_replays = field(id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL);
        sample.nvlink_recoveries = field(id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL);
        if sample.nvlink_crc.is_none() && sample.nvlink_replays.is_none() {
            let [crc, replays, recoveries] = newer_links(raw, device)?;
            sample.nvlink_crc = crc;
            sample.nvlink_replays = replays;
            sample.nvlink_recoveries = recoveries;
        }
    }
    Ok(sample)
}

const SHUTDOWN: u32 = nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN;
const SLOWDOWN: u32 = nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN;

fn is_silent<T>(found: &Answer<T>) -> bool {
    found.as_ref().is_err_and(Error::is_silence)
}

/// The links, and those that are down. A link that was configured off has no state.
fn nvlinks(raw: &Raw, device: Device, sample: &mut Sample) -> Answer<()> {
    for link in 0..MAX_LINKS {
        match optional(raw.link_state(device, link))? {
            Some(state) => {
                sample.nvlinks |= 1 << link;
                sample.nvlinks_down |= u64::from(state != 1) << link;
            }
            // Without a first link there are none.
            None if link == 0 => return Ok(()),
            None => {}
        }
    }
    Ok(())
}

/// The counters of NVLink 5, over all links.
fn newer_links(raw: &Raw, device: Device) -> Answer<[Option<u64>; 3]> {
    let links = MAX_LINKS as usize;
    let asked: Vec<Ask> = PER_LINK
        .iter()
        .flat_map(|&field| (0..MAX_LINKS).map(move |link| (field, link)))
        .collect();
    let found = optional(raw.fields(device, &asked))?.unwrap_or_default();
    Ok([0, 1, 2].map(|nth| {
        let counts = found.iter().skip(nth * links).take(links);
        let known: Vec<u64> = counts.filter_map(|count| count.clone().ok()).collect();
        let sum = known
            .iter()
            .fold(0u64, |sum, count| sum.saturating_add(*count));
        (!known.is_empty()).then_some(sum)
    }))
}
