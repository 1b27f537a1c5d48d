//! From a job that waits to the planner's request, or to why pbs_sched alone places it.
//!
//! Whoever is run by `qrun -H` passes by what pbs_sched looks at. So a job is taken only if all that it asks for is understood
//! here; any other one is left where it is, and pbs_sched starts it as it would without gpuos.

use gpuos_config::options::JobOptions;
use gpuos_placement::plan::{GpuShape, NodeState, Placement, Request, TopologyRequest};

use super::jobs::Job;
use super::nodes::{Counts, Host, Vnode, first_of};
use super::site::Site;
use crate::hook::place::{Arrangement, Place, Sharing};
use crate::hook::resources::{LEAF, LINKED, MEM_BEYOND, NGPUS, NVLINK, VETOES, of_users};
use crate::hook::select::Select;
use crate::units::kib;

/// What each of a job's chunks takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// GPUs.
    pub gpus: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in KiB.
    pub memory_kib: u64,
}

impl Chunk {
    /// What so many of them take.
    pub fn counts(&self, times: u32) -> Counts {
        let one = [self.gpus.into(), self.cpus.into(), self.memory_kib];
        one.map(|count| u64::from(times).saturating_mul(count))
    }
}

/// Which vnodes a job may use, and who is near them: jobs that are alike in it see the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kind {
    /// The queue whose own vnodes it has to use; empty: those of no queue.
    pub queue: String,
    /// Resources that each of its vnodes must have, with their values.
    pub needs: Vec<(String, String)>,
    /// Names of a rule of affinity.
    pub near: Vec<String>,
    /// Whether nobody else may be on its vnodes.
    pub alone: bool,
}

/// A job that can be placed from here.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// What the planner is asked.
    pub request: Request,
    /// Its chunks, all alike.
    pub chunk: Chunk,
    /// Which vnodes it may use.
    pub kind: Kind,
}

/// Resources of `-l` that say nothing about places, or that `select` says again.
const PASSED: [&str; 14] = [
    "select",
    "place",
    "nodect",
    "ncpus",
    "mem",
    "ngpus",
    "mpiprocs",
    "ompthreads",
    "walltime",
    "cput",
    "pcput",
    "nice",
    "pmem",
    "pvmem",
];

/// Resources of a chunk that say nothing about places, or what the job's `gpuos_topology` says again.
pub(super) const OF_PROGRAMS: [&str; 4] = ["mpiprocs", "ompthreads", MEM_BEYOND, LINKED];

/// Resources of a chunk whose values are the same in any case.
const NAMES: [&str; 2] = ["host", "vnode"];

/// Resources of a chunk that PBS itself knows more of: a vnode with another operating system is provided with this one first.
const OF_PBS: [&str; 2] = ["aoe", "eoe"];

