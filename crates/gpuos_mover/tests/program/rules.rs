//! What is promised to a program, sentence by sentence.

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::NodeIndex;
use gpuos_mover::output::Ready;
use gpuos_mover::program::{Every, Input, Join, Output, Reason, Stage, Start};

use super::bench::{Bench, MINUTE, id, ready};

#[test]
fn without_a_checkpoint_all_ranks_begin_from_the_start_and_are_told_once() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    assert_eq!(bench.answers(), [(0, Start::New), (1, Start::New)]);
    bench.start(2, 1);
    bench.wait(5000);
    assert_eq!(bench.answers(), []);
    assert_eq!(bench.nodes[0].view().joined, 2);
}

#[test]
fn a_rank_is_told_which_node_has_its_files() {
    let mut bench = Bench::with(3, Every::Fixed(MINUTE));
    bench.start(2, 1);
    bench.ready(Some(id(6)));
    assert_eq!(bench.answers(), []);
    let ranks = [vec![], vec![(1, 2)], vec![(0, 2)]];
    for (node, ranks) in (0..).zip(ranks) {
        assert_eq!(bench.answers(), [], "the holders are not known");
        bench.give(node, Input::Holds { id: id(6), ranks });
    }
    let from = |node| Start::Restore {
        id: id(6),
        from: NodeIndex(node),
    };
    assert_eq!(bench.answers(), [(0, from(2)), (1, from(1))]);
    assert_eq!(bench.nodes[1].view().restored, Some(6));
    bench.wait(MINUTE);
    assert_eq!(
        bench.asked(),
        Some((7, Reason::Interval)),
        "above the highest"
    );
}

#[test]
fn a_program_with_another_number_of_ranks_is_told_so_and_saves_nothing() {
    let mut bench = Bench::with(3, Every::Fixed(MINUTE));
    bench.ready(Some(id(6)));
    for node in 0..3 {
        let ranks = vec![(node, 3)];
        bench.give(node, Input::Holds { id: id(6), ranks });
    }
    bench.start(2, 1);
    for (_, start) in bench.answers() {
        let Start::Failed(why) = start else {
            panic!("{start:?}");
        };
        assert!(
            why.starts_with(
                "checkpoint 6 was made by 3 ranks, and the program has 2; start it with 3"
            ),
            "{why}"
        );
    }
    bench.give(1, Input::Want(Reason::Asked));
    bench.wait(5 * MINUTE);
    assert_eq!(bench.out(), []);
    // With as many as before all is well.
    bench.start(3, 2);
    bench.wait(1000);
    assert_eq!(bench.asked(), Some((7, Reason::Asked)));
}

#[test]
fn files_that_make_up_no_program_are_not_restored() {
    for (ranks, said) in [
        (vec![], "has no files of ranks"),
        (vec![(0, 2), (1, 3)], "different numbers of ranks"),
        (vec![(0, 3), (2, 3)], "has no files of rank 1 of 3"),
    ] {
        let mut bench = Bench::with(1, Every::Fixed(MINUTE));
        bench.ready(Some(id(6)));
        bench.give(0, Input::Holds { id: id(6), ranks });
        bench.start(1, 1);
        let answers = bench.answers();
        let [(0, Start::Failed(why))] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert!(
            why.contains(said) && why.contains("nothing was removed"),
            "{why}"
        );
    }
}

