//! MIG mode of GPUs that move: on when the first step of a job with slices there comes, off when that of a job comes that has
//! the GPU whole, and otherwise as it is. What it is now, NVML says: nothing of it is kept.
//!
//! A mode changes where nobody of the other kind has the GPU by Slurm's records, which are asked for anew before, and no
//! instance is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::limits::Holder;

use super::super::Owner;
use super::steps::{Waiting, refuse};
use crate::mig::pool::slices_text;
use crate::mig::{Kept, Task, View};
use crate::queue::Task as WorkloadTask;

/// Who uses a GPU that is to change may take so long to go.
const HELD: Duration = Duration::from_secs(10);
/// What is in the way of a change is looked at again so often.
const AGAIN: Duration = Duration::from_secs(1);

/// A change of MIG mode that jobs wait for.
pub(super) struct Switch {
    on: bool,
    /// Slurm's records count that were asked for since.
    records: Instant,
    /// It was asked for them then.
    asked: Option<Instant>,
    /// The driver is at it.
    begun: bool,
    /// When it was tried last.
    tried: Option<Instant>,
    /// What is in the way, in a sentence, and since when.
    held: Option<(Instant, String)>,
}

/// What a step is told.
pub(super) enum Stand {
    /// Not yet.
    Waits,
    /// Why it never will be.
    Refused(String),
    /// Its variables.
    Ready(BTreeMap<String, String>),
}

impl Owner {
    /// Whether a step with these GPUs of GRES `gpu` has to wait until they are whole. `asks`: it waits for an answer.
    pub(in super::super) fn mig_moves(&self, gpus: &[u8], asks: bool) -> bool {
        let moves = |gpu: &u8| self.mig.moving.values().any(|one| one == gpu);
        gpus.iter().any(moves) || asks && !self.mig.configured
    }

    /// NVML's indexes of those of GPUs of GRES `gpu` that move. `None`: the library has not shown which they are.
    pub(super) fn mig_whole_of(&self, gpus: &BTreeSet<u8>) -> Option<BTreeSet<u8>> {
        if self.mig.moving.is_empty() {
            return Some(BTreeSet::new());
        }
        let own = self.found.iter().filter(|gpu| gpus.contains(&gpu.gres));
        let moves = own.map(|gpu| gpu.nvml);
        let moves = moves.filter(|gpu| self.mig.moving.contains_key(gpu));
        (!self.found.is_empty()).then(|| moves.collect())
    }

    /// Who decides about power limits, clocks and MPS: not of GPUs that are still divided, and no job all of whose steps wait
    /// for GPUs that are not known to be whole.
    pub(in super::super) fn mig_holders_of_whole(&self) -> Vec<Holder> {
        let mut all = self.jobs.holders();
        let is_divided =
            |gpu: &u8| matches!(self.mig.views.get(gpu), Some(Ok(view)) if !view.whole);
        let divided = self.mig.moving.iter().filter(|(gpu, _)| is_divided(gpu));
        let divided: BTreeSet<u8> = divided.map(|(_, number)| *number).collect();
        for holder in &mut all {
            holder.gpus.retain(|gpu| !divided.contains(gpu));
        }
        all.retain(|holder| {
            let steps = self
                .jobs
                .jobs
                .get(&holder.job)
                .map_or(0, |held| held.steps.len());
            let own = self
                .mig
                .waiting
                .iter()
                .filter(|one| one.id.job == holder.job);
            let to_come = |(gpu, _): &(&u8, &u8)| !self.mig_shown_whole(**gpu);
            let to_come = self.mig.moving.iter().filter(to_come);
            let to_come: BTreeSet<u8> = to_come.map(|(_, number)| *number).collect();
            let waits = own.filter(|one| !one.gpus.is_disjoint(&to_come)).count();
            waits == 0 || waits < steps
        });
        all
    }

    /// Where gres.conf does not number GPUs that move as their place in gpuos.toml does: a sentence.
    pub(super) fn mig_misnumbered(&self) -> Option<String> {
        let mut wrong = self.mig.moving.iter().filter(|_| !self.found.is_empty());
        wrong.find_map(|(gpu, number)| self.misnumbered(*gpu, *number))
    }

