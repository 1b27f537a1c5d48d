//! A cluster in memory: nodes on disks that crash, a network that loses, repeats, reorders and delays, and the bytes that every
//! program's folder had.

mod files;

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::{self, Outcome};
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::pull::Patience;
use gpuos_checkpoint::sets::{NodeDomains, Scheme, Set, arrange};
use gpuos_core::job::JobId;
use gpuos_mover::node::Node;
use gpuos_mover::output::{Output, Ready};
use gpuos_mover::settings::Settings;
use gpuos_store::coding::{Coding, Compress};
use gpuos_store::disk::Disk;
use gpuos_store::fake::{FakeDisk, Open, Trouble};
use gpuos_store::ingest::Limits;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_store::verify::verify;

pub use crate::random::Random;
pub use files::Files;
pub use files::read;
use files::{Draw, tree, write};

/// How long a session goes on when all is done: what comes late, as a question about an old part, comes within it.
const IDLE_MS: u64 = 1500;

/// How long a session goes on with a disk that fails.
const CRASHED_MS: u64 = 3000;

/// How long a session may take, in simulated milliseconds: far more than all time limits together.
const MOST_MS: u64 = 600_000;

/// How bad the network is, in percent.
#[derive(Clone, Copy, Default)]
pub struct Network {
    pub lost: u64,
    pub repeated: u64,
    /// The longest delay in milliseconds.
    pub delay: u64,
}

pub const QUIET: Network = Network {
    lost: 0,
    repeated: 0,
    delay: 3,
};

/// What goes wrong with a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// The program of this node does not finish its files.
    NoFolder(u16),
    /// The disk of this node is full.
    Full(u16),
}

/// What a session is to do.
#[derive(Clone, Copy)]
pub struct Script {
    pub checkpoints: u32,
    pub network: Network,
    /// All machines stop after so many messages were sent.
    pub stop_after: Option<u64>,
    /// When all is done, this node loses its segment and shards of the newest checkpoint, and makes them again.
    pub rebuild: Option<u16>,
    /// With the first checkpoint of the session.
    pub wrong: Wrong,
    /// The next checkpoint begins as soon as the leader knows that the one before has ended.
    pub eager: bool,
    /// The disk of this node's store fails from this call on, as the machine would stop there.
    pub crash: Option<(u16, u64)>,
}

/// How a session ended.
pub struct Session {
    pub sent: u64,
    /// What each node goes on with.
    pub ready: Vec<Option<Ready>>,
    /// All outcomes, by attempt and node.
    pub outcomes: BTreeMap<CheckpointId, BTreeMap<u16, Outcome>>,
    pub stopped: bool,
    pub rebuilt: Option<CheckpointId>,
    /// The most checkpoints that were in a store when one was committed.
    pub most: usize,
    /// What nodes had to say.
    pub notes: Vec<(u16, String)>,
}

pub struct Cluster {
    /// Of the stores.
    pub disks: Vec<FakeDisk>,
    /// Of the programs' folders.
    pub programs: Vec<FakeDisk>,
    pub sets: Vec<Set>,
    pub random: Random,
    pub files: Vec<Files>,
    /// What each node's folder had for an attempt.
    pub begun: BTreeMap<CheckpointId, Vec<Files>>,
    /// The newest that any program was told to be committed.
    pub committed: Option<CheckpointId>,
    pub run: u32,
    /// What other numbers of nodes have made: the newest that holds, and the highest number.
    pub others: (Option<CheckpointId>, u32),
    /// In which form the first run keeps extents; each run takes the next one.
    form: u64,
}

/// As they are, compressed, encrypted, and both.
fn form(nth: u64) -> Coding {
    let compress = [Compress::No, Compress::Always][(nth % 2) as usize];
    Coding {
        compress,
        encrypt: nth / 2 % 2 == 1,
    }
}

pub fn key() -> SiteKey {
    SiteKey::derive(b"a key of tests that is long enough")
}

pub fn folder(disk: &FakeDisk, name: &[u8]) -> Open {
    let root = disk.root();
    if disk.open_folder(&root, name).is_err() {
        disk.make_folder(&root, name).unwrap();
        disk.sync_folder(&root).unwrap();
    }
    disk.open_folder(&root, name).unwrap()
}

pub fn settings(own: u16, nodes: u16, run: u32, sets: &[Set]) -> Settings {
    let mut settings = Settings::new(JobId::from(7), 0, NodeIndex(own), nodes, run, sets.to_vec());
    settings.piece = 6000;
    settings.window = 3;
    settings.patience = Patience {
        retry_ms: 40,
        longest_ms: 200,
        tries: 12,
    };
    settings.commit = commit::Settings {
        prepare_ms: 60_000,
        retry_ms: 50,
        retry_most_ms: 400,
        ask_ms: 300,
    };
    settings.full_every = 3;
    settings.limits = Limits {
        extent: 8192,
        ..Limits::default()
    };
    settings
}