#[test]
fn nobody_begins_anew_in_place_of_a_checkpoint_that_is_lost_for_now() {
    let mut bench = Bench::with(1, Every::Fixed(MINUTE));
    let lost = Ready {
        passed_over: vec!["checkpoint 4: nodes 1 and 2 are gone".into()],
        highest: 4,
        lost: true,
        ..ready(None)
    };
    bench.give(0, Input::Ready(lost));
    bench.start(1, 1);
    let answers = bench.answers();
    let [(0, Start::Failed(why))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(
        why.contains("checkpoint 4: nodes 1 and 2 are gone; nothing was removed"),
        "{why}"
    );
    bench.wait(10 * MINUTE);
    assert_eq!(bench.out(), []);
}

#[test]
fn a_checkpoint_takes_its_way() {
    let mut bench = Bench::new(3);
    bench.start(2, 1);
    bench.out();
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.out(), []);
    bench.wait(1);
    let ask = |ranks| Output::Ask {
        number: 1,
        reason: Reason::Interval,
        ranks,
    };
    let mut out = bench.out();
    out.sort_by_key(|(node, _)| *node);
    let expected = [
        (0, ask(vec![(0, 2)])),
        (1, ask(vec![(1, 2)])),
        (2, ask(vec![])),
        (2, Output::Offer { number: 1 }),
    ];
    assert_eq!(out, expected);
    bench.wait(3000);
    bench.saved(1, 1, &[1]);
    assert_eq!(bench.out(), [(1, Output::Offer { number: 1 })]);
    let making = bench.nodes[0].view().making.unwrap();
    assert_eq!(
        (making.number, making.stage, making.since),
        (1, Stage::Saving, 10 * MINUTE)
    );
    // Files of a rank that is not there do not count.
    bench.saved(0, 1, &[7]);
    bench.saved(0, 2, &[0]);
    assert_eq!(bench.out(), []);
    bench.saved(0, 1, &[0]);
    assert_eq!(
        bench.out(),
        [
            (0, Output::Offer { number: 1 }),
            (0, Output::Begin { number: 1 })
        ]
    );
    assert_eq!(bench.nodes[0].view().making.unwrap().stage, Stage::Storing);
    bench.give(1, Input::FolderRead { id: id(1) });
    assert_eq!(bench.out(), [(1, Output::Taken { number: 1 })]);
    bench.wait(20_000);
    bench.end(1, Outcome::Committed);
    assert_eq!(bench.closed(), Some((1, Ok(()))));
    let view = bench.nodes[0].view();
    assert_eq!((view.making, view.newest), (None, Some(id(1))));
    let took = view.took[0];
    assert_eq!(
        (took.number, took.pause_ms, took.background_ms),
        (1, 3000, 20_000)
    );
    // The interval counts from the commit.
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.asked(), None);
    bench.wait(1);
    assert_eq!(bench.asked(), Some((2, Reason::Interval)));
}

#[test]
fn nothing_is_asked_for_before_all_ranks_have_joined() {
    let mut bench = Bench::new(2);
    bench.join(0, 0, 3, 1);
    bench.join(1, 2, 3, 1);
    bench.give(1, Input::Want(Reason::Asked));
    bench.wait(30 * MINUTE);
    assert_eq!(bench.asked(), None);
    bench.join(1, 1, 3, 1);
    assert_eq!(bench.asked(), Some((1, Reason::Asked)));
}

#[test]
fn a_rank_that_joins_again_begins_an_epoch_for_which_all_have_to_join() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
    bench.commit(1, 2);
    bench.join(1, 1, 2, 9);
    let from = |node| Start::Restore {
        id: id(1),
        from: NodeIndex(node),
    };
    bench.wait(9 * MINUTE);
    assert_eq!(bench.out(), [], "rank 0 is of the start before");
    bench.join(0, 0, 2, 9);
    assert_eq!(bench.answers(), [(0, from(0)), (1, from(1))]);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((2, Reason::Interval)));
}

