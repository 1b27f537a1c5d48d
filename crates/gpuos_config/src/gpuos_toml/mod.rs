//! gpuos.toml: what it may say, with every key optional, and the cluster that comes of it.
//!
//! `packaging/gpuos.toml.sample` documents every key.
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, Node, NodeType};
use gpuos_model::hostlist::expand;
use gpuos_model::node_types::{NodeFacts, build_types};
use gpuos_model::reading::{Check, ConfigError, Place, quoted, read};
use gpuos_placement::cost::Condition;
use gpuos_placement::fabric::{Net, Recipe};
use gpuos_placement::traffic::Traffic;
use toml::Spanned;

use crate::slurm_topology::Topologies;

mod access;
mod checkpoint;
mod fabric;
mod failure_domains;
mod health;
mod heartbeat;
mod isolation;
mod memory;
mod memory_share;
mod metrics;
mod mig;
mod mig_layout;
mod mig_serve;
mod names;
mod net;
mod parking;
mod policy;
mod raw;
mod rules;

pub use checkpoint::{AROUND_END_S, CheckpointConfig, Compression};
pub use memory::MemoryConfig;
pub use memory_share::MemoryShare;
pub use metrics::{MetricsConfig, http_url};
pub use mig::{MigBoard, MigConfig, MigPool, STEERED_SLICES};
pub use mig_layout::{Difference, MigLayout, Pinned, Wanted};
pub use mig_serve::Served;
pub use parking::{ParkingConfig, ParkingGres};
pub use policy::{Policy, PolicyRule};

use fabric::FabricConfig;
use raw::RawFile;
use rules::RuleTables;

/// Where a decision is noted in Slurm's job record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NoteField {
    /// In `SystemComment`, which `gpuos why` reads.
    #[default]
    SystemComment,
    /// Nowhere.
    Off,
}

/// What goes into slurmctld's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogLevel {
    /// One line for each job that gpuos places.
    #[default]
    Decisions,
    /// Errors and the line at start only.
    Quiet,
}

/// `[slurm]`: how the plugin in slurmctld behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlurmConfig {
    /// Whether gpuos places jobs at all; without it slurmctld schedules as with cons_tres.
    pub steer: bool,
    /// Where decisions are noted.
    pub note: NoteField,
    /// What is logged.
    pub log: LogLevel,
    /// How many choices are offered to Slurm before it gets the unrestricted set, 1 to 16.
    pub attempts: u8,
    /// Room in memory for about so many decisions, for `gpuos why` and `gpuos replay`; 0 = none
    /// are recorded.
    pub records: u32,
}

impl Default for SlurmConfig {
    fn default() -> SlurmConfig {
        SlurmConfig {
            steer: true,
            note: NoteField::default(),
            log: LogLevel::default(),
            attempts: 4,
            records: 4096,
        }
    }
}

/// The whole configuration. The default is that of an empty file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// `[slurm]`.
    pub slurm: SlurmConfig,
    /// `[policy]`.
    pub policy: Policy,
    /// `[health]`: what gpuosd does about which fault.
    pub health: gpuos_core::health::Rules,
    /// `[health] file-systems`: those that gpuosd asks whether they answer.
    pub file_systems: Vec<PathBuf>,
    /// `[isolation]`: what gpuosd does about processes on GPUs that they do not own.
    pub isolation: gpuos_core::isolation::Policy,
    /// `[metrics]`: where gpuosd tells its figures.
    pub metrics: MetricsConfig,
    /// `[heartbeat]`: how gpuosds watch each other's nodes.
    pub heartbeat: gpuos_core::peers::HeartbeatConfig,
    /// `[checkpoint]`: checkpoints of jobs.
    pub checkpoint: CheckpointConfig,
    /// `[memory]` and `[[memory-share]]`: more memory than GPUs have, and who may have how much of the host's.
    pub memory: MemoryConfig,
    /// `nvme` of `[memory]`: where memory is parked beyond the host's.
    pub parking: Option<ParkingConfig>,
    /// `[access]`: who is told of other users' jobs.
    pub access: crate::access::Access,
    /// `[[forbid]]`: which options whose jobs may not use.
    pub forbidden: crate::access::Forbidden,
    /// `[mig]`: which GPUs are divided into slices, and how they can be.
    pub mig: MigConfig,
    /// `[[node-type]]`, in the order of the file.
    pub node_types: Vec<Arc<NodeType>>,
    rules: Vec<Rule>,
    fabric: FabricConfig,
    apart: RuleTables,
    /// Names in `[policy]` and `[checkpoint]` that only the cluster can confirm.
    named: names::Named,
    file: String,
}

