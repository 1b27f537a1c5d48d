//! What counts as given in one call, what of it may be offered next, and when a forecast has it.
use gpuos_model::gpu_index::NvmlIndex;

use super::gpu::{Gpu, GpuMode};

/// After so many questions about the next moment the last one is about all of them.
pub const MOMENTS: u32 = 4;

/// Why a GPU counts as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is, to a job of the other kind.
    Allocated,
    /// It is idle and served the other kind of job last. It may be offered from this time on.
    OtherMode(i64),
    /// The job takes slices too, which might be those of this GPU, or the GPU is out of service.
    Never,
}

/// Devices of one GPU in one GRES that count as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The node's index.
    pub node: usize,
    /// In which GRES.
    pub mode: GpuMode,
    /// The devices there.
    pub bits: u64,
    /// Why.
    pub why: Why,
    /// The GPU.
    pub nvml: NvmlIndex,
    /// Its devices in the other GRES.
    pub held: u64,
    /// How it is known to whoever carries it out.
    pub number: usize,
    /// When the last job that is known to be on the GPU ends, and the last one of the node; 0 = not known.
    ends: LastEnds,
    /// When the jobs end that have it, where it is given and that was looked for; else 0.
    end: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct LastEnds {
    gpu: i64,
    node: i64,
}

impl Mark {
    pub(super) fn new(node: usize, gpu: &Gpu, mode: GpuMode, bits: u64, why: Why) -> Mark {
        Mark {
            node,
            mode,
            bits,
            why,
            nvml: gpu.nvml,
            held: gpu.devices(mode.other()),
            number: 0,
            ends: LastEnds::default(),
            end: 0,
        }
    }

    /// When the job of the call can have the GPU, as far as that is known.
    pub fn moment(&self) -> Option<i64> {
        match self.why {
            Why::Allocated => (self.end != 0).then_some(self.end),
            Why::OtherMode(at) => Some(at),
            Why::Never => None,
        }
    }

    /// How many GPUs or slices it marks.
    pub fn count(&self) -> u32 {
        self.bits.count_ones()
    }

    /// Whether it is of an idle GPU that may be offered after `now` only.
    pub(super) fn is_idle_after(&self, now: i64) -> bool {
        matches!(self.why, Why::OtherMode(at) if at > now)
    }
}

/// One call's marks, and those that were taken back.
#[derive(Clone, Default, Debug)]
pub struct Marks {
    marks: Vec<Mark>,
    lifted: Vec<Mark>,
    /// From which of `lifted` on they are to be taken back.
    due: usize,
    /// The soonest start of the forecasts so far.
    start: Option<i64>,
}

/// What came of asking when the job of a call could start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// How often it was asked before.
    pub tried: u32,
    /// The time by which the answer is meant.
    pub now: i64,
    /// When it could, as far as those see who know of no marks; `None`: never.
    pub start: Option<i64>,
}

impl Marks {
    /// Makes room for the marks of so many GPUs.
    pub fn reserve(&mut self, gpus: usize) {
        // A GPU has two marks at most.
        self.marks.reserve(2 * gpus);
        self.lifted.reserve(2 * gpus);
    }

    /// The call is over.
    pub fn clear(&mut self) {
        self.marks.clear();
        self.lifted.clear();
        self.due = 0;
        self.start = None;
    }

    /// What counts as given.
    pub fn all(&self) -> &[Mark] {
        &self.marks
    }

    /// What counted so, and does not any more.
    pub fn lifted(&self) -> &[Mark] {
        &self.lifted
    }

    /// The soonest start that forecasts have found.
    pub fn start(&self) -> Option<i64> {
        self.start
    }

