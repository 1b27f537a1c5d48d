//! PBS and gpuos.toml joined into the planner's model.

use std::collections::{HashMap, HashSet};

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, NO_DOMAIN};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::plan::{Choice, NodeChoice};

use super::jobs::{self, Job, QueueRecord, ServerRecord};
use super::nodes::{Host, Nodes};
use crate::hook::resources::{LEAF, NVLINK};
use crate::links;

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
        let facts: Vec<NodeFacts> = nodes
            .hosts
            .iter()
            .map(|host| facts(&nodes, host, &config))
            .collect();
        let fabric = fabric(&nodes);
        let cluster = config.cluster(&facts, Some(&fabric));
        let cluster = cluster.map_err(|why| why.to_string())?;
        let mut notes = nodes.notes.clone();
        notes.extend(of_jobs);
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
            server: jobs::parse_server(texts.server)?,
        })
    }

    /// The queue of a name.
    pub fn queue(&self, name: &str) -> Option<&QueueRecord> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// A choice without its bandwidth, unless gpuos.toml says of each of its hosts how fast links are.
    pub fn without_guesses(&self, choice: &Choice) -> Choice {
        let is_stated = |chosen: &NodeChoice| {
            let node = self.cluster.nodes.get(chosen.node as usize);
            node.is_some_and(|node| {
                let own = node.node_type.as_ref();
                own.is_some_and(|own| self.config.states(&node.name, own))
            })
        };
        let mut choice = choice.clone();
        if !choice.nodes.iter().all(is_stated) {
            choice.bus_gbps = 0.0;
        }
        choice
    }

    /// Whether some vnodes are of this queue alone: its jobs run nowhere else then.
    pub fn has_own_vnodes(&self, queue: &str) -> bool {
        self.own_vnodes.contains(queue)
    }
}

/// What is known of a host: links and NUMA nodes are those that it shows, or that its vnodes name.
fn facts(nodes: &Nodes, host: &Host, config: &Config) -> NodeFacts {
    let together = value(nodes, host, NVLINK);
    let shown = host.shown.as_ref();
    let whole = shown.map_or(GpuSet::first(host.gpus), |shown| shown.whole);
    let set_of = |gpu: usize| {
        let own = shown.and_then(|shown| shown.linked(gpu));
        own.or(together.filter(|_| whole.contains(gpu)))
            .unwrap_or_default()
    };
    let numa = |gpu| shown.and_then(|shown| shown.numa_of(gpu)?.parse().ok());
    let cpus: u64 = nodes.vnodes_of(host).map(|(_, vnode)| vnode.cpus.all).sum();
    let of = |count: usize| {
        let sets: Vec<&str> = (0..count).map(set_of).collect();
        let gpu_sockets: Option<Vec<u16>> = (0..count).map(numa).collect();
        let most = gpu_sockets.iter().flatten().max();
        let sockets = most.map_or(1, |most| most.saturating_add(1));
        NodeFacts {
            name: host.name.clone(),
            gpus: count,
            gres_type: String::new(),
            sockets,
            cores_per_socket: u16::try_from(cpus / u64::from(sockets)).unwrap_or(u16::MAX),
            links: links::rows(&sets),
            gpu_sockets: gpu_sockets.filter(|list| !list.is_empty()),
        }
    };
    let facts = of(host.gpus);
    // PBS counts fewer where some are out of service, shared or divided, and a gpuos.toml knows them.
    match config
        .stated_type(&facts)
        .filter(|stated| stated.gpus > host.gpus)
    {
        Some(stated) => of(stated.gpus),
        None => facts,
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
