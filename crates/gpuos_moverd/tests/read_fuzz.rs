//! The fuzz targets of `tests/fuzz` for checkpoints over seeded mutations of good bytes: a bounded run for the stable compiler, the same on
//! every machine.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::Set;
use gpuos_core::job::JobId;
use gpuos_link::session::{Handshake, NONCE, Place};
use gpuos_mover::hosts::{Hosts, Plain};
use gpuos_mover::message::{Body as Said, Bytes, Message};
use gpuos_mover::output::Ready;
use gpuos_mover::program::{Conductor, Every, Input, Output, Settings};
use gpuos_mover::roster::{Claim, Roster};
use gpuos_moverd::carried::{Base, Body, Carried, FromShared, JobRoster, Other};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::ingest::Limits;
use gpuos_store::job::New;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;

use crate::checkpoints;
use crate::one::group;
use crate::support::{join, long, owner};

/// Bytes that are tried for each target.
const ROUNDS: u64 = 20_000;

fn id() -> CheckpointId {
    CheckpointId {
        number: 7,
        attempt: 0x1234_5678,
    }
}

fn carried() -> Vec<Vec<u8>> {
    let roster = JobRoster {
        gid: 100,
        asked: "10m,l2=partner".into(),
        roster: Roster {
            index_of_seat: (0..4).map(NodeIndex).collect(),
            sets: vec![Set {
                members: (0..4).map(NodeIndex).collect(),
                data: 3,
                parity: 1,
            }],
            notes: Vec::new(),
        },
        drained: FromShared {
            fetch: Some(id()),
            better: None,
            highest: 7,
            failed: vec![6],
            refused: vec![(5, "no layer".into())],
            unread: Some("the file system does not answer".into()),
        },
        donors: Default::default(),
        only: None,
        of: Some(Other {
            job: 12.into(),
            number: Some(3),
            lose: None,
        }),
        base: Some(Base {
            job: "12[3].server".parse().unwrap(),
            id: id(),
        }),
        hosts: Some(
            Hosts::try_from(Plain {
                seat_of_index: vec![0, 3, 1],
                sets: vec![(vec![0, 2], 1), (vec![1], 0)],
            })
            .unwrap(),
        ),
        other_nodes: Some(id()),
        beyond: 8,
        unhosted: vec!["of 2 nodes: nothing is left".into()],
    };
    let ready = Ready {
        restore: Some(id()),
        passed_over: vec!["checkpoint 8: node 1 is gone".into()],
        refused: Vec::new(),
        highest: 8,
        lost: false,
    };
    let claim = Claim {
        index: NodeIndex(1),
        nodes: 3,
        set: vec![NodeIndex(0), NodeIndex(1)],
        parity: 1,
        newest: id(),
    };
    let (ticket, id) = (9, id());
    let bodies = [
        Body::Hello { incarnation: 5 },
        Body::ClaimAsk { of: None },
        Body::ClaimAsk {
            of: Some(Other {
                job: 12.into(),
                number: None,
                lose: Some(1),
            }),
        },
        Body::Claim {
            own: vec![claim.clone()],
            hosted: vec![claim],
            chosen: Some((1, 2)),
        },
        Body::Choose(3),
        Body::ChoiceNoted(3),
        Body::Roster(Box::new(roster)),
        Body::NoRoster {
            why: "no".into(),
            late: true,
        },
        Body::NoPart("no".into()),
        Body::Word(Bytes(vec![1; 20])),
        Body::ManifestAsk {
            ticket,
            id,
            rank: 2,
        },
        Body::Hosted {
            from: NodeIndex(0),
            to: NodeIndex(2),
            bytes: Bytes(vec![4; 30]),
        },
        Body::Whole(Box::new(ready)),
        Body::SegmentAsk {
            ticket,
            id,
            part: 1,
            offset: 1 << 40,
            length: 1 << 20,
        },
        Body::Given {
            ticket,
            bytes: Some(Bytes(vec![3; 30])),
        },
    ];
    let session = 3;
    let all = bodies.map(|body| Carried { session, body }.encode().unwrap());
    all.into()
}

/// Those that two conductors say to each other at the start of a program.
fn words() -> Vec<Vec<u8>> {
    let conductor = |own| {
        let settings = Settings::new(NodeIndex(own), 2, 1, Every::Fixed(1000));
        Conductor::new(settings, 0)
    };
    let mut all = Vec::new();
    for own in [0, 1] {
        let mut one = conductor(own);
        let joins = vec![join(own, 2, 5)];
        for input in [Input::Joins(joins), Input::Tick] {
            let outputs = one.step(10, input).into_iter();
            all.extend(outputs.filter_map(|output| match output {
                Output::Say { word, .. } => Some(word.encode()),
                _ => None,
            }));
        }
    }
    assert!(!all.is_empty());
    all
}

