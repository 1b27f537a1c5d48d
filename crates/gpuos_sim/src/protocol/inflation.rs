//! The openb inflation protocol: jobs arrive and never end.
//!
//! The jobs of the trace in a random order, then jobs drawn from the trace with replacement,
//! until the GPUs asked for are 130 % of the cluster's. A job that fits nowhere is rejected.
//! Measured is the part of the cluster's GPUs that runs, in thousandths of a GPU.

use gpuos_model::rng::Rng;
use gpuos_placement::frag::Request;

use super::{Cell, shuffled};
use crate::policy::Contender;
use crate::trace::{Job, Nodes};

/// Load that arrives, in % of the cluster's GPUs.
pub const ARRIVAL_PERCENT: u64 = 130;

/// One run.
pub struct Inflation {
    cell: Cell,
    arrivals: Vec<Request>,
    next: usize,
    capacity: u64,
    arrived: u64,
    rejected: u64,
    rejected_milli: u64,
}

/// Where a run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// GPU thousandths that have arrived, that run, and that the cluster has.
    pub arrived: u64,
    /// See `arrived`.
    pub allocated: u64,
    /// See `arrived`.
    pub capacity: u64,
    /// Jobs that were rejected, and their GPU thousandths.
    pub rejected: u64,
    /// See `rejected`.
    pub rejected_milli: u64,
}

impl Inflation {
    /// A run under a policy. The order of jobs and nodes comes from `seed` alone, so that all
    /// policies meet the same ones.
    pub fn new(
        cluster: &Nodes,
        jobs: &[Job],
        policy: impl Into<Contender>,
        seed: u64,
    ) -> Inflation {
        let mut rng = Rng::new(seed);
        let requests: Vec<Request> = jobs.iter().map(|job| job.request).collect();
        let capacity = cluster.milli();
        let arrivals = arrivals(&requests, capacity, &mut rng);
        let nodes = shuffled(&cluster.nodes, &mut rng);
        let policy = policy.into().make(&requests, rng.bits());
        Inflation {
            cell: Cell::new(nodes, policy),
            arrivals,
            next: 0,
            capacity,
            arrived: 0,
            rejected: 0,
            rejected_milli: 0,
        }
    }

    /// How many jobs arrive in all.
    pub fn steps(&self) -> usize {
        self.arrivals.len()
    }

    /// One job arrives. `None` after the last.
    pub fn step(&mut self) -> Option<Standing> {
        let request = *self.arrivals.get(self.next)?;
        self.next += 1;
        self.arrived += u64::from(request.milli());
        if self.cell.arrive(&request).is_none() {
            self.rejected += 1;
            self.rejected_milli += u64::from(request.milli());
        }
        Some(self.standing())
    }

    /// Where the run stands.
    pub fn standing(&self) -> Standing {
        Standing {
            arrived: self.arrived,
            allocated: self.cell.allocated(),
            capacity: self.capacity,
            rejected: self.rejected,
            rejected_milli: self.rejected_milli,
        }
    }
}

fn arrivals(requests: &[Request], capacity: u64, rng: &mut Rng) -> Vec<Request> {
    let mut arrivals = requests.to_vec();
    rng.shuffle(&mut arrivals);
    let mut sum: u64 = arrivals.iter().map(|r| u64::from(r.milli())).sum();
    // A trace that asks for nothing would never get there.
    while sum > 0 {
        let drawn = requests[rng.below(requests.len() as u64) as usize];
        // As published: what one GPU of the job takes, not all of them, must still fit.
        if (sum + u64::from(drawn.share)) * 100 > capacity * ARRIVAL_PERCENT {
            break;
        }
        sum += u64::from(drawn.milli());
        arrivals.push(drawn);
    }
    arrivals
}
