//! `gpuos wlm`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use gpuos_model::cluster::NodeType;
use gpuos_model::node_types;
use gpuos_model::words::whole_number;

use super::HardwareArgs;

/// `gpuos wlm`.
#[derive(Args)]
pub struct WlmArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: WlmCommand,
}

/// What `gpuos wlm` does.
#[derive(Subcommand)]
pub enum WlmCommand {
    /// Check what a job says to gpuos when it is submitted: Grid Engine's JSV on the host of sge_qmaster, LSF's esub, Torque's submit filter.
    SubmitFilter(WlmFilterArgs),
    /// Report node type, free GPUs and the largest free set with NVLink: Grid Engine's load sensor. LSF's elim: of all GPUs.
    Sense(WlmSenseArgs),
    /// As root, before a job of Grid Engine: choose its GPUs among those that no job has, and tell its environment. Reads what
    /// `qstat -xml -j JOB` prints on standard input. Exit 99: the job goes back into the queue; 100: it is wrong; 1: the host is.
    Prolog(WlmJobArgs),
    /// As root, after a job of Grid Engine: its GPUs are free again once none of its processes is left.
    Epilog(WlmJobArgs),
    /// Become the program of a job, with the folder of its checkpoints, and in LSF and Torque with the GPUs that these gave it.
    Wrap(WlmWrapArgs),
    /// Print what a program is told of GPUs of this host that its workload manager gave it, as lines NAME=VALUE; exit 1 where one is
    /// not of this host.
    Gpus(WlmGpusArgs),
    /// As the user of a job: ask its program for a checkpoint, and wait until it is complete; exit 1 when it is not.
    Ckpt(WlmSaveArgs),
    /// Print the folder of a job's last checkpoint that was complete; exit 1 when there is none.
    Restore(WlmSavesArgs),
}

/// A workload manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Manager {
    /// Grid Engine 8.1.
    Gridengine,
    /// IBM Spectrum LSF.
    Lsf,
    /// Torque.
    Torque,
}

/// `gpuos wlm submit-filter`.
#[derive(Args)]
pub struct WlmFilterArgs {
    /// Who asks.
    #[arg(value_name = "MANAGER")]
    pub manager: Manager,
    /// What qsub was called with; for Torque.
    #[arg(value_name = "ARGUMENT", last = true)]
    pub arguments: Vec<OsString>,
}

/// The GPUs of this host, and who has them.
#[derive(Args)]
pub struct WlmHostArgs {
    /// Node type of this host instead of what its hardware shows: one of gpuos's own, such as dgx-h100. GPUs then have numbers and no UUIDs.
    #[arg(long = "type", value_name = "TYPE", value_parser = node_type)]
    pub node_type: Option<Arc<NodeType>>,
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Folder of root's in which jobs are noted that have GPUs; it must not outlive a boot.
    #[arg(long, value_name = "DIR", default_value = "/run/gpuos_wlm")]
    pub state: PathBuf,
}

/// `gpuos wlm sense`.
#[derive(Args)]
pub struct WlmSenseArgs {
    /// Who asks.
    #[arg(value_name = "MANAGER")]
    pub manager: Manager,
    #[command(flatten)]
    pub host: WlmHostArgs,
    /// Seconds between two reports to LSF.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = whole_number::<u64>(1..=3600))]
    pub interval: u64,
}

/// `gpuos wlm prolog` and `gpuos wlm epilog`.
#[derive(Args)]
pub struct WlmJobArgs {
    /// Number of the job, `$job_id` in Grid Engine's configuration.
    #[arg(long, value_name = "JOB")]
    pub job: String,
    /// Number of its task, `$ja_task_id`; 0 where it has none.
    #[arg(long, value_name = "TASK", default_value = "0")]
    pub task: String,
    /// Folder that Grid Engine has for the job on this host: `$SGE_JOB_SPOOL_DIR`.
    #[arg(long, value_name = "DIR")]
    pub spool: PathBuf,
    /// The site's own starter of jobs, which gpuos's stands in for: the job's environment has it as GPUOS_SITE_STARTER.
    #[arg(long, value_name = "FILE")]
    pub starter: Option<PathBuf>,
    /// Directory with the socket of the gpuos_mover that keeps the checkpoints of jobs with `-ckpt gpuos`: it is told of the job, and the
    /// job's environment where they go. Without it programs save into a folder of their user.
    #[arg(long, value_name = "DIR")]
    pub mover: Option<PathBuf>,
    #[command(flatten)]
    pub host: WlmHostArgs,
}

/// `gpuos wlm wrap`.
#[derive(Args)]
pub struct WlmWrapArgs {
    /// Who starts the job.
    #[arg(value_name = "MANAGER")]
    pub manager: Manager,
    #[command(flatten)]
    pub host: WlmHostArgs,
    /// Folder that hosts share, in which each job of Torque has one for its checkpoints; without it, jobs of Torque have none. Grid Engine
    /// and LSF say themselves where it is.
    #[arg(long, value_name = "DIR")]
    pub saves: Option<PathBuf>,
    /// Make no folder for checkpoints of a job of Grid Engine: gpuos_mover keeps them.
    #[arg(long)]
    pub stored: bool,
    /// Have this program start a job of Grid Engine: the site's own starter of jobs.
    #[arg(long, value_name = "FILE")]
    pub starter: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<OsString>,
    /// Seconds that NVIDIA's driver may take to show the GPUs of a job of LSF or Torque, which starts without being told of them then.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole_number::<u64>(1..=3600))]
    pub limit: u64,
}

/// `gpuos wlm gpus`.
#[derive(Args)]
pub struct WlmGpusArgs {
    #[command(flatten)]
    pub host: WlmHostArgs,
    /// A GPU: its UUID, or its number as NVIDIA's library has it.
    #[arg(value_name = "GPU", required = true, last = true)]
    pub gpus: Vec<String>,
}

/// Where the checkpoints of a job are.
#[derive(Args)]
pub struct WlmSavesArgs {
    /// Folder of the job's checkpoints, as its program has it in GPUOS_SAVES.
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
}

/// `gpuos wlm ckpt`.
#[derive(Args)]
pub struct WlmSaveArgs {
    #[command(flatten)]
    pub saves: WlmSavesArgs,
    /// Seconds that the program has.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = whole_number::<u64>(1..=86_400))]
    pub limit: u64,
}

fn node_type(name: &str) -> Result<Arc<NodeType>, String> {
    let known = node_types::all().iter().find(|kind| kind.name == name);
    known.cloned().ok_or_else(|| {
        let names: Vec<&str> = node_types::all().iter().map(|t| &t.name[..]).collect();
        format!("write one of {}", names.join(", "))
    })
}
