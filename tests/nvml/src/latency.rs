//! How long calls take on real hardware. Off unless the node was made with it, or
//! `GPUOS_NVML_LATENCY=1` is set: tests need not wait.
//!
//! The figures are orders of magnitude, not measurements of one driver: calls that the library
//! answers from what it knows take about a microsecond, calls that ask the driver some hundred
//! microseconds, those that ask firmware or many links some milliseconds; making and destroying MIG
//! instances takes up to a second, as `nvidia-smi mig` shows.

use std::time::Duration;

/// What a call has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// Answered from what the library knows.
    Cached,
    /// Asks the driver.
    Driver,
    /// Asks firmware, or many units of the GPU.
    Firmware,
    /// Changes a setting.
    Set,
    /// Attaches to all GPUs.
    Init,
    /// Makes a MIG instance.
    Create,
    /// Destroys a MIG instance.
    Destroy,
    /// Switches MIG mode, or resets the GPU.
    Reset,
}

impl Cost {
    /// The time that it takes.
    pub const fn time(self) -> Duration {
        match self {
            Cost::Cached => Duration::from_micros(1),
            Cost::Driver => Duration::from_micros(200),
            Cost::Firmware => Duration::from_millis(3),
            Cost::Set => Duration::from_millis(10),
            Cost::Init => Duration::from_millis(60),
            Cost::Create => Duration::from_millis(250),
            Cost::Destroy => Duration::from_millis(1000),
            Cost::Reset => Duration::from_millis(2500),
        }
    }
}