/// One `[[nodes]]` table.
#[derive(Clone, PartialEq, Debug)]
struct Rule {
    nodes: Vec<String>,
    node_type: Arc<NodeType>,
    condition: Condition,
    place: Place,
}

impl Config {
    /// Reads the text of a gpuos.toml; `file_name` is what errors call the file.
    ///
    /// # Errors
    /// The first mistake: broken TOML, an unknown key, a value that is not accepted.
    pub fn parse(text: &str, file_name: &str) -> Result<Config, ConfigError> {
        let (raw, check): (RawFile, _) = read(text, file_name).map_err(names::renamed)?;
        let mut apart = RuleTables::read(check, &raw)?;
        let (forbidden, partitions) = access::forbidden(check, &raw.forbid)?;
        apart.partitions.extend(partitions);
        let (memory, partitions) = memory::read(check, &raw.memory, &raw.memory_share)?;
        apart.partitions.extend(partitions);
        let known = gpuos_model::node_types::raw();
        let (node_types, _) = build_types(check, raw.node_type, known)?;
        let mut config = Config {
            slurm: read_slurm(check, &raw.slurm)?,
            policy: Policy::read(check, &raw.policy)?,
            health: health::read(check, &raw.health)?,
            file_systems: health::file_systems(check, &raw.health)?,
            isolation: isolation::read(check, &raw.isolation)?,
            metrics: metrics::read(check, &raw.metrics)?,
            heartbeat: heartbeat::read(check, &raw.heartbeat)?,
            checkpoint: checkpoint::read(check, &raw.checkpoint)?,
            memory,
            parking: parking::read(check, &raw.memory)?,
            access: access::access(check, &raw.access)?,
            forbidden,
            mig: mig::read(check, &raw.mig)?,
            node_types: node_types.into_iter().map(Arc::new).collect(),
            rules: Vec::new(),
            fabric: FabricConfig::read(check, &raw.fabric)?,
            apart,
            named: names::Named::read(check, &raw.policy, &raw.checkpoint),
            file: file_name.into(),
        };
        let mut owners = HashMap::new();
        for (nth, table) in raw.nodes.iter().enumerate() {
            let rule = config.read_rule(check, table)?;
            for node in &rule.nodes {
                if owners
                    .insert(node.clone(), nth)
                    .is_some_and(|owner| owner != nth)
                {
                    let message = format!("node {node} is in two [[nodes]]; keep it in one");
                    return Err(check.error(table, message));
                }
            }
            config.rules.push(rule);
        }
        Ok(config)
    }

    fn read_rule(&self, check: Check, table: &Spanned<raw::RawRule>) -> Result<Rule, ConfigError> {
        let raw = table.get_ref();
        let list = check.need(table, "[[nodes]]", "match", &raw.nodes)?;
        let name = check.need(table, "[[nodes]]", "type", &raw.node_type)?;
        let nodes = expand(list.get_ref()).map_err(|e| check.error(list, format!("match: {e}")))?;
        let node_type = self.node_type(name.get_ref()).ok_or_else(|| {
            let known: Vec<&str> = self.all_types().map(|t| t.name.as_str()).collect();
            let form = format!("one of {}", known.join(", "));
            check.refuse("type", name, quoted(name.get_ref()), form)
        })?;
        let cap = check.int("gpu-cap-watts", &raw.gpu_cap_watts, 1..=100_000, 0)?;
        let health = check.int("health-percent", &raw.health_percent, 0..=100, 100)?;
        Ok(Rule {
            nodes,
            node_type,
            condition: Condition {
                cap_watts: cap as u32,
                health: health as u32 * 10,
                ..Condition::default()
            },
            place: check.place(list),
        })
    }

    /// Whether nothing in the file takes a node away from a job that says nothing to gpuos, or makes it wait:
    /// then what Slurm offers is all that counts for it.
    pub fn leaves_all_nodes(&self) -> bool {
        // Named one by one: whoever adds a table that takes nodes away has to say so here.
        let Config {
            slurm: _,
            policy: _,
            health: _,
            file_systems: _,
            isolation: _,
            metrics: _,
            heartbeat: _,
            checkpoint: _,
            memory: _,
            parking: _,
            access: _,
            forbidden: _,
            mig: _,
            node_types: _,
            rules: _,
            fabric: _,
            apart,
            named: _,
            file: _,
        } = self;
        !apart.rules.bind()
    }

