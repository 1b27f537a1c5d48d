//! The one table of subcommands and flags: the parser, help, man pages and completion all
//! come from here.

mod ckpt;
mod mem;
mod mig;
mod pbs;
mod pbs_planner;
mod run;
mod sim;
mod wlm;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpuos_config::gpuos_toml::http_url;
use gpuos_config::options::{
    GresRequest, MemoryOption, parse_class, parse_exclusive, parse_gpus, parse_gres, parse_memory,
    parse_placement, parse_profile, parse_topology,
};
use gpuos_core::job::JobId;
use gpuos_model::gpuset::GpuSet;
use gpuos_pbs::state::jobs::is_job;
use gpuos_placement::cost::{Objectives, Profile};
use gpuos_placement::mig::MigRequest;
use gpuos_placement::plan::{Placement, TopologyRequest};

pub use ckpt::{
    CkptArgs, CkptCommand, CkptDrillArgs, CkptJobArgs, CkptListArgs, CkptNowArgs, CkptPruneArgs,
    CkptReportArgs, CkptRestartArgs, MoverReach,
};
pub use mem::{MemArgs, MemCommand, MemShowArgs, MemSimArgs, Room};
pub use mig::{MigArgs, MigAssertArgs, MigCommand, MigPlanArgs, Reach};
pub use pbs::{PbsArgs, PbsCommand, PbsInstallArgs, PbsReach};
pub use pbs_planner::PbsPlannerArgs;
pub use run::RunArgs;
pub use sim::{Protocol, SimArgs};
pub use wlm::{
    Manager, WlmArgs, WlmCommand, WlmFilterArgs, WlmHostArgs, WlmJobArgs, WlmSaveArgs,
    WlmSavesArgs, WlmSenseArgs, WlmWrapArgs,
};

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

fn prometheus_url(text: &str) -> Result<String, String> {
    http_url(text).map_err(|form| format!("write {form}"))
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
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// The site's Prometheus, for heat, power and load of other nodes, instead of [metrics] prometheus in gpuos.toml.
    #[arg(long, value_name = "URL", value_parser = prometheus_url)]
    pub prometheus: Option<String>,
    /// Directory of gpuosd's socket; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}

/// `gpuos health`.
#[derive(Args)]
pub struct HealthArgs {
    /// Node to look at; without one this node.
    #[arg(value_parser = node_name)]
    pub node: Option<String>,
    /// Print what happens on the node, until it is ended.
    #[arg(long, conflicts_with_all = ["reload", "audit"])]
    pub watch: bool,
    /// Have gpuosd of the node read gpuos.toml again; root only.
    #[arg(long, conflicts_with = "audit")]
    pub reload: bool,
    /// Print the newest lines of the node's audit log; root only, but for --job.
    #[arg(long, value_name = "LINES", num_args = 0..=1, default_missing_value = "20", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub audit: Option<u32>,
    /// Of the audit log only what is about this job, by its own number; for root and the user whose job it is.
    #[arg(long, value_name = "JOB", requires = "audit")]
    pub job: Option<JobId>,
    /// Command that runs this command on another node, for --watch, --reload and --audit.
    #[arg(
        long,
        value_name = "COMMAND",
        env = "GPUOS_VIA",
        default_value = "ssh -o BatchMode=yes"
    )]
    pub via: String,
    /// Directory of gpuosd's socket; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}

/// `gpuos drain`, `gpuos online` and `gpuos offline`.
#[derive(Args)]
pub struct AdminArgs {
    /// Node, or GPUs of it by their indices in gres.conf: n3, n3:5, n3:gpu5, n3:0-3,6; those of a MIG pool by NVML's: n3:mig4.
    #[arg(value_name = "NODE[:GPU]", value_parser = crate::target::Target::parse)]
    pub target: crate::target::Target,
    /// Why, for other people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Drain and offline: requeue or kill the jobs on it; online: at once, without a check.
    #[arg(long)]
    pub force: bool,
    /// Ask gpuosd of this machine only.
    #[arg(long)]
    pub local: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// `gpuos drain`.
#[derive(Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Have all jobs with checkpoints on the node save, wait until their nodes are published as holding that, and requeue them; exit 1 when one stays.
    #[arg(long, conflicts_with = "force")]
    pub migrate: bool,
    /// With --migrate: minutes until jobs that have not saved are left where they are.
    #[arg(long, value_name = "MINUTES", default_value_t = 15, requires = "migrate", value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub limit: u32,
}

