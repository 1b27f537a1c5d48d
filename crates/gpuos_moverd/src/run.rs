//! The whole daemon: threads, signals, sockets.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_config::gpuos_toml::ParkingConfig;
use gpuos_core::wire::{MoverSettings, memory_socket};
use gpuos_daemon::door::Door;
use gpuos_host::gridengine::Execd;
use gpuos_host::munge::Munge;
use gpuos_host::pbs::Mom;
use gpuos_host::slurm::Slurm;
use gpuos_host::socket::{BindError, MOVER, NAME, RequestHandler};
use gpuos_host::steps::job_processes::Proc;
use gpuos_host::{Machine, ThisMachine, config_file};
use gpuos_link::tcp::{Link, Listener};
use gpuos_store::disk::LinuxDisk;
use gpuos_workload::WorkloadManager;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::carried::service;
use crate::domains::FailureDomains;
use crate::donor::serve::Giver;
use crate::ended::Ended;
use crate::ends::Ends;
use crate::folder::Trash;
use crate::handler::{Handler, is_safe};
use crate::job::{Drills, Shared, Totals};
use crate::jobs::Jobs;
use crate::journal::Journal;
use crate::keeper;
use crate::left::Left;
use crate::level3::Level3;
use crate::network::{Network, TAKEN};
use crate::opening;
use crate::options::{Options, Workload};
use crate::parked::{self, leases::Gpuosd};
use crate::registrar::{Ask, Registrar, alive};

/// Requests that wait for the registrar; steps that come on top are told that it is busy.
const WAITING: usize = 256;
/// Names that are looked at before the thread that removes them pauses ...
const EFFORT: usize = 2000;
/// ... so long,
const BREATH: Duration = Duration::from_millis(20);
/// or so long if there is nothing more that can be removed.
const IDLE: Duration = Duration::from_secs(5);
/// Threads of jobs get so long to end.
const LAST: Duration = Duration::from_secs(5);
/// The socket is looked after so often, and systemd told that all goes on.
const TICK: Duration = Duration::from_secs(1);

/// Unmounts the folders in memory of jobs that are over.
///
/// # Errors
/// The folder of jobs is not root's alone, or something was not unmounted.
pub fn unmount(options: &Options) -> Result<()> {
    if !options.jobs.exists() {
        return Ok(());
    }
    let trash = Trash::open(&options.jobs)?;
    let left = || format!("unmount what is left in {}", options.jobs.display());
    trash.unmount().with_context(left)
}

