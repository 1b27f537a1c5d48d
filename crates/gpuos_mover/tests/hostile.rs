//! Messages that are forged, damaged, too long, or of a node that has nothing to do with what it asks.

use gpuos_checkpoint::commit;
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_mover::message::{
    Body, Bytes, Facts, MAX_MESSAGE, MAX_PIECE, Message, PartReport, Plan, Question, Report,
};
use gpuos_mover::node::Node;
use gpuos_mover::output::Output;
use gpuos_store::disk::Disk;
use gpuos_store::fake::FakeDisk;
use gpuos_store::store::Store;
use proptest::prelude::*;

use crate::support::*;

const ID: CheckpointId = CheckpointId {
    number: 1,
    attempt: 9,
};

fn question(length: u32) -> Question {
    Question {
        id: ID,
        stripe: 0,
        place: 0,
        chunk: 1 << 40,
        piece: 0,
        offset: 0,
        length,
    }
}

fn message(from: u16, to: u16, body: Body) -> Message {
    Message {
        from: NodeIndex(from),
        to: NodeIndex(to),
        run: 1,
        body,
    }
}

fn store() -> (FakeDisk, Store<FakeDisk>) {
    let disk = FakeDisk::new(0);
    let store = Store::open(disk.clone(), folder(&disk, b"store"), key())
        .unwrap()
        .0;
    (disk, store)
}

/// Node 5 of 16 in two sets of 8, which are the even and the odd or any others.
fn hear(from: u16, bytes: &[u8]) -> Result<Vec<Output>, String> {
    let (disk, store) = store();
    let settings = settings(5, 16, 1, &sets(16, "rs:6+2"));
    let mut node = Node::new(&store, &disk, settings, 0).unwrap();
    node.receive(NodeIndex(from), bytes, 1)
        .map_err(|refused| refused.0)
}

fn refused(from: u16, message: &Message) -> String {
    hear(from, &message.encode().unwrap()).expect_err("is refused")
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let why = hear(1, b"what is this").unwrap_err();
    assert!(why.contains("no message"), "{why}");
    let why = hear(1, &vec![0; MAX_MESSAGE + 1]).unwrap_err();
    assert!(why.contains("bytes came"), "{why}");
    let good = message(0, 5, Body::InventoryAsk).encode().unwrap();
    assert!(hear(0, &good).is_ok());
    assert!(hear(0, &[&good[..], b"x"].concat()).is_err());
}

#[test]
fn limits_hold_for_what_is_sent_and_for_what_comes() {
    let long = |length: usize| Bytes(vec![0; length]);
    let bodies = [
        Body::Ask(question(MAX_PIECE as u32 + 1)),
        Body::Ask(Question {
            offset: u64::MAX,
            ..question(1)
        }),
        Body::Ask(Question {
            chunk: 10,
            ..question(11)
        }),
        Body::Ask(Question {
            chunk: u64::MAX,
            ..question(1)
        }),
        Body::Piece {
            question: question(4),
            bytes: long(5),
        },
        Body::Length {
            id: ID,
            length: u64::MAX,
        },
        Body::Repaired {
            round: 1,
            failed: Some("x".repeat(10_000)),
        },
        Body::Plan(Plan {
            round: 1,
            restore: None,
            repair: Vec::new(),
            passed_over: Vec::new(),
            refused: vec![(
                ID,
                Refusal {
                    rank: 1,
                    node: "n1".into(),
                    said: "x".repeat(201),
                },
            )],
            highest: 0,
            lost: false,
            kept: Vec::new(),
            keep: 2,
            full_every: 8,
        }),
        Body::Commit(commit::Message {
            from: NodeIndex(3),
            to: NodeIndex(5),
            run: 1,
            id: ID,
            body: commit::Body::Prepare,
        }),
    ];
    for body in bodies {
        // Who breaks a limit does not know that it does: the bytes are what its serializer gives.
        let message = message(0, 5, body);
        assert!(message.encode().is_err(), "{message:?}");
        let bytes = postcard::to_extend(&message, Vec::new()).unwrap();
        let why = hear(0, &bytes).unwrap_err();
        assert!(why.contains("outside its limits"), "{why}");
    }
}

#[test]
fn who_has_nothing_to_do_with_it_is_not_listened_to() {
    let all = sets(16, "rs:6+2");
    let own = all
        .iter()
        .find(|set| set.position(NodeIndex(5)).is_some())
        .unwrap();
    let stranger = (1..16)
        .find(|node| own.position(NodeIndex(*node)).is_none())
        .unwrap();
    let bodies = [
        Body::LengthAsk { id: ID },
        Body::Length {
            id: ID,
            length: 4096,
        },
        Body::Ask(question(1)),
        Body::ManifestAsk {
            id: ID,
            node: NodeIndex(5),
        },
        Body::Copy {
            id: ID,
            bytes: Bytes(vec![0; 50]),
        },
        Body::CopyKept {
            id: ID,
            digest: Digest([0; 32]),
        },
    ];
    for body in bodies {
        let why = refused(stranger, &message(stranger, 5, body));
        assert!(why.contains("not for node 5"), "{why}");
    }
    // The neighbour on the right keeps this node's manifest, not the other way round.
    let right = own.right_of(NodeIndex(5)).unwrap().0;
    let copy = Body::Copy {
        id: ID,
        bytes: Bytes(vec![0; 50]),
    };
    assert!(refused(right, &message(right, 5, copy)).contains("kept by other nodes"));
    let plan = Body::Plan(Plan {
        round: 1,
        restore: None,
        repair: Vec::new(),
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
        kept: Vec::new(),
        keep: 2,
        full_every: 8,
    });
    for body in [plan, Body::InventoryAsk, Body::Settle { round: 1 }] {
        assert!(refused(3, &message(3, 5, body)).contains("does not lead"));
    }
    let settled = Body::Settled { round: 1 };
    assert!(refused(3, &message(3, 5, settled)).contains("for the leader"));
}

