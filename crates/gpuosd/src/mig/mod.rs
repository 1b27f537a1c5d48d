//! Makes and destroys MIG instances: one thread for each GPU of the pool, which does one thing after another. The driver
//! takes its time there, or hangs, and nobody else waits. [`pool`] is what the loop keeps of it.

pub mod choose;
pub mod load;
pub mod pool;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::mig::Shown;
use gpuos_core::mig::carve;
use gpuos_host::hardware::nvml::{self, Error, GpuLibrary, RecoveryAction};
use gpuos_host::steps::job_processes::{Proc, Processes};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::{MigPlacement, Profile};

use self::load::Loads;
use crate::gpus::Library;
use crate::sink::Sink;
use crate::slices::{Layout, Slices};

/// How long a library that is closed for a reset of another GPU is waited for.
const RESET: Duration = Duration::from_secs(120);
/// Wait between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// One thing to do with a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// A call of the driver: [`carve::Effect::MakeGpu`] to [`carve::Effect::DestroyGpu`].
    Call(carve::Effect),
    /// What NVML shows.
    Probe,
    /// How much memory of each instance is used, and how busy it is.
    Memory,
    /// Turn MIG mode on or off.
    Mode(bool),
    /// Write the slice files.
    Files(Layout),
    /// Ask processes to end that held an instance, or kill them.
    Signal {
        /// The processes.
        pids: Vec<u32>,
        /// Kill them.
        kill: bool,
    },
}

/// What NVML shows of a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// All GPU instances.
    pub shown: Vec<Shown>,
    /// Processes by GPU instance.
    pub pids: BTreeMap<u32, Vec<u32>>,
    /// Who they are, in words.
    pub names: BTreeMap<u32, String>,
    /// By GPU instance with processes: the job that all of them belong to.
    pub jobs: BTreeMap<u32, JobId>,
    /// Its MIG mode is off.
    pub whole: bool,
    /// How it can be divided, by its driver.
    pub profiles: Vec<Profile>,
    /// Why no instance is to be made on it, in a sentence.
    pub unfit: Option<String>,
}

/// Total and used MiB of an instance, or why that is not known.
pub type Memory = Result<[u64; 2], String>;
/// The same of all instances of a GPU, by UUID, or why nothing is known of the GPU.
pub type Memories = Result<BTreeMap<String, Memory>, String>;

/// Why MIG mode is as it was, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotSwitched {
    /// Somebody is on the GPU, who may go.
    Used(String),
    /// It would be so again.
    Refused(String),
}

/// What the loop is told; each with NVML's index of the GPU.
#[derive(Debug)]
pub enum Notice {
    /// NVML says that instances were made or destroyed.
    Changed,
    /// The journal of this revision is safe on the disk, or why not.
    Saved(u64, Result<(), String>),
    /// How a call ended.
    Done(carve::Answer),
    /// What NVML shows, or why it shows nothing.
    Shown(Result<Box<View>, String>),
    /// How much memory of each instance is used, and how busy it is.
    Memory(Memories, Loads),
    /// MIG mode is on or off now, or why not.
    Mode(bool, Result<(), NotSwitched>),
    /// Slice files are written, or why not.
    Files(Layout, Result<(), String>),
}

/// The threads.
pub struct GpuThreads {
    /// NVIDIA's library.
    pub library: Arc<Library>,
    /// Where slice files go.
    pub slices: Slices,
    /// Who processes are.
    pub proc: Proc,
    /// To the loop.
    pub to: Sink<(NvmlIndex, Notice)>,
    /// By GPU.
    pub threads: Mutex<BTreeMap<NvmlIndex, Sender<Task>>>,
}

impl GpuThreads {
    /// Has something done with a GPU, after all that it was told before.
    pub fn begin(self: &Arc<GpuThreads>, gpu: NvmlIndex, task: Task) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = threads.entry(gpu).or_insert_with(|| self.start(gpu));
        if sender.send(task).is_err() {
            tracing::error!(
                gpu = u8::from(gpu),
                "the thread that makes MIG instances has ended"
            );
        }
    }

    fn start(self: &Arc<GpuThreads>, gpu: NvmlIndex) -> Sender<Task> {
        let (tasks, from) = channel();
        let hands = self.clone();
        let name = format!("mig{gpu}");
        let run = move || {
            GpuThread {
                hands: &hands,
                gpu,
                held: BTreeMap::new(),
            }
            .run(&from)
        };
        if let Err(e) = thread::Builder::new().name(name).spawn(run) {
            tracing::error!(gpu = u8::from(gpu), "no thread for MIG instances: {e}");
        }
        tasks
    }
}

