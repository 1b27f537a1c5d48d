//! A job as a workload manager has it, as far as the daemon of a node needs to know.

use gpuos_core::job::JobId;
use gpuos_model::gpu_index::NvmlSet;
use gpuos_model::gpuset::GpuSet;

/// What a job has on some nodes (all alike).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allocation {
    /// The nodes.
    pub nodes: Vec<String>,
    /// GPUs on each of them, by the workload manager's number; empty when it names none.
    pub gpus: GpuSet,
    /// Memory slices of GPUs on each of them, as bits.
    pub slices: GpuSet,
    /// GPUs of which it has parts on each of them: others may have them too.
    pub shared: GpuSet,
    /// Memory on each of them, in MiB; 0 where the workload manager does not give memory to jobs.
    pub memory_mib: u64,
    /// What else the workload manager counts, on each of them, by name and count.
    pub others: Vec<(String, u64)>,
}

/// What becomes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JobState {
    /// It waits for nodes.
    Waiting,
    /// It has its nodes, which are being prepared.
    Starting,
    /// It runs.
    Running,
    /// It has its nodes and does not run: suspended and the like.
    Stopped,
    /// It has ended, and its nodes are being cleaned up.
    Ending,
    /// It is over.
    #[default]
    Over,
}

/// Slices of GPUs that a job was given without saying which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unplaced {
    /// What it asked for, as `--gpuos-mig` has it.
    pub request: String,
    /// The GPUs on which they are to be, by NVML's index, the request on each; none: any of the pool.
    pub gpus: NvmlSet,
    /// How often the request is to be met where any GPU will do, each time on one.
    pub chunks: u32,
    /// How many compute slices it was given.
    pub compute: u64,
    /// How many memory slices.
    pub memory: u64,
}

/// One job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// User.
    pub user: String,
    /// Number of the user.
    pub uid: u32,
    /// Account; empty when it has none.
    pub account: String,
    /// Quality of service; empty when it has none.
    pub qos: String,
    /// Partitions.
    pub partitions: Vec<String>,
    /// What becomes of it.
    pub state: JobState,
    /// The same in the workload manager's own word.
    pub state_word: String,
    /// Nodes that it has.
    pub nodes: Vec<String>,
    /// The node that runs its script; empty when it has none.
    pub script_on: String,
    /// Nodes without which it would not run.
    pub required_nodes: Vec<String>,
    /// Whether it could be requeued: a batch job that allows it.
    pub may_requeue: bool,
    /// How often it was requeued.
    pub restarts: u32,
    /// When its run was queued, in seconds since 1970: when it was submitted, or requeued. `None`: nobody says.
    pub queued_at: Option<u64>,
    /// When its run had its nodes, in seconds since 1970. `None`: it has none yet, or nobody says.
    pub started_at: Option<u64>,
    /// How long it has run, in seconds.
    pub run_seconds: u64,
    /// In how many seconds it will be ended: its time limit, or the end of the grace that a preempted job has, whichever comes first.
    /// `None`: it has no limit, does not run (also not any more), or nobody says.
    pub ends_in_s: Option<u64>,
    /// Whether it is being preempted: another job waits for it to go.
    pub preempted: bool,
    /// What it has, by node.
    pub allocations: Vec<Allocation>,
    /// Whether it has parts of GPUs that `allocations` does not name.
    pub shares: bool,
    /// Slices of GPUs that it has on this node as counts: which ones they are is for the node to choose.
    pub unplaced: Option<Unplaced>,
    /// Where gpuos notes its decision.
    pub note: String,
    /// Why what it has on its nodes and what it asked for cannot be read; empty when it can. Of such a job its numbers, user, state
    /// and nodes are known, and nothing else.
    pub unreadable: String,
}

impl Job {
    /// Whether the job has its nodes.
    pub fn is_running(&self) -> bool {
        !matches!(self.state, JobState::Waiting | JobState::Over)
    }

    /// Memory slices that it has on a node, as bits.
    pub fn slices_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| part.slices)
    }

    /// GPUs of which it has parts on a node.
    pub fn shared_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| part.shared)
    }

    /// GPUs that it has on a node as a whole.
    pub fn whole_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| part.gpus)
    }

    /// Memory that it has on a node, in MiB; 0: nobody says.
    pub fn memory_on(&self, node: &str) -> u64 {
        self.parts_on(node)
            .fold(0, |sum, part| sum.saturating_add(part.memory_mib))
    }

    /// How much it has on a node of something that the workload manager only counts.
    pub fn count_on(&self, node: &str, what: &str) -> u64 {
        let counts = self.parts_on(node).flat_map(|part| &part.others);
        let counts = counts.filter(|(name, _)| name == what);
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// GPUs that it has on a node, as a whole or in part.
    pub fn gpus_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| GpuSet(part.gpus.0 | part.shared.0))
    }

    /// What the parts of the job on a node have together.
    fn sum_on(&self, node: &str, of: impl Fn(&Allocation) -> GpuSet) -> GpuSet {
        self.parts_on(node)
            .fold(GpuSet::EMPTY, |set, part| GpuSet(set.0 | of(part).0))
    }

    fn parts_on(&self, node: &str) -> impl Iterator<Item = &Allocation> {
        let here = self.allocations.iter();
        here.filter(move |part| part.nodes.iter().any(|name| name == node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_job_on_a_node_count_together() {
        let part = |node: &str, gpus, shared, slices| Allocation {
            nodes: vec![node.into()],
            gpus: GpuSet(gpus),
            shared: GpuSet(shared),
            slices: GpuSet(slices),
            memory_mib: 10,
            others: vec![("nvme".into(), 60), ("nic".into(), 1)],
        };
        let job = Job {
            allocations: vec![
                part("n1", 1, 4, 0xf0),
                part("n1", 2, 0, 1),
                part("n2", 8, 8, 2),
            ],
            ..Job::default()
        };
        assert_eq!(job.gpus_on("n1"), GpuSet(7));
        assert_eq!(job.shared_on("n1"), GpuSet(4));
        assert_eq!(job.slices_on("n1"), GpuSet(0xf1));
        assert_eq!(job.gpus_on("n3"), GpuSet::EMPTY);
        assert_eq!((job.memory_on("n1"), job.memory_on("n3")), (20, 0));
        assert_eq!(job.whole_on("n1"), GpuSet(3));
        let count = |node, what| job.count_on(node, what);
        let counts = [count("n1", "nvme"), count("n2", "nic"), count("n3", "nvme")];
        assert_eq!(counts, [120, 1, 0]);
    }

    #[test]
    fn a_job_has_its_nodes_from_their_preparation_to_their_cleaning() {
        let has = |state| {
            Job {
                state,
                ..Job::default()
            }
            .is_running()
        };
        let states = [JobState::Starting, JobState::Running, JobState::Stopped];
        assert!(states.into_iter().chain([JobState::Ending]).all(has));
        assert!(!has(JobState::Waiting) && !has(JobState::Over));
    }
}