/// Sets of nodes that share nothing.
pub fn sets(nodes: u16, scheme: &str) -> Vec<Set> {
    let scheme: Scheme = scheme.parse().unwrap();
    arrange(&vec![NodeDomains::default(); nodes.into()], scheme).unwrap()
}

impl Cluster {
    pub fn new(nodes: u16, scheme: &str, seed: u64) -> Cluster {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let files = (0..nodes).map(|_| tree(&mut random)).collect();
        Cluster {
            disks: (0..nodes).map(|_| FakeDisk::new(0)).collect(),
            programs: (0..nodes).map(|_| FakeDisk::new(0)).collect(),
            sets: sets(nodes, scheme),
            random,
            files,
            begun: BTreeMap::new(),
            committed: None,
            run: 0,
            form: seed,
            others: (None, 0),
        }
    }

    /// The disk of a node is replaced by an empty one.
    pub fn lose(&mut self, node: u16) {
        self.disks[usize::from(node)] = FakeDisk::new(0);
    }

    /// Another one that is the same up to now.
    pub fn fork(&self) -> Cluster {
        Cluster {
            disks: self.disks.iter().map(FakeDisk::fork).collect(),
            programs: self.programs.iter().map(FakeDisk::fork).collect(),
            sets: self.sets.clone(),
            random: self.random.clone(),
            files: self.files.clone(),
            begun: self.begun.clone(),
            committed: self.committed,
            run: self.run,
            form: self.form,
            others: self.others,
        }
    }

    /// The folder of a checkpoint in a node's store.
    pub fn part(&self, node: u16, id: CheckpointId) -> Open {
        let disk = &self.disks[usize::from(node)];
        let job = disk.open_folder(&folder(disk, b"store"), b"7").unwrap();
        disk.open_folder(&job, id.to_string().as_bytes()).unwrap()
    }

    /// All machines lose their power.
    pub fn power_off(&mut self) {
        for disk in &self.disks {
            disk.reboot(self.random.below(1 << 32));
        }
    }

