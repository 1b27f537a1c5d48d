//! Temperature, power and energy.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml::{nvmlDevice_t, nvmlMarginTemperature_v1_t, nvmlPowerValue_v2_t, nvmlTemperature_v1_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer, set};
use super::{Out, Versioned, gpu, nvml};
use crate::latency::Cost::{Driver, Firmware};
use crate::model::Board;
use crate::state::now_us;

/// The power limits that the board takes: least, default, greatest, in milliwatts.
pub(crate) fn limits(board: &Board) -> [u32; 3] {
    let [_, least, default, greatest] = board.watts;
    [least, default, greatest].map(|watts| watts * 1000)
}

/// Degrees of the memory, where it has a sensor.
pub(crate) fn memory_celsius(view: &View<'_>) -> Answer<u32> {
    match view.board.memory_sensor {
        true => Ok(view.gpu.celsius(view.board) + 8),
        false => Err(code::UNSUPPORTED),
    }
}

/// How far a threshold lies above the greatest operating temperature: negative margins, as
/// `T.Limit` gives them.
pub(crate) fn margin(board: &Board, threshold: u32) -> Answer<i32> {
    let [_, _, most, slowdown, shutdown, memory] = board.celsius.map(u32::cast_signed);
    match (board.margins, threshold) {
        (false, _) => Err(code::UNSUPPORTED),
        (_, nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN) => {
            Ok(most - shutdown)
        }
        (_, nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) => {
            Ok(most - slowdown)
        }
        (_, nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX)
            if memory > 0 =>
        {
            Ok(0)
        }
        (_, nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX) => Ok(0),
        _ => Err(code::UNSUPPORTED),
    }
}

fn threshold(board: &Board, threshold: c_uint) -> Answer<c_uint> {
    let [_, _, most, slowdown, shutdown, memory] = board.celsius;
    let found = match threshold {
        nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => shutdown,
        nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => slowdown,
        nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => memory,
        nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX => most,
        nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT.. => {
            return Err(code::INVALID);
        }
        _ => 0,
    };
    match found {
        0 => Err(code::UNSUPPORTED),
        found => Ok(found),
    }
}

fn set_limit(device: nvmlDevice_t, milliwatts: c_uint) -> Answer<()> {
    set(device, |gpu, board| {
        let [least, _, greatest] = limits(board);
        if !(least..=greatest).contains(&milliwatts) {
            return Err(code::INVALID);
        }
        gpu.power_limit_mw = milliwatts;
        Ok(())
    })
}

nvml! {
    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: c_uint, out: Out<c_uint>) {
        if sensor != nvml::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(code::INVALID);
        }
        answer(device, &out, Driver, |view| Ok(view.gpu.celsius(view.board)))
    }
    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, out: Versioned<nvmlTemperature_v1_t>) {
        out.check(1)?;
        let sensor = out.get()?.sensorType;
        if sensor != nvml::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(code::INVALID);
        }
        let found = gpu(device, Driver, |view| Ok(view.gpu.celsius(view.board)))?;
        out.set(nvmlTemperature_v1_t {
            version: 0,
            sensorType: sensor,
            temperature: found.cast_signed(),
        })
    }
    fn nvmlDeviceGetTemperatureThreshold(
        device: nvmlDevice_t,
        kind: c_uint,
        out: Out<c_uint>,
    ) {
        answer(device, &out, Driver, |view| threshold(view.board, kind))
    }
    fn nvmlDeviceSetTemperatureThreshold(
        device: nvmlDevice_t,
        _kind: c_uint,
        _celsius: Out<c_int>,
    ) {
        super::root_only(device)?;
        gpu(device, Driver, |_| Err(code::UNSUPPORTED))
    }
    fn nvmlDeviceGetMarginTemperature(
        device: nvmlDevice_t,
        out: Versioned<nvmlMarginTemperature_v1_t>,
    ) {
        out.check(1)?;
        let left = gpu(device, Driver, |view| match view.board.margins {
            false => Err(code::UNSUPPORTED),
            true => {
                let now = view.gpu.celsius(view.board).cast_signed();
                Ok(view.board.celsius[2].cast_signed() - now)
            }
        })?;
        out.set(nvmlMarginTemperature_v1_t { version: 0, marginTemperature: left })
    }
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Firmware, |view| Ok(view.gpu.power_mw(view.board)))
    }
    fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Firmware, |view| Ok(view.gpu.energy_mj(view.board, now_us())))
    }
    fn nvmlDeviceGetPowerManagementMode(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |_| Ok(1))
    }
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.power_limit_mw))
    }
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.power_limit_mw))
    }
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(limits(view.board)[1]))
    }
    fn nvmlDeviceGetPowerManagementLimitConstraints(
        device: nvmlDevice_t,
        least: Out<c_uint>,
        greatest: Out<c_uint>,
    ) {
        let [low, _, high] = gpu(device, Driver, |view| Ok(limits(view.board)))?;
        least.set(low)?;
        greatest.set(high)
    }
    fn nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, milliwatts: c_uint) {
        set_limit(device, milliwatts)
    }
    fn nvmlDeviceSetPowerManagementLimit_v2(
        device: nvmlDevice_t,
        value: Versioned<nvmlPowerValue_v2_t>,
    ) {
        value.check(2)?;
        let value = value.get()?;
        // Scope 0 is the GPU; the module's power is GB200's.
        match value.powerScope {
            0 => set_limit(device, value.powerValueMw),
            _ => Err(code::UNSUPPORTED),
        }
    }
    fn nvmlDeviceGetPowerSource(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |_| Ok(nvml::NVML_POWER_SOURCE_AC))
    }
    fn nvmlDeviceGetNumFans(device: nvmlDevice_t, out: Out<c_uint>) {
        // Boards that the chassis cools: 0 fans, and no speed.
        answer(device, &out, Driver, |view| Ok(view.board.fans))
    }
}
