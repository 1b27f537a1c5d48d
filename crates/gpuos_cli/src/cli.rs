//! The one table of subcommands and flags: the parser, help, man pages and completion all
//! come from here.

mod ckpt;
mod mem;
mod mig;
mod node;
mod pbs;
mod pbs_planner;
mod plan;
mod run;
mod sim;
mod values;
mod wlm;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::words::whole_number;

pub use ckpt::{
    CkptArgs, CkptCommand, CkptDrillArgs, CkptJobArgs, CkptListArgs, CkptNowArgs, CkptPruneArgs,
    CkptReportArgs, CkptRestartArgs, MoverReach,
};
pub use mem::{MemArgs, MemCommand, MemShowArgs, MemSimArgs, Room};
pub use mig::{MigArgs, MigAssertArgs, MigCommand, MigPlanArgs, Reach};
pub use node::{AdminArgs, DrainArgs, HealthArgs};
pub use pbs::{PbsArgs, PbsCommand, PbsInstallArgs, PbsReach};
pub use pbs_planner::PbsPlannerArgs;
pub use plan::PlanArgs;
pub use run::RunArgs;
pub use sim::{Protocol, SimArgs};
pub use values::{Gpus, Hosts};
pub use wlm::{
    Manager, WlmArgs, WlmCommand, WlmFilterArgs, WlmGpusArgs, WlmHostArgs, WlmJobArgs, WlmSaveArgs,
    WlmSavesArgs, WlmSenseArgs, WlmWrapArgs,
};

use values::{job_id, prometheus_url};

/// Topology-aware placement of GPU jobs on Slurm and PBS: see, explain, plan and check.
#[derive(Parser)]
#[command(
    name = "gpuos",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done or yes, 1 failed or no, 2 wrong usage."
)]
pub struct Cli {
    /// Answer as JSON, with the name of its schema in "schema".
    #[arg(long, global = true)]
    pub json: bool,
    /// The gpuos.toml to use instead of $GPUOS_CONF or the one beside slurm.conf.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Show the fabric with its free GPUs, or the links inside a node.
    Topo(TopoArgs),
    /// Show nodes, GPUs, jobs, heat and faults, on a screen or as a table.
    Top(TopArgs),
    /// Say where a job went, or why it waits and what would start it.
    Why(WhyArgs),
    /// Say where a job would go now; exit 1 when it does not fit.
    Plan(Box<PlanArgs>),
    /// Ask the planner again what slurmctld asked it; exit 1 when an answer differs.
    Replay(ReplayArgs),
    /// Say how GPUs are: all of this node's, by gpuosd, or all nodes with trouble, by Slurm; exit 1
    /// when something is not well.
    Health(HealthArgs),
    /// Show which slices of a node's GPUs (MIG) are taken, by whom, and what still fits; exit 1 when the node
    /// has none, or when something is wrong with one of its GPUs.
    Mig(MigArgs),
    /// List, show, make, check and remove checkpoints of jobs.
    Ckpt(CkptArgs),
    /// Say what moves when a program uses more memory than its GPU has.
    Mem(MemArgs),
    /// In a job: run a program by srun, and start it again when it fails or a node is lost, on the nodes that are left
    /// and a spare one.
    Run(RunArgs),
    /// Take GPUs or a node out of service: no new jobs, those that run may end.
    Drain(DrainArgs),
    /// Bring GPUs or a node back into service, after a check.
    Online(AdminArgs),
    /// Take GPUs or a node out of service until `gpuos online`, whatever is measured.
    Offline(AdminArgs),
    /// Check the installation, with the fix for each fault; exit 1 when a check fails.
    Doctor(DoctorArgs),
    /// Show this machine's GPUs, links and adapters as lines for gpuos.toml, gres.conf and
    /// slurm.conf; exit 1 without GPUs.
    Discover(DiscoverArgs),
    /// Make the plugins' layout table for a Slurm release that they do not know.
    Layout(LayoutArgs),
    /// Replay a trace against placement policies: how much of a cluster each of them fills.
    Sim(SimArgs),
    /// Put gpuos into a PBS, or take it out: hook, configuration and resources.
    Pbs(PbsArgs),
    /// Answer an event that the hook of PBS hands over on standard input, both as JSON; people have no use for it.
    PbsHook,
    /// Beside pbs_server: start waiting GPU jobs of PBS on the vnodes that the planner chooses, pass by pass, without end.
    /// Exit 1 when PBS refused to run one in the only pass.
    PbsPlanner(PbsPlannerArgs),
    /// What Grid Engine, LSF and Torque call when jobs are submitted, start, save and end; people have no use for most of it.
    Wlm(WlmArgs),
    /// Start, use and end a private Slurm cluster, or a private PBS, on this machine.
    Lab(crate::lab::Args),
    /// Print the completion script of a shell.
    Completion(CompletionArgs),
    /// Write the man pages.
    Man(ManArgs),
}

impl Command {
    /// Whether the command asks Slurm or gpuosd, so that it matters which cluster is meant.
    pub fn asks_slurm(&self) -> bool {
        !matches!(
            self,
            Command::Replay(_)
                | Command::Discover(_)
                | Command::Sim(_)
                | Command::Mem(MemArgs {
                    command: MemCommand::Sim(_)
                })
                | Command::Layout(_)
                | Command::Completion(_)
                | Command::Man(_)
                | Command::Pbs(_)
                | Command::PbsHook
                | Command::Wlm(_)
                | Command::Lab(_)
        )
    }

