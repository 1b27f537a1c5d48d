//! The PCIe link.

use std::ffi::{c_int, c_uint};

use nvml::nvmlDevice_t;
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer};
use super::{Out, nvml};
use crate::latency::Cost::{Driver, Firmware};

/// Generation and width as they are now.
fn current(view: &View<'_>) -> [u32; 2] {
    let full = [view.board.pcie_gen, 16];
    let less = view.gpu.pcie_degraded;
    [0, 1].map(|i| {
        if less[i] == 0 {
            full[i]
        } else {
            less[i].min(full[i])
        }
    })
}

/// Megabits per second of a lane, by generation.
fn lane_speed(generation: u32) -> u32 {
    match generation {
        0 | 1 => 2500,
        2 => 5000,
        3 => 8000,
        4 => 16000,
        _ => 32000,
    }
}

fn generation(device: nvmlDevice_t, out: &Out<c_uint>) -> Answer<()> {
    answer(device, out, Driver, |view| Ok(view.board.pcie_gen))
}

nvml! {
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, out: Out<c_uint>) {
        generation(device, &out)
    }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, out: Out<c_uint>) {
        generation(device, &out)
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |_| Ok(16))
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(current(&view)[0]))
    }
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(current(&view)[1]))
    }
    fn nvmlDeviceGetPcieLinkMaxSpeed(device: nvmlDevice_t, out: Out<c_uint>) {
        // The speeds' constants count as the generations do.
        generation(device, &out)
    }
    fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(lane_speed(current(&view)[0])))
    }
    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, out: Out<c_uint>) {
        if counter >= nvml::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT {
            return Err(code::INVALID);
        }
        // KB/s: a busy GPU moves some GB/s.
        answer(device, &out, Firmware, |view| Ok(view.gpu.load() * 20_000 + 400))
    }
    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.pcie_replays as c_uint))
    }
    fn nvmlDeviceGetAdaptiveClockInfoStatus(device: nvmlDevice_t, _out: Out<c_int>) {
        super::gpu(device, Driver, |_| Err(code::UNSUPPORTED))
    }
}