#[test]
fn what_is_being_stored_is_waited_for_and_what_is_not_complete_is_given_up() {
    for committed in [true, false] {
        let mut bench = Bench::new(2);
        bench.start(2, 1);
        bench.wait(10 * MINUTE);
        bench.out();
        bench.save(1, 2);
        bench.start(2, 2);
        bench.wait(MINUTE);
        assert_eq!(bench.out(), [], "it is being stored");
        let why = "no space".to_string();
        let outcome = match committed {
            true => Outcome::Committed,
            false => Outcome::Failed { why },
        };
        bench.end(1, outcome);
        let out = bench.out();
        let starts = out.iter().filter_map(|(_, output)| match output {
            Output::Answer { start, .. } => Some(matches!(start, Start::Restore { .. })),
            _ => None,
        });
        assert_eq!(starts.collect::<Vec<bool>>(), [committed; 2]);
        for node in 0..2 {
            let mut own = out
                .iter()
                .filter(|(at, _)| *at == node)
                .map(|(_, output)| output);
            assert!(
                matches!(own.next(), Some(Output::Close { .. })),
                "it has ended before"
            );
        }
    }
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE);
    bench.out();
    bench.saved(0, 1, &[0]);
    bench.out();
    bench.join(0, 0, 2, 2);
    let closed = bench
        .out
        .iter()
        .filter(|(_, output)| matches!(output, Output::Close { .. }));
    assert_eq!(closed.count(), 2);
    let out = bench.out();
    let Some((
        0,
        Output::Close {
            outcome: Err(why), ..
        },
    )) = out.first()
    else {
        panic!("{out:?}");
    };
    assert!(
        why.contains("rank 0 of 2 has started anew on node 0"),
        "{why}"
    );
    // What the old process had saved does not come back with the new one.
    bench.saved(0, 1, &[0]);
    bench.saved(1, 1, &[1]);
    bench.wait(MINUTE);
    assert!(!bench.out().contains(&(0, Output::Begin { number: 1 })));
}

#[test]
fn a_process_does_not_save_for_the_one_before() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE);
    bench.out();
    // The leader does not hear of the new process.
    bench.cut = true;
    bench.join(1, 1, 2, 2);
    bench.saved(1, 1, &[1]);
    assert_eq!(bench.out(), []);
    bench.cut = false;
    bench.saved(0, 1, &[0]);
    bench.wait(20_000);
    assert!(
        bench
            .why(1)
            .contains("rank 1 of 2 has started anew on node 1")
    );
}

/// The leader hears of a new process when another one has taken its place on the node.
#[test]
fn a_node_asks_nothing_of_processes_that_are_gone() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE - 1);
    bench.out();
    bench.cut = true;
    bench.join(1, 1, 2, 2);
    bench.cut = false;
    bench.give(0, Input::Want(Reason::Asked));
    let out = bench.out();
    let asks = |one: &&(u16, Output)| matches!(one, (1, Output::Ask { .. }));
    assert_eq!(out.iter().find(asks), None);
}

/// One whose step got no answer of its mover begins from the start, and never joins.
#[test]
fn no_rank_goes_on_before_all_have_joined() {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    bench.restored(6, 2);
    bench.join(0, 0, 2, 1);
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.out(), []);
    bench.wait(1000);
    let answers = bench.answers();
    let [(0, Start::Failed(why))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(
        why.starts_with("1 of 2 ranks have joined")
            && why.ends_with("start all of the program again"),
        "{why}"
    );
    // The next start is an ordinary one.
    bench.start(2, 2);
    assert_eq!(bench.answers().len(), 2);
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((7, Reason::Interval)));
}

#[test]
fn a_rank_that_joined_and_ended_is_not_waited_with() {
    let mut bench = Bench::with(3, Every::Fixed(MINUTE));
    bench.restored(6, 3);
    let from = |node| Start::Restore {
        id: id(6),
        from: NodeIndex(node),
    };
    let all = [(0, from(0)), (1, from(1)), (2, from(2))];
    // It had no answer when its process ended; the next time it is answered, and all end.
    bench.join(2, 2, 3, 1);
    bench.ends(2, 2);
    for nonce in 2..5 {
        bench.join(0, 0, 3, nonce);
        bench.join(1, 1, 3, nonce);
        bench.wait(5000);
        assert_eq!(bench.out(), [], "start {nonce}: rank 2 is not of it");
        bench.join(2, 2, 3, nonce);
        let mut answers = bench.answers();
        answers.sort_by_key(|(rank, _)| *rank);
        assert_eq!(answers, all, "start {nonce}");
        for rank in 0..3 {
            bench.ends(rank, rank);
        }
    }
}

