//! The threads of a job on several nodes, with links between them and stores of their own, in one process: the job goes on with other numbers of
//! nodes and of ranks. Programs are played by the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::NodeDomains;
use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::job::JobId;
use gpuos_link::session::Place;
use gpuos_mover::program::Reason;
use gpuos_moverd::donor::serve::Giver;
use gpuos_moverd::ended::Ended;
use gpuos_moverd::event::Event;
use gpuos_moverd::job::{Drills, Shared, Start, Totals, Worker};
use gpuos_moverd::jobs::{Jobs, Served};
use gpuos_moverd::journal::Journal;
use gpuos_moverd::launch::Launch;
use gpuos_moverd::level3::Level3;
use gpuos_moverd::network::Network;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_workload::WorkloadManager;
use gpuos_workload::recorded::{Recorded, Table};
use rustix::process::{getegid, geteuid};
use tempfile::TempDir;

use crate::donor::Plain;
use crate::one::{asked, line, listens, until};
use crate::port::port;

/// A node with its store and its folders of jobs.
struct Node {
    shared: Arc<Shared>,
    jobs: Arc<Jobs>,
}

pub struct Site {
    place: TempDir,
    nodes: Vec<Node>,
}

/// A run of the job on some nodes.
pub struct Run {
    folders: Vec<PathBuf>,
    to: Vec<SyncSender<Event>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    nonce: u64,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

impl Site {
    pub fn new(count: usize) -> Site {
        Site::with(count, CheckpointConfig::default(), TempDir::new().unwrap())
    }

    /// With a folder to which each checkpoint is drained.
    fn draining(count: usize) -> Site {
        let place = TempDir::new().unwrap();
        let shared = place.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o700)).unwrap();
        let config = CheckpointConfig {
            shared: Some(shared),
            shared_every: 1,
            ..CheckpointConfig::default()
        };
        Site::with(count, config, place)
    }

    fn with(count: usize, config: CheckpointConfig, place: TempDir) -> Site {
        let manager = Recorded::new(Table::default());
        for node in 0..count {
            // Networks listen 1000 above the port of the workload manager's daemon.
            let address = ("127.0.0.1".to_string(), port() - 1000);
            manager.with(|table| table.addresses.insert(name(node), address));
        }
        let nodes = (0..count).map(|node| {
            let at = place.path().join(name(node));
            let folder = |name: &str, mode| {
                let path = at.join(name);
                fs::create_dir_all(&path).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                path
            };
            let (store, jobs) = (folder("store", 0o700), folder("jobs", 0o755));
            let key = SiteKey::derive(b"a key of tests that is long enough");
            let root = LinuxDisk::folder(&store).unwrap();
            let store: &'static Store<LinuxDisk> =
                Box::leak(Box::new(Store::open(LinuxDisk, root, key).unwrap().0));
            let network = Network::new(manager.addresses().unwrap(), Arc::new(Plain), 0, 0);
            let network = Arc::new(network);
            let listed = Arc::new(Jobs::new(sync_channel(16).0));
            let giver = Arc::new(Giver::new(store, Arc::new(manager.clone())));
            let level3 = Level3::new(&config, &name(node), store);
            level3.iter().for_each(|level3| level3.look(Ok(None)));
            let listener = listens(&network, &name(node), &listed);
            network
                .take(listener, listed.clone(), move |link| giver.take(link))
                .unwrap();
            Node {
                shared: Arc::new(Shared {
                    node: name(node),
                    store,
                    level3,
                    folders: jobs.clone(),
                    network,
                    requeue: sync_channel(1).0,
                    config: config.clone(),
                    manager: Arc::new(manager.clone()),
                    totals: Totals::default(),
                    journal: Journal::open(&jobs),
                    drills: Drills::default(),
                    forbidden: Forbidden::default(),
                    ended: Ended::default(),
                }),
                jobs: listed,
            }
        });
        let nodes = nodes.collect();
        Site { place, nodes }
    }

    /// Waits until a checkpoint is drained; the folder of one of its parts.
    fn drained(&self, number: u32) -> PathBuf {
        let level3 = self.nodes[0].shared.level3.as_ref().unwrap();
        let id = until("it is drained", || {
            let store = level3.open().ok()?;
            let complete = store.existing(&JobId::from(7)).ok()??.complete(4).ok()?;
            let found = complete.iter().find(|it| it.id.number == number)?;
            Some(found.id)
        });
        let part = format!("shared/7/node-0/{id}");
        self.place.path().join(part)
    }

    /// Where a node keeps its parts of the job's checkpoints.
    pub fn parts(&self, node: usize) -> PathBuf {
        self.place.path().join(name(node)).join("store/7")
    }

    /// The job runs for the so many-th time, on these nodes.
    pub fn run(&self, run: u32, on: &[usize]) -> Run {
        let uid = geteuid().as_raw();
        let over = Arc::new(AtomicBool::new(false));
        let names: Vec<String> = on.iter().map(|node| name(*node)).collect();
        let (mut all_to, mut threads) = (Vec::new(), Vec::new());
        for (seat, node) in (0u16..).zip(on) {
            let node = &self.nodes[*node];
            let place = Place {
                job: JobId::from(7),
                list: 0,
                own: NodeIndex(seat),
                nodes: on.len() as u16,
            };
            let (to, from) = sync_channel(1024);
            let (status, shown) = (Arc::default(), Arc::new(Mutex::new(None)));
            let served = Served {
                uid,
                run,
                launch: Launch::default(),
                place: place.clone(),
                to: to.clone(),
                over: over.clone(),
                status: Arc::clone(&status),
                folder: shown.clone(),
            };
            node.jobs.enter(JobId::from(7), served);
            let start = Start {
                job: JobId::from(7),
                uid,
                run,
                launch: Launch::default(),
                nodes: names.clone(),
                spares: Vec::new(),
                lost: Vec::new(),
                domains: vec![NodeDomains::default(); on.len()],
                place,
                over: over.clone(),
                queued_at: None,
                started_at: None,
            };
            let worker = Worker::new(node.shared.clone(), start, to.clone(), status, shown);
            threads.push(std::thread::spawn(move || worker.run(&from)));
            all_to.push(to);
        }
        let folder = |to: &SyncSender<Event>| {
            let (reply, answer) = sync_channel(1);
            let step = Event::Step {
                gid: getegid().as_raw(),
                asked: "1h,l2=partner".into(),
                reply,
            };
            to.send(step).unwrap();
            answer.recv().unwrap().unwrap()
        };
        Run {
            folders: all_to.iter().map(folder).collect(),
            to: all_to,
            over,
            threads,
            nonce: u64::from(run) + 1,
        }
    }
}