    /// The types of this file, then the shipped ones.
    fn all_types(&self) -> impl Iterator<Item = &Arc<NodeType>> {
        let shipped: &[Arc<NodeType>] = gpuos_model::node_types::all();
        self.node_types.iter().chain(shipped)
    }

    /// A node type by name: one of this file, else a shipped one.
    pub fn node_type(&self, name: &str) -> Option<Arc<NodeType>> {
        self.all_types().find(|t| t.name == name).cloned()
    }

    /// Joins the configuration with what Slurm knows into the cluster that plans are made
    /// for. Nodes keep their order. A node's type comes from its `[[nodes]]` table, else from
    /// its GRES type, else from gres.conf; nodes without GPUs have none.
    ///
    /// # Errors
    /// The file contradicts Slurm: a node type with another number of GPUs than the node
    /// has, a level that nobody describes, domains that do not lie inside each other.
    pub fn cluster(
        &self,
        nodes: &[NodeFacts],
        fabric_from_slurm: Option<&Fabric>,
    ) -> Result<Cluster, ConfigError> {
        let mut rules: HashMap<&str, &Rule> = HashMap::new();
        for rule in &self.rules {
            rules.extend(rule.nodes.iter().map(|node| (node.as_str(), rule)));
        }
        // Nodes of one kind share one type, and thereby the planner's tables for it.
        let mut made: Vec<(NodeFacts, Option<Arc<NodeType>>)> = Vec::new();
        let mut out = Vec::with_capacity(nodes.len());
        for facts in nodes {
            let node_type = match rules.get(facts.name.as_str()) {
                Some(rule) => Some(self.checked(rule, facts)?),
                None => {
                    let kind = NodeFacts {
                        name: String::new(),
                        ..facts.clone()
                    };
                    match made.iter().find(|(other, _)| *other == kind) {
                        Some((_, node_type)) => node_type.clone(),
                        None => {
                            let node_type = self.type_of(&kind);
                            made.push((kind, node_type.clone()));
                            node_type
                        }
                    }
                }
            };
            out.push(Node {
                name: facts.name.clone(),
                node_type,
            });
        }
        let names: Vec<&str> = nodes.iter().map(|facts| facts.name.as_str()).collect();
        Ok(Cluster {
            nodes: out,
            fabric: self.fabric.build(&self.file, &names, fabric_from_slurm)?,
        })
    }

    /// Whether the file describes the network of the whole cluster, so that Slurm's topology says nothing beside it.
    pub fn describes_network(&self) -> bool {
        self.fabric.has_nets()
    }

    /// How many of the topologies that were found are told apart: one where the file describes the network, or where there is none.
    pub fn views(&self, found: &Topologies) -> usize {
        match self.describes_network() {
            true => 1,
            false => found.all().len().max(1),
        }
    }

    /// The conditions of a cluster's nodes, by index; empty when the file says that all are as new.
    pub fn conditions(&self, cluster: &Cluster) -> Vec<Condition> {
        let known = |rule: &&Rule| rule.condition != Condition::default();
        let rules = self.rules.iter().filter(known);
        let by_name: HashMap<&str, Condition> = rules
            .flat_map(|rule| {
                rule.nodes
                    .iter()
                    .map(|node| (node.as_str(), rule.condition))
            })
            .collect();
        if by_name.is_empty() {
            return Vec::new();
        }
        let of = |node: &Node| by_name.get(node.name.as_str()).copied().unwrap_or_default();
        cluster.nodes.iter().map(of).collect()
    }

    /// The network of a cluster that [`Config::cluster`] made: its links, routes and rates.
    ///
    /// # Errors
    /// None that [`Config::cluster`] would not have found.
    pub fn net(&self, cluster: &Cluster) -> Result<Net, ConfigError> {
        self.fabric.net(&self.file, cluster)
    }

    /// The gangs on the network that `[[fabric.net]]` describes, none yet; `None` without such a
    /// table.
    pub fn traffic(&self, cluster: &Cluster) -> Option<Traffic> {
        Some(Traffic::new(self.recipe(cluster)?.net(cluster).ok()?))
    }

    /// What the network that `[[fabric.net]]` describes is made of; `None` without such a table.
    pub fn recipe(&self, cluster: &Cluster) -> Option<Recipe> {
        let described = self.fabric.has_nets();
        described.then(|| self.fabric.recipe(cluster))
    }

