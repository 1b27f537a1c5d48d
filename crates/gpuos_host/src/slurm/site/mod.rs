//! A Slurm cluster at one moment, in the planner's terms: [`Site`], Slurm and gpuos.toml joined; [`JobRequest`], a job as scontrol and
//! its script have it; [`switchable`], MIG-switchable GPUs, in one GRES and the other.

mod ends;
mod fabric;
mod neighbours;
mod partitions;
mod request;
pub mod switchable;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::Result;
use gpuos_config::gpuos_toml::Config;
use gpuos_config::slurm_conf::NodeLines;
use gpuos_config::slurm_topology::Topologies;
use gpuos_model::cluster::Cluster;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::fits::Memory;

use crate::Machine;
use crate::config_file;
use crate::slurm::{self, NodeRecord, Running};

pub use ends::seconds_between;
pub(crate) use fabric::local_topologies;
pub use neighbours::{Asker, Judge, Neighbours};
pub use partitions::Partition;
pub use request::{JobRequest, feature_match, options_in_script, options_in_words};

/// The cluster as slurmctld has it now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Site {
    /// What slurmctld runs with.
    pub running: Running,
    /// Nodes, in the order of Slurm's node table.
    pub nodes: Vec<NodeRecord>,
    /// gpuos.toml, or the defaults.
    pub config: Config,
    /// The file that `config` came from.
    pub config_file: Option<PathBuf>,
    /// Node types and fabric; nodes by the same index as `nodes`. The fabric is that of the topology of [`Site::see_partition`].
    pub cluster: Cluster,
    /// The topologies that are in force.
    pub topologies: Topologies,
    /// The cluster in each of them that is told apart ([`Config::views`]), that of the cluster itself first.
    views: Vec<Cluster>,
    /// Partitions; empty where slurmctld does not show them.
    pub partitions: Vec<Partition>,
    /// What could not be read and is missed: sentences.
    pub notes: Vec<String>,
    /// Nodes that Slurm's topology file names and slurmctld does not have.
    pub topology_strangers: Vec<String>,
    /// Nodes of slurm.conf that slurmctld does not show: before 23.02 those that are powered down in the cloud, and always those of
    /// `State=FUTURE`.
    pub hidden: Vec<String>,
    /// Index of each node by name.
    by_name: HashMap<String, u32>,
}

impl Site {
    /// Asks slurmctld and reads the files. `config` names the gpuos.toml to take instead of
    /// the usual one. Errors are those that leave nothing to show.
    pub fn read(machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
        let running = slurm::running(machine)?;
        let mut nodes = slurm::nodes(machine)?;
        let mut notes = Vec::new();
        let (config_file, config) = config_file::read(machine, config, &running.directory())?;
        for node in &mut nodes {
            if let Some(own) = config.mig.pool_of(&node.name) {
                node.gpus_divided = switchable::whole_of(own, node.slices_used);
            }
        }
        let (facts, hidden) = facts(machine, &running, &nodes, &mut notes);
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let mut found = fabric::topologies(machine, &running, &nodes);
        found.strangers.retain(|name| !hidden.contains(name));
        notes.extend(found.note);
        let fabrics = found.topologies.fabrics(&names);
        let views = 0..config.views(&found.topologies);
        let views = views.map(|view| config.cluster(&facts, fabrics.get(view)));
        let views: Vec<Cluster> = views.collect::<Result<_, _>>()?;
        Ok(Site {
            running,
            nodes,
            config,
            config_file,
            cluster: views[0].clone(),
            notes,
            topology_strangers: found.strangers,
            topologies: found.topologies,
            views,
            partitions: partitions::read(
                &slurm::scontrol(machine, &["show", "partitions"]).unwrap_or_default(),
            ),
            hidden,
            by_name: names.into_iter().zip(0..).collect(),
        })
    }

    /// Has the cluster be as jobs in these partitions see it, of which the first counts, as for Slurm; without any it is the default one. From
    /// Slurm 25.05 on a partition may have a topology of its own.
    pub fn see_partition(&mut self, partitions: &[String]) {
        let name = self.partition(partitions).map_or("", |one| &one.topology);
        let number = self.topologies.number(name);
        if let Some(view) = number.and_then(|number| self.views.get(number)) {
            self.cluster = view.clone();
        }
    }

