//! What is counted for one policy.
//!
//! A *gang* is a job on several nodes. Its *leaf span* is the number of leaves that its nodes lie
//! in; its *domain span* the same for the narrowest level of the fabric, the NVLink domains where
//! there are some. It lies on one rail index when it has the same GPU indices on each node, so
//! that on a rail-optimised fabric no rank has to change rails to meet its peers.
//!
//! Two figures stand for the bandwidth. The first is the planner's own, the narrowest link of a
//! ring: between leaves the rate that the site says a GPU can expect there when all traffic
//! crosses. The second lays NCCL's sorted rings over the network beside those of the gangs that
//! run ([`gpuos_placement::fabric`]): what a gang gets when it starts, with what is promised already.

use std::collections::{BTreeMap, HashMap};

use gpuos_model::cluster::FabricLevel;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fabric::{Net, Promise, Promises, Scratch, Uplink};
use gpuos_placement::plan::{GpuShape, NodeChoice, NodeState, Planner, Request};

use super::queue::Observer;
use super::site::{Site, SiteKind};
use super::workload::Job;

/// A sample of numbers, kept whole so that quantiles are exact.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    values: Vec<f64>,
}

impl Sample {
    /// Adds a number.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// Adds another sample's numbers.
    pub fn append(&mut self, other: Sample) {
        self.values.extend(other.values);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The mean; 0 without numbers.
    pub fn mean(&self) -> f64 {
        match self.values.len() {
            0 => 0.0,
            len => self.values.iter().sum::<f64>() / len as f64,
        }
    }

    /// The numbers in ascending order.
    pub fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }
}

/// The value below which a share `q` of a sorted sample lies (nearest rank); 0 without values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// The gangs of one size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SizeClass {
    /// Gangs.
    pub gangs: usize,
    /// Sum of their leaf spans.
    pub leaf_span: usize,
    /// The least leaf span that this size can have.
    pub least_span: usize,
    /// Sum of their bandwidths, GB/s.
    pub bus_gbps: f64,
    /// Their waits, seconds.
    pub wait: Sample,
}

/// Figures of one policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Metrics {
    /// Waits of all counted jobs, seconds.
    pub wait: Sample,
    /// Waits of the gangs, seconds.
    pub gang_wait: Sample,
    /// Leaf spans of the gangs.
    pub leaf_span: Sample,
    /// Domain spans of the gangs (the narrowest level).
    pub domain_span: Sample,
    /// The least leaf spans that the gangs could have on an empty cluster.
    pub least_span: Sample,
    /// Modelled bandwidth for each GPU of the gangs, GB/s.
    pub bus_gbps: Sample,
    /// Bus bandwidth of the gangs' rings beside those that run, GB/s.
    pub ring_gbps: Sample,
    /// The first weighted with GPU time: sums of GB/s times GPU seconds, and of GPU seconds.
    pub weighted_gbps: (f64, f64),
    /// Leaf span weighted with GPU time: sum; the weights are those of the bandwidth.
    pub weighted_span: f64,
    /// Gangs inside one domain of the narrowest level.
    pub in_one_domain: usize,
    /// Gangs inside one leaf.
    pub in_one_leaf: usize,
    /// Gangs with the same GPU indices on each node.
    pub on_one_rail: usize,
    /// Last end of a counted job, seconds from the start.
    pub makespan: i64,
    /// By GPUs of the gang.
    pub sizes: BTreeMap<u32, SizeClass>,
    /// GPU seconds held between the end of the warm-up and the last submission.
    pub held: f64,
    /// GPU seconds that there were in this time.
    pub capacity: f64,
    /// Jobs counted.
    pub jobs: usize,
}

