//! Ranks that cannot load what they are given.

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_mover::program::{Every, Reason, Start};

use super::bench::{Bench, MINUTE, id};

fn from(node: u16, number: u32) -> Start {
    Start::Restore {
        id: id(number),
        from: NodeIndex(node),
    }
}

/// Two ranks that were given checkpoint 6.
fn given() -> Bench {
    let mut bench = Bench::with(3, Every::Fixed(MINUTE));
    bench.restored(6, 2);
    bench.start(2, 1);
    assert_eq!(bench.answers(), [(0, from(0, 6)), (1, from(1, 6))]);
    bench
}

#[test]
fn one_rank_refuses_for_all_and_all_get_the_one_before() {
    let mut bench = given();
    bench.refuse(1, 1);
    assert_eq!(bench.refused(), Some((6, 1)));
    // Until the movers have begun anew nobody is given anything, and nothing is saved.
    bench.start(2, 2);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.out(), []);
    bench.anew_without(6, Some((5, 2)));
    assert_eq!(bench.answers(), [(0, from(0, 5)), (1, from(1, 5))]);
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((6, Reason::Interval)));
}

#[test]
fn no_rank_is_answered_before_all_have_joined_again() {
    let mut bench = given();
    bench.refuse(1, 1);
    bench.out();
    bench.anew_without(6, Some((5, 2)));
    bench.join(1, 1, 2, 2);
    bench.wait(MINUTE);
    assert_eq!(bench.out(), [], "rank 0 may be of the same start");
    // Nor when a mover begins anew meanwhile.
    bench.anew_without(6, Some((5, 2)));
    bench.wait(MINUTE);
    assert_eq!(bench.out(), []);
    bench.join(0, 0, 2, 2);
    assert_eq!(bench.answers(), [(0, from(0, 5)), (1, from(1, 5))]);
    // The next start is an ordinary one.
    bench.wait(MINUTE);
    bench.out();
    bench.join(1, 1, 2, 3);
    bench.wait(MINUTE);
    bench.join(0, 0, 2, 3);
    bench.wait(1000);
    let answers: Vec<_> = bench.out();
    assert!(!answers.is_empty());
}

#[test]
fn ranks_whose_fellows_stay_away_are_told_to_end_and_the_next_start_goes_on() {
    let mut bench = given();
    bench.refuse(1, 1);
    bench.out();
    bench.anew_without(6, Some((5, 2)));
    bench.join(1, 1, 2, 2);
    bench.wait(2 * MINUTE + 1000);
    let answers = bench.answers();
    let [(1, Start::Failed(why))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(
        why.starts_with("checkpoint 6 was refused, and not all ranks")
            && why.ends_with("start all of the program again"),
        "{why}"
    );
    bench.join(1, 1, 2, 3);
    assert_eq!(bench.out(), []);
    bench.join(0, 0, 2, 3);
    assert_eq!(bench.answers(), [(0, from(0, 5)), (1, from(1, 5))]);
}

#[test]
fn what_was_refused_and_nothing_before_it_is_no_reason_to_begin_anew() {
    let mut bench = given();
    bench.refuse(0, 0);
    assert_eq!(bench.refused(), Some((6, 0)));
    bench.anew_without(6, None);
    bench.join(1, 1, 2, 2);
    let answers = bench.answers();
    let [(1, Start::Failed(why))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(
        why.contains(
            "checkpoint 6: rank 1 on n1 could not load it and has refused it; nothing was removed"
        ) && why.ends_with("--gpuos-restart=new, which begins anew where none can be restored"),
        "{why}"
    );
}

#[test]
fn a_refusal_counts_only_as_long_as_nothing_was_saved_of_what_was_loaded() {
    let mut bench = given();
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((7, Reason::Interval)));
    bench.save(7, 2);
    bench.refuse(1, 1);
    assert_eq!(bench.out(), [], "it is being stored");
    bench.end(7, gpuos_checkpoint::commit::Outcome::Committed);
    assert_eq!(bench.closed(), Some((7, Ok(()))));
    bench.refuse(1, 1);
    bench.wait(1000);
    assert_eq!(bench.out(), [], "a newer one is committed");
}

#[test]
fn a_refusal_becomes_known_to_movers_that_begin_anew() {
    let mut bench = given();
    bench.cut = true;
    bench.refuse(1, 1);
    bench.cut = false;
    assert_eq!(bench.out(), [], "node 0 has not heard it");
    bench.anew();
    bench.refuse(1, 1);
    bench.restored(6, 2);
    assert_eq!(bench.refused(), Some((6, 1)));
}

#[test]
fn nobody_refuses_what_he_was_not_given() {
    let mut bench = Bench::new(2);
    bench.start(2, 1);
    bench.out();
    let join = gpuos_mover::program::Join {
        rank: 1,
        size: 2,
        nonce: 1,
    };
    for number in [0, 1, 6] {
        let refused = gpuos_mover::program::Refused {
            join,
            number,
            said: String::new(),
        };
        bench.give(1, gpuos_mover::program::Input::Refused(Some(refused)));
    }
    assert_eq!(bench.out(), []);
}
