//! One `job_test`, phase by phase: the list that all else hangs from. docs/internals/job-test.md draws it.

use std::ffi::c_int;

use crate::abi::call::{Call, NOT_NOW};
use crate::abi::frame::Frame;
use crate::decide::mix::Spare;
use crate::decide::{Answer, Decide, HandedOn};
use crate::engine::{self, Engine};
use crate::gres::registration::{self, Excluded};
use crate::gres::withhold::Withheld;
use crate::messages;
use crate::tell::reasons;

/// Steers one call, or hands it on as it came.
pub fn job_test(call: &Call) -> c_int {
    engine::with(|engine| engine.job_test(call)).unwrap_or_else(|| call.forward())
}

impl Engine {
    /// The phases of a call.
    fn job_test(&mut self, call: &Call) -> c_int {
        self.fetch();
        let Some(frame) = &self.frame(call) else {
            return call.forward();
        };
        // Until the call ends, for whoever decides it.
        self.show_shared(frame);
        self.switch(frame);
        let mut code = self.answer(frame);
        let mut tried = 0;
        while self.offers_more(frame, code, tried) {
            code = self.answer_again(frame);
            tried += 1;
        }
        code = self.finish_switching(frame, code);
        self.hide_shared(frame);
        if code != 0 {
            self.record_refusal(frame);
        }
        code
    }

    /// Withholds what is out of service, and has the call decided around it.
    fn answer(&mut self, frame: &Frame<'_>) -> c_int {
        let withheld = self.withhold(frame);
        let masked = frame.is_start() && frame.call.masks_gpus();
        if masked {
            frame.candidates.save(&mut self.placing.offered);
        }
        let mut code = match &withheld {
            Some(withheld) => self.decide_without(frame, withheld),
            None => self.decide(frame),
        };
        if masked && code == 0 {
            code = self.refuse_shortage(frame);
        }
        match &withheld {
            Some(withheld) => self.resolve_withheld(frame, code, withheld),
            None => code,
        }
    }

    /// A yes among GPUs of which some count as given: none where it gives the job less than it asks for. There is no other way to
    /// ask, as these GPUs are not for it.
    #[cold]
    fn refuse_shortage(&mut self, frame: &Frame<'_>) -> c_int {
        let read = (&self.site, &self.trust);
        let taken = (self.placing).takes_back(frame, read, 0, |job, given, asked, place| {
            messages::too_few_left(job, given, asked, place)
        });
        if !taken {
            return 0;
        }
        frame.candidates.restore(&self.placing.offered);
        NOT_NOW
    }

    /// Keeps candidates out, decides among the others, and settles what was kept out.
    fn decide(&mut self, frame: &Frame<'_>) -> c_int {
        let kept_out = self.keep_out(frame);
        let answer = self.choose(frame, &kept_out);
        self.settle(frame, answer, kept_out)
    }
}

/// Candidates that a call is not to be given, and why.
#[derive(Default)]
struct AllExcluded<'a> {
    /// slurmctld does not know them well enough yet.
    unregistered: Option<Excluded<'a>>,
    /// Rules forbid them to the job.
    forbidden: Option<Excluded<'a>>,
}

impl Engine {
    /// Has cons_tres see the shared GPUs that are in use, where the release forgets some.
    fn show_shared(&mut self, frame: &Frame<'_>) {
        if self.trust.reads_records() {
            self.cluster.shards.show(frame, self.site.release);
        }
    }

    fn hide_shared(&mut self, frame: &Frame<'_>) {
        self.cluster.shards.hide(frame);
    }

    /// Has MIG-switchable GPUs count as given where they are in the other mode.
    fn switch(&mut self, frame: &Frame<'_>) {
        if self.cluster.switchable.on && self.trust.reads_records() {
            let selections = self.selections();
            (self.cluster)
                .switching(&self.site, frame, selections)
                .switch();
        }
    }

    /// Takes back what may be offered next of them; whether there was any.
    fn offers_more(&mut self, frame: &Frame<'_>, code: c_int, tried: u32) -> bool {
        let selections = self.selections();
        self.cluster.switchable.applies
            && (self.cluster)
                .switching(&self.site, frame, selections)
                .offers_more(code, tried)
    }

    #[cold]
    fn answer_again(&mut self, frame: &Frame<'_>) -> c_int {
        frame.call.out_of_service.revert_all();
        match frame.is_forecast() {
            true => (frame.call).without_preemption(|| self.answer(frame)),
            false => self.answer(frame),
        }
    }

    fn finish_switching(&mut self, frame: &Frame<'_>, code: c_int) -> c_int {
        if !self.cluster.switchable.applies {
            return code;
        }
        let selections = self.selections();
        (self.cluster)
            .switching(&self.site, frame, selections)
            .finish_call(code)
    }

