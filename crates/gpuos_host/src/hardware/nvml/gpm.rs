//! How busy GPU instances are: what NVML's counters (GPM) say of the time between two calls. Of each instance the
//! counters of the last call are kept, and never compared with those of another one that has its number by now.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as nvml;

use super::mig::{self, on};
use super::raw::{Device, Raw};
use super::raw_gpm::Counters;
use super::{Answer, Error, Load};

/// NVML renews its counters that often (documentation of `nvmlGpmMetricsGet`).
const LEAST: Duration = Duration::from_millis(100);

/// What tells an instance from another one that has its number after it. UUIDs of MIG devices do not: NVIDIA's
/// driver makes them from the GPU's UUID and the instance's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// The so-manyeth that was made here.
    Made(u64),
    /// One that was not made here, after so many changes.
    Found(u64),
}

struct Sample {
    who: Who,
    at: Instant,
    counters: Counters,
    /// What the call that took them gave.
    load: Answer<Option<Load>>,
}

/// What is kept of one GPU. No lock is held over a call of the driver but `kept`, which only [`Gpm::loads`] takes.
#[derive(Default)]
pub(super) struct Gpm {
    supported: OnceLock<bool>,
    /// Changes of instances that were not made here, perhaps.
    changes: AtomicU64,
    /// By id, the instances that were made here, with a number that none had before.
    made: Mutex<BTreeMap<u32, u64>>,
    samples: Mutex<BTreeMap<u32, Sample>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpm {
    /// The driver says that instances were made or destroyed, by anybody.
    pub(super) fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed)
    }

    /// An instance was made here.
    pub(super) fn made(&self, gi: u32) {
        let serial = self.changed();
        lock(&self.made).insert(gi, serial);
    }

    /// An instance is about to be destroyed here.
    pub(super) fn going(&self, gi: u32) {
        self.changed();
        lock(&self.made).remove(&gi);
    }

    fn who(&self, gi: u32) -> Who {
        match lock(&self.made).get(&gi) {
            Some(serial) => Who::Made(*serial),
            None => Who::Found(self.changes.load(Ordering::Relaxed)),
        }
    }

    fn is_supported(&self, raw: &Raw, device: Device) -> Answer<bool> {
        if let Some(known) = self.supported.get() {
            return Ok(*known);
        }
        let told = raw.has_gpm(device)?;
        Ok(*self.supported.get_or_init(|| told))
    }

    /// [`super::GpuLibrary::mig_load`].
    pub(super) fn loads(
        &self,
        raw: &Arc<Raw>,
        device: Device,
    ) -> Answer<Vec<(u32, Answer<Option<Load>>)>> {
        match on(raw, device) {
            Err(Error::NotSupported) => {
                // What comes when MIG mode is on again is new.
                lock(&self.samples).clear();
                return Ok(Vec::new());
            }
            other => other?,
        }
        if !self.is_supported(raw, device)? {
            return Err(Error::NotSupported);
        }
        let there = mig::instances_in_use(raw, device)?;
        let mut kept = lock(&self.samples);
        kept.retain(|gi, _| there.contains(gi));
        let each = there.into_iter();
        Ok(each
            .map(|gi| (gi, self.load(raw, device, gi, &mut kept).map_err(absent)))
            .collect())
    }

    fn load(
        &self,
        raw: &Arc<Raw>,
        device: Device,
        gi: u32,
        kept: &mut BTreeMap<u32, Sample>,
    ) -> Answer<Option<Load>> {
        let who = self.who(gi);
        let before = kept.remove(&gi).filter(|kept| kept.who == who);
        if let Some(young) = before.as_ref().filter(|kept| kept.at.elapsed() < LEAST) {
            let load = young.load.clone();
            kept.extend(before.map(|kept| (gi, kept)));
            return load;
        }
        let counters = Counters::of_instance(raw, device, gi)?;
        let load = match &before {
            Some(before) => between(&before.counters, &counters).map(Some),
            None => Ok(None),
        };
        // Changed since: whose counters these are is not known.
        if self.who(gi) != who {
            return Ok(None);
        }
        let at = Instant::now();
        let new = Sample {
            who,
            at,
            counters,
            load: load.clone(),
        };
        kept.insert(gi, new);
        load
    }
}

fn between(earlier: &Counters, later: &Counters) -> Answer<Load> {
    let [sm, memory] = later.since(
        earlier,
        [
            nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
            nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL,
        ],
    )?;
    Ok(Load {
        sm: sm.map_err(absent).and_then(share),
        memory: memory.map_err(absent).and_then(share),
    })
}

/// A percentage of NVML as a share. Counters that were set back in between give anything.
fn share(percent: f64) -> Answer<f64> {
    // A little over is rounding of counters that are read one after the other.
    match (0.0..=105.0).contains(&percent) {
        true => Ok(percent.min(100.0) / 100.0),
        false => Err(Error::Refused(format!(
            "NVML's counters give {percent} %, which is no share"
        ))),
    }
}

/// A library without the function is one that does not support it.
fn absent(error: Error) -> Error {
    match error {
        Error::Symbol(_) => Error::NotSupported,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_share_is_no_figure() {
        assert_eq!(share(0.0), Ok(0.0));
        assert_eq!(share(40.0), Ok(0.4));
        assert_eq!(share(100.5), Ok(1.0));
        for wild in [-1.0, 1e9, f64::NAN, f64::INFINITY] {
            assert!(share(wild).is_err(), "{wild}");
        }
    }

    #[test]
    fn an_instance_is_not_the_one_that_had_its_number() {
        let gpm = Gpm::default();
        let found = gpm.who(1);
        gpm.made(1);
        let made = gpm.who(1);
        gpm.changed();
        assert!(gpm.who(1) == made && found != made);
        gpm.going(1);
        gpm.made(1);
        let again = gpm.who(1);
        gpm.going(1);
        assert!(again != made && gpm.who(1) != found && gpm.who(1) != again);
    }
}