#[test]
fn a_sender_is_who_the_carrier_says() {
    let ask = |from, to| message(from, to, Body::InventoryAsk);
    assert!(refused(3, &ask(0, 5)).contains("look who sends it"));
    assert!(refused(0, &ask(0, 6)).contains("look who sends it"));
    assert!(refused(5, &ask(5, 5)).contains("look who sends it"));
    assert!(refused(99, &ask(99, 5)).contains("look who sends it"));
    let mut late = ask(0, 5);
    late.run = 2;
    assert!(refused(0, &late).contains("run 2"));
}

/// Nothing that is not signed for the job is kept, and nothing of one node as another's.
#[test]
fn a_forged_manifest_is_not_kept() {
    let mut cluster = Cluster::new(4, "rs:2+2", 3);
    cluster.session(Script {
        checkpoints: 1,
        network: QUIET,
        stop_after: None,
        rebuild: None,
        wrong: Wrong::Nothing,
        eager: false,
        crash: None,
    });
    let id = cluster.committed.unwrap();
    let disk = &cluster.disks[1];
    let file = disk.open(&cluster.part(1, id), b"manifest").unwrap();
    let mut bytes = vec![0; disk.facts(&file).unwrap().size as usize];
    disk.read_at(&file, &mut bytes, 0).unwrap();
    let mut changed = bytes.clone();
    changed[30] ^= 1;
    let said = |from: u16, bytes: &[u8]| {
        let (disk, store) = store();
        let settings = settings(2, 4, 1, &sets(4, "rs:2+2"));
        let mut node = Node::new(&store, &disk, settings, 0).unwrap();
        let bytes = Bytes(bytes.to_vec());
        let copy = message(from, 2, Body::Copy { id, bytes });
        let out = node
            .receive(NodeIndex(from), &copy.encode().unwrap(), 1)
            .unwrap();
        format!("{out:?}")
    };
    assert!(said(1, &bytes).contains("Send"));
    assert!(said(1, &changed).contains("does not hold"));
    assert!(said(0, &bytes).contains("came as that of node 0"));
}

/// The leader reads what others say they have, and nothing of it makes it stop.
#[test]
fn a_report_of_nodes_that_are_not_there_is_read() {
    let (disk, store) = store();
    let settings = settings(0, 2, 1, &sets(2, "partner"));
    let mut node = Node::new(&store, &disk, settings, 0).unwrap();
    node.tick(100);
    let facts = Facts {
        digest: Digest([1; 32]),
        segments: vec![ID, ID],
    };
    let part = PartReport {
        id: ID,
        committed: true,
        own: Some(facts.clone()),
        copies: vec![(NodeIndex(999), facts.clone()), (NodeIndex(1), facts)],
        segment: true,
        shards: vec![(255, true), (0, false)],
        refused: None,
    };
    let report = Report {
        parts: vec![part.clone(), part],
    };
    let report = message(1, 0, Body::Inventory(report));
    let out = node
        .receive(NodeIndex(1), &report.encode().unwrap(), 101)
        .unwrap();
    let Some(Output::Send { bytes, .. }) = out.last() else {
        panic!("{out:?}");
    };
    let Body::Plan(plan) = Message::decode(bytes).unwrap().body else {
        panic!("no plan");
    };
    assert_eq!(plan.restore, None);
    assert!(plan.passed_over[0].contains("checkpoint 1"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_messages_are_taken_or_refused(
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        cut in any::<prop::sample::Index>(),
        which in 0usize..4,
    ) {
        let bodies = [
            Body::Ask(question(100)),
            Body::Piece { question: question(8), bytes: Bytes(vec![7; 8]) },
            Body::ManifestAsk { id: ID, node: NodeIndex(5) },
            Body::Plan(Plan { round: 1, restore: None, repair: vec![ID], passed_over: vec!["why".into()], refused: vec![(ID, Refusal { rank: 1, node: "n1".into(), said: "x".into() })], highest: 3, lost: false, kept: vec![(ID, vec![ID])], keep: 2, full_every: 8 }),
        ];
        let mut bytes = message(0, 5, bodies[which].clone()).encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = hear(0, &bytes);
        let _ = hear(0, &bytes[..cut.index(bytes.len())]);
    }
}
