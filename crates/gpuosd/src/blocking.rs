//! Threads that do what waits: one asks and tells the workload manager, one resets and checks GPUs, so that a controller that
//! does not answer holds up no reset, and a reset no kill.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::Event;
use gpuos_host::hardware::nvml::{self, GpuLibrary, RecoveryAction};
use gpuos_host::{Machine, Output, config_file};
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::Outcome;
use gpuos_workload::job::Job;
use gpuos_workload::node::NodeRecord;

use crate::gpus::{GpuIdentity, Library};
use crate::mig::pool::{self, Switchable};
use crate::numbering::Numbering;
use crate::queue::Task;
use crate::sink::Sink;
use crate::switchable_file;

/// How long the library may take to be let go before a reset.
const LET_GO: Duration = Duration::from_secs(15);

/// What came of a [`Task`].
#[derive(Debug)]
pub enum Answer {
    /// Of an action.
    Act(Outcome),
    /// The node's record.
    Show(Result<Box<NodeRecord>, Outcome>),
    /// Jobs of the node.
    Jobs(Result<Vec<Job>, Outcome>),
    /// One job; `None`: slurmctld knows it no more.
    Job(Result<Option<Box<Job>>, Outcome>),
    /// gpuos.toml, or what is wrong with it; `None`: slurmctld, which does not answer, has to say where it is.
    /// And why spank_gpuos cannot be told which GPUs are MIG-switchable, if so.
    Config(Result<Option<Box<Config>>, String>, Option<String>),
}

/// What the thread that asks the workload manager tells.
#[derive(Debug)]
pub enum Notice {
    /// A task came to its end.
    Answer(Task, Answer),
    /// Which user the controller of the workload manager runs as, by its word.
    WorkloadUser(u32),
}

