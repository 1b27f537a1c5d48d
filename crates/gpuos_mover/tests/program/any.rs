//! A program goes on with another number of ranks, if it says that it can.

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_mover::program::{Every, Input, Join, Reason, Start};

use super::bench::{Bench, MINUTE, id};

/// A checkpoint of three ranks on two nodes, whose files are on nodes 0 and 1.
fn bench() -> Bench {
    let mut bench = Bench::with(2, Every::Fixed(MINUTE));
    bench.ready(Some(id(6)));
    for (node, ranks) in [(0, vec![(2, 3)]), (1, vec![(0, 3), (1, 3)])] {
        bench.give(node, Input::Holds { id: id(6), ranks });
    }
    bench
}

fn join(rank: u16, size: u16) -> Join {
    Join {
        rank,
        size,
        nonce: 1,
    }
}

/// Ranks of `size`, all on the node of their number modulo 2, of which these can begin from any.
fn start(bench: &mut Bench, size: u16, any: &[u16]) {
    for node in 0..2 {
        let ranks: Vec<u16> = (0..size).filter(|rank| rank % 2 == node).collect();
        let can = ranks.iter().filter(|rank| any.contains(rank));
        let can = can.map(|rank| (join(*rank, size), false)).collect();
        bench.says(node, can);
        for rank in ranks {
            bench.join(node, rank, size, 1);
        }
    }
}

fn all() -> Start {
    Start::All {
        id: id(6),
        holders: vec![NodeIndex(1), NodeIndex(1), NodeIndex(0)],
    }
}

#[test]
fn fewer_and_more_ranks_are_told_who_holds_each_ones_files() {
    for size in [1, 2, 4, 7] {
        let mut bench = bench();
        let any: Vec<u16> = (0..size).collect();
        start(&mut bench, size, &any);
        let answers = bench.answers();
        assert_eq!(answers.len(), usize::from(size));
        assert!(answers.iter().all(|(_, start)| *start == all()));
        bench.give(0, Input::Want(Reason::Asked));
        bench.wait(MINUTE);
        assert_eq!(bench.asked(), Some((7, Reason::Asked)), "it runs on");
    }
}

#[test]
fn nobody_is_told_before_all_have_joined() {
    let mut bench = bench();
    let first = join(0, 2);
    bench.says(0, vec![(first, false)]);
    bench.join(0, 0, 2, 1);
    bench.wait(5000);
    assert_eq!(bench.answers(), []);
    let second = join(1, 2);
    bench.says(1, vec![(second, false)]);
    bench.join(1, 1, 2, 1);
    assert_eq!(bench.answers(), [(0, all()), (1, all())]);
}

#[test]
fn one_that_cannot_is_enough_for_none_to_go_on() {
    let mut bench = bench();
    start(&mut bench, 4, &[0, 1, 3]);
    let answers = bench.answers();
    assert_eq!(answers.len(), 4);
    for (_, start) in answers {
        let Start::Failed(why) = start else {
            panic!("{start:?}");
        };
        assert!(why.contains("made by 3 ranks"), "{why}");
    }
    bench.give(0, Input::Want(Reason::Asked));
    bench.wait(5 * MINUTE);
    assert_eq!(bench.out(), [], "nothing is saved of it");
}

#[test]
fn with_as_many_ranks_each_gets_its_own_files() {
    let mut bench = bench();
    start(&mut bench, 3, &[0, 1, 2]);
    let from = |node| Start::Restore {
        id: id(6),
        from: NodeIndex(node),
    };
    let mut answers = bench.answers();
    answers.sort_by_key(|(rank, _)| *rank);
    assert_eq!(answers, [(0, from(1)), (1, from(1)), (2, from(0))]);
}

#[test]
fn who_needs_the_files_of_all_ranks_gets_them_with_as_many_ranks_too() {
    for needs in [[true, true, true], [true, false, true]] {
        let mut bench = bench();
        let joins = |node| (0..3).filter(move |rank| rank % 2 == node);
        for node in [0, 1] {
            let says = joins(node).map(|rank| (join(rank, 3), needs[usize::from(rank)]));
            bench.says(node, says.collect());
            assert_eq!(bench.answers(), [], "not all have joined");
            for rank in joins(node) {
                bench.join(node, rank, 3, 1);
            }
        }
        let answers = bench.answers();
        assert_eq!(answers.len(), 3);
        let everything = answers.iter().all(|(_, start)| *start == all());
        assert_eq!(everything, needs[1], "{answers:?}");
    }
}

/// A program can name whom it likes: what no rank of its own has joined as says nothing.
#[test]
fn who_speaks_for_ranks_that_have_not_joined_is_not_listened_to() {
    let mut bench = bench();
    let said = (0..9).map(|rank| join(rank, 9)).chain([join(1, 2)]);
    bench.says(0, said.map(|join| (join, true)).collect());
    bench.join(0, 0, 2, 1);
    bench.join(1, 1, 2, 1);
    let answers = bench.answers();
    assert!(!answers.is_empty());
    let failed = |start: &Start| matches!(start, Start::Failed(_));
    let (own, of_other): (Vec<_>, Vec<_>) = answers.iter().partition(|(rank, _)| *rank == 0);
    assert!(own.iter().all(|(_, start)| failed(start)), "{own:?}");
    // Whoever is told of the other rank: nodes of a job are one user's.
    assert_eq!(of_other.len(), 1);
}
