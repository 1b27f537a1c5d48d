//! Flags.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use gpuos_daemon::start;

/// A workload manager whose jobs can have checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Workload {
    /// Slurm.
    #[default]
    Slurm,
    /// PBS, on the host of a pbs_mom.
    Pbs,
    /// Grid Engine, on the host of a sge_execd.
    Gridengine,
}

/// Keeps and restores the checkpoints of this node's jobs.
#[derive(Clone, Parser, Debug)]
#[command(
    name = "gpuos_mover",
    version,
    after_help = "Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage. gpuos.toml is read at the start: \
                  restart gpuos_mover after [checkpoint] was changed. Jobs that run go on meanwhile."
)]
pub struct Options {
    /// The gpuos.toml to use instead of $GPUOS_CONF or the one beside slurm.conf.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where checkpoints are kept: a folder of root's on a disk of this node.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpuos/checkpoints")]
    pub store: PathBuf,
    /// Where each job has a folder in which its programs write what is to be kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpuos/jobs")]
    pub jobs: PathBuf,
    /// Where the socket gpuos_mover.sock is made.
    #[arg(long, value_name = "DIR", default_value = "/run/gpuos")]
    pub runtime_dir: PathBuf,
    /// Which workload manager has this node: with pbs, the hook of `gpuos pbs install` in pbs_mom tells which jobs are here; with gridengine
    /// prolog and epilog do (docs/admin/gridengine.md).
    #[arg(
        long,
        value_name = "NAME",
        value_enum,
        default_value_t,
        env = "GPUOS_MOVER_WORKLOAD"
    )]
    pub workload: Workload,
    /// The workload manager's name of this node; the host's name up to the first dot by default.
    #[arg(long, value_name = "NAME", env = "SLURMD_NODENAME")]
    pub node: Option<String>,
    /// The secret that all nodes have and no user can read, of which the keys of checkpoints are made. What others of [checkpoint] other-keys in
    /// gpuos.toml have signed counts, too.
    #[arg(long, value_name = "FILE", default_value = "/etc/munge/munge.key")]
    pub key: PathBuf,
    /// Root of procfs instead of /proc, for a recorded tree.
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    pub proc: PathBuf,
    /// Unmount what jobs that are over have left in memory, and end. For the unit, outside of its mount namespace.
    #[arg(long)]
    pub unmount: bool,
    /// Print the man page instead.
    #[arg(long, hide = true)]
    pub man: bool,
}

impl Options {
    /// The workload manager's name of this node. Hosts of PBS and Grid Engine are compared by their short names, in any case.
    pub fn node_name(&self) -> String {
        let name = start::node_name(self.node.as_deref());
        match self.workload {
            Workload::Slurm => name,
            Workload::Pbs | Workload::Gridengine => {
                let short = name.split('.').next().unwrap_or_default();
                short.to_ascii_lowercase()
            }
        }
    }
}

impl start::Flags for Options {
    fn is_for_man(&self) -> bool {
        self.man
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Options;

    #[test]
    fn the_table_of_flags_is_sound() {
        Options::command().debug_assert();
    }
}