impl Wanted {
    /// What a waiting job asks for.
    ///
    /// # Errors
    /// Why pbs_sched alone places it; empty for one that has no GPUs.
    pub fn of(job: &Job, site: &Site) -> Result<Wanted, String> {
        if !job.select.to_ascii_lowercase().contains(NGPUS) {
            return Err(String::new());
        }
        let select = Select::parse(&job.select).map_err(|why| format!("its select: {why}"))?;
        if select.values(NGPUS).all(|count| count == "0") {
            return Err(String::new());
        }
        if job.is_array {
            return Err("it is an array".into());
        }
        if !job.given.is_empty() {
            return Err("it goes on where it was".into());
        }
        if !job.reservation.is_empty() {
            return Err(format!("it is of reservation {}", job.reservation));
        }
        let queue = site.queue(&job.queue).ok_or("its queue is not known")?;
        if !queue.barred.is_empty() {
            return Err(format!("queue {}: {}", queue.name, queue.barred));
        }
        let options = options(job)?;
        let place = match &job.place[..] {
            "" => Place::default(),
            text => Place::parse(text).map_err(|why| format!("its place: {why}"))?,
        };
        let [chunk] = &select.0[..] else {
            return Err("its chunks are of several kinds".into());
        };
        let count = chunk.count.unwrap_or(1);
        let (one, needs) = resources(chunk)?;
        let (min_nodes, max_nodes, gpus) = match place.arrangement {
            Some(Arrangement::Vscatter) => return Err("place=vscatter".into()),
            _ if count == 1 => (1, 1, GpuShape::PerNode(one.gpus)),
            Some(Arrangement::Scatter) => (count, count, GpuShape::PerNode(one.gpus)),
            Some(Arrangement::Pack) => (1, 1, tasks(one.gpus, count)),
            Some(Arrangement::Free) | None => (1, count, tasks(one.gpus, count)),
        };
        // Who else is on the other vnodes of a host pbs_sched knows better.
        if place.sharing == Some(Sharing::Exclhost) {
            return Err("place=exclhost".into());
        }
        let policy = &site.config.policy;
        let topology = match place.group.as_deref() {
            None => options.topology,
            Some(group) => Some(level_of(group, options.topology)?),
        };
        let placement = options.placement;
        let placement = placement.unwrap_or_else(|| policy.placement_for(&job.queue, "").clone());
        let near = match &placement {
            Placement::Affinity(names) | Placement::AntiAffinity(names) => names.clone(),
            _ => Vec::new(),
        };
        if near.iter().any(|name| name.contains('=')) {
            return Err("its gpuos_placement names no jobs or users".into());
        }
        Ok(Wanted {
            request: Request {
                min_nodes,
                max_nodes,
                gpus,
                cpus_per_node: one.cpus,
                cpus_per_gpu: one.cpus.div_ceil(one.gpus),
                memory_mib_per_node: one.memory_kib.div_ceil(1 << 10),
                whole_nodes: false,
                required_nodes: Vec::new(),
                topology: topology.or_else(|| policy.topology_for(&job.queue, "").cloned()),
                placement,
                cost_first: false,
                until: 0,
            },
            chunk: one,
            kind: Kind {
                needs,
                near,
                alone: is_alone(job),
                ..Kind::of_queue(job, site)
            },
        })
    }
}

/// Whether a job wants nobody else on its vnodes.
pub(super) fn is_alone(job: &Job) -> bool {
    Place::parse(&job.place).is_ok_and(|place| place.sharing == Some(Sharing::Excl))
}

fn tasks(per_task: u32, tasks: u32) -> GpuShape {
    GpuShape::PerTask { per_task, tasks }
}

/// What the job says to gpuos, and nothing that nobody here understands.
fn options(job: &Job) -> Result<JobOptions, String> {
    let mut options = JobOptions::default();
    for (name, value) in &job.resources {
        let name = name.to_ascii_lowercase();
        let value = value.trim();
        if PASSED.contains(&&name[..]) || name == VETOES || value.is_empty() {
            continue;
        }
        match of_users().find(|own| own.name == name) {
            Some(own) => options
                .set(own.option, value)
                .map_err(|why| why.to_string())?,
            None => return Err(format!("it asks for {name} beside its select")),
        }
    }
    if options.mig.is_some() || options.share.is_some() {
        return Err("it asks for a part of a GPU".into());
    }
    Ok(options)
}

/// The level that `place=group=` keeps together. The hook makes it of a wish, and what the wish says counts then: PBS has no
/// group that is only preferred.
fn level_of(group: &str, wish: Option<TopologyRequest>) -> Result<TopologyRequest, String> {
    let level = match group.to_ascii_lowercase() {
        own if own == LEAF => "leaf",
        own if own == NVLINK => "nvlink",
        own if own == "host" => "node",
        _ => return Err(format!("place=group={group}")),
    };
    match wish {
        Some(wish) if wish.level != level => {
            Err(format!("place=group={group} beside gpuos_topology={wish}"))
        }
        Some(wish) => Ok(wish),
        None => Ok(TopologyRequest {
            level: level.into(),
            required: true,
        }),
    }
}

/// What a chunk takes, and what its vnodes must have.
fn resources(chunk: &crate::hook::select::Chunk) -> Result<(Chunk, Vec<(String, String)>), String> {
    let mut one = Chunk {
        gpus: 0,
        cpus: 0,
        memory_kib: 0,
    };
    let mut needs = Vec::new();
    for (name, value) in &chunk.wants {
        let name = name.to_ascii_lowercase();
        let number = || value.parse::<u32>().ok();
        let wrong = || format!("its select has {name}={value}");
        match &name[..] {
            NGPUS => one.gpus = number().ok_or_else(wrong)?,
            "ncpus" => one.cpus = number().ok_or_else(wrong)?,
            "mem" => one.memory_kib = kib(value).ok_or_else(wrong)?,
            name if OF_PROGRAMS.contains(&name) => {}
            // What may be a number would have to be counted.
            _ if is_number(value) => return Err(wrong()),
            name if OF_PBS.contains(&name) => return Err(wrong()),
            _ => needs.push((name, value.clone())),
        }
    }
    match one.gpus {
        0 => Err("its chunks have no GPU each".into()),
        _ => Ok((one, needs)),
    }
}

