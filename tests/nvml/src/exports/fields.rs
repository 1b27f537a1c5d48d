//! Field values: many figures in one call, each with its own return code.

use std::ffi::c_int;

use nvml::field_id as id;
use nvml::{nvmlDevice_t, nvmlFieldValue_st, nvmlValue_st};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::View;
use super::{Block, gpu, nvlink, nvml, power};
use crate::latency::Cost::Firmware;
use crate::state::{Link, now_us};

/// A value with its type.
#[derive(Clone, Copy)]
enum Value {
    Word(u32),
    Long(u64),
    Signed(i32),
}

/// The counters that have a field for each link, by their first fields: links 0 to 5, links 6 to 11,
/// and all links.
const PER_LINK: [(u32, u32, u32, u32); 4] = [
    (
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0,
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6,
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT,
    ),
    (
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0,
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6,
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA,
    ),
    (
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0,
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6,
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY,
    ),
    (
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0,
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6,
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY,
    ),
];

/// How long reasons for lower clocks held, in nanoseconds. Drivers from 580.82 on have these numbers;
/// the bindings have those of before (NVIDIA's "known issues" of NVML).
const SW_THERMAL: u32 = 269;
const HW_THERMAL: u32 = 270;
const HW_POWER_BRAKE: u32 = 271;

/// All links, as a scope.
const ALL_LINKS: u32 = u32::MAX;

/// The sum of `count` over the links of a scope.
fn over_links(view: &View<'_>, scope: u32, count: impl Fn(&Link) -> u64) -> Answer<Value> {
    let links = nvlink::links(view)?;
    let sum = match scope {
        ALL_LINKS => links.iter().map(count).sum(),
        one => count(links.get(one as usize).ok_or(code::INVALID)?),
    };
    Ok(Value::Long(sum))
}

/// Fields of boards before NVLink 5, with one field for each link.
fn per_link(view: &View<'_>, field: u32) -> Option<Answer<Value>> {
    for (first, second, total, counter) in PER_LINK {
        let scope = match field {
            f if f == total => ALL_LINKS,
            f if (first..first + 6).contains(&f) => f - first,
            f if (second..second + 6).contains(&f) => f - second + 6,
            _ => continue,
        };
        let count = |link: &Link| nvlink::counter(link, counter).unwrap_or(0);
        return Some(match nvlink::counts_by_field(view) {
            true => Err(code::UNSUPPORTED),
            false => over_links(view, scope, count),
        });
    }
    let ecc = id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0
        ..=id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL;
    ecc.contains(&field).then(|| {
        let scope = match field {
            id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL => ALL_LINKS,
            one => one - id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0,
        };
        over_links(view, scope, |link| link.ecc_data)
    })
}

/// NVLink fields whose scope is the link.
fn scoped_link(view: &View<'_>, field: u32, scope: u32) -> Option<Answer<Value>> {
    let new = nvlink::counts_by_field(view);
    let old_only = |answer: Answer<Value>| if new { Err(code::UNSUPPORTED) } else { answer };
    let new_only = |answer: Answer<Value>| if new { answer } else { Err(code::UNSUPPORTED) };
    let sum = |count: fn(&Link) -> u64| over_links(view, scope, count);
    Some(match field {
        id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => old_only(sum(|l| l.replay)),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => old_only(sum(|l| l.recovery)),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => old_only(sum(|l| l.crc_flit + l.crc_data)),
        id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS => new_only(sum(|l| l.crc_flit + l.crc_data)),
        id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS => new_only(sum(|l| l.ecc_data)),
        id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS => new_only(sum(|l| l.replay)),
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
        | id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS => {
            new_only(sum(|l| l.recovery))
        }
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS => {
            new_only(sum(|l| l.down.into()))
        }
        id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS
        | id::NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS
        | id::NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS
        | id::NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS
        | id::NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS
        | id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS => new_only(sum(|_| 0)),
        id::NVML_FI_DEV_NVLINK_GET_SPEED => {
            nvlink::is_up(view, scope).map(|up| Value::Word(u32::from(up) * view.board.nvlink[1]))
        }
        id::NVML_FI_DEV_NVLINK_GET_STATE => {
            nvlink::is_up(view, scope).map(|up| Value::Word(up.into()))
        }
        id::NVML_FI_DEV_NVLINK_GET_VERSION => {
            nvlink::link(view, scope).map(|_| Value::Word(view.board.nvlink[0]))
        }
        id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID => {
            nvlink::remote_number(view, scope).map(Value::Word)
        }
        id::NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT => nvlink::links(view).map(|links| {
            let switched = view.kind.paired_with(view.index).is_none();
            Value::Word(u32::from(switched) * links.len() as u32)
        }),
        id::NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(Value::Word(view.kind.links() as u32)),
        id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => {
            nvlink::links(view).map(|_| Value::Word(view.board.nvlink[1]))
        }
        _ => return None,
    })
}

