//! `gpuos run` in the table of flags.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use gpuos_model::words::whole_number;

/// `gpuos run`.
#[derive(Args)]
pub struct RunArgs {
    /// Nodes that the program runs on; without it all nodes of the job but its spares.
    #[arg(long, short = 'N', value_name = "N", value_parser = whole_number::<u32>(1..))]
    pub nodes: Option<u32>,
    /// When fewer nodes are left and none is spare, go on with these, if they are so many: for programs that can with another number.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..))]
    pub least: Option<u32>,
    /// Starts of the program in all, before it is given up.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole_number::<u32>(1..))]
    pub tries: u32,
    /// Failures in a row without a lost node or a new checkpoint between them, after which the program is given up.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole_number::<u32>(1..))]
    pub tries_failed: u32,
    /// When too few nodes are left, exit with 75 instead of having the job requeued.
    #[arg(long)]
    pub no_requeue: bool,
    /// Say on standard error when srun is started, when it ended and when its step was gone, with the times.
    #[arg(long, short)]
    pub verbose: bool,
    /// Directory of gpuos_mover's socket, which is gpuosd's, too; %n in it stands for the name of the node.
    #[arg(long, value_name = "DIR", env = crate::daemons::RUNTIME_ENV, default_value = crate::daemons::RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
    /// Options of srun, and then the program with its arguments.
    #[arg(
        value_name = "SRUN-OPTIONS PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}
