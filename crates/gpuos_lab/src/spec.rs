//! What a lab shall be: nodes, node type, Slurm release, plugins, configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use gpuos_model::gpuset::GpuSet;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::plugins;

/// Which Slurm a lab runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// The Slurm installed on this machine.
    Native,
    /// The Slurm of a Debian suite, for example `trixie`, in a folder made by debootstrap.
    Debian(String),
    /// A Slurm installed by hand under this prefix (`PREFIX/sbin/slurmctld`, …).
    Prefix(PathBuf),
}

impl FromStr for Suite {
    type Err = LabError;

    /// `native`, an absolute path (a prefix), or the name of a Debian suite.
    fn from_str(text: &str) -> Result<Suite, LabError> {
        let is_name = !text.is_empty()
            && text
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        if text == "native" {
            Ok(Suite::Native)
        } else if text.starts_with('/') {
            Ok(Suite::Prefix(PathBuf::from(text)))
        } else if is_name {
            Ok(Suite::Debian(text.to_string()))
        } else {
            Err(LabError::Spec(format!(
                "--slurm {text:?}: give native, the name of a Debian suite (trixie, sid), or the absolute path of an installed Slurm"
            )))
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suite::Native => f.write_str("native"),
            Suite::Debian(name) => f.write_str(name),
            Suite::Prefix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which SelectType a lab starts with, and whether it can see gpuos's plugins.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Select {
    /// `select/cons_tres`; gpuos's plugins are in no folder that Slurm searches.
    #[default]
    Stock,
    /// `select/cons_tres`; gpuos's plugins can be found but are not selected.
    Installed {
        /// Folder with the built plugins (`libselect_gpuos.so` or `select_gpuos.so`, …).
        plugin_dir: PathBuf,
        /// As in [`Select::Gpuos`].
        own_dir: bool,
    },
    /// `select/gpuos`.
    Gpuos {
        /// Folder with the built plugins (`libselect_gpuos.so` or `select_gpuos.so`, …).
        plugin_dir: PathBuf,
        /// True: a plugin folder of gpuos's own, before Slurm's in `PluginDir`. False: one
        /// folder with links to Slurm's plugins and gpuos's beside them, as after a copy
        /// into Slurm's folder.
        own_dir: bool,
    },
}

impl Select {
    /// The folder of built plugins and whether they get a folder of their own.
    pub(crate) fn plugins(&self) -> Option<(&PathBuf, bool)> {
        match self {
            Select::Stock => None,
            Select::Installed {
                plugin_dir,
                own_dir,
            }
            | Select::Gpuos {
                plugin_dir,
                own_dir,
            } => Some((plugin_dir, *own_dir)),
        }
    }

    /// The value of `SelectType`.
    pub fn select_type(&self) -> &'static str {
        match self {
            Select::Gpuos { .. } => "select/gpuos",
            _ => "select/cons_tres",
        }
    }
}

/// Whether jobs are confined by device cgroups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cgroup {
    /// Yes where the machine and its Slurm can (cgroup v1), else no.
    #[default]
    Auto,
    /// No: `proctrack/linuxproc`, no task plugin.
    Off,
    /// Yes, or the lab fails with [`LabError::Machine`].
    Required,
}

/// How many nodes, or which.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Nodes {
    /// That many: `n1`, `n2`, ….
    Count(usize),
    /// These names.
    Names(Vec<String>),
}

impl Nodes {
    /// The names.
    pub fn names(&self) -> Vec<String> {
        match self {
            Nodes::Count(count) => (1..=*count).map(|i| format!("n{i}")).collect(),
            Nodes::Names(names) => names.clone(),
        }
    }
}

impl From<usize> for Nodes {
    fn from(count: usize) -> Nodes {
        Nodes::Count(count)
    }
}

impl From<&[&str]> for Nodes {
    fn from(names: &[&str]) -> Nodes {
        Nodes::Names(names.iter().map(|name| name.to_string()).collect())
    }
}

/// Further nodes of another type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeGroup {
    /// Their names.
    pub names: Vec<String>,
    /// Their type; `cpu` = two sockets of 8 cores, 64 GiB and no GPU.
    pub node_type: String,
}

