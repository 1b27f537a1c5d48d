//! What the loop is given: where effects go, and what is known at the start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant};

use gpuos_workload::WorkloadManager;

use super::Message;
use crate::blocking::Device;
use crate::disk::Disk;
use crate::isolation::Order;
use crate::known::Known;
use crate::mig::GpuThreads;
use crate::mps::Runner;
use crate::numbering::Numbering;
use crate::peers::Peers;
use crate::queue::Task;
use crate::store::Saved;

/// Where effects go.
pub struct Ports {
    /// Told which GPUs are in a pool.
    pub numbering: Arc<Numbering>,
    /// What the workload manager is asked and told, one at a time.
    pub workload: Sender<Task>,
    /// The workload manager, for threads that ask it besides.
    pub manager: Arc<dyn WorkloadManager>,
    /// Resets and checks.
    pub device: Sender<Device>,
    /// File systems to ask whether they answer.
    pub file_systems: Sender<Vec<PathBuf>>,
    /// Power limits and clocks.
    pub limits: Sender<crate::limits::Task>,
    /// MPS daemons.
    pub mps: Arc<Runner>,
    /// Makes and destroys MIG instances.
    pub mig: Arc<GpuThreads>,
    /// To the loop itself, for those who answer later.
    pub to: SyncSender<Message>,
    /// Kills, and whether control groups are looked at.
    pub isolation: Sender<Order>,
    /// Programs with memory in tiers.
    pub memory: crate::memory::Ports,
    /// State and audit log.
    pub disk: Disk,
    /// The other nodes of jobs.
    pub peers: Peers,
    /// What those who answer clients know of the jobs.
    pub known: Known,
    /// Milliseconds since 1970, from a clock that may jump: for dates.
    pub wall: Box<dyn Fn() -> u64 + Send>,
    /// A clock that never jumps: for all that waits.
    pub steady: Box<dyn Fn() -> Instant + Send>,
}

/// What is known at the start.
pub struct Start {
    /// Slurm's name of the node.
    pub node: String,
    /// This boot.
    pub boot: String,
    /// What was saved; `None`: nothing that could be used.
    pub saved: Option<Saved>,
    /// How often GPUs are polled, and the socket of gpuos_mover.
    pub polls: (Duration, PathBuf),
}
