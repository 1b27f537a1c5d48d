//! `gpuos plan --gpuos-mem`: which part of a job's memory lies where, and what that may cost by a trace of its program.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use gpuos_config::gpuos_toml::MemoryConfig;
use gpuos_config::options::{MemoryOption, MemoryTiers};
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_memory::policy::named;
use gpuos_memory::replay::replay;
use gpuos_memory::trace::Trace;
use gpuos_model::cluster::NodeType;
use gpuos_model::hostlist::compress;
use gpuos_placement::plan::{Choice, GpuShape};
use serde_json::{Value, json};

use crate::mem::trace_named;
use crate::reply::Reply;

/// Where the memory of each GPU of a job lies.
pub struct Split {
    asked: MemoryOption,
    /// The memory of the smallest GPU that the job could get, in MiB, and what of it programs have for their data.
    gpu_mib: u64,
    own_mib: u64,
    /// Of the host's memory for each GPU, in MiB.
    share_mib: u64,
    /// Whose memory grows by it.
    counted: Counted,
    /// Nodes that it could have and that are short of host memory, by index, where it may need some.
    short: Vec<u32>,
    /// By node type that it could have: the share that the GPUs have no room for, in thousandths.
    outside: BTreeMap<String, u32>,
    /// Why sbatch would refuse it.
    refusal: Option<String>,
    prediction: Option<Prediction>,
}

/// Where a workload manager counts the host's memory of a job.
enum Counted {
    /// Slurm: for each node, which has at most so many of its GPUs.
    Node { gpus: u64 },
    /// PBS: in each chunk, by its GPUs.
    Chunk,
}

/// What a trace of the program says.
struct Prediction {
    trace: String,
    /// What the program has at most at once, in MiB.
    footprint_mib: u64,
    moved_mib: u64,
    /// Seconds on the link to the host, and seconds in which what is touched is read from GPU memory.
    link_s: f64,
    gpu_s: f64,
    /// GB/s of both.
    link_gbps: f64,
    gpu_gbps: f64,
}

/// Splits what is asked for, on the smallest GPU of these nodes, by their names and types.
///
/// # Errors
/// It is not known what the GPUs have, or a trace cannot be read.
fn split_on(
    config: &MemoryConfig,
    types: &[(&str, &NodeType)],
    asked: MemoryOption,
    trace: Option<&str>,
) -> Result<Split> {
    let least = types.iter().min_by_key(|(_, of)| of.gpu_memory_mib);
    let Some((_, least)) = least.filter(|(_, of)| of.gpu_memory_mib > 0) else {
        bail!(
            "--gpuos-mem={asked}: what the GPUs of this cluster have is not known; a [[node-type]] in gpuos.toml says it"
        );
    };
    let gpu_mib = least.gpu_memory_mib;
    let own_mib = gpu_mib.saturating_sub(config.reserve_mib.into());
    let share_mib = match asked.tiers {
        MemoryTiers::Hbm => 0,
        MemoryTiers::HbmAndDram => config.host_share(asked.mib.into(), gpu_mib),
    };
    let grant = asked.grant(config.reserve_mib);
    let outside = types.iter().filter(|_| asked.tiers.has_host());
    let outside = outside.map(|(_, of)| (of.name.clone(), grant.outside(of)));
    let prediction = trace.map(|name| predict(name, &asked, own_mib, least));
    Ok(Split {
        asked,
        gpu_mib,
        own_mib: own_mib.min(asked.mib.into()),
        share_mib,
        counted: Counted::Chunk,
        short: Vec::new(),
        outside: outside.collect(),
        refusal: None,
        prediction: prediction.transpose()?,
    })
}

/// Splits what a job of PBS asks for, which the hook would let pass.
///
/// # Errors
/// As [`split`].
pub fn split_of_chunk(
    site: &gpuos_pbs::state::Site,
    asked: MemoryOption,
    trace: Option<&str>,
) -> Result<Split> {
    let hosts = site.nodes.hosts.iter().zip(&site.cluster.nodes);
    let types: Vec<(&str, &NodeType)> = hosts
        .filter(|(host, _)| site.nodes.gives_whole_gpus(host))
        .filter_map(|(host, node)| Some((host.name.as_str(), node.node_type.as_deref()?)))
        .collect();
    split_on(&site.config.memory, &types, asked, trace)
}

