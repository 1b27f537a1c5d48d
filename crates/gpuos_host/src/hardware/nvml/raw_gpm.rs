//! NVML's C functions for GPM (counters of how busy a GPU is), with Rust's types. What makes the unsafe code
//! sound stands in [`super::raw`], and this for samples: NVML makes each buffer, exactly one [`Counters`] has
//! its handle, no copy of it leaves this file, and dropping frees it, once.

#![allow(unsafe_code, reason = "C functions of a library opened at run time")]

use std::sync::Arc;

use nvml_wrapper_sys::bindings as nvml;

use super::error::{Answer, Error};
use super::raw::{Device, Raw, answer, call, zeroed};

/// A buffer of NVML with the counters of one moment.
pub(super) struct Counters {
    raw: Arc<Raw>,
    handle: nvml::nvmlGpmSample_t,
}

// SAFETY: the buffer belongs to its owner alone, and NVML takes it in any thread.
unsafe impl Send for Counters {}

impl Drop for Counters {
    fn drop(&mut self) {
        let raw = &self.raw;
        // Nothing is to be done about a buffer that NVML does not take back.
        let _ = call!(raw, nvmlGpmSampleFree(self.handle));
    }
}

impl Counters {
    /// The counters of a GPU instance, by its id, now.
    pub(super) fn of_instance(raw: &Arc<Raw>, device: Device, gi: u32) -> Answer<Counters> {
        let mut handle = std::ptr::null_mut();
        call!(raw, nvmlGpmSampleAlloc(&raw mut handle))?;
        let raw = Arc::clone(raw);
        let counters = Counters { raw, handle };
        let raw = &counters.raw;
        call!(raw, nvmlGpmMigSampleGet(device.0, gi, counters.handle))?;
        Ok(counters)
    }

    /// Metrics of the time from `earlier` to these, by their ids; for each the value or why there is none.
    pub(super) fn since<const N: usize>(
        &self,
        earlier: &Counters,
        ids: [u32; N],
    ) -> Answer<[Answer<f64>; N]> {
        let mut ask = nvml::nvmlGpmMetricsGet_t {
            // The number alone: this structure's version does not hold its size.
            version: nvml::NVML_GPM_METRICS_GET_VERSION,
            numMetrics: N as u32,
            sample1: earlier.handle,
            sample2: self.handle,
            ..zeroed()
        };
        for (metric, id) in ask.metrics.iter_mut().zip(ids) {
            metric.metricId = id;
        }
        let raw = &self.raw;
        call!(raw, nvmlGpmMetricsGet(&raw mut ask))?;
        Ok(std::array::from_fn(|index| {
            let metric = &ask.metrics[index];
            answer("nvmlGpmMetricsGet", metric.nvmlReturn).map(|()| metric.value)
        }))
    }
}

impl Raw {
    /// Whether the GPU has GPM.
    pub(super) fn has_gpm(&self, device: Device) -> Answer<bool> {
        let mut support = nvml::nvmlGpmSupport_t {
            version: nvml::NVML_GPM_SUPPORT_VERSION,
            ..zeroed()
        };
        match call!(self, nvmlGpmQueryDeviceSupport(device.0, &raw mut support)) {
            Ok(()) => Ok(support.isSupportedDevice != 0),
            Err(Error::Symbol(_) | Error::NotSupported) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
