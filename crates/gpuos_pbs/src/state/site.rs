//! PBS and gpuos.toml joined into the planner's model.

use std::collections::{BTreeMap, HashMap, HashSet};

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, NO_DOMAIN};
use gpuos_model::node_types::NodeFacts;

use super::jobs::{self, Job, QueueRecord, ServerRecord};
use super::nodes::{Host, Nodes, Vnode};
use crate::hook::resources::{LEAF, NUMA, NVLINK};

/// NVLinks that a pair of GPUs counts as having where PBS says only that they are linked: as a bridge has at least.
const LINKS: i32 = 4;

/// What PBS's commands printed, all of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Texts<'a> {
    /// `pbsnodes -av -F json`.
    pub vnodes: &'a str,
    /// `qstat -f -F json`.
    pub jobs: &'a str,
    /// `qstat -Q -f -F json`.
    pub queues: &'a str,
    /// `qstat -B -f -F json`.
    pub server: &'a str,
}

/// The cluster as pbs_server has it now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Site {
    /// Vnodes and hosts.
    pub nodes: Nodes,
    /// Jobs, in PBS's order.
    pub jobs: Vec<Job>,
    /// Queues.
    pub queues: Vec<QueueRecord>,
    /// pbs_server itself.
    pub server: ServerRecord,
    /// Why no job is started from here; empty: jobs may start.
    pub barred: String,
    /// gpuos.toml, or the defaults.
    pub config: Config,
    /// Node types and fabric; a node for each host, by the same index.
    pub cluster: Cluster,
    /// What could not be read and is missed: sentences.
    pub notes: Vec<String>,
    /// Queues that have vnodes of their own.
    own_vnodes: HashSet<String>,
    /// Jobs with which refused starts have left vnodes, and which.
    pub left: BTreeMap<String, Vec<String>>,
}

impl Site {
    /// Joins the texts with a gpuos.toml.
    ///
    /// # Errors
    /// A text is not what PBS prints, or gpuos.toml contradicts it: a sentence.
    pub fn read(texts: &Texts<'_>, config: Config) -> Result<Site, String> {
        let nodes = Nodes::parse(texts.vnodes)?;
        let (jobs, of_jobs) = jobs::parse(texts.jobs)?;
        let queues = jobs::parse_queues(texts.queues)?;
        let mut barred = jobs::server_bars(texts.server)?;
        if barred.is_empty() && !config.leaves_all_nodes() {
            barred =
                "gpuos.toml has rules of who may run beside whom, which are for Slurm yet".into();
        }
        let mut with_gpus = nodes.vnodes.iter().filter(|vnode| vnode.gpus.all > 0);
        if barred.is_empty() && with_gpus.all(|vnode| !vnode.exclusive) {
            barred = "no vnode with GPUs is one job's alone (sharing=force_excl), and pbs_server counts nothing of others when a job \
                      is run from outside pbs_sched"
                .into();
        }
        let facts: Vec<NodeFacts> = nodes.hosts.iter().map(|host| facts(&nodes, host)).collect();
        let fabric = fabric(&nodes);
        let cluster = config.cluster(&facts, Some(&fabric));
        let cluster = cluster.map_err(|why| why.to_string())?;
        let mut notes = nodes.notes.clone();
        notes.extend(of_jobs);
        let left = left_over(&nodes, &jobs);
        notes.extend(left.iter().map(|(job, vnodes)| {
            format!(
                "PBS keeps {} for job {job}, to which it has given nothing of that: a start that it refused has left them so, until \
                 the job runs there or pbs_server is started again",
                vnodes.join(" ")
            )
        }));
        let owned = |(job, vnodes): (&str, Vec<&str>)| {
            let vnodes = vnodes.into_iter().map(str::to_owned).collect();
            (job.to_owned(), vnodes)
        };
        let left = left.into_iter().map(owned).collect();
        let of_queues = nodes.vnodes.iter().map(|vnode| &vnode.queue);
        let own_vnodes = of_queues
            .filter(|queue| !queue.is_empty())
            .cloned()
            .collect();
        Ok(Site {
            nodes,
            jobs,
            queues,
            barred,
            config,
            cluster,
            notes,
            own_vnodes,
            left,
            server: jobs::parse_server(texts.server)?,
        })
    }

    /// The queue of a name.
    pub fn queue(&self, name: &str) -> Option<&QueueRecord> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Whether refused starts have left vnodes with this job.
    pub fn has_left(&self, job: &str) -> bool {
        self.left.contains_key(job)
    }

    /// Whether some vnodes are of this queue alone: its jobs run nowhere else then.
    pub fn has_own_vnodes(&self, queue: &str) -> bool {
        self.own_vnodes.contains(queue)
    }
}

