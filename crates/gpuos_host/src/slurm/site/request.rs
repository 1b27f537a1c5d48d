//! From a job of Slurm, or from options, to the planner's request.

use gpuos_config::options::{GresRequest, JobOptions, parse_gres};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fits::Memory;
use gpuos_placement::plan::{GpuShape, NodeState, Placement, Request};

use crate::slurm::site::Site;
use crate::slurm::site::ends;
use crate::slurm::text::mebibytes;
use crate::slurm::{Job, NodeRecord};

/// A request together with what Slurm filters nodes by.
#[derive(Clone, PartialEq, Debug)]
pub struct JobRequest {
    /// What the planner is asked.
    pub request: Request,
    /// GPU type, if the job asked for one.
    pub gres_type: Option<String>,
    /// Partitions, any of which will do; empty: all nodes.
    pub partitions: Vec<String>,
    /// Whether the job runs in a reservation.
    pub reserved: bool,
    /// `--constraint`, or empty.
    pub features: String,
    /// Nodes that it may not use.
    pub excluded: Vec<String>,
    /// Nodes that it must use and that this cluster does not have.
    pub missing: Vec<String>,
    /// Whether its programs may need memory of the host: nodes that are short of it come last then.
    pub needs_host_memory: bool,
    /// What it asks for of the memory of each node, or is given where it asks for none.
    pub memory: Memory,
    /// MiB that slurm.conf gives with each GPU, which must be free also where it asks for other memory (`max_gres` in
    /// `gres_select_filter.c`). 0: none.
    pub default_per_gpu_mib: u64,
}

impl JobRequest {
    /// The request of a job in Slurm's queue. `None`: it asks for no GPU, so that gpuos
    /// leaves it alone.
    pub fn of_job(job: &Job, options: &JobOptions, site: &Site) -> Option<JobRequest> {
        let gpu = |text: &str| gpus_in(text);
        let (shape, gres_type) = if let Some((n, t)) = gpu(&job.tres_per_node) {
            (GpuShape::PerNode(n), t)
        } else if let Some((per_task, t)) = gpu(&job.tres_per_task) {
            (
                GpuShape::PerTask {
                    per_task,
                    tasks: job.tasks.max(1),
                },
                t,
            )
        } else if let Some((n, t)) = gpu(&job.tres_per_socket) {
            let shape = GpuShape::PerSocket {
                per_socket: n,
                sockets: job.sockets_per_node.max(1),
            };
            (shape, t)
        } else {
            let (n, t) = gpu(&job.tres_per_job)?;
            (GpuShape::Total(n), t)
        };
        let tasks_cpus = job
            .tasks_per_node
            .max(1)
            .saturating_mul(job.cpus_per_task.max(1));
        let cpus_per_node = job.min_cpus_node.max(tasks_cpus).max(1);
        let cpus_per_gpu = gpus_in(&job.cpus_per_tres).map_or(0, |(n, _)| n);
        let (required_nodes, missing) = site.indices(&job.required_nodes);
        let policy = &site.config.policy;
        let partition = job.partitions.first().map_or("", String::as_str);
        let wanted = JobRequest {
            request: Request {
                min_nodes: job.min_nodes.max(1),
                max_nodes: job.max_nodes.max(job.min_nodes).max(1),
                gpus: shape,
                cpus_per_node,
                cpus_per_gpu,
                memory_mib_per_node: 0,
                whole_nodes: job.exclusive,
                required_nodes,
                topology: options
                    .topology
                    .clone()
                    .or_else(|| policy.topology_for(partition, &job.qos).cloned()),
                placement: options
                    .placement
                    .clone()
                    .unwrap_or_else(|| policy.placement_for(partition, &job.qos).clone()),
                cost_first: false,
                until: 0,
            },
            gres_type,
            partitions: job.partitions.clone(),
            reserved: !job.reservation.is_empty(),
            features: job.features.clone(),
            excluded: job.excluded_nodes.clone(),
            missing,
            needs_host_memory: options.needs_host_memory(),
            memory: Memory::Free,
            default_per_gpu_mib: default_per_gpu_mib(job, site),
        };
        Some(wanted.with_memory(memory(job, site)))
    }

