//! From Slurm's job record to the planner's request.

use gpuos_config::options::JobOptions;
use gpuos_placement::plan::{GpuShape, Placement, Request, TopologyRequest};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::call::Counts;
use crate::read::ends;

/// A job may name this many nodes; more cannot be a plan.
const MOST_NODES: u32 = 1 << 20;

/// The request of a job that asks for GPUs, and how many nodes it would like best.
pub struct Wanted {
    /// For the planner; `min_nodes` and `max_nodes` as Slurm asks in this call.
    pub request: Request,
    /// Nodes that Slurm would like to give (`-N 2-4`: 4), within min and max.
    pub nodes: u32,
}

impl Wanted {
    /// Whether the job waits rather than start outside its level.
    pub fn required(&self) -> bool {
        let wish = self.request.topology.as_ref();
        wish.is_some_and(|wish| wish.required)
    }
}

/// The numbers of nodes that a job can have, as the planner sees them: never none, and those that its
/// tasks need (`-n 16 --ntasks-per-node=4` without -N needs four nodes although Slurm asks for at least one).
pub fn counts(asked: Counts, job: Job<'_>) -> Counts {
    let min = asked.min.max(1);
    let max = asked.max.clamp(min, MOST_NODES);
    let wanted = asked.wanted.clamp(min, max);
    let needed = match job.tasks_per_node() {
        0 => 0,
        each => job.tasks().div_ceil(each),
    };
    match needed > min && needed <= max {
        true => Counts {
            min: needed,
            max,
            wanted: wanted.max(needed),
        },
        false => Counts { min, max, wanted },
    }
}

/// Builds the request; `None` for a form that is left to Slurm.
pub fn build(
    asked: Counts,
    job: Job<'_>,
    gpus: JobGres<'_>,
    options: &JobOptions,
    default_topology: Option<&TopologyRequest>,
    default_placement: &Placement,
) -> Option<Wanted> {
    let per_node = small(gpus.per_node())?;
    let per_job = small(gpus.per_job())?;
    let per_task = small(gpus.per_task())?;
    let per_socket = small(gpus.per_socket())?;
    let tasks = job.tasks();
    let mut counts = counts(asked, job);

    let shape = if per_node > 0 {
        if per_job > 0 && per_job % per_node == 0 {
            let exact = (per_job / per_node).clamp(asked.min.max(1), counts.max);
            (counts.min, counts.max, counts.wanted) = (exact, exact, exact);
        }
        GpuShape::PerNode(per_node)
    } else if per_task != 0 {
        let tasks = if tasks == 0 {
            per_job.checked_div(per_task).unwrap_or(0)
        } else {
            tasks
        };
        if tasks == 0 {
            return None;
        }
        GpuShape::PerTask { per_task, tasks }
    } else if per_socket > 0 {
        // Slurm takes no request for each socket without their number.
        let sockets = u32::from(job.cores(0).sockets).max(1);
        GpuShape::PerSocket {
            per_socket,
            sockets,
        }
    } else if per_job > 0 {
        GpuShape::Total(per_job)
    } else {
        return None;
    };

    let per_node_share = job.min_cpus().checked_div(counts.wanted).unwrap_or(0);
    let cpus_per_node = match shape {
        // All of them on the one node that there will be.
        GpuShape::Total(_) | GpuShape::PerTask { .. } if counts.max == 1 => {
            job.min_cpus_per_node().max(job.min_cpus())
        }
        // The split of CPUs over nodes is open; one task's CPUs are needed anywhere.
        GpuShape::Total(_) | GpuShape::PerTask { .. } => {
            job.min_cpus_per_node().max(job.cpus_per_task())
        }
        _ => job.min_cpus_per_node().max(per_node_share),
    };
    let by_gpu = gpus.cpus_for_each(job.cpus_per_task());
    let by_task = match shape {
        GpuShape::PerTask { per_task, .. } => job.cpus_per_task() / per_task.max(1),
        _ => 0,
    };
    let required_nodes = job
        .required_nodes()
        .map(|map| map.iter().map(|node| node as u32).collect())
        .unwrap_or_default();
    let placement = options.placement.clone();
    let placement = placement.unwrap_or_else(|| default_placement.clone());
    Some(Wanted {
        request: Request {
            min_nodes: counts.min,
            max_nodes: counts.max,
            gpus: shape,
            cpus_per_node,
            cpus_per_gpu: by_gpu.max(by_task),
            memory_mib_per_node: job.memory_per_node().unwrap_or(0),
            whole_nodes: job.whole_nodes(),
            required_nodes,
            topology: options
                .topology
                .clone()
                .or_else(|| default_topology.cloned()),
            until: match &placement {
                Placement::Backfill => ends::if_started_now(job),
                _ => 0,
            },
            placement,
            cost_first: false,
        },
        nodes: counts.wanted,
    })
}

fn small(count: u64) -> Option<u32> {
    u32::try_from(count).ok().filter(|count| *count < 1 << 20)
}

/// What a job says to gpuos.
#[inline(never)]
pub fn options_of(job: Job<'_>) -> JobOptions {
    JobOptions::from_spank_env(job.spank_env()).unwrap_or_else(|why| {
        log::debug(&format!("job {}: {why}; the option is ignored", job.id()));
        JobOptions::default()
    })
}
