//! NVIDIA's library: whose GPUs it shows, and whether it answers.

use std::time::{Duration, Instant};

use gpuos_core::health::{Event, GpuHealth, number};

use super::{Owner, host};
use crate::gpus::Found;
use crate::work::Device;

/// The library counts as silent after so many seconds more than an interval.
const SILENT: Duration = Duration::from_secs(10);

impl Owner {
    pub(super) fn hear_library(&mut self, now: Instant) {
        let quiet = self.polled.unwrap_or(self.began);
        // A library that was never there is a trouble of its own, and no silence.
        let late = now.duration_since(quiet) > self.interval + SILENT;
        if late && !self.silent && !(self.found.is_empty() && self.pooled.is_empty()) {
            self.silent = true;
            let why = "NVIDIA's library does not answer; what is shown of GPUs is from before";
            self.trouble("library", Some(why.into()));
            self.apply(Event::LibrarySilent);
        }
    }

    pub(super) fn device(&mut self, gpu: u8, task: fn(Found) -> Device) {
        let known = self.known(gpu);
        if self.ports.device.send(task(known)).is_err() {
            tracing::error!("the thread for resets and checks has ended");
        }
    }

    /// Who a GPU is. One that the library never showed is told to commands by its number.
    pub(super) fn known(&self, gpu: u8) -> Found {
        let mut all = self.found.iter().chain(&self.pooled);
        let known = all.find(|found| found.gres == gpu).cloned();
        let index = number::pool_index(gpu).unwrap_or(gpu);
        known.unwrap_or(Found {
            gres: gpu,
            nvml: index,
            uuid: String::new(),
            name: String::new(),
            pci: index.to_string(),
        })
    }

    pub(super) fn library(&mut self, told: Result<Vec<Found>, String>) {
        match told {
            Ok(all) => {
                tracing::info!("{} GPUs: {}", all.len(), host::names(&all));
                let pooled = |gpu: &Found| number::is_of_pool(gpu.gres);
                let (pool, found): (Vec<Found>, Vec<Found>) = all.into_iter().partition(pooled);
                let most = found.iter().map(|gpu| gpu.gres + 1).max().unwrap_or(0);
                self.grow(usize::from(most));
                named(&mut self.found, found);
                named(&mut self.pooled, pool);
                let pool: Vec<u8> = self.pooled.iter().map(|gpu| gpu.gres).collect();
                pool.iter().for_each(|gpu| self.know_pooled(*gpu));
                let stays = |gpu: &u8, health: &GpuHealth| pool.contains(gpu) || !health.is_well();
                self.health.pool.retain(|gpu, health| stays(gpu, health));
                self.trouble("library", None);
                self.tell_limits();
            }
            Err(why) => {
                if self.troubles.get("library") != Some(&why) {
                    tracing::error!("{why}");
                    self.troubles.insert("library", why);
                }
            }
        }
    }

    /// Makes room for GPUs that were not known: NVIDIA's library and Slurm may count differently.
    pub(super) fn grow(&mut self, gpus: usize) {
        let gpus = gpus.min(gpuos_model::gpuset::MAX_GPUS);
        if gpus > self.health.gpus.len() {
            self.health.gpus.resize(gpus, Default::default());
            self.save(None);
        }
    }

    /// Makes room for a GPU of the pool. One that was not well when it left the pool stays known: it may be so still.
    pub(super) fn know_pooled(&mut self, gpu: u8) {
        if number::is_of_pool(gpu) && self.health.gpu(gpu).is_none() {
            self.health.pool.insert(gpu, Default::default());
            self.save(None);
        }
    }

    pub(super) fn polled(&mut self) {
        self.polled = Some(self.now());
        if self.silent {
            self.silent = false;
            self.trouble("library", None);
            self.apply(Event::LibraryBack);
        }
    }
}

/// A GPU that did not say who it is keeps the name that it had.
fn named(known: &mut Vec<Found>, now: Vec<Found>) {
    let before = std::mem::replace(known, now);
    for gpu in known.iter_mut().filter(|gpu| gpu.uuid.is_empty()) {
        if let Some(old) = before.iter().find(|old| old.gres == gpu.gres) {
            *gpu = old.clone();
        }
    }
}