/// ECC, retired pages and remapped rows.
fn memory(view: &View<'_>, field: u32) -> Option<Answer<Value>> {
    let (gpu, now, ever) = (view.gpu, &view.gpu.volatile, &view.gpu.aggregate);
    let counted = |count: u64| match gpu.ecc[0] {
        0 => Err(code::UNSUPPORTED),
        _ => Ok(Value::Long(count)),
    };
    let rows = |count: u32| match view.board.row_banks > 0 && !gpu.mig_on() {
        true => Ok(Value::Word(count)),
        false => Err(code::UNSUPPORTED),
    };
    let pages = |count: usize| match view.board.retires_pages() {
        true => Ok(Value::Word(count as u32)),
        false => Err(code::UNSUPPORTED),
    };
    let known = || gpu.pages.iter().take(gpu.page_count as usize);
    Some(match field {
        id::NVML_FI_DEV_ECC_CURRENT => Ok(Value::Word(gpu.ecc[0])),
        id::NVML_FI_DEV_ECC_PENDING => Ok(Value::Word(gpu.ecc[1])),
        id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => counted(now.corrected()),
        id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL => counted(now.uncorrected()),
        id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => counted(ever.corrected()),
        id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => counted(ever.uncorrected()),
        id::NVML_FI_DEV_ECC_SBE_VOL_DEV => counted(now.dram_corrected),
        id::NVML_FI_DEV_ECC_DBE_VOL_DEV => counted(now.dram_uncorrected),
        id::NVML_FI_DEV_ECC_SBE_AGG_DEV => counted(ever.dram_corrected),
        id::NVML_FI_DEV_ECC_DBE_AGG_DEV => counted(ever.dram_uncorrected),
        id::NVML_FI_DEV_RETIRED_SBE => pages(known().filter(|page| page.cause == 0).count()),
        id::NVML_FI_DEV_RETIRED_DBE => pages(known().filter(|page| page.cause == 1).count()),
        id::NVML_FI_DEV_RETIRED_PENDING => pages(known().any(|page| page.pending != 0).into()),
        id::NVML_FI_DEV_REMAPPED_COR => rows(gpu.rows_corrected),
        id::NVML_FI_DEV_REMAPPED_UNC => rows(gpu.rows_uncorrected),
        id::NVML_FI_DEV_REMAPPED_PENDING => rows(gpu.rows_pending),
        id::NVML_FI_DEV_REMAPPED_FAILURE => rows(gpu.rows_failed),
        _ => return None,
    })
}

