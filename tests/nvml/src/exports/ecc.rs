//! ECC: modes, and error counts by place.

use std::ffi::{c_uint, c_ulonglong};

use nvml::{nvmlDevice_t, nvmlEccErrorCounts_st, nvmlEccSramErrorStatus_v1_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer, set};
use super::{Out, Versioned, gpu, nvml, part};
use crate::latency::Cost::Driver;
use crate::state::Errors;

/// The counters of a kind: since the last reset, or since the board was made.
fn counters<'a>(view: &View<'a>, kind: c_uint) -> Answer<&'a Errors> {
    if view.gpu.ecc[0] == 0 {
        return Err(code::UNSUPPORTED);
    }
    match kind {
        nvml::nvmlEccCounterType_enum_NVML_VOLATILE_ECC => Ok(&view.gpu.volatile),
        nvml::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC => Ok(&view.gpu.aggregate),
        _ => Err(code::INVALID),
    }
}

/// Whether uncorrected errors are asked for.
fn uncorrected(kind: c_uint) -> Answer<bool> {
    match kind {
        nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => Ok(false),
        nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => Ok(true),
        _ => Err(code::INVALID),
    }
}

fn at_place(view: &View<'_>, errors: &Errors, bad: bool, place: c_uint) -> Answer<u64> {
    // Since Ampere all on-chip memories count as one; before, each had its own counter.
    let one_sram = view.board.architecture >= nvml::NVML_DEVICE_ARCH_AMPERE;
    let sram = if bad {
        errors.sram_uncorrected()
    } else {
        errors.sram_corrected
    };
    match place {
        nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM => Ok(match bad {
            true => errors.dram_uncorrected,
            false => errors.dram_corrected,
        }),
        nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM if one_sram => Ok(sram),
        nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L2_CACHE if !one_sram => Ok(sram),
        nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L1_CACHE
        | nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_REGISTER_FILE
            if !one_sram =>
        {
            Ok(0)
        }
        nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT.. => Err(code::INVALID),
        _ => Err(code::UNSUPPORTED),
    }
}

nvml! {
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        let [now, later] = gpu(device, Driver, |view| Ok(view.gpu.ecc))?;
        current.set(now)?;
        pending.set(later)
    }
    fn nvmlDeviceGetDefaultEccMode(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |_| Ok(1))
    }
    fn nvmlDeviceSetEccMode(device: nvmlDevice_t, mode: c_uint) {
        set(device, |gpu, _| match mode {
            0 | 1 => {
                gpu.ecc[1] = mode;
                Ok(())
            }
            _ => Err(code::INVALID),
        })
    }
    fn nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t,
        kind: c_uint,
        counter: c_uint,
        out: Out<c_ulonglong>,
    ) {
        let bad = uncorrected(kind)?;
        answer(device, &out, Driver, |view| {
            let errors = counters(&view, counter)?;
            Ok(if bad { errors.uncorrected() } else { errors.corrected() })
        })
    }
    fn nvmlDeviceGetDetailedEccErrors(
        device: nvmlDevice_t,
        kind: c_uint,
        counter: c_uint,
        out: Out<nvmlEccErrorCounts_st>,
    ) {
        let bad = uncorrected(kind)?;
        answer(device, &out, Driver, |view| {
            let errors = counters(&view, counter)?;
            Ok(nvmlEccErrorCounts_st {
                l1Cache: 0,
                l2Cache: if bad { errors.sram_uncorrected() } else { errors.sram_corrected },
                deviceMemory: if bad { errors.dram_uncorrected } else { errors.dram_corrected },
                registerFile: 0,
            })
        })
    }
    fn nvmlDeviceGetMemoryErrorCounter(
        device: nvmlDevice_t,
        kind: c_uint,
        counter: c_uint,
        place: c_uint,
        out: Out<c_ulonglong>,
    ) {
        let bad = uncorrected(kind)?;
        let sram = place == nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM;
        let volatile = counter == nvml::nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
        let found = part(device, Driver, |part| match part.mig {
            None => at_place(&part.whole, counters(&part.whole, counter)?, bad, place),
            // The one counter that MIG devices have.
            Some((instance, _)) if bad && sram && volatile => Ok(instance.sram_uncorrected),
            Some(_) => Err(code::UNSUPPORTED),
        })?;
        out.set(found)
    }
    fn nvmlDeviceGetSramEccErrorStatus(
        device: nvmlDevice_t,
        out: Versioned<nvmlEccSramErrorStatus_v1_t>,
    ) {
        out.check(1)?;
        let status = gpu(device, Driver, |view| {
            if view.board.architecture < nvml::NVML_DEVICE_ARCH_AMPERE || view.gpu.ecc[0] == 0 {
                return Err(code::UNSUPPORTED);
            }
            let (now, ever) = (&view.gpu.volatile, &view.gpu.aggregate);
            Ok(nvmlEccSramErrorStatus_v1_t {
                version: 0,
                aggregateUncParity: ever.sram_parity,
                aggregateUncSecDed: ever.sram_secded,
                aggregateCor: ever.sram_corrected,
                volatileUncParity: now.sram_parity,
                volatileUncSecDed: now.sram_secded,
                volatileCor: now.sram_corrected,
                aggregateUncBucketL2: ever.sram_uncorrected(),
                aggregateUncBucketSm: 0,
                aggregateUncBucketPcie: 0,
                aggregateUncBucketMcu: 0,
                aggregateUncBucketOther: 0,
                bThresholdExceeded: view.gpu.sram_threshold,
            })
        })?;
        out.set(status)
    }
    fn nvmlDeviceClearEccErrorCounts(device: nvmlDevice_t, counter: c_uint) {
        set(device, |gpu, _| {
            match counter {
                nvml::nvmlEccCounterType_enum_NVML_VOLATILE_ECC => gpu.volatile = Errors::default(),
                nvml::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC => {
                    gpu.aggregate = Errors::default();
                    gpu.sram_threshold = 0;
                }
                _ => return Err(code::INVALID),
            }
            Ok(())
        })
    }
}
