//! The thread of a job on this node: links to its other nodes, the loop of the node, the conductor, and the folder of its programs.
//!
//! ```text
//!  Gathering ── seat 0 has all claims ──► roster ──► Running: Node and Conductor
//!      ▲ │                          │      ▲           │
//!      │ │                          └──► Fetching: parts are copied in, from other nodes or the parallel file system
//!      │ └── too late, or no roster is possible ──► Failed
//!      └──── a mover of the job was started anew ──────┘
//!
//!  … roster ──► Hosting: what another number of nodes has made is made whole ──► Gathering
//! ```
//!
//! What failed for being too late is tried again when the missing movers have come.
//!
//! - `links`, `gather`: the others; `fetching`, `begin`: when they are found; `ends`: the job's end, as the workload manager has it; `running`: node and conductor; `asking`: checkpoints that programs ask for; `quota`: how much it
//!   may keep; `restoring`: the files of a rank, also from another node; `unwritten`: what its programs could not be told yet;
//!   `left_open`: a checkpoint that was being made when they gather;
//! - `drain`: to the parallel file system, and `back`: from there; `donors`: what nodes hold that the job does not have any more; `looking`: who is asked for it, and `noting`: what the job's record says of the run;
//!   `other`: the begin from another job's checkpoint; `elastic`: with another number of nodes; `choice`: what its user has chosen for the next run;
//! - `serve`: what the thread does with what comes in; `status`: how it stands, for clients; `tally`: what is counted; `recovery`: how long it took
//!   to go on.
//!
//! The thread blocks on the disk. While it reads a folder or writes a segment others wait for its answers, and ask again.

mod asking;
mod back;
mod begin;
mod choice;
mod donors;
mod drain;
mod elastic;
mod ends;
mod fetching;
mod gather;
mod left_open;
#[cfg(test)]
mod level3_tests;
mod links;
mod looking;
mod noting;
mod other;
mod quota;
mod recovery;
mod restoring;
mod running;
mod serve;
mod status;
mod tally;
mod unwritten;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpuos_checkpoint::sets::{NodeDomains, Scheme};
use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_config::options::CheckpointOption;
use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointJob;
use gpuos_link::session::Place;
use gpuos_mover::program::{Join, Reason};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::store::Store;
use gpuos_workload::WorkloadManager;

use crate::carried::{Base, JobRoster, Other};
use crate::donor::client::Wanted;
use crate::ended::Ended;
use crate::event::{Event, SavedRun};
use crate::folder::JobFolder;
use crate::journal::Journal;
use crate::launch::Launch;
use crate::level3::Level3;
use crate::network::Network;
use back::Back;
use donors::Donors;
use drain::Drain;
use ends::Ends;
use gather::Gather;
use links::Links;
pub use other::Drills;
use running::Running;
pub use tally::Totals;

/// How often the folder of the programs is looked at, and what is late is done.
const LOOK: Duration = Duration::from_millis(200);

/// A look takes at most one part of so many of the thread's time: a user may have it see thousands of names each time.
const LOOKS: u32 = 5;

/// What all jobs of this node share.
pub struct Shared {
    /// Slurm's name of this node.
    pub node: String,
    /// Where checkpoints are kept.
    pub store: &'static Store<LinuxDisk>,
    /// Where they are drained to, if the site has such a place.
    pub level3: Option<Arc<Level3>>,
    /// Where the folders of jobs are made.
    pub folders: PathBuf,
    /// The way to other nodes.
    pub network: Arc<Network>,
    /// Where a job goes that has saved before its end, to be requeued.
    pub requeue: SyncSender<SavedRun>,
    /// `[checkpoint]`.
    pub config: CheckpointConfig,
    /// Who knows which nodes hold what.
    pub manager: Arc<dyn WorkloadManager>,
    /// What was counted.
    pub totals: Totals,
    /// How long restarts and drills took.
    pub journal: Journal,
    /// Drills that take part on this node.
    pub drills: Drills,
    /// `[[forbid]]`.
    pub forbidden: Forbidden,
    /// Jobs of the store that are over.
    pub ended: Ended,
}

