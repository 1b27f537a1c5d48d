//! The rules of the commit one by one.

use std::slice;

use gpuos_checkpoint::commit::step;
use gpuos_checkpoint::commit::{Body, Commit, Effect, Input, Message, Outcome, Settings};
use gpuos_checkpoint::ids::NodeIndex;

use crate::commit_support::words::{
    RUN, abort, committed, digest, digests, failed, held, id, message, node, say, sent, started,
};

#[test]
fn begin_is_refused_with_a_reason() {
    let why = |state: &mut Commit, number| match &step(state, Input::Begin { id: id(number) })[..] {
        [Effect::RefuseBegin { why, .. }] => why.clone(),
        other => panic!("{other:?}"),
    };
    assert!(why(&mut node(1, 3), 1).contains("ask node 0"));
    let mut fresh = Commit::new(NodeIndex(0), 3, RUN, Settings::default(), 0);
    assert!(why(&mut fresh, 1).contains("does not know yet"));
    let (mut leader, _) = started(0, 3, vec![held(0, 4, Some(digests(3)))]);
    assert!(why(&mut leader, 4).contains("made before"));
    assert!(why(&mut leader, 3).contains("take a higher number"));
    step(&mut leader, Input::Lost { node: NodeIndex(2) });
    assert!(why(&mut leader, 5).contains("node 2 of the job"));
    step(&mut leader, Input::Returned { node: NodeIndex(2) });
    assert_eq!(
        sent(&step(&mut leader, Input::Begin { id: id(5) })).len(),
        2
    );
    assert!(why(&mut leader, 6).contains("checkpoint 5 is still being made"));
}

