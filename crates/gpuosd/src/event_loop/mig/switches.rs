//! MIG mode of MIG-switchable GPUs: on when the first step of a job with slices there comes, off when that of a job comes that has
//! the GPU whole, and otherwise as it is. What it is now, NVML says: nothing of it is kept.
//!
//! A mode changes where nobody of the other kind has the GPU by Slurm's records, which are asked for anew before, and no
//! instance is left.

use gpuos_core::job::JobId;
use gpuos_model::gpu_index::NvmlIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Who uses a GPU that is to change may take so long to go.
const HELD: Duration = Duration::from_secs(10);
/// What is in the way of a change is looked at again so often.
const AGAIN: Duration = Duration::from_secs(1);

/// A change of MIG mode that jobs wait for.
struct Switch {
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

/// What is left on a GPU that is to be whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// An instance of nobody, which may stay: a sentence.
    OfNobody(String),
    /// Those of jobs that are over, which are on their way out.
    OfJobs,
}

/// What a change depends on.
pub struct Facts {
    /// Jobs that wait for it.
    pub waiting: BTreeSet<JobId>,
    /// MIG mode is on, by what was seen since the change was asked for.
    pub is_on: Option<bool>,
    /// It is not known who the GPUs are, or how they are divided.
    pub unknown: bool,
    /// Why the mode stays for good.
    pub wrong: Option<String>,
    /// When Slurm was asked for the records that are known.
    pub records: Option<Instant>,
    /// It may be asked.
    pub may_ask: bool,
    /// Slurm has not said of all jobs that wait what they have.
    pub jobs_pending: bool,
    /// Of those of which it has, the jobs to which it has not given the GPU.
    pub not_allocated: Vec<JobId>,
    /// Jobs that have the GPU as the other kind, by Slurm's records.
    pub others: BTreeSet<JobId>,
    /// Jobs that run and do not end.
    pub running: BTreeSet<JobId>,
    /// What is left on it.
    pub left: Left,
}

/// What is to be done for a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing yet.
    Wait,
    /// Ask slurmctld for all jobs of the node.
    AskJobs,
    /// Tell the steps of these jobs that they do not have the GPU.
    Refuse(Vec<JobId>),
    /// Have the driver turn it on or off.
    Turn(bool),
    /// See whether what was in the way has gone unseen.
    Probe,
    /// Give it up: why.
    Keep(String),
}

/// Changes that jobs wait for, by NVML's index of the GPU.
#[derive(Default)]
pub struct Switches(BTreeMap<NvmlIndex, Switch>);

impl Switches {
    /// GPUs that change.
    pub fn gpus(&self) -> Vec<NvmlIndex> {
        self.0.keys().copied().collect()
    }

    /// Whether a GPU is one of them.
    pub fn has(&self, gpu: NvmlIndex) -> bool {
        self.0.contains_key(&gpu)
    }

    /// Whether a GPU is to be divided, and since when records count for that; not while the driver is at it.
    pub fn wanted(&self, gpu: NvmlIndex) -> Option<(bool, Instant)> {
        let switch = self.0.get(&gpu).filter(|switch| !switch.begun)?;
        Some((switch.on, switch.records))
    }

    /// What keeps a GPU from changing, for those who waited too long.
    pub fn in_the_way(&self) -> Option<String> {
        let mut held = self.0.values();
        held.find_map(|switch| Some(switch.held.as_ref()?.1.clone()))
    }

    /// A GPU is to be divided, or to be whole. Another change of it comes to its end first.
    pub fn want(&mut self, gpu: NvmlIndex, on: bool, now: Instant) {
        let new = Switch {
            on,
            records: now,
            asked: None,
            begun: false,
            tried: None,
            held: None,
        };
        self.0.entry(gpu).or_insert(new);
    }

    /// A change is over. Returns whether the GPU was to be divided.
    pub fn over(&mut self, gpu: NvmlIndex) -> Option<bool> {
        self.0.remove(&gpu).map(|switch| switch.on)
    }