/// What is known of a job when its thread starts.
pub struct Start {
    /// The job.
    pub job: JobId,
    /// Its user, by the workload manager's word.
    pub uid: u32,
    /// The workload manager's count of its restarts.
    pub run: u32,
    /// The start of its program.
    pub launch: Launch,
    /// When this run was queued, in seconds since 1970, if the workload manager says.
    pub queued_at: Option<u64>,
    /// When it had its nodes, likewise.
    pub started_at: Option<u64>,
    /// The nodes of its program, in the workload manager's order.
    pub nodes: Vec<String>,
    /// The job's other nodes.
    pub spares: Vec<String>,
    /// Nodes of the start before that are not among these.
    pub lost: Vec<String>,
    /// What they share with others, in the same order.
    pub domains: Vec<NodeDomains>,
    /// This node's place.
    pub place: Place,
    /// The job is over here, however much waits for the thread.
    pub over: Arc<AtomicBool>,
}

impl Start {
    /// How often the program was started before, as far as is known; 0: this is the first time.
    fn earlier(&self) -> u32 {
        self.run.saturating_add(self.launch.start.saturating_sub(1))
    }
}

/// What the job's steps said, or its seat 0.
struct Wish {
    gid: u32,
    asked: String,
    option: CheckpointOption,
}

/// How far the job is.
enum Phase {
    Gathering(Gather),
    /// By this roster nodes copy their parts in, from nodes that the job does not have or from the parallel file system.
    Fetching(Box<JobRoster>),
    /// By this roster they make whole what another number of nodes has made.
    Hosting(Box<elastic::Hosted>),
    Running(Box<Running>),
    Failed(String),
}

/// The state of the thread.
pub struct Worker {
    shared: Arc<Shared>,
    start: Start,
    status: Arc<Mutex<CheckpointJob>>,
    /// Where the folder is, for steps that need not wait for this thread.
    shown: Arc<Mutex<Option<String>>>,
    to: SyncSender<Event>,
    began: Instant,
    links: Links,
    /// Drawn when this thread began.
    incarnation: u64,
    /// Those of the other seats, at seat 0.
    incarnations: BTreeMap<u16, u64>,
    session: u32,
    wish: Option<Wish>,
    folder: Option<Arc<JobFolder>>,
    drain: Drain,
    back: Back,
    donors: Donors,
    /// The job whose checkpoints the movers are about to make whole on the nodes of this one.
    other: Option<Other>,
    /// What that came to.
    base: Option<Base>,
    /// In a drill, a job of the same user of which nothing was here before: what was copied in of it goes with the drill.
    drilled: Option<JobId>,
    /// What was looked at of what other numbers of nodes have made.
    elastic: elastic::Elastic,
    /// What the job's user has chosen for the next run, until all nodes have noted it.
    choosing: Option<choice::Choosing>,
    /// Where this node's part came from in this run, for clients.
    came: Vec<String>,
    phase: Phase,
    ends: Ends,
    /// What was drained is marked where this session has to.
    marked: bool,
    /// The movers did not find each other in time, which may still come.
    late: bool,
    /// The thread that restored in the gathering before.
    before: Option<JoinHandle<()>>,
    /// A checkpoint that was wanted while nobody conducted.
    wanted: Option<Reason>,
    /// Seats that have taken the roster, at seat 0.
    told: BTreeSet<u16>,
    /// Joins that were answered without node and conductor.
    without: BTreeSet<Join>,
    tally: tally::Tally,
    recovery: recovery::Recovery,
    noting: noting::Noting,
}