    /// The same request with this memory on each node.
    pub fn with_memory(mut self, memory: Memory) -> JobRequest {
        let request = &self.request;
        let gpus = request.gpus_of_node();
        let cpus = (request.cpus_per_node).max(gpus.saturating_mul(request.cpus_per_gpu));
        self.memory = memory;
        self.request.memory_mib_per_node = self.least_memory(cpus, gpus);
        self
    }

    /// MiB that must be free on a node for so many CPUs and GPUs.
    fn least_memory(&self, cpus: u32, gpus: u32) -> u64 {
        let with_gpus = Memory::Gpu(self.default_per_gpu_mib).least(cpus, gpus);
        self.memory.least(cpus, gpus).max(with_gpus)
    }

    /// The same request at a moment at which these jobs run, if it is one of a job that waits: then
    /// it is known when that would end.
    pub fn beside(mut self, job: &Job, jobs: &[Job]) -> JobRequest {
        self.request.until = ends::if_started_now(job, jobs);
        self
    }

    /// What is free for this request on every node of the site. `jobs` are those in the queue;
    /// they matter to the affinity rules and to when
    /// nodes become free.
    pub fn state(&self, site: &Site, jobs: &[Job]) -> Vec<NodeState> {
        let affinity = affinity(&self.request.placement, site, jobs);
        let ends = match self.request.placement {
            Placement::Backfill => ends::of_nodes(site, jobs),
            _ => Vec::new(),
        };
        let of = |list: &[u32], at: usize| list.get(at).copied().unwrap_or(0);
        let nodes = site.nodes.iter().enumerate();
        nodes
            .map(|(at, node)| NodeState {
                affinity: of(&affinity, at).min(u16::MAX.into()) as u16,
                until: of(&ends, at),
                ..self.node(node, site)
            })
            .collect()
    }

    fn node(&self, node: &NodeRecord, site: &Site) -> NodeState {
        let out = node.gpus_out();
        let present = GpuSet::first(node.gpu_count()).minus(out);
        let whole = node.cpus_allocated == 0 && out.is_empty();
        let free_memory_mib = match site.memory_counts() {
            true => node.memory_mib.saturating_sub(node.memory_allocated_mib),
            false => u64::MAX,
        };
        // With whole nodes it has all CPUs and GPUs there, and memory with each.
        let idle_enough = !self.request.whole_nodes
            || (whole && self.least_memory(node.cpus, node.gpu_count() as u32) <= free_memory_mib);
        let has_memory = !self.memory.takes_all() || node.memory_allocated_mib == 0;
        let mut state = NodeState {
            candidate: node.is_up() && idle_enough && has_memory && self.allows(node),
            present,
            free: node.gpus_free(self.gres_type.as_deref()),
            free_cpus: node.cpus.saturating_sub(node.cpus_allocated),
            free_memory_mib,
            affinity: 0,
            penalty: 0,
            until: 0,
        };
        // As in slurmctld.
        if self.needs_host_memory && node.is_short() {
            state.add_rule();
        }
        state
    }

    /// Whether the job could use the node if it were idle and up.
    pub fn allows(&self, node: &NodeRecord) -> bool {
        let partition = self.partitions.is_empty()
            || self.partitions.iter().any(|p| node.partitions.contains(p));
        partition
            && (self.reserved || !node.is_reserved())
            && !self.excluded.contains(&node.name)
            && feature_match(&self.features, &node.features).unwrap_or(true)
    }
}