    /// Has GPUs that are out of service count as given.
    fn withhold(&mut self, frame: &Frame<'_>) -> Option<Withheld> {
        let selections = self.selections();
        (self.cluster)
            .withholding(&self.site, frame, selections)
            .withhold()
    }

    /// Names GPUs that cons_tres has only counted, as it would take those that were withheld, and says whom they keep
    /// waiting.
    #[cold]
    fn resolve_withheld(&mut self, frame: &Frame<'_>, code: c_int, withheld: &Withheld) -> c_int {
        let names = code == 0
            && frame.is_start()
            && !frame.call.out_of_service.is_empty()
            && self.trusts_selection(&frame.source, frame.job);
        let selections = self.selections();
        let withholding = self.cluster.withholding(&self.site, frame, selections);
        if names {
            withholding.name_the_sound();
        }
        withholding.publish_out_of_service(code, withheld);
        code
    }

    /// Takes candidates out of the call that the job is not to have.
    fn keep_out<'a>(&mut self, frame: &Frame<'a>) -> AllExcluded<'a> {
        let reads = self.trust.reads_records();
        if reads {
            self.placing.refused.begin(frame);
        }
        let unregistered = self.keep_out_unregistered(frame);
        let forbidden = match reads && self.cluster.neighbours.concern(&self.site, frame) {
            true => self.keep_out_forbidden(frame),
            false => None,
        };
        AllExcluded {
            unregistered,
            forbidden,
        }
    }

    /// Nodes that slurmctld does not know well enough yet, out of a GPU job's candidates; also when it
    /// asks for the time of a start, lest backfill plan a start that is then refused.
    fn keep_out_unregistered<'a>(&mut self, frame: &Frame<'a>) -> Option<Excluded<'a>> {
        let release = self.site.release;
        if !self.site.steers() || !registration::matters(release) {
            return None;
        }
        let (source, job) = (&frame.source, frame.job);
        if !job.gets_all_gres() && !source.wants_gpus(job) {
            return None;
        }
        self.cluster.registration.keep_out(release, frame)
    }

    /// Nodes that rules forbid to the job; also when Slurm asks for the time of a start: backfill is not to plan on
    /// them while they are forbidden.
    #[inline(never)]
    fn keep_out_forbidden<'a>(&mut self, frame: &Frame<'a>) -> Option<Excluded<'a>> {
        let (site, trust) = (&self.site, &mut self.trust);
        match self.cluster.open_book(site, trust, &frame.source) {
            true => self.cluster.neighbours.keep_out(frame),
            false => None,
        }
    }

    /// Chooses among the candidates that are left, where records are trusted.
    fn choose(&mut self, frame: &Frame<'_>, excluded: &AllExcluded<'_>) -> Answer {
        if !self.trust.reads_records() {
            return Answer::default();
        }
        let lacks = excluded.forbidden.is_some() && frame.lacks_a_named_node();
        // While gpuos.toml is broken nobody knows which slices make an instance, nor which belong to GPUs that others
        // may have whole.
        let broken = || self.site.settings.broken && self.cluster.slices.are_asked(frame);
        let answer = match lacks || broken() {
            true => Answer {
                code: Some(NOT_NOW),
                ..Answer::default()
            },
            false => self.run_decide(frame),
        };
        let spare = match answer.code {
            Some(code) if code != 0 => Spare::Refused,
            _ => Spare::Asked,
        };
        self.cluster.mix_works(&frame.source, spare);
        answer
    }

    fn deciding<'e, 'a>(&'e mut self, frame: &'e Frame<'a>) -> Decide<'e, 'a> {
        Decide {
            frame,
            site: &self.site,
            trust: &mut self.trust,
            cluster: &mut self.cluster,
            placing: &mut self.placing,
            answer: Answer::default(),
            fell_short: false,
            plain: 0,
        }
    }

    fn run_decide(&mut self, frame: &Frame<'_>) -> Answer {
        let mut answer = self.deciding(frame).run();
        if let Some(doubt) = answer.doubt.take() {
            self.apply_misfit(frame.job, doubt);
        }
        // Looked at again after cons_tres wrote its selection.
        if answer.planned && self.trusts_selection(&frame.source, frame.job) {
            let snapshot = &self.cluster.snapshot;
            crate::decide::note::complete(frame, snapshot, &self.placing.chosen);
        }
        answer
    }

    /// Has cons_tres answer what gpuos did not, and puts back what was kept out unless the answer is yes.
    fn settle(&mut self, frame: &Frame<'_>, answer: Answer, excluded: AllExcluded<'_>) -> c_int {
        let mut code = answer.code.unwrap_or_else(|| frame.call.forward());
        if answer.code.is_none() && answer.left != HandedOn::Elsewhere && code == 0 {
            self.deciding(frame).delegated_to_slurm(answer.left);
        }
        if let Some(forbidden) = excluded.forbidden {
            match code {
                0 => forbidden.done(),
                _ => drop(forbidden),
            }
            code = self.resolve_forbidden(frame, code);
        }
        if let Some(unregistered) = excluded.unregistered.filter(|_| code == 0) {
            unregistered.done();
        }
        code
    }

    /// Some candidates were kept from a job. Where it has to wait, says so, and tells backfill when the
    /// jobs that keep it away will have ended. Unless the answer was yes, the candidates are back.
    #[inline(never)]
    fn resolve_forbidden(&mut self, frame: &Frame<'_>, code: c_int) -> c_int {
        let Some(new) = self.cluster.neighbours.judged() else {
            return code;
        };
        if code == 0 && !frame.starts_later() {
            return code;
        }
        let code = match code {
            0 => 0,
            _ if frame.is_forecast() => self.start_after(frame, &new),
            _ => code,
        };
        if let Some(sentence) = self.cluster.neighbours.why_apart(frame, &new) {
            reasons::publish(frame, sentence);
        }
        code
    }

    /// The answer to "when could it start" where the job has to wait for its neighbours: as cons_tres
    /// says, but not before the last of them ends.
    fn start_after(&mut self, frame: &Frame<'_>, new: &gpuos_placement::rules::Newcomer) -> c_int {
        let mut saved = Vec::new();
        frame.candidates.save(&mut saved);
        if !self.cluster.neighbours.leave_for_later(frame, new) {
            return NOT_NOW;
        }
        let answer = self.run_decide(frame);
        let code = answer.code.unwrap_or_else(|| frame.call.forward());
        if code == 0 && self.cluster.neighbours.start_after_blockers(frame, new) {
            return 0;
        }
        frame.candidates.restore(&saved);
        NOT_NOW
    }

    /// Remembers why a job that asks for GPUs was refused, unless something else has said it.
    fn record_refusal(&self, frame: &Frame<'_>) {
        let (cluster, source) = (&self.cluster, &frame.source);
        if !frame.is_start() || !self.site.steers() || !self.trust.reads_records() {
            return;
        }
        let asks_for_shards = || cluster.shards.has_any() && cluster.shards.asked(frame).is_some();
        if source.wants_gpus(frame.job) || asks_for_shards() {
            self.placing.refused.record(frame, &cluster.snapshot);
        }
    }

    /// Decides a call without the candidates that a job which takes whole nodes is not offered.
    #[cold]
    fn decide_without(&mut self, frame: &Frame<'_>, withheld: &Withheld) -> c_int {
        let left_out = Excluded::new(frame.candidates, withheld.left_out.clone());
        let code = match left_out.is_some() && frame.lacks_a_named_node() {
            true => NOT_NOW,
            false => self.decide_around(frame, withheld),
        };
        if code == 0
            && let Some(left_out) = left_out
        {
            left_out.done();
        }
        code
    }

    /// What cons_tres thinks of the time when jobs have ended, or were preempted, counts on GPUs that stay
    /// out of service. So it is first asked without preemption; where that counts on such a GPU, without the nodes where
    /// a job holds such a GPU: nobody is preempted there. Only where nothing else is left, the forecast is the one for
    /// all nodes that have enough others; it may be too early.
    fn decide_around(&mut self, frame: &Frame<'_>, withheld: &Withheld) -> c_int {
        let (call, candidates) = (frame.call, frame.candidates);
        let forecast = frame.is_forecast();
        if withheld.held.is_empty() || !forecast && call.preemptable().is_null() {
            return self.decide(frame);
        }
        let mut all = Vec::new();
        candidates.save(&mut all);
        let code = call.without_preemption(|| self.decide(frame));
        if code == 0 && !(forecast && self.counts_on_held(frame, withheld)) {
            return code;
        }
        candidates.restore(&all);
        let without = Excluded::new(candidates, withheld.held.clone());
        let code = self.decide(frame);
        if code == 0 || !forecast {
            if let (0, Some(without)) = (code, without) {
                without.done();
            }
            return code;
        }
        drop(without);
        let sound = Excluded::new(candidates, withheld.too_few.clone());
        let code = call.without_preemption(|| self.decide(frame));
        if let (0, Some(sound)) = (code, sound) {
            sound.done();
        }
        code
    }

    fn counts_on_held(&mut self, frame: &Frame<'_>, withheld: &Withheld) -> bool {
        let selections = self.selections();
        (self.cluster)
            .withholding(&self.site, frame, selections)
            .counts_on_held(withheld)
    }
}
