//! Jobs that go on with other numbers of nodes: what is restored is the newest that was committed, byte for byte, whichever numbers of nodes
//! have made what is there; and where it cannot be, nothing takes its place.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::NodeDomains;
use gpuos_core::job::JobId;
use gpuos_mover::hosting::{Hosting, Said, claims, place};
use gpuos_mover::hosts::{Hosts, Layouts, Plain, deal};
use gpuos_mover::node::Node;
use gpuos_mover::output::Ready;
use gpuos_mover::roster::{Claim, draw};
use gpuos_store::disk::Disk;
use gpuos_store::fake::FakeDisk;
use gpuos_store::restore::{Target, restore};
use gpuos_store::store::Store;

use crate::support::*;

const LOSSY: Network = Network {
    lost: 10,
    repeated: 5,
    delay: 30,
};

fn script(checkpoints: u32, stop_after: Option<u64>) -> Script {
    Script {
        checkpoints,
        network: QUIET,
        stop_after,
        rebuild: None,
        wrong: Wrong::Nothing,
        eager: false,
        crash: None,
    }
}

fn store(disk: &FakeDisk) -> Store<FakeDisk> {
    let root = folder(disk, b"store");
    Store::open(disk.clone(), root, key()).unwrap().0
}

fn claims_of(store: &Store<FakeDisk>) -> Vec<Claim> {
    claims(store, &store.job(&JobId::from(7), 0).unwrap()).unwrap()
}

/// A scheme that so many nodes can have.
fn scheme(random: &mut Random, nodes: u16) -> &'static str {
    let some = match nodes {
        1 => &["single"][..],
        2 | 3 => &["partner"],
        4..8 => &["partner", "rs:2+2"],
        _ => &["partner", "rs:2+2", "rs:6+2"],
    };
    some[random.below(some.len() as u64) as usize]
}

/// The seats make whole what `nodes` nodes have made.
fn host(stores: &[Store<FakeDisk>], nodes: u16, run: u32, random: &mut Random) -> (Hosts, Ready) {
    let seats: Vec<Vec<Claim>> = stores.iter().map(claims_of).collect();
    let hosts = deal(&seats, &[], nodes);
    // As it is sent.
    let hosts: Hosts = Plain::from(hosts).try_into().unwrap();
    let files = FakeDisk::new(0);
    let mut hosting: Vec<Hosting<'_, FakeDisk>> = (0..)
        .zip(stores)
        .map(|(seat, store)| {
            let mut hosting = Hosting::new(hosts.clone(), seat);
            for index in hosts.hosted(seat) {
                let job = store.job(&JobId::from(7), 0).unwrap();
                let parts = place(store, job, nodes, index).unwrap();
                let settings = settings(index.0, nodes, run, &hosts.sets);
                hosting.add(index, Node::with(parts, &files, settings, 0).unwrap());
            }
            hosting
        })
        .collect();
    type Sent = (u16, u16, NodeIndex, NodeIndex, Vec<u8>);
    let mut net: BTreeMap<(u64, u64), Sent> = BTreeMap::new();
    let (mut serial, mut whole) = (0, None);
    for now in 1..400_000 {
        let mut said: Vec<(u16, Said)> = Vec::new();
        while let Some(entry) = net.first_entry().filter(|it| it.key().0 <= now) {
            let (by, seat, from, to, bytes) = entry.remove();
            let out = hosting[usize::from(seat)].receive(by, (from, to), &bytes, now);
            said.extend(out.unwrap().into_iter().map(|it| (seat, it)));
        }
        if now % 20 == 0 {
            for (seat, hosting) in (0..).zip(&mut hosting) {
                said.extend(hosting.tick(now).into_iter().map(|it| (seat, it)));
            }
        }
        for (by, said) in said {
            match said {
                Said::Send {
                    seat,
                    from,
                    to,
                    bytes,
                } => {
                    let lost = random.below(100) < LOSSY.lost;
                    let copies = 1 + u64::from(random.below(100) < LOSSY.repeated);
                    for _ in 0..if lost { 0 } else { copies } {
                        serial += 1;
                        let due = now + 1 + random.below(LOSSY.delay);
                        net.insert((due, serial), (by, seat, from, to, bytes.clone()));
                    }
                }
                Said::Whole(ready) => whole = Some(ready),
                Said::Note(_) => {}
            }
        }
        if let Some(ready) = whole.take() {
            return (hosts, ready);
        }
    }
    panic!("{nodes} hosted nodes do not find out what they have");
}

