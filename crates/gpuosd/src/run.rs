//! The whole daemon: threads, signals, and the loop.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{memory_socket, switchable_file as beside};
use gpuos_daemon::door::Door;
use gpuos_daemon::places;
use gpuos_daemon::start::Workload;
use gpuos_host::hardware::discover::Sysfs;
use gpuos_host::hardware::nvml::{Driver, GpuLibrary};
use gpuos_host::pbs::Mom;
use gpuos_host::slurm::Slurm;
use gpuos_host::slurm::group_names::GroupNames;
use gpuos_host::socket::{self, BindError, RequestHandler};
use gpuos_host::steps::device_groups::{Cgroups, DeviceGroups};
use gpuos_host::steps::job_processes::{Proc, Processes};
use gpuos_host::steps::own_groups::OwnGroups;
use gpuos_host::{Machine, ThisMachine};
use gpuos_memory::lease;
use gpuos_workload::WorkloadManager;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::blocking::{self, Setting};
use crate::chosen_gpus::ChosenGpus;
use crate::confine::{Confiner, DeviceFiles, PbsProcesses, Unasked};
use crate::disk::Disk;
use crate::event_loop::{EventLoop, Message, Ports, Start};
use crate::gpus::{self, Library};
use crate::host;
use crate::isolation;
use crate::known::Known;
use crate::memory;
use crate::memory::door::MemoryDoor;
use crate::mig::GpuThreads;
use crate::mps::Runner;
use crate::mps::groups::Groups;
use crate::numbering::Numbering;
use crate::options::Options;
use crate::peers;
use crate::sink::Sink;
use crate::slices::Slices;
use crate::socket_handler::SocketHandler;
use crate::store::{self, Loaded};
use crate::switchable_file;

/// Messages that wait for the loop; who has more to say, waits.
const WAITING: usize = 1024;
/// The rules are told at least that often that time goes by.
const TICK: Duration = Duration::from_secs(1);
/// Longest time for a reset or check command.
const COMMAND: Duration = Duration::from_secs(110);
/// How long the other nodes may take to be told that this gpuosd ends.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long the last state may take to be written.
const LAST: Duration = Duration::from_secs(5);

