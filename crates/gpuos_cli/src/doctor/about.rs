//! What findings are about: the second word of each. docs/reference/messages.md has them all.

use std::fmt;

/// What a finding is about. There are those of the table below, and no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About(&'static str);

impl About {
    /// The word.
    pub fn word(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

macro_rules! table {
    ($($(#[doc = $means:literal])+ $name:ident = $word:literal;)+) => {
        $($(#[doc = $means])+ pub const $name: About = About($word);)+

        /// All words with what they mean.
        #[cfg(test)]
        pub const ROWS: &[gpuos_model::messages::Row] = &[$(
            gpuos_model::messages::Row { name: "", text: $word, means: concat!($($means),+), action: "" },
        )+];
    };
}

table! {
    /// Whether slurmctld answers, and what ended it.
    SLURM = "slurm";
    /// Keys of slurm.conf that are misspelt or set twice, included files, and who may write and read it.
    SLURM_CONF = "slurm.conf";
    /// Whether the user that slurm.conf names exists.
    SLURM_USER = "SlurmUser";
    /// Whether the folders of Slurm's plugins are there and in nobody else's hands.
    PLUGIN_DIR = "PluginDir";
    /// Whether all plugins are of one release of gpuos.
    PLUGINS = "plugins";
    /// Whether select_gpuos.so is there, whole, and loads with this machine's libraries.
    SELECT_GPUOS = "select_gpuos";
    /// The same of spank_gpuos.so.
    SPANK_GPUOS = "spank_gpuos";
    /// The same of job_submit_gpuos.so.
    JOB_SUBMIT_GPUOS = "job_submit_gpuos";
    /// The same of gres_gpuos.so.
    GRES_GPUOS = "gres_gpuos";
    /// Whether Slurm's own plugin, which select/gpuos wraps, is there and of the same release as slurmctld.
    SELECT_CONS_TRES = "select_cons_tres";
    /// Whether SelectType and SelectTypeParameters let gpuos place jobs.
    SELECT_TYPE = "SelectType";
    /// Whether JobSubmitPlugins has gpuos, and last.
    JOB_SUBMIT = "JobSubmit";
    /// Whether limits and sacct count GPUs and slices.
    ACCOUNTING = "accounting";
    /// What PrivateData hides from users of `gpuos why`, `plan` and `top`.
    PRIVATE_DATA = "PrivateData";
    /// Whether slurmctld may write its log and its state.
    FOLDERS = "folders";
    /// Whether plugstack.conf loads spank_gpuos.so, where commands and slurmd look.
    PLUGSTACK = "plugstack";
    /// Whether GresTypes has what the nodes have.
    GRES_TYPES = "GresTypes";
    /// Whether Gres= of the nodes can be read.
    GRES = "gres";
    /// Whether gres.conf and slurm.conf give the same GPUs to each node.
    GRES_CONF = "gres.conf";
    /// Whether jobs are kept to their GPUs.
    CGROUP = "cgroup";
    /// Whether Slurm can use the control groups that this node's kernel has: which version, and with which controllers.
    CGROUP_VERSION = "cgroup version";
    /// Whether this node's kernel can keep jobs to their devices, which takes BPF in control groups of version 2.
    DEVICES = "devices";
    /// Whether gpuos.toml is sound, and names nodes, levels and partitions that there are.
    GPUOS_TOML = "gpuos.toml";
    /// Whether a site's own layout table is sound.
    LAYOUTS = "layouts";
    /// Whether munge answers, and is the cluster's.
    MUNGE = "munge";
    /// Whether gpuos knows this release of Slurm.
    RELEASE = "release";
    /// What slurmctld's log says last on whether gpuos steers.
    LOG = "log";
    /// How many jobs were placed as planned.
    STEERING = "steering";
    /// Whether GPUs that are out of service are kept from jobs; on PBS which vnodes gpuos took out of service.
    HEALTH = "health";
    /// What was edited since slurmctld read it.
    RESTART = "restart";
    /// Whether gpuos knows the type of each node's GPUs and links.
    NODE_TYPES = "node types";
    /// Whether slurmd reports the GPUs that slurm.conf says.
    GPU_COUNTS = "gpu counts";
    /// Whether the lines of slurm.conf that name nodes and partitions go together.
    NODES = "nodes";
    /// Whether switches are known, and each node is below one.
    FABRIC = "fabric";
    /// Whether topology.yaml or topology.conf names nodes that there are.
    TOPOLOGY_FILE = "topology file";
    /// Whether what policies weigh is known here.
    POLICY = "policy";
    /// Files that could not be read for the checks.
    FILES = "files";
    /// Whether slices are counted alike by slurm.conf, gres.conf and gpuos.toml.
    SLICES = "slices";
    /// The same of shards, and whether this Slurm shares GPUs well.
    SHARDS = "shards";
    /// Whether Slurm counts no more NVMe for what is parked than gpuos.toml lends.
    NVME = "nvme";
    /// Whether this node's GPUs are those that the files say.
    HARDWARE = "hardware";
    /// Whether gpuosd runs, is of this release, and has no trouble.
    GPUOSD = "gpuosd";
    /// Whether gpuos_mover runs on this node, where gpuos.toml, or PBS's hook, has checkpoints made.
    GPUOS_MOVER = "gpuos_mover";
    /// Whether `[checkpoint]` of gpuos.toml has what it needs: store, keys, shared folder, nodes enough, and a Slurm that starts jobs again.
    CHECKPOINTS = "checkpoints";
    /// Whether `[memory]` of gpuos.toml has what it needs: counted memory, known GPUs, shards, the library of programs, a disk.
    MEMORY = "memory";
    /// Whether jobs with checkpoints have time for a last one when they are preempted.
    GRACE_TIME = "GraceTime";
    /// Whether systemd has the units of slurmd, slurmctld, munge and gpuosd that belong on this host, and starts them.
    UNITS = "units";
    /// Whether pbs.conf is there, in nobody else's hands, and names PBS's programs.
    PBS_CONF = "pbs.conf";
    /// Whether pbs_server answers.
    PBS = "pbs_server";
    /// Whether PBS's hook of gpuos is there, enabled, set as it was installed, and of this release.
    HOOK = "hook";
    /// Whether PBS has the resources of gpuos, with type and flags.
    RESOURCES = "resources";
    /// Whether PBS counts the GPUs that were described, and their hosts show which are free.
    VNODES = "vnodes";
    /// Whether the command that PBS's hook calls is there, and of this release.
    COMMAND = "command";
    /// Whether the library that moms load is there, whole, and loads with this machine's libraries.
    LIBRARY = "library";
    /// Whether pbs_sched counts GPUs, shares and slices, and knows leaf switches and NVLink.
    SCHED_CONFIG = "sched_config";
    /// Whether the planner of PBS runs where the hook takes it for granted, and nothing of a dead one is left.
    PLANNER = "planner";
    /// Whether vnodes are left that an earlier gpuos has made of GPUs.
    LEFT_OVER = "left over";
    /// Whether there is room for states and logs.
    DISK = "disk";
    /// Whether this machine's clock and slurmctld's agree.
    CLOCK = "clock";
}
