//! Random starts, ends, suspensions, faults and restarts, with lists that come late or twice: no GPU is two running jobs' own.

use super::*;

/// What PBS has, and what it says late or twice.
struct Site {
    rng: Rng,
    mom: Mom,
    store: Memory,
    shared: usize,
    jobs: BTreeMap<JobId, MomJob>,
    /// What mom would have listed a little ago, since a list had all.
    stale: Option<Vec<MomJob>>,
    out: Vec<usize>,
    next: u32,
    /// What was chosen for runs that are here.
    had: BTreeMap<(JobId, u64), Choice>,
}

impl Site {
    fn new(seed: u64) -> Site {
        let store = Memory::default();
        let shared = (seed % 3) as usize;
        Site {
            rng: Rng::new(seed),
            mom: host(&[], shared, &store),
            store,
            shared,
            jobs: BTreeMap::new(),
            stale: None,
            out: Vec::new(),
            next: 1,
            had: BTreeMap::new(),
        }
    }

    fn below(&mut self, most: u64) -> u64 {
        self.rng.below(most)
    }

    fn any(&mut self) -> Option<MomJob> {
        let at = self.rng.below(self.jobs.len().max(1) as u64) as usize;
        self.jobs.values().nth(at).cloned()
    }

    /// What PBS has left, by what it counts: of GPUs that can be given, and of parts.
    fn left(&self) -> (u32, u32) {
        let whole = (0..8 - self.shared).filter(|gpu| !self.out.contains(gpu));
        let running = || self.jobs.values().filter(|job| !job.suspended);
        let parts: u32 = running().map(|job| u32::from(job.parts)).sum();
        let gpus: u32 = running().map(|job| job.count).sum();
        let all = (whole.count() as u32, 4 * self.shared as u32);
        (all.0.saturating_sub(gpus), all.1.saturating_sub(parts))
    }

    fn step(&mut self) {
        match self.below(12) {
            0..4 => self.starts(),
            4 | 5 => self.ends(),
            6 => self.suspends(),
            7 => {
                let gpus = self.below(3);
                self.out = (0..gpus).map(|_| self.rng.below(8) as usize).collect();
                out(&self.mom, &self.out);
            }
            8 => {
                self.mom = Mom::remembering("n1", Box::new(self.store.clone()));
                self.mom.patience = Duration::ZERO;
                out(&self.mom, &self.out);
                self.stale = None;
            }
            9 => {
                let listed = self.stale.take();
                let listed = listed.unwrap_or_else(|| self.jobs.values().cloned().collect());
                told(&self.mom, &list(&listed, self.shared, None));
            }
            _ => self.lists(),
        }
        self.check();
    }

    fn starts(&mut self) {
        let (gpus, parts) = self.left();
        let name = format!("{}.head", self.next);
        let (count, parts) = match self.below(4) {
            0 if parts > 0 => (0, 1 + self.below(u64::from(parts.min(4))) as u16),
            _ if gpus > 0 => (1 + self.below(u64::from(gpus)) as u32, 0),
            _ => return,
        };
        self.next += 1;
        let topologies = ["", "nvlink", "nvlink:required", "leaf:required"];
        let topology = topologies[self.below(4) as usize];
        let run = 1 + self.below(3);
        let job = MomJob {
            parts,
            topology: topology.into(),
            ..job(&name, run, count)
        };
        if self.mom.lock().heard.is_some() {
            let before = self.jobs.values().cloned().collect();
            self.stale.get_or_insert(before);
        }
        self.jobs.insert(job.job.clone(), job.clone());
        launch(&self.mom, &job);
    }

    fn ends(&mut self) {
        let Some(job) = self.any() else { return };
        self.jobs.remove(&job.job);
        if self.below(3) > 0 {
            ends(&self.mom, &job);
        }
        if self.below(2) > 0 {
            // It runs again.
            let job = MomJob {
                run: job.run + 1,
                suspended: false,
                ..job
            };
            let (gpus, parts) = self.left();
            if job.count <= gpus && u32::from(job.parts) <= parts {
                self.jobs.insert(job.job.clone(), job.clone());
                self.stale = None;
                launch(&self.mom, &job);
            }
        }
    }

    fn suspends(&mut self) {
        let Some(mut job) = self.any() else { return };
        let (gpus, parts) = self.left();
        if job.suspended && (job.count > gpus || u32::from(job.parts) > parts) {
            return;
        }
        job.suspended = !job.suspended;
        self.jobs.insert(job.job.clone(), job);
        self.stale = None;
        self.lists();
    }