impl Metrics {
    /// Adds the figures of another run of the same policy.
    pub fn append(&mut self, other: Metrics) {
        self.wait.append(other.wait);
        self.gang_wait.append(other.gang_wait);
        self.leaf_span.append(other.leaf_span);
        self.domain_span.append(other.domain_span);
        self.least_span.append(other.least_span);
        self.bus_gbps.append(other.bus_gbps);
        self.ring_gbps.append(other.ring_gbps);
        self.weighted_gbps.0 += other.weighted_gbps.0;
        self.weighted_gbps.1 += other.weighted_gbps.1;
        self.weighted_span += other.weighted_span;
        self.in_one_domain += other.in_one_domain;
        self.in_one_leaf += other.in_one_leaf;
        self.on_one_rail += other.on_one_rail;
        self.makespan = self.makespan.max(other.makespan);
        for (gpus, theirs) in other.sizes {
            let size = self.sizes.entry(gpus).or_default();
            size.gangs += theirs.gangs;
            size.leaf_span += theirs.leaf_span;
            size.least_span = theirs.least_span;
            size.bus_gbps += theirs.bus_gbps;
            size.wait.append(theirs.wait);
        }
        self.held += other.held;
        self.capacity += other.capacity;
        self.jobs += other.jobs;
    }
}

/// The network with what the running gangs were promised.
struct Network {
    net: Net,
    promises: Promises,
    scratch: Scratch,
    /// By the first node of a gang and its GPUs there, which no other gang can have.
    promised: HashMap<(u32, GpuSet), Promise>,
    nodes: Vec<(u32, GpuSet)>,
}

impl Network {
    fn new(site: &Site) -> Network {
        let levels = &site.cluster.fabric.levels;
        // Only the links above the leaves are tapered.
        let taper = |level: &FabricLevel| match level.name == "leaf" {
            true => Uplink::Oversubscribed((site.taper * 1000.0) as u32),
            false => Uplink::Full,
        };
        let uplinks: Vec<Uplink> = levels.iter().map(taper).collect();
        let net = Net::of_levels(&site.cluster, &uplinks, site.kind == SiteKind::Rail8);
        Network {
            promises: Promises::new(&net),
            scratch: Scratch::new(&net),
            promised: HashMap::new(),
            nodes: Vec::new(),
            net,
        }
    }

    /// A gang starts: the bandwidth of its rings, GB/s.
    fn add(&mut self, nodes: &[NodeChoice]) -> f64 {
        self.nodes.clear();
        self.nodes.extend(nodes.iter().map(|at| (at.node, at.gpus)));
        let (promises, scratch) = (&mut self.promises, &mut self.scratch);
        let units = self.net.bandwidth(promises, scratch, &self.nodes);
        let promise = promises.add(&self.net, scratch, &self.nodes, 1000);
        self.promised.insert(self.nodes[0], promise);
        f64::from(units) / 100.0
    }

    /// A gang ends.
    fn remove(&mut self, nodes: &[NodeChoice]) {
        self.nodes.clear();
        self.nodes.extend(nodes.iter().map(|at| (at.node, at.gpus)));
        if let Some(promise) = self.promised.remove(&self.nodes[0]) {
            let (promises, scratch) = (&mut self.promises, &mut self.scratch);
            promises.remove(&self.net, scratch, &self.nodes, promise);
        }
    }
}

/// Counts while the queue runs.
pub struct Count<'a> {
    site: &'a Site,
    judge: Planner,
    state: Vec<NodeState>,
    network: Network,
    leaf: usize,
    seen: Vec<u32>,
    /// The time that counts for the allocation.
    window: (i64, i64),
    /// The figures so far.
    pub metrics: Metrics,
}

