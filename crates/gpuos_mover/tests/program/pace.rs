//! How often a program is asked, sentence by sentence.

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::interval::choice::Limits;
use gpuos_mover::program::{Every, Input, Reason};

use super::bench::{Bench, MINUTE, id};

#[test]
fn failures_are_followed_by_longer_and_longer_waits() {
    let mut bench = Bench::new(1);
    bench.start(1, 1);
    bench.wait(10 * MINUTE);
    for (number, minutes) in (1..).zip([1, 2, 4, 8, 10, 10]) {
        assert_eq!(bench.asked(), Some((number, Reason::Interval)));
        bench.save(number, 1);
        match number {
            1 => bench.give(
                0,
                Input::RefusedBegin {
                    id: id(1),
                    why: "take a higher number".into(),
                },
            ),
            _ => bench.end(
                number,
                Outcome::Failed {
                    why: "no space".into(),
                },
            ),
        }
        bench.why(number);
        bench.wait(minutes * MINUTE - 1);
        assert_eq!(bench.asked(), None);
        bench.wait(1);
    }
    assert_eq!(bench.asked(), Some((7, Reason::Interval)));
    bench.commit(7, 1);
    bench.wait(10 * MINUTE);
    assert_eq!(bench.asked(), Some((8, Reason::Interval)));
    bench.save(8, 1);
    bench.end(
        8,
        Outcome::Failed {
            why: "no space".into(),
        },
    );
    bench.wait(MINUTE);
    assert_eq!(
        bench.asked(),
        Some((9, Reason::Interval)),
        "the waits begin anew"
    );
    let numbers: Vec<u32> = bench.nodes[0]
        .view()
        .failures
        .iter()
        .map(|one| one.0)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 8]);
}

#[test]
fn the_interval_follows_from_what_checkpoints_cost() {
    let limits = Limits::default();
    let mtbf_s = 86_400.0;
    let mut bench = Bench::with(1, Every::Auto { mtbf_s, limits });
    bench.ready(None);
    bench.start(1, 1);
    let (ms, why) = bench.nodes[0].view().interval.unwrap();
    assert_eq!(ms, MINUTE);
    assert!(
        why.contains("until it is known what a checkpoint costs"),
        "{why}"
    );
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
    bench.wait(30_000);
    bench.save(1, 1);
    bench.wait(100_000);
    bench.end(1, Outcome::Committed);
    let (ms, why) = bench.nodes[0].view().interval.unwrap();
    // sqrt(2 * 30 s * 86400 s) is 38 min, and Daly's is a little less.
    assert!((37 * MINUTE..38 * MINUTE).contains(&ms), "{ms}");
    assert!(
        why.contains("Daly's optimum") && why.contains("a checkpoint costs 30.0 s"),
        "{why}"
    );
}

#[test]
fn figures_that_are_none_give_the_longest_interval_and_it_is_said() {
    let limits = Limits::default();
    let mtbf_s = f64::NAN;
    let mut bench = Bench::with(1, Every::Auto { mtbf_s, limits });
    bench.ready(None);
    bench.start(1, 1);
    bench.wait(MINUTE);
    assert_eq!(bench.asked(), Some((1, Reason::Interval)));
    bench.commit(1, 1);
    let (ms, why) = bench.nodes[0].view().interval.unwrap();
    assert_eq!(ms, 24 * 60 * MINUTE);
    assert!(why.contains("mean time between failures is NaN"), "{why}");
}