    fn misnumbered(&self, gpu: u8, number: u8) -> Option<String> {
        let found = self.found.iter().find(|found| found.nvml == gpu);
        let is = match found {
            Some(found) if found.gres == number => return None,
            Some(found) => format!("by gres.conf it is {}", found.gres),
            None => "gres.conf does not have it".into(),
        };
        Some(format!(
            "GPU {gpu} is in `moving` of a [[mig.pool]] and therefore number {number} of GRES gpu, but {is}: list GRES gpu in \
             gres.conf by NVML's index without the GPUs that are in MIG mode for good; until then its MIG mode stays"
        ))
    }

    /// Why a step with these GPUs of GRES `gpu` must not run: it is not known which GPUs they are.
    pub(super) fn mig_misnamed(&self, gpus: &BTreeSet<u8>) -> Option<String> {
        let named = |(_, number): &(&u8, &u8)| !self.found.is_empty() && gpus.contains(*number);
        let mut named = self.mig.moving.iter().filter(named);
        named.find_map(|(gpu, number)| self.misnumbered(*gpu, *number))
    }

    /// Whether a GPU has been seen whole since then, and stays so.
    pub(super) fn mig_is_whole(&self, gpu: u8, since: Instant) -> bool {
        self.mig_mode_since(gpu, since) == Some(false) && !self.mig.switches.contains_key(&gpu)
    }

    /// Whether all GPUs of a step that moved when gpuos.toml could be read last have been seen whole since it came.
    pub(super) fn mig_is_whole_as_known(&self, one: &Waiting) -> bool {
        let own = self.mig_whole_of(&one.gpus).unwrap_or_default();
        let whole = own.iter().all(|gpu| self.mig_is_whole(*gpu, one.since));
        !own.is_empty() && whole && self.mig_misnamed(&one.gpus).is_none()
    }

    /// Looks at GPUs that move while gpuos.toml cannot be read: nothing else asks for that.
    pub(super) fn tick_mig_unread(&mut self) {
        let waits = self.mig.waiting.iter().any(|one| one.ask.is_none());
        if !waits || self.mig.pool.is_some() {
            return;
        }
        for gpu in self.mig.moving.keys().copied().collect::<Vec<u8>>() {
            if !self.mig.looking.contains_key(&gpu) {
                self.mig_look(gpu);
            }
        }
    }

    /// Whether a job has the GPU whole as one of its steps before this one had it: nobody else has changed that since.
    pub(super) fn mig_was_whole(&self, one: &Waiting, gpu: u8) -> bool {
        let served = self.mig.served.get(&one.id.job);
        one.later && served.is_some_and(|gpus| gpus.contains(&gpu)) && self.mig_shown_whole(gpu)
    }

    /// Whether a GPU was whole when it was looked at last, and stays so.
    fn mig_shown_whole(&self, gpu: u8) -> bool {
        let view = self.mig.views.get(&gpu);
        matches!(view, Some(Ok(view)) if view.whole) && !self.mig.switches.contains_key(&gpu)
    }

    /// A step of a job may run. Its failures are forgotten once the job has all that it is to have here.
    pub(super) fn mig_succeeded(&mut self, job: u32) {
        let has_all = self.mig.grants.get(&job).is_some_and(|grant| {
            let mut whole = grant.whole.iter().filter_map(|gpu| u8::try_from(gpu).ok());
            whole.all(|gpu| self.mig_shown_whole(gpu)) && self.mig.ready(job, grant).is_some()
        });
        if has_all {
            self.mig.failures.remove(&job);
        }
    }

    /// Whether MIG mode is on by what NVML has shown since then.
    fn mig_mode_since(&self, gpu: u8, since: Instant) -> Option<bool> {
        let seen = self.mig.seen.get(&gpu).is_some_and(|at| *at >= since);
        let view = self.mig.views.get(&gpu)?.as_ref().ok();
        view.filter(|_| seen).map(|view| !view.whole)
    }

    /// A GPU is to be divided, or to be whole.
    pub(super) fn mig_want(&mut self, gpu: u8, on: bool) {
        let records = self.now();
        let new = Switch {
            on,
            records,
            asked: None,
            begun: false,
            tried: None,
            held: None,
        };
        // Another change of it comes to its end first.
        self.mig.switches.entry(gpu).or_insert(new);
    }

    /// Has done what steps wait for.
    pub(super) fn mig_modes(&mut self) {
        let mut asks = Vec::new();
        let mut wants = BTreeSet::new();
        for one in self.mig.waiting.iter().filter(|one| one.failed.is_none()) {
            for gpu in self.mig_whole_of(&one.gpus).unwrap_or_default() {
                if self.mig_mode_since(gpu, one.since) == Some(true) {
                    wants.insert(gpu);
                    asks.extend((!one.granted && !one.asked_record).then_some(one.id.job));
                }
            }
        }
        for job in asks {
            self.queue.push_first(WorkloadTask::Job(job));
        }
        for gpu in wants {
            self.mig_want(gpu, false);
        }
        for gpu in self.mig.switches.keys().copied().collect::<Vec<u8>>() {
            self.mig_switch(gpu);
        }
    }

