//! Thousands of nodes with disks in memory, and a simple model of the links between them: how many messages and bytes a checkpoint, a restart and the loss of a rack take
//! at each node and at the one that leads.
//!
//! Small clusters always; `GPUOS_CKPT_SCALE=1` has 1,250 nodes too, by `make ckpt-scale`, and `GPUOS_WRITE=1` writes docs/results/checkpoint-scale.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::{NodeDomains, Scheme, Set, arrange};
use gpuos_core::job::JobId;
use gpuos_mover::settings::Settings;
use gpuos_store::disk::Disk;
use gpuos_store::drained::DrainedStore;
use gpuos_store::fake::FakeDisk;
use gpuos_store::store::Store;
use gpuos_store::transfer::{Trust, copy_part};

use crate::random::Random;
use crate::support::{folder, key};

#[path = "scale/links.rs"]
mod links;
#[path = "scale/page.rs"]
mod page;

use links::{Counted, Network};

/// Nodes that fail together: the compute trays of an NVL72 rack.
const RACK: u16 = 18;
/// What a node's program writes for a checkpoint. Data is counted in multiples of it.
const STATE: usize = 24 << 10;
const TIME: u64 = 1_700_000_000;

/// What was counted with so many nodes.
struct Row {
    nodes: u16,
    /// Of what is sent before any node can begin: sets and places of all nodes, to each.
    roster_bytes: usize,
    first: Counted,
    commit: Counted,
    /// After a rack was lost.
    rebuild: Counted,
    lost: usize,
    shared: Shared,
}

/// Calls of the parallel file system.
struct Shared {
    /// Of each node, to drain its part.
    drain_calls: u64,
    /// Of the node that leads, to find what is complete and remove what is not kept.
    lead_calls: u64,
}

/// Small clusters have smaller ones, so that there are more racks than nodes in a set.
fn rack(nodes: u16) -> u16 {
    (nodes / 16).clamp(1, RACK)
}

/// Nodes of a set share no rack.
fn sets(nodes: u16) -> Vec<Set> {
    let label = |node: u16| (node / rack(nodes)).to_string();
    let domains: Vec<NodeDomains> = (0..nodes)
        .map(|node| NodeDomains::of([("rack", label(node).as_str())]))
        .collect();
    let scheme: Scheme = "rs:6+2".parse().unwrap();
    arrange(&domains, scheme).unwrap()
}

fn settings(own: u16, nodes: u16, run: u32, sets: &[Set]) -> Settings {
    Settings::new(JobId::from(7), 0, NodeIndex(own), nodes, run, sets.to_vec())
}

fn open(disks: &[FakeDisk]) -> Vec<Store<FakeDisk>> {
    let store = |disk: &FakeDisk| Store::open(disk.clone(), folder(disk, b"store"), key());
    disks.iter().map(|disk| store(disk).unwrap().0).collect()
}

/// Each node's program has files of its own.
fn save(programs: &[FakeDisk], number: u32, random: &mut Random) {
    for disk in programs {
        let at = folder(disk, format!("program-{number}").as_bytes());
        let file = disk.create(&at, b"state").unwrap();
        let words = (0..STATE / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        disk.write_at(&file, &bytes, 0).unwrap();
    }
}

fn measure(nodes: u16) -> Row {
    let sets = sets(nodes);
    let mut random = Random(nodes.into());
    let mut disks: Vec<FakeDisk> = (0..nodes).map(|_| FakeDisk::new(0)).collect();
    let programs: Vec<FakeDisk> = (0..nodes).map(|_| FakeDisk::new(0)).collect();
    let id = |number: u32| CheckpointId {
        number,
        attempt: number.into(),
    };
    let roster_bytes = postcard::to_allocvec(&gpuos_mover::roster::Roster {
        index_of_seat: (0..nodes).map(NodeIndex).collect(),
        sets: sets.clone(),
        notes: Vec::new(),
    })
    .unwrap()
    .len();
    let (first, commit) = {
        let stores = open(&disks);
        let settings = |own| settings(own, nodes, 1, &sets);
        let mut network = Network::new(&stores, &programs, settings);
        let first = network.until_ready();
        assert!(network.restored().iter().all(Option::is_none));
        let mut commit = None;
        for number in 1..=2 {
            save(&programs, number, &mut random);
            commit = Some(network.checkpoint(id(number), TIME));
        }
        (first, commit.unwrap())
    };
    let shared = drain(&disks, nodes, id(2));
    // A rack, but for the node that leads.
    let lost: Vec<u16> = (rack(nodes)..2 * rack(nodes)).collect();
    for node in &lost {
        disks[usize::from(*node)] = FakeDisk::new(0);
    }
    let rebuild = {
        let stores = open(&disks);
        let settings = |own| settings(own, nodes, 2, &sets);
        let mut network = Network::new(&stores, &programs, settings);
        let rebuild = network.until_ready();
        let all = network.restored();
        assert!(all.iter().all(|restored| *restored == Some(id(2))));
        rebuild
    };
    Row {
        nodes,
        roster_bytes,
        first,
        commit,
        rebuild,
        lost: lost.len(),
        shared,
    }
}

/// All parts are drained, and the node that leads does what it does then.
fn drain(disks: &[FakeDisk], nodes: u16, id: CheckpointId) -> Shared {
    let far_disk = FakeDisk::new(0);
    let stores = open(disks);
    let far = DrainedStore::open(&stores[0], far_disk.clone(), far_disk.root()).unwrap();
    let job = JobId::from(7);
    let far_job = far.make(&job, 0).unwrap();
    let before = far_disk.calls();
    for (node, store) in (0..nodes).zip(&stores) {
        let node = NodeIndex(node);
        let (own, part) = (store.existing(&job).unwrap(), far_job.part(node).unwrap());
        copy_part(&own, &part, id, node, Trust::Length, &mut |_| Ok(())).unwrap();
    }
    let drained = far_disk.calls();
    assert_eq!(far_job.complete(4).unwrap().len(), 1);
    far_job.prune(2).unwrap();
    Shared {
        drain_calls: (drained - before) / u64::from(nodes),
        lead_calls: far_disk.calls() - drained,
    }
}

#[test]
fn what_each_node_sends_does_not_grow_with_the_job() {
    let (small, large) = (measure(8), measure(64));
    for row in [&small, &large] {
        let others = usize::from(row.nodes) - 1;
        let lead = &row.commit.lead;
        // Two to each and two from each for the commit, and what any node has with its set.
        assert!(lead.control_sent >= 2 * others && lead.control_got >= 2 * others);
        let bytes = lead.control_bytes_sent + lead.control_bytes_got;
        assert!(bytes < 880 * others as u64 + 20_000, "{bytes}");
    }
    for (before, after) in [
        (&small.commit, &large.commit),
        (&small.rebuild, &large.rebuild),
    ] {
        // Sets have 8 to 15 nodes.
        assert!(after.most.control() <= 2 * before.most.control() + 16);
        assert!(after.most.data_sent <= 3 * before.most.data_sent);
    }
    assert_eq!(small.shared.drain_calls, large.shared.drain_calls);
}

#[test]
fn at_scale() {
    if std::env::var_os("GPUOS_CKPT_SCALE").is_none() {
        return;
    }
    let rows: Vec<Row> = [8, 64, 256, 1250]
        .into_iter()
        .map(|nodes| {
            let row = measure(nodes);
            println!("{nodes} nodes: counted");
            row
        })
        .collect();
    let text = page::tables(&rows);
    println!("{text}");
    if std::env::var_os("GPUOS_WRITE").is_some() {
        page::write(&text, &rows);
    }
}
