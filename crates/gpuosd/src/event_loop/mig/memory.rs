//! How much of their memory instances use, and how busy they are: polled as GPUs are, and not known where the newest answer is old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::mig::Phase;
use gpuos_core::mig::carve::Answer;
use gpuos_core::wire::MigLoad;
use gpuos_model::gpu_index::NvmlIndex;

use super::boards::Boards;
use crate::event_loop::effect::{Effect, Effects};
use crate::mig::load::{Loads, unknown};
use crate::mig::{Memories, Memory, Task};

/// An answer counts for three polls and so much longer, as that of a GPU does.
const GRACE: Duration = Duration::from_secs(5);

const NOT_YET: &str = "not polled yet";

/// The newest answers.
#[derive(Default)]
pub struct Polls {
    asked: Option<Instant>,
    /// GPUs that have not answered yet: a driver that hangs is not asked again.
    under_way: BTreeSet<NvmlIndex>,
    answers: BTreeMap<NvmlIndex, (Instant, Memories, Loads)>,
}

impl Polls {
    fn forget(&mut self, gpu: NvmlIndex, which: impl Fn(u32) -> bool) {
        if let Some((_, _, Ok(loads))) = self.answers.get_mut(&gpu) {
            loads.retain(|gi, _| !which(*gi));
        }
    }

    /// Asks again when it is time.
    pub fn tick(&mut self, boards: &Boards, interval: Duration, now: Instant, fx: &mut Effects) {
        let asked = self.asked.map(|at| now.duration_since(at));
        if asked.is_some_and(|since| since < interval) {
            return;
        }
        self.asked = Some(now);
        for gpu in boards.all() {
            let shown = boards.view(gpu).and_then(Result::ok);
            let there = shown.is_some_and(|view| !view.shown.is_empty());
            if (there || !boards.claims(gpu).is_empty()) && self.under_way.insert(gpu) {
                fx.push(Effect::Mig(gpu, Task::Memory));
            }
        }
    }

    /// A GPU has answered.
    pub fn on_answer(&mut self, gpu: NvmlIndex, (memory, load): (Memories, Loads), now: Instant) {
        self.under_way.remove(&gpu);
        self.answers.insert(gpu, (now, memory, load));
    }

    /// An instance was made here: what is known of the load of one with its number was another's.
    pub fn made(&mut self, gpu: NvmlIndex, answer: &Answer) {
        if let Answer::GpuMade { gi } = answer {
            self.forget(gpu, |known| known == *gi);
        }
    }

    /// Somebody made or destroyed instances: only those of jobs are known to be the same.
    pub fn changed(&mut self, gpu: NvmlIndex, boards: &Boards) {
        let claims = boards.claims(gpu);
        let own = |gi| {
            claims
                .iter()
                .any(|claim| matches!(&claim.phase, Phase::Ready { gi: of, .. } if *of == gi))
        };
        self.forget(gpu, |gi| !own(gi));
    }

    /// What is known now, where GPUs are polled so often.
    pub fn newest(&self, interval: Duration, now: Instant) -> Newest<'_> {
        Newest {
            polls: self,
            interval,
            now,
        }
    }
}

/// Answers that count still.
#[derive(Clone, Copy)]
pub struct Newest<'a> {
    polls: &'a Polls,
    interval: Duration,
    now: Instant,
}

impl Newest<'_> {
    /// Total and used MiB of an instance.
    pub fn memory(&self, gpu: NvmlIndex, uuid: Option<&str>) -> Memory {
        let uuid = uuid.ok_or("the instance is not there")?;
        match &self.of(gpu)?.0 {
            Err(why) => Err(why.clone()),
            Ok(told) => told.get(uuid).cloned().unwrap_or(Err(NOT_YET.into())),
        }
    }

    /// How busy an instance is; `None`: it is not there.
    pub fn load(&self, gpu: NvmlIndex, gi: Option<u32>) -> MigLoad {
        let Some(gi) = gi else {
            return unknown("the instance is not there");
        };
        let newest = self.of(gpu);
        match newest.and_then(|(_, told)| told.as_ref().map_err(Clone::clone)) {
            Err(why) => unknown(&why),
            Ok(told) => told.get(&gi).cloned().unwrap_or_else(|| unknown(NOT_YET)),
        }
    }

    /// What a GPU answered last, unless that is long ago.
    fn of(&self, gpu: NvmlIndex) -> Result<(&Memories, &Loads), String> {
        let told = self.polls.answers.get(&gpu);
        let (at, memory, load) = told.ok_or(NOT_YET)?;
        let old = self.now.duration_since(*at);
        match old > self.interval * 3 + GRACE {
            true => Err(format!("no answer for {} s", old.as_secs())),
            false => Ok((memory, load)),
        }
    }
}