fn messages() -> Vec<Vec<u8>> {
    let id = id();
    let bodies = [
        Said::LengthAsk { id },
        Said::Length { id, length: 4096 },
        Said::ManifestAsk {
            id,
            node: NodeIndex(1),
        },
        Said::Copy {
            id,
            bytes: Bytes(vec![7; 64]),
        },
        Said::InventoryAsk,
        Said::Settle { round: 2 },
    ];
    let all = bodies.map(|body| {
        let (from, to) = (NodeIndex(0), NodeIndex(1));
        let message = Message {
            from,
            to,
            run: 1,
            body,
        };
        message.encode().unwrap()
    });
    all.into()
}

/// What the side says first that connects, in pieces of several lengths, and a frame after it.
fn links() -> Vec<Vec<u8>> {
    let place = Place {
        job: 7.into(),
        list: 0,
        own: NodeIndex(0),
        nodes: 4,
    };
    let settings = gpuos_link::session::Settings::default();
    let hello = Handshake::initiate(
        place,
        NodeIndex(1),
        [3; NONCE],
        settings,
        &checkpoints::Plain,
    );
    let hello = hello.unwrap().1;
    let frame = [&[0, 0, 0, 0, 0][..], &[9; 32]].concat();
    let pieces = [0, 4, 63, 255].into_iter();
    pieces
        .flat_map(|piece: u8| {
            [
                [&[piece], &hello[..]].concat(),
                [&[piece], &hello[..], &frame].concat(),
            ]
        })
        .collect()
}

fn manifest() -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let make = |name: &str| {
        fs::create_dir_all(at(name)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(at(name), mode).unwrap();
    };
    for name in ["store", "program/rank-0-of-2/d", "program/rank-1-of-2"] {
        make(name);
    }
    fs::write(at("program/rank-0-of-2/d/f"), [1; 5000]).unwrap();
    fs::write(at("program/rank-1-of-2/g"), [2; 100]).unwrap();
    own(&at("program"));
    let folder = |name: &str| LinuxDisk::folder(&at(name)).unwrap();
    let key = SiteKey::derive(b"a key of tests that is long enough");
    let (store, _) = Store::open(LinuxDisk, folder("store"), key).unwrap();
    let job = store.job(&JobId::from(7), owner().0).unwrap();
    let new = New {
        id: id(),
        node: NodeIndex(0),
        nodes: 1,
        time: 1_700_000_000,
    };
    let limits = Limits::default();
    let draft = job.ingest(&new, &LinuxDisk, &folder("program"), &limits, None);
    let set = gpuos_checkpoint::manifest::NodeSet {
        members: vec![NodeIndex(0)],
        parity: 0,
        chunk: 0,
    };
    job.prepare(draft.unwrap(), set).unwrap().1
}

/// Everything beneath becomes the user's.
fn own(path: &Path) {
    let uid = owner().0;
    std::os::unix::fs::chown(path, Some(uid), Some(group(uid))).unwrap();
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        entries.for_each(|entry| own(&entry.unwrap().path()));
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn changed(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(3) * self.below(3) {
            let at = self.below(bytes.len() + 1);
            let end = (at + 1 + self.below(8)).min(bytes.len());
            match self.below(6) {
                0 if at < end => drop(bytes.drain(at..end)),
                1 => drop(bytes.splice(at..at, [[0, 1, 0x7f, 0x80, 0xff][self.below(5)]])),
                2 if at < end => bytes[at] ^= 1 << self.below(8),
                3 if at < end => bytes[at..end].fill(0xff),
                4 => bytes.truncate(at),
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len() + 1);
                    bytes.truncate(at);
                    bytes.extend(&other[from..]);
                }
            }
        }
        bytes
    }
}

fn tried(target: fn(&[u8]), seeds: &[Vec<u8>]) {
    for seed in seeds {
        target(seed);
    }
    let mut random = Random(0x5eed);
    for round in 0..ROUNDS * if long() { 50 } else { 1 } {
        let bytes = random.changed(seeds);
        let shown = bytes.escape_ascii().to_string();
        let done = catch_unwind(|| target(&bytes));
        assert!(done.is_ok(), "round {round}: {shown}");
    }
}

#[test]
fn whatever_is_read_is_refused_or_holds() {
    tried(checkpoints::carried, &carried());
    tried(checkpoints::word, &words());
    tried(checkpoints::message, &messages());
    tried(checkpoints::manifest, &[manifest()]);
    let names = ["0.1.1", "65534.65535.9223372036854775807", "3.4.10"];
    tried(
        checkpoints::job_folder,
        &names.map(|name| name.as_bytes().to_vec()),
    );
    let values = [
        "auto",
        "10m,l2=rs:6+2,l3=every:6",
        "30s,l2=partner,l3=off",
        "off",
    ];
    tried(
        checkpoints::option,
        &values.map(|value| value.as_bytes().to_vec()),
    );
    tried(checkpoints::link, &links());
}