/// One thread.
struct GpuThread<'a> {
    hands: &'a GpuThreads,
    gpu: NvmlIndex,
    /// When the processes were started that kept an instance from being destroyed: a signal is for these, and for
    /// none that has such a number later.
    held: BTreeMap<u32, u64>,
}

impl GpuThread<'_> {
    fn run(mut self, from: &Receiver<Task>) {
        for task in from {
            let told = match task {
                Task::Call(call) => Notice::Done(self.call(&call)),
                Task::Probe => Notice::Shown(self.probe().map(Box::new)),
                Task::Memory => Notice::Memory(self.memory(), self.load()),
                Task::Mode(on) => Notice::Mode(on, self.mode(on)),
                Task::Files(layout) => {
                    let written = self.files(&layout);
                    Notice::Files(layout, written)
                }
                Task::Signal { pids, kill } => {
                    self.signal(&pids, kill);
                    continue;
                }
            };
            if !self.hands.to.send((self.gpu, told)) {
                return;
            }
        }
    }

    fn library(&self) -> Result<Arc<dyn GpuLibrary>, String> {
        let deadline = Instant::now() + RESET;
        loop {
            match self.hands.library.get() {
                Err(Error::InUse) if Instant::now() < deadline => thread::sleep(PAUSE),
                told => return told.map_err(|e| e.to_string()),
            }
        }
    }

    fn call(&mut self, call: &carve::Effect) -> carve::Answer {
        let refused = |why| carve::Answer::Refused { why };
        let nvml = match self.library() {
            Ok(nvml) => nvml,
            Err(why) => return refused(why),
        };
        let (nvml, gpu) = (&*nvml, self.gpu);
        let gone = |told: nvml::Answer<()>, hand: &mut Self, gi| match told {
            Ok(()) => carve::Answer::Gone,
            Err(Error::InUse) => carve::Answer::Busy {
                pids: hand.holders(nvml, gi),
            },
            Err(e) => refused(e.to_string()),
        };
        match *call {
            carve::Effect::MakeGpu { profile, placement } => {
                match nvml.mig_make_gpu(gpu.into(), profile, placement) {
                    Ok(gi) => carve::Answer::GpuMade { gi },
                    Err(e) => refused(self.in_the_way(nvml, placement, &e)),
                }
            }
            carve::Effect::MakeCompute { gi } => match nvml.mig_make_compute(gpu.into(), gi) {
                Ok((ci, uuid)) => carve::Answer::ComputeMade { ci, uuid },
                Err(e) => refused(e.to_string()),
            },
            carve::Effect::DestroyCompute { gi } => {
                let told = nvml.mig_destroy_compute(gpu.into(), gi);
                gone(told, self, gi)
            }
            carve::Effect::DestroyGpu { gi } => {
                let told = nvml.mig_destroy_gpu(gpu.into(), gi);
                gone(told, self, gi)
            }
            _ => refused("it is no call of the driver".into()),
        }
    }

    /// The processes on an instance; from now on they are known.
    fn holders(&mut self, nvml: &dyn GpuLibrary, gi: u32) -> Vec<u32> {
        let on = pids(nvml, self.gpu).remove(&gi).unwrap_or_default();
        self.held.retain(|pid, _| on.contains(pid));
        for pid in &on {
            if let Ok(Some(who)) = self.hands.proc.who(*pid) {
                self.held.entry(*pid).or_insert(who.started);
            }
        }
        on
    }

    /// Why an instance could not be made: what the driver says, and what is in its slices.
    fn in_the_way(&self, nvml: &dyn GpuLibrary, placement: MigPlacement, error: &Error) -> String {
        let mut text = format!("memory slices {}: {error}", pool::slices_text(placement));
        let shown = nvml.mig_instances(self.gpu.into()).unwrap_or_default();
        for instance in shown.iter().filter(|one| one.placement.overlaps(placement)) {
            text.push_str(&format!(
                "; GPU instance {} is in slices {}",
                instance.gi,
                pool::slices_text(instance.placement)
            ));
        }
        text
    }

    /// A process in words: `process 4711 (python) of user 1000, job 17`, or `unit jupyter.service`.
    fn name(&self, pid: u32) -> String {
        let Ok(Some(who)) = self.hands.proc.who(pid) else {
            return format!("process {pid}");
        };
        let mut text = format!("process {pid} ({}) of user {}", who.program, who.uid);
        match who.step {
            Some(step) => text.push_str(&format!(", job {}", step.job)),
            None => {
                if let Some(unit) = self.hands.proc.unit(pid) {
                    text.push_str(&format!(", unit {unit}"));
                }
            }
        }
        text
    }

    fn job(&self, pid: u32) -> Option<JobId> {
        let who = self.hands.proc.who(pid).ok()??;
        who.step.map(|step| step.job)
    }

    fn probe(&self) -> Result<View, String> {
        let nvml = self.library()?;
        let (nvml, gpu) = (&*nvml, self.gpu);
        let identity = nvml.identity(gpu.into()).map_err(|e| e.to_string())?;
        if !identity.mig.is_some_and(|mig| mig.on) {
            return Ok(View {
                whole: true,
                unfit: Some(format!(
                    "GPU {gpu} is in a [[mig.pool]] of gpuos.toml and not in MIG mode: `nvidia-smi -i {gpu} -mig 1`"
                )),
                ..View::default()
            });
        }
        let mut shown = nvml.mig_instances(gpu.into()).map_err(|e| e.to_string())?;
        let on = pids(nvml, gpu);
        for instance in &mut shown {
            instance.busy |= on.contains_key(&instance.gi);
        }
        let wants = nvml
            .recovery_action(gpu.into())
            .unwrap_or(RecoveryAction::None);
        let all = on.values().flatten();
        let names = all.map(|pid| (*pid, self.name(*pid))).collect();
        let jobs = on.iter().filter_map(|(gi, pids)| {
            let mut jobs = pids.iter().map(|pid| self.job(*pid));
            let first = jobs.next()??;
            jobs.all(|job| job.as_ref() == Some(&first))
                .then_some((*gi, first))
        });
        let jobs = jobs.collect();
        Ok(View {
            shown,
            names,
            jobs,
            pids: on,
            whole: false,
            profiles: nvml.mig_profiles(gpu.into()).unwrap_or_default(),
            unfit: (wants != RecoveryAction::None)
                .then(|| format!("GPU {gpu}: the driver wants: {}", wants.word())),
        })
    }

    fn mode(&self, on: bool) -> Result<(), NotSwitched> {
        let nvml = self.library().map_err(NotSwitched::Refused)?;
        nvml.set_mig_mode(self.gpu.into(), on).map_err(|error| {
            if error != Error::InUse {
                return NotSwitched::Refused(error.to_string());
            }
            let on = nvml.processes(self.gpu.into()).unwrap_or_default();
            let names: Vec<String> = on.iter().take(4).map(|one| self.name(one.pid)).collect();
            NotSwitched::Used(match names.is_empty() {
                true => error.to_string(),
                false => format!("it is used by {}", names.join(", ")),
            })
        })
    }

    fn memory(&self) -> Memories {
        let found = self.library()?.mig_memory(self.gpu.into());
        let each = found.map_err(|e| e.to_string())?.into_iter();
        let told = |memory: nvml::Answer<[u64; 2]>| memory.map_err(|e| e.to_string());
        Ok(each.map(|(uuid, memory)| (uuid, told(memory))).collect())
    }

    fn load(&self) -> Loads {
        load::measure(&*self.library()?, self.gpu)
    }

    fn files(&self, layout: &Layout) -> Result<(), String> {
        // Device files have the driver's number, which NVML's index need not be.
        let slices = &self.hands.slices;
        let usual = u32::from(u8::from(self.gpu));
        match self.library() {
            Ok(nvml) => {
                let minor = nvml
                    .identity(self.gpu.into())
                    .ok()
                    .and_then(|one| one.minor);
                slices.write(self.gpu, minor.unwrap_or(usual), layout)
            }
            Err(why) => {
                // slurmd waits for the files, even where the library is not there yet.
                if !slices.file(self.gpu, 0).exists() {
                    slices.write(self.gpu, usual, &vec![None; layout.len()])?;
                }
                Err(why)
            }
        }
    }

    fn signal(&self, pids: &[u32], kill: bool) {
        for pid in pids {
            let Some(started) = self.held.get(pid) else {
                continue;
            };
            let sent = match kill {
                true => self.hands.proc.kill(*pid, *started),
                false => self.hands.proc.terminate(*pid, *started),
            };
            if let Err(e) = sent {
                tracing::warn!(
                    gpu = u8::from(self.gpu),
                    "process {pid} cannot be ended: {e}"
                );
            }
        }
    }
}

fn pids(nvml: &dyn GpuLibrary, gpu: NvmlIndex) -> BTreeMap<u32, Vec<u32>> {
    let mut by_instance: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for process in nvml.processes(gpu.into()).unwrap_or_default() {
        if let Some(gi) = process.gpu_instance {
            by_instance.entry(gi).or_default().push(process.pid);
        }
    }
    by_instance
}
