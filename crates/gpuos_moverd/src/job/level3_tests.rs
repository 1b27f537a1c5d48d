//! Draining and the way back, of nodes whose stores are folders of a temporary place, without links and a workload manager.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_config::options::Drain as Asked;
use gpuos_core::job::JobId;
use gpuos_mover::output::Ready;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::ingest::Limits;
use gpuos_store::job::New;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_store::verify::verify;
use tempfile::TempDir;

use super::back::{Back, goes_on};
use super::drain::Drain;
use crate::carried::Body;
use crate::event::{BackDone, Event};
use crate::level3::Level3;

/// Only what hangs for good takes longer.
const LIMIT: Duration = Duration::from_secs(60);

fn job() -> JobId {
    JobId::from(7)
}

fn uid() -> u32 {
    LinuxDisk.user()
}

fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 5 }
}

fn private(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

/// With how many drained checkpoints stay.
struct Place(TempDir, u32);

impl Place {
    fn new() -> Place {
        Place::keeping(1)
    }

    fn keeping(keep: u32) -> Place {
        let place = Place(TempDir::new().unwrap(), keep);
        private(&place.shared());
        place
    }

    fn shared(&self) -> PathBuf {
        self.0.path().join("shared")
    }

    fn node(&self, name: &str, index: u16) -> Node {
        let root = self.0.path().join(name);
        private(&root);
        let key = SiteKey::derive(b"a key of tests that is long enough");
        let root = LinuxDisk::folder(&root).unwrap();
        let (store, _) = Store::open(LinuxDisk, root, key).unwrap();
        let store: &'static Store<LinuxDisk> = Box::leak(Box::new(store));
        let config = CheckpointConfig {
            shared: Some(self.shared()),
            keep: self.1,
            ..CheckpointConfig::default()
        };
        let level3 = Level3::new(&config, name, store).unwrap();
        level3.look(Ok(None));
        let (to, from) = sync_channel(16);
        let program = self.0.path().join(format!("{name}-program"));
        Node {
            drain: Drain::new(Some(level3.clone()), (job(), uid()), to.clone()),
            back: Back::new(Some(level3.clone()), (job(), uid()), to.clone()),
            index: NodeIndex(index),
            store,
            level3,
            program,
            from,
            _to: to,
        }
    }
}

struct Node {
    drain: Drain,
    back: Back,
    index: NodeIndex,
    store: &'static Store<LinuxDisk>,
    level3: Arc<Level3>,
    program: PathBuf,
    from: Receiver<Event>,
    _to: SyncSender<Event>,
}

impl Node {
    fn take(&self, number: u32) {
        private(&self.program);
        let text = format!("{} of {}", number, self.index).repeat(1000);
        fs::write(self.program.join("state"), text).unwrap();
        let job = self.store.job(&job(), uid()).unwrap();
        let new = New {
            id: id(number),
            node: self.index,
            nodes: 2,
            time: 1_700_000_000,
        };
        let folder = LinuxDisk::folder(&self.program).unwrap();
        let draft = job.ingest(&new, &LinuxDisk, &folder, &Limits::default(), None);
        let set = NodeSet {
            members: vec![self.index],
            parity: 0,
            chunk: 0,
        };
        job.prepare(draft.unwrap(), set).unwrap();
        job.commit(id(number)).unwrap();
    }

    fn event(&self) -> Event {
        self.from.recv_timeout(LIMIT).expect("a thread has ended")
    }

    fn has(&self, number: u32) -> bool {
        let job = self.store.job(&job(), uid()).unwrap();
        verify(&job, id(number)).is_ok_and(|faults| faults.is_empty())
    }

    fn looked(&mut self) {
        assert!(!self.back.is_known(1));
        let Event::Back(BackDone::Looked { round, found }) = self.event() else {
            panic!("it has not looked");
        };
        self.back.looked(round, found);
        assert!(self.back.is_known(1));
    }

    fn fetch(&mut self, number: u32) -> Result<(), String> {
        let parts = (vec![self.index], None);
        self.back.fetch(id(number), parts, 9).unwrap();
        match self.event() {
            Event::Back(BackDone::Fetched { session: 9, result }) => result,
            _ => panic!("it has not fetched"),
        }
    }
}

/// Two nodes as they are when movers have found each other: index 0 leads.
fn two(place: &Place, drain: Option<Asked>) -> [Node; 2] {
    let mut nodes = [place.node("n1", 0), place.node("n2", 1)];
    for node in &mut nodes {
        node.drain.begin(drain, 2);
    }
    nodes
}

/// Says it to the nodes, and hears what they say, until nothing is under way.
fn until_quiet(nodes: &mut [Node; 2]) {
    // The folder of the job.
    assert!(nodes[0].drain.tick().is_empty());
    let Event::Drain(done) = nodes[0].event() else {
        panic!("it has not begun");
    };
    assert_eq!(nodes[0].drain.done(done), None);
    let said = nodes[0].drain.tick();
    assert_eq!(said.len(), 2);
    let mut all = true;
    for (seat, body) in said {
        let Body::Drain { id, round } = body else {
            panic!("{body:?}");
        };
        let node = &mut nodes[usize::from(seat)];
        let now = node.drain.asked(id, round, node.index);
        let answer = now.or_else(|| match node.event() {
            Event::Drain(done) => node.drain.done(done),
            _ => None,
        });
        if let Some(Body::Drained { id, round, failed }) = answer {
            all &= failed.is_none();
            nodes[0].drain.answered(seat, (id, round), failed);
        }
    }
    if all {
        let Event::Drain(done) = nodes[0].event() else {
            panic!("it has not looked");
        };
        assert_eq!(nodes[0].drain.done(done), None);
    }
}

fn pruned(node: &mut Node) {
    let Event::Drain(done) = node.event() else {
        panic!("it has not pruned");
    };
    assert_eq!(node.drain.done(done), None);
}

/// They make a checkpoint of that number, and drain it.
fn drained(nodes: &mut [Node; 2], number: u32) {
    nodes.iter().for_each(|node| node.take(number));
    nodes[0].drain.committed(id(number), false);
    until_quiet(nodes);
    pruned(&mut nodes[0]);
}

#[test]
fn what_two_nodes_have_drained_comes_back_on_two_others() {
    let place = Place::new();
    let mut nodes = two(&place, Some(Asked::Every(2)));
    for number in 1..=4 {
        nodes.iter().for_each(|node| node.take(number));
        nodes[0].drain.committed(id(number), false);
        if number % 2 == 0 {
            until_quiet(&mut nodes);
            assert_eq!(nodes[0].drain.told(&[]).0, Some(number));
            pruned(&mut nodes[0]);
        } else {
            assert!(nodes[0].drain.tick().is_empty(), "{number} is not due");
        }
    }
    let mut others = [place.node("n3", 0), place.node("n4", 1)];
    others[0].looked();
    let claims = others[0].back.claims(2);
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|claim| claim.newest == id(4)));
    // A first roster, by which nothing is found on the nodes.
    let said = others[0].back.parts(2, 1);
    assert_eq!(
        (said.fetch, said.better, said.highest),
        (None, Some(id(4)), 4)
    );
    let none = || Ready {
        restore: None,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
    };
    assert!(!goes_on(&said, &mut none()));
    others[0].back.again(&said, []);
    let said = others[0].back.parts(2, 1);
    assert_eq!((said.fetch, said.better), (Some(id(4)), None));
    for node in &mut others {
        assert_eq!(node.fetch(4), Ok(()));
        assert!(node.has(4));
    }
    // Older ones are gone, and three nodes have drained nothing.
    assert!(others[0].fetch(2).is_err());
    let three = others[0].back.parts(3, 1);
    assert_eq!(
        (three.fetch, three.better, three.failed),
        (None, None, Vec::new())
    );
    assert_eq!(others[0].back.all_claims(), claims);
}