/// A start of the program may die before all ranks have joined, and joins become known in any order.
#[test]
fn a_rank_that_is_late_takes_its_own_place() {
    let mut bench = Bench::new(3);
    // The first start: rank 2 has not joined when it dies.
    bench.join(0, 0, 3, 1);
    bench.join(1, 1, 3, 1);
    bench.wait(5000);
    // The second: rank 2 is the first, and all seem to be there.
    bench.join(2, 2, 3, 2);
    bench.wait(1000);
    bench.join(1, 1, 3, 2);
    bench.join(0, 0, 3, 2);
    assert_eq!(bench.answers().len(), 5);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
    bench.commit(1, 3);
}

#[test]
fn another_number_of_ranks_begins_an_epoch() {
    let mut bench = Bench::new(4);
    bench.start(4, 1);
    bench.wait(5 * MINUTE);
    bench.start(2, 2);
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.nodes[0].view().size, Some(2));
    assert_eq!(bench.asked(), None);
    bench.wait(1);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
}

#[test]
fn a_program_that_does_not_save_in_time_is_named() {
    let mut bench = Bench::new(2);
    bench.join(0, 0, 4, 1);
    bench.join(0, 3, 4, 1);
    bench.join(1, 1, 4, 1);
    bench.join(1, 2, 4, 1);
    bench.wait(10 * MINUTE);
    bench.out();
    bench.saved(0, 1, &[0]);
    bench.saved(1, 1, &[1]);
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.closed(), None);
    bench.wait(1);
    let why = bench.why(1);
    assert!(
        why.contains("had not saved after 600 s: rank 2 on node 1, rank 3 on node 0; look"),
        "{why}"
    );
    assert_eq!(bench.nodes[1].view().failures, [(1, why)]);
}

/// After a failure the next try comes after a tenth of the interval, then after twice that, up to the interval.
#[test]
fn who_wants_one_gets_it_on_any_node_and_one_more_if_one_is_made() {
    let mut bench = Bench::new(3);
    bench.start(2, 1);
    bench.give(2, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), Some((1, Reason::Asked)));
    bench.give(1, Input::Want(Reason::Interval));
    bench.give(1, Input::Want(Reason::Asked));
    bench.save(1, 2);
    bench.end(1, Outcome::Committed);
    assert_eq!(bench.asked(), Some((2, Reason::Asked)));
    bench.commit(2, 2);
    bench.wait(10 * MINUTE - 1);
    assert_eq!(bench.asked(), None);
}

/// Whoever asks, on whichever nodes, and whether by the command or by the program: the site's least time between two holds for the job.
#[test]
fn who_asks_again_waits_as_long_as_the_site_says() {
    let mut bench = Bench::least(3, Every::Fixed(10 * MINUTE), MINUTE);
    bench.start(2, 1);
    bench.give(2, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), Some((1, Reason::Asked)));
    bench.commit(1, 2);
    for node in [0, 1, 2, 1] {
        bench.give(node, Input::Want(Reason::Asked));
    }
    bench.wait(MINUTE / 2);
    assert_eq!(bench.asked(), None);
    bench.wait(MINUTE);
    assert_eq!(
        bench.asked(),
        Some((2, Reason::Asked)),
        "it is not forgotten"
    );
    bench.commit(2, 2);
    // Those were one.
    bench.wait(2 * MINUTE);
    assert_eq!(bench.asked(), None);
    // One that came to nothing counts as well: it cost as much.
    bench.give(1, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), Some((3, Reason::Asked)));
    bench.save(3, 2);
    bench.end(
        3,
        Outcome::Failed {
            why: "no space".into(),
        },
    );
    bench.give(1, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), None);
    // The end of the job does not wait.
    bench.give(0, Input::Want(Reason::End));
    assert_eq!(bench.asked(), Some((4, Reason::End)));
}

