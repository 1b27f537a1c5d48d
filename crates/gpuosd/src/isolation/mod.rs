//! Who is on the GPUs, and what steps may open: a thread that looks, and kills what it is told to kill. Whether
//! something is wrong with what it sees, `gpuos_core::isolation` says; [`keep`] is what the loop holds of it.

pub mod keep;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::isolation::{Group, Process, Seen};
use gpuos_core::job::JobId;
use gpuos_host::hardware::nvml::{self, Answer, GpuLibrary};
use gpuos_host::steps::device_groups::DeviceGroups;
use gpuos_host::steps::job_processes::{Killed, Processes};
use gpuos_model::gpu_index::{GresGpu, NvmlSet};

use crate::confine::{DeviceFiles, Minors};
use crate::gpus::{self, Library};
use crate::numbering::Numbering;
use crate::sink::Sink;

/// A step that is younger than this is looked at in every round: Slurm may still be busy with its group.
const YOUNG: Duration = Duration::from_secs(30);
/// An older one so often.
const AGAIN: Duration = Duration::from_secs(60);
/// Processes on one GPU that are looked up.
const MOST: usize = 256;

/// What the thread is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Whether the kernel is asked what steps may open.
    Devices(bool),
    /// Kill a process, the one that was started then.
    Kill {
        /// Process id.
        pid: u32,
        /// Ticks since boot.
        started: u64,
        /// The GPU that it is on.
        gpu: GresGpu,
    },
}

/// What the loop is told.
#[derive(Debug)]
pub enum Notice {
    /// A round.
    Round {
        /// What it showed.
        seen: Seen,
        /// Why it is not known what steps may open, if so.
        blind: Option<String>,
    },
    /// A kill came to its end.
    Killed {
        /// Process id.
        pid: u32,
        /// The GPU that it was on.
        gpu: GresGpu,
        /// What became of it.
        outcome: Result<Killed, String>,
    },
}

/// Where the thread looks.
pub struct Sources {
    /// NVIDIA's library.
    pub library: Arc<Library>,
    /// How Slurm numbers GPUs.
    pub numbering: Arc<Numbering>,
    /// Processes.
    pub processes: Box<dyn Processes>,
    /// Control groups.
    pub groups: Box<dyn DeviceGroups>,
    /// Told which device files GPUs have.
    pub files: Arc<DeviceFiles>,
}

/// Starts the thread.
///
/// # Errors
/// The thread cannot be made.
pub fn start(
    sources: Sources,
    interval: Duration,
    to: Sink<Notice>,
) -> std::io::Result<Sender<Order>> {
    let (orders, from) = channel();
    let look = Watch {
        sources,
        devices: true,
        gpus: None,
        asked: BTreeMap::new(),
    };
    let run = move || look.run(&from, interval, &to);
    thread::Builder::new().name("isolation".into()).spawn(run)?;
    Ok(orders)
}

/// A GPU by its three numbers.
struct Board {
    gres: GresGpu,
    nvml: u8,
    minor: Option<u32>,
}

/// A step's group that was looked at.
struct Asked {
    first: Instant,
    last: Instant,
    minors: BTreeSet<u32>,
}

struct Watch {
    sources: Sources,
    devices: bool,
    /// As of [`Numbering::at`], the GPUs that are not in a pool.
    gpus: Option<((NvmlSet, u64), Vec<Board>)>,
    asked: BTreeMap<(JobId, String), Asked>,
}

