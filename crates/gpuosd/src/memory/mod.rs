//! Programs with memory in tiers: the socket on which they ask for it, and what has to be looked after of their processes. What they
//! get, `gpuos_memory::lease` decides, in the loop.
//!
//! - [`caller`]: has the driver called, by processes of their own, for programs whose memory only the driver can take out of a GPU,
//! - [`programs`]: which process may ask, by the kernel's word and by what the loop knows of jobs,
//! - [`line`](mod@line): a connection, as the loop sees it,
//! - [`door`]: the socket; nobody who may not ask takes a place of one who may,
//! - [`pressure`]: a thread that looks at host memory, of the machine and of jobs,
//! - [`watch`]: a thread that sees processes end, and ends those that it is told to.

pub mod caller;
pub mod door;
pub mod line;
pub mod pressure;
pub mod programs;
pub mod watch;

use std::sync::mpsc::Sender;

use gpuos_core::step::StepId;
use gpuos_core::wire::StepMemory;
use gpuos_memory::lease::{ClientId, Config};
use gpuos_memory::protocol::FromProgram;
use serde::{Deserialize, Serialize};

use crate::driver_checkpoint::Way;
use line::Line;
use programs::{Members, Program};

/// What outlives the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    /// Steps with the option.
    #[serde(default)]
    pub steps: Vec<(StepId, StepMemory)>,
    /// The broker's journal: a line for each record.
    #[serde(default)]
    pub journal: Vec<String>,
}

/// What the loop is told.
#[derive(Debug)]
pub enum Notice {
    /// A program has connected that may ask.
    Came(Program, Line),
    /// It says something, on its connection of this number.
    Said(ClientId, u64, FromProgram),
    /// Its connection of this number is lost.
    Lost(ClientId, u64),
    /// A process that is followed is stopped by a signal, or goes on.
    Stopped(ClientId, bool),
    /// Its process is dead, and what it had is free.
    Gone(ClientId),
    /// The driver was called for it.
    Called(ClientId, Way, caller::Outcome),
    /// How host memory is doing.
    Pressure(Box<pressure::Seen>),
}

/// NVMe for what is parked, which gpuos_mover writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nvme {
    /// Bytes that may be lent; 0: none.
    pub bytes: u64,
    /// The GRES in which the workload manager counts some of it in GiB, and how many bytes that is; empty: it counts none.
    pub counted: (String, u64),
    /// The socket on which gpuos_mover takes what is parked.
    pub mover: String,
}

/// What the loop gives orders to, and has to know.
#[derive(Debug)]
pub struct Ports {
    /// Processes to be looked after.
    pub watch: Sender<watch::Order>,
    /// Programs for which the driver is called.
    pub caller: Sender<caller::Order>,
    /// Jobs whose memory is looked at.
    pub pressure: Sender<pressure::Order>,
    /// Who may ask.
    pub members: Members,
    /// Host memory of the node, in bytes.
    pub host: u64,
    /// How long turns are, and the like.
    pub config: Config,
    /// NVMe for what is parked.
    pub nvme: Nvme,
}

/// All memory of this machine in bytes, by the text of `/proc/meminfo`; 0: it does not say.
pub fn host_memory(meminfo: &str) -> u64 {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::host_memory;

    #[test]
    fn host_memory_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       263921500 kB\nMemFree:         8000 kB\n";
        assert_eq!(host_memory(text), 263_921_500 * 1024);
        for text in ["", "MemTotal: many kB", "MemTotal: 5"] {
            assert_eq!(host_memory(text), 0, "{text}");
        }
    }
}