/// What of a node's memory a job asks for, or is given where it asks for none.
fn memory(job: &Job, site: &Site) -> Memory {
    if !site.memory_counts() {
        return Memory::Free;
    }
    let per_gpu = job.mem_per_tres.rsplit_once([':', '=']);
    let per_gpu = per_gpu.filter(|_| job.mem_per_tres.contains("gpu"));
    if let Some(mib) = per_gpu.and_then(|(_, value)| mebibytes(value)) {
        return Memory::Gpu(mib);
    }
    match (job.memory_node_mib, job.memory_cpu_mib) {
        // slurmctld writes what its files give by node and CPU into the record, what they give by GPU not.
        (0, 0) => match site.default_memory(&job.partitions) {
            Memory::Gpu(mib) => Memory::Gpu(mib),
            _ => Memory::All,
        },
        (0, mib) => Memory::Cpu(mib),
        (mib, _) => Memory::Node(mib),
    }
}

/// MiB of `DefMemPerGPU`, which must be free with each GPU of a job that asks for memory of its nodes or CPUs, too; 0: none.
fn default_per_gpu_mib(job: &Job, site: &Site) -> u64 {
    if !site.memory_counts() || !job.mem_per_tres.is_empty() {
        return 0;
    }
    match site.default_memory(&job.partitions) {
        Memory::Gpu(mib) => mib,
        _ => 0,
    }
}

/// GPUs in a TRES text: how many, and of which type if it names a single one.
fn gpus_in(text: &str) -> Option<(u32, Option<String>)> {
    let list: Vec<GresRequest> = parse_gres("TRES", text)
        .ok()?
        .into_iter()
        .filter(|r| r.name == "gpu")
        .collect();
    let count: u64 = list.iter().map(|r| r.count).sum();
    let gres_type = match &list[..] {
        [only] => only.gres_type.clone(),
        _ => None,
    };
    (count > 0).then(|| (u32::try_from(count).unwrap_or(u32::MAX), gres_type))
}

/// How many running jobs on each node an affinity rule names; empty without such a rule.
fn affinity(placement: &Placement, site: &Site, jobs: &[Job]) -> Vec<u32> {
    let (Placement::Affinity(names) | Placement::AntiAffinity(names)) = placement else {
        return Vec::new();
    };
    let named = |job: &Job| {
        names.iter().any(|n| {
            *n == job.name || *n == job.user || *n == job.label || *n == job.id.to_string()
        })
    };
    let mut counts = vec![0; site.nodes.len()];
    for job in jobs.iter().filter(|job| job.is_running() && named(job)) {
        for node in site.indices(&job.nodes).0 {
            counts[node as usize] += 1;
        }
    }
    counts
}

/// Whether a node with these features meets a `--constraint`. `None`: the expression is of a
/// kind that only Slurm judges (counts, brackets).
pub fn feature_match(expression: &str, features: &[String]) -> Option<bool> {
    if expression.is_empty() {
        return Some(true);
    }
    if expression.contains(['[', ']', '(', ')', '*']) {
        return None;
    }
    // `|` binds weaker than `&`, and `,` is the same as `&`.
    Some(expression.split('|').any(|part| {
        part.split(['&', ','])
            .all(|name| features.iter().any(|f| f == name.trim()))
    }))
}

/// The gpuos options among the words of a command line (`sbatch --gpuos-topology=leaf …`).
/// What is not one, or cannot be read, is left out: slurmctld has judged it already.
pub fn options_in_words<'a>(words: impl Iterator<Item = &'a str>) -> JobOptions {
    let mut options = JobOptions::default();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix("--gpuos") else {
            continue;
        };
        let (name, value) = match rest.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (rest, words.peek().copied()),
        };
        if let Some(value) = value {
            let _ = options.set(&format!("gpuos{name}"), value.trim_matches(['"', '\'']));
        }
    }
    options
}

/// The gpuos options in the `#SBATCH` lines of a batch script.
pub fn options_in_script(script: &str) -> JobOptions {
    let lines = script.lines().take_while(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#')
    });
    let words = lines
        .filter_map(|line| line.strip_prefix("#SBATCH"))
        .flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    options_in_words(words.collect::<Vec<_>>().into_iter())
}
