//! When jobs end at the latest: what the planner's [`NodeState::until`](gpuos_placement::plan::NodeState)
//! and [`Request::until`](gpuos_placement::plan::Request) are filled with.
//!
//! The end of a running job is that of its record when it started or was resized last. A time limit
//! that is changed later is not seen: the end is advice, as a limit is.

use gpuos_placement::plan::quarters;
use slurm_ffi::handles::Job;

use crate::abi::clock;

/// The ends of the jobs on each node.
#[derive(Default)]
pub struct Ends {
    /// By node index: the jobs there with their ends, and the last end.
    nodes: Vec<(Vec<(u32, u32)>, u32)>,
}

impl Ends {
    /// A job runs on a node until then.
    pub fn add(&mut self, node: u32, job: u32, until: u32) {
        let index = node as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, (Vec::new(), 0));
        }
        let (jobs, last) = &mut self.nodes[index];
        jobs.push((job, until));
        *last = (*last).max(until);
    }

    /// A job is no longer on a node.
    pub fn remove(&mut self, node: u32, job: u32) {
        if let Some((jobs, last)) = self.nodes.get_mut(node as usize) {
            jobs.retain(|(other, _)| *other != job);
            *last = jobs.iter().map(|(_, until)| *until).max().unwrap_or(0);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }

    /// The last end on a node; 0 = nothing runs there, or it is not known.
    pub fn last(&self, node: usize) -> u32 {
        self.nodes.get(node).map_or(0, |(_, last)| *last)
    }
}

/// When a job that runs ends at the latest; 0 = not known.
pub fn of_running(job: Job<'_>) -> u32 {
    match job.end_time() {
        ..=0 => 0,
        end => quarters(end),
    }
}

/// When a job would end at the latest if it started now; 0 = not known.
pub fn if_started_now(job: Job<'_>) -> u32 {
    job.limit_seconds()
        .map_or(0, |limit| quarters(clock::now().saturating_add(limit)))
}