/// Each node's files, from where it is hosted.
fn check(stores: &[Store<FakeDisk>], hosts: &Hosts, id: CheckpointId, begun: &[Files]) {
    for (index, files) in (0..).map(NodeIndex).zip(begun) {
        let store = &stores[usize::from(hosts.host(index).unwrap())];
        let job = store.job(&JobId::from(7), 0).unwrap();
        let parts = place(store, job, hosts.nodes(), index).unwrap();
        let manifest = parts.manifest(id).unwrap();
        assert_eq!((manifest.node, manifest.nodes), (index, hosts.nodes()));
        let disk = FakeDisk::new(0);
        let target = Target {
            disk: &disk,
            folder: &disk.root(),
            name: b"restored",
            owner: None,
        };
        restore(&parts, &manifest, &target).unwrap();
        let found = read(&disk, disk.open_folder(&disk.root(), b"restored").unwrap());
        assert!(found == *files, "node {index} has other files for {id}");
    }
}

/// What the job goes on with, and of how many nodes it is: the newest that holds, as seat 0 of its movers looks for it.
struct Going {
    hosted: Option<(CheckpointId, Hosts)>,
    own: Option<Ready>,
}

/// Nodes that have made something by as many as there are now keep their indices and sets, as at any restart.
fn draw_own(cluster: &mut Cluster, name: &str) {
    let nodes = cluster.disks.len() as u16;
    let own = |disk: &FakeDisk| {
        let claims = store(disk)
            .job(&JobId::from(7), 0)
            .unwrap()
            .claims()
            .unwrap();
        let own = claims.into_iter().find(|claim| claim.2 == nodes);
        own.map(|(newest, index, nodes, set)| Claim {
            index,
            nodes,
            set: set.members,
            parity: set.parity,
            newest,
        })
    };
    let seats = cluster
        .disks
        .iter()
        .map(|disk| (own(disk), NodeDomains::default()));
    let roster = draw(&seats.collect::<Vec<_>>(), name.parse().unwrap()).unwrap();
    let seats = cluster.disks.clone();
    for (index, disk) in roster.index_of_seat.iter().zip(seats) {
        cluster.disks[usize::from(index.0)] = disk;
    }
    cluster.sets = roster.sets;
}

/// The job begins on the disks of `cluster`, with whatever they have.
fn begin(cluster: &mut Cluster, name: &str, then: Script) -> (Going, Session) {
    let nodes = cluster.disks.len() as u16;
    let (mut tried, mut hosted) = (BTreeSet::new(), None::<(CheckpointId, Hosts)>);
    let mut held = None;
    loop {
        let stores: Vec<Store<FakeDisk>> = cluster.disks.iter().map(store).collect();
        let all: Vec<Claim> = stores.iter().flat_map(claims_of).collect();
        let layouts = Layouts::of(&all);
        let found = hosted.as_ref().map(|it| it.0);
        let own = held.unwrap_or(layouts.newest(nodes));
        if let Some((of, _)) = layouts.other(nodes, &tried, found.max(own)) {
            cluster.run += 1;
            let (hosts, ready) = host(&stores, of, cluster.run, &mut cluster.random);
            tried.insert(of);
            if let Some(id) = ready.restore.filter(|id| Some(*id) > found) {
                check(&stores, &hosts, id, &cluster.begun[&id]);
                hosted = Some((id, hosts));
            }
            continue;
        }
        drop(stores);
        draw_own(cluster, name);
        cluster.others = (found, layouts.highest());
        // Whatever is begun comes after all nodes know with what they go on.
        let first = cluster.fork().session(script(0, None));
        let ready = first.ready[0].clone();
        let restore = ready.as_ref().and_then(|ready| ready.restore);
        let open = layouts.other(nodes, &tried, found.max(restore));
        if held.is_none() && open.is_some() {
            held = Some(restore);
            continue;
        }
        cluster.committed = None;
        let session = cluster.session(then);
        return (Going { hosted, own: ready }, session);
    }
}