    /// A list of now, once or twice, after which each job has its GPUs, or a sentence.
    fn lists(&mut self) {
        let jobs: Vec<MomJob> = self.jobs.values().cloned().collect();
        self.stale = None;
        for _ in 0..=self.below(2) {
            told(&self.mom, &list(&jobs, self.shared, None));
            told(
                &self.mom,
                &list(&jobs, self.shared, Some(MomHost::default())),
            );
        }
        for job in jobs {
            let choice = launch(&self.mom, &job);
            let wanted = job.count as usize + usize::from(job.parts > 0);
            assert!(
                !choice.refused.is_empty() || choice.gpus.len() == wanted,
                "{job:?} {choice:?}"
            );
            let strict = job.topology == "nvlink:required" || job.parts > 0;
            if !choice.refused.is_empty() && !strict {
                let free = self.free_beside(&job.job);
                assert!(free.len() < wanted, "{job:?} {choice:?} beside {free}");
            }
        }
    }

    /// Whole GPUs in service that no running job has.
    fn free_beside(&self, but: &JobId) -> GpuSet {
        let state = self.mom.lock();
        let whole = GpuSet::first(8 - self.shared).minus(set(&self.out));
        let choices = state.choices.all().filter(|(job, _)| *job != but);
        let runs = |job: &JobId| state.jobs.get(job).is_none_or(|held| !held.suspended);
        let taken = choices.filter(|(job, _)| runs(job));
        taken.fold(whole, |free, (_, choice)| {
            free.minus(choice.gpus.iter().copied().collect())
        })
    }

    /// What was chosen before stays, and what is new is in service and no running job's.
    fn check(&mut self) {
        let state = self.mom.lock();
        let mut now: BTreeMap<(JobId, u64), Choice> = BTreeMap::new();
        for (job, choice) in state.choices.all() {
            now.insert((job.clone(), choice.run), choice.clone());
        }
        let here = |job: &JobId, run: u64| self.jobs.get(job).is_some_and(|own| own.run == run);
        for ((job, run), choice) in &self.had {
            if here(job, *run) {
                assert_eq!(now.get(&(job.clone(), *run)), Some(choice), "{job}");
            }
        }
        let running = |job: &JobId| state.jobs.get(job).is_none_or(|held| !held.suspended);
        for (of, choice) in now.iter().filter(|(of, _)| !self.had.contains_key(of)) {
            let Some(held) = state.jobs.get(&of.0) else {
                continue;
            };
            let own: GpuSet = choice.gpus.iter().copied().collect();
            assert_eq!(own.len(), held.count as usize, "{of:?}");
            let all: GpuSet = choice.all().collect();
            assert!(
                all.and(set(&self.out)).is_empty(),
                "{of:?} {all} of {:?}",
                self.out
            );
            assert!(
                own.minus(GpuSet::first(8 - self.shared)).is_empty(),
                "{of:?}"
            );
            let set_of = |gpu: usize| gpu / 4;
            if held.topology == "nvlink:required" {
                let first = own.iter().next().map(set_of);
                assert!(
                    own.iter().all(|gpu| Some(set_of(gpu)) == first),
                    "{of:?} {own}"
                );
            }
            for (other, others) in now.iter().filter(|(other, _)| *other != of) {
                let theirs: GpuSet = others.gpus.iter().copied().collect();
                let both = own.and(theirs);
                // Of a suspended one that was given its own before it.
                let later = !running(&of.0) && !self.had.contains_key(other);
                assert!(
                    !running(&other.0) || later || both.is_empty(),
                    "{of:?} {other:?} {both}"
                );
            }
            if let Some(gpu) = choice.shared {
                let sharers = now.iter().filter(|(one, _)| running(&one.0));
                let sharers = sharers.filter(|(_, one)| one.shared == Some(gpu));
                let parts: u16 = sharers.map(|(_, one)| one.parts).sum();
                assert!(parts <= 4, "{gpu} has {parts}");
            }
        }
        drop(state);
        self.had = now;
    }
}

/// Three, and 100 with `$GPUOS_LONG` (`make random`): each chooses some thousand times, which takes seconds.
fn seeds() -> u64 {
    match std::env::var_os("GPUOS_LONG") {
        Some(_) => 100,
        None => 3,
    }
}

#[test]
fn whatever_comes_late_or_twice_no_gpu_is_two_running_jobs_own() {
    for seed in 0..seeds() {
        let mut site = Site::new(seed);
        for _ in 0..250 {
            site.step();
        }
        site.lists();
    }
}