    /// Jobs that wait for a change.
    fn mig_wait_for(&self, gpu: u8, on: bool) -> BTreeSet<u32> {
        match on {
            true => {
                let grants = self.mig.grants.iter().filter(|(_, grant)| grant.wanted);
                let lacks = grants.filter(|(job, grant)| {
                    let mut own = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
                    own.any(|piece| !self.mig.is_claimed(**job, piece))
                });
                lacks.map(|(job, _)| *job).collect()
            }
            false => {
                let has = |one: &&Waiting| {
                    let own = self.mig_whole_of(&one.gpus).unwrap_or_default();
                    one.failed.is_none() && own.contains(&gpu)
                };
                let waiting = self.mig.waiting.iter().filter(has);
                waiting.map(|one| one.id.job).collect()
            }
        }
    }

    /// Jobs that have a GPU as the other kind, by Slurm's records.
    fn mig_others(&self, gpu: u8, on: bool) -> BTreeSet<u32> {
        let Some(pool) = &self.mig.pool else {
            return BTreeSet::new();
        };
        if on {
            let number = self.mig.moving.get(&gpu);
            let whole = number.map(|number| self.jobs.on(*number));
            return whole.into_iter().flatten().collect();
        }
        let bits = pool.all_bits(gpu);
        let grants = self.mig.grants.iter().map(|(job, grant)| (job, grant.bits));
        let given = self.mig.given.iter().map(|(job, bits)| (job, *bits));
        let own = grants.chain(given).filter(|(_, own)| own & bits != 0);
        own.map(|(job, _)| *job).collect()
    }

    /// Goes on with a change, as far as it can.
    fn mig_switch(&mut self, gpu: u8) {
        let now = self.now();
        let Some(switch) = self.mig.switches.get(&gpu).filter(|switch| !switch.begun) else {
            return;
        };
        let (on, records) = (switch.on, switch.records);
        let is = self.mig_mode_since(gpu, records);
        let late = |at: Option<Instant>| at.is_none_or(|at| now.duration_since(at) >= AGAIN);
        let (ask, tries) = (late(switch.asked), late(switch.tried));
        let jobs = self.mig_wait_for(gpu, on);
        if jobs.is_empty() || is == Some(on) {
            self.mig.switches.remove(&gpu);
            return;
        }
        if self.mig.pool.is_none() || self.found.is_empty() {
            return;
        }
        let number = self.mig.moving.get(&gpu).copied();
        let wrong = match number {
            Some(number) => self.misnumbered(gpu, number),
            None => Some(format!(
                "GPU {gpu} is not in `moving` of gpuos.toml any more"
            )),
        };
        if let Some(why) = wrong {
            self.mig_kept(gpu, &why);
            return;
        }
        if self.mig.told.is_none_or(|at| at < records) {
            if ask && now >= self.not_before {
                let mark = self.jobs.mark();
                self.queue.push_first(WorkloadTask::Jobs(mark));
                self.mig
                    .switches
                    .entry(gpu)
                    .and_modify(|one| one.asked = Some(now));
            }
            return;
        }
        if !on && !self.mig_given_whole(gpu, &jobs) {
            return;
        }
        let mut others = self.mig_others(gpu, on);
        others.retain(|job| on || !jobs.contains(job));
        if let Some(job) = others.iter().find(|job| self.mig.running.contains(job)) {
            let why = match on {
                true => format!("GPU {gpu} cannot be divided: job {job} has it whole"),
                false => format!("GPU {gpu} cannot be whole: job {job} has slices of it"),
            };
            self.mig_kept(gpu, &why);
            return;
        }
        if let (Some(job), Some(switch)) = (others.first(), self.mig.switches.get_mut(&gpu)) {
            // It ends, or slurmctld knows it no more: what holds then is asked for again.
            switch.records = now;
            switch.asked = Some(now);
            let why = format!("GPU {gpu} is kept by job {job}, which ends");
            switch.held = Some((now, why));
            return;
        }
        if !tries || !on && !self.mig_is_empty(gpu) {
            return;
        }
        if let Some(switch) = self.mig.switches.get_mut(&gpu) {
            (switch.begun, switch.tried) = (true, Some(now));
            self.ports.mig.begin(gpu, Task::Mode(on));
        }
    }

