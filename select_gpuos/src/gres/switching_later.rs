//! When a job gets MIG-switchable GPUs ([`crate::gres::switching`]).
//!
//! It is asked for with the GPUs of its mode first. Where that is not enough and it has waited, idle ones of the other
//! mode are offered too. In a forecast cons_tres sees jobs end and their own bits become free, but no mark: so it is
//! asked again with the marks taken back that end first, and the start is moved to when they do.

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::switching::{Candidate, Forecast, GpuMode, Marks, Wait};
use slurm_ffi::gres::JobGres;

use crate::abi::call::{Mode, NOT_NOW};
use crate::abi::clock;
use crate::gres::switching::Switching;
use crate::tell::reasons;

/// The nodes in the words of a bitmap, the lowest first.
fn nodes_in(words: &[u64]) -> impl Iterator<Item = usize> {
    let words = words.iter().enumerate();
    words.flat_map(|(at, word)| GpuSet(*word).iter().map(move |bit| at * 64 + bit))
}

impl<'a> Switching<'_, 'a> {
    /// After an answer: takes back the marks that may be taken back next, and gives the candidates back as they
    /// came. Returns whether there were any: then the call is to be decided again. `tried` counts from 0.
    pub fn offers_more(&mut self, code: c_int, tried: u32) -> bool {
        let frame = self.frame;
        // Not the time of the call: cons_tres answers by the time at which it has been asked.
        let now = clock::now();
        let again = match frame.mode {
            Mode::WillRun => self.searches_sooner_forecast(Forecast {
                tried,
                now,
                start: (code == 0).then(|| frame.job.start_time()),
            }),
            _ if code != 0 && tried == 0 => {
                let spared = frame.call.skips_preemption();
                self.switchable.marks.offer_idle(spared, now)
            }
            _ => false,
        };
        for mark in self.switchable.marks.take_lifted() {
            frame.call.other_mode.revert_one(mark.number);
        }
        if again {
            frame.call.unanswered();
            frame.candidates.restore(&self.switchable.offers.all);
        }
        again
    }

    /// The same in a forecast, as long as one that is sooner can be found.
    fn searches_sooner_forecast(&mut self, answer: Forecast) -> bool {
        let (job, nodes) = (self.frame.job, self.frame.candidates);
        // Backfill's first question is about now only.
        let twofold = &mut self.switchable.twofold;
        let only_now = answer.tried == 0 && twofold.asked_unread(job.id(), job.beside_nobody());
        if only_now || !Marks::retries_forecast(answer.tried) {
            return false;
        }
        if (self.switchable.marks).take_forecast(&answer, |node| nodes.test(node)) {
            nodes.save(&mut self.switchable.offers.soonest);
        }
        if self.switchable.marks.starts_by(answer.now) {
            return false;
        }
        if answer.tried == 0 {
            self.date_marks(answer.now);
        }
        self.switchable.marks.offer_next(answer.tried)
    }

    /// Finds out when the jobs end that keep GPUs from the job of this call.
    fn date_marks(&mut self, now: i64) {
        let (source, ledger) = (&self.frame.source, self.ledger);
        let (selections, shards) = (self.selections, self.switchable.shards());
        let marks = &mut self.switchable.marks;
        ledger.for_each_job(|id, held| {
            if !held.iter().any(|one| marks.is_on(one.node as usize)) {
                return;
            }
            let Some(job) = source.job(id) else {
                return;
            };
            // What a job that runs has of a node, the node by its place among the job's.
            let bits_held = |place: usize, mode: GpuMode| {
                let all = |asked: &mut dyn Iterator<Item = JobGres<'_>>| {
                    asked.fold(0, |all, one| {
                        all | one.held(place).map_or(0, |bits| bits.chunk(0))
                    })
                };
                match (mode, selections.slices) {
                    (GpuMode::Slices, Some(gres)) => all(&mut source.asked(job, gres)),
                    (GpuMode::Whole, _) if selections.gpus => {
                        all(&mut source.gpus_asked(job)) | all(&mut source.asked(job, shards))
                    }
                    _ => 0,
                }
            };
            let end = job.soonest_end(now).max(now + 1);
            for (place, one) in held.iter().enumerate() {
                marks.ends(one.node as usize, end, |mode| bits_held(place, mode));
            }
        });
        marks.date();
    }

    /// Ends a call about a job that MIG-switchable GPUs could be given to: moves a forecast to when it has them, and says
    /// where it waits for them.
    pub fn finish_call(&mut self, code: c_int) -> c_int {
        let code = self.after_call(code);
        self.switchable.switch_back(self.frame.call);
        code
    }

    fn after_call(&mut self, mut code: c_int) -> c_int {
        let frame = self.frame;
        let (job, nodes) = (frame.job, frame.candidates);
        let (marks, offers) = (&self.switchable.marks, &self.switchable.offers);
        if let Some(start) = marks.start() {
            nodes.restore(&offers.soonest);
            job.set_start_time(start);
            let (_, until) = frame.call.asked_between(self.site.release);
            code = match marks.starts_too_late(until) {
                true => NOT_NOW,
                false => 0,
            };
        }
        if code != 0 {
            nodes.restore(&offers.all);
            let unknown = offers.unknown.iter();
            unknown.for_each(|node| nodes.set_bit(*node, true));
        }
        if code != 0 || frame.starts_later() {
            self.publish_reason();
        }
        code
    }

    /// Says that a job waits for GPUs of the other mode, where it would have room with them, or that it never gets them.
    fn publish_reason(&self) {
        let frame = self.frame;
        let job = frame.job;
        if !self.site.steers() || job.id() == 0 {
            return;
        }
        let (now, is_forecast) = (clock::now(), frame.is_forecast());
        let marks = &self.switchable.marks;
        let asks = self.switchable.asks.only();
        if asks.is_some() && marks.has_idle_later(now, is_forecast) {
            return self.publish_wait(asks, now);
        }
        if asks.is_none() && marks.has_never() {
            self.publish_never();
        }
    }

    fn publish_wait(&self, asks: Option<GpuMode>, now: i64) {
        let frame = self.frame;
        let (source, job) = (&frame.source, frame.job);
        let (gres, each, sum) = match asks {
            Some(GpuMode::Slices) => {
                let gres = self.switchable.slices();
                let asked = source.asked_once(job, gres);
                (gres, asked.map_or(1, JobGres::per_node), 0)
            }
            _ => {
                let all = source.sum(job, JobGres::per_job);
                (self.site.gpu.id, source.of_each_node(job), all)
            }
        };
        let wait = Wait {
            asks,
            is_forecast: frame.is_forecast(),
            now,
            nodes: frame.call.counts.min,
            each,
            sum,
            after: self.switchable.after,
            hold: self.switchable.hold,
        };
        let candidates = nodes_in(&self.switchable.offers.all).filter_map(|index| {
            let node = source.node(index)?;
            Some(Candidate {
                node: index,
                name: node.name(),
                free: source.gres(node, gres)?.free_units(),
            })
        });
        let Some(why) = self.switchable.marks.why_waits(&wait, candidates) else {
            return;
        };
        let sentence = match reasons::of(job.id()) {
            Some(other) => format!("{other}; {why}"),
            None => format!("gpuos: {why}"),
        };
        reasons::publish(frame, sentence);
    }

    fn publish_never(&self) {
        let frame = self.frame;
        let source = &frame.source;
        let each = source.of_each_node(frame.job);
        let nodes = nodes_in(&self.switchable.offers.all).filter_map(|index| {
            let gpus = source.gpus_of(index)?;
            Some((index, gpus.available()))
        });
        if let Some(why) = self.switchable.marks.why_never(each, nodes) {
            reasons::publish(frame, format!("gpuos: {why}"));
        }
    }
}
