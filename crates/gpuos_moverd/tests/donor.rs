//! Parts that one node gives another, over a link of their own: stores in temporary folders, a workload manager in memory, and credentials
//! that anybody could make.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_core::job::JobId;
use gpuos_host::munge::{self, Credentials, Opened};
use gpuos_mover::donors::{Donor, Taking, decide};
use gpuos_moverd::donor::Holding;
use gpuos_moverd::donor::client::{Client, Wanted, take};
use gpuos_moverd::donor::patient::ask;
use gpuos_moverd::donor::serve::{Giver, holding};
use gpuos_moverd::jobs::Jobs;
use gpuos_moverd::network::Network;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::ingest::Limits;
use gpuos_store::job::{JobStore, New};
use gpuos_store::key::SiteKey;
use gpuos_store::shard::{ShardReader, ShardWriter};
use gpuos_store::store::Store;
use gpuos_store::verify::verify;
use gpuos_workload::job::{Job, JobState};
use gpuos_workload::recorded::{Recorded, Table};
use gpuos_workload::{Hint, Holder, WorkloadManager};
use rustix::process::{getegid, geteuid};
use tempfile::TempDir;

use crate::one::listens;
use crate::port::port;

const OLD: &str = "n1";
const NEW: &str = "n4";
const CHUNK: u64 = 40 << 12;

/// Credentials that anybody can read and make.
pub struct Plain;

impl Credentials for Plain {
    fn seal(&self, payload: &[u8]) -> Result<String, munge::Error> {
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("MUNGE:{hex}:"))
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, munge::Error> {
        let text = String::from_utf8(credential.to_vec()).unwrap();
        let hex = text.trim_start_matches("MUNGE:").trim_end_matches(':');
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        Ok(Opened {
            payload: (0..hex.len()).step_by(2).map(byte).collect(),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        })
    }
}

fn job() -> JobId {
    JobId::from(7)
}

fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 5 }
}

fn uid() -> u32 {
    LinuxDisk.user()
}

/// A node that holds parts of job 7, and one that wants them.
struct Two {
    place: TempDir,
    old: &'static Store<LinuxDisk>,
    new: &'static Store<LinuxDisk>,
    network: Arc<Network>,
    manager: Recorded,
}

impl Two {
    fn new() -> Two {
        Two::with_keys([&b"a key of tests that is long enough"[..]; 2])
    }

    fn with_keys(keys: [&[u8]; 2]) -> Two {
        let place = TempDir::new().unwrap();
        let store = |name: &str, key: &[u8]| {
            let root = place.path().join(name);
            private(&root);
            let root = LinuxDisk::folder(&root).unwrap();
            let (store, _) = Store::open(LinuxDisk, root, SiteKey::derive(key)).unwrap();
            &*Box::leak(Box::new(store))
        };
        let (old, new) = (store("old", keys[0]), store("new", keys[1]));
        // Networks listen 1000 above the port of the workload manager's daemon.
        let port = port();
        let manager = Recorded::new(Table::default());
        manager.with(|table| {
            let address = ("127.0.0.1".to_string(), port - 1000);
            table.addresses.insert(OLD.into(), address);
        });
        let network = Network::new(manager.addresses().unwrap(), Arc::new(Plain), 0, 0);
        let network = Arc::new(network);
        let jobs = Arc::new(Jobs::new(sync_channel(1).0));
        let giver = Arc::new(Giver::new(old, Arc::new(manager.clone())));
        let listener = listens(&network, OLD, &jobs);
        network
            .take(listener, jobs, move |link| giver.take(link))
            .unwrap();
        Two {
            place,
            old,
            new,
            network,
            manager,
        }
    }

    /// The job has these nodes by the workload manager, and this user.
    fn runs(&self, number: u32, nodes: &[&str], uid: u32) {
        let record = Job {
            id: number.into(),
            uid,
            state: JobState::Running,
            nodes: nodes.iter().map(|node| node.to_string()).collect(),
            ..Job::default()
        };
        self.manager
            .with(|table| table.jobs.insert(number.into(), record));
    }

    fn ask(&self, of: u32, by: u32, node: &str) -> Result<(Client, Holding), String> {
        let wanted = Wanted {
            of: of.into(),
            by: by.into(),
            node: node.into(),
        };
        let holder = Holder {
            node: OLD.into(),
            is_down: false,
            hint: Hint::Holds,
        };
        ask(&self.network, &holder, &wanted)
    }