    /// Whether Slurm has said that the jobs have the GPU; those to which it has not given it are told so.
    fn mig_given_whole(&mut self, gpu: u8, jobs: &BTreeSet<u32>) -> bool {
        let mut all = true;
        for job in jobs {
            let mut own = self.mig.waiting.iter().filter(|one| one.id.job == *job);
            if !own.any(|one| one.granted) {
                all = false;
                continue;
            }
            let grant = self.mig.grants.get(job);
            if !grant.is_some_and(|grant| grant.whole.contains(usize::from(gpu))) {
                let why = format!("Slurm has not given GPU {gpu} to job {job}");
                self.mig_refuse(*job, &why, refuse);
                all = false;
            }
        }
        all
    }

    /// Whether no instance is left on a GPU. Those of jobs that are over are on their way out; one of nobody may stay.
    fn mig_is_empty(&mut self, gpu: u8) -> bool {
        let carver = self.mig.carvers.get(&gpu);
        let claims = carver.map(|carver| carver.claims()).unwrap_or_default();
        let busy = carver.is_some_and(|carver| carver.calling());
        let none = View::default();
        let view = match self.mig.views.get(&gpu) {
            Some(Ok(view)) => view,
            _ => &none,
        };
        if claims.is_empty() && view.shown.is_empty() && !busy {
            return true;
        }
        let of_nobody = claims.is_empty().then(|| view.shown.first()).flatten();
        let why = of_nobody.map(|one| {
            let slices = slices_text(one.window);
            format!(
                "GPU {gpu}: GPU instance {} in memory slices {slices} was made by nobody that gpuos knows and stays",
                one.gi
            )
        });
        match why {
            Some(why) => self.mig_held(gpu, why),
            None => {
                let why = format!("GPU {gpu}: instances of jobs that are over are not gone");
                let now = self.now();
                self.mig
                    .switches
                    .entry(gpu)
                    .and_modify(|one| one.held = Some((now, why)));
            }
        }
        false
    }

    /// Something is in the way that may go.
    fn mig_held(&mut self, gpu: u8, why: String) {
        let now = self.now();
        let Some(switch) = self.mig.switches.get_mut(&gpu) else {
            return;
        };
        let since = switch.held.take().map_or(now, |(since, _)| since);
        switch.held = Some((since, why.clone()));
        // It may have gone unseen.
        if switch
            .tried
            .is_none_or(|at| now.duration_since(at) >= AGAIN)
        {
            switch.tried = Some(now);
            self.mig_look(gpu);
        }
        if now.duration_since(since) >= HELD {
            self.mig_kept(gpu, &why);
        }
    }

    /// A GPU does not change: who waits for it is told.
    fn mig_kept(&mut self, gpu: u8, why: &str) {
        let Some(switch) = self.mig.switches.remove(&gpu) else {
            return;
        };
        for job in self.mig_wait_for(gpu, switch.on) {
            self.mig_fail(job, why);
        }
        self.mig_look(gpu);
    }

    /// The driver has changed a mode, or not.
    pub(super) fn mig_switched(&mut self, gpu: u8, on: bool, told: Result<(), Kept>) {
        if let Some(switch) = self.mig.switches.get_mut(&gpu) {
            switch.begun = false;
        }
        match told {
            Ok(()) => {
                self.mig.switches.remove(&gpu);
                if let Some(Ok(view)) = self.mig.views.get_mut(&gpu) {
                    view.whole = !on;
                }
                let what = if on { "is in MIG mode" } else { "is whole" };
                self.mig_note(None, format!("GPU {gpu} {what} now"));
                self.mig_look(gpu);
            }
            Err(Kept::Used(why)) => {
                let state = if on { "on" } else { "off" };
                let why = format!("GPU {gpu}: its MIG mode cannot be turned {state}: {why}");
                self.mig_held(gpu, why);
            }
            Err(Kept::Refused(why)) => self.mig_kept(gpu, &format!("GPU {gpu}: {why}")),
        }
    }

    /// What keeps a GPU from changing, for those who waited too long.
    pub(super) fn mig_in_the_way(&self) -> Option<String> {
        let mut held = self.mig.switches.values();
        held.find_map(|switch| Some(switch.held.as_ref()?.1.clone()))
    }
}