#[test]
fn what_takes_too_long_or_is_refused_or_lost_is_given_up() {
    let ends = |input: Input| {
        let (mut leader, _) = started(0, 3, vec![held(0, 4, Some(digests(3)))]);
        for node in [1, 2] {
            say(&mut leader, node, 0, 4, Body::Committed);
        }
        step(&mut leader, Input::Begin { id: id(5) });
        say(&mut leader, 1, 0, 5, Body::Prepared { digest: digest(1) });
        let effects = step(&mut leader, input);
        // Only the parts of this attempt are dropped.
        let dropped = effects.iter().filter_map(|e| match e {
            Effect::DropPart { id } => Some(*id),
            _ => None,
        });
        assert_eq!(dropped.collect::<Vec<_>>(), [id(5)]);
        let why = match effects.last() {
            Some(Effect::TellProgram {
                id: of,
                outcome: Outcome::Failed { why },
            }) if *of == id(5) => why.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(sent(&effects), [(1, abort(&why)), (2, abort(&why))]);
        // Another can begin, when all nodes are there.
        step(&mut leader, Input::Returned { node: NodeIndex(2) });
        assert_eq!(
            sent(&step(&mut leader, Input::Begin { id: id(6) })).len(),
            2
        );
        why
    };
    let why = "no space".to_string();
    let refused = message(2, 0, 5, Body::Refused { why });
    assert_eq!(
        ends(Input::Received(refused)),
        "node 2 did not store its part: no space"
    );
    assert_eq!(
        ends(Input::Tick { now: 1_800_000 }),
        "nodes 0 and 2 had not stored a part after 1800 s; look there for a slow disk"
    );
    assert!(ends(Input::Lost { node: NodeIndex(2) }).starts_with("node 2 is gone"));
    let other = message(1, 0, 5, Body::Prepared { digest: digest(9) });
    assert!(ends(Input::Received(other)).starts_with("node 1 has named two different manifests"));
}

#[test]
fn the_leader_aborts_nothing_that_it_may_have_recorded() {
    let mut leader = node(0, 2);
    step(&mut leader, Input::Begin { id: id(1) });
    step(
        &mut leader,
        Input::StoreReady {
            id: id(1),
            digest: digest(0),
        },
    );
    let record = Effect::MakeCommitDurable { id: id(1) };
    assert_eq!(
        say(&mut leader, 1, 0, 1, Body::Prepared { digest: digest(1) }),
        slice::from_ref(&record)
    );
    // Nobody is told before the record is durable, and neither a question, a loss nor the time limit aborts it.
    assert_eq!(say(&mut leader, 1, 0, 1, Body::Status), []);
    assert_eq!(step(&mut leader, Input::Lost { node: NodeIndex(1) }), []);
    assert_eq!(step(&mut leader, Input::Tick { now: 9_000_000 }), []);
    let why = "no space".to_string();
    let fails = Input::CommitFailed { id: id(1), why };
    for now in [9_100_000, 9_200_000] {
        assert_eq!(step(&mut leader, fails.clone()), []);
        assert_eq!(
            step(&mut leader, Input::Tick { now }),
            slice::from_ref(&record)
        );
    }
    let effects = step(&mut leader, fails);
    assert!(
        matches!(
            &effects[..],
            [Effect::TellProgram {
                outcome: Outcome::Failed { .. },
                ..
            }]
        ),
        "{effects:?}"
    );
    // Whether the record is there is not known: nothing is said of it until a newer one is committed.
    assert_eq!(say(&mut leader, 1, 0, 1, Body::Status), []);
    step(&mut leader, Input::Begin { id: id(2) });
    step(
        &mut leader,
        Input::StoreReady {
            id: id(2),
            digest: digest(0),
        },
    );
    say(&mut leader, 1, 0, 2, Body::Prepared { digest: digest(1) });
    let effects = step(&mut leader, Input::CommitDurable { id: id(2) });
    assert_eq!(
        effects,
        [
            committed(2),
            Effect::Send(message(0, 1, 2, Body::Commit { digest: digest(1) }))
        ]
    );
    assert!(matches!(
        sent(&say(&mut leader, 1, 0, 1, Body::Status))[..],
        [(1, Body::Abort { .. })]
    ));
}

#[test]
fn a_leader_that_restarts_says_again_what_it_has_recorded_and_aborts_the_rest() {
    let commit = |node| {
        (
            node,
            Body::Commit {
                digest: digest(node),
            },
        )
    };
    let (mut leader, effects) = started(0, 3, vec![held(0, 4, Some(digests(3))), held(0, 5, None)]);
    assert_eq!(sent(&effects), [commit(1), commit(2)]);
    assert_eq!(say(&mut leader, 1, 0, 4, Body::Committed), []);
    let repeated = sent(&step(&mut leader, Input::Tick { now: 2000 }));
    assert_eq!(repeated, [commit(2)]);
    let why = "this node has no part of it".to_string();
    let missing = Effect::Missing {
        id: id(4),
        node: NodeIndex(2),
        why: why.clone(),
    };
    assert_eq!(say(&mut leader, 2, 0, 4, Body::Refused { why }), [missing]);
    for body in [Body::Status, Body::Prepared { digest: digest(1) }] {
        assert!(matches!(
            sent(&say(&mut leader, 1, 0, 5, body))[..],
            [(1, Body::Abort { .. })]
        ));
    }
}

#[test]
fn the_checkpoint_that_a_job_restarts_from_becomes_a_committed_one() {
    let mut leader = Commit::new(NodeIndex(0), 2, RUN, Settings::default(), 0);
    let restarted = Input::Restarted {
        held: vec![held(0, 4, None)],
        begun: Vec::new(),
        adopt: Some((id(4), digests(2))),
    };
    let record = Effect::MakeCommitDurable { id: id(4) };
    assert_eq!(step(&mut leader, restarted), [record]);
    assert_eq!(say(&mut leader, 1, 0, 4, Body::Status), []);
    let effects = step(&mut leader, Input::CommitDurable { id: id(4) });
    assert_eq!(sent(&effects), [(1, Body::Commit { digest: digest(1) })]);
}

#[test]
fn a_member_keeps_a_part_of_an_earlier_start_until_a_newer_one_is_committed() {
    let (mut member, effects) = started(1, 2, vec![held(1, 4, None)]);
    assert_eq!(effects, []);
    for now in [30_000, 300_000] {
        assert_eq!(step(&mut member, Input::Tick { now }), []);
    }
    say(&mut member, 0, 1, 5, Body::Prepare);
    let ready = step(
        &mut member,
        Input::StoreReady {
            id: id(5),
            digest: digest(1),
        },
    );
    assert_eq!(sent(&ready), [(0, Body::Prepared { digest: digest(1) })]);
    say(&mut member, 0, 1, 5, Body::Commit { digest: digest(1) });
    assert_eq!(
        step(&mut member, Input::CommitDurable { id: id(5) })[0],
        committed(5)
    );
    // Now it may go, if the leader says so.
    let asked = step(&mut member, Input::Tick { now: 400_000 });
    assert_eq!(asked, [Effect::Send(message(1, 0, 4, Body::Status))]);
    assert_eq!(
        say(&mut member, 0, 1, 4, abort("no"))[0],
        Effect::DropPart { id: id(4) }
    );
    // A committed one stays whatever is said.
    assert_eq!(say(&mut member, 0, 1, 5, abort("no")), []);
}

#[test]
fn a_member_that_hears_nothing_asks_and_keeps_its_part() {
    let mut member = node(1, 2);
    assert_eq!(
        say(&mut member, 0, 1, 1, Body::Prepare),
        [Effect::MakePart { id: id(1) }]
    );
    assert_eq!(say(&mut member, 0, 1, 1, Body::Prepare), []);
    step(
        &mut member,
        Input::StoreReady {
            id: id(1),
            digest: digest(1),
        },
    );
    assert_eq!(
        sent(&say(&mut member, 0, 1, 1, Body::Prepare)),
        [(0, Body::Prepared { digest: digest(1) })]
    );
    let ask = [(0, Body::Status)];
    assert_eq!(sent(&step(&mut member, Input::Tick { now: 20_000 })), ask);
    assert_eq!(step(&mut member, Input::Tick { now: 21_000 }), []);
    let lost = step(&mut member, Input::Lost { node: NodeIndex(0) });
    assert!(
        matches!(
            &lost[..],
            [Effect::TellProgram {
                outcome: Outcome::Failed { .. },
                ..
            }]
        ),
        "{lost:?}"
    );
    assert_eq!(step(&mut member, Input::Tick { now: 999_000 }), []);
    step(&mut member, Input::Returned { node: NodeIndex(0) });
    assert_eq!(sent(&step(&mut member, Input::Tick { now: 999_500 })), ask);
    // It is recorded then, and the program is not told another thing.
    let record = say(&mut member, 0, 1, 1, Body::Commit { digest: digest(1) });
    assert_eq!(record, [Effect::MakeCommitDurable { id: id(1) }]);
    let durable = step(&mut member, Input::CommitDurable { id: id(1) });
    assert_eq!(durable, [Effect::Send(message(1, 0, 1, Body::Committed))]);
}

#[test]
fn no_part_is_made_of_an_attempt_that_is_over() {
    let mut member = node(1, 2);
    // An abort that overtook its attempt: copies of others' manifests may be there.
    assert_eq!(
        say(&mut member, 0, 1, 1, abort("late")),
        [Effect::DropPart { id: id(1) }]
    );
    assert!(matches!(
        sent(&say(&mut member, 0, 1, 1, Body::Prepare))[..],
        [(0, Body::Refused { .. })]
    ));
    // The leader leads another one: what is still being made is void.
    say(&mut member, 0, 1, 2, Body::Prepare);
    let took = "checkpoint 3-0000000000000005 took its place";
    let make = Effect::MakePart { id: id(3) };
    let expected = [Effect::StopPart { id: id(2) }, failed(2, took), make];
    assert_eq!(say(&mut member, 0, 1, 3, Body::Prepare), expected);
    assert!(matches!(
        sent(&say(&mut member, 0, 1, 2, Body::Prepare))[..],
        [(0, Body::Refused { .. })]
    ));
    let late = Input::StoreReady {
        id: id(2),
        digest: digest(1),
    };
    assert_eq!(step(&mut member, late), []);
    let why = "no space".to_string();
    let fails = step(
        &mut member,
        Input::StoreFailed {
            id: id(3),
            why: why.clone(),
        },
    );
    // What shows that it was begun stays until the leader has given up the attempt, and the program is told once.
    assert_eq!(fails[0], failed(3, "no space"));
    assert_eq!(sent(&fails), [(0, Body::Refused { why: why.clone() })]);
    assert_eq!(
        sent(&say(&mut member, 0, 1, 3, Body::Prepare)),
        [(0, Body::Refused { why })]
    );
    assert_eq!(
        sent(&step(&mut member, Input::Tick { now: 20_000 })),
        [(0, Body::Status), (0, Body::Status)]
    );
    assert_eq!(
        say(&mut member, 0, 1, 3, abort("no")),
        [Effect::DropPart { id: id(3) }]
    );
    // A part that a crash cut off, of which others may have used the bytes.
    let mut again = Commit::new(NodeIndex(1), 2, RUN, Settings::default(), 0);
    let begun = vec![id(4)];
    step(
        &mut again,
        Input::Restarted {
            held: vec![held(1, 3, Some(digests(2)))],
            begun,
            adopt: None,
        },
    );
    for number in [3, 4, 2] {
        let answer = sent(&say(&mut again, 0, 1, number, Body::Prepare));
        assert_eq!(answer.len(), usize::from(number != 3), "{answer:?}");
        assert!(
            answer
                .iter()
                .all(|(_, body)| matches!(body, Body::Refused { .. }))
        );
    }
}

#[test]
fn who_has_no_say_is_not_heard() {
    let prepare = message(0, 1, 1, Body::Prepare);
    for wrong in [
        Message {
            run: RUN - 1,
            ..prepare.clone()
        },
        Message {
            run: RUN + 1,
            ..prepare.clone()
        },
        Message {
            from: NodeIndex(2),
            ..prepare.clone()
        },
        Message {
            from: NodeIndex(7),
            ..prepare.clone()
        },
        Message {
            to: NodeIndex(2),
            ..prepare.clone()
        },
    ] {
        assert_eq!(step(&mut node(1, 3), Input::Received(wrong)), []);
    }
    let mut member = node(1, 3);
    step(&mut member, Input::Received(prepare));
    step(
        &mut member,
        Input::StoreReady {
            id: id(1),
            digest: digest(1),
        },
    );
    // Another manifest than this node has.
    let wrong = Body::Commit { digest: digest(9) };
    let answer = sent(&say(&mut member, 0, 1, 1, wrong));
    assert!(
        matches!(answer[..], [(0, Body::Refused { .. })]),
        "{answer:?}"
    );
    let answer = say(&mut member, 0, 1, 1, Body::Commit { digest: digest(1) });
    assert!(matches!(answer[..], [Effect::MakeCommitDurable { .. }]));
}
