//! How many messages a commit takes, and what any inputs come to.

use std::collections::BTreeMap;

use gpuos_checkpoint::commit::{Body, Commit, Effect, Input, Message, Outcome, step};
use gpuos_checkpoint::ids::NodeIndex;
use proptest::prelude::*;

use crate::commit_support::words::{digest, id, message, node, sent};

/// All nodes of a job on a network without faults, with disks that take no time. Counts what each sends and what it is told.
struct Job {
    nodes: Vec<Commit>,
    sent: Vec<usize>,
    bytes: Vec<usize>,
    told: BTreeMap<u16, Outcome>,
}

impl Job {
    fn new(nodes: u16) -> Job {
        Job {
            nodes: (0..nodes).map(|n| node(n, nodes)).collect(),
            sent: vec![0; usize::from(nodes)],
            bytes: vec![0; usize::from(nodes)],
            told: BTreeMap::new(),
        }
    }

    fn run(&mut self, node: u16, input: Input) {
        let mut inputs = vec![(node, input)];
        while let Some((node, input)) = inputs.pop() {
            let at = usize::from(node);
            for effect in step(&mut self.nodes[at], input) {
                match effect {
                    Effect::Send(message) => {
                        self.sent[at] += 1;
                        self.bytes[at] += postcard::to_allocvec(&message).unwrap().len();
                        inputs.push((message.to.0, Input::Received(message)));
                    }
                    Effect::MakePart { id } => {
                        let digest = digest(node);
                        inputs.push((node, Input::StoreReady { id, digest }));
                    }
                    Effect::MakeCommitDurable { id } => {
                        inputs.push((node, Input::CommitDurable { id }))
                    }
                    Effect::TellProgram { outcome, .. } => drop(self.told.insert(node, outcome)),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn four_messages_for_each_node() {
    for nodes in [1, 2, 8, 1250] {
        let mut job = Job::new(nodes);
        job.run(0, Input::Begin { id: id(1) });
        let others = usize::from(nodes) - 1;
        assert_eq!(job.told.len(), usize::from(nodes));
        assert!(
            job.told
                .values()
                .all(|outcome| *outcome == Outcome::Committed)
        );
        // Two to each and two from each: 4 (N - 1) at the leader, 4,996 for 1,250 nodes.
        assert_eq!(job.sent[0], 2 * others);
        assert!(job.sent[1..].iter().all(|count| *count == 2));
        // Nothing of them grows with the number of nodes: 0.2 MB from the leader of 1,250.
        assert!(job.bytes[0] <= others * 2 * 64, "{}", job.bytes[0]);
        assert!(job.bytes[1..].iter().all(|count| *count < 100));
        for now in (0..600_000).step_by(500) {
            (0..nodes.min(8)).for_each(|node| job.run(node, Input::Tick { now }));
        }
        assert_eq!(
            job.sent.iter().sum::<usize>(),
            4 * others,
            "quiet when it is over"
        );
    }
}

#[test]
fn a_slow_disk_costs_few_messages() {
    let mut leader = node(0, 2);
    let mut count = sent(&step(&mut leader, Input::Begin { id: id(1) })).len();
    for now in (0..300_000).step_by(500) {
        count += sent(&step(&mut leader, Input::Tick { now })).len();
    }
    assert_eq!(count, 9, "in five minutes");
}

fn any_body() -> impl Strategy<Value = Body> {
    let why = "[ä-ü]{0,300}";
    prop_oneof![
        Just(Body::Prepare),
        (0..4_u16).prop_map(|n| Body::Prepared { digest: digest(n) }),
        why.prop_map(|why| Body::Refused { why }),
        (0..5_u16).prop_map(|n| Body::Commit { digest: digest(n) }),
        Just(Body::Committed),
        why.prop_map(|why| Body::Abort { why }),
        Just(Body::Status),
    ]
}

fn any_input() -> impl Strategy<Value = Input> {
    let number = 0..4_u32;
    let ids = prop_oneof![9 => number.prop_map(id), 1 => Just(id(u32::MAX))];
    let nodes = (0..4_u16, 0..4_u16);
    prop_oneof![
        5 => (nodes, ids.clone(), any_body()).prop_map(|((from, to), id, body)| {
            Input::Received(Message { id, ..message(from, to, 0, body) })
        }),
        1 => ids.clone().prop_map(|id| Input::Begin { id }),
        1 => (ids.clone(), 0..4_u16).prop_map(|(id, n)| Input::StoreReady { id, digest: digest(n) }),
        1 => ids.clone().prop_map(|id| Input::StoreFailed { id, why: "ü".repeat(500) }),
        1 => ids.clone().prop_map(|id| Input::CommitDurable { id }),
        1 => ids.clone().prop_map(|id| Input::CommitFailed { id, why: String::new() }),
        1 => ids.prop_map(|id| Input::Removed { id }),
        1 => (0..9_u16).prop_map(|n| Input::Lost { node: NodeIndex(n) }),
        1 => (0..9_u16).prop_map(|n| Input::Returned { node: NodeIndex(n) }),
        1 => prop_oneof![0..100_000_u64, Just(u64::MAX)].prop_map(|now| Input::Tick { now }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_inputs_are_taken(own in 0..3_u16, inputs in prop::collection::vec(any_input(), 0..60)) {
        let mut state = node(own, 3);
        let mut recorded = Vec::new();
        for input in inputs {
            for effect in step(&mut state, input) {
                match effect {
                    Effect::MakeCommitDurable { id } => recorded.push(id),
                    Effect::TellProgram { id, outcome: Outcome::Committed } => prop_assert!(recorded.contains(&id)),
                    // A reason of another node is cut.
                    Effect::Send(Message { body: Body::Abort { why } | Body::Refused { why }, .. }) => {
                        prop_assert!(why.len() < 600, "{why}");
                    }
                    Effect::Send(message) => prop_assert_ne!(message.to, NodeIndex(own)),
                    _ => {}
                }
            }
        }
    }
}
