//! How much of their memory instances use, and how busy they are: polled as GPUs are, and not known where the newest answer is old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::mig::Phase;
use gpuos_core::mig::carve::Answer;
use gpuos_core::wire::MigLoad;

use super::super::Owner;
use crate::mig::load::{Loads, unknown};
use crate::mig::{Memories, Memory, Task};

/// An answer counts for three polls and so much longer, as that of a GPU does.
const GRACE: Duration = Duration::from_secs(5);

const NOT_YET: &str = "not polled yet";

/// The newest answers.
#[derive(Default)]
pub(super) struct Polls {
    asked: Option<Instant>,
    /// GPUs that have not answered yet: a driver that hangs is not asked again.
    under_way: BTreeSet<u8>,
    told: BTreeMap<u8, (Instant, Memories, Loads)>,
}

impl Polls {
    fn forget(&mut self, gpu: u8, which: impl Fn(u32) -> bool) {
        if let Some((_, _, Ok(loads))) = self.told.get_mut(&gpu) {
            loads.retain(|gi, _| !which(*gi));
        }
    }
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
    pub(super) fn mig_memory(&mut self, gpu: u8, memory: Memories, load: Loads) {
        let now = self.now();
        self.mig.memory.under_way.remove(&gpu);
        let told = (now, memory, load);
        self.mig.memory.told.insert(gpu, told);
    }

    /// An instance was made here: what is known of the load of one with its number was another's.
    pub(super) fn mig_done(&mut self, gpu: u8, answer: &Answer) {
        if let Answer::GpuMade { gi } = answer {
            self.mig.memory.forget(gpu, |known| known == *gi);
        }
    }

    /// Somebody made or destroyed instances: only those of jobs are known to be the same.
    pub(super) fn mig_changed(&mut self, gpu: u8) {
        let carver = self.mig.carvers.get(&gpu);
        let claims = carver.map(|carver| carver.claims()).unwrap_or_default();
        let own = |gi| {
            claims
                .iter()
                .any(|claim| matches!(&claim.phase, Phase::Ready { gi: of, .. } if *of == gi))
        };
        self.mig.memory.forget(gpu, |gi| !own(gi));
    }

    /// Total and used MiB of an instance.
    pub(super) fn memory_of(&self, gpu: u8, uuid: Option<&str>) -> Memory {
        let uuid = uuid.ok_or("the instance is not there")?;
        match &self.newest(gpu)?.0 {
            Err(why) => Err(why.clone()),
            Ok(told) => told.get(uuid).cloned().unwrap_or(Err(NOT_YET.into())),
        }
    }

    /// How busy an instance is; `None`: it is not there.
    pub(super) fn load_of(&self, gpu: u8, gi: Option<u32>) -> MigLoad {
        let Some(gi) = gi else {
            return unknown("the instance is not there");
        };
        let newest = self.newest(gpu);
        match newest.and_then(|(_, told)| told.as_ref().map_err(Clone::clone)) {
            Err(why) => unknown(&why),
            Ok(told) => told.get(&gi).cloned().unwrap_or_else(|| unknown(NOT_YET)),
        }
    }

    /// What a GPU answered last, unless that is long ago.
    fn newest(&self, gpu: u8) -> Result<(&Memories, &Loads), String> {
        let told = self.mig.memory.told.get(&gpu);
        let (at, memory, load) = told.ok_or(NOT_YET)?;
        let old = self.now().duration_since(*at);
        match old > self.interval * 3 + GRACE {
            true => Err(format!("no answer for {} s", old.as_secs())),
            false => Ok((memory, load)),
        }
    }
}