    /// The partition that counts among these: the first; without any the default one.
    fn partition(&self, partitions: &[String]) -> Option<&Partition> {
        let mut all = self.partitions.iter();
        match partitions.first() {
            Some(name) => all.find(|one| one.name == *name),
            None => all.find(|one| one.is_default),
        }
    }

    /// Name of the partition for jobs that name none; `None`: there is none, or slurmctld does not show it.
    pub fn default_partition(&self) -> Option<&str> {
        self.partition(&[]).map(|one| one.name.as_str())
    }

    /// The memory that a job in these partitions gets which asks for none.
    pub fn default_memory(&self, partitions: &[String]) -> Memory {
        match self.memory_counts() {
            true => partitions::memory(&self.running, self.partition(partitions)),
            false => Memory::Free,
        }
    }

    /// Indices of nodes, ascending, and the names that are no node.
    pub fn indices(&self, names: &[String]) -> (Vec<u32>, Vec<String>) {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            match self.by_name.get(name) {
                Some(&at) => found.push(at),
                None => missing.push(name.clone()),
            }
        }
        found.sort_unstable();
        found.dedup();
        (found, missing)
    }

    /// Whether slurmctld allocates memory (`SelectTypeParameters` with `MEMORY`).
    pub fn memory_counts(&self) -> bool {
        self.running
            .get("SelectTypeParameters")
            .is_some_and(|p| p.to_uppercase().contains("MEMORY"))
    }
}

/// gpuos.toml alone: that which `given` or `$GPUOS_CONF` names, else the one beside the slurm.conf that
/// slurmctld tells of; the defaults where Slurm does not answer.
///
/// # Errors
/// A named file cannot be read, or the file has a mistake.
pub fn config(machine: &dyn Machine, given: Option<&Path>) -> Result<Config> {
    let folder = || Some(slurm::running(machine).ok()?.directory());
    Ok(config_file::found(machine, given, folder)?.unwrap_or_default())
}

/// What Slurm knows of the nodes: counts from slurmctld, links and sockets from gres.conf. And nodes of slurm.conf that slurmctld
/// does not show.
fn facts(
    machine: &dyn Machine,
    running: &Running,
    nodes: &[NodeRecord],
    notes: &mut Vec<String>,
) -> (Vec<NodeFacts>, Vec<String>) {
    let dir = running.directory();
    let slurm_conf = running.slurm_conf();
    let read = |name: &str| {
        let path = if name == "slurm.conf" {
            slurm_conf.clone()
        } else {
            dir.join(name)
        };
        match machine.read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    };
    let lines = NodeLines::read(&read).unwrap_or_else(|e| {
        notes.push(format!(
            "{e}; links and sockets of GPUs come from node types only (run this where Slurm's \
             files can be read)"
        ));
        NodeLines::default()
    });
    let shown: HashSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let lines = lines.all();
    let names = lines.iter().map(|facts| facts.name.clone());
    let hidden = names
        .filter(|name| !shown.contains(name.as_str()))
        .collect();
    let told: HashMap<String, NodeFacts> = lines
        .into_iter()
        .map(|facts| (facts.name.clone(), facts))
        .collect();
    let facts = nodes
        .iter()
        .map(|node| {
            let gpus = node.gpu_count();
            let told = told.get(&node.name).filter(|facts| facts.gpus == gpus);
            NodeFacts {
                name: node.name.clone(),
                gpus,
                gres_type: match &node.gpus[..] {
                    [(only, _)] => only.clone(),
                    _ => told
                        .map(|facts| facts.gres_type.clone())
                        .unwrap_or_default(),
                },
                sockets: node.sockets,
                cores_per_socket: node.cores_per_socket,
                links: told.and_then(|facts| facts.links.clone()),
                gpu_sockets: told.and_then(|facts| facts.gpu_sockets.clone()),
            }
        })
        .collect();
    (facts, hidden)
}