fn node_name(text: &str) -> Result<String, String> {
    match crate::remote::is_node(text) {
        true => Ok(text.into()),
        false => Err("write the name of one node, for example n3".into()),
    }
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

/// `gpuos plan`: the options of sbatch that matter to placement, under their names there, and a few of PBS's qsub.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("request").required(true).multiple(false)
    .args(["gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "gres", "mig", "select"])))]
pub struct PlanArgs {
    /// Ask PBS, as is done without it where this machine has PBS and no commands of Slurm.
    #[arg(long)]
    pub pbs: bool,
    /// GPUs over all nodes, as [TYPE:]N.
    #[arg(short = 'G', long, value_name = "[TYPE:]N", value_parser = gpus)]
    pub gpus: Option<Gpus>,
    /// GPUs on each node, as [TYPE:]N.
    #[arg(long, value_name = "[TYPE:]N", value_parser = gpus)]
    pub gpus_per_node: Option<Gpus>,
    /// GPUs of each task, as [TYPE:]N; needs --ntasks.
    #[arg(long, value_name = "[TYPE:]N", value_parser = gpus, requires = "ntasks")]
    pub gpus_per_task: Option<Gpus>,
    /// GPUs on each socket, as [TYPE:]N.
    #[arg(long, value_name = "[TYPE:]N", value_parser = gpus)]
    pub gpus_per_socket: Option<Gpus>,
    /// Generic resources on each node, for example gpu:4 or gpu:h100:4.
    #[arg(long, value_name = "LIST", value_parser = gres)]
    pub gres: Option<Gpus>,
    /// Slices of GPUs (MIG) on each node, as sbatch --gpuos-mig has it; answered as `gpuos mig plan` does.
    #[arg(long, visible_alias = "gpuos-mig", value_name = "REQUEST", value_parser = mig::mig,
        conflicts_with_all = ["cpus_per_gpu", "topology", "placement", "profile", "objectives", "gpu_type", "alone", "class",
            "exclusive", "no_moves", "move_rate"])]
    pub mig: Option<MigRequest>,
    /// Nodes, as N or N-M.
    #[arg(short = 'N', long, value_name = "N[-M]", value_parser = nodes)]
    pub nodes: Option<Nodes>,
    /// Tasks.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ntasks: Option<u32>,
    /// CPUs of each task.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub cpus_per_task: u32,
    /// CPUs that each GPU brings along.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub cpus_per_gpu: u32,
    /// Memory on each node, in MiB or with K, M, G or T.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub mem: Option<u64>,
    /// Memory for each GPU, as sbatch --gpuos-mem has it: which part of it lies where is said, and counts in --mem.
    #[arg(long = "gpuos-mem", value_name = "SIZE", value_parser = gpu_memory, conflicts_with = "mig")]
    pub gpu_mem: Option<MemoryOption>,
    /// With --gpuos-mem: a trace of the program, or a pattern, as `gpuos mem sim` reads it: what is moved, and how slow that may be.
    #[arg(long, requires = "gpu_mem", value_name = "TRACE")]
    pub trace: Option<String>,
    /// How close the GPUs have to be: node, nvlink, a level of the fabric, any.
    #[arg(long, visible_alias = "gpuos-topology", value_name = "LEVEL[:required]", value_parser = topology)]
    pub topology: Option<TopologyRequest>,
    /// Which of several equally close places: default, best-fit, frag, backfill, pack, spread,
    /// first-fit, affinity:NAME[,NAME] or anti-affinity:NAME[,NAME].
    #[arg(long, visible_alias = "gpuos-placement", value_name = "RULE", value_parser = placement)]
    pub placement: Option<Placement>,
    /// What limits the job: compute, memory, communication or io.
    #[arg(long, visible_alias = "gpuos-profile", value_name = "PROFILE", value_parser = profile)]
    pub profile: Option<Profile>,
    /// Weights in percent that add up to 100, such as energy=60,throughput=40, instead of those of
    /// gpuos.toml: of throughput, latency, energy, cost and fairness.
    #[arg(long, value_name = "WEIGHTS")]
    pub objectives: Option<Objectives>,
    /// QOS of the job, for the rules of gpuos.toml.
    #[arg(short, long, value_name = "NAME", default_value = "")]
    pub qos: String,
    /// GPU type, as in --gpus=TYPE:N.
    #[arg(long = "type", value_name = "TYPE")]
    pub gpu_type: Option<String>,
    /// Partitions to consider; the rules of gpuos.toml hold for the first.
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    pub partition: Vec<String>,
    /// Account of the job, for rules that keep tenants apart.
    #[arg(short = 'A', long, value_name = "NAME", default_value = "")]
    pub account: String,
    /// Class of the job, for rules of co-location.
    #[arg(long, visible_alias = "gpuos-class", value_name = "NAME", value_parser = class)]
    pub class: Option<String>,
    /// Level of the domains that the job wants to itself: node, nvlink, a level of the fabric.
    #[arg(long, visible_alias = "gpuos-exclusive", value_name = "LEVEL", value_parser = alone)]
    pub alone: Option<String>,
    /// Features that the nodes must have.
    #[arg(short = 'C', long, value_name = "FEATURES")]
    pub constraint: Option<String>,
    /// Nodes that must be part of the job.
    #[arg(short = 'w', long, value_name = "NODES", value_parser = hosts)]
    pub nodelist: Option<Hosts>,
    /// Nodes that must not.
    #[arg(short = 'x', long, value_name = "NODES", value_parser = hosts)]
    pub exclude: Option<Hosts>,
    /// Take whole nodes.
    #[arg(long)]
    pub exclusive: bool,
    /// On PBS: chunks, as in qsub -l select=2:ngpus=4:ncpus=8.
    #[arg(long, value_name = "CHUNKS")]
    pub select: Option<String>,
    /// On PBS, with --select: as in qsub -l place=scatter.
    #[arg(long, requires = "select", value_name = "PLACE")]
    pub place: Option<String>,
    /// On PBS: time limit, as in qsub -l walltime=1:00:00. One that ends soon may go before jobs that wait for more.
    #[arg(long, value_name = "TIME")]
    pub walltime: Option<String>,
    /// Where it does not fit: the cheapest set of running jobs to preempt or to move so that it
    /// would. Only jobs that Slurm may preempt are preempted in the plan; nothing is done.
    #[arg(long)]
    pub defrag: bool,
    /// With --defrag: preempt only.
    #[arg(long, requires = "defrag")]
    pub no_moves: bool,
    /// With --defrag: seconds that a preempted job needs to start again.
    #[arg(long, requires = "defrag", value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub restart_seconds: u64,
    /// With --defrag: GiB/s at which the memory of each moved GPU is copied.
    #[arg(long, requires = "defrag", value_name = "GIB/S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub move_rate: u64,
}

fn class(value: &str) -> Result<String, String> {
    parse_class(value).map_err(|e| reason(&e))
}

fn gpu_memory(value: &str) -> Result<MemoryOption, String> {
    parse_memory(value).map_err(|e| reason(&e))
}

fn alone(value: &str) -> Result<String, String> {
    parse_exclusive(value).map_err(|e| reason(&e))
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

/// A number of GPUs, perhaps of one type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpus {
    /// How many.
    pub count: u32,
    /// Type.
    pub gres_type: Option<String>,
}

/// A range of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
}