/// Splits what a job of Slurm asks for, on the smallest GPU that it could get. `trace` is a file or the name of a pattern.
///
/// # Errors
/// It is not known what the GPUs have, or a trace cannot be read.
pub fn split(
    site: &Site,
    asked: MemoryOption,
    wanted: &JobRequest,
    trace: Option<&str>,
) -> Result<Split> {
    let config = &site.config.memory;
    let kind = wanted.gres_type.as_deref();
    let nodes = site.nodes.iter().zip(&site.cluster.nodes);
    let types: Vec<(&str, &NodeType)> = nodes
        .filter(|(record, _)| !record.gpus_of_type(kind).is_empty())
        .filter_map(|(record, node)| Some((record.name.as_str(), node.node_type.as_deref()?)))
        .collect();
    let split = split_on(config, &types, asked, trace)?;
    let gpu_mib = split.gpu_mib;
    let smallest = types.iter().find(|(_, of)| of.gpu_memory_mib == gpu_mib);
    let smallest = smallest.map_or("", |(node, _)| node);
    let most = match asked.tiers {
        MemoryTiers::Hbm => gpu_mib,
        MemoryTiers::HbmAndDram => config.most_mib(gpu_mib),
    };
    let unsaid = types
        .iter()
        .find(|(name, of)| !site.config.states(name, of));
    let refusal = match unsaid {
        _ if !config.oversubscribe => {
            Some("[memory] oversubscribe in gpuos.toml is not true".to_owned())
        }
        Some((node, _)) => Some(format!(
            "no [[nodes]] or [[node-type]] in gpuos.toml says what the GPUs of {node} have"
        )),
        None if u64::from(asked.mib) > most => Some(format!(
            "it is more than the {most} MiB that are the most beside a GPU of {smallest}"
        )),
        None => None,
    };
    let most_gpus = types
        .iter()
        .map(|(_, of)| of.gpus as u64)
        .max()
        .unwrap_or(1);
    let request = &wanted.request;
    let gpus = match request.gpus {
        GpuShape::PerNode(gpus) => gpus.into(),
        GpuShape::Total(gpus) => u64::from(gpus).saturating_sub(u64::from(request.min_nodes) - 1),
        _ => most_gpus,
    };
    let nodes = (0..).zip(&site.nodes);
    let short = nodes.filter(|(_, node)| {
        let could = node.is_up() && wanted.allows(node) && !node.gpus_of_type(kind).is_empty();
        wanted.needs_host_memory && could && node.is_short()
    });
    Ok(Split {
        counted: Counted::Node {
            gpus: gpus.clamp(1, most_gpus),
        },
        short: short.map(|(at, _)| at).collect(),
        refusal,
        ..split
    })
}

/// Splits what a running job has, on the smallest GPU of these nodes.
///
/// # Errors
/// It is not known what the GPUs have.
pub fn split_of_running(site: &Site, asked: MemoryOption, on: &[String]) -> Result<Split> {
    let nodes = site.nodes.iter().zip(&site.cluster.nodes);
    let types: Vec<(&str, &NodeType)> = nodes
        .filter(|(record, _)| on.contains(&record.name))
        .filter_map(|(record, node)| Some((record.name.as_str(), node.node_type.as_deref()?)))
        .collect();
    split_on(&site.config.memory, &types, asked, None)
}

fn predict(
    name: &str,
    asked: &MemoryOption,
    own_mib: u64,
    node_type: &NodeType,
) -> Result<Prediction> {
    let trace: Trace = trace_named(name)?;
    let mib = u64::from(trace.extent_mib);
    let capacity = usize::try_from(own_mib.min(asked.mib.into()) / mib)?;
    let footprint_mib = trace.footprint() as u64 * mib;
    if footprint_mib > asked.mib.into() {
        bail!(
            "--gpuos-mem={asked}: the program of {name} has {footprint_mib} MiB at once; write as much or more"
        );
    }
    let (link_gbps, gpu_gbps) = (
        f64::from(node_type.pcie_gbps),
        f64::from(node_type.figures.memory_gbps),
    );
    if link_gbps <= 0.0 || gpu_gbps <= 0.0 {
        bail!(
            "--trace={name}: the node type {} has no pcie-gbps or no gpu-memory-gbps; gpuos.toml can say them",
            node_type.name
        );
    }
    let mut policy =
        named(asked.policy.name(), capacity.max(1)).context("there is no such policy")?;
    let moved = replay(&trace, capacity.max(1), policy.as_mut())
        .with_context(|| format!("{name}: {} is at fault", asked.policy.name()))?;
    let moved_mib = match footprint_mib <= own_mib {
        true => 0,
        false => (moved.fetched + moved.written_back) * mib,
    };
    let seconds = |mib: u64, gbps: f64| (mib << 20) as f64 / (gbps * 1e9);
    Ok(Prediction {
        trace: name.into(),
        footprint_mib,
        moved_mib,
        link_s: seconds(moved_mib, link_gbps),
        gpu_s: seconds(moved.touches * mib, gpu_gbps),
        link_gbps,
        gpu_gbps,
    })
}