impl Run {
    /// Ranks join, one after another over the nodes, which say `says` of it; what each is told.
    pub fn join(&mut self, size: usize, says: Option<&str>) -> Vec<String> {
        self.nonce += 100;
        let nonce = self.nonce;
        for rank in 0..size {
            let ranks = self.at(rank).join("ranks");
            if let Some(says) = says {
                fs::write(ranks.join(format!("{says}.{rank}.{nonce}")), "").unwrap();
            }
            fs::write(ranks.join(format!("{rank}.{size}.{nonce}")), "").unwrap();
        }
        let told = (0..size).map(|rank| {
            let answer = self.at(rank).join(format!("start.{rank}.{nonce}"));
            until("an answer", || line(answer.clone()))
        });
        told.collect()
    }

    fn at(&self, rank: usize) -> &PathBuf {
        &self.folders[rank % self.folders.len()]
    }

    /// What a rank finds in what was restored for it.
    fn restored(&self, rank: usize) -> String {
        let folder = self.at(rank).join(format!("restore.{rank}.{}", self.nonce));
        fs::read_to_string(folder.join("state")).unwrap()
    }

    /// All save, and the checkpoint is committed: its number.
    pub fn save(&self, size: usize, what: &str) -> u32 {
        self.to[0].send(Event::Want(Reason::Asked)).unwrap();
        let mut number = 0;
        for rank in 0..size {
            number = until("a request", || asked(self.at(rank)));
            let folder = self.at(rank).join(number.to_string());
            let state = folder.join(format!("files/rank-{rank}-of-{size}/state"));
            fs::write(state, text(what, rank)).unwrap();
            fs::write(folder.join(format!("ready.{rank}")), "").unwrap();
        }
        for folder in &self.folders {
            let commit = folder.join("commit");
            until("a commit", || {
                line(commit.clone()).filter(|it| *it == number.to_string())
            });
        }
        number
    }

    /// Their movers end, and leave all as it is: the folders of the programs.
    pub fn stop(self) -> Vec<PathBuf> {
        for to in &self.to {
            let _ = to.send(Event::Stop);
        }
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        self.folders
    }

