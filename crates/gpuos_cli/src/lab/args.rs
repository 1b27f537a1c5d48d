//! What `gpuos lab` is given.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use gpuos_lab::Suite;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::hostlist;
use gpuos_model::words::whole_number;

/// `gpuos lab`.
#[derive(ClapArgs)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(super) action: Action,
}

#[derive(Subcommand)]
pub(super) enum Action {
    /// Start a lab and leave it up.
    Up(Box<UpArgs>),
    /// Run a command in a lab; its exit code is that of the command.
    Run(RunArgs),
    /// Open a shell in a lab.
    Sh(PlaceArgs),
    /// End a lab, its jobs too, and remove its files.
    Down(DownArgs),
    /// List the labs of this machine.
    List,
    /// Show a lab: its nodes, daemons and files.
    Status(NameArgs),
    /// Break or mend a simulated GPU: gpuos lab fault n2 gpu3 xid 79.
    #[command(after_help = FAULTS)]
    Fault(FaultArgs),
    /// Reboot a node: its jobs end, simulated GPUs are reset, also one that fell off the bus.
    Reboot(RebootArgs),
}

const FAULTS: &str = "Faults: xid N, ecc uncorrected N, row-remap pending, thermal C, lost, hang S and others: a wrong \
    one is answered with the list of all. repair makes a GPU as good as new; reset does what nvidia-smi -r does; one that \
    is lost needs gpuos lab reboot. The lab needs simulated GPUs: gpuos lab up --gpus simulated.";

#[derive(ClapArgs)]
pub(super) struct FaultArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Node, for example n2.
    pub(super) node: String,
    /// gpu3 or 3, or node.
    pub(super) gpu: String,
    /// The fault in words, repair, or reset.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) words: Vec<String>,
}

#[derive(ClapArgs)]
pub(super) struct RebootArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Node, for example n2.
    pub(super) node: String,
}

#[derive(ClapArgs)]
pub(super) struct NameArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    pub(super) name: Option<String>,
}

#[derive(ClapArgs)]
pub(super) struct PlaceArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Host of a lab of PBS, for example n2; without it head.
    #[arg(long, value_name = "HOST")]
    pub(super) on: Option<String>,
    /// User in a lab of PBS: user1, user2, or one of this machine; without it root.
    #[arg(long = "as", value_name = "USER")]
    pub(super) user: Option<String>,
}

#[derive(ClapArgs)]
pub(super) struct RunArgs {
    /// Where it runs.
    #[command(flatten)]
    pub(super) place: PlaceArgs,
    /// The command and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

#[derive(ClapArgs)]
pub(super) struct DownArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// End all labs that `gpuos lab up` made, and what is left of those whose owner died.
    /// Labs of programs that run are theirs to end.
    #[arg(long, conflicts_with = "name")]
    pub(super) all: bool,
}

