//! Level 3: the folder on a parallel file system to which checkpoints are drained.
//!
//! A call there can hang for as long as its servers do. So nothing that serves jobs or clients touches the folder: whoever does has a
//! thread of its own, and is given up without.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::job::JobId;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::drained::DrainedStore;
use gpuos_store::error::{Error, Kind, Result as Stored};
use gpuos_store::owned::Owner;
use gpuos_store::store::Store;
use gpuos_workload::action::Outcome;

use crate::jobs::locked;
use crate::turns::Turns;

/// The folder is looked at again after so long if something is wrong with it.
pub const AGAIN: Duration = Duration::from_secs(60);
/// A look at the folder that takes longer says that it hangs.
const SLOW: Duration = Duration::from_secs(10);
/// Longest sleep of a copy that is slowed down, so that it ends soon when its job does.
const NAP: Duration = Duration::from_millis(200);

/// How the folder is.
enum State {
    /// It is being looked at, since then.
    Looking(Instant),
    /// It can be used.
    On,
    /// It cannot, for this reason.
    Off(String),
}

/// What is to be removed there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwanted {
    /// What is drained of this job.
    pub job: JobId,
    /// At whose word.
    pub by: Owner,
    /// Also if the job waits to begin again: it begins anew then.
    pub anew: bool,
    /// When that was asked, in seconds since 1970: what is drained later stays.
    pub asked_s: u64,
}

/// The folder, and what is done there.
pub struct Level3 {
    folder: PathBuf,
    /// One of so many checkpoints is drained, where a job does not say otherwise.
    pub every: u32,
    /// So many drained ones of a job are kept.
    pub keep: usize,
    /// Slurm's name of this node.
    pub node: String,
    /// The store of this node.
    pub store: &'static Store<LinuxDisk>,
    /// Bytes a second; 0: as fast as it goes.
    rate: u64,
    /// What is drained of a job that is over is kept so many seconds after its end.
    pub ended_s: u64,
    state: Mutex<State>,
    /// Whose copy may use the folder.
    pub turns: Turns,
    unwanted: Mutex<Vec<Unwanted>>,
}

impl Level3 {
    /// By `[checkpoint]`. `None`: the site has no such folder.
    pub fn new(
        config: &CheckpointConfig,
        node: &str,
        store: &'static Store<LinuxDisk>,
    ) -> Option<Arc<Level3>> {
        let folder = config.shared.clone()?;
        Some(Arc::new(Level3 {
            folder,
            every: config.shared_every,
            keep: config.keep as usize,
            node: node.into(),
            store,
            rate: u64::from(config.shared_rate_mib) << 20,
            ended_s: u64::from(config.ended_hours) * 3600,
            state: Mutex::new(State::Looking(Instant::now())),
            turns: Turns::default(),
            unwanted: Mutex::default(),
        }))
    }

    /// Its path, for people.
    pub fn path(&self) -> String {
        self.folder.display().to_string()
    }

    /// Opens the folder, which may take as long as its file system does.
    ///
    /// # Errors
    /// It is not there, or not root's alone.
    pub fn open(&self) -> Stored<DrainedStore<LinuxDisk>> {
        let root = LinuxDisk::folder(&self.folder).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => Kind::Missing,
                _ => Kind::Disk,
            };
            let tried = format!("open {}, to which checkpoints are drained", self.path());
            let next = "see whether the file system is mounted on this node, and make the folder with mode 0700";
            Error::new(kind, tried, error.to_string(), next)
        })?;
        DrainedStore::open(self.store, LinuxDisk, root)
    }

    /// Why nothing can be drained on this node now. `None`: it can.
    pub fn why_off(&self) -> Option<String> {
        match &*locked(&self.state) {
            State::On => None,
            State::Off(why) => Some(why.clone()),
            State::Looking(since) if since.elapsed() > SLOW => Some(format!(
                "{} does not answer; see whether its file system hangs",
                self.path()
            )),
            State::Looking(_) => Some(format!("{} is being looked at", self.path())),
        }
    }

    /// What slows a copy down to the site's rate, and ends it when the job has ended.
    pub fn pace(&self, ended: Arc<AtomicBool>) -> impl FnMut(u64) -> Stored<()> {
        let (begun, mut bytes, rate) = (Instant::now(), 0u64, self.rate);
        move |more| {
            bytes = bytes.saturating_add(more);
            let due = bytes.saturating_mul(1000).checked_div(rate);
            let due = begun + Duration::from_millis(due.unwrap_or(0));
            loop {
                if ended.load(Ordering::Relaxed) {
                    return Err(over());
                }
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                thread::sleep(left.min(NAP));
            }
        }
    }

    /// Has everything removed that is drained of a job, if it is who wants it whose that is.
    pub fn remove(&self, what: Unwanted) {
        let mut unwanted = locked(&self.unwanted);
        if !unwanted.contains(&what) {
            unwanted.push(what);
        }
    }

    /// What clients want removed, once.
    pub fn unwanted(&self) -> Vec<Unwanted> {
        std::mem::take(&mut *locked(&self.unwanted))
    }

    /// Looks whether the folder can be used, by the cluster of this name, if it has one; an error: it could not be asked for.
    pub fn look(&self, cluster: Result<Option<String>, Outcome>) {
        let seen = self.open().and_then(|store| {
            let cluster = cluster.map_err(|outcome| {
                let tried = "ask for the name of the cluster, whose jobs the folder has";
                let next = "see whether the workload manager answers";
                Error::refused(tried, outcome.words(), next)
            })?;
            store.probe(&self.node)?;
            cluster.map_or(Ok(()), |cluster| store.claim(&cluster))
        });
        let next = match seen {
            Ok(()) => State::On,
            // Where systemd has made all but some folders read-only, the kernel's log has nothing of it.
            Err(error) if error.kind == Kind::ReadOnly => State::Off(format!(
                "{error}; under systemd, gpuos_mover.service needs ReadWritePaths=-{} (systemctl edit gpuos_mover)",
                self.path()
            )),
            Err(error) => State::Off(error.to_string()),
        };
        let mut state = locked(&self.state);
        match (&*state, &next) {
            (State::Off(before), State::Off(now)) if before == now => {}
            (_, State::Off(why)) => tracing::error!(
                "checkpoints are not drained: {why}; it is tried again every {} s",
                AGAIN.as_secs()
            ),
            _ => tracing::info!("checkpoints are drained to {}", self.path()),
        }
        *state = next;
    }
}

/// The job has ended while something of it was to be copied.
pub fn over() -> Error {
    let next = "nothing has to be done: the next run of the job goes on";
    Error::refused("copy the rest", "the job has ended here", next)
}