/// The movers of a run find each other anew, and more nodes have lost their stores than the others can make up for.
#[test]
fn what_was_drained_since_the_begin_of_a_run_is_found_when_movers_gather_again() {
    let place = Place::new();
    let mut nodes = two(&place, Some(Asked::Every(1)));
    nodes[0].looked();
    for number in 1..=3 {
        drained(&mut nodes, number);
    }
    assert_eq!(
        nodes[0].back.parts(2, 0).better,
        None,
        "it has not looked since"
    );
    // An answer of the look before comes too late.
    nodes[0].back.anew();
    assert!(!nodes[0].back.is_known(0));
    nodes[0].back.looked(0, Ok(Vec::new()));
    assert!(!nodes[0].back.is_known(0));
    let Event::Back(BackDone::Looked { round, found }) = nodes[0].event() else {
        panic!("it has not looked");
    };
    nodes[0].back.looked(round, found);
    assert!(nodes[0].back.is_known(0));
    assert_eq!(nodes[0].back.parts(2, 0).better, Some(id(3)));
    // What could not be had before may be there now.
    let said = nodes[0].back.parts(2, 0);
    nodes[0].back.again(&said, []);
    let said = nodes[0].back.parts(2, 0);
    nodes[0].back.again(&said, []);
    assert_eq!(nodes[0].back.parts(2, 0).failed, [3]);
    nodes[0].back.anew();
    nodes[0].looked();
    assert_eq!(nodes[0].back.parts(2, 0).better, Some(id(3)));
}