/// Power, temperature, PCIe, resets and the rest.
fn other(view: &View<'_>, field: u32, scope: u32) -> Answer<Value> {
    let (gpu, board) = (view.gpu, view.board);
    let [least, default, greatest] = power::limits(board);
    // Scope 0 is the GPU; module and memory power are measured on no simulated board.
    let of_gpu = |milliwatts: u32| match scope {
        0 => Ok(Value::Word(milliwatts)),
        _ => Err(code::UNSUPPORTED),
    };
    let held_by = |reason: u32| match gpu.throttle & reason {
        0 => Ok(Value::Long(0)),
        _ => Ok(Value::Long(gpu.throttled_ns(now_us()))),
    };
    let margin = |threshold: u32| power::margin(board, threshold).map(Value::Signed);
    match field {
        id::NVML_FI_DEV_MEMORY_TEMP => power::memory_celsius(view).map(Value::Word),
        id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION | id::NVML_FI_DEV_ENERGY => {
            Ok(Value::Long(gpu.energy_mj(board, now_us())))
        }
        id::NVML_FI_DEV_POWER_AVERAGE | id::NVML_FI_DEV_POWER_INSTANT => {
            of_gpu(gpu.power_mw(board))
        }
        id::NVML_FI_DEV_POWER_MIN_LIMIT => of_gpu(least),
        id::NVML_FI_DEV_POWER_MAX_LIMIT => of_gpu(greatest),
        id::NVML_FI_DEV_POWER_DEFAULT_LIMIT => of_gpu(default),
        id::NVML_FI_DEV_POWER_CURRENT_LIMIT | id::NVML_FI_DEV_POWER_REQUESTED_LIMIT => {
            of_gpu(gpu.power_limit_mw)
        }
        id::NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT => margin(0),
        id::NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT => margin(1),
        id::NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT => margin(2),
        id::NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT => margin(3),
        id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => Ok(Value::Long(gpu.pcie_replays)),
        id::NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED | id::NVML_FI_DEV_PCIE_COUNT_BAD_TLP => {
            Ok(Value::Long(gpu.pcie_replays))
        }
        id::NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS => Ok(Value::Long(gpu.pcie_replays)),
        id::NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR..=id::NVML_FI_DEV_PCIE_COUNT_LANE_ERROR => {
            Ok(Value::Long(0))
        }
        id::NVML_FI_DEV_C2C_LINK_COUNT => Ok(Value::Word(0)),
        id::NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED => Ok(Value::Word(
            (board.mig.is_some() && !board.mig_needs_reset).into(),
        )),
        SW_THERMAL => Ok(Value::Long(0)),
        HW_THERMAL => held_by(nvml::nvmlClocksThrottleReasonHwThermalSlowdown),
        HW_POWER_BRAKE => held_by(nvml::nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        id::NVML_FI_DEV_RESET_STATUS => Ok(Value::Word(gpu.reset_required)),
        id::NVML_FI_DEV_DRAIN_AND_RESET_STATUS => Ok(Value::Word(
            (gpu.recovery_action == crate::fault::DRAIN_AND_RESET).into(),
        )),
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Ok(Value::Word(gpu.recovery_action)),
        _ => Err(code::UNSUPPORTED),
    }
}

fn value(view: &View<'_>, field: u32, scope: u32) -> Answer<Value> {
    if field == 0 || field >= id::NVML_FI_MAX {
        return Err(code::INVALID);
    }
    let links = || per_link(view, field).or_else(|| scoped_link(view, field, scope));
    let found = memory(view, field).or_else(links);
    found.unwrap_or_else(|| other(view, field, scope))
}

nvml! {
    fn nvmlDeviceGetFieldValues(
        device: nvmlDevice_t,
        count: c_int,
        values: Block<nvmlFieldValue_st>,
    ) {
        let count = usize::try_from(count).ok().filter(|&n| n > 0).ok_or(code::INVALID)?;
        let asked: Vec<_> = (0..count).map(|n| values.at(n)).collect::<Answer<_>>()?;
        let found = gpu(device, Firmware, |view| {
            let each = asked.iter().map(|ask| value(&view, ask.fieldId, ask.scopeId));
            Ok(each.collect::<Vec<_>>())
        })?;
        let now = now_us().cast_signed();
        for (index, (ask, found)) in asked.iter().zip(found).enumerate() {
            let (kind, bits, result) = match found {
                Ok(Value::Word(word)) => (
                    nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
                    word.into(),
                    code::OK,
                ),
                Ok(Value::Long(long)) => (
                    nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                    long,
                    code::OK,
                ),
                Ok(Value::Signed(word)) => (
                    nvml::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT,
                    i64::from(word).cast_unsigned(),
                    code::OK,
                ),
                Err(error) => (nvml::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE, 0, error),
            };
            values.put(index, nvmlFieldValue_st {
                fieldId: ask.fieldId,
                scopeId: ask.scopeId,
                timestamp: now,
                latencyUsec: 10,
                valueType: kind,
                nvmlReturn: result,
                // Little-endian: the low word is the value of the shorter types.
                value: nvmlValue_st { ullVal: bits },
            })?;
        }
        Ok(())
    }
    fn nvmlDeviceClearFieldValues(
        device: nvmlDevice_t,
        _count: c_int,
        _values: Block<nvmlFieldValue_st>,
    ) {
        gpu(device, Firmware, |_| Ok(()))
    }
}