/// Runs until a signal ends it.
///
/// # Errors
/// Another gpuos_mover runs here, or something is missing without which no checkpoint can be kept.
pub fn run(options: &Options) -> Result<()> {
    let node = options.node_name();
    let own = [
        ("--store", &options.store),
        ("--jobs", &options.jobs),
        ("--runtime-dir", &options.runtime_dir),
    ];
    if own.into_iter().any(|(flag, folder)| !is_safe(flag, folder)) {
        bail!("a folder is not root's alone, as the log says");
    }
    let machine: Arc<dyn Machine + Send + Sync> = Arc::new(ThisMachine);
    // The one place that knows which workload manager this is.
    let manager: Arc<dyn WorkloadManager> = match options.workload {
        Workload::Slurm => Arc::new(Slurm::new(machine.clone(), &node)),
        Workload::Pbs => Arc::new(Mom::with_server(&node, machine.clone())),
        Workload::Gridengine => Arc::new(Execd::new(&node, machine.clone())),
    };
    let folder = || manager.local_folder().or_else(|| manager.config_folder());
    let config = config_file::found(&*machine, options.config.as_deref(), folder)?;
    let config = config.context("gpuos.toml is not found: name it with --config")?;
    if !config.checkpoint.enabled && config.parking.is_none() {
        bail!(
            "no checkpoints are made here, and no memory is parked: set enabled = true in [checkpoint] of gpuos.toml, or nvme in [memory], and \
             start gpuos_mover again"
        );
    }
    if let Some(parking) = &config.parking {
        park(parking, options, &node)?;
    }
    if !config.checkpoint.enabled {
        tracing::info!(
            "gpuos_mover {} for node {node}, without checkpoints",
            crate::RELEASE
        );
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        return wait(|| {});
    }
    let mut door = Door::new(options.runtime_dir.join(MOVER));
    let addresses = manager.addresses().map_err(anyhow::Error::msg)?;
    let socket = addresses.munge_socket();
    let munge =
        Munge::open(None, socket.as_deref()).context("munge, which vouches for other nodes")?;
    let rate = u64::from(config.checkpoint.rate_mib) << 20;
    let checkpoint = &config.checkpoint;
    let opened = opening::store(&options.store, &options.jobs, &options.key, checkpoint)?;
    let store = opened.store;
    let settings = MoverSettings {
        store: options.store.to_string_lossy().into_owned(),
        key: options.key.to_string_lossy().into_owned(),
        digest: checkpoint.digest(),
        troubles: opened.faults,
    };
    let network = Network::new(addresses, Arc::new(munge), checkpoint.port, rate);
    let network = Arc::new(network.with_keys(&store.key_ids()));
    let (requeue, saved) = sync_channel(WAITING);
    let level3 = Level3::new(checkpoint, &node, store);
    let shared = Arc::new(Shared {
        node: node.clone(),
        store,
        level3: level3.clone(),
        folders: options.jobs.clone(),
        network: network.clone(),
        requeue,
        config: config.checkpoint.clone(),
        manager: manager.clone(),
        totals: Totals::default(),
        journal: Journal::open(&options.jobs),
        drills: Drills::default(),
        forbidden: config.forbidden.clone(),
        ended: Ended::default(),
    });
    let domains = FailureDomains::new(config, manager.clone());
    let (unknown, named) = sync_channel(WAITING);
    let jobs = Arc::new(Jobs::new(unknown));
    let (registrar, asks) = sync_channel(WAITING);
    let handler: Arc<dyn RequestHandler> = Arc::new(Handler {
        shared: shared.clone(),
        jobs: jobs.clone(),
        registrar: registrar.clone(),
        verifying: Mutex::default(),
        settings,
    });
    // Before anybody can find it here, and it can be missed.
    alive(&options.jobs);
    if let Err(e @ BindError::InUse) = door.open(&handler) {
        return Err(e).with_context(|| door.path().display().to_string());
    }
    let trash = Arc::new(Trash::open(&options.jobs)?);
    let left = Left::find(trash.clone())
        .with_context(|| format!("cannot read {}", options.jobs.display()))?;
    if let Some(level3) = level3 {
        keeper::start(level3, jobs.clone(), manager.clone())?;
    }
    Ends::start(jobs.clone(), manager.clone(), saved)?;
    Registrar::start(shared, jobs.clone(), (manager.clone(), domains), left, asks)?;
    let ending = registrar.clone();
    let naming = move || {
        for job in named {
            if registrar.send(Ask::Named(job)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("named".into()).spawn(naming)?;
    let giver = Arc::new(Giver::new(store, manager));
    let listening = {
        let (node, network) = (node.clone(), network);
        move || listen(&node, &network, &jobs, &giver)
    };
    thread::Builder::new()
        .name("listen".into())
        .spawn(listening)?;
    thread::Builder::new()
        .name("trash".into())
        .spawn(move || empty(&trash))?;
    tracing::info!("gpuos_mover {} for node {node}", crate::RELEASE);
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    wait(|| {
        let _ = door.check_sockets(&handler);
    })?;
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    door.close();
    let (done, ended) = sync_channel(1);
    if ending.try_send(Ask::Stop(done)).is_ok() {
        // The disk shows how far things were, so that what is late can be cut off.
        let _ = ended.recv_timeout(LAST);
    }
    Ok(())
}

/// Removes what jobs have left, a little at a time: however much a user has put there, nothing else waits for it.
fn empty(trash: &Trash) {
    loop {
        let more = match trash.step(EFFORT) {
            Ok(progress) => progress.more,
            Err(error) => {
                tracing::error!("what jobs have left cannot be removed: {error}");
                false
            }
        };
        thread::sleep(if more { BREATH } else { IDLE });
    }
}

/// Takes links of other nodes; a port that somebody else has is tried again.
fn listen(node: &str, network: &Arc<Network>, jobs: &Arc<Jobs>, giver: &Arc<Giver<LinuxDisk>>) {
    let mut said = None;
    loop {
        match network.listen(node, jobs.clone()) {
            Ok(listener) => {
                tracing::info!("other nodes are heard at TCP {}", listener.address());
                if take(network, listener, jobs, giver).is_ok() {
                    return;
                }
            }
            Err(why) if said.as_ref() != Some(&why) => {
                tracing::error!("{why}; it is tried again every {} s", TAKEN.as_secs());
                said = Some(why);
            }
            Err(_) => {}
        }
        thread::sleep(TAKEN);
    }
}

/// Links that are of no job are of those who want parts of one.
fn take(
    network: &Arc<Network>,
    listener: Listener,
    jobs: &Arc<Jobs>,
    giver: &Arc<Giver<LinuxDisk>>,
) -> std::io::Result<()> {
    let giver = giver.clone();
    let give = move |link: Link| {
        if link.peer.job == service() {
            giver.take(link);
        }
    };
    network.take(listener, jobs.clone(), give)
}

/// Begins to park memory of jobs.
fn park(parking: &ParkingConfig, options: &Options, node: &str) -> Result<()> {
    let place = parked::Place {
        // Several nodes may be one machine, as in labs.
        folder: parking.nvme.join(node),
        rate_mib: parking.rate_mib,
    };
    let beside = |name| options.runtime_dir.join(name);
    let socket = memory_socket(&beside(MOVER).to_string_lossy());
    let leases = Box::new(Gpuosd::at(beside(NAME)));
    let processes = Box::new(Proc::at(&options.proc));
    parked::start(&place, Path::new(&socket), leases, processes)
}

/// Until a signal comes; looks after something meanwhile.
fn wait(mut look: impl FnMut()) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (to, from) = sync_channel(1);
    let waiting = move || {
        if signals.forever().next().is_some() {
            let _ = to.send(());
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(waiting)?;
    let mut due = Instant::now() + TICK;
    loop {
        match from.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        look();
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Watchdog]);
        due = Instant::now() + TICK;
    }
}
