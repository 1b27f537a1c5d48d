//! Conductors that begin anew while programs run.

use gpuos_mover::program::{Answered, Every, Input, Join, Known, Output, Reason, Start, Told};

use super::bench::{Bench, MINUTE, id};
use gpuos_checkpoint::ids::NodeIndex;

fn from(node: u16, number: u32) -> Start {
    Start::Restore {
        id: id(number),
        from: NodeIndex(node),
    }
}

#[test]
fn a_program_that_runs_is_asked_on_and_not_answered_again() {
    let mut bench = Bench::new(3);
    bench.start(2, 1);
    assert_eq!(bench.answers().len(), 2);
    bench.anew();
    bench.ready(None);
    assert_eq!(bench.answers(), []);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
    bench.commit(1, 2);
    // Once more, with a newer checkpoint than the one that the program has begun from.
    bench.anew();
    bench.restored(1, 2);
    assert_eq!(bench.answers(), []);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((2, Reason::Interval)));
    bench.commit(2, 2);
}

#[test]
fn a_program_that_starts_anew_then_begins_from_the_newest() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.wait(10 * MINUTE);
    bench.out();
    bench.commit(1, 2);
    bench.anew();
    bench.restored(1, 2);
    bench.join(1, 1, 2, 9);
    bench.wait(9 * MINUTE);
    assert_eq!(bench.out(), [], "rank 0 is of the start before");
    bench.join(0, 0, 2, 9);
    assert_eq!(bench.answers(), [(0, from(0, 1)), (1, from(1, 1))]);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((2, Reason::Interval)));
}

#[test]
fn ranks_without_an_answer_get_that_of_the_others() {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    bench.restored(6, 2);
    bench.start(2, 1);
    assert_eq!(bench.answers(), [(0, from(0, 6)), (1, from(1, 6))]);
    // Its files were not complete when the mover ended.
    bench.known[1].clear();
    bench.anew();
    bench.restored(6, 2);
    assert_eq!(bench.answers(), [(1, from(1, 6))]);
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((7, Reason::Interval)));
}

#[test]
fn no_checkpoint_is_made_of_ranks_that_were_answered_in_different_epochs() {
    for (epochs, told) in [
        ([1, 2], [Told::Restore(6); 2]),
        ([2, 2], [Told::Restore(6), Told::New]),
    ] {
        let mut bench = Bench::with(2, Every::Fixed(MINUTE));
        bench.start(2, 1);
        for rank in 0..2 {
            let (nonce, size) = (1, 2);
            let join = Join { rank, size, nonce };
            let epoch = epochs[usize::from(rank)];
            let told = told[usize::from(rank)];
            let answered = Answered { join, epoch, told };
            bench.known[usize::from(rank)].insert(rank, answered);
        }
        bench.anew();
        bench.restored(6, 2);
        bench.wait(10 * MINUTE);
        assert_eq!(bench.out(), []);
        bench.start(2, 2);
        assert_eq!(bench.answers(), [(0, from(0, 6)), (1, from(1, 6))]);
        bench.wait(MINUTE);
        assert_eq!(bench.asked(), Some((7, Reason::Interval)));
    }
}

#[test]
fn numbers_go_on_above_those_that_programs_have_heard_of() {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    let known = Known {
        highest: 20,
        ..Known::default()
    };
    bench.give(1, Input::Known(known));
    bench.ready(None);
    bench.start(2, 1);
    bench.out();
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((21, Reason::Interval)));
}

#[test]
fn a_rank_that_joins_again_while_it_waits_takes_its_own_place() {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    bench.restored(6, 2);
    bench.slow = true;
    bench.start(2, 1);
    assert_eq!(bench.answers().len(), 2);
    // Long after all have joined.
    bench.wait(MINUTE - 1);
    bench.join(1, 1, 2, 2);
    assert_eq!(bench.answers(), [(1, from(1, 6))]);
    bench.wait(MINUTE);
    assert_eq!(
        bench.asked(),
        Some((7, Reason::Interval)),
        "rank 0 is of it still"
    );
}

/// A rank of another node has seen the request, so that its own waits for it: on a node whose mover has ended before it heard of it, too.
#[test]
fn a_node_that_never_heard_of_a_checkpoint_is_told_that_it_came_to_nothing() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.heard = vec![3, 2];
    bench.anew();
    bench.out.clear();
    bench.ready(None);
    let closed = |bench: &Bench| -> Vec<(u16, u32)> {
        let out = bench.out.iter().filter_map(|(node, output)| match output {
            Output::Close {
                number,
                outcome: Err(why),
            } => {
                assert!(why.contains("not all nodes had heard of it"), "{why}");
                Some((*node, *number))
            }
            _ => None,
        });
        out.collect()
    };
    assert_eq!(closed(&bench), [(1, 3)]);
    bench.wait(10_000);
    assert_eq!(closed(&bench), [(1, 3)], "once");
    // What exists is no such checkpoint: a node that took over has not heard of it.
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.heard = vec![3, 0];
    bench.anew();
    bench.out.clear();
    bench.restored(3, 2);
    bench.wait(10_000);
    assert_eq!(closed(&bench), []);
}

/// The last node's mover ended, or its words were lost, when node 0 had committed a checkpoint, or not: ranks decide by what became of it.
#[test]
fn what_was_left_open_ends_alike_on_all_nodes() {
    let left = |open, committed, failed| Known {
        open,
        committed,
        failed,
        ..Known::default()
    };
    let open = left(Some(3), Some(2), None);
    for (first, newest, exists) in [
        // Nobody has said anything: it exists if it is whole.
        (open.clone(), 3, true),
        (open.clone(), 2, false),
        // What was said elsewhere holds, whatever is whole.
        (left(None, Some(3), None), 3, true),
        (left(None, Some(3), None), 2, true),
        (left(None, Some(2), Some(3)), 2, false),
        (left(None, Some(2), Some(3)), 3, false),
    ] {
        let mut bench = Bench::new(2);
        bench.start(2, 1);
        bench.heard = vec![3, 3];
        bench.left = vec![first.clone(), open.clone()];
        bench.anew();
        bench.out.clear();
        bench.cut = true;
        bench.restored(newest, 2);
        let told = |bench: &Bench| -> Vec<(u16, u32, bool)> {
            let out = bench.out.iter().filter_map(|(node, output)| match output {
                Output::Close { number, outcome } => Some((*node, *number, outcome.is_ok())),
                _ => None,
            });
            out.collect()
        };
        assert_eq!(told(&bench), [], "not before all nodes are heard");
        bench.cut = false;
        bench.wait(10_000);
        let mut expected = vec![(1, 3, exists)];
        if first.open.is_some() {
            expected.push((0, 3, exists));
        }
        let mut told = told(&bench);
        told.sort_by_key(|it| std::cmp::Reverse(it.0));
        assert_eq!(told, expected, "{first:?}, {newest}");
    }
}

#[test]
fn none_is_asked_for_while_a_node_is_not_reached() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.give(0, Input::Reached(false));
    bench.wait(30 * MINUTE);
    assert_eq!(bench.asked(), None);
    bench.give(0, Input::Reached(true));
    bench.wait(1000);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
}
