//! Flags.

use std::path::PathBuf;

use clap::Parser;
use gpuos_daemon::start::{self, Workload};
use gpuos_model::words::whole_number;

/// Watches the GPUs of this node, takes bad ones out of service in Slurm, and brings jobs back.
#[derive(Clone, Parser, Debug)]
#[command(
    name = "gpuosd",
    version,
    after_help = "Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage. SIGHUP, like `gpuos health --reload`, \
                  reads gpuos.toml again; what is wrong in it is said, and the old one stays."
)]
pub struct Options {
    /// The gpuos.toml to use instead of $GPUOS_CONF or the one beside slurm.conf.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the state and the audit log are kept.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpuos")]
    pub state_dir: PathBuf,
    /// Where the socket gpuosd.sock is made.
    #[arg(long, value_name = "DIR", default_value = "/run/gpuos")]
    pub runtime_dir: PathBuf,
    /// Which workload manager has this node: with pbs, the hook of `gpuos pbs install` in pbs_mom tells what there is and does what is to be done.
    #[arg(
        long,
        value_name = "NAME",
        value_enum,
        default_value_t,
        env = "GPUOSD_WORKLOAD"
    )]
    pub workload: Workload,
    /// Slurm's name of this node; the host's name up to the first dot by default.
    #[arg(long, value_name = "NAME", env = "SLURMD_NODENAME")]
    pub node: Option<String>,
    /// NVIDIA's management library.
    #[arg(long, value_name = "PATH", default_value = "libnvidia-ml.so.1")]
    pub nvml: String,
    /// Seconds between two polls of the GPUs. Events such as Xids come at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole_number::<u64>(1..=60))]
    pub interval: u64,
    /// Command that resets a GPU, run only while no job has it: words, with {index}, {pci} and {uuid}.
    #[arg(long, value_name = "COMMAND", default_value = "nvidia-smi -r -i {pci}")]
    pub reset_command: String,
    /// Command that checks a GPU before it comes back, beside what gpuosd looks at itself; exit 0 is well.
    #[arg(long, value_name = "COMMAND", default_value = "")]
    pub check_command: String,
    /// Command that controls NVIDIA's MPS, for jobs with --gpuos-mps: words; gpuosd adds -f, or says quit to it.
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub mps_command: String,
    /// Seconds that a job has a GPU at least which it shares with others in turns, if it has work for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole_number::<u64>(1..=3600))]
    pub memory_turn: u64,
    /// GB a second that are taken for moving memory between GPU and host until it was measured: turns last many times as long as moves.
    #[arg(long, value_name = "GB", default_value_t = 20, value_parser = whole_number::<u64>(1..=10_000))]
    pub memory_rate: u64,
    /// The driver's library, for programs whose memory only the driver can take out of a GPU; gpuosd itself does not open it.
    #[arg(long, value_name = "PATH", default_value = "libcuda.so.1")]
    pub cuda: String,
    /// Where slice files are written, which File= of GRES gpuos in gres.conf names.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpuos/slices")]
    pub slices: PathBuf,
    /// Where the device files of MIG instances are; those of the GPUs, nvidia0 and so on, lie beside this folder.
    #[arg(long, value_name = "DIR", default_value = "/dev/nvidia-caps")]
    pub caps: PathBuf,
    /// The driver's list of these device files.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/proc/driver/nvidia-caps/mig-minors"
    )]
    pub mig_minors: PathBuf,
    /// Root of sysfs instead of /sys, for a recorded tree.
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Where the kernel's log is read, for Xids that the library does not tell: a file with records as /dev/kmsg has
    /// them, or none.
    #[arg(long, value_name = "FILE", default_value = "/dev/kmsg")]
    pub kernel_log: PathBuf,
    /// The file with the kernel's name for this boot of the machine.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/proc/sys/kernel/random/boot_id"
    )]
    pub boot_id: PathBuf,
    /// Root of procfs instead of /proc, for a recorded tree.
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    pub proc: PathBuf,
    /// Where control groups are mounted: CgroupMountpoint of cgroup.conf.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    pub cgroup: PathBuf,
    /// Below which path of their hierarchies Slurm's control groups are, where slurmd runs in a container and gpuosd does
    /// not: what stands before /system.slice in /proc/PID/cgroup of a job.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub slurm_groups: String,
    /// Milliseconds after which the report of a step is answered at the latest, for tests on machines that have much else to do: steps wait 2 s.
    #[arg(long, value_name = "MS", default_value_t = 1500, hide = true)]
    pub answer_within: u64,
    /// Print the man page instead.
    #[arg(long, hide = true)]
    pub man: bool,
}

impl Options {
    /// Slurm's name of this node.
    pub fn node_name(&self) -> String {
        start::node_name(self.node.as_deref())
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
