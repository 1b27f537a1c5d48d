//! `gpuos ckpt` in the table of flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gpuos_core::job::JobId;
use gpuos_model::words::whole_number;

use super::values::{job_id, node_name};

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
    /// Prove that a job's checkpoint can be restored on other nodes, by a short job of one's own there, or those of several jobs; exit 1 when one cannot.
    Drill(CkptDrillArgs),
    /// Show how long past restarts from checkpoints and drills took, and what work was lost.
    Report(CkptReportArgs),
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
            CkptCommand::Report(_) => "ckpt report",
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
    #[arg(value_name = "N", value_parser = whole_number::<u32>(1..))]
    pub number: Option<u32>,
    /// Only have the job's nodes note which checkpoint its next run begins from; it is not requeued.
    #[arg(long, requires = "number")]
    pub no_requeue: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt drill`.
#[derive(Args, Clone)]
pub struct CkptDrillArgs {
    /// Job whose checkpoint is restored, by its own number; it may run meanwhile.
    #[arg(value_name = "JOBID", value_parser = job_id, required_unless_present_any = ["all", "sample"])]
    pub job: Option<String>,
    /// The checkpoint; without one the newest.
    #[arg(value_name = "N", value_parser = whole_number::<u32>(1..))]
    pub number: Option<u32>,
    /// Parts of each set that count as gone: they are not read, and have to be made again from the others.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole_number::<u8>(..=64))]
    pub lose: u8,
    /// All running jobs with checkpoints, one after another: one's own, for root everybody's.
    #[arg(long, conflicts_with_all = ["job", "sample"])]
    pub all: bool,
    /// So many of them, drawn at random.
    #[arg(long, value_name = "N", conflicts_with = "job", value_parser = whole_number::<u32>(1..))]
    pub sample: Option<u32>,
    /// Minutes after which a drill that gets no nodes is given up; without it one job's drill waits, and each of several 10 minutes.
    #[arg(long, value_name = "MINUTES", value_parser = whole_number::<u32>(1..=1440))]
    pub queue_minutes: Option<u32>,
    /// Partition in which the drill runs; without one Slurm's default.
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// Minutes that the drill may take.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = whole_number::<u32>(1..=1440))]
    pub minutes: u32,
    /// Also on nodes that the job has: without this they are left out.
    #[arg(long)]
    pub any_node: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// `gpuos ckpt report`.
#[derive(Args)]
pub struct CkptReportArgs {
    /// Only this job, by its own number.
    #[arg(value_name = "JOBID")]
    pub job: Option<JobId>,
    /// How far back: so many minutes, hours, days or weeks, as 90m, 12h, 30d or 8w.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = back)]
    pub since: u64,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// Seconds of `30d`.
fn back(text: &str) -> Result<u64, String> {
    let units = [("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800)];
    let time = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    time.ok_or_else(|| "write a number and m, h, d or w, as 30d".into())
}

/// `gpuos ckpt prune`.
#[derive(Args)]
pub struct CkptPruneArgs {
    /// Job, task of an array or component of a heterogeneous job: 17, 4_1 or 19+1.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    pub job: String,
    /// Also what a job goes on from that waits or runs on other nodes: it begins from its start then.
    #[arg(long)]
    pub anew: bool,
    /// How gpuos_mover is reached.
    #[command(flatten)]
    pub reach: MoverReach,
}

/// How gpuos_mover of this node and of others is reached.
#[derive(Args, Clone)]
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
