//! GPM: counters of how busy a GPU or one of its instances is, Hopper and later. A sample holds the load of its
//! moment; a metric is the mean of two samples.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Mutex, PoisonError};

use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use super::call::{Answer, code};
use super::handle::{sample, sample_handle};
use super::memory::MEMORY_SHARE;
use super::session::{View, shared};
use super::{Out, Versioned, gpu, nvml};
use crate::latency::Cost::{Cached, Driver};

/// What a sample tells.
#[derive(Clone, Copy)]
struct Taken {
    /// The GPU by its index and, of an instance, the serial number.
    of: (usize, Option<u64>),
    load: u32,
}

/// The samples of this process, by the serial numbers in their handles.
struct Samples {
    made: u64,
    all: BTreeMap<u64, Option<Taken>>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples {
    made: 0,
    all: BTreeMap::new(),
});

fn samples<R>(work: impl FnOnce(&mut Samples) -> R) -> R {
    // Nothing in here panics between two changes that belong together.
    work(&mut SAMPLES.lock().unwrap_or_else(PoisonError::into_inner))
}

fn has_gpm(view: &View<'_>) -> bool {
    view.board.architecture >= nvml::NVML_DEVICE_ARCH_HOPPER
}

/// Fills a sample with what `look` finds on the GPU.
fn take(
    device: nvmlDevice_t,
    into: nvmlGpmSample_t,
    look: impl FnOnce(&View<'_>) -> Answer<(Option<u64>, u32)>,
) -> Answer<()> {
    shared()?;
    let serial = sample(into)?;
    if !samples(|s| s.all.contains_key(&serial)) {
        return Err(code::INVALID);
    }
    let taken = gpu(device, Driver, |view| match has_gpm(&view) {
        false => Err(code::UNSUPPORTED),
        true => look(&view).map(|(instance, load)| Taken {
            of: (view.index, instance),
            load,
        }),
    })?;
    samples(|s| match s.all.get_mut(&serial) {
        Some(place) => {
            *place = Some(taken);
            Ok(())
        }
        None => Err(code::INVALID),
    })
}

/// Percent of a metric and its names, by the load.
fn metric(id: c_uint, load: f64) -> Answer<(f64, &'static CStr, &'static CStr)> {
    Ok(match id {
        nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL => {
            (load, c"Graphics Util", c"Graphics Utilization")
        }
        nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL => (load, c"SM Util", c"SM Utilization"),
        nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL => {
            let used = load * f64::from(MEMORY_SHARE) / 100.0;
            (used, c"DRAM BW Util", c"DRAM Bandwidth Utilization")
        }
        _ => return Err(code::UNSUPPORTED),
    })
}

fn text(text: &'static CStr) -> *mut c_char {
    // Callers read it only, as with the driver's library.
    text.as_ptr().cast_mut()
}

fn fill(one: &mut nvmlGpmMetric_t, load: f64) {
    match metric(one.metricId, load) {
        Ok((value, short, long)) => {
            one.nvmlReturn = code::OK;
            one.value = value;
            one.metricInfo.shortName = text(short);
            one.metricInfo.longName = text(long);
            one.metricInfo.unit = text(c"%");
        }
        Err(error) => one.nvmlReturn = error,
    }
}

/// Versions of GPM's structures are plain numbers.
fn version<T>(given: &Versioned<T>, number: c_uint) -> Answer<()> {
    match given.version()? == number {
        true => Ok(()),
        false => Err(code::VERSION),
    }
}

nvml! {
    fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, out: Versioned<nvmlGpmSupport_t>) {
        shared()?;
        version(&out, nvml::NVML_GPM_SUPPORT_VERSION)?;
        let has = gpu(device, Cached, |view| Ok(has_gpm(&view)))?;
        out.set(nvmlGpmSupport_t { version: 0, isSupportedDevice: has.into() })
    }
    fn nvmlGpmSampleAlloc(out: Out<nvmlGpmSample_t>) {
        shared()?;
        if out.is_null() {
            return Err(code::INVALID);
        }
        let serial = samples(|s| {
            s.made += 1;
            s.all.insert(s.made, None);
            s.made
        });
        out.set(sample_handle(serial))
    }
    fn nvmlGpmSampleFree(handle: nvmlGpmSample_t) {
        shared()?;
        let serial = sample(handle)?;
        samples(|s| s.all.remove(&serial)).map(|_| ()).ok_or(code::INVALID)
    }
    fn nvmlGpmSampleGet(device: nvmlDevice_t, into: nvmlGpmSample_t) {
        take(device, into, |view| match view.gpu.mig_on() {
            true => Err(code::UNSUPPORTED),
            false => Ok((None, view.gpu.load())),
        })
    }
    fn nvmlGpmMigSampleGet(device: nvmlDevice_t, instance: c_uint, into: nvmlGpmSample_t) {
        take(device, into, |view| {
            if !view.gpu.mig_on() {
                return Err(code::UNSUPPORTED);
            }
            let mut all = view.gpu.gpu_instances().into_iter();
            let found = all.find(|one| one.id == instance).ok_or(code::INVALID)?;
            Ok((Some(found.serial), view.gpu.load_of(instance)))
        })
    }
    fn nvmlGpmMetricsGet(ask: Versioned<nvmlGpmMetricsGet_t>) {
        shared()?;
        version(&ask, nvml::NVML_GPM_METRICS_GET_VERSION)?;
        let mut asked = ask.get()?;
        let count = asked.numMetrics as usize;
        if count == 0 || count > asked.metrics.len() || asked.sample1 == asked.sample2 {
            return Err(code::INVALID);
        }
        let taken = |handle| {
            let serial = sample(handle)?;
            samples(|s| s.all.get(&serial).copied().flatten()).ok_or(code::INVALID)
        };
        let (first, second) = (taken(asked.sample1)?, taken(asked.sample2)?);
        if first.of != second.of {
            return Err(code::INVALID);
        }
        let load = f64::from(first.load + second.load) / 2.0;
        for one in &mut asked.metrics[..count] {
            fill(one, load);
        }
        ask.set(asked)
    }
}