/// What the threads need to know.
pub struct Setting {
    /// The node's name.
    pub node: String,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--reset-command`.
    pub reset: String,
    /// `--check-command`.
    pub check: String,
    /// Longest time for either.
    pub limit: Duration,
    /// The file that tells spank_gpuos which GPUs are MIG-switchable.
    pub switchable: PathBuf,
}

/// Starts the thread that asks and tells the workload manager.
///
/// # Errors
/// The thread cannot be made.
pub fn workload(
    manager: Arc<dyn WorkloadManager>,
    machine: Arc<dyn Machine + Send + Sync>,
    setting: Arc<Setting>,
    to: Sink<Notice>,
) -> std::io::Result<Sender<Task>> {
    let (tasks, from) = channel::<Task>();
    let run = move || {
        let mut asked = false;
        for task in from {
            let answer = do_task(&*manager, &*machine, &setting, &task);
            // Once it is known that slurmctld answers: one that does not would be waited for.
            if !asked && matches!(answer, Answer::Show(Ok(_))) {
                asked = true;
                let uid = manager.own_user().map(Notice::WorkloadUser);
                if uid.is_some_and(|uid| !to.send(uid)) {
                    return;
                }
            }
            if !to.send(Notice::Answer(task, answer)) {
                return;
            }
        }
    };
    thread::Builder::new().name("workload".into()).spawn(run)?;
    Ok(tasks)
}

fn do_task(
    manager: &dyn WorkloadManager,
    machine: &dyn Machine,
    setting: &Setting,
    task: &Task,
) -> Answer {
    let node = &setting.node;
    match task {
        Task::Act(action, _) => Answer::Act(manager.act(action)),
        Task::Show => Answer::Show(manager.node().map(Box::new)),
        Task::Jobs(_) => Answer::Jobs(manager.jobs()),
        Task::Job(job) => Answer::Job(manager.job(job).map(|job| job.map(Box::new))),
        Task::Config => {
            let found = config_file::found(machine, setting.config.as_deref(), || {
                manager.config_folder()
            });
            let mut untold = None;
            let config = match found {
                Ok(Some(config)) => {
                    // A step that comes between finds the file first: it waits for nothing rather than not at all.
                    let pool = config.mig.pool_of(node);
                    let switchable =
                        pool.map_or_else(Switchable::new, |(pool, _)| pool::switchable(pool));
                    untold = switchable_file::write(&setting.switchable, &switchable).err();
                    Ok(Some(Box::new(config)))
                }
                other => other.map(|_| None).map_err(|e| format!("{e:#}")),
            };
            Answer::Config(config, untold)
        }
    }
}

/// Something to do with a GPU.
#[derive(Clone, Debug)]
pub enum Device {
    /// Reset it.
    Reset(GpuIdentity),
    /// Look whether it can serve.
    Check(GpuIdentity),
}

/// Starts the thread for resets and checks.
///
/// # Errors
/// The thread cannot be made.
pub fn device(
    machine: Arc<dyn Machine + Send + Sync>,
    (library, numbering): (Arc<Library>, Arc<Numbering>),
    setting: Arc<Setting>,
    to: Sink<Event>,
) -> std::io::Result<Sender<Device>> {
    let (tasks, from) = channel();
    let worker = Worker {
        machine,
        library,
        numbering,
        setting,
    };
    let run = move || worker.run(&from, &to);
    thread::Builder::new().name("device".into()).spawn(run)?;
    Ok(tasks)
}

struct Worker {
    machine: Arc<dyn Machine + Send + Sync>,
    library: Arc<Library>,
    numbering: Arc<Numbering>,
    setting: Arc<Setting>,
}

impl Worker {
    fn run(&self, from: &Receiver<Device>, to: &Sink<Event>) {
        for task in from {
            let event = match task {
                Device::Reset(gpu) => {
                    let (ok, message) = outcome(self.reset(&gpu));
                    let gpu = gpu.number;
                    Event::ResetDone { gpu, ok, message }
                }
                Device::Check(gpu) => {
                    let (ok, message) = outcome(self.check(&gpu));
                    let gpu = gpu.number;
                    Event::CheckDone { gpu, ok, message }
                }
            };
            if !to.send(event) {
                return;
            }
        }
    }

    /// Resets a GPU. The driver refuses while anybody has it open, this daemon too.
    fn reset(&self, gpu: &GpuIdentity) -> Result<String, String> {
        let pooled = self.numbering.divided().contains(gpu.nvml);
        let switchable = self.numbering.switchable().contains(gpu.nvml);
        match (gpu.number.is_of_pool(), pooled) {
            // Where it was numbered before the pool was: every instance there would be lost.
            (false, true) => return Err(format!("NVML's GPU {} is in a [[mig.pool]]", gpu.nvml)),
            (true, false) => {
                return Err(format!("NVML's GPU {} is in no [[mig.pool]]", gpu.nvml));
            }
            (false, false) if !switchable => {}
            _ => {
                let library = self.library.get().map_err(|e| e.to_string())?;
                nobody_on(&*library, gpu)?;
            }
        }
        let _closed = self.library.close(LET_GO)?;
        self.command(&self.setting.reset, gpu)
    }

    fn check(&self, gpu: &GpuIdentity) -> Result<String, String> {
        let library = self.library.get().map_err(|e| e.to_string())?;
        verify_gpu(&*library, gpu)?;
        match self.setting.check.is_empty() {
            true => Ok(String::new()),
            false => self.command(&self.setting.check, gpu),
        }
    }

    fn command(&self, command: &str, gpu: &GpuIdentity) -> Result<String, String> {
        let words = words(command, gpu);
        let (program, args) = words.split_first().ok_or("the command is empty")?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = self.machine.run_within(self.setting.limit, program, &args);
        match output {
            Ok(output) if output.ok => Ok(last_line(&output)),
            Ok(output) => Err(format!("`{}`: {}", words.join(" "), last_line(&output))),
            Err(e) => Err(format!("{e:#}")),
        }
    }
}

fn outcome(done: Result<String, String>) -> (bool, String) {
    match done {
        Ok(message) => (true, message),
        Err(message) => (false, message),
    }
}

/// What the library says of a GPU. An error, too, where another board has its place now.
fn still_there(library: &dyn GpuLibrary, gpu: &GpuIdentity) -> Result<nvml::Identity, String> {
    let identity = library.identity(gpu.nvml.into());
    let identity = identity.map_err(|e| e.to_string())?;
    if identity.uuid != gpu.uuid {
        return Err(format!("it is {} now and was {}", identity.uuid, gpu.uuid));
    }
    Ok(identity)
}

/// Whether a GPU of the pool may be reset: every instance would be lost, and whoever is on one with it.
fn nobody_on(library: &dyn GpuLibrary, gpu: &GpuIdentity) -> Result<(), String> {
    still_there(library, gpu)?;
    let on_it = |e: nvml::Error| format!("who is on it cannot be told: {e}");
    let instances = library.mig_instances(gpu.nvml.into()).map_err(on_it)?.len();
    let processes = library.processes(gpu.nvml.into()).map_err(on_it)?.len();
    match (instances, processes) {
        (0, 0) => Ok(()),
        _ => Err(format!(
            "it has {instances} MIG instances and {processes} processes"
        )),
    }
}

/// What a GPU has to show before it gets jobs again.
fn verify_gpu(library: &dyn GpuLibrary, gpu: &GpuIdentity) -> Result<(), String> {
    let identity = still_there(library, gpu)?;
    if gpu.number.is_of_pool() && !identity.mig.is_some_and(|mig| mig.on) {
        let nvml = gpu.nvml;
        return Err(format!(
            "it is not in MIG mode (a reset may end it): `nvidia-smi -i {nvml} -mig 1`"
        ));
    }
    let sample = library.sample(gpu.nvml.into()).map_err(|e| e.to_string())?;
    if let Some(action) = sample
        .recovery_action
        .map(RecoveryAction::from_nvml)
        .filter(|action| *action != RecoveryAction::None)
    {
        return Err(format!("the driver still wants: {}", action.word()));
    }
    if sample.rows_pending == Some(true) || sample.pages_pending == Some(true) {
        return Err("a memory row or page still waits to be replaced".into());
    }
    if sample.rows_failed == Some(true) {
        return Err("a memory row could not be replaced".into());
    }
    Ok(())
}

/// The words of a command, with what stands for the GPU put in.
fn words(command: &str, gpu: &GpuIdentity) -> Vec<String> {
    let put = |word: &str| {
        word.replace("{index}", &gpu.nvml.to_string())
            .replace("{pci}", &gpu.pci)
            .replace("{uuid}", &gpu.uuid)
    };
    command.split_whitespace().map(put).collect()
}

fn last_line(output: &Output) -> String {
    let lines = output.stdout.lines().chain(output.stderr.lines());
    let mut lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines
        .next_back()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_words_and_the_gpu_stands_in_them_whole() {
        let gpu = GpuIdentity {
            number: 5u8.try_into().unwrap(),
            nvml: 3.try_into().unwrap(),
            uuid: "GPU-1".into(),
            name: "NVIDIA H100".into(),
            pci: "0000:1b:00.0".into(),
        };
        let words = words("nvidia-smi -r -i {pci} --x={index}/{uuid}", &gpu);
        assert_eq!(
            words,
            ["nvidia-smi", "-r", "-i", "0000:1b:00.0", "--x=3/GPU-1"]
        );
    }
}
