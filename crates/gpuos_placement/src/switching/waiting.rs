//! Whom MIG-switchable GPUs keep waiting, as a sentence.
use gpuos_model::gpu_index::NvmlSet;

use super::gpu::GpuMode;
use super::marks::{Mark, Marks, Why};
use crate::explain;

/// A job that has no place now, or none at all.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// What it asks for, where that is one kind.
    pub asks: Option<GpuMode>,
    /// Whether it was asked when it could start. Else what was taken back was offered, and did not help.
    pub is_forecast: bool,
    /// The time by which it waits.
    pub now: i64,
    /// How many nodes it needs.
    pub nodes: u32,
    /// How many GPUs, or slices, of each.
    pub each: u64,
    /// How many GPUs in all.
    pub sum: u64,
    /// Seconds that a job has to wait before a GPU is switched for it.
    pub after: i64,
    /// Seconds that a GPU has to have been of its mode before it is switched.
    pub hold: i64,
}

/// A candidate of a job that waits.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The node's index.
    pub node: usize,
    /// Its name.
    pub name: &'a str,
    /// Free units of the GRES that the job asks for. What is marked is not.
    pub free: u64,
}

impl Marks {
    /// Idle GPUs of the other mode that are not to be offered before some later time.
    fn idle_later(&self, now: i64, is_forecast: bool) -> impl Iterator<Item = &Mark> + use<'_> {
        let lifted = match is_forecast {
            true => self.lifted(),
            false => &[],
        };
        let all = self.all().iter().chain(lifted);
        all.filter(move |mark| mark.is_idle_after(now))
    }

    /// Whether there is any such GPU. What was taken back counts in a forecast only: at a start it was offered, and did not
    /// help.
    pub fn has_idle_later(&self, now: i64, is_forecast: bool) -> bool {
        self.idle_later(now, is_forecast).next().is_some()
    }

    /// Why a job waits although idle GPUs of the other mode would serve it; `None`: they would not, or there is
    /// none. `nodes` are its candidates, the lowest index first.
    pub fn why_waits<'a>(
        &self,
        wait: &Wait,
        nodes: impl Iterator<Item = Candidate<'a>>,
    ) -> Option<String> {
        let mode = wait.asks?;
        let (mut with_room, mut all) = (0, 0);
        let mut named: Vec<(&str, NvmlSet)> = Vec::new();
        for one in nodes {
            // What was taken back counts as free already.
            let marked = self.all().iter().filter(|mark| mark.node == one.node);
            let idle = marked.filter(|mark| mark.is_idle_after(wait.now));
            let free = one.free + u64::from(idle.map(Mark::count).sum::<u32>());
            if free >= wait.each {
                with_room += 1;
                all += free;
            }
            let here = self.idle_later(wait.now, wait.is_forecast);
            let here = here.filter(|mark| mark.node == one.node);
            let gpus: NvmlSet = here.map(|mark| mark.nvml).collect();
            if !gpus.is_empty() {
                named.push((one.name, gpus));
            }
        }
        let serve = with_room >= wait.nodes && all >= wait.sum && !named.is_empty();
        serve.then(|| explain::other_kind(&named, mode == GpuMode::Whole, wait.after, wait.hold))
    }

    /// Whether GPUs are kept from a job for good since it asks for whole ones and for slices.
    pub fn has_never(&self) -> bool {
        self.never().next().is_some()
    }

    fn never(&self) -> impl Iterator<Item = &Mark> {
        let never = |mark: &&Mark| mark.why == Why::Never && mark.mode == GpuMode::Whole;
        self.all().iter().filter(never)
    }

    /// Says that a job with slices wants more whole GPUs of each node than any has of those that are not MIG-switchable.
    /// `nodes` are its candidates, and how many GPUs each has.
    pub fn why_never(
        &self,
        each: u64,
        mut nodes: impl Iterator<Item = (usize, u64)>,
    ) -> Option<String> {
        let enough = |(index, gpus): (usize, u64)| {
            let marked = self.never().filter(|mark| mark.node == index);
            let marked = u64::from(marked.map(Mark::count).sum::<u32>());
            gpus.saturating_sub(marked) >= each
        };
        (!nodes.any(enough)).then(|| {
            format!(
                "a job with slices gets no MIG-switchable GPU as a whole, and no node has {each} others. Ask for fewer whole \
                 GPUs, or for the slices in a job of its own."
            )
        })
    }
}