    pub fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for to in &self.to {
            let _ = to.send(Event::End);
        }
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

fn text(what: &str, rank: usize) -> String {
    format!("{what} of rank {rank}\n").repeat(1000 + 100 * rank)
}

#[test]
fn a_job_goes_on_with_fewer_nodes_with_more_and_with_other_ranks() {
    let site = Site::new(4);
    let mut run = site.run(0, &[0, 1, 2]);
    assert_eq!(run.join(3, None), ["new", "new", "new"]);
    let first = run.save(3, "first");
    run.end();
    // The third node is gone, with its part: that is made again of what the others have.
    let mut run = site.run(1, &[1, 0]);
    assert_eq!(run.join(3, None), vec![format!("restore {first}"); 3]);
    for rank in 0..3 {
        assert!(run.restored(rank) == text("first", rank), "rank {rank}");
    }
    let second = run.save(3, "second");
    assert!(second > first);
    run.end();
    // More nodes, of which one has nothing and one something older.
    let mut run = site.run(2, &[3, 0, 2, 1]);
    assert_eq!(run.join(3, None), vec![format!("restore {second}"); 3]);
    for rank in 0..3 {
        assert!(run.restored(rank) == text("second", rank), "rank {rank}");
    }
    // Before anything is saved it is the same again.
    run.end();
    let mut run = site.run(3, &[3, 0, 2, 1]);
    let refused = run.join(2, None);
    assert!(
        refused
            .iter()
            .all(|told| told.contains("was made by 3 ranks")),
        "{refused:?}"
    );
    run.end();
    let mut run = site.run(4, &[3, 0, 2, 1]);
    for says in ["any", "all"] {
        assert_eq!(
            run.join(2, Some(says)),
            vec![format!("restore {second} of 3"); 2]
        );
        for rank in 0..2 {
            for old in 0..3 {
                let folder = format!("restored.{second}/rank-{old}-of-3");
                let state = run.at(rank).join(folder).join("state");
                assert!(fs::read_to_string(&state).unwrap() == text("second", old));
                let mode = fs::metadata(state).unwrap().permissions().mode();
                assert_eq!(mode & 0o222, 0, "nobody may write there");
            }
        }
    }
    run.save(2, "third");
    let last = run.save(2, "fourth");
    for folder in &run.folders {
        assert!(!folder.join(format!("restored.{second}")).exists());
    }
    run.end();
    for node in &site.nodes {
        let job = node.shared.store.existing(&JobId::from(7)).unwrap();
        assert!(node.shared.store.guests(&job).unwrap().is_empty());
    }
    let mut run = site.run(5, &[0, 1, 2, 3]);
    assert_eq!(run.join(2, None), vec![format!("restore {last}"); 2]);
    for rank in 0..2 {
        assert!(run.restored(rank) == text("fourth", rank), "rank {rank}");
    }
    run.end();
}

#[test]
fn what_was_drained_comes_back_to_fewer_nodes_to_more_and_to_other_ranks() {
    let site = Site::draining(10);
    let mut run = site.run(0, &[0, 1, 2]);
    assert_eq!(run.join(3, None), ["new", "new", "new"]);
    let first = run.save(3, "first");
    site.drained(first);
    run.end();
    // None of the nodes that have made it is there any more.
    let mut run = site.run(1, &[3, 4]);
    assert_eq!(run.join(3, None), vec![format!("restore {first}"); 3]);
    for rank in 0..3 {
        assert!(run.restored(rank) == text("first", rank), "rank {rank}");
    }
    let second = run.save(3, "second");
    assert!(second > first);
    let part = site.drained(second);
    run.end();
    let mut run = site.run(2, &[5, 6, 7]);
    assert_eq!(
        run.join(2, Some("any")),
        vec![format!("restore {second} of 3"); 2]
    );
    for rank in 0..2 {
        for old in 0..3 {
            let state = format!("restored.{second}/rank-{old}-of-3/state");
            let state = fs::read_to_string(run.at(rank).join(state)).unwrap();
            assert!(state == text("second", old), "rank {rank}: {old}");
        }
    }
    run.end();
    // What does not hold is passed over, and the one before was made by three nodes.
    let segment = part.join("segment");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[3] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let mut run = site.run(3, &[8, 9]);
    assert_eq!(run.join(3, None), vec![format!("restore {first}"); 3]);
    for rank in 0..3 {
        assert!(run.restored(rank) == text("first", rank), "rank {rank}");
    }
    run.end();
}