    /// Goes on with a change, as far as it can.
    pub fn step(&mut self, gpu: NvmlIndex, facts: &Facts, now: Instant) -> Next {
        let Some(switch) = self.0.get_mut(&gpu).filter(|switch| !switch.begun) else {
            return Next::Wait;
        };
        let on = switch.on;
        if facts.waiting.is_empty() || facts.is_on == Some(on) {
            self.0.remove(&gpu);
            return Next::Wait;
        }
        if facts.unknown {
            return Next::Wait;
        }
        if let Some(why) = &facts.wrong {
            return Next::Keep(why.clone());
        }
        let late = |at: Option<Instant>| at.is_none_or(|at| now.duration_since(at) >= AGAIN);
        if facts.records.is_none_or(|at| at < switch.records) {
            if late(switch.asked) && facts.may_ask {
                switch.asked = Some(now);
                return Next::AskJobs;
            }
            return Next::Wait;
        }
        if !on && !facts.not_allocated.is_empty() {
            return Next::Refuse(facts.not_allocated.clone());
        }
        if !on && facts.jobs_pending {
            return Next::Wait;
        }
        let waits = |job: &&JobId| on || !facts.waiting.contains(job);
        let others: Vec<JobId> = facts.others.iter().filter(waits).cloned().collect();
        if let Some(job) = others.iter().find(|job| facts.running.contains(job)) {
            return Next::Keep(match on {
                true => format!("GPU {gpu} cannot be divided: job {job} has it whole"),
                false => format!("GPU {gpu} cannot be whole: job {job} has slices of it"),
            });
        }
        if let Some(job) = others.first() {
            // It ends, or slurmctld knows it no more: what holds then is asked for again.
            (switch.records, switch.asked) = (now, Some(now));
            let why = format!("GPU {gpu} is kept by job {job}, which ends");
            switch.held = Some((now, why));
            return Next::Wait;
        }
        if !late(switch.tried) {
            return Next::Wait;
        }
        match &facts.left {
            Left::OfNobody(why) if !on => return self.held(gpu, why.clone(), now),
            Left::OfJobs if !on => {
                let why = format!("GPU {gpu}: instances of jobs that are over are not gone");
                switch.held = Some((now, why));
                return Next::Wait;
            }
            _ => {}
        }
        (switch.begun, switch.tried) = (true, Some(now));
        Next::Turn(on)
    }

    /// Something is in the way that may go.
    pub fn held(&mut self, gpu: NvmlIndex, why: String, now: Instant) -> Next {
        let Some(switch) = self.0.get_mut(&gpu) else {
            return Next::Wait;
        };
        let since = switch.held.take().map_or(now, |(since, _)| since);
        switch.held = Some((since, why.clone()));
        if now.duration_since(since) >= HELD {
            return Next::Keep(why);
        }
        // It may have gone unseen.
        if switch
            .tried
            .is_none_or(|at| now.duration_since(at) >= AGAIN)
        {
            switch.tried = Some(now);
            return Next::Probe;
        }
        Next::Wait
    }