/// The vnodes with which refused starts have left jobs, by job. Tasks of arrays are not looked for: qstat does not list them.
fn left_over<'n>(nodes: &'n Nodes, jobs: &[Job]) -> BTreeMap<&'n str, Vec<&'n str>> {
    let by_id: HashMap<&str, &Job> = jobs.iter().map(|job| (&job.id[..], job)).collect();
    let has = |job: &str, vnode: &Vnode| {
        let given = by_id.get(job).map(|job| job.given.iter().flatten());
        given.is_some_and(|mut given| given.any(|given| given.vnode == vnode.name))
    };
    let mut left: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for vnode in &nodes.vnodes {
        let job = vnode.left_with().filter(|job| !job.contains('['));
        if let Some(job) = job.filter(|job| !has(job, vnode)) {
            left.entry(job).or_default().push(&vnode.name);
        }
    }
    left
}

/// The vnodes with GPUs, each as often as it has some.
fn gpus<'a>(nodes: &'a Nodes, host: &'a Host) -> impl Iterator<Item = (usize, &'a Vnode)> {
    nodes.vnodes_of(host).flat_map(|(_, vnode)| {
        let first = vnode.first_gpu;
        (first..first + vnode.gpus.all as usize).map(move |gpu| (gpu, vnode))
    })
}

fn facts(nodes: &Nodes, host: &Host) -> NodeFacts {
    let count = host.gpus;
    let mut domains = vec![""; count];
    let mut sockets: Vec<Option<u16>> = vec![None; count];
    for (gpu, vnode) in gpus(nodes, host).filter(|(gpu, _)| *gpu < count) {
        domains[gpu] = vnode.resource(NVLINK).unwrap_or("");
        sockets[gpu] = vnode.resource(NUMA).and_then(|numa| numa.parse().ok());
    }
    let linked = |a: usize, b: usize| !domains[a].is_empty() && domains[a] == domains[b];
    let pairs = || (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
    let links = pairs().any(|(a, b)| a != b && linked(a, b)).then(|| {
        let link = |(a, b)| match a == b {
            true => -1,
            false if linked(a, b) => LINKS,
            false => 0,
        };
        pairs().map(link).collect()
    });
    let gpu_sockets: Option<Vec<u16>> = sockets.into_iter().collect();
    let most = gpu_sockets.iter().flatten().max();
    let sockets = most.map_or(1, |most| most.saturating_add(1));
    let cpus: u64 = nodes.vnodes_of(host).map(|(_, vnode)| vnode.cpus.all).sum();
    NodeFacts {
        name: host.name.clone(),
        gpus: count,
        gres_type: String::new(),
        sockets,
        cores_per_socket: u16::try_from(cpus / u64::from(sockets)).unwrap_or(u16::MAX),
        links,
        gpu_sockets: gpu_sockets.filter(|list| !list.is_empty()),
    }
}

/// The value that a resource has on a host: that of the first of its vnodes with one.
fn value<'n>(nodes: &'n Nodes, host: &Host, resource: &str) -> Option<&'n str> {
    let mut values = nodes
        .vnodes_of(host)
        .filter_map(|(_, vnode)| vnode.resource(resource));
    values.find(|value| !value.is_empty())
}

/// NVLink domains over several hosts, and leaf switches, as vnodes name them.
fn fabric(nodes: &Nodes) -> Fabric {
    let of_hosts = |resource| {
        let hosts = nodes.hosts.iter();
        hosts.map(move |host| value(nodes, host, resource))
    };
    let mut levels = Vec::new();
    for (name, resource, shared) in [("nvlink", NVLINK, true), ("leaf", LEAF, false)] {
        let mut hosts: HashMap<&str, u32> = HashMap::new();
        for value in of_hosts(resource).flatten() {
            *hosts.entry(value).or_default() += 1;
        }
        // What one host has alone is a set of GPUs in it, not a domain above it.
        let counts = |value: &str| !shared || hosts.get(value).is_some_and(|count| *count > 1);
        let mut domains: Vec<String> = Vec::new();
        let mut number: HashMap<&str, u32> = HashMap::new();
        let domain_of = of_hosts(resource).map(|value| {
            let Some(value) = value.filter(|value| counts(value)) else {
                return NO_DOMAIN;
            };
            *number.entry(value).or_insert_with(|| {
                domains.push(value.to_owned());
                domains.len() as u32 - 1
            })
        });
        let domain_of: Vec<u32> = domain_of.collect();
        if !domains.is_empty() {
            levels.push(FabricLevel {
                name: name.into(),
                domains,
                domain_of,
                gbps: 0.0,
            });
        }
    }
    Fabric { levels }
}
