//! The subcommands that gpuosd of a node answers: how it is, and what is taken out of service or brought back.

use std::path::PathBuf;

use clap::Args;
use gpuos_core::job::JobId;
use gpuos_model::words::whole_number;

use super::mig::Reach;
use super::values::node_name;

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
    #[arg(long, value_name = "LINES", num_args = 0..=1, default_missing_value = "20", value_parser = whole_number::<u32>(1..=500))]
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
    #[arg(long, value_name = "MINUTES", default_value_t = 15, requires = "migrate", value_parser = whole_number::<u32>(1..=1440))]
    pub limit: u32,
}