impl Going {
    fn id(&self) -> Option<CheckpointId> {
        let own = self.own.as_ref().and_then(|ready| ready.restore);
        own.max(self.hosted.as_ref().map(|it| it.0))
    }
}

/// The job gets other nodes: so many seats, of which some are those that it had.
fn moved(cluster: &Cluster, seats: &[Option<u16>], name: &str, seed: u64) -> Cluster {
    let mut new = Cluster::new(seats.len() as u16, name, seed);
    for (disk, from) in new.disks.iter_mut().zip(seats) {
        if let Some(from) = from {
            *disk = cluster.disks[usize::from(*from)].fork();
        }
    }
    new.begun = cluster.begun.clone();
    new.run = cluster.run;
    new
}

/// Numbers in an order drawn at random.
fn shuffled(random: &mut Random, count: u16) -> Vec<u16> {
    let mut all: Vec<u16> = (0..count).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    all
}

/// Who of the old nodes may be lost: one of each set, or as many as its parity.
fn losable(cluster: &mut Cluster) -> BTreeSet<u16> {
    let mut lost = BTreeSet::new();
    for set in cluster.sets.clone() {
        let most = u64::from(set.parity);
        let few = cluster.random.below(most + 1) as usize;
        let order = shuffled(&mut cluster.random, set.members.len() as u16);
        let places = order.iter().take(few);
        lost.extend(places.map(|at| set.members[usize::from(*at)].0));
    }
    lost
}

#[test]
fn whichever_numbers_of_nodes_a_job_has_had_it_goes_on_from_its_newest() {
    for seed in seeds(6, 200) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let nodes = 1 + random.below(8) as u16;
        // Sets stay as they were where the numbers are the same again.
        let names: Vec<&str> = (1..9).map(|nodes| scheme(&mut random, nodes)).collect();
        let name = |nodes: u64| names[nodes as usize - 1];
        let mut cluster = Cluster::new(nodes, name(nodes.into()), seed);
        cluster.session(script(1 + random.below(3) as u32, None));
        let mut committed = cluster.committed;
        for change in 0..3 {
            let lost = losable(&mut cluster);
            let old = cluster.disks.len() as u16;
            let kept = shuffled(&mut random, old);
            let kept: Vec<u16> = kept.into_iter().filter(|it| !lost.contains(it)).collect();
            // Who is left has a place: what nodes outside hold is taken from them elsewhere.
            let count = kept.len() as u64
                + random
                    .below(9 - kept.len() as u64)
                    .max(u64::from(kept.is_empty()));
            let mut seats: Vec<Option<u16>> = vec![None; count as usize];
            let places = shuffled(&mut random, count as u16);
            for (at, from) in places.iter().zip(&kept) {
                seats[usize::from(*at)] = Some(*from);
            }
            let mut next = moved(&cluster, &seats, name(count), seed * 10 + change);
            // Now and then all stops while the first one of the new nodes is made.
            let stops = random.below(3) == 0;
            let then = script(2, stops.then(|| 60 + random.below(200)));
            let (going, session) = begin(&mut next, name(count), then);
            assert!(
                going.id() >= committed,
                "seed {seed}, {old} nodes to {count}: {:?} is older than {committed:?}",
                going.id()
            );
            committed = committed.max(going.id()).max(next.committed);
            if !session.stopped {
                // Two of these nodes are enough: nothing of other numbers is left beside what is hosted.
                for store in next.disks.iter().map(store) {
                    let job = store.existing(&JobId::from(7)).unwrap();
                    let claimed = job.claims().unwrap();
                    assert!(
                        claimed.iter().all(|claim| u64::from(claim.2) == count),
                        "{claimed:?}"
                    );
                }
            } else {
                next.power_off();
            }
            if !stops {
                next.disks.iter().map(store).for_each(|store| {
                    store
                        .remove_guests(&store.existing(&JobId::from(7)).unwrap())
                        .unwrap();
                });
            }
            // What was begun and not committed may be what it goes on from.
            if going.id() < committed || session.stopped {
                let (again, _) = begin(&mut next, name(count), script(1, None));
                assert!(again.id() >= committed, "seed {seed}: {:?}", again.id());
                committed = next.committed;
            }
            cluster = next;
        }
    }
}