#[derive(ClapArgs)]
pub(super) struct UpArgs {
    /// Name of the lab: letters, digits, - and _. Without it $GPUOS_LAB, else lab.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Number of nodes, each with a slurmd, or a MoM with --pbs: n1, n2, ….
    #[arg(short = 'N', long, value_name = "N", default_value_t = 4, value_parser = whole_number::<u16>(0..=256))]
    pub(super) nodes: u16,
    /// Node type: one of gpuos's, one of --gpuos-toml, or cpu for nodes without GPUs.
    #[arg(long, value_name = "TYPE", default_value = "dgx-h100")]
    pub(super) node_type: String,
    /// Which Slurm: native, a Debian suite (trixie, sid), or the prefix of an installed one.
    #[arg(long, value_name = "SLURM", default_value = "native", value_parser = suite)]
    pub(super) slurm: Suite,
    /// A PBS in place of a Slurm: the prefix of an installed OpenPBS or PBS Professional, for example /opt/pbs. Each node is a
    /// host of its own, and head has the server.
    #[arg(long, value_name = "DIR", conflicts_with_all = SLURMS)]
    pub(super) pbs: Option<PathBuf>,
    /// Plugin that selects nodes and GPUs. Stock Slurm is for comparison.
    #[arg(long, default_value = "gpuos")]
    pub(super) select: SelectArg,
    /// Folder with gpuos's built plugins, when they are not where the command looks for them.
    #[arg(long, value_name = "DIR")]
    pub(super) plugin_dir: Option<PathBuf>,
    /// Put a leaf switch over every K nodes, and one spine over all.
    #[arg(long, value_name = "K", value_parser = whole_number::<u16>(1..))]
    pub(super) switches: Option<u16>,
    /// What stands behind the GPUs' device files: nothing, or simulated GPUs with a gpuosd on every node (none with --pbs),
    /// which `gpuos lab fault` breaks and mends.
    #[arg(long, default_value = "files")]
    pub(super) gpus: GpusArg,
    /// GPUs of every node that are divided by MIG, for example 4-7: GRES gpuos instead of gpu.
    #[arg(long, value_name = "GPUS", value_parser = gpus)]
    pub(super) mig: Option<GpuSet>,
    /// Those of --mig that are MIG-switchable: in GRES gpu too, whole or divided as jobs need them (after 2 s each).
    #[arg(long, value_name = "GPUS", value_parser = gpus, requires = "mig")]
    pub(super) mig_switchable: Option<GpuSet>,
    /// A gpuos_mover on every node, which keeps checkpoints of jobs (sbatch --gpuos-checkpoint, qsub -l gpuos_checkpoint).
    #[arg(long)]
    pub(super) checkpoints: bool,
    /// Jobs can have more memory than a GPU (--gpuos-mem) and GPUs in turns (--gpuos-share=timeslice,mem=SIZE): simulated GPUs
    /// with 4 shards each, and a simulated CUDA driver, over which `cuda PROGRAM` runs a program.
    #[arg(long, conflicts_with = "pbs")]
    pub(super) memory: bool,
    /// Folder with gpuosd, gpuos-nvml and its library, and gpuos_mover, when they are not where the command looks for them.
    #[arg(long, value_name = "DIR")]
    pub(super) daemon_dir: Option<PathBuf>,
    /// Where the gpuosds of simulated GPUs read the kernel's log, for example /dev/kmsg; nowhere by default.
    #[arg(long, value_name = "FILE")]
    pub(super) kernel_log: Option<PathBuf>,
    /// gpuos.toml of the lab.
    #[arg(long, value_name = "FILE")]
    pub(super) gpuos_toml: Option<PathBuf>,
    /// Confine jobs to their GPUs by device cgroups: where that works, never, or else fail.
    #[arg(long, default_value = "auto")]
    pub(super) cgroup: CgroupArg,
    /// A slurmdbd and a MariaDB of the lab's own, for accounts and QOS.
    #[arg(long)]
    pub(super) accounting: bool,
    /// That many further nodes without daemons, c1, c2, …: for looking at slurmctld alone.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=65_000))]
    pub(super) cloud_nodes: Option<u32>,
    /// Line for the lab's slurm.conf, for example --conf MinJobAge=30; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) conf: Vec<String>,
}

/// What labs of PBS do not have.
const SLURMS: [&str; 11] = [
    "slurm",
    "select",
    "plugin_dir",
    "switches",
    "mig",
    "mig_switchable",
    "kernel_log",
    "cgroup",
    "accounting",
    "cloud_nodes",
    "conf",
];

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum SelectArg {
    /// select/gpuos, with the other plugins of gpuos.
    Gpuos,
    /// select/cons_tres, without any of them.
    Stock,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum GpusArg {
    /// Device files alone.
    Files,
    /// A simulated NVIDIA library, and gpuosd.
    Simulated,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum CgroupArg {
    Auto,
    Off,
    Required,
}

fn suite(text: &str) -> Result<Suite, String> {
    // clap names the option and the value already.
    text.parse().map_err(|_| {
        "give native, the name of a Debian suite (trixie, sid) or the absolute path of an installed Slurm"
            .to_string()
    })
}

/// Numbers of GPUs: `4-7` or `0,2`.
pub fn gpus(text: &str) -> Result<GpuSet, String> {
    let names = hostlist::expand(&format!("[{text}]")).unwrap_or_default();
    let numbers: Option<Vec<usize>> = names.iter().map(|name| name.parse().ok()).collect();
    let numbers = numbers.filter(|all| !all.is_empty() && all.iter().all(|gpu| *gpu < MAX_GPUS));
    let numbers = numbers.ok_or("give numbers of GPUs from 0 on, for example 4-7 or 0,2")?;
    Ok(numbers.into_iter().fold(GpuSet::EMPTY, GpuSet::with))
}