/// Runs until a signal ends it.
///
/// # Errors
/// Another gpuosd runs here, or threads cannot be made. All else is a trouble that the daemon lives with.
pub fn run(options: &Options) -> Result<()> {
    let node = options.node_name();
    let own = [
        ("--state-dir", &options.state_dir),
        ("--runtime-dir", &options.runtime_dir),
        ("--slices", &options.slices),
    ];
    for (flag, folder) in own {
        if let Some(why) = places::unsafe_to_write(folder) {
            tracing::error!(
                "{flag} {}: {why}; name a folder of root's",
                folder.display()
            );
        }
    }
    let saved = match store::load(&options.state_dir) {
        Ok(Loaded::State(saved)) => Some(*saved),
        Ok(Loaded::Nothing) => None,
        Ok(Loaded::Damaged {
            moved_to: kept,
            why,
        }) => {
            tracing::error!(
                "the saved state is damaged ({why}) and is kept as {}; GPUs that Slurm's node record \
                 shows as out stay out",
                kept.display()
            );
            None
        }
        Err(e) => {
            tracing::error!(
                "{}: {e}; GPUs that Slurm's node record shows as out stay out",
                options.state_dir.join(store::NAME).display()
            );
            None
        }
    };
    let path = options.runtime_dir.join(socket::NAME);
    let mut door = Door::new(path);
    let (to, from) = sync_channel(WAITING);
    let known = Known::default();
    let machine: Arc<dyn Machine + Send + Sync> = Arc::new(ThisMachine);
    // The workload manager is told which job has which group, and who looks at groups asks here.
    let names = Arc::new(GroupNames::default());
    // The one place that knows which workload manager this is.
    let manager: Arc<dyn WorkloadManager> = match options.workload {
        Workload::Slurm => Arc::new(Slurm::new(machine.clone(), &node).with_group_names(&names)),
        Workload::Pbs => {
            let folder = options.state_dir.clone();
            Arc::new(Mom::remembering(&node, Box::new(ChosenGpus { folder })))
        }
    };
    let files = Arc::new(DeviceFiles::default());
    let device_files = Arc::clone(&files);
    let confiner = confiner(options, &node, &files);
    let handler: Arc<dyn RequestHandler> = Arc::new(SocketHandler {
        node: node.clone(),
        known: known.clone(),
        state_dir: options.state_dir.clone(),
        manager: manager.clone(),
        confiner: confiner.clone(),
        to: Sink::of(&to),
        renumbered: AtomicBool::new(false),
    });
    // Two daemons on one node would undo each other's work.
    if let Err(e @ BindError::InUse) = door.open(&handler) {
        return Err(e).with_context(|| door.path().display().to_string());
    }
    let disk = Disk::start(options.state_dir.clone())?;
    let switchable = PathBuf::from(beside(&door.path().to_string_lossy()));
    if let Some(saved) = &saved
        && !saved.mig.switchable.is_empty()
    {
        // Before the node's steps come: gpuos.toml may be read later than that.
        switchable_file::write(&switchable, &saved.mig.switchable)
            .unwrap_or_else(|e| tracing::error!("{e}"));
    }
    let setting = Arc::new(Setting {
        node: node.clone(),
        config: options.config.clone(),
        reset: options.reset_command.clone(),
        check: options.check_command.clone(),
        limit: COMMAND,
        switchable,
    });
    let nvml = options.nvml.clone();
    let open = move || {
        let library: Arc<dyn GpuLibrary> = Arc::new(Driver::open(Some(&nvml))?);
        Ok(library)
    };
    let library = Arc::new(Library::new(Box::new(open)));
    let interval = Duration::from_secs(options.interval);
    let first = config_at_first(options.config.as_deref(), &*manager);
    let heartbeat = (first.heartbeat, &*options.proc);
    let peers = peers::start(&node, manager.clone(), heartbeat, Sink::of(&to))?;
    let numbers = manager.clone();
    let read = move || numbers.numbering();
    let numbering = Arc::new(Numbering::new(Box::new(read)));
    let (watched, groups) = watched(options, (&node, &names), confiner.as_ref(), &manager);
    let sources = isolation::Sources {
        library: library.clone(),
        numbering: numbering.clone(),
        processes: watched,
        groups,
        files,
    };
    let askers = askers(options, &names, confiner.as_ref());
    if let Some(confiner) = confiner {
        confiner.start_sweeping()?;
    }
    let gpus = (library.clone(), numbering.clone());
    let members = memory::programs::Members::default();
    let mut programs = MemoryDoor::new(
        PathBuf::from(memory_socket(&door.path().to_string_lossy())),
        Box::new(askers),
        members.clone(),
        Sink::of(&to),
    );
    programs.check();
    let ports = Ports {
        numbering: numbering.clone(),
        peers: peers.clone(),
        workload: blocking::workload(
            manager.clone(),
            machine.clone(),
            setting.clone(),
            Sink::of(&to),
        )?,
        manager,
        device: blocking::device(machine, gpus, setting, Sink::of(&to))?,
        isolation: isolation::start(sources, interval, Sink::of(&to))?,
        file_systems: host::start(&options.sysfs, &options.kernel_log, interval, Sink::of(&to))?,
        limits: crate::limits::start(library.clone(), Sink::of(&to))?,
        mps: mps(options, &node, &device_files, saved.as_ref(), &to),
        mig: Arc::new(GpuThreads {
            library: library.clone(),
            slices: Slices {
                folder: options.slices.clone(),
                caps: options.caps.clone(),
                minors: options.mig_minors.clone(),
                majors: options.proc.join("devices"),
            },
            proc: Proc::at(&options.proc),
            to: Sink::of(&to),
            threads: Mutex::default(),
        }),
        memory: look_after_programs(options, (&node, &names, &first), members, &to)?,
        to: to.clone(),
        disk,
        known,
        wall: Box::new(wall_ms),
        steady: Box::new(Instant::now),
    };
    let start = Start {
        node: node.clone(),
        boot: boot(&options.boot_id),
        saved,
        polls: (interval, options.runtime_dir.join(socket::MOVER)),
    };
    let mut events = EventLoop::new(start, ports);
    events.begin_with(&first);
    events.answer_within(Duration::from_millis(options.answer_within));
    let sysfs = Sysfs::at(&options.sysfs);
    gpus::start(&library, &numbering, sysfs, interval, &Sink::of(&to))?;
    signals(to)?;
    tracing::info!("gpuosd {} for node {node}", crate::RELEASE);
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    serve(events, &from, (&mut door, &mut programs), &handler);
    peers.end(FAREWELL);
    programs.close();
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    door.close();
    Ok(())
}