/// GiB with one digit.
pub fn gib(mib: u64) -> String {
    let tenths = (mib * 10 + 512) / 1024;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

impl Split {
    /// MiB of each node's memory that a job of Slurm needs for its GPUs.
    pub fn host_mib(&self) -> u64 {
        match self.counted {
            Counted::Node { gpus } => self.share_mib.saturating_mul(gpus),
            Counted::Chunk => 0,
        }
    }

    /// MiB of the host's memory for each GPU.
    pub fn share_mib(&self) -> u64 {
        self.share_mib
    }

    /// MiB of each GPU's own memory.
    pub fn own_mib(&self) -> u64 {
        self.own_mib
    }

    /// How many GPUs of a node are counted; `None`: a chunk has them.
    pub fn gpus_of_node(&self) -> Option<u64> {
        match self.counted {
            Counted::Node { gpus } => Some(gpus),
            Counted::Chunk => None,
        }
    }

    /// Whether sbatch would refuse it.
    pub fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Adds it to an answer.
    pub fn tell(&self, reply: &mut Reply) {
        reply.text += &self.text();
        reply.json["memory"] = self.json();
    }

    /// The same, with the nodes that are short of memory; `on`: where the job would go.
    pub fn add(&self, site: &Site, on: Option<&Choice>, reply: &mut Reply) {
        self.tell(reply);
        reply.text += &self.short_text(site, on);
        let names = self.short.iter().map(|at| &site.nodes[*at as usize].name);
        reply.json["memory"]["short_nodes"] = json!(names.collect::<Vec<_>>());
    }

    /// Which nodes are short of host memory, and whether the job would go there all the same.
    fn short_text(&self, site: &Site, on: Option<&Choice>) -> String {
        let names = |nodes: &[u32]| {
            let names = nodes
                .iter()
                .map(|at| site.nodes[*at as usize].name.as_str());
            compress(names)
        };
        if self.short.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "Short of host memory: {}. Such nodes come after others for this job.",
            names(&self.short)
        );
        let chosen = on.iter().flat_map(|choice| &choice.nodes);
        let chosen = chosen.map(|one| one.node);
        let there: Vec<u32> = chosen.filter(|node| self.short.contains(node)).collect();
        if !there.is_empty() {
            text += &format!(
                " It would start on {} all the same, as no other place is as good, and may soon have to give some back.",
                names(&there)
            );
        }
        text + "\n"
    }

    fn text(&self) -> String {
        let mut text = match self.share_mib {
            0 => format!(
                "Memory of each GPU: {}, all in its own.\n",
                gib(self.asked.mib.into())
            ),
            share => {
                let grows = match self.counted {
                    Counted::Node { gpus } => format!(
                        "--mem grows by {} MiB for {gpus} of a node's GPUs",
                        self.host_mib()
                    ),
                    Counted::Chunk => {
                        format!("mem of a chunk grows by {share} MiB for each of its GPUs")
                    }
                };
                format!(
                    "Memory of each GPU: {}, of it {} in its own and {} in the host's. {grows}.\n",
                    gib(self.asked.mib.into()),
                    gib(self.own_mib),
                    gib(share)
                )
            }
        };
        let least = self.outside.values().min();
        if self.outside.values().max() != least {
            let room = |(name, outside): (&String, &u32)| match outside {
                0 => format!("all of it on {name}"),
                outside => format!("{} % on {name}", (1000 - outside) / 10),
            };
            let rooms: Vec<String> = self.outside.iter().map(room).collect();
            text += &format!(
                "GPUs have room for {}. Among places as close, those are worth more to the job where less of it lies outside.\n",
                rooms.join(", ")
            );
        }
        if let Some(why) = &self.refusal {
            text += &format!("sbatch would refuse it: {why}.\n");
        }
        if let Some(told) = &self.prediction {
            text += &told.text(self.asked.policy.name());
        }
        text
    }

    fn json(&self) -> Value {
        let gpus = self.gpus_of_node();
        json!({
            "size_mib": self.asked.mib,
            "gpu_mib": self.gpu_mib,
            "host_mib_per_gpu": self.share_mib,
            "outside_thousandths": self.outside,
            "gpus_of_node": gpus,
            "host_mib_of_node": gpus.map(|_| self.host_mib()),
            "refused": self.refusal,
            "prediction": self.prediction.as_ref().map(|told| json!({
                "trace": told.trace,
                "policy": self.asked.policy.name(),
                "footprint_mib": told.footprint_mib,
                "moved_mib": told.moved_mib,
                "link_seconds": told.link_s,
                "gpu_seconds": told.gpu_s,
                "slowdown_at_most": told.slowdown(),
            })),
        })
    }
}

impl Prediction {
    /// How much slower the program is at most: where it does nothing but wait for memory.
    fn slowdown(&self) -> f64 {
        match self.gpu_s > 0.0 {
            true => (self.gpu_s + self.link_s) / self.gpu_s,
            false => 1.0,
        }
    }

    fn text(&self, policy: &str) -> String {
        let Prediction {
            trace,
            link_s,
            gpu_s,
            link_gbps,
            gpu_gbps,
            ..
        } = self;
        let has = gib(self.footprint_mib);
        if self.moved_mib == 0 {
            return format!("{trace} has {has} at once: all of it fits, and nothing is moved.\n");
        }
        format!(
            "{trace} has {has} at once. Under {policy} {} go over the link, {link_s:.2} s at {link_gbps:.0} GB/s; what it touches takes {gpu_s:.2} s from \
             GPU memory at {gpu_gbps:.0} GB/s. So it is up to {:.1} times as slow where it only waits for memory, and as fast where it computes for \
             {link_s:.2} s or longer.\n",
            gib(self.moved_mib),
            self.slowdown()
        )
    }
}
