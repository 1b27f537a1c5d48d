//! Words of conductors: what is no word, or not for this node, changes nothing.

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_mover::output::Ready;
use gpuos_mover::program::{
    Conductor, Every, Input, Join, MAX_WORD, Output, Reason, Settings, Word,
};
use proptest::prelude::*;

use crate::support::seeds;

fn conductor(node: u16, run: u32) -> Conductor {
    Conductor::new(
        Settings::new(NodeIndex(node), 3, run, Every::Fixed(1000)),
        0,
    )
}

fn joins(conductor: &mut Conductor) -> Vec<Word> {
    let joins = (0..3).map(|rank| Join {
        rank,
        size: 3,
        nonce: u64::MAX - u64::from(rank),
    });
    let out = conductor.step(1, Input::Joins(joins.collect()));
    let said = out.into_iter().filter_map(|output| match output {
        Output::Say { word, .. } => Some(word),
        _ => None,
    });
    said.collect()
}

fn note(outputs: &[Output]) -> &str {
    match outputs {
        [Output::Note(note)] => note,
        _ => panic!("{outputs:?}"),
    }
}

#[test]
fn a_word_comes_back_as_it_was() {
    let words = joins(&mut conductor(1, 5));
    assert!(!words.is_empty());
    for word in words {
        assert_eq!(Word::decode(&word.encode()).unwrap(), word);
        let mut longer = word.encode();
        longer.push(0);
        assert!(Word::decode(&longer).is_err());
    }
    let why = Word::decode(&vec![0; MAX_WORD + 1]).unwrap_err();
    assert!(why.to_string().contains("look who sends it"));
}

#[test]
fn a_word_of_another_run_is_not_listened_to() {
    let mut leader = conductor(0, 5);
    leader.step(0, Input::Tick);
    let word = joins(&mut conductor(1, 4)).remove(0);
    let from = NodeIndex(1);
    let out = leader.step(2, Input::Received { from, word });
    assert!(
        note(&out).contains("of run 4 of the job came, this is run 5"),
        "{out:?}"
    );
    assert_eq!(leader.view().joined, 0);
}

#[test]
fn only_the_leader_leads_and_only_nodes_report() {
    let word = joins(&mut conductor(1, 5)).remove(0);
    let mut other = conductor(2, 5);
    other.step(0, Input::Tick);
    for (to, from) in [(&mut other, 1), (&mut conductor(0, 5), 3)] {
        to.step(0, Input::Tick);
        let (from, word) = (NodeIndex(from), word.clone());
        let out = to.step(2, Input::Received { from, word });
        assert!(note(&out).contains("not for it to say"), "{out:?}");
    }
    let mut leader = conductor(0, 5);
    let ready = Ready {
        restore: None,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
    };
    let orders = leader.step(1, Input::Ready(ready));
    let orders = orders.into_iter().find_map(|output| match output {
        Output::Say {
            to: NodeIndex(2),
            word,
        } => Some(word),
        _ => None,
    });
    let word = orders.unwrap();
    let from = NodeIndex(1);
    let out = other.step(3, Input::Received { from, word });
    assert!(note(&out).contains("not for it to say"), "{out:?}");
}

/// Two nodes; words go to and fro until all is said.
fn talk(
    nodes: &mut [Conductor; 2],
    node: usize,
    input: Input,
    words: &mut Vec<(usize, Word)>,
) -> Vec<Output> {
    let mut inputs = vec![(node, input)];
    let mut rest = Vec::new();
    while let Some((node, input)) = inputs.pop() {
        for output in nodes[node].step(1, input) {
            match output {
                Output::Say { to, word } => {
                    words.push((to.0.into(), word.clone()));
                    let from = NodeIndex(node as u16);
                    inputs.push((to.0.into(), Input::Received { from, word }));
                }
                output => rest.push(output),
            }
        }
    }
    rest
}

#[test]
fn a_late_word_changes_nothing() {
    let settings = |node| Settings::new(NodeIndex(node), 2, 5, Every::Fixed(1_000_000));
    let mut nodes = [0, 1].map(|node| Conductor::new(settings(node), 0));
    let mut words = Vec::new();
    let ready = Ready {
        restore: None,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
    };
    let join = |nonce| {
        Input::Joins(vec![Join {
            rank: 0,
            size: 1,
            nonce,
        }])
    };
    for (node, input) in [
        (0, Input::Ready(ready.clone())),
        (1, Input::Ready(ready)),
        (1, join(1)),
        (1, join(2)),
        (1, Input::Want(Reason::Asked)),
    ] {
        talk(&mut nodes, node, input, &mut words);
    }
    let saved = Input::Saved {
        number: 1,
        ranks: [0].into(),
    };
    let out = talk(&mut nodes, 1, saved, &mut words);
    assert_eq!(
        out,
        [Output::Offer { number: 1 }, Output::Begin { number: 1 }]
    );
    let view = nodes[0].view();
    for (to, word) in words {
        let from = NodeIndex(1 - to as u16);
        let out = talk(
            &mut nodes,
            to,
            Input::Received { from, word },
            &mut Vec::new(),
        );
        assert_eq!(out, []);
        assert_eq!(nodes[0].view(), view);
    }
    // Nor does the leader take the old process for a new one.
    let id = CheckpointId {
        number: 1,
        attempt: 5,
    };
    let ended = Input::Ended {
        id,
        outcome: Outcome::Committed,
    };
    let out = talk(&mut nodes, 0, ended, &mut Vec::new());
    assert!(
        out.iter()
            .all(|output| matches!(output, Output::Close { .. })),
        "{out:?}"
    );
}

#[test]
fn words_of_as_many_ranks_as_can_be_are_read() {
    // Fewer when nobody asks for all: it takes seconds.
    let size = seeds(2000, u16::MAX.into()).end as u16;
    let settings = |node| Settings::new(NodeIndex(node), 2, 5, Every::Fixed(1000));
    let mut nodes = [0, 1].map(|node| Conductor::new(settings(node), 0));
    let mut words = Vec::new();
    let ready = Ready {
        restore: None,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: 0,
        lost: false,
    };
    let joins = (0..size).map(|rank| Join {
        rank,
        size,
        nonce: u64::MAX,
    });
    for (node, input) in [
        (0, Input::Ready(ready.clone())),
        (1, Input::Ready(ready)),
        (1, Input::Joins(joins.collect())),
        (0, Input::Want(Reason::Asked)),
    ] {
        talk(&mut nodes, node, input, &mut words);
    }
    assert_eq!(nodes[0].view().making.map(|making| making.number), Some(1));
    for (_, word) in words {
        let bytes = word.encode();
        assert!(bytes.len() <= MAX_WORD);
        assert_eq!(Word::decode(&bytes), Ok(word));
    }
}

proptest! {
    #[test]
    fn damaged_words_are_taken_or_refused(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let mut leader = conductor(0, 5);
        for word in joins(&mut conductor(1, 5)) {
            let mut bytes = word.encode();
            let place = at.index(bytes.len());
            bytes[place] = byte;
            bytes.truncate(1 + cut.index(bytes.len() * 2));
            if let Ok(word) = Word::decode(&bytes) {
                leader.step(2, Input::Received { from: NodeIndex(1), word });
            }
        }
    }

    #[test]
    fn bytes_are_no_reason_to_stop(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Word::decode(&bytes);
    }
}