    pub(super) fn push(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    /// Has `each` mark, from the `from`th on, carried out: it says by which number it is known, and which devices were
    /// marked. What could not be marked is no mark.
    pub fn carry_out(&mut self, from: usize, mut each: impl FnMut(&Mark) -> Option<(usize, u64)>) {
        let mut kept = from;
        for at in from..self.marks.len() {
            let mut mark = self.marks[at];
            if let Some((number, bits)) = each(&mark) {
                (mark.number, mark.bits) = (number, bits);
                self.marks[kept] = mark;
                kept += 1;
            }
        }
        self.marks.truncate(kept);
    }

    /// Whether idle GPUs of the other mode are marked. They cost nobody his job: so nobody is preempted first.
    pub fn has_idle(&self) -> bool {
        let mut marks = self.marks.iter();
        marks.any(|mark| matches!(mark.why, Why::OtherMode(_)))
    }

    /// The marks that the last step took back, each once.
    pub fn take_lifted(&mut self) -> &[Mark] {
        let from = std::mem::replace(&mut self.due, self.lifted.len());
        &self.lifted[from..]
    }

    fn lift(&mut self, which: impl Fn(&Mark) -> bool) -> bool {
        let Marks { marks, lifted, .. } = self;
        let before = lifted.len();
        marks.retain(|mark| {
            let lifts = which(mark);
            if lifts {
                lifted.push(*mark);
            }
            !lifts
        });
        lifted.len() > before
    }

    /// A job that would start was refused: offers idle GPUs of the other mode that are due, and all of them where
    /// preemption was `spared` for their sake: how a GPU served is advice, and to cost no job that runs. Whether the
    /// call is to be decided again.
    pub fn offer_idle(&mut self, spared: bool, now: i64) -> bool {
        let offered = |mark: &Mark| matches!(mark.why, Why::OtherMode(at) if spared || at <= now);
        self.lift(offered) || spared
    }

    /// Whether a forecast is asked for once more after so many.
    pub fn retries_forecast(tried: u32) -> bool {
        tried <= MOMENTS
    }

    /// Takes in what came of a forecast; `chosen`: whether it is on a node. Whether it is the soonest so far, by the moment
    /// when the job has all that was taken back there.
    pub fn take_forecast(&mut self, answer: &Forecast, chosen: impl Fn(usize) -> bool) -> bool {
        let Some(start) = answer.start else {
            return false;
        };
        let own = self.lifted.iter().filter(|mark| chosen(mark.node));
        let ready = own.filter_map(Mark::moment).max().unwrap_or(0);
        let start = ready.max(start);
        let sooner = self.start.is_none_or(|best| start < best);
        if sooner {
            self.start = Some(start);
        }
        sooner
    }

    /// Whether the soonest start is no later than a time.
    pub fn starts_by(&self, now: i64) -> bool {
        self.start.is_some_and(|start| start <= now)
    }

    /// Whether the soonest start is past the time until when a forecast is of use, for GPUs that were taken back.
    pub fn starts_too_late(&self, until: Option<i64>) -> bool {
        let late = |start: i64| until.is_some_and(|until| start > until);
        !self.lifted.is_empty() && self.start.is_some_and(late)
    }

    /// Whether any mark is on a node.
    pub fn is_on(&self, node: usize) -> bool {
        self.marks.iter().any(|mark| mark.node == node)
    }

    /// A job of a node ends at a time, and then gives back what it has of the GRES of each mode.
    pub fn ends(&mut self, node: usize, end: i64, held: impl Fn(GpuMode) -> u64) {
        for mark in self.marks.iter_mut().filter(|mark| mark.node == node) {
            mark.ends.node = end.max(mark.ends.node);
            if held(mark.mode.other()) & mark.held != 0 {
                mark.ends.gpu = end.max(mark.ends.gpu);
            }
        }
    }

    /// All jobs have been told by [`Marks::ends`]: from now on it is known when GPUs that are given can be had.
    pub fn date(&mut self) {
        for mark in self
            .marks
            .iter_mut()
            .filter(|mark| mark.why == Why::Allocated)
        {
            mark.end = match mark.ends {
                LastEnds { gpu: 0, node } => node,
                LastEnds { gpu, .. } => gpu,
            };
        }
    }

    /// Takes back what can be had first, where that is before the soonest start so far. Whether the call is to be decided
    /// again.
    pub fn offer_next(&mut self, tried: u32) -> bool {
        let next = self.marks.iter().filter_map(Mark::moment).min();
        let moment = match next {
            Some(next) if self.start.is_none_or(|start| next < start) => match tried {
                MOMENTS if self.start.is_none() => i64::MAX,
                _ => next,
            },
            _ => return false,
        };
        self.lift(|mark| mark.moment().is_some_and(|at| at <= moment))
    }
}
