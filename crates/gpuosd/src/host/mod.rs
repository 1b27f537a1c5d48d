//! The host beside its GPUs: a thread that looks at network adapters, memory and the kernel's log, and asks file
//! systems whether they answer ([`gpuos_host::hardware::file_systems`] has threads for those that do not).
//!
//! - [`links`]: what becomes of it for the health rules,
//! - [`kernel`]: Xids of the kernel's log where NVIDIA's library tells none,
//! - [`hardware`]: where the hardware is not what gpuos.toml says.

pub mod hardware;
pub mod kernel;
pub mod links;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::hardware::discover::{self, Adapter, Sysfs};
use gpuos_host::hardware::file_systems::{Answered, Mounted, Probes};
use gpuos_host::hardware::host_state::{HostState, MemoryErrors};
use gpuos_host::hardware::kernel_log::{KernelLog, KernelXid, Kmsg};

use crate::sink::Sink;

/// The kernel's log is read so often: about as soon as NVML's events come.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// As the kernel's log: there is none to read.
pub const NO_LOG: &str = "none";
/// A file system that answered is asked again after so long.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// What the loop is told of the host.
#[derive(Debug)]
pub enum Notice {
    /// What a round showed.
    Round(Round),
    /// Xids in the kernel's log.
    Xids(Vec<KernelXid>),
    /// What the node is made of, once NVIDIA's library was opened.
    Hardware(Box<discover::NodeHardware>),
}

/// One look at the host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Network adapters.
    pub adapters: Vec<Adapter>,
    /// Errors of memory.
    pub memory: Vec<MemoryErrors>,
    /// File systems that are asked.
    pub file_systems: Vec<Answered>,
}

/// Starts the thread. What is sent to it are the file systems to ask from then on.
///
/// # Errors
/// The thread cannot be made.
pub fn start(
    sysfs: &Path,
    log: &Path,
    interval: Duration,
    to: Sink<Notice>,
) -> std::io::Result<Sender<Vec<PathBuf>>> {
    let (paths, from) = channel();
    let log: Option<Box<dyn KernelLog>> = match log.as_os_str() == NO_LOG {
        true => None,
        false => kernel_log(log),
    };
    let watch = Watch {
        host: Box::new(Sysfs::at(sysfs)),
        log,
        probes: Probes::new(Arc::new(Mounted), ASK_EVERY),
        interval,
    };
    thread::Builder::new()
        .name("host".into())
        .spawn(move || watch.run(&from, &to))?;
    Ok(paths)
}

fn kernel_log(log: &Path) -> Option<Box<dyn KernelLog>> {
    match Kmsg::open(log) {
        Ok(log) => Some(Box::new(log)),
        Err(e) => {
            tracing::info!(
                "{}: {e}: Xids come from NVIDIA's library alone (reading the kernel's log wants root or CAP_SYSLOG)",
                log.display()
            );
            None
        }
    }
}

struct Watch {
    host: Box<dyn HostState>,
    log: Option<Box<dyn KernelLog>>,
    probes: Probes,
    interval: Duration,
}

impl Watch {
    fn run(mut self, from: &Receiver<Vec<PathBuf>>, to: &Sink<Notice>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                due = Instant::now() + self.interval;
                let round = Round {
                    adapters: self.host.adapters(),
                    memory: self.host.memory_errors(),
                    file_systems: self.probes.states(),
                };
                if !to.send(Notice::Round(round)) {
                    return;
                }
            }
            if !self.read_log(to) {
                return;
            }
            match from.recv_timeout(LOG_EVERY) {
                Ok(paths) => {
                    if let Err(e) = self.probes.watch(&paths) {
                        tracing::error!("no thread for a file system: {e}");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Tells what is new in the log. `false`: nobody listens any more.
    fn read_log(&mut self, to: &Sink<Notice>) -> bool {
        let Some(log) = &mut self.log else {
            return true;
        };
        match log.xids() {
            Ok(xids) if xids.is_empty() => true,
            Ok(xids) => to.send(Notice::Xids(xids)),
            Err(e) => {
                tracing::warn!("the kernel's log is not read any more: {e}");
                self.log = None;
                true
            }
        }
    }
}