    /// Files change a little.
    fn work(&mut self) {
        for files in &mut self.files {
            let random = &mut self.random;
            let names: Vec<Vec<u8>> = files.keys().cloned().collect();
            let name = &names[random.below(names.len() as u64) as usize];
            match random.below(4) {
                0 => {
                    files.insert(format!("new/{}", random.below(1000)).into(), vec![]);
                }
                1 if files.len() > 2 => {
                    files.remove(name);
                }
                _ => {
                    let length = 1 + random.below(9000) as usize;
                    let bytes = random.bytes(length);
                    let file = files.get_mut(name).unwrap();
                    let at = random.below(file.len() as u64 + 1) as usize;
                    file.resize(file.len().max(at + length), 0);
                    file[at..at + length].copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Starts all nodes in a new run of the job, and has them take checkpoints.
    pub fn session(&mut self, script: Script) -> Session {
        self.run += 1;
        let disks = self.disks.clone();
        let stores: Vec<Store<FakeDisk>> = disks
            .iter()
            .map(|disk| {
                let (store, _) = Store::open(disk.clone(), folder(disk, b"store"), key()).unwrap();
                store.coded(form(self.form.wrapping_add(self.run.into())))
            })
            .collect();
        let programs = self.programs.clone();
        let count = disks.len() as u16;
        let nodes: Vec<Node<'_, FakeDisk>> = stores
            .iter()
            .zip(&programs)
            .enumerate()
            .map(|(own, (store, disk))| {
                let mut settings = settings(own as u16, count, self.run, &self.sets);
                (settings.above, settings.beyond) = self.others;
                Node::new(store, disk, settings, 0).unwrap()
            })
            .collect();
        if let Some((node, at)) = script.crash {
            disks[usize::from(node)].trouble(Trouble::Crash { at });
        }
        let mut world = World {
            script,
            nodes,
            now: 0,
            serial: 0,
            net: BTreeMap::new(),
            session: Session {
                sent: 0,
                ready: vec![None; count.into()],
                outcomes: BTreeMap::new(),
                stopped: false,
                rebuilt: None,
                most: 0,
                notes: Vec::new(),
            },
        };
        world.go(self);
        let mut ready = world.session.ready.iter().flatten();
        let restore = ready.clone().map(|ready| ready.restore).next();
        let same = ready.all(|ready| Some(ready.restore) == restore);
        assert!(same, "all nodes restore the same checkpoint");
        if script.crash.is_none() && !world.session.stopped {
            self.is_whole(&stores);
        }
        world.session
    }

    /// The newest checkpoint and all that it refers to have all their redundancy, and nothing else is begun.
    fn is_whole(&self, stores: &[Store<FakeDisk>]) {
        let Some(newest) = self.committed else { return };
        let jobs: Vec<_> = stores
            .iter()
            .map(|store| store.existing(&JobId::from(7)).unwrap())
            .collect();
        let manifests = jobs.iter().filter_map(|job| job.manifest(newest).ok());
        let needs: BTreeSet<CheckpointId> = manifests
            .flat_map(|manifest| manifest.segments)
            .map(|segment| segment.id)
            .collect();
        for (node, job) in jobs.iter().enumerate() {
            assert_eq!(job.current().unwrap(), Some(newest), "on node {node}");
            let parity = usize::from(self.sets[0].parity);
            let held = job.list().unwrap();
            for id in &needs {
                let faults = verify(job, *id).unwrap();
                assert!(faults.is_empty(), "node {node}, {id}: {faults:?}");
                let part = held.iter().find(|part| part.id == *id).unwrap();
                let whole = part.copies.len() >= parity && part.shards.len() >= parity;
                assert!(whole, "node {node} has lost redundancy of {id}: {part:?}");
            }
        }
    }

    /// The bytes of a node's part are those that it had.
    fn check(&self, node: &Node<'_, FakeDisk>, at: usize, id: CheckpointId) {
        let disk = &self.programs[at];
        let name = format!("restored-{}", self.run);
        node.restore(id, &disk.root(), name.as_bytes(), None)
            .unwrap();
        let found = read(
            disk,
            disk.open_folder(&disk.root(), name.as_bytes()).unwrap(),
        );
        assert!(
            found == self.begun[&id][at],
            "node {at} has other files than it had for {id}"
        );
    }

    /// How many checkpoints have something in a node's store.
    pub fn held(&self, node: u16) -> usize {
        let disk = &self.disks[usize::from(node)];
        let job = disk.open_folder(&folder(disk, b"store"), b"7").unwrap();
        let names = disk.list(&job, usize::MAX).unwrap();
        names.iter().filter(|name| name.contains(&b'-')).count()
    }
}

struct World<'a> {
    script: Script,
    nodes: Vec<Node<'a, FakeDisk>>,
    now: u64,
    serial: u64,
    net: BTreeMap<(u64, u64), (u16, u16, Vec<u8>)>,
    session: Session,
}

impl World<'_> {
    fn go(&mut self, cluster: &mut Cluster) {
        let mut left = self.script.checkpoints;
        let mut highest = None;
        let mut at_work: Option<CheckpointId> = None;
        let mut done = None;
        while done.is_none_or(|done| self.now < done + IDLE_MS) {
            self.now += 1;
            // Without its disk a node may keep all others waiting.
            if self.script.crash.is_some() && self.now >= CRASHED_MS {
                self.session.stopped = true;
                return;
            }
            if self.now >= MOST_MS {
                panic!(
                    "the session does not end: {:?}, {:?}",
                    self.session.ready, self.session.outcomes
                );
            }
            while let Some(entry) = self
                .net
                .first_entry()
                .filter(|entry| entry.key().0 <= self.now)
            {
                let (from, to, bytes) = entry.remove();
                let node = &mut self.nodes[usize::from(to)];
                let out = node.receive(NodeIndex(from), &bytes, self.now).unwrap();
                self.out(cluster, to, out);
                if self.session.stopped {
                    return;
                }
            }
            if self.now.is_multiple_of(20) {
                for node in 0..self.nodes.len() {
                    let out = self.nodes[node].tick(self.now);
                    self.out(cluster, node as u16, out);
                }
                if self.session.stopped {
                    return;
                }
            }
            let Some(ready) = &self.session.ready[0] else {
                continue;
            };
            if let Some(id) = at_work {
                // A node that had not begun its part is not told of a failure.
                let ended = self.session.outcomes.get(&id).is_some_and(|outcomes| {
                    let failed = matches!(outcomes.get(&0), Some(Outcome::Failed { .. }));
                    let known = self.script.eager && outcomes.contains_key(&0);
                    failed || known || outcomes.len() == self.nodes.len()
                });
                if !ended {
                    continue;
                }
                at_work = None;
            }
            if left > 0 {
                left -= 1;
                let number = highest.unwrap_or(ready.highest) + 1;
                highest = Some(number);
                let attempt = cluster.random.below(u64::MAX);
                at_work = Some(CheckpointId { number, attempt });
                self.begin(cluster, CheckpointId { number, attempt });
            } else if done.is_none() && self.session.ready.iter().all(Option::is_some) {
                done = Some(self.now);
                self.rebuild(cluster);
            }
        }
    }

    fn rebuild(&mut self, cluster: &mut Cluster) {
        let (Some(node), Some(id)) = (self.script.rebuild, cluster.committed) else {
            return;
        };
        let disk = &cluster.disks[usize::from(node)];
        let part = cluster.part(node, id);
        for name in disk.list(&part, usize::MAX).unwrap() {
            if name == b"segment" || name.starts_with(b"shard") {
                disk.unlink(&part, &name).unwrap();
            }
        }
        let out = self.nodes[usize::from(node)].rebuild(id, self.now);
        self.out(cluster, node, out);
    }

    fn begin(&mut self, cluster: &mut Cluster, id: CheckpointId) {
        cluster.work();
        cluster.begun.insert(id, cluster.files.clone());
        let early = cluster.random.percent(50);
        if early {
            let out = self.nodes[0].begin(id, self.now);
            self.out(cluster, 0, out);
        }
        for node in 0..self.nodes.len() {
            let disk = &cluster.programs[node];
            let name = format!("program-{id}");
            write(disk, folder(disk, name.as_bytes()), &cluster.files[node]);
            let open = folder(disk, name.as_bytes());
            let first = self.session.outcomes.is_empty();
            let wrong = Some(self.script.wrong).filter(|_| first);
            if wrong == Some(Wrong::Full(node as u16)) {
                cluster.disks[node].trouble(Trouble::Full { after: 3000 });
            } else if self.script.wrong == Wrong::Full(node as u16) {
                cluster.disks[node].trouble(Trouble::None);
            }
            if wrong == Some(Wrong::NoFolder(node as u16)) {
                continue;
            }
            let out = self.nodes[node].offer(id.number, open, 1_700_000_000, self.now);
            self.out(cluster, node as u16, out);
        }
        if !early {
            let out = self.nodes[0].begin(id, self.now);
            self.out(cluster, 0, out);
        }
    }

    fn out(&mut self, cluster: &mut Cluster, from: u16, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, bytes } => self.send(cluster, from, to.0, bytes),
                Output::Ended { id, outcome } => {
                    if std::env::var_os("GPUOS_SHOW").is_some() {
                        println!("{} node {from}: {id} {outcome:?}", self.now);
                    }
                    if outcome == Outcome::Committed {
                        // A disk that has failed cannot be looked at.
                        if self.script.crash.is_none() {
                            let held = cluster.held(from);
                            self.session.most = self.session.most.max(held);
                        }
                        cluster.committed = cluster.committed.max(Some(id));
                    }
                    self.session
                        .outcomes
                        .entry(id)
                        .or_default()
                        .insert(from, outcome);
                }
                Output::RefusedBegin { why, .. } => panic!("refused: {why}"),
                Output::Ready(ready) => {
                    let at = usize::from(from);
                    if let Some(id) = ready.restore.filter(|_| self.script.crash.is_none()) {
                        cluster.check(&self.nodes[at], at, id);
                    }
                    self.session.ready[at] = Some(ready);
                }
                Output::Note(note) => {
                    self.session.notes.push((from, note.clone()));
                    if std::env::var_os("GPUOS_SHOW").is_some() {
                        println!("{} node {from}: {note}", self.now);
                    }
                }
                Output::Rebuilt { id, failed } => {
                    assert_eq!(failed, None);
                    self.session.rebuilt = Some(id);
                }
                Output::FolderRead { .. } => {}
            }
        }
    }

    fn send(&mut self, cluster: &mut Cluster, from: u16, to: u16, bytes: Vec<u8>) {
        self.session.sent += 1;
        if self
            .script
            .stop_after
            .is_some_and(|most| self.session.sent > most)
        {
            self.session.stopped = true;
            return;
        }
        let network = self.script.network;
        let random = &mut cluster.random;
        if random.percent(network.lost) {
            return;
        }
        let copies = 1 + u64::from(random.percent(network.repeated));
        for _ in 0..copies {
            self.serial += 1;
            let due = self.now + 1 + random.below(network.delay);
            self.net
                .insert((due, self.serial), (from, to, bytes.clone()));
        }
    }
}

/// A few seeds, and more when the environment asks for them.
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    match std::env::var_os("GPUOS_LONG") {
        Some(_) => 0..many,
        None => 0..few,
    }
}
