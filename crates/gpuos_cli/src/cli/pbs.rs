//! `gpuos pbs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `gpuos pbs`.
#[derive(Args)]
pub struct PbsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PbsCommand,
}

/// What `gpuos pbs` does.
#[derive(Subcommand)]
pub enum PbsCommand {
    /// Put hook, configuration and resources into PBS by qmgr, showing each line first; what is there already stays. Needs a manager of PBS.
    Install(PbsInstallArgs),
    /// Take hook and resources out of PBS again; jobs go on. Exit 1 when a resource has to stay because a job has it.
    Remove(PbsRemoveArgs),
}

/// Which PBS is meant, and whether it is changed.
#[derive(Args)]
pub struct PbsReach {
    /// Show the lines for qmgr, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The pbs.conf of the PBS that is meant; it says where qmgr is.
    #[arg(
        long,
        value_name = "FILE",
        env = "PBS_CONF_FILE",
        default_value = "/etc/pbs.conf"
    )]
    pub pbs_conf: PathBuf,
}

/// `gpuos pbs install`.
#[derive(Args)]
pub struct PbsInstallArgs {
    /// JSON with the GPUs of each host: docs/admin/pbs.md has the form. Without it the hosts that are known stay.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// This command as the host of pbs_server has it; without it, the one that runs.
    #[arg(long, value_name = "FILE")]
    pub command: Option<PathBuf>,
    /// libgpuos_pbs_hook.so as hosts of moms have it.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/usr/lib/gpuos/libgpuos_pbs_hook.so"
    )]
    pub library: PathBuf,
    /// libgpuos_preload.so as hosts of moms have it: programs load it whose job has a GPU in turns with its memory.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/usr/lib/gpuos/libgpuos_preload.so.0"
    )]
    pub preload: PathBuf,
    /// `gpuos pbs-planner` runs beside pbs_server: rules of gpuos_placement are taken, and a wish for a level is left to it.
    #[arg(long)]
    pub planner: bool,
    /// gpuos_mover keeps checkpoints on the hosts of moms: gpuos_checkpoint is taken.
    #[arg(long)]
    pub checkpoints: bool,
    /// Whether gpuosd keeps programs of jobs to their job's GPUs, by control groups: `try` starts a program all the same where that cannot be
    /// done, `require` does not.
    #[arg(long, value_name = "WORD", default_value = "off", value_parser = ["off", "try", "require"])]
    pub confine: String,
    /// pbs_sched's configuration, whose line `resources:` gets what pbs_sched has to look at; without it, that of PBS_HOME in pbs.conf.
    #[arg(long, value_name = "FILE")]
    pub sched_config: Option<PathBuf>,
    #[command(flatten)]
    pub reach: PbsReach,
}

/// `gpuos pbs remove`.
#[derive(Args)]
pub struct PbsRemoveArgs {
    #[command(flatten)]
    pub reach: PbsReach,
}