/// Processes of this machine.
fn processes(options: &Options, names: &Arc<GroupNames>) -> Proc {
    Proc::at(&options.proc)
        .with_groups_below(&options.slurm_groups)
        .with_group_names(names)
}

/// Processes that ask for memory, with the jobs whose they are.
fn askers(options: &Options, names: &Arc<GroupNames>, confiner: Option<&Arc<Confiner>>) -> Proc {
    match confiner {
        None => processes(options, names),
        Some(confiner) => Proc::at(&options.proc).with_own_groups(confiner.path()),
    }
}

/// What starts and ends MPS daemons. Those of a gpuosd whose state is lost are ended.
fn mps(
    options: &Options,
    node: &str,
    files: &Arc<DeviceFiles>,
    saved: Option<&store::Saved>,
    to: &SyncSender<Message>,
) -> Arc<Runner> {
    let groups = own_groups(options, node);
    let runner = Arc::new(Runner {
        command: options.mps_command.clone(),
        folder: options.runtime_dir.join("mps"),
        patience: Duration::from_millis(options.answer_within),
        proc: Proc::at("/proc"),
        groups: Groups::of(groups, files.clone(), &options.proc),
        to: Sink::of(to),
    });
    let known = saved.map_or_else(BTreeSet::new, |saved| {
        let served = saved.mps.servers().keys();
        served.map(ToString::to_string).collect()
    });
    runner.end_unknown(&known);
    runner
}

/// Control groups of gpuosd's own on this node, or why there are none.
fn own_groups(options: &Options, node: &str) -> Result<OwnGroups, String> {
    let caps = (&*options.caps, &*options.mig_minors);
    OwnGroups::at(&options.cgroup, node, &options.proc, caps)
}

/// What keeps programs of jobs to their GPUs, where the workload manager does not.
fn confiner(options: &Options, node: &str, files: &Arc<DeviceFiles>) -> Option<Arc<Confiner>> {
    match options.workload {
        Workload::Slurm => None,
        Workload::Pbs => {
            let confiner = Confiner::new(
                own_groups(options, node),
                files.clone(),
                options.mig_minors.clone(),
            );
            Some(Arc::new(confiner))
        }
    }
}

/// Where it is looked who is on the GPUs, and what steps may open.
fn watched(
    options: &Options,
    (node, names): (&str, &Arc<GroupNames>),
    confiner: Option<&Arc<Confiner>>,
    manager: &Arc<dyn WorkloadManager>,
) -> (Box<dyn Processes>, Box<dyn DeviceGroups>) {
    match confiner {
        None => (
            Box::new(processes(options, names)),
            Box::new(groups(options, node, names)),
        ),
        Some(confiner) => {
            let processes = PbsProcesses {
                proc: Proc::at(&options.proc).with_own_groups(confiner.path()),
                manager: manager.clone(),
            };
            (Box::new(processes), Box::new(Unasked(confiner.clone())))
        }
    }
}

/// Slurm's control groups.
fn groups(options: &Options, node: &str, names: &Arc<GroupNames>) -> Cgroups {
    Cgroups::at(&options.cgroup, &options.runtime_dir, node).with_group_names(names)
}

