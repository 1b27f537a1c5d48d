//! `gpuos plan`.

use clap::Args;
use gpuos_config::options::MemoryOption;
use gpuos_model::words::whole_number;
use gpuos_placement::cost::{Objectives, Profile};
use gpuos_placement::mig::MigRequest;
use gpuos_placement::plan::{Placement, TopologyRequest};

use super::mig;
use super::values::{
    Gpus, Hosts, Nodes, alone, class, gpu_memory, gpus, gres, hosts, memory, nodes, placement,
    profile, topology,
};

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
    #[arg(short = 'n', long, value_name = "N", value_parser = whole_number::<u32>(1..=1_000_000))]
    pub ntasks: Option<u32>,
    /// CPUs of each task.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>(1..=65_535))]
    pub cpus_per_task: u32,
    /// CPUs that each GPU brings along.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole_number::<u32>(0..=65_535))]
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
    #[arg(long, requires = "defrag", value_name = "N", default_value_t = 120, value_parser = whole_number::<u64>(0..=1_000_000))]
    pub restart_seconds: u64,
    /// With --defrag: GiB/s at which the memory of each moved GPU is copied.
    #[arg(long, requires = "defrag", value_name = "GIB/S", default_value_t = 10, value_parser = whole_number::<u64>(1..=10_000))]
    pub move_rate: u64,
}