/// What a lab shall be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LabSpec {
    /// Name: letters, digits, `-` and `_`, at most 32 of them.
    pub name: String,
    /// Nodes of [`LabSpec::node_type`], each with a slurmd. May be `Count(0)`.
    pub nodes: Nodes,
    /// Name of a node type of `gpuos_model`, or `cpu` for nodes without GPUs.
    pub node_type: String,
    /// Further nodes of other types.
    pub more_nodes: Vec<NodeGroup>,
    /// Which Slurm.
    pub suite: Suite,
    /// The prefix of an installed PBS, which the lab runs in place of a Slurm ([`crate::pbs::PbsLab`]). Of the fields below it
    /// knows [`LabSpec::gpuos_toml`], [`LabSpec::simulated_gpus`] and [`LabSpec::detached`].
    #[serde(default)]
    pub pbs: Option<PathBuf>,
    /// Which SelectType.
    pub select: Select,
    /// Text of gpuos.toml, put beside slurm.conf; `None` = no such file.
    pub gpuos_toml: Option<String>,
    /// Text of topology.conf; sets `TopologyPlugin=topology/tree` unless
    /// [`LabSpec::slurm_conf_extra`] names another.
    pub topology_conf: Option<String>,
    /// Text of topology.yaml (Slurm 25.05 and later).
    pub topology_yaml: Option<String>,
    /// `Key=Value` lines for slurm.conf; they replace the lab's own line of that key.
    pub slurm_conf_extra: Vec<String>,
    /// Appended to every NodeName line, for example `Feature=a Weight=5`.
    pub node_extra: String,
    /// False leaves `Cores=` out of gres.conf.
    pub gres_cores: bool,
    /// Nodes whose line in slurm.conf says this of sockets, cores, memory and GRES, in place of their node type's words.
    #[serde(default)]
    pub hardware: BTreeMap<String, String>,
    /// Text of gres.conf, in place of the lab's own; `DEVICES` stands for the folder of the device files. `None` = the lab's own.
    #[serde(default)]
    pub gres_conf: Option<String>,
    /// Device cgroups.
    pub cgroup: Cgroup,
    /// That many further nodes `c1`, `c2`, … of [`LabSpec::node_type`] in `State=CLOUD`, which
    /// no slurmd stands behind: for measuring slurmctld alone.
    pub cloud_nodes: Option<usize>,
    /// Folder with gpuosd and with gpuos-nvml and its library ([`crate::find_daemon_dir`]): every node has
    /// simulated GPUs of its type and a gpuosd that watches them. `None` = neither.
    pub simulated_gpus: Option<PathBuf>,
    /// Folder with gpuos_mover ([`crate::find_mover_dir`]): every node has one, and gpuos.toml a `[checkpoint]` that turns it on unless
    /// it has its own. `None` = none.
    #[serde(default)]
    pub movers: Option<PathBuf>,
    /// The folder with libgpuos_preload.so and a simulated libcuda.so, where jobs can have memory in tiers and GPUs in turns (see
    /// [`crate::find_tiers_dir`]). Needs [`LabSpec::simulated_gpus`]. `None` = they cannot.
    #[serde(default)]
    pub tiers: Option<PathBuf>,
    /// Where their gpuosds read the kernel's log: a file with records as `/dev/kmsg` has them, or that itself. `None` =
    /// nowhere: the log of the machine is not about a lab's GPUs.
    #[serde(default)]
    pub kernel_log: Option<PathBuf>,
    /// GPUs of every node that are divided by MIG: in GRES `gpuos` instead of `gpu`, with slice files, and `[mig]`
    /// in gpuos.toml. Simulated ones are in MIG mode. Needs a [`LabSpec::select`] that sees gpuos's plugins.
    pub mig: GpuSet,
    /// Those of [`LabSpec::mig`] that are MIG-switchable: in GRES `gpu` too, and not in MIG mode at the start.
    pub mig_switchable: GpuSet,
    /// `switch-after` and `switch-hold` of gpuos.toml where GPUs are MIG-switchable, in seconds.
    pub mig_switch_seconds: [u32; 2],
    /// Shards of every whole GPU, for jobs that share it (GRES `shard`); 0 = no such GRES.
    pub shards: u32,
    /// GiB of NVMe of every node for what is parked, in GRES `nvme`, which is only counted; 0 = no such GRES.
    #[serde(default)]
    pub nvme: u32,
    /// Seconds for which a job has a GPU at least that it shares in turns with its memory, with moves that are taken to take no time; 0 = as
    /// gpuosd has them itself.
    #[serde(default)]
    pub memory_turn: u32,
    /// Put spank_gpuos.so into plugstack.conf.
    pub spank: bool,
    /// A slurmdbd of the lab's own, with a MariaDB of its own behind it: jobs have accounts and QOS.
    pub accounting: bool,
    /// `JobSubmitPlugins=gpuos`; needs a [`LabSpec::select`] that sees gpuos's plugins.
    pub job_submit: bool,
    /// True: the lab lives until `gpuos lab down`. False: it ends with the [`crate::Lab`]
    /// value, or with this process, however that ends.
    pub detached: bool,
}

impl Default for LabSpec {
    /// Two `dgx-h100` nodes of the native Slurm with stock selection, named `lab`, that end
    /// with this process.
    fn default() -> LabSpec {
        LabSpec {
            name: "lab".to_string(),
            nodes: Nodes::Count(2),
            node_type: "dgx-h100".to_string(),
            more_nodes: Vec::new(),
            suite: Suite::Native,
            pbs: None,
            select: Select::Stock,
            gpuos_toml: None,
            topology_conf: None,
            topology_yaml: None,
            slurm_conf_extra: Vec::new(),
            node_extra: String::new(),
            gres_cores: true,
            hardware: BTreeMap::new(),
            gres_conf: None,
            cgroup: Cgroup::Auto,
            cloud_nodes: None,
            simulated_gpus: None,
            movers: None,
            tiers: None,
            kernel_log: None,
            mig: GpuSet::EMPTY,
            mig_switchable: GpuSet::EMPTY,
            mig_switch_seconds: [2, 2],
            shards: 0,
            nvme: 0,
            memory_turn: 0,
            spank: false,
            accounting: false,
            job_submit: false,
            detached: false,
        }
    }
}