impl<'a> Count<'a> {
    /// Starts counting; the allocation is taken over `window`, seconds from the start.
    pub fn new(site: &'a Site, window: (i64, i64)) -> Count<'a> {
        let nodes = site.nodes() as usize;
        let gpus = site.node_gpus() as usize;
        let state = NodeState {
            present: GpuSet::first(gpus),
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        };
        Count {
            site,
            judge: Planner::new(site.cluster.clone()),
            network: Network::new(site),
            state: vec![state; nodes],
            leaf: site.level("leaf").unwrap_or(0),
            seen: Vec::new(),
            window,
            metrics: Metrics {
                capacity: f64::from(site.gpus()) * (window.1 - window.0) as f64,
                ..Metrics::default()
            },
        }
    }

    /// Number of domains of a level that the nodes lie in.
    fn span(&mut self, level: usize, nodes: &[NodeChoice]) -> usize {
        let of = &self.site.cluster.fabric.levels[level].domain_of;
        self.seen.clear();
        self.seen
            .extend(nodes.iter().map(|at| of[at.node as usize]));
        self.seen.sort_unstable();
        self.seen.dedup();
        self.seen.len()
    }

    /// The least number of leaves that so many nodes need.
    fn least(&self, nodes: u32) -> usize {
        let leaf = &self.site.cluster.fabric.levels[self.leaf];
        let width = leaf.domain_of.iter().filter(|&&of| of == 0).count();
        (nodes as usize).div_ceil(width.max(1))
    }

    /// The bandwidth that the planner's own model gives to an allocation: what it answers when
    /// nothing else is free.
    fn bus_gbps(&mut self, job: &Job, nodes: &[NodeChoice]) -> f64 {
        for at in nodes {
            let state = &mut self.state[at.node as usize];
            (state.candidate, state.free) = (true, at.gpus);
        }
        let request = Request::new(job.nodes, job.nodes, GpuShape::PerNode(job.per_node));
        let choice = self.judge.plan(&self.state, &request, 0);
        let gbps = choice.map_or(0.0, |choice| f64::from(choice.bus_gbps));
        for at in nodes {
            let state = &mut self.state[at.node as usize];
            (state.candidate, state.free) = (false, GpuSet::EMPTY);
        }
        gbps
    }
}

impl Observer for Count<'_> {
    fn started(&mut self, now: i64, job: &Job, nodes: &[NodeChoice]) {
        let inside = (now + job.run).min(self.window.1) - now.max(self.window.0);
        self.metrics.held += inside.max(0) as f64 * f64::from(job.gpus());
        let gang = nodes.len() > 1;
        let rings = if gang { self.network.add(nodes) } else { 0.0 };
        if !job.counted {
            return;
        }
        let wait = (now - job.submit) as f64;
        self.metrics.wait.push(wait);
        self.metrics.jobs += 1;
        if !gang {
            return;
        }
        let leaves = self.span(self.leaf, nodes);
        let domains = self.span(0, nodes);
        let least = self.least(job.nodes);
        let gbps = self.bus_gbps(job, nodes);
        let weight = f64::from(job.gpus()) * job.run as f64;
        let same = nodes.iter().all(|at| at.gpus == nodes[0].gpus);
        let metrics = &mut self.metrics;
        metrics.gang_wait.push(wait);
        metrics.leaf_span.push(leaves as f64);
        metrics.domain_span.push(domains as f64);
        metrics.least_span.push(least as f64);
        metrics.bus_gbps.push(gbps);
        metrics.ring_gbps.push(rings);
        metrics.weighted_gbps.0 += gbps * weight;
        metrics.weighted_gbps.1 += weight;
        metrics.weighted_span += leaves as f64 * weight;
        metrics.in_one_domain += usize::from(domains == 1);
        metrics.in_one_leaf += usize::from(leaves == 1);
        metrics.on_one_rail += usize::from(same);
        let size = metrics.sizes.entry(job.gpus()).or_default();
        size.gangs += 1;
        size.leaf_span += leaves;
        size.least_span = least;
        size.bus_gbps += gbps;
        size.wait.push(wait);
    }

    fn ended(&mut self, now: i64, job: &Job, nodes: &[NodeChoice]) {
        if nodes.len() > 1 {
            self.network.remove(nodes);
        }
        if job.counted {
            self.metrics.makespan = self.metrics.makespan.max(now);
        }
    }
}