    /// The driver has come to an end.
    pub fn turned(&mut self, gpu: NvmlIndex) {
        if let Some(switch) = self.0.get_mut(&gpu) {
            switch.begun = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: NvmlIndex = NvmlIndex::new(3).unwrap();

    /// Job 7 waits, and nothing is in the way.
    fn free(records: Instant) -> Facts {
        Facts {
            waiting: [7].map(JobId::from).into(),
            is_on: None,
            unknown: false,
            wrong: None,
            records: Some(records),
            may_ask: true,
            jobs_pending: false,
            not_allocated: Vec::new(),
            others: BTreeSet::new(),
            running: [7, 8].map(JobId::from).into(),
            left: Left::Nothing,
        }
    }

    fn wanted(on: bool) -> (Switches, Instant) {
        let (mut switches, now) = (Switches::default(), Instant::now());
        switches.want(GPU, on, now);
        (switches, now)
    }

    fn after(now: Instant, ms: u64) -> Instant {
        now + Duration::from_millis(ms)
    }

    #[test]
    fn slurm_is_asked_anew_before_a_mode_changes() {
        for on in [true, false] {
            let (mut switches, now) = wanted(on);
            let mut facts = free(now);
            facts.records = None;
            facts.may_ask = false;
            assert_eq!(switches.step(GPU, &facts, now), Next::Wait);
            facts.may_ask = true;
            assert_eq!(switches.step(GPU, &facts, now), Next::AskJobs);
            assert_eq!(switches.step(GPU, &facts, after(now, 900)), Next::Wait);
            assert_eq!(switches.step(GPU, &facts, after(now, 1000)), Next::AskJobs);
            let facts = free(now);
            assert_eq!(switches.step(GPU, &facts, now), Next::Turn(on));
            assert_eq!(switches.step(GPU, &facts, now), Next::Wait, "it is at it");
            assert_eq!(switches.over(GPU), Some(on));
        }
    }

    #[test]
    fn a_change_that_nobody_waits_for_or_that_is_done_is_over() {
        for change in [
            |facts: &mut Facts| facts.waiting.clear(),
            |facts: &mut Facts| facts.is_on = Some(true),
        ] {
            let (mut switches, now) = wanted(true);
            let mut facts = free(now);
            change(&mut facts);
            assert_eq!(switches.step(GPU, &facts, now), Next::Wait);
            assert!(!switches.has(GPU));
        }
    }

    #[test]
    fn a_job_of_the_other_kind_keeps_it_as_long_as_it_runs() {
        let (mut switches, now) = wanted(true);
        let mut facts = free(now);
        facts.others = [8].map(JobId::from).into();
        let why = "GPU 3 cannot be divided: job 8 has it whole";
        let next = switches.step(GPU, &facts, now);
        assert_eq!(next, Next::Keep(why.into()));
        // It ends: then it is asked for once more.
        facts.running.remove(&8.into());
        assert_eq!(switches.step(GPU, &facts, after(now, 1)), Next::Wait);
        let why = "GPU 3 is kept by job 8, which ends";
        assert_eq!(switches.in_the_way().as_deref(), Some(why));
        assert_eq!(switches.step(GPU, &facts, after(now, 2000)), Next::AskJobs);
        let later = after(now, 2500);
        assert_eq!(switches.step(GPU, &free(later), later), Next::Turn(true));
        // The job itself has slices of a GPU that is to be whole for it, with whole nodes.
        let (mut switches, now) = wanted(false);
        let mut facts = free(now);
        facts.others = [7].map(JobId::from).into();
        assert_eq!(switches.step(GPU, &facts, now), Next::Turn(false));
    }

    #[test]
    fn a_gpu_that_slurm_has_not_given_is_refused() {
        let (mut switches, now) = wanted(false);
        let mut facts = free(now);
        (facts.waiting, facts.jobs_pending) = ([7, 9].map(JobId::from).into(), true);
        assert_eq!(switches.step(GPU, &facts, now), Next::Wait);
        facts.not_allocated = vec![9.into()];
        assert_eq!(
            switches.step(GPU, &facts, now),
            Next::Refuse(vec![9.into()])
        );
        // Instances are another's business: slices are given by their own record.
        let (mut switches, now) = wanted(true);
        assert_eq!(
            switches.step(GPU, &facts_of_slices(now), now),
            Next::Turn(true)
        );
    }

    fn facts_of_slices(now: Instant) -> Facts {
        let mut facts = free(now);
        (facts.jobs_pending, facts.not_allocated) = (true, vec![7.into()]);
        facts
    }

    #[test]
    fn an_instance_of_nobody_is_waited_for_ten_seconds() {
        let (mut switches, now) = wanted(false);
        let mut facts = free(now);
        facts.left = Left::OfNobody("GPU 3: somebody".into());
        let mut looks = 0;
        for ms in (0..10_000).step_by(500) {
            match switches.step(GPU, &facts, after(now, ms)) {
                Next::Probe => looks += 1,
                Next::Wait => {}
                other => panic!("{other:?} after {ms} ms"),
            }
        }
        assert_eq!(looks, 10, "once a second");
        let next = switches.step(GPU, &facts, after(now, 10_000));
        assert_eq!(next, Next::Keep("GPU 3: somebody".into()));
        // Those of jobs that are over go.
        let (mut switches, now) = wanted(false);
        (facts.left, facts.records) = (Left::OfJobs, Some(now));
        assert_eq!(switches.step(GPU, &facts, after(now, 60_000)), Next::Wait);
        facts.left = Left::Nothing;
        let next = switches.step(GPU, &facts, after(now, 60_000));
        assert_eq!(next, Next::Turn(false));
    }
}