static UNIQUE: AtomicU32 = AtomicU32::new(0);

impl LabSpec {
    /// A default specification whose name no other process uses: for tests that run side by
    /// side.
    pub fn unique(prefix: &str) -> LabSpec {
        let n = UNIQUE.fetch_add(1, Ordering::Relaxed);
        LabSpec {
            name: format!("{prefix}-{}-{n}", std::process::id()),
            ..LabSpec::default()
        }
    }

    /// Selects gpuos from a folder of built plugins (see [`crate::find_plugin_dir`]), in a
    /// plugin folder of its own, with its other plugins as far as they are built.
    pub fn with_gpuos(mut self, plugin_dir: PathBuf) -> LabSpec {
        self.spank = plugins::has(&plugin_dir, "spank_gpuos.so");
        self.job_submit = plugins::has(&plugin_dir, "job_submit_gpuos.so");
        self.select = Select::Gpuos {
            plugin_dir,
            own_dir: true,
        };
        self
    }

    /// topology.conf of a tree: `leaf` nodes under each leaf switch `leaf1`, `leaf2`, …, all
    /// leaf switches under `spine`.
    pub fn tree_topology(names: &[String], leaf: usize) -> String {
        let mut text = String::new();
        let mut switches = Vec::new();
        for (i, nodes) in names.chunks(leaf.max(1)).enumerate() {
            let switch = format!("leaf{}", i + 1);
            text += &format!("SwitchName={switch} Nodes={}\n", nodes.join(","));
            switches.push(switch);
        }
        text + &format!("SwitchName=spine Switches={}\n", switches.join(","))
    }

    /// Names of all nodes with a slurmd.
    pub fn node_names(&self) -> Vec<String> {
        let mut names = self.nodes.names();
        names.extend(self.more_nodes.iter().flat_map(|g| g.names.iter().cloned()));
        names
    }

    /// All nodes with a slurmd, each with its node type.
    pub(crate) fn typed_nodes(&self) -> Vec<(String, String)> {
        let own = self.nodes.names().into_iter();
        let own = own.map(|name| (name, self.node_type.clone()));
        let more = self.more_nodes.iter().flat_map(|group| {
            let names = group.names.iter();
            names.map(|name| (name.clone(), group.node_type.clone()))
        });
        own.chain(more).collect()
    }

    /// The nodes in `State=CLOUD`, each with its node type.
    pub(crate) fn typed_cloud_nodes(&self) -> Vec<(String, String)> {
        let names = self.cloud_names().into_iter();
        names.map(|name| (name, self.node_type.clone())).collect()
    }

    /// Names of the nodes in `State=CLOUD`.
    pub fn cloud_names(&self) -> Vec<String> {
        (1..=self.cloud_nodes.unwrap_or(0))
            .map(|i| format!("c{i}"))
            .collect()
    }

    /// Refuses what cannot work, with a sentence.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        let word = |text: &str| {
            (1..=32).contains(&text.len())
                && text
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
                && !text.starts_with('-')
        };
        let fail = |text: String| Err(LabError::Spec(text));
        if !word(&self.name) {
            return fail(format!(
                "lab name {:?}: give 1 to 32 letters, digits, - or _",
                self.name
            ));
        }
        if let Suite::Debian(name) = &self.suite {
            crate::suite::supported(name)?;
        }
        let names = self.node_names();
        if let Some(bad) = names.iter().find(|name| !word(name)) {
            return fail(format!(
                "node name {bad:?}: give 1 to 32 letters, digits, - or _"
            ));
        }
        let mut sorted = [names.clone(), self.cloud_names()].concat();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail(format!("node name {} is given twice", pair[0]));
        }
        if sorted.is_empty() {
            return fail("a lab needs at least one node: give --nodes 1 or more".to_string());
        }
        if names.len() > 256 {
            return fail(format!(
                "{} nodes with a slurmd each are too many for one machine: give at most 256, or cloud nodes",
                names.len()
            ));
        }
        if self.job_submit && self.select.plugins().is_none() {
            return fail(
                "job_submit needs gpuos's plugins: choose Select::Gpuos or Select::Installed"
                    .to_string(),
            );
        }
        if !self.mig.is_empty() && self.select.plugins().is_none() && self.pbs.is_none() {
            return fail(
                "--mig needs gpuos's plugins: choose --select gpuos (Select::Gpuos or Select::Installed)"
                    .to_string(),
            );
        }
        if !self.mig_switchable.minus(self.mig).is_empty() {
            return fail(format!(
                "--mig-switchable {}: give some of the GPUs of --mig, {}",
                self.mig_switchable, self.mig
            ));
        }
        for line in &self.slurm_conf_extra {
            if !line.contains('=') || line.contains('\n') {
                return fail(format!("slurm.conf line {line:?}: give Key=Value"));
            }
        }
        Ok(())
    }
}
