//! Clocks, performance state and why clocks are not higher.

use std::ffi::{c_uint, c_ulonglong};

use nvml::{nvmlDevice_t, nvmlViolationTime_st};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer, set};
use super::{Block, Out, gpu, nvml};
use crate::latency::Cost::Driver;
use crate::model::Board;
use crate::state::now_us;

/// Which of graphics, memory and video clock a clock type means.
fn which(kind: c_uint) -> Answer<usize> {
    match kind {
        nvml::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | nvml::nvmlClockType_enum_NVML_CLOCK_SM => {
            Ok(0)
        }
        nvml::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(1),
        nvml::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(2),
        _ => Err(code::INVALID),
    }
}

/// The clocks that applications get: graphics, memory.
fn application(view: &View<'_>, kind: c_uint, default: bool) -> Answer<c_uint> {
    let which = match which(kind)? {
        2 => return Err(code::UNSUPPORTED),
        which => which,
    };
    let set = view.gpu.app_clocks[which];
    let built_in = [view.board.app_clock, view.board.clocks[1]][which];
    Ok(if default || set == 0 { built_in } else { set })
}

/// Supported graphics clocks, from the highest down.
fn steps(board: &Board) -> Vec<c_uint> {
    let [lowest, step] = board.clock_steps;
    let highest = board.clocks[0];
    let count = (highest - lowest) / step;
    (0..=count).map(|n| highest - n * step).collect()
}

fn lock(device: nvmlDevice_t, memory: bool, low: c_uint, high: c_uint) -> Answer<()> {
    set(device, |gpu, board| {
        let most = board.clocks[usize::from(memory)];
        if low > high || low > most {
            return Err(code::INVALID);
        }
        let place = match memory {
            true => &mut gpu.memory_clock_lock,
            false => &mut gpu.clock_lock,
        };
        *place = [low, high.min(most)];
        Ok(())
    })
}