#[test]
fn more_than_the_sets_can_lose_is_not_replaced_by_anything() {
    let mut cluster = Cluster::new(4, "rs:2+2", 9);
    cluster.session(script(2, None));
    for (seats, whole) in [
        (vec![Some(0), Some(3)], true),
        (vec![None, Some(3), None, Some(1), None, None], true),
        (vec![Some(2)], false),
        (vec![None, Some(1), None, None, None], false),
    ] {
        let next = moved(&cluster, &seats, "single", 1);
        let stores: Vec<Store<FakeDisk>> = next.disks.iter().map(store).collect();
        let (hosts, ready) = host(&stores, 4, 50, &mut cluster.random);
        assert_eq!(
            ready.restore,
            cluster.committed.filter(|_| whole),
            "{seats:?}"
        );
        assert_eq!(ready.lost, !whole, "{:?}", ready.passed_over);
        match ready.restore {
            Some(id) => check(&stores, &hosts, id, &cluster.begun[&id]),
            None => {
                assert!(
                    ready.passed_over[0].contains("was not found"),
                    "{:?}",
                    ready.passed_over
                );
                // Nothing is lost by that: with its nodes back it is there.
                let all = [Some(0), Some(1), Some(2), Some(3), None];
                let mut back = moved(&cluster, &all, "partner", 1);
                let (going, _) = begin(&mut back, "partner", script(0, None));
                assert_eq!(going.id(), cluster.committed);
            }
        }
    }
}

#[test]
fn a_seat_speaks_for_nobody_but_whom_it_hosts() {
    let mut cluster = Cluster::new(3, "partner", 4);
    cluster.session(script(1, None));
    let stores: Vec<Store<FakeDisk>> = cluster.disks.iter().take(2).map(store).collect();
    let seats: Vec<Vec<Claim>> = stores.iter().map(claims_of).collect();
    let hosts = deal(&seats, &[], 3);
    assert_eq!(
        hosts.seat_of_index,
        [0, 1, 0],
        "the third to who has fewest"
    );
    let mut hosting: Hosting<'_, FakeDisk> = Hosting::new(hosts, 0);
    let to = (NodeIndex(0), NodeIndex(2));
    let refused = hosting.receive(1, to, b"anything", 1).unwrap_err();
    assert!(refused.to_string().contains("does not host"), "{refused}");
    let to = (NodeIndex(1), NodeIndex(0));
    let refused = hosting.receive(1, to, b"anything", 1).unwrap_err();
    assert!(refused.to_string().contains("not hosted here"), "{refused}");
}

/// What manifests name that cannot be.
#[test]
fn claims_of_impossible_numbers_are_passed_over() {
    let claim = |index: u16, nodes: u16, set: &[u16], parity: u16| Claim {
        index: NodeIndex(index),
        nodes,
        set: set.iter().copied().map(NodeIndex).collect(),
        parity,
        newest: CheckpointId {
            number: 9,
            attempt: 1,
        },
    };
    for wrong in [
        claim(3, 3, &[3], 0),
        claim(0, 3, &[0, 0], 1),
        claim(0, 3, &[1, 2], 1),
        claim(0, 3, &[0, 7], 1),
        claim(0, 3, &[0, 1], 2),
        claim(0, 0, &[0], 0),
        claim(0, 3, &[], 0),
    ] {
        let none = Layouts::of([&wrong]);
        assert_eq!(none.other(2, &BTreeSet::new(), None), None, "{wrong:?}");
        let hosts = deal(&[vec![wrong.clone()], vec![]], &[], 3);
        assert_eq!(hosts.seat_of_index.len(), 3);
        assert!(
            hosts.sets.iter().all(|set| set.members.len() == 1),
            "{wrong:?}"
        );
    }
    let broken = Plain {
        seat_of_index: vec![0, 1],
        sets: vec![(vec![0, 1, 2], 1)],
    };
    assert!(Hosts::try_from(broken).is_err());
}