impl Watch {
    fn run(mut self, from: &Receiver<Order>, interval: Duration, to: &Sink<Notice>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                due = Instant::now() + interval;
                if let Some(told) = self.round()
                    && !to.send(told)
                {
                    return;
                }
            }
            match from.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Order::Devices(on)) => self.devices = on,
                Ok(Order::Kill { pid, started, gpu }) => {
                    let outcome = self.sources.processes.kill(pid, started);
                    let outcome = outcome.map_err(|e| e.to_string());
                    let told = Notice::Killed { pid, gpu, outcome };
                    if !to.send(told) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// `None` while NVIDIA's library does not answer: the polling thread says so.
    fn round(&mut self) -> Option<Notice> {
        let Ok(on_gpus) = self.on_gpus() else {
            self.gpus = None;
            return None;
        };
        let mut known = BTreeMap::new();
        let mut processes = Vec::new();
        let mut unclear = None;
        for (gpu, process) in on_gpus {
            let who = known.entry(process.pid).or_insert_with(|| {
                // One that cannot be read is accused of nothing.
                self.sources.processes.who(process.pid).ok().flatten()
            });
            let Some(who) = who else { continue };
            if let Some(why) = &who.unclear {
                unclear.get_or_insert_with(|| format!("of process {}: {why}", process.pid));
                continue;
            }
            processes.push(Process {
                gpu,
                instance: process.gpu_instance,
                pid: process.pid,
                started: who.started,
                uid: who.uid,
                owners: who.owners.clone(),
                program: who.program.clone(),
                step: who
                    .step
                    .as_ref()
                    .map(|step| (step.job.clone(), step.step.clone())),
                memory_mib: process.memory_mib,
            });
        }
        let (groups, blind) = match self.groups() {
            Ok((groups, blind)) => (Some(groups), blind),
            Err(why) => (None, Some(why)),
        };
        let seen = Seen { processes, groups };
        let blind = unclear.or(blind);
        Some(Notice::Round { seen, blind })
    }

    /// Processes on GPUs, by GRES index. The library is let go before anything else is read.
    fn on_gpus(&mut self) -> Answer<Vec<(GresGpu, nvml::Process)>> {
        let at = self.sources.numbering.at();
        let library = self.sources.library.get()?;
        let list = match &mut self.gpus {
            Some((of, list)) if *of == at => list,
            gpus => {
                // A GPU's number may be another's by now; where the library was silent it is not.
                if gpus.is_some() {
                    self.sources.files.set(None);
                }
                let list = boards(&*library, &self.sources.numbering, at.0)?;
                let whole = list.iter();
                let whole = whole.filter_map(|board| Some((board.gres, board.minor?)));
                // Of a GPU that does not say who it is no job is kept to its instances.
                let divided = at.0.iter().filter_map(|gpu| {
                    let who = library.identity(gpu.into()).ok();
                    Some((gpu, who?.minor?))
                });
                self.sources.files.set(Some(Minors {
                    whole: whole.collect(),
                    divided: divided.collect(),
                }));
                // What a step may open was asked about other GPUs.
                self.asked.clear();
                &mut gpus.insert((at, list)).1
            }
        };
        let mut all = Vec::new();
        for gpu in list {
            // A GPU that does not answer has nobody to look up; its polls say the rest.
            let found = library.processes(gpu.nvml).unwrap_or_default();
            all.extend(found.into_iter().take(MOST).map(|one| (gpu.gres, one)));
        }
        Ok(all)
    }

    /// What each step may open, and of which step that is not known; the error says why it is of none.
    fn groups(&mut self) -> Result<(Vec<Group>, Option<String>), String> {
        if !self.devices {
            return Err("[isolation] devices = false".into());
        }
        let gpus = self.gpus.iter().flat_map(|(_, gpus)| gpus);
        let numbers: Vec<(u32, GresGpu)> = gpus
            .filter_map(|gpu| Some((gpu.minor?, gpu.gres)))
            .collect();
        let minors: Vec<u32> = numbers.iter().map(|(minor, _)| *minor).collect();
        let steps = self.sources.groups.steps()?;
        let now = Instant::now();
        let mut found = Vec::new();
        let mut blind = steps.unclear;
        let mut asked = BTreeMap::new();
        for group in steps.list {
            let key = (group.step.job.clone(), group.step.step.clone());
            let before = self.asked.remove(&key);
            let rest = |one: &Asked| {
                let old = now.duration_since(one.first) >= YOUNG;
                old && now.duration_since(one.last) < AGAIN
            };
            let one = match before {
                Some(before) if rest(&before) => before,
                before => match self.sources.groups.allowed(&group, &minors) {
                    Ok(minors) => Asked {
                        first: before.as_ref().map_or(now, |before| before.first),
                        last: now,
                        minors,
                    },
                    // It has ended meanwhile.
                    Err(e) if e.kind() == ErrorKind::NotFound => continue,
                    Err(e) if e.kind() == ErrorKind::Interrupted => match before {
                        Some(before) => before,
                        None => {
                            blind = Some(format!("of step {}.{}: {e}", key.0, key.1));
                            continue;
                        }
                    },
                    Err(e) => return Err(format!("{}: {e}", group.folder.display())),
                },
            };
            let open = numbers
                .iter()
                .filter(|(minor, _)| one.minors.contains(minor));
            found.push(Group {
                job: key.0.clone(),
                step: key.1.clone(),
                gpus: open.map(|(_, gres)| *gres).collect(),
            });
            asked.insert(key, one);
        }
        self.asked = asked;
        Ok((found, blind))
    }
}

fn boards(library: &dyn GpuLibrary, numbering: &Numbering, divided: NvmlSet) -> Answer<Vec<Board>> {
    let found = gpus::found(library, numbering, divided)?;
    let board = |gpu: gpus::GpuIdentity| {
        let identity = library.identity(gpu.nvml.into()).ok();
        Some(Board {
            gres: gpu.number.gres()?,
            nvml: gpu.nvml.into(),
            minor: identity.and_then(|who| who.minor),
        })
    };
    Ok(found.into_iter().filter_map(board).collect())
}
