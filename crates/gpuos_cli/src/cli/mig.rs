//! `gpuos mig`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gpuos_config::options::parse_mig;
use gpuos_model::words::whole_number;
use gpuos_placement::mig::MigRequest;

use super::values::{Hosts, hosts, memory, node_name, reason};

/// `gpuos mig`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct MigArgs {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<MigCommand>,
    /// Node to look at; without one this node.
    #[arg(value_parser = node_name)]
    pub node: Option<String>,
    /// Print the instances as a file for `gpuos mig assert`.
    #[arg(long)]
    pub layout: bool,
    /// How gpuosd is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// What `gpuos mig` does besides showing.
#[derive(Subcommand)]
pub enum MigCommand {
    /// Say which slices of GPUs (MIG) a job would get now, or what it waits for; exit 1 when it waits.
    Plan(Box<MigPlanArgs>),
    /// Compare how GPUs are divided with a file; exit 1 with a line for each difference, 2 when the file has a mistake
    /// or gpuosd of a node cannot tell. Nothing is changed.
    Assert(MigAssertArgs),
}

/// How gpuosd of this node and of others is reached.
#[derive(Args)]
pub struct Reach {
    /// Command that runs this command on another node.
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

/// `gpuos mig plan`.
#[derive(Args)]
pub struct MigPlanArgs {
    /// What the job asks for on each node, as sbatch --gpuos-mig has it: 3g.40gb, 1g.10gb:2,3g.40gb, 10G or 1/2.
    #[arg(value_name = "REQUEST", value_parser = mig)]
    pub request: MigRequest,
    /// Nodes to consider; without any all of the pools.
    #[arg(value_name = "NODE", value_parser = hosts)]
    pub only: Vec<Hosts>,
    /// Nodes.
    #[arg(short = 'N', long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>(1..=100_000))]
    pub nodes: u32,
    /// Tasks of each node, for requests for each task.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>(1..=65_535))]
    pub ntasks_per_node: u32,
    /// CPUs of each task.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>(1..=65_535))]
    pub cpus_per_task: u32,
    /// Memory on each node, in MiB or with K, M, G or T.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub mem: Option<u64>,
    /// Partitions to consider.
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    pub partition: Vec<String>,
    /// Features that the nodes must have.
    #[arg(short = 'C', long, value_name = "FEATURES")]
    pub constraint: Option<String>,
    /// Nodes that are not for the job.
    #[arg(short = 'x', long, value_name = "NODES", value_parser = hosts)]
    pub exclude: Option<Hosts>,
    /// Where it does not fit: the cheapest set of running jobs to requeue so that it would. Nothing is done.
    #[arg(long)]
    pub defrag: bool,
    /// With --defrag: seconds that a requeued job needs to start again.
    #[arg(long, requires = "defrag", value_name = "N", default_value_t = 120, value_parser = whole_number::<u64>(0..=1_000_000))]
    pub restart_seconds: u64,
    /// Ask gpuosd of the nodes that would be given, of other nodes by --via, whether an instance made by hand is in the
    /// way.
    #[arg(long)]
    pub check: bool,
    /// How gpuosd is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `gpuos mig assert`.
#[derive(Args)]
pub struct MigAssertArgs {
    /// How GPUs are to be divided, as `gpuos mig --layout` prints it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How gpuosd is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// A request for slices.
pub(super) fn mig(value: &str) -> Result<MigRequest, String> {
    parse_mig(value).map_err(|e| reason(&e))
}
