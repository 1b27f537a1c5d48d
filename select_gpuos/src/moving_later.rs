//! When a job gets GPUs that move ([`crate::moving`]).
//!
//! It is asked for with the GPUs of its kind first. Where that is not enough and it has waited, idle ones of the other
//! kind are offered too. In a forecast cons_tres sees jobs end and their own bits become free, but no mark: so it is
//! asked again with the marks taken back that end first, and the start is moved to when they do.

use std::ffi::c_int;

use gpuos_core::explain;
use gpuos_core::gpuset::GpuSet;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::{Job, Node};

use crate::call::{Call, Mode, NOT_NOW};
use crate::clock;
use crate::engine::Engine;
use crate::moving::{Kind, Mark, Why};
use crate::reasons;
use crate::trust::Trust;

/// After so many questions about the next moment the last one is about all of them.
const MOMENTS: u32 = 4;

impl Engine {
    /// After an answer: takes back the marks that may be taken back next, and gives the candidates back as they
    /// came. Returns whether there were any: then the call is to be decided again. `tried` counts from 0.
    pub(crate) fn offers_more(&mut self, call: &Call, code: c_int, tried: u32) -> bool {
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(nodes)) = both else {
            return false;
        };
        let now = clock::now();
        let lifted = match call.mode() {
            Mode::WillRun => self.looks_sooner(call, job, nodes, (code, tried, now)),
            _ if code != 0 && tried == 0 => {
                // Which kind a GPU served is advice, and to cost no job that runs.
                let spared = call.spares_no_more();
                let offered =
                    |mark: &Mark| matches!(mark.why, Why::Other(at) if spared || at <= now);
                call.crossed.lift(offered) || spared
            }
            _ => false,
        };
        if lifted {
            call.unanswered();
            nodes.restore(&call.crossed.room.borrow().offered);
        }
        lifted
    }

    /// The same in a forecast, as long as one that is sooner can be found.
    fn looks_sooner(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        (code, tried, now): (c_int, u32, i64),
    ) -> bool {
        // Backfill's first question is about now only.
        let only_now = tried == 0 && self.moving.twofold.left_open(job.id(), job.beside_nobody());
        if only_now || tried > MOMENTS {
            return false;
        }
        if code == 0 {
            let mut room = call.crossed.room.borrow_mut();
            let own = room.lifted.iter().filter(|mark| nodes.test(mark.node));
            let start = own.filter_map(Mark::moment).max().unwrap_or(0);
            let start = start.max(job.start_time());
            if room.start.is_none_or(|best| start < best) {
                room.start = Some(start);
                nodes.save(&mut room.best);
            }
        }
        let best = call.crossed.room.borrow().start;
        if best.is_some_and(|start| start <= now) {
            return false;
        }
        if tried == 0 {
            self.date_marks(call, now);
        }
        let next = {
            let room = call.crossed.room.borrow();
            room.marks.iter().filter_map(Mark::moment).min()
        };
        let moment = match next {
            Some(next) if best.is_none_or(|start| next < start) => match tried {
                MOMENTS if best.is_none() => i64::MAX,
                _ => next,
            },
            _ => return false,
        };
        let due = |mark: &Mark| mark.moment().is_some_and(|at| at <= moment);
        call.crossed.lift(due)
    }

    /// Finds out when the jobs end that keep GPUs from the job of this call.
    fn date_marks(&self, call: &Call, now: i64) {
        let mut room = call.crossed.room.borrow_mut();
        let soonest = now + 1;
        // By mark: when the last job that is known to be on the GPU ends, and the last one of the node.
        let mut ends = vec![(0, 0); room.marks.len()];
        let layout = self.layout;
        self.ledger.for_each_job(|id, held| {
            let here = |mark: &Mark| held.iter().any(|one| one.node as usize == mark.node);
            if !room.marks.iter().any(here) {
                return;
            }
            // SAFETY: job_test runs under slurmctld's job write lock.
            let Some(job) = (unsafe { Job::find(id, layout) }) else {
                return;
            };
            let end = job.soonest_end(now).max(soonest);
            for (mark, (on_it, on_node)) in room.marks.iter().zip(&mut ends) {
                let Some(place) = held.iter().position(|one| one.node as usize == mark.node) else {
                    continue;
                };
                *on_node = end.max(*on_node);
                if self.bits_held(job, mark.holder, place) & mark.held != 0 {
                    *on_it = end.max(*on_it);
                }
            }
        });
        for (mark, (on_it, on_node)) in room.marks.iter_mut().zip(ends) {
            if mark.why == Why::Given {
                mark.end = if on_it == 0 { on_node } else { on_it };
            }
        }
    }

    /// What a job that runs has of a node in the GRES of a kind, the node by its place among the job's.
    fn bits_held(&self, job: Job<'_>, kind: Kind, place: usize) -> u64 {
        let all = |asked: &mut dyn Iterator<Item = JobGres<'_>>| {
            asked.fold(0, |all, one| {
                all | one.held(place).map_or(0, |bits| bits.chunk(0))
            })
        };
        match kind {
            Kind::Slices if !self.slices.reads_held() => 0,
            Kind::Whole if self.trust != Trust::Selection => 0,
            Kind::Slices => all(&mut self.asked(job, self.slices.id())),
            Kind::Whole => {
                all(&mut self.gpus_asked(job)) | all(&mut self.asked(job, self.shards.gres_id()))
            }
        }
    }

    /// Ends a call about a job that GPUs that move could be given to: moves a forecast to when it has them, and says
    /// where it waits for them.
    pub(crate) fn moved(&mut self, call: &Call, mut code: c_int) -> c_int {
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(nodes)) = both else {
            return code;
        };
        let forecast = call.mode() == Mode::WillRun;
        let best = call.crossed.room.borrow().start;
        if let Some(start) = best {
            nodes.restore(&call.crossed.room.borrow().best);
            job.set_start_time(start);
            let (_, until) = call.asked_between(self.release);
            let later = !call.crossed.room.borrow().lifted.is_empty();
            code = match later && until.is_some_and(|until| start > until) {
                true => NOT_NOW,
                false => 0,
            };
        }
        if code != 0 {
            let room = call.crossed.room.borrow();
            nodes.restore(&room.offered);
            room.unknown.iter().for_each(|node| nodes.put(*node, true));
        }
        if code != 0 || forecast && job.start_time() > clock::now() {
            self.say_moves(call, job);
        }
        code
    }

    /// Says that a job waits for GPUs of the other kind, where it would have room with them.
    fn say_moves(&self, call: &Call, job: Job<'_>) {
        if !self.settings.config.slurm.steer || job.id() == 0 {
            return;
        }
        let room = call.crossed.room.borrow();
        let now = clock::now();
        let idle = |mark: &&Mark| matches!(mark.why, Why::Other(at) if at > now);
        let lifted = match call.mode() {
            Mode::WillRun => &room.lifted[..],
            // They were offered, and did not help.
            _ => &[],
        };
        let others = || room.marks.iter().chain(lifted).filter(idle);
        let Some(kind) = call
            .crossed
            .asks
            .get()
            .filter(|_| others().next().is_some())
        else {
            drop(room);
            return self.say_never(call, job);
        };
        let source = self.source();
        let (gres, each, sum) = match kind {
            Kind::Whole => {
                let all = self.sum(job, JobGres::per_job);
                (self.gpu.id, self.of_each_node(job), all)
            }
            Kind::Slices => {
                let asked = self.slices_asked(job);
                (self.slices.id(), asked.map_or(1, JobGres::per_node), 0)
            }
        };
        let (mut with_room, mut all) = (0, 0);
        let mut named: Vec<(&str, GpuSet)> = Vec::new();
        for (word, offered) in room.offered.iter().enumerate() {
            for index in GpuSet(*offered).iter().map(|bit| word * 64 + bit) {
                // SAFETY: job_test is called under slurmctld's node write lock; the slot holds null or a live record.
                let found = unsafe {
                    let node = Node::new(source.table.raw(index), source.layout);
                    node.and_then(|node| Some((node, source.gres(node, gres)?)))
                };
                let Some((node, state)) = found else { continue };
                let free = state.available().saturating_sub(state.allocated());
                let here = || others().filter(|mark| mark.node == index);
                // What was taken back counts as free already.
                let marked = room.marks.iter().filter(|mark| mark.node == index);
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
        if with_room < call.counts.min || all < sum {
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
        reasons::tell(self.api, call.mode(), job, sentence);
    }

    /// Says that a job with slices wants more whole GPUs than any node has of those that do not move.
    fn say_never(&self, call: &Call, job: Job<'_>) {
        let room = call.crossed.room.borrow();
        let never = |mark: &&Mark| mark.why == Why::Never && mark.holder == Kind::Slices;
        if call.crossed.asks.get().is_some() || !room.marks.iter().any(|mark| never(&mark)) {
            return;
        }
        let each = self.of_each_node(job);
        let source = self.source();
        let enough = |index: usize| {
            // SAFETY: job_test is called under slurmctld's node write lock; the slot holds null or a live record.
            let gpus = unsafe {
                let node = Node::new(source.table.raw(index), source.layout);
                node.and_then(|node| source.gpus(node))
            };
            let moves = room.marks.iter().filter(never);
            let moves = moves.filter(|mark| mark.node == index).map(Mark::count);
            let moves = u64::from(moves.sum::<u32>());
            gpus.is_some_and(|gpus| gpus.available().saturating_sub(moves) >= each)
        };
        let words = room.offered.iter().enumerate();
        let mut nodes =
            words.flat_map(|(at, word)| GpuSet(*word).iter().map(move |bit| at * 64 + bit));
        if nodes.any(enough) {
            return;
        }
        let sentence = format!(
            "gpuos: a job with slices gets no GPU that moves as a whole, and no node has {each} others. Ask for fewer whole \
             GPUs, or for the slices in a job of its own."
        );
        reasons::tell(self.api, call.mode(), job, sentence);
    }
}
