//! How much of their memory instances use: polled as GPUs are, and not known where the newest answer is old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::super::Owner;
use crate::mig::{Memories, Memory, Task};

/// An answer counts for three polls and so much longer, as that of a GPU does.
const GRACE: Duration = Duration::from_secs(5);

/// The newest answers.
#[derive(Default)]
pub(super) struct Polls {
    asked: Option<Instant>,
    /// GPUs that have not answered yet: a driver that hangs is not asked again.
    under_way: BTreeSet<u8>,
    told: BTreeMap<u8, (Instant, Memories)>,
}

impl Owner {
    /// Asks again when it is time.
    pub(super) fn tick_mig_memory(&mut self) {
        let now = self.now();
        let polls = &self.mig.memory;
        let asked = polls.asked.map(|at| now.duration_since(at));
        if asked.is_some_and(|since| since < self.interval) {
            return;
        }
        self.mig.memory.asked = Some(now);
        for (gpu, carver) in &self.mig.carvers {
            let view = self.mig.views.get(gpu);
            let shown = view.and_then(|view| view.as_ref().ok());
            let there = shown.is_some_and(|view| !view.shown.is_empty());
            if (there || !carver.claims().is_empty()) && self.mig.memory.under_way.insert(*gpu) {
                self.ports.mig.begin(*gpu, Task::Memory);
            }
        }
    }

    /// A GPU has answered.
    pub(super) fn mig_memory(&mut self, gpu: u8, told: Memories) {
        let now = self.now();
        self.mig.memory.under_way.remove(&gpu);
        self.mig.memory.told.insert(gpu, (now, told));
    }

    /// Total and used MiB of an instance.
    pub(super) fn memory_of(&self, gpu: u8, uuid: Option<&str>) -> Memory {
        let uuid = uuid.ok_or("the instance is not there")?;
        let Some((at, told)) = self.mig.memory.told.get(&gpu) else {
            return Err("not polled yet".into());
        };
        let old = self.now().duration_since(*at);
        if old > self.interval * 3 + GRACE {
            return Err(format!("no answer for {} s", old.as_secs()));
        }
        match told {
            Err(why) => Err(why.clone()),
            Ok(told) => told
                .get(uuid)
                .cloned()
                .unwrap_or(Err("not polled yet".into())),
        }
    }
}