    fn there(&self) -> JobStore<'static, LinuxDisk> {
        self.old.job(&job(), uid()).unwrap()
    }

    fn here(&self) -> JobStore<'static, LinuxDisk> {
        self.new.job(&job(), uid()).unwrap()
    }

    fn file(&self, number: u32, name: &str) -> PathBuf {
        let folder = self.place.path().join("old/7").join(id(number).to_string());
        folder.join(name)
    }

    /// Node 1 of three has a checkpoint; what it has in common with `base` is not written again.
    fn save(&self, number: u32, base: Option<u32>) {
        let store = self.there();
        let program = self.place.path().join("program");
        private(&program);
        fs::write(program.join("same"), vec![7; 300_000]).unwrap();
        fs::write(program.join("state"), format!("{number}").repeat(9000)).unwrap();
        let new = New {
            id: id(number),
            node: NodeIndex(1),
            nodes: 3,
            time: 1_700_000_000,
        };
        let previous = base.map(|base| store.manifest(id(base)).unwrap());
        let folder = LinuxDisk::folder(&program).unwrap();
        let draft = store.ingest(
            &new,
            &LinuxDisk,
            &folder,
            &Limits::default(),
            previous.as_ref(),
        );
        let set = NodeSet {
            members: (0..3).map(NodeIndex).collect(),
            parity: 1,
            chunk: CHUNK,
        };
        store.prepare(draft.unwrap(), set).unwrap();
        store.commit(id(number)).unwrap();
    }

    fn shard(&self, number: u32) {
        let store = self.there();
        let mut writer = ShardWriter::create(&store, id(number), 1, 2, CHUNK).unwrap();
        writer.piece(&vec![9; CHUNK as usize]).unwrap();
        writer.finish().unwrap();
    }

    /// Takes what `decide` says that node 1 takes.
    fn take(&self, seats: usize) -> Result<Taking, String> {
        let (mut client, holding) = self.ask(7, 7, NEW)?;
        let donor = Donor {
            node: OLD.into(),
            claim: holding.claim.clone().unwrap(),
            parts: holding.parts.clone(),
        };
        let (taking, _) = decide(&vec![None; seats], &[donor], None);
        let to = self.here();
        take(
            &mut client,
            &holding,
            &taking,
            (&to, NodeIndex(1)),
            &mut |_| Ok(()),
        )?;
        Ok(taking)
    }
}