impl Worker {
    /// The state of a job that has just become known. `to` is the way to the thread itself, `status` and `shown` what others look at.
    pub fn new(
        shared: Arc<Shared>,
        start: Start,
        to: SyncSender<Event>,
        status: Arc<Mutex<CheckpointJob>>,
        shown: Arc<Mutex<Option<String>>>,
    ) -> Worker {
        let links = Links::new(
            shared.network.clone(),
            start.place.clone(),
            start.nodes.clone(),
            to.clone(),
        );
        let leads = start.place.own.0 == 0;
        let incarnation = draw();
        let recovery = recovery::Recovery::new(shared.journal.loss(&start.job));
        let (level3, of) = (shared.level3.clone(), (start.job.clone(), start.uid));
        let drain = Drain::new(level3.clone(), of.clone(), to.clone());
        let back = Back::new(level3, of, to.clone());
        let donors = donors(&shared, &start, &to, None);
        Worker {
            shared,
            start,
            status,
            shown,
            to,
            began: Instant::now(),
            links,
            incarnation,
            incarnations: BTreeMap::new(),
            session: if leads { new_session(0) } else { 0 },
            wish: None,
            folder: None,
            drain,
            back,
            donors,
            other: None,
            base: None,
            drilled: None,
            elastic: elastic::Elastic::default(),
            choosing: None,
            came: Vec::new(),
            phase: Phase::Gathering(Gather::new()),
            ends: Ends::default(),
            marked: false,
            late: false,
            before: None,
            wanted: None,
            told: BTreeSet::new(),
            without: BTreeSet::new(),
            tally: tally::Tally::default(),
            recovery,
            noting: noting::Noting::default(),
        }
    }

    /// Serves the job until it is told to end.
    pub fn run(mut self, from: &Receiver<Event>) {
        let mut due = Instant::now();
        self.shared.adopt(&self.start.job, self.start.uid);
        self.publish();
        while !self.start.over.load(Ordering::Relaxed) {
            let wait = due.saturating_duration_since(Instant::now());
            match from.recv_timeout(wait) {
                Ok(Event::End) => break,
                Ok(Event::Stop) => return,
                Ok(event) => self.take(event),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
            // However many messages come, time goes by as well.
            let begun = Instant::now();
            if begun >= due {
                self.look();
                self.publish();
                due = begun + LOOK.max(begun.elapsed() * LOOKS);
            }
        }
        if let Some(folder) = self.folder.take() {
            // What cannot be removed now is found when the mover starts next.
            if let Err(error) = folder.remove() {
                self.note(&format!("its folder is not removed: {error}"));
            }
        }
        if let Some(at) = self.recovery.lost() {
            self.shared.journal.lost(&self.start.job, at);
        }
        other::clear(&mut self);
    }

    /// Milliseconds since the thread began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether this is seat 0, which draws the roster.
    fn is_first(&self) -> bool {
        self.start.place.own.0 == 0
    }

    fn own_seat(&self) -> u16 {
        self.start.place.own.0
    }

    /// What the nodes of the job keep for each other: what it asked for, else what the site has for those that name nothing; one node
    /// alone has nobody.
    fn scheme(&self) -> Scheme {
        let asked = self.wish.as_ref().and_then(|wish| wish.option.scheme);
        let nodes = u32::from(self.start.place.nodes);
        let scheme = self.shared.config.scheme_for(asked, nodes);
        // What cannot be is refused where the roster is drawn, with the reason.
        scheme.unwrap_or(asked.unwrap_or(Scheme::Single))
    }

    fn note(&self, text: &str) {
        tracing::info!(job = %self.start.job, "job {}: {text}", self.start.job);
    }
}

/// What other nodes hold of a job.
fn donors(shared: &Shared, start: &Start, to: &SyncSender<Event>, of: Option<&Other>) -> Donors {
    let around = donors::Around {
        network: shared.network.clone(),
        manager: shared.manager.clone(),
        store: shared.store,
        to: to.clone(),
    };
    let wanted = Wanted {
        of: of.map_or(&start.job, |of| &of.job).clone(),
        by: start.job.clone(),
        node: shared.node.clone(),
    };
    Donors::new(around, wanted, start.uid).losing(of.map_or(0, Other::losses))
}

/// A number that nobody guesses or repeats.
fn draw() -> u64 {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match drawn {
        Ok(8) => u64::from_le_bytes(bytes),
        // A kernel without the call: the clock differs between two starts, which is all that is needed.
        _ => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |time| time.as_nanos() as u64)
        }
    }
}

/// A session that is none of those before, and not 0.
fn new_session(before: u32) -> u32 {
    loop {
        let session = draw() as u32;
        if session != 0 && session != before {
            return session;
        }
    }
}