/// Whether a value may be a number, which PBS would count.
pub(super) fn is_number(value: &str) -> bool {
    value.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
}

impl Kind {
    /// Which vnodes the jobs of a job's queue may use.
    pub(super) fn of_queue(job: &Job, site: &Site) -> Kind {
        Kind {
            queue: match site.has_own_vnodes(&job.queue) {
                true => job.queue.clone(),
                false => String::new(),
            },
            ..Kind::default()
        }
    }

    /// Whether a job of this kind may start on a vnode now, as far as it has room.
    pub fn allows(&self, vnode: &Vnode) -> bool {
        vnode.up && self.fits(vnode) && !vnode.is_closed(self.alone)
    }

    /// Whether a vnode is one for jobs of this kind, at whatever time: it has all resources, as pbs_sched compares them.
    pub(crate) fn fits(&self, vnode: &Vnode) -> bool {
        let is_true = |name: &str| {
            let own = vnode.resource(name);
            own.is_some_and(|own| own.eq_ignore_ascii_case("true"))
        };
        let mut needs = self.needs.iter();
        let met = needs.all(|(name, value)| match &value.to_ascii_lowercase()[..] {
            "true" => is_true(name),
            "false" => !is_true(name),
            lower if NAMES.contains(&&name[..]) => {
                let own = vnode.resource(name).map(str::to_ascii_lowercase);
                own.is_some_and(|own| own == lower)
            }
            _ => vnode.has(name, value),
        });
        vnode.queue == self.queue && met
    }

    /// What is free for such a job on every host.
    pub fn states(&self, site: &Site) -> Vec<NodeState> {
        let near = self.near(site);
        let hosts = site.nodes.hosts.iter().enumerate();
        hosts
            .map(|(at, host)| NodeState {
                affinity: near.get(at).copied().unwrap_or(0),
                ..self.state(site, host)
            })
            .collect()
    }

    fn state(&self, site: &Site, host: &Host) -> NodeState {
        let (mut present, mut free, mut cpus, mut memory) = (0, 0, 0, 0);
        let own = site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
        for vnode in own.filter(|vnode| self.fits(vnode)) {
            // What is down comes back, as far as anybody knows.
            present += if vnode.out { 0 } else { vnode.gpus.all };
            if self.allows(vnode) {
                free += vnode.gpus.free();
                cpus += vnode.cpus.free();
                memory += vnode.memory_kib.free();
            }
        }
        let free = first_of(free, &[host.free]);
        NodeState {
            candidate: host.up,
            present: first_of(present, &[free, host.present]),
            free,
            free_cpus: u32::try_from(cpus).unwrap_or(u32::MAX - 1),
            free_memory_mib: memory >> 10,
            ..NodeState::default()
        }
    }

    /// How many running jobs on each host the rule of affinity names; none without such a rule.
    fn near(&self, site: &Site) -> Vec<u16> {
        if self.near.is_empty() {
            return Vec::new();
        }
        let mut counts = vec![0u16; site.nodes.hosts.len()];
        let named = |job: &&Job| {
            let names = [&job.name[..], &job.user, &job.id, job.number()];
            job.has_vnodes() && self.near.iter().any(|name| names.contains(&&name[..]))
        };
        for job in site.jobs.iter().filter(named) {
            let vnodes = job.given.iter().flatten();
            let vnodes = vnodes.filter_map(|given| site.nodes.vnode(&given.vnode));
            let mut hosts: Vec<usize> = vnodes.filter_map(|at| site.nodes.host_of(at)).collect();
            hosts.sort_unstable();
            hosts.dedup();
            for at in hosts {
                counts[at] = counts[at].saturating_add(1);
            }
        }
        counts
    }
}
