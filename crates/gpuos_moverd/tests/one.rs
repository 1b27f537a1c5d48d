//! The mover of one node, whole but for its process: handler, registrar, threads of jobs, store and folders, with a workload manager in
//! memory, and a program that is played by the test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::{CheckpointConfig, Config};
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::{CheckpointJob, CheckpointRequest, Peer, Reply, Request};
use gpuos_host::munge::{self, Credentials, Opened};
use gpuos_host::socket::RequestHandler;
use gpuos_link::tcp::Listener;
use gpuos_moverd::domains::FailureDomains;
use gpuos_moverd::ended::Ended;
use gpuos_moverd::folder::Trash;
use gpuos_moverd::handler::Handler;
use gpuos_moverd::job::{Drills, Shared, Totals};
use gpuos_moverd::jobs::Jobs;
use gpuos_moverd::journal::Journal;
use gpuos_moverd::left::Left;
use gpuos_moverd::network::Network;
use gpuos_moverd::registrar::Registrar;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_workload::WorkloadManager;
use gpuos_workload::job::{Job, JobState};
use gpuos_workload::recorded::{Recorded, Table};
use rustix::process::{getegid, geteuid};

/// A longer wait than anything takes.
const LIMIT: Duration = Duration::from_secs(180);

pub const NODE: &str = "n1";

/// Nobody is there to speak with.
struct Alone;

impl Credentials for Alone {
    fn seal(&self, _: &[u8]) -> Result<String, munge::Error> {
        Err(munge::Error::NoAnswer("there is one node".into()))
    }

    fn open(&self, _: &[u8]) -> Result<Opened, munge::Error> {
        Err(munge::Error::NoAnswer("there is one node".into()))
    }
}

pub struct Mover {
    pub handler: Handler,
    pub manager: Recorded,
}

pub fn root() -> Peer {
    Peer { uid: 0, pid: 1 }
}

/// A job of one node.
pub fn record(number: u32, uid: u32) -> Job {
    Job {
        id: number.into(),
        uid,
        state: JobState::Running,
        state_word: "RUNNING".into(),
        partitions: vec!["debug".into()],
        account: "physics".into(),
        nodes: vec![NODE.into()],
        ..Job::default()
    }
}

/// With its store and its folders of jobs in these places, which are there.
pub fn mover(store: &Path, jobs: &Path, config: CheckpointConfig, forbidden: Forbidden) -> Mover {
    mover_of(store, jobs, config, forbidden, BTreeMap::new())
}