fn private(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

fn holds(store: &JobStore<'_, LinuxDisk>, number: u32) -> bool {
    verify(store, id(number)).is_ok_and(|faults| faults.is_empty())
}

#[test]
fn a_part_comes_with_what_it_refers_to_and_with_parity_where_another_one_is_lost() {
    let two = Two::new();
    two.runs(7, &[NEW], uid());
    two.save(1, None);
    two.save(2, Some(1));
    two.shard(2);
    let taking = two.take(3).unwrap();
    assert_eq!(taking.ids, [id(2)], "the newest alone");
    assert_eq!(taking.whole, Some(vec![id(1)]), "nodes 0 and 2 are nowhere");
    let here = two.here();
    assert!(holds(&here, 2) && holds(&here, 1));
    assert!(ShardReader::open(&here, id(2), 1, 2, CHUNK).is_ok());
    let (_, index, nodes, _) = here.claim().unwrap().unwrap();
    assert_eq!((index, nodes), (NodeIndex(1), 3));
    // What is there is not taken again, and nothing is worse for it.
    two.take(3).unwrap();
    assert!(holds(&two.here(), 2));
}

#[test]
fn parts_go_to_nodes_of_running_jobs_of_the_same_user_alone() {
    let two = Two::new();
    two.save(1, None);
    let refused = |by: u32, node: &str, why: &str| {
        let error = two.ask(7, by, node).err().expect("it is refused");
        assert!(error.contains(why), "{error}");
    };
    refused(7, NEW, "knows no job 7");
    two.runs(8, &[NEW], uid() + 1);
    refused(8, NEW, "job 8 is user");
    two.runs(9, &["n5"], uid());
    refused(9, NEW, "job 9 does not run on node n4");
    refused(9, "", "does not run on node");
    two.runs(9, &[NEW], uid());
    two.manager.with(|table| {
        table.jobs.get_mut(&JobId::from(9)).unwrap().state = JobState::Over;
    });
    refused(9, NEW, "job 9 does not run on node n4");
    two.manager
        .with(|table| table.no_answer = Some("it is away".into()));
    refused(9, NEW, "does not tell of job 9");
    two.manager.with(|table| table.no_answer = None);
    // Another job of the same user, which begins from it.
    two.runs(9, &[NEW], uid());
    let (_, holding) = two.ask(7, 9, NEW).unwrap();
    assert_eq!(holding.parts.len(), 1);
    // Of a job of which nothing is here nothing is said, also not whose it is.
    let (_, nothing) = two.ask(77, 9, NEW).unwrap();
    assert_eq!(nothing, Holding::default());
}

#[test]
fn other_bytes_never_count() {
    for name in ["segment", "manifest", "shard-1-2"] {
        let two = Two::new();
        two.runs(7, &[NEW], uid());
        two.save(1, None);
        two.shard(1);
        let path = two.file(1, name);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let taken = match name {
            // Then it has nothing that holds, and nobody asks it for more.
            "manifest" => {
                let (mut client, _) = two.ask(7, 7, NEW).unwrap();
                let sound = Holding {
                    parts: vec![gpuos_mover::donors::HeldPart {
                        id: id(1),
                        committed: true,
                        needs: Vec::new(),
                    }],
                    ..Holding::default()
                };
                let taking = Taking {
                    ids: vec![id(1)],
                    ..Taking::default()
                };
                let to = two.here();
                take(
                    &mut client,
                    &sound,
                    &taking,
                    (&to, NodeIndex(1)),
                    &mut |_| Ok(()),
                )
                .map(|_| ())
            }
            _ => two.take(3).map(|_| ()),
        };
        let here = two.here();
        match name {
            "shard-1-2" => {
                assert!(taken.is_ok() && holds(&here, 1), "{taken:?}");
                assert!(ShardReader::open(&here, id(1), 1, 2, CHUNK).is_err());
            }
            _ => {
                assert!(taken.is_err(), "{name}");
                assert!(!holds(&here, 1), "{name}");
            }
        }
    }
}

#[test]
fn what_another_site_has_signed_never_counts() {
    let two = Two::with_keys([
        b"a key of tests that is long enough",
        b"another key of tests, of another site",
    ]);
    two.runs(7, &[NEW], uid());
    two.save(1, None);
    let error = two.take(1).unwrap_err();
    assert!(error.contains("checkpoint"), "{error}");
    assert!(two.here().claim().unwrap().is_none());
}

#[test]
fn what_is_held_is_told_as_it_is() {
    let two = Two::new();
    let empty = holding(&two.there()).unwrap();
    assert_eq!(empty, Holding::default());
    two.save(1, None);
    two.save(2, Some(1));
    let told = holding(&two.there()).unwrap();
    assert_eq!(told.claim.map(|claim| claim.newest), Some(id(2)));
    let parts: Vec<(u32, bool)> = told
        .parts
        .iter()
        .map(|it| (it.id.number, it.committed))
        .collect();
    assert_eq!(parts, [(1, true), (2, true)]);
    assert_eq!(told.parts[1].needs, [id(1)]);
}

#[test]
fn a_dead_node_is_not_waited_for_and_a_mover_that_is_started_anew_is() {
    // It takes no connection and refuses none, as a host that is off: its queue is full.
    let full = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&full, &any).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let full: TcpListener = full.into();
    let dead = full.local_addr().unwrap();
    let _waits = std::net::TcpStream::connect(dead).unwrap();
    let later = port();

    let manager = Recorded::new(Table::default());
    manager.with(|table| {
        for (node, port) in [("dead", dead.port()), ("later", later)] {
            let address = ("127.0.0.1".to_string(), port - 1000);
            table.addresses.insert(node.into(), address);
        }
    });
    let network = Network::new(manager.addresses().unwrap(), Arc::new(Plain), 0, 0);
    let network = Arc::new(network);
    let wanted = Wanted {
        of: job(),
        by: job(),
        node: NEW.into(),
    };
    let tried = |node: &str, is_down| {
        let node = node.to_string();
        let hint = Hint::Holds;
        let holder = Holder {
            node,
            is_down,
            hint,
        };
        ask(&network, &holder, &wanted)
    };
    // Less than what a node is given that is not known to be down.
    let begun = std::time::Instant::now();
    let why = tried("dead", true).err().unwrap();
    assert!(why.contains("node dead"), "{why}");
    assert!(begun.elapsed().as_secs() < 14, "{:?}", begun.elapsed());

    let two = Two::new();
    two.runs(7, &[NEW], uid());
    let jobs = Arc::new(Jobs::new(sync_channel(1).0));
    let giver = Arc::new(Giver::new(two.old, Arc::new(two.manager.clone())));
    let listening = network.clone();
    let starts = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let listener = listens(&listening, "later", &jobs);
        listening
            .take(listener, jobs, move |link| giver.take(link))
            .unwrap();
    });
    let (_, holding) = tried("later", false).unwrap();
    assert_eq!(holding.claim, None);
    starts.join().unwrap();
}