    fn checked(&self, rule: &Rule, facts: &NodeFacts) -> Result<Arc<NodeType>, ConfigError> {
        let node_type = &rule.node_type;
        if node_type.gpus == facts.gpus {
            return Ok(node_type.clone());
        }
        let message = format!(
            "node {} has {} GPUs, and node type {} has {}; name a type with {} GPUs or \
             leave the node out of match",
            facts.name, facts.gpus, node_type.name, node_type.gpus, facts.gpus
        );
        Err(rule.place.error(&self.file, message))
    }

    /// The type of one node that somebody described: that of its `[[nodes]]` table, else the one in this file or
    /// the shipped one that fits what Slurm says. `None`: nobody did.
    pub fn described_type(&self, facts: &NodeFacts) -> Option<Arc<NodeType>> {
        let ruled = |rule: &&Rule| rule.nodes.contains(&facts.name);
        let rule = self.rules.iter().find(ruled);
        let fits = || self.all_types().find(|node_type| facts.fits(node_type));
        rule.map(|rule| &rule.node_type).or_else(fits).cloned()
    }

    /// The type of one node where this file says it: that of its `[[nodes]]` table, else the one of its own `[[node-type]]` tables that
    /// fits. The name of a GPU in slurm.conf alone does not tell boards apart that have different memory: an A100 has 40 or 80 GB.
    pub fn stated_type(&self, facts: &NodeFacts) -> Option<Arc<NodeType>> {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.nodes.contains(&facts.name));
        let fits = || {
            self.node_types
                .iter()
                .find(|node_type| facts.fits(node_type))
        };
        rule.map(|rule| &rule.node_type).or_else(fits).cloned()
    }

    /// Whether the type of a node is one that [`Config::stated_type`] gives.
    pub fn states(&self, node: &str, node_type: &NodeType) -> bool {
        let is_in = |rule: &Rule| rule.nodes.iter().any(|name| name == node);
        self.rules.iter().any(is_in) || self.node_types.iter().any(|own| own.name == node_type.name)
    }

    fn type_of(&self, facts: &NodeFacts) -> Option<Arc<NodeType>> {
        if facts.gpus == 0 || facts.gpus > gpuos_model::gpuset::MAX_GPUS {
            return None;
        }
        if let Some(node_type) = self.all_types().find(|node_type| facts.fits(node_type)) {
            return Some(node_type.clone());
        }
        let like = self.all_types().find(|node_type| facts.same_gpu(node_type));
        Some(Arc::new(facts.node_type(like.map(|t| &**t))))
    }

    /// Nodes that the file names and Slurm does not have: often a typing error, so `gpuos
    /// doctor` shows them; they do no harm.
    pub fn unknown_nodes(&self, node_names: &[&str]) -> Vec<ConfigError> {
        let known: std::collections::HashSet<&str> = node_names.iter().copied().collect();
        let rules = self.rules.iter();
        let ruled = rules.flat_map(|rule| rule.nodes.iter().map(|n| (n.as_str(), rule.place)));
        ruled
            .chain(self.fabric.node_names())
            .chain(self.mig.node_names())
            .chain(
                self.apart
                    .nodes
                    .iter()
                    .map(|(n, place)| (n.as_str(), *place)),
            )
            .filter(|(name, _)| !known.contains(name))
            .map(|(name, place)| {
                place.error(&self.file, format!("node {name} is not in slurm.conf"))
            })
            .collect()
    }
}

impl Config {
    /// The GRES in which Slurm counts NVMe for what is parked, where it does.
    pub fn parking_gres(&self) -> Option<&ParkingGres> {
        self.parking.as_ref()?.gres.as_ref()
    }

    /// Who may run beside whom.
    pub fn rules(&self) -> &gpuos_placement::rules::Rules {
        &self.apart.rules
    }
}

fn read_slurm(check: Check, raw: &raw::RawSlurm) -> Result<SlurmConfig, ConfigError> {
    let default = SlurmConfig::default();
    let notes = [
        ("system_comment", NoteField::SystemComment),
        ("off", NoteField::Off),
    ];
    let logs = [
        ("decisions", LogLevel::Decisions),
        ("quiet", LogLevel::Quiet),
    ];
    Ok(SlurmConfig {
        steer: raw.steer.unwrap_or(default.steer),
        note: check.word("note", &raw.note, &notes, default.note)?,
        log: check.word("log", &raw.log, &logs, default.log)?,
        attempts: check.int("attempts", &raw.attempts, 1..=16, default.attempts.into())? as u8,
        records: check.int("records", &raw.records, 0..=1 << 17, default.records.into())? as u32,
    })
}