/// The same with jobs that the workload manager has already.
pub fn mover_of(
    store: &Path,
    jobs: &Path,
    config: CheckpointConfig,
    forbidden: Forbidden,
    known: BTreeMap<JobId, Job>,
) -> Mover {
    fs::set_permissions(store, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(jobs, fs::Permissions::from_mode(0o755)).unwrap();
    let root = LinuxDisk::folder(store).unwrap();
    let (open, _) = Store::open(
        LinuxDisk,
        root,
        SiteKey::derive(b"a key of tests that is long enough"),
    )
    .unwrap();
    let manager = Recorded::new(Table {
        jobs: known,
        ..Table::default()
    });
    let network = Network::new(manager.addresses().unwrap(), Arc::new(Alone), 0, 0);
    let shared = Arc::new(Shared {
        node: NODE.into(),
        store: Box::leak(Box::new(open)),
        folders: jobs.into(),
        network: Arc::new(network),
        level3: None,
        requeue: sync_channel(1).0,
        config,
        manager: Arc::new(manager.clone()),
        totals: Totals::default(),
        journal: Journal::open(jobs),
        drills: Drills::default(),
        forbidden,
        ended: Ended::default(),
    });
    let listed = Arc::new(Jobs::new(sync_channel(1).0));
    let (registrar, asks) = sync_channel(16);
    let of: Arc<dyn WorkloadManager> = Arc::new(manager.clone());
    let domains = FailureDomains::new(Config::default(), of.clone());
    let left = Left::find(Arc::new(Trash::open(jobs).unwrap())).unwrap();
    Registrar::start(shared.clone(), listed.clone(), (of, domains), left, asks).unwrap();
    let handler = Handler {
        shared,
        jobs: listed,
        registrar,
        settings: Default::default(),
        verifying: Mutex::default(),
    };
    Mover { handler, manager }
}

impl Mover {
    pub fn runs(&self, job: Job) {
        self.manager
            .with(|table| table.jobs.insert(job.id.clone(), job));
    }

    pub fn ask(&self, peer: Peer, what: CheckpointRequest) -> Reply {
        self.handler.ask(peer, Request::Checkpoint { what })
    }

    /// A step of a job starts: the folder, or the notes.
    pub fn step(&self, job: u32, uid: u32, asked: &str) -> Result<PathBuf, String> {
        self.launch((job, 0), None, uid, asked)
    }

    /// The same of a step by its number, which can be the so many-th start of the program.
    pub fn launch(
        &self,
        (job, step): (u32, u32),
        start: Option<u32>,
        uid: u32,
        asked: &str,
    ) -> Result<PathBuf, String> {
        let step = CheckpointRequest::Step {
            id: StepId {
                job: job.into(),
                step,
            },
            uid,
            gid: group(uid),
            asked: asked.into(),
            start,
        };
        match self.ask(root(), step) {
            Reply::Prepared {
                notes, environment, ..
            } => match environment.get("GPUOS_CHECKPOINT_DIR") {
                Some(folder) => Ok(folder.into()),
                None => Err(notes.join("; ")),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a job stands so: its thread shows that after what it has done.
    pub fn until_shown(
        &self,
        job: u32,
        what: &str,
        so: impl Fn(&CheckpointJob) -> bool,
    ) -> CheckpointJob {
        until(what, || Some(self.shown(job)).filter(&so))
    }

    /// How a job stands, for root.
    pub fn shown(&self, job: u32) -> CheckpointJob {
        let job = Some(job.into());
        match self.ask(root(), CheckpointRequest::List { job }) {
            Reply::Checkpoints { mut jobs } => jobs.pop().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }
}

pub fn group(uid: u32) -> u32 {
    match geteuid().is_root() {
        true => uid,
        false => getegid().as_raw(),
    }
}

pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The mover of a node takes connections. A child that another test starts just now has the port as well, until it runs its program.
pub fn listens(network: &Network, node: &str, jobs: &Arc<Jobs>) -> Listener {
    until("the port of the mover", || {
        network.listen(node, jobs.clone()).ok()
    })
}

pub fn line(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_string)
}

/// The number of what is asked for in the folder of a job.
pub fn asked(folder: &Path) -> Option<u32> {
    let number = |name: &str| -> Option<u32> {
        let text = line(folder.join(name))?;
        text.split(' ').next()?.parse().ok()
    };
    // A request can still be there when what it asked for has ended: it is read first.
    let asked = number("request");
    let ended = number("failed").max(number("commit"));
    asked.filter(|_| asked > ended)
}

/// A program of one rank.
pub struct Rank {
    pub folder: PathBuf,
    uid: u32,
    nonce: u64,
}

impl Rank {
    /// Starts, and gives what it is told.
    pub fn join(folder: &Path, uid: u32, nonce: u64) -> (Rank, String) {
        let rank = Rank {
            folder: folder.into(),
            uid,
            nonce,
        };
        rank.put(&folder.join(format!("ranks/0.1.{nonce}")), b"");
        let answer = folder.join(format!("start.0.{nonce}"));
        let told = until("an answer to the join", || line(answer.clone()));
        (rank, told)
    }

    /// The same where the disk is full, until the answer is due: it is told when there is room again.
    pub fn join_where_full(earlier: &Rank, nonce: u64, filling: &Path) -> (Rank, String) {
        let waits = filling.to_path_buf();
        // The answer is begun, and cannot be written.
        let begun = earlier.folder.join(format!(".start.0.{nonce}"));
        let free = std::thread::spawn(move || {
            until("the answer is begun", || begun.exists().then_some(()));
            fs::remove_file(waits).unwrap();
        });
        let joined = Rank::join(&earlier.folder, earlier.uid, nonce);
        free.join().unwrap();
        joined
    }

    pub fn restored(&self) -> PathBuf {
        self.folder.join(format!("restore.0.{}", self.nonce))
    }

    /// Says that it cannot load what it was given.
    pub fn refuse(&self, said: &str) {
        let at = self.folder.join(format!("ranks/refused.0.{}", self.nonce));
        let unfinished = self.folder.join("ranks/.refused");
        self.put(&unfinished, said.as_bytes());
        fs::rename(unfinished, at).unwrap();
    }

    fn put(&self, path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        if geteuid().is_root() {
            chown(path, Some(self.uid), Some(group(self.uid))).unwrap();
        }
    }

    /// Waits for a request; its number.
    pub fn asked(&self) -> u32 {
        until("a request", || asked(&self.folder))
    }

    /// Saves for it.
    pub fn save(&self, number: u32, bytes: &[u8]) {
        let at = self.folder.join(number.to_string());
        self.put(&at.join("files/rank-0-of-1/state"), bytes);
        self.put(&at.join("ready.0"), b"");
    }

    /// What became of it.
    pub fn outcome(&self, number: u32) -> Result<(), String> {
        until("an outcome", || {
            let commit = line(self.folder.join("commit")).and_then(|text| text.parse().ok());
            if commit.is_some_and(|commit: u32| commit >= number) {
                return Some(Ok(()));
            }
            let failed = line(self.folder.join("failed"))?;
            let why = failed.strip_prefix(&format!("{number} "))?;
            Some(Err(why.to_owned()))
        })
    }

    /// Saves what it is asked for.
    pub fn checkpoint(&self, bytes: &[u8]) -> (u32, Result<(), String>) {
        let number = self.asked();
        self.save(number, bytes);
        (number, self.outcome(number))
    }
}
