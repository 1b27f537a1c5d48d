//! `gpuos ckpt` in the table of flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gpuos_core::job::JobId;

use super::{job_id, node_name};

/// `gpuos ckpt`.
#[derive(Args)]
pub struct CkptArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CkptCommand,
}

/// What `gpuos ckpt` does.
#[derive(Subcommand)]
pub enum CkptCommand {
    /// List jobs with checkpoints on this node, or on all nodes of a lab: root sees all of them, a user his own.
    List(CkptListArgs),
    /// Show all about a job's checkpoints: the interval, what can be lost, what is being made, what is kept, what failed.
    Show(CkptJobArgs),
    /// Have a job make a checkpoint, and wait for it; exit 1 when it comes to nothing.
    Now(CkptNowArgs),
    /// Requeue a job, so that it goes on from its newest checkpoint or from the one that is named; exit 1 when there is none.
    Restart(CkptRestartArgs),
    /// Prove that a job's checkpoint can be restored on other nodes, by a short job of one's own there; exit 1 when it cannot.
    Drill(CkptDrillArgs),
    /// Read all that is kept of a job and hold it against its digests; exit 1 when something does not hold.
    Verify(CkptJobArgs),
    /// Remove the checkpoints of a job that has ended.
    Prune(CkptPruneArgs),
}

impl CkptCommand {
    /// Its name, with that of the command.
    pub fn name(&self) -> &'static str {
        match self {
            CkptCommand::List(_) => "ckpt list",
            CkptCommand::Show(_) => "ckpt show",
            CkptCommand::Now(_) => "ckpt now",
            CkptCommand::Restart(_) => "ckpt restart",
            CkptCommand::Drill(_) => "ckpt drill",
            CkptCommand::Verify(_) => "ckpt verify",
            CkptCommand::Prune(_) => "ckpt prune",
        }
    }
}

/// `gpuos ckpt list`.
#[derive(Args)]
pub struct CkptListArgs {
    /// Only this job, by its own number.
    #[arg(value_name = "JOBID")]
    pub job: Option<JobId>,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt show` and `verify`.
#[derive(Args)]
pub struct CkptJobArgs {
    /// Job, task of an array or component of a heterogeneous job: 17, 4_1 or 19+1; inside a job it need not be named.
    #[arg(value_name = "JOBID", env = "SLURM_JOB_ID", hide_env_values = true, value_parser = job_id)]
    pub job: String,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt now`.
#[derive(Args)]
pub struct CkptNowArgs {
    /// Job, task of an array or component of a heterogeneous job: 17, 4_1 or 19+1; inside a job it need not be named.
    #[arg(value_name = "JOBID", env = "SLURM_JOB_ID", hide_env_values = true, value_parser = job_id)]
    pub job: String,
    /// Only ask for it, and do not wait until it exists.
    #[arg(long)]
    pub no_wait: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt restart`.
#[derive(Args)]
pub struct CkptRestartArgs {
    /// Job, task of an array or component of a heterogeneous job that runs: 17, 4_1 or 19+1.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    pub job: String,
    /// The checkpoint from which it goes on; without one the newest.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub number: Option<u32>,
    /// Only have the job's nodes note which checkpoint its next run begins from; it is not requeued.
    #[arg(long, requires = "number")]
    pub no_requeue: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt drill`.
#[derive(Args)]
pub struct CkptDrillArgs {
    /// Job whose checkpoint is restored, by its own number; it may run meanwhile.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    pub job: String,
    /// The checkpoint; without one the newest.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub number: Option<u32>,
    /// Partition in which the drill runs; without one Slurm's default.
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// Minutes that the drill may take.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub minutes: u32,
    /// Also on nodes that the job has: without this they are left out.
    #[arg(long)]
    pub any_node: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt prune`.
#[derive(Args)]
pub struct CkptPruneArgs {
    /// Job, task of an array or component of a heterogeneous job: 17, 4_1 or 19+1.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    pub job: String,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// How gpuos_mover of this node and of others is reached.
#[derive(Args)]
pub struct MoverReach {
    /// Node to ask; without one this node, or where it has nothing of the job, the job's first node.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub node: Option<String>,
    /// Ask gpuos_mover of this machine only.
    #[arg(long, conflicts_with = "node")]
    pub local: bool,
    /// Command that runs this command on another node.
    #[arg(
        long,
        value_name = "COMMAND",
        env = "GPUOS_VIA",
        default_value = "ssh -o BatchMode=yes"
    )]
    pub via: String,
    /// Directory of gpuos_mover's socket, which is gpuosd's, too; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
}