/// Node names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts(pub Vec<String>);

fn job_id(text: &str) -> Result<String, String> {
    match crate::names::Name::parse(text) {
        Some(_) => Ok(text.into()),
        None if is_job(text) => Ok(text.into()),
        None => Err(
            "write a job number: 17, 4_1 for a task of an array, 4_[2-5] for tasks that wait together, or 19+1 for a \
             component; of PBS 17 or 17.head"
                .into(),
        ),
    }
}

fn one_kind(list: Vec<GresRequest>, example: &str) -> Result<Gpus, String> {
    let mut gpus = list.into_iter().filter(|r| r.name == "gpu");
    match (gpus.next(), gpus.next()) {
        (Some(only), None) => match u32::try_from(only.count) {
            Ok(count) if count <= 1_000_000 => Ok(Gpus {
                count,
                gres_type: only.gres_type,
            }),
            _ => Err("that is more GPUs than any cluster has".into()),
        },
        (None, _) => Err(format!("it asks for no GPU; write for example {example}")),
        (Some(_), Some(_)) => Err("name one GPU type only".into()),
    }
}

fn gpus(text: &str) -> Result<Gpus, String> {
    let list = parse_gpus("--gpus", text).map_err(|e| reason(&e))?;
    one_kind(list, "8 or h100:8")
}

fn gres(text: &str) -> Result<Gpus, String> {
    let list = parse_gres("--gres", text).map_err(|e| reason(&e))?;
    one_kind(list, "gpu:8 or gpu:h100:8")
}

/// clap names the option and the value already.
fn reason(error: &gpuos_config::options::OptionError) -> String {
    format!("{}; write {}", error.reason, error.accepted)
}

fn nodes(text: &str) -> Result<Nodes, String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    match (min.parse(), max.parse()) {
        (Ok(min), Ok(max)) if min >= 1 && min <= max => Ok(Nodes { min, max }),
        _ => Err("write N or N-M with N at least 1 and M not below N".into()),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale: u64 = match &text[number.len()..].to_ascii_uppercase()[..] {
        "" | "M" | "MB" => 1 << 10,
        "K" | "KB" => 1,
        "G" | "GB" => 1 << 20,
        "T" | "TB" => 1 << 30,
        _ => 0,
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale))
    {
        Some(kibibytes) if scale > 0 => Ok(kibibytes.div_ceil(1024)),
        _ => Err("write a number of MiB, or with a unit: 500G".into()),
    }
}

fn topology(text: &str) -> Result<TopologyRequest, String> {
    parse_topology(text).map_err(|e| reason(&e))
}

fn placement(text: &str) -> Result<Placement, String> {
    parse_placement(text).map_err(|e| reason(&e))
}

fn profile(text: &str) -> Result<Profile, String> {
    parse_profile(text).map_err(|e| reason(&e))
}

fn hosts(text: &str) -> Result<Hosts, String> {
    gpuos_model::hostlist::expand(text)
        .map(Hosts)
        .map_err(|e| e.reason)
}
