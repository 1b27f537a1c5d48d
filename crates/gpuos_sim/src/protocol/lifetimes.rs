//! openb with lifetimes: jobs arrive at a given load, run as long as in the trace, and end.
//!
//! Jobs are drawn from the trace with replacement and arrive at random times of a period, whose
//! length makes the load: GPU time asked for over GPU time of the cluster. A job that fits
//! nowhere when it arrives is rejected. The period is run twice with the same arrivals and
//! measured the second time, when jobs of the first still run.
//!
//! A few jobs of the trace run for the whole of its five months. They would be all of the load,
//! so that lifetimes are cut at [`LONGEST`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gpuos_model::rng::Rng;
use gpuos_placement::frag::{MAX_DEVICES, MILLI, Request, State};

use super::{Cell, Running, shuffled};
use crate::policy::Contender;
use crate::trace::{Job, Nodes};

/// Lifetimes are cut here, in seconds: six hours, which nine of ten jobs do not reach.
pub const LONGEST: u64 = 6 * 3600;
/// Arrivals in a period, as a multiple of the jobs in the trace.
const COPIES: usize = 8;
/// Times at which the largest gang is looked for.
const LOOKS: u64 = 200;
/// What a task of that gang asks for: eight GPUs of a node, and eight cores for each.
const GANG_GPUS: usize = 8;
const GANG_CPU: u32 = 64_000;

/// One run.
pub struct Lifetimes {
    cell: Cell,
    jobs: Vec<(u64, Request, u64)>,
    next: usize,
    period: u64,
    now: u64,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    running: Vec<Option<Running>>,
    capacity: u64,
    /// GPU thousandths times seconds, in the second period.
    allocated: u128,
    offered: u128,
    rejected: u128,
    rejected_jobs: u64,
    gangs: u64,
    checked: u64,
}

/// What came out of a run. Parts are in millionths, so that they compare exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Mean over the time of the part of the GPUs that runs.
    pub allocated_ppm: u64,
    /// GPU time of rejected jobs over the GPU time asked for.
    pub rejected_ppm: u64,
    /// The same in GPU hours.
    pub rejected_gpu_hours: u64,
    /// Rejected jobs.
    pub rejected_jobs: u64,
    /// Mean over the time of the largest gang that still fits, in thousandths of a GPU: tasks
    /// with eight GPUs of one node and eight cores for each.
    pub gang_milli: u64,
}

impl Lifetimes {
    /// A run under a policy at a load in %. All chance is from `seed` and the same for all
    /// policies.
    ///
    /// # Errors
    ///
    /// A trace without lifetimes, or whose jobs with GPUs all end at once.
    pub fn new(
        cluster: &Nodes,
        jobs: &[Job],
        policy: impl Into<Contender>,
        load: u64,
        seed: u64,
    ) -> Result<Lifetimes, String> {
        let mut rng = Rng::new(seed);
        let mut drawn = Vec::new();
        let mut work = 0u128;
        for _ in 0..jobs.len() * COPIES {
            let job = jobs[rng.below(jobs.len() as u64) as usize];
            let lifetime = job.lifetime.ok_or(
                "the trace does not say how long jobs run: it needs the columns creation_time and \
                 deletion_time, filled for every job",
            )?;
            let lifetime = lifetime.min(LONGEST);
            work += u128::from(job.request.milli()) * u128::from(lifetime);
            drawn.push((0, job.request, lifetime));
        }
        let capacity = cluster.milli();
        let period = (work * 100 / (u128::from(capacity) * u128::from(load.max(1)))) as u64;
        if period == 0 {
            return Err("the jobs of the trace take no GPU time".into());
        }
        for job in &mut drawn {
            job.0 = rng.below(period);
        }
        drawn.sort_unstable();
        let mut again = drawn.clone();
        again.iter_mut().for_each(|job| job.0 += period);
        drawn.append(&mut again);
        let requests: Vec<Request> = jobs.iter().map(|job| job.request).collect();
        let nodes = shuffled(&cluster.nodes, &mut rng);
        let policy = policy.into().make(&requests, rng.bits());
        Ok(Lifetimes {
            cell: Cell::new(nodes, policy),
            running: vec![None; drawn.len()],
            jobs: drawn,
            next: 0,
            period,
            now: 0,
            ends: BinaryHeap::new(),
            capacity,
            allocated: 0,
            offered: 0,
            rejected: 0,
            rejected_jobs: 0,
            gangs: 0,
            checked: 0,
        })
    }

    /// How many jobs arrive in all.
    pub fn steps(&self) -> usize {
        self.jobs.len()
    }

    /// One job arrives, and all that end before it do. `false` after the last.
    pub fn step(&mut self) -> bool {
        let Some(&(at, request, lifetime)) = self.jobs.get(self.next) else {
            self.advance(2 * self.period);
            return false;
        };
        self.advance(at);
        let measured = at >= self.period;
        let work = u128::from(request.milli()) * u128::from(lifetime);
        if measured {
            self.offered += work;
        }
        match self.cell.arrive(&request) {
            Some(running) => {
                self.running[self.next] = Some(running);
                self.ends.push(Reverse((at + lifetime, self.next)));
            }
            None if measured => {
                self.rejected += work;
                self.rejected_jobs += 1;
            }
            None => {}
        }
        self.next += 1;
        true
    }

    /// Time goes on to `until`, and jobs end on the way.
    fn advance(&mut self, until: u64) {
        while let Some(&Reverse((at, job))) = self.ends.peek().filter(|end| end.0.0 <= until) {
            self.ends.pop();
            self.pass(at);
            if let Some(running) = self.running[job].take() {
                self.cell.end(running, &self.jobs[job].1);
            }
        }
        self.pass(until);
    }

    /// Nothing happens until `until`.
    fn pass(&mut self, until: u64) {
        let from = self.now.max(self.period);
        if until > from {
            self.allocated += u128::from(self.cell.allocated()) * u128::from(until - from);
            let look = |time: u64| (time - self.period) * LOOKS / self.period;
            if look(until) > look(from) {
                self.gangs += gang(self.cell.cluster().states());
                self.checked += 1;
            }
        }
        self.now = self.now.max(until);
    }

    /// What came out, after the last step.
    pub fn outcome(&self) -> Outcome {
        let all = u128::from(self.capacity) * u128::from(self.period);
        let part = |of: u128, whole: u128| (of * 1_000_000 / whole.max(1)) as u64;
        Outcome {
            allocated_ppm: part(self.allocated, all),
            rejected_ppm: part(self.rejected, self.offered),
            rejected_gpu_hours: (self.rejected / (3600 * u128::from(MILLI))) as u64,
            rejected_jobs: self.rejected_jobs,
            gang_milli: self.gangs * u64::from(MILLI) / self.checked.max(1),
        }
    }
}

/// GPUs of the largest gang that fits now.
fn gang(states: &[State]) -> u64 {
    let task =
        |state: &&State| state.cpu >= GANG_CPU && state.free[MAX_DEVICES - GANG_GPUS] == MILLI;
    (states.iter().filter(task).count() * GANG_GPUS) as u64
}