#[test]
fn what_was_refused_does_not_come_back_from_there() {
    let place = Place::keeping(2);
    let mut nodes = two(&place, Some(Asked::Every(1)));
    let by = Refusal {
        rank: 1,
        node: "n2".into(),
        said: "no layer 7".into(),
    };
    for number in [1, 2] {
        nodes.iter().for_each(|node| node.take(number));
        nodes[0].drain.committed(id(number), false);
        until_quiet(&mut nodes);
        if number == 1 {
            pruned(&mut nodes[0]);
        }
    }
    let before = |node: &mut Node| {
        node.looked();
        node.back.parts(2, 1)
    };
    // The nodes know of it, and the file system does not yet: seat 0 hears of it and takes the one before, if there is one.
    let mut other = place.node("n3", 0);
    let said = before(&mut other);
    assert_eq!(said.better, Some(id(2)));
    other.back.again(&said, [id(2)]);
    let said = other.back.parts(2, 1);
    assert_eq!((said.fetch, said.better), (None, Some(id(1))));
    // It is marked there by the nodes that know of it, for those that do not.
    nodes[1]
        .back
        .mark(nodes[1].index, &[(id(2), by.clone()), (id(9), by.clone())]);
    let mark = place.shared().join(format!("7/node-1/{}/refused", id(2)));
    let end = std::time::Instant::now() + LIMIT;
    while !mark.exists() {
        assert!(std::time::Instant::now() < end, "it is not marked");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = before(&mut place.node("n4", 0));
    assert_eq!(said.better, Some(id(1)));
    assert_eq!(said.refused, [(2, by.to_string())]);
    assert_eq!(said.highest, 2);
}

#[test]
fn what_is_damaged_there_is_passed_over_and_not_forgotten() {
    let place = Place::new();
    let mut nodes = two(&place, Some(Asked::Every(1)));
    drained(&mut nodes, 1);
    let segment = format!("7/node-1/{}/segment", id(1));
    let segment = place.shared().join(segment);
    let mut bytes = fs::read(&segment).unwrap();
    bytes[3] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let mut others = [place.node("n3", 0), place.node("n4", 1)];
    others[0].looked();
    let said = others[0].back.parts(2, 1);
    others[0].back.again(&said, []);
    assert_eq!(others[0].fetch(1), Ok(()));
    let why = others[1].fetch(1).unwrap_err();
    assert!(
        why.contains("does not hold") || why.contains("digest"),
        "{why}"
    );
    let said = others[0].back.parts(2, 1);
    others[0].back.again(&said, []);
    let said = others[0].back.parts(2, 1);
    assert_eq!(
        (said.fetch, said.better, said.failed.as_slice()),
        (None, None, &[1][..])
    );
    let mut ready = Ready {
        restore: None,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
    };
    assert!(goes_on(&said, &mut ready) && ready.lost && ready.highest == 1);
}

#[test]
fn a_node_that_cannot_is_told_of_once_and_the_drained_one_stays() {
    let place = Place::new();
    let mut nodes = two(&place, Some(Asked::Every(1)));
    drained(&mut nodes, 1);
    // Node 1 does not see the folder any more.
    fs::rename(place.shared(), place.0.path().join("away")).unwrap();
    nodes[1].level3.look(Ok(None));
    fs::rename(place.0.path().join("away"), place.shared()).unwrap();
    nodes.iter().for_each(|node| node.take(2));
    nodes[0].drain.committed(id(2), false);
    let before = nodes[0].drain.notes().len();
    until_quiet(&mut nodes);
    let notes = nodes[0].drain.notes();
    assert_eq!((before, notes.len()), (1, 1), "{notes:?}");
    assert!(
        notes[0].contains("no checkpoint is drained: cannot open"),
        "{notes:?}"
    );
    let (newest, text) = nodes[0].drain.told(&[]);
    assert!(
        newest == Some(1) && text.starts_with("off: cannot open"),
        "{text}"
    );
    // Not before some time has gone by.
    assert!(nodes[0].drain.tick().is_empty());
    let mut other = place.node("n3", 0);
    assert_eq!(other.fetch(1), Ok(()));
}

/// On one node the file system is not mounted, and it copies to the folder beneath.
#[test]
fn what_was_copied_to_several_places_is_not_called_drained() {
    let place = Place::new();
    let mut nodes = two(&place, Some(Asked::Every(1)));
    drained(&mut nodes, 1);
    nodes.iter().for_each(|node| node.take(2));
    nodes[0].drain.committed(id(2), false);
    assert!(nodes[0].drain.tick().is_empty());
    let Event::Drain(done) = nodes[0].event() else {
        panic!("it has not begun");
    };
    nodes[0].drain.done(done);
    let (mounted, beneath) = (place.0.path().join("away"), place.shared());
    for (seat, body) in nodes[0].drain.tick() {
        let Body::Drain { id, round } = body else {
            panic!("{body:?}");
        };
        let node = &mut nodes[usize::from(seat)];
        assert_eq!(node.drain.asked(id, round, node.index), None);
        let Event::Drain(done) = node.event() else {
            panic!("it has not drained");
        };
        let said = node.drain.done(done);
        assert_eq!(
            said,
            Some(Body::Drained {
                id,
                round,
                failed: None
            })
        );
        if seat == 1 {
            // What node 0 sees from now on.
            fs::rename(&beneath, &mounted).unwrap();
            private(&beneath);
        }
        nodes[0].drain.answered(seat, (id, round), None);
    }
    let Event::Drain(done) = nodes[0].event() else {
        panic!("it has not looked");
    };
    nodes[0].drain.done(done);
    let (newest, text) = nodes[0].drain.told(&[]);
    assert_eq!(newest, Some(1));
    assert!(
        text.contains("does not see the parts") && text.contains("mounted"),
        "{text}"
    );
    assert!(
        nodes[0]
            .drain
            .notes()
            .concat()
            .contains("does not see the parts")
    );
}

#[test]
fn a_file_system_that_hangs_holds_up_the_copy_alone() {
    let place = Place::new();
    let mut nodes = two(&place, None);
    nodes[0].take(6);
    nodes[1].take(6);
    // As many as the site says.
    nodes[0].drain.committed(id(5), false);
    assert!(nodes[0].drain.tick().is_empty());
    nodes[0].drain.committed(id(6), false);
    assert!(nodes[0].drain.tick().is_empty());
    let Event::Drain(done) = nodes[0].event() else {
        panic!("it has not begun");
    };
    nodes[0].drain.done(done);
    let level3 = nodes[0].level3.clone();
    let hangs = level3.turns.enter(uid() + 1, &AtomicBool::new(false));
    assert_eq!(nodes[0].drain.tick().len(), 2);
    for _ in 0..3 {
        assert_eq!(nodes[0].drain.asked(id(6), 1, NodeIndex(0)), None);
    }
    let names = ["n1".to_string(), "n2".to_string()];
    let (newest, text) = nodes[0].drain.told(&names);
    // What waits is left by retention.
    let store = nodes[0].store.job(&job(), uid()).unwrap();
    assert!(store.is_read(id(6)) && !store.is_read(id(5)));
    assert!(
        newest.is_none() && text.contains("waits for n1, n2"),
        "{text}"
    );
    drop(hangs);
    let Event::Drain(done) = nodes[0].event() else {
        panic!("it has not drained");
    };
    let said = nodes[0].drain.done(done);
    assert_eq!(
        said,
        Some(Body::Drained {
            id: id(6),
            round: 1,
            failed: None
        })
    );
    assert!(!store.is_read(id(6)));
}

#[test]
fn a_folder_that_others_can_enter_turns_it_off_with_the_reason() {
    let place = Place::new();
    fs::set_permissions(place.shared(), fs::Permissions::from_mode(0o750)).unwrap();
    let mut node = place.node("n1", 0);
    let why = node.level3.why_off().unwrap();
    assert!(why.contains("with mode 0750"), "{why}");
    node.drain.begin(Some(Asked::Every(1)), 1);
    assert!(node.drain.told(&[]).1.starts_with("off: "));
    // Nothing can ever have been drained there, so a job that begins anew takes nothing's place.
    node.looked();
    assert_eq!(node.back.parts(1, 1), Default::default());
    // One that is not there may be there on other nodes.
    fs::remove_dir(place.shared()).unwrap();
    let mut node = place.node("n1", 0);
    node.looked();
    assert!(node.back.parts(1, 1).unread.is_some());
    assert!(node.back.parts(1, 0).unread.is_none());
}