nvml! {
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: c_uint, out: Out<c_uint>) {
        let which = which(kind)?;
        answer(device, &out, Driver, |view| Ok(view.gpu.clocks(view.board)[which]))
    }
    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: c_uint, out: Out<c_uint>) {
        let which = which(kind)?;
        answer(device, &out, Driver, |view| Ok(view.board.clocks[which]))
    }
    fn nvmlDeviceGetClock(
        device: nvmlDevice_t,
        kind: c_uint,
        id: c_uint,
        out: Out<c_uint>,
    ) {
        let number = which(kind)?;
        answer(device, &out, Driver, |view| match id {
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => Ok(view.gpu.clocks(view.board)[number]),
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_APP_CLOCK_TARGET => application(&view, kind, false),
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_APP_CLOCK_DEFAULT => application(&view, kind, true),
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_CUSTOMER_BOOST_MAX => Ok(view.board.clocks[number]),
            _ => Err(code::INVALID),
        })
    }
    fn nvmlDeviceGetMaxCustomerBoostClock(device: nvmlDevice_t, kind: c_uint, out: Out<c_uint>) {
        let which = which(kind)?;
        answer(device, &out, Driver, |view| match which {
            0 => Ok(view.board.clocks[0]),
            _ => Err(code::UNSUPPORTED),
        })
    }
    fn nvmlDeviceGetApplicationsClock(device: nvmlDevice_t, kind: c_uint, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| application(&view, kind, false))
    }
    fn nvmlDeviceGetDefaultApplicationsClock(
        device: nvmlDevice_t,
        kind: c_uint,
        out: Out<c_uint>,
    ) {
        answer(device, &out, Driver, |view| application(&view, kind, true))
    }
    fn nvmlDeviceSetApplicationsClocks(device: nvmlDevice_t, memory: c_uint, graphics: c_uint) {
        set(device, |gpu, board| {
            if memory != board.clocks[1] || !steps(board).contains(&graphics) {
                return Err(code::INVALID);
            }
            gpu.app_clocks = [graphics, memory];
            Ok(())
        })
    }
    fn nvmlDeviceResetApplicationsClocks(device: nvmlDevice_t) {
        set(device, |gpu, _| {
            gpu.app_clocks = [0, 0];
            Ok(())
        })
    }
    fn nvmlDeviceSetGpuLockedClocks(device: nvmlDevice_t, low: c_uint, high: c_uint) {
        lock(device, false, low, high)
    }
    fn nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t) {
        set(device, |gpu, _| {
            gpu.clock_lock = [0, 0];
            Ok(())
        })
    }
    fn nvmlDeviceSetMemoryLockedClocks(device: nvmlDevice_t, low: c_uint, high: c_uint) {
        lock(device, true, low, high)
    }
    fn nvmlDeviceResetMemoryLockedClocks(device: nvmlDevice_t) {
        set(device, |gpu, _| {
            gpu.memory_clock_lock = [0, 0];
            Ok(())
        })
    }
    fn nvmlDeviceGetSupportedMemoryClocks(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        clocks: Block<c_uint>,
    ) {
        let clock = gpu(device, Driver, |view| Ok(view.board.clocks[1]))?;
        clocks.list_or_count(&count, &[clock])
    }
    fn nvmlDeviceGetSupportedGraphicsClocks(
        device: nvmlDevice_t,
        memory: c_uint,
        count: Out<c_uint>,
        clocks: Block<c_uint>,
    ) {
        let board = gpu(device, Driver, |view| Ok(view.board))?;
        if memory != board.clocks[1] {
            return Err(code::NOT_FOUND);
        }
        clocks.list_or_count(&count, &steps(board))
    }
    fn nvmlDeviceGetMinMaxClockOfPState(
        device: nvmlDevice_t,
        kind: c_uint,
        state: c_uint,
        low: Out<c_uint>,
        high: Out<c_uint>,
    ) {
        let which = which(kind)?;
        let board = gpu(device, Driver, |view| Ok(view.board))?;
        if state != 0 {
            return Err(code::INVALID);
        }
        low.set([board.clock_steps[0], board.clocks[1], board.idle_clocks[2]][which])?;
        high.set(board.clocks[which])
    }
    fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, performance)
    }
    fn nvmlDeviceGetPowerState(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, performance)
    }
    fn nvmlDeviceGetCurrentClocksEventReasons(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.reasons(view.board)))
    }
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.reasons(view.board)))
    }
    fn nvmlDeviceGetSupportedClocksEventReasons(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Driver, |_| Ok(0x1FF))
    }
    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Driver, |_| Ok(0x1FF))
    }
    fn nvmlDeviceGetViolationStatus(
        device: nvmlDevice_t,
        policy: c_uint,
        out: Out<nvmlViolationTime_st>,
    ) {
        answer(device, &out, Driver, |view| {
            let now = now_us();
            let hardware = matches!(
                policy,
                nvml::nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL
                    | nvml::nvmlPerfPolicyType_enum_NVML_PERF_POLICY_RELIABILITY
            );
            match policy {
                nvml::nvmlPerfPolicyType_enum_NVML_PERF_POLICY_COUNT.. => Err(code::INVALID),
                _ => Ok(nvmlViolationTime_st {
                    referenceTime: now,
                    violationTime: if hardware { view.gpu.throttled_ns(now) } else { 0 },
                }),
            }
        })
    }
    fn nvmlDeviceGetAutoBoostedClocksEnabled(
        device: nvmlDevice_t,
        _enabled: Out<c_uint>,
        _default: Out<c_uint>,
    ) {
        gpu(device, Driver, |_| Err(code::UNSUPPORTED))
    }
}

/// P0 under load and at idle: data center GPUs keep their memory clock.
#[expect(clippy::needless_pass_by_value, reason = "the shape of a query")]
fn performance(view: View<'_>) -> Answer<c_uint> {
    let low_memory = view.board.idle_clocks[1] != view.board.clocks[1];
    Ok(if low_memory && view.gpu.load() == 0 {
        8
    } else {
        0
    })
}
