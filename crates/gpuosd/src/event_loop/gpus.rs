//! Who the GPUs are, and whether NVIDIA's library answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuos_core::health::Event;
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Effect, Effects, Now};
use crate::gpus::GpuIdentity;

/// The library counts as silent after so many seconds more than an interval.
const SILENT: Duration = Duration::from_secs(10);

/// What NVIDIA's library has shown of the GPUs.
pub struct Gpus {
    /// Those of GRES `gpu`.
    found: Vec<GpuIdentity>,
    /// Those of the pool.
    pooled: Vec<GpuIdentity>,
    /// Time between polls.
    interval: Duration,
    /// The last round of polls, or the daemon's start.
    last_poll: Instant,
    polled: bool,
    silent: bool,
    trouble: Option<String>,
}

impl Gpus {
    /// Nothing is known yet.
    pub fn new(interval: Duration, now: Instant) -> Gpus {
        Gpus {
            found: Vec::new(),
            pooled: Vec::new(),
            interval,
            last_poll: now,
            polled: false,
            silent: false,
            trouble: None,
        }
    }

    /// Those of GRES `gpu`; empty before the library has shown them.
    pub fn found(&self) -> &[GpuIdentity] {
        &self.found
    }

    /// Those of the pool.
    pub fn pooled(&self) -> &[GpuIdentity] {
        &self.pooled
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &GpuIdentity> {
        self.found.iter().chain(&self.pooled)
    }

    /// Whether the library has shown no GPU yet.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.pooled.is_empty()
    }

    /// Who a GPU is. One that the library never showed is told to commands by its number.
    pub fn known(&self, gpu: NodeGpu) -> GpuIdentity {
        let known = self.all().find(|found| found.number == gpu).cloned();
        let index = match gpu {
            NodeGpu::Gres(gpu) => gpu.index(),
            NodeGpu::Pool(gpu) => gpu.index(),
        };
        known.unwrap_or(GpuIdentity {
            number: gpu,
            nvml: NvmlIndex::new(index).unwrap_or(NvmlIndex::LAST),
            uuid: String::new(),
            name: String::new(),
            pci: index.to_string(),
        })
    }

    /// When the library has answered last.
    pub fn polled(&self) -> Option<Instant> {
        self.polled.then_some(self.last_poll)
    }

    /// Whether the library does not answer, or cannot be opened.
    pub fn is_unreachable(&self) -> bool {
        self.silent || self.trouble.is_some()
    }

    /// The library was opened, or why not.
    pub fn opened(&mut self, told: Result<Vec<GpuIdentity>, String>) -> Effects {
        let mut fx = Effects::default();
        match told {
            Ok(all) => {
                tracing::info!("{} GPUs: {}", all.len(), names(&all));
                let pooled = |gpu: &GpuIdentity| gpu.number.is_of_pool();
                let (pool, found): (Vec<GpuIdentity>, Vec<GpuIdentity>) =
                    all.into_iter().partition(pooled);
                let gres = found.iter().filter_map(|gpu| gpu.number.gres());
                let most = gres.map(|gpu| gpu.index() + 1).max().unwrap_or(0);
                fx.push(Effect::Grow(most));
                named(&mut self.found, found);
                named(&mut self.pooled, pool);
                let pool: Vec<NodeGpu> = self.pooled.iter().map(|gpu| gpu.number).collect();
                pool.iter()
                    .for_each(|gpu| fx.push(Effect::KnowPooled(*gpu)));
                fx.push(Effect::KeepPooled(pool));
                self.troubled(None, &mut fx);
                fx.push(Effect::PublishLimits);
            }
            Err(why) => {
                if self.trouble.as_ref() != Some(&why) {
                    tracing::error!("{why}");
                    self.troubled(Some(why), &mut fx);
                }
            }
        }
        fx
    }

    /// A round of polls has come to its end.
    pub fn answered(&mut self, now: Now) -> Effects {
        let mut fx = Effects::default();
        (self.polled, self.last_poll) = (true, now.at);
        if std::mem::take(&mut self.silent) {
            self.troubled(None, &mut fx);
            fx.push(Effect::Rules(Event::LibraryBack));
        }
        fx
    }

    /// Time went by.
    pub fn tick(&mut self, now: Now) -> Effects {
        let mut fx = Effects::default();
        // A library that was never there is a trouble of its own, and no silence.
        let late = now.at.duration_since(self.last_poll) > self.interval + SILENT;
        if late && !self.silent && !self.is_empty() {
            self.silent = true;
            let why = "NVIDIA's library does not answer; what is shown of GPUs is from before";
            self.troubled(Some(why.into()), &mut fx);
            fx.push(Effect::Rules(Event::LibrarySilent));
        }
        fx
    }

    fn troubled(&mut self, why: Option<String>, fx: &mut Effects) {
        self.trouble.clone_from(&why);
        fx.trouble("library", why);
    }
}

/// A GPU that did not say who it is keeps the name that it had.
fn named(known: &mut Vec<GpuIdentity>, now: Vec<GpuIdentity>) {
    let before = std::mem::replace(known, now);
    for gpu in known.iter_mut().filter(|gpu| gpu.uuid.is_empty()) {
        if let Some(old) = before.iter().find(|old| old.number == gpu.number) {
            *gpu = old.clone();
        }
    }
}

/// `8 x NVIDIA H100` and the like, for the log.
fn names(found: &[GpuIdentity]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in found {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let each = counts
        .iter()
        .map(|(name, count)| format!("{count} x {name}"));
    each.collect::<Vec<_>>().join(", ")
}