#[test]
fn one_that_was_wanted_and_came_to_nothing_is_tried_again() {
    let mut bench = Bench::new(1);
    bench.start(1, 1);
    bench.give(0, Input::Want(Reason::End));
    assert_eq!(bench.asked(), Some((1, Reason::End)));
    bench.save(1, 1);
    bench.end(
        1,
        Outcome::Failed {
            why: "no space".into(),
        },
    );
    bench.wait(MINUTE - 1);
    assert_eq!(bench.asked(), None);
    // Who wants it again does not wait.
    bench.give(0, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), Some((2, Reason::End)));
}

#[test]
fn after_one_for_the_end_of_the_job_no_other_is_made_unless_wanted() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.give(1, Input::Want(Reason::End));
    assert_eq!(bench.asked(), Some((1, Reason::End)));
    bench.commit(1, 2);
    bench.wait(60 * MINUTE);
    assert_eq!(bench.asked(), None);
    bench.give(1, Input::Want(Reason::Asked));
    assert_eq!(bench.asked(), Some((2, Reason::Asked)));
}

#[test]
fn a_job_that_is_not_ended_after_all_has_its_interval_again() {
    let mut bench = Bench::new(1);
    bench.start(1, 1);
    bench.give(0, Input::Want(Reason::End));
    assert_eq!(bench.asked(), Some((1, Reason::End)));
    bench.commit(1, 1);
    bench.wait(20 * MINUTE);
    assert_eq!(bench.asked(), None);
    bench.give(0, Input::EndIsOff);
    assert_eq!(bench.asked(), Some((2, Reason::Interval)));
}

#[test]
fn a_node_whose_restart_is_not_over_keeps_all_waiting() {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    bench.start(2, 1);
    bench.give(0, Input::Ready(ready(None)));
    bench.give(0, Input::Want(Reason::Asked));
    bench.wait(10 * MINUTE);
    assert_eq!(
        bench.out(),
        [],
        "it may know of answers that were given before"
    );
    bench.give(1, Input::Ready(ready(None)));
    let out = bench.out();
    let is_new = |output: &Output| {
        matches!(
            output,
            Output::Answer {
                start: Start::New,
                ..
            }
        )
    };
    let answered = out.iter().filter(|(_, output)| is_new(output)).count();
    assert_eq!((answered, out.len()), (2, 4), "both are asked: {out:?}");
}

#[test]
fn who_hears_nothing_goes_on_waiting() {
    let mut bench = Bench::new(2);
    bench.cut = true;
    bench.start(2, 1);
    bench.wait(60 * MINUTE);
    assert_eq!(bench.answers(), [(0, Start::New)]);
    bench.cut = false;
    bench.wait(20_000);
    assert_eq!(bench.answers(), [(1, Start::New)]);
}

#[test]
fn a_rank_that_moves_to_another_node_is_asked_there() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE);
    bench.out();
    bench.commit(1, 2);
    bench.join(0, 1, 2, 2);
    bench.join(0, 0, 2, 2);
    let from = |node| Start::Restore {
        id: id(1),
        from: NodeIndex(node),
    };
    assert_eq!(bench.answers(), [(0, from(0)), (1, from(1))]);
    bench.wait(10 * MINUTE);
    bench.out();
    bench.saved(0, 2, &[0, 1]);
    assert_eq!(
        bench.out(),
        [
            (0, Output::Offer { number: 2 }),
            (0, Output::Begin { number: 2 })
        ]
    );
}

#[test]
fn joins_that_make_no_sense_are_passed_over() {
    let mut bench = Bench::new(1);
    let join = |rank, size| Join {
        rank,
        size,
        nonce: 1,
    };
    bench.give(0, Input::Joins(vec![join(0, 0), join(5, 5), join(0, 1)]));
    assert_eq!(bench.answers(), [(0, Start::New)]);
}