/// Looks after programs with memory in tiers, and after host memory.
fn look_after_programs(
    options: &Options,
    (node, names, config): (&str, &Arc<GroupNames>, &Config),
    members: memory::programs::Members,
    to: &SyncSender<Message>,
) -> Result<memory::Ports> {
    let meminfo = std::fs::read_to_string(options.proc.join("meminfo")).unwrap_or_default();
    let places = memory::pressure::Places {
        proc: options.proc.clone(),
        sysfs: options.sysfs.clone(),
        groups: groups(options, node, names),
    };
    Ok(memory::Ports {
        pressure: memory::pressure::start(places, Sink::of(to))?,
        caller: memory::caller::start(caller(options), Sink::of(to))?,
        watch: memory::watch::start(Box::new(processes(options, names)), Sink::of(to))?,
        members,
        host: memory::host_memory(&meminfo),
        config: lease::Config {
            quantum_ms: options.memory_turn * 1000,
            rate: options.memory_rate * 1_000_000_000,
            nvme_rate: nvme_rate(config),
            ..lease::Config::default()
        },
        nvme: nvme(config, options),
    })
}

/// With what the driver is called.
fn caller(options: &Options) -> memory::caller::Caller {
    memory::caller::Caller {
        // Also where another release was installed meanwhile.
        program: "/proc/self/exe".into(),
        library: options.cuda.clone(),
        proc: options.proc.clone(),
    }
}

/// What a disk writes at least, in bytes a second, so that nobody is ended because it is slow: half of what gpuos_mover may take of it, where that is
/// said.
fn nvme_rate(config: &Config) -> u64 {
    const SLOW: u64 = 200_000_000;
    let rate = config.parking.as_ref().map_or(0, |it| it.rate_mib);
    match u64::from(rate) << 19 {
        0 => SLOW,
        half => half.min(SLOW),
    }
}

/// What may be lent of the site's folder.
fn nvme(config: &Config, options: &Options) -> memory::Nvme {
    let bytes = config
        .parking
        .as_ref()
        .map_or(0, |it| u64::from(it.gib) << 30);
    let counted = config
        .parking_gres()
        .map(|gres| (gres.name.clone(), u64::from(gres.gib) << 30));
    let mover = options.runtime_dir.join(socket::MOVER);
    memory::Nvme {
        bytes,
        counted: counted.unwrap_or_default(),
        mover: memory_socket(&mover.to_string_lossy()),
    }
}

fn serve(
    mut events: EventLoop,
    from: &Receiver<Message>,
    (door, programs): (&mut Door, &mut MemoryDoor),
    handler: &Arc<dyn RequestHandler>,
) {
    let mut due = Instant::now();
    loop {
        let next = events.held_until().map_or(due, |held| due.min(held));
        let wait = next.saturating_duration_since(Instant::now());
        match from.recv_timeout(wait) {
            Ok(message) => {
                if !events.handle(message) {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        events.release_overdue();
        // However many messages come, time goes by as well.
        if Instant::now() >= due {
            events.trouble("socket", door.check_sockets(handler));
            events.trouble("memory-socket", programs.check());
            events.tick();
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Watchdog]);
            due = Instant::now() + TICK;
        }
    }
    events.end(LAST);
}

/// gpuos.toml as far as it can be known without slurmctld, so that the port of the heartbeat is bound before users come: the file that
/// is named, else the one beside the workload manager's own. Whatever is wrong with it is said when it is read as ever.
fn config_at_first(given: Option<&Path>, manager: &dyn WorkloadManager) -> Config {
    let named = given.map(Path::to_path_buf);
    let named = named.or_else(|| std::env::var_os("GPUOS_CONF").map(PathBuf::from));
    let beside = || Some(manager.local_folder()?.join("gpuos.toml"));
    let text = named
        .or_else(beside)
        .and_then(|file| std::fs::read_to_string(file).ok());
    let config = text.and_then(|text| Config::parse(&text, "gpuos.toml").ok());
    config.unwrap_or_default()
}

/// Milliseconds since 1970, by the machine's clock.
fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_millis() as u64)
}

/// The name of this boot of the machine; empty where nobody knows.
fn boot(file: &Path) -> String {
    let id = std::fs::read_to_string(file);
    id.map_or_else(|_| String::new(), |id| id.trim().to_string())
}

fn signals(to: SyncSender<Message>) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            let message = match signal {
                SIGHUP => Message::Reload,
                _ => Message::End,
            };
            if to.send(message).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}