    /// Its name, if it reads no gpuos.toml.
    pub fn without_config(&self) -> Option<&'static str> {
        match self {
            Command::Replay(_) => Some("replay"),
            Command::Health(_) => Some("health"),
            Command::Mig(args) => match args.command {
                Some(MigCommand::Plan(_)) => None,
                Some(MigCommand::Assert(_)) => Some("mig assert"),
                None => Some("mig"),
            },
            Command::Ckpt(args) => Some(args.command.name()),
            Command::Mem(args) => Some(args.command.name()),
            Command::Run(_) => Some("run"),
            Command::Drain(_) => Some("drain"),
            Command::Online(_) => Some("online"),
            Command::Offline(_) => Some("offline"),
            Command::Layout(_) => Some("layout"),
            Command::Sim(_) => Some("sim"),
            Command::Pbs(_) => Some("pbs"),
            Command::PbsHook => Some("pbs-hook"),
            Command::Wlm(_) => Some("wlm"),
            Command::Lab(_) => Some("lab"),
            Command::Completion(_) => Some("completion"),
            Command::Man(_) => Some("man"),
            _ => None,
        }
    }
}

/// `gpuos topo`.
#[derive(Args)]
pub struct TopoArgs {
    /// Node whose links to show, with the legend of `nvidia-smi topo -m`.
    pub node: Option<String>,
    /// Node type whose links to show, for example dgx-h100.
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "node")]
    pub node_type: Option<String>,
    /// Links of this machine as its hardware shows them; needs no Slurm.
    #[arg(long, conflicts_with_all = ["node", "node_type"])]
    pub live: bool,
    /// Ask PBS, as is done without it where this machine has PBS and no commands of Slurm.
    #[arg(long, conflicts_with_all = ["live", "node_type"])]
    pub pbs: bool,
    /// Where hardware is looked for.
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

/// `gpuos discover`.
#[derive(Args)]
pub struct DiscoverArgs {
    /// GPUs in MIG mode now, by NVML's index, that are to be MIG-switchable, whole for one job and divided for the next: 6-7. Not for boards that change
    /// MIG mode only by a reset (A100, A30).
    #[arg(long, value_name = "GPUS", value_parser = crate::lab::gpus)]
    pub switchable: Option<GpuSet>,
    /// Where to look.
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

/// Where this machine's hardware is looked for.
#[derive(Args)]
#[cfg_attr(test, derive(Default))]
pub struct HardwareArgs {
    /// NVIDIA's management library to open instead of libnvidia-ml.so.1.
    #[arg(long, value_name = "FILE")]
    pub nvml: Option<PathBuf>,
    /// Root of sysfs instead of /sys, for a recorded tree.
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Name of this machine in Slurm instead of its host name.
    #[arg(long = "node-name", value_name = "NAME")]
    pub node_name: Option<String>,
}

/// `gpuos doctor`.
#[derive(Args)]
#[cfg_attr(test, derive(Default))]
pub struct DoctorArgs {
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Check what gpuos has in PBS, as is done without it where this machine has PBS and no commands of Slurm.
    #[arg(long)]
    pub pbs: bool,
    /// Directory of gpuosd's socket; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}

/// `gpuos top`.
#[derive(Args)]
pub struct TopArgs {
    /// Print the tables once instead of showing a screen; --json does the same.
    #[arg(long)]
    pub once: bool,
    /// Column to sort by, for example C or NODE; with a minus in front from the end, as in --sort=-C.
    #[arg(long, value_name = "[-]COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Show only rows that contain this text, in any case.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Ask PBS, as is done without it where this machine has PBS and no commands of Slurm.
    #[arg(long)]
    pub pbs: bool,
    /// Seconds between two looks; slurmctld, or pbs_server, is asked each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole_number::<u64>(1..=3600))]
    pub interval: u64,
    /// The site's Prometheus, for heat, power and load of other nodes, instead of [metrics] prometheus in gpuos.toml.
    #[arg(long, value_name = "URL", value_parser = prometheus_url)]
    pub prometheus: Option<String>,
    /// Directory of gpuosd's socket; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}

/// `gpuos why`.
#[derive(Args)]
pub struct WhyArgs {
    /// Job, task of an array or component of a heterogeneous job: 17, 4_1 or 19+1; of PBS 17 or 17.head.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    pub job: String,
    /// Ask PBS, as is done without it where this machine has PBS and no commands of Slurm.
    #[arg(long)]
    pub pbs: bool,
    /// Directory of gpuos_mover's socket, for checkpoints; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}

/// `gpuos replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// Recording to read instead of that of this cluster's slurmctld.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// File to save the recording in; it replays alone, on any machine.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print how many jobs gpuos placed and how many of its offers Slurm refused, as Prometheus reads it, and
    /// ask nothing again.
    #[arg(long, conflicts_with = "save")]
    pub metrics: bool,
}

/// `gpuos layout`.
#[derive(Args)]
pub struct LayoutArgs {
    /// Unpacked source of the installed Slurm release; it need not be configured.
    #[arg(value_name = "SLURM-SOURCE-DIR")]
    pub source: PathBuf,
    /// File to write instead of standard output; select/gpuos reads gpuos-layouts.tsv beside
    /// slurm.conf.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Release of the source, when its file META does not say it.
    #[arg(long, value_name = "RELEASE")]
    pub release: Option<String>,
}

/// `gpuos completion`.
#[derive(Args)]
pub struct CompletionArgs {
    /// Shell.
    pub shell: Shell,
}

/// Shells with a completion script.
#[derive(Clone, Copy, ValueEnum)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// Z shell.
    Zsh,
    /// fish.
    Fish,
}

/// `gpuos man`.
#[derive(Args)]
pub struct ManArgs {
    /// Directory to write gpuos.1 and one page for each subcommand to; without it the main
    /// page is printed.
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
