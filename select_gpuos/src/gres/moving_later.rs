//! When a job gets GPUs that move ([`crate::gres::moving`]).
//!
//! It is asked for with the GPUs of its kind first. Where that is not enough and it has waited, idle ones of the other
//! kind are offered too. In a forecast cons_tres sees jobs end and their own bits become free, but no mark: so it is
//! asked again with the marks taken back that end first, and the start is moved to when they do.

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;

use crate::abi::call::{Mode, NOT_NOW};
use crate::abi::clock;
use crate::gres::moving::{Kind, Mark, Switching, Why};
use crate::tell::reasons;

/// After so many questions about the next moment the last one is about all of them.
const MOMENTS: u32 = 4;

impl<'a> Switching<'_, 'a> {
    /// After an answer: takes back the marks that may be taken back next, and gives the candidates back as they
    /// came. Returns whether there were any: then the call is to be decided again. `tried` counts from 0.
    pub fn offers_more(&mut self, code: c_int, tried: u32) -> bool {
        let frame = self.frame;
        let (call, nodes) = (frame.call, frame.candidates);
        // Not the time of the call: cons_tres answers by the time at which it has been asked.
        let now = clock::now();
        let lifted = match frame.mode {
            Mode::WillRun => self.looks_sooner((code, tried, now)),
            _ if code != 0 && tried == 0 => {
                // Which kind a GPU served is advice, and to cost no job that runs.
                let spared = call.spares_no_more();
                let offered =
                    |mark: &Mark| matches!(mark.why, Why::Other(at) if spared || at <= now);
                self.moving.state.lift(&call.other_mode, offered) || spared
            }
            _ => false,
        };
        if lifted {
            call.unanswered();
            nodes.restore(&self.moving.state.offered);
        }
        lifted
    }

    /// The same in a forecast, as long as one that is sooner can be found.
    fn looks_sooner(&mut self, (code, tried, now): (c_int, u32, i64)) -> bool {
        let frame = self.frame;
        let (call, job, nodes) = (frame.call, frame.job, frame.candidates);
        // Backfill's first question is about now only.
        let only_now = tried == 0 && self.moving.twofold.left_open(job.id(), job.beside_nobody());
        if only_now || tried > MOMENTS {
            return false;
        }
        if code == 0 {
            let state = &mut self.moving.state;
            let own = state.lifted.iter().filter(|mark| nodes.test(mark.node));
            let start = own.filter_map(Mark::moment).max().unwrap_or(0);
            let start = start.max(job.start_time());
            if state.start.is_none_or(|best| start < best) {
                state.start = Some(start);
                nodes.save(&mut state.best);
            }
        }
        let best = self.moving.state.start;
        if best.is_some_and(|start| start <= now) {
            return false;
        }
        if tried == 0 {
            self.date_marks(now);
        }
        let marks = self.moving.state.marks.iter();
        let next = marks.filter_map(Mark::moment).min();
        let moment = match next {
            Some(next) if best.is_none_or(|start| next < start) => match tried {
                MOMENTS if best.is_none() => i64::MAX,
                _ => next,
            },
            _ => return false,
        };
        let due = |mark: &Mark| mark.moment().is_some_and(|at| at <= moment);
        self.moving.state.lift(&call.other_mode, due)
    }

    /// Finds out when the jobs end that keep GPUs from the job of this call.
    fn date_marks(&mut self, now: i64) {
        let source = &self.frame.source;
        let state = &self.moving.state;
        let soonest = now + 1;
        // By mark: when the last job that is known to be on the GPU ends, and the last one of the node.
        let mut ends = vec![(0, 0); state.marks.len()];
        self.ledger.for_each_job(|id, held| {
            let here = |mark: &Mark| held.iter().any(|one| one.node as usize == mark.node);
            if !state.marks.iter().any(here) {
                return;
            }
            let Some(job) = source.job(id) else {
                return;
            };
            let end = job.soonest_end(now).max(soonest);
            for (mark, (on_it, on_node)) in state.marks.iter().zip(&mut ends) {
                let Some(place) = held.iter().position(|one| one.node as usize == mark.node) else {
                    continue;
                };
                *on_node = end.max(*on_node);
                if self.bits_held(job, mark.holder, place) & mark.held != 0 {
                    *on_it = end.max(*on_it);
                }
            }
        });
        for (mark, (on_it, on_node)) in self.moving.state.marks.iter_mut().zip(ends) {
            if mark.why == Why::Given {
                mark.end = if on_it == 0 { on_node } else { on_it };
            }
        }
    }

    /// What a job that runs has of a node in the GRES of a kind, the node by its place among the job's.
    fn bits_held(&self, job: Job<'a>, kind: Kind, place: usize) -> u64 {
        let all = |asked: &mut dyn Iterator<Item = JobGres<'_>>| {
            asked.fold(0, |all, one| {
                all | one.held(place).map_or(0, |bits| bits.chunk(0))
            })
        };
        let source = &self.frame.source;
        match (kind, self.selections.slices) {
            (Kind::Slices, None) => 0,
            (Kind::Whole, _) if !self.selections.gpus => 0,
            (Kind::Slices, Some(gres)) => all(&mut source.asked(job, gres)),
            (Kind::Whole, _) => {
                all(&mut source.gpus_asked(job)) | all(&mut source.asked(job, self.moving.shards()))
            }
        }
    }

    /// Ends a call about a job that GPUs that move could be given to: moves a forecast to when it has them, and says
    /// where it waits for them.
    pub fn settle(&mut self, code: c_int) -> c_int {
        let code = self.moved(code);
        self.moving.switch_back(self.frame.call);
        code
    }

    fn moved(&mut self, mut code: c_int) -> c_int {
        let frame = self.frame;
        let (job, nodes) = (frame.job, frame.candidates);
        let best = self.moving.state.start;
        if let Some(start) = best {
            nodes.restore(&self.moving.state.best);
            job.set_start_time(start);
            let (_, until) = frame.call.asked_between(self.site.release);
            let later = !self.moving.state.lifted.is_empty();
            code = match later && until.is_some_and(|until| start > until) {
                true => NOT_NOW,
                false => 0,
            };
        }
        if code != 0 {
            let state = &self.moving.state;
            nodes.restore(&state.offered);
            state.unknown.iter().for_each(|node| nodes.put(*node, true));
        }
        if code != 0 || frame.starts_later() {
            self.say_moves();
        }
        code
    }

    /// Says that a job waits for GPUs of the other kind, where it would have room with them.
    fn say_moves(&self) {
        let frame = self.frame;
        let (source, job) = (&frame.source, frame.job);
        if !self.site.steers() || job.id() == 0 {
            return;
        }
        let state = &self.moving.state;
        let now = clock::now();
        let idle = |mark: &&Mark| matches!(mark.why, Why::Other(at) if at > now);
        let lifted = match frame.mode {
            Mode::WillRun => &state.lifted[..],
            // They were offered, and did not help.
            _ => &[],
        };
        let others = || state.marks.iter().chain(lifted).filter(idle);
        let Some(kind) = self.moving.asks.filter(|_| others().next().is_some()) else {
            return self.say_never();
        };
        let (gres, each, sum) = match kind {
            Kind::Whole => {
                let all = source.sum(job, JobGres::per_job);
                (self.site.gpu.id, source.of_each_node(job), all)
            }
            Kind::Slices => {
                let gres = self.moving.slices();
                let asked = source.asked_once(job, gres);
                (gres, asked.map_or(1, JobGres::per_node), 0)
            }
        };
        let (mut with_room, mut all) = (0, 0);
        let mut named: Vec<(&str, GpuSet)> = Vec::new();
        for (word, offered) in state.offered.iter().enumerate() {
            for index in GpuSet(*offered).iter().map(|bit| word * 64 + bit) {
                let node = source.node(index);
                let found = node.and_then(|node| Some((node, source.gres(node, gres)?)));
                let Some((node, there)) = found else { continue };
                let free = there.free_units();
                let here = || others().filter(|mark| mark.node == index);
                // What was taken back counts as free already.
                let marked = state.marks.iter().filter(|mark| mark.node == index);
                let more: u32 = marked.filter(idle).map(Mark::count).sum();
                let free = free + u64::from(more);
                if free >= each {
                    with_room += 1;
                    all += free;
                }
                if here().next().is_some() {
                    let gpus = here().fold(GpuSet::EMPTY, |all, mark| all.with(mark.nvml));
                    named.push((node.name(), gpus));
                }
            }
        }
        if with_room < frame.call.counts.min || all < sum {
            return;
        }
        let why = explain::other_kind(
            &named,
            kind == Kind::Whole,
            self.moving.after,
            self.moving.hold,
        );
        let sentence = match reasons::of(job.id()) {
            Some(other) => format!("{other}; {why}"),
            None => format!("gpuos: {why}"),
        };
        reasons::tell(frame, sentence);
    }

    /// Says that a job with slices wants more whole GPUs than any node has of those that do not move.
    fn say_never(&self) {
        let frame = self.frame;
        let source = &frame.source;
        let state = &self.moving.state;
        let never = |mark: &&Mark| mark.why == Why::Never && mark.holder == Kind::Slices;
        if self.moving.asks.is_some() || !state.marks.iter().any(|mark| never(&mark)) {
            return;
        }
        let each = source.of_each_node(frame.job);
        let enough = |index: usize| {
            let gpus = source.gpus_of(index);
            let moves = state.marks.iter().filter(never);
            let moves = moves.filter(|mark| mark.node == index).map(Mark::count);
            let moves = u64::from(moves.sum::<u32>());
            gpus.is_some_and(|gpus| gpus.available().saturating_sub(moves) >= each)
        };
        let words = state.offered.iter().enumerate();
        let mut nodes =
            words.flat_map(|(at, word)| GpuSet(*word).iter().map(move |bit| at * 64 + bit));
        if nodes.any(enough) {
            return;
        }
        let sentence = format!(
            "gpuos: a job with slices gets no GPU that moves as a whole, and no node has {each} others. Ask for fewer whole \
             GPUs, or for the slices in a job of its own."
        );
        reasons::tell(frame, sentence);
    }
}
