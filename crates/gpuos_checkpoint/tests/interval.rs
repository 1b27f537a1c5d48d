//! The interval between checkpoints: against the minimum found by search, with hostile figures, and what the estimators make of samples.

use gpuos_checkpoint::interval::choice::{Bound, Costs, Limits, choose};
use gpuos_checkpoint::interval::estimate::{Cost, Failures};
use gpuos_checkpoint::interval::optimum::{daly, lost_share, young};
use proptest::prelude::*;

const YEAR: f64 = 365.0 * 86_400.0;

/// The interval that loses least, by golden-section search on the logarithm of the interval.
fn best(cost: f64, mtbf: f64) -> f64 {
    let lost = |log: f64| lost_share(log.exp(), cost, 0.0, mtbf).unwrap();
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = ((cost / 1000.0).ln(), (mtbf * 10.0).ln());
    for _ in 0..200 {
        let (a, b) = (high - golden * (high - low), low + golden * (high - low));
        if lost(a) < lost(b) { high = b } else { low = a }
    }
    low.exp()
}

#[test]
fn daly_is_near_the_best() {
    let mut worst = [0.0_f64; 2];
    for ratio in [0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 0.5] {
        let (mtbf, cost) = (36_000.0, 36_000.0 * ratio);
        let best = best(cost, mtbf);
        let more = |interval: f64| {
            lost_share(interval, cost, 0.0, mtbf).unwrap()
                - lost_share(best, cost, 0.0, mtbf).unwrap()
        };
        let (by_young, by_daly) = (young(cost, mtbf).unwrap(), daly(cost, mtbf).unwrap());
        assert!(
            (by_daly / best - 1.0).abs() < 0.03,
            "{ratio}: {by_daly} for {best}"
        );
        assert!((by_daly - best).abs() <= (by_young - best).abs());
        worst = [worst[0].max(more(by_young)), worst[1].max(more(by_daly))];
    }
    // Young's loses up to 4 % of the time more than the best where checkpoints are dear, Daly's nothing to speak of.
    assert!(worst[0] > 0.005 && worst[0] < 0.04, "{worst:?}");
    assert!(worst[1] < 0.0005, "{worst:?}");
}

#[test]
fn known_figures() {
    // By hand: sqrt(2 * 100 * 10000) = 1414.2; times 1 + 0.0707 / 3 + 0.005 / 9, less 100.
    assert!((young(100.0, 10_000.0).unwrap() - 1414.2136).abs() < 1e-3);
    assert!((daly(100.0, 10_000.0).unwrap() - 1348.3325).abs() < 1e-3);
    assert_eq!(daly(100.0, 50.0), Ok(50.0));
    assert_eq!(daly(100.0, 20.0), Ok(20.0));
}

fn costs(pause_s: f64) -> Costs {
    Costs {
        pause_s,
        background_s: 0.0,
        slowdown: 0.0,
        restart_s: 300.0,
    }
}

#[test]
fn what_bounds_the_interval() {
    let limits = Limits::default();
    let by = |costs, mtbf, limits| choose(costs, mtbf, 1250, limits).unwrap();
    // 1,250 nodes with 5 years each: the job fails every 35 h.
    let free = by(costs(10.0), 5.0 * YEAR / 1250.0, limits);
    assert_eq!(free.bound, Bound::Optimum);
    assert_eq!(free.interval_s, free.daly_s);
    assert_eq!(
        free.to_string(),
        "every 26 min, which is Daly's optimum: a checkpoint costs 10.0 s, a job of 1250 nodes fails every 1 d 11 h; \
         checkpoints take 0.6 % of the time, and 1.5 % is lost in all"
    );
    let dear = by(costs(200.0), 14_400.0, limits);
    assert_eq!(
        (dear.bound, dear.interval_s.round()),
        (Bound::Budget, 6667.0)
    );
    assert!(dear.to_string().starts_with(
        "every 1 h 51 min, because checkpoints may cost 3.0 % of the time (Daly's optimum would be 38 min): "
    ));
    let quick = by(costs(0.001), 14_400.0, limits);
    assert_eq!((quick.bound, quick.interval_s), (Bound::Least, 60.0));
    let most = Limits {
        most_s: 1800.0,
        ..limits
    };
    let often = by(costs(200.0), 14_400.0, most);
    assert_eq!((often.bound, often.interval_s), (Bound::Most, 1800.0));
    assert!(
        often
            .to_string()
            .contains("the budget of 3.0 % asks for 1 h 51 min")
    );
    // 20 % of ten minutes in the background cost two minutes.
    let background = Costs {
        background_s: 600.0,
        slowdown: 0.2,
        ..costs(1.0)
    };
    assert_eq!(by(background, 1e6, limits).cost_s, 121.0);
    let slow = Costs {
        slowdown: 0.0,
        ..background
    };
    assert_eq!(by(slow, 3600.0, limits).bound, Bound::Storing);
}

#[test]
fn figures_that_are_none_are_refused_by_name() {
    let of = |costs, mtbf, limits| choose(costs, mtbf, 8, limits).unwrap_err();
    let (good, limits) = (costs(10.0), Limits::default());
    for (sentence, name) in [
        (of(costs(f64::NAN), 1e6, limits), "the pause"),
        (of(costs(0.0), 1e6, limits), "the cost of a checkpoint"),
        (of(good, 0.0, limits), "the mean time between failures"),
        (
            of(good, f64::INFINITY, limits),
            "the mean time between failures",
        ),
        (
            of(
                Costs {
                    slowdown: 1.5,
                    ..good
                },
                1e6,
                limits,
            ),
            "the slowdown",
        ),
        (
            of(
                Costs {
                    restart_s: -1.0,
                    ..good
                },
                1e6,
                limits,
            ),
            "a restart",
        ),
        (
            of(
                good,
                1e6,
                Limits {
                    budget: 0.0,
                    ..limits
                },
            ),
            "the budget",
        ),
        (
            of(
                good,
                1e6,
                Limits {
                    least_s: 9e9,
                    ..limits
                },
            ),
            "the shortest interval",
        ),
    ] {
        assert!(sentence.starts_with(name), "{sentence}");
    }
}

#[test]
fn one_outlier_moves_no_estimate() {
    for at in 0..8 {
        let mut cost = Cost::default();
        assert_eq!(cost.seconds(), None);
        for sample in 0..8 {
            cost.add(if sample == at { 1e6 } else { 10.0 }).unwrap();
        }
        // A first sample that is one is forgotten with the second.
        assert_eq!(cost.seconds(), Some(10.0), "{at}");
    }
    let mut cost = Cost::default();
    (0..5).for_each(|_| cost.add(10.0).unwrap());
    (0..20).for_each(|_| cost.add(30.0).unwrap());
    assert!(cost.seconds().unwrap() > 29.5, "{cost:?}");
    assert!(cost.add(f64::NAN).is_err() && cost.add(-1.0).is_err());
    assert!(cost.seconds().unwrap() > 29.5);
}

#[test]
fn failures_outweigh_the_prior() {
    let mut failures = Failures::new(5.0 * YEAR, 2.0).unwrap();
    assert_eq!(failures.node_mtbf_s(), 5.0 * YEAR);
    assert_eq!(failures.job_mtbf_s(0), failures.job_mtbf_s(1));
    // A year of 100 nodes of which 50 failed: 2 years each. (2 + 50) / (10 + 100) a year.
    failures.observe(100, YEAR, 50).unwrap();
    assert!((failures.node_mtbf_s() / YEAR - 110.0 / 52.0).abs() < 1e-9);
    assert_eq!(failures.seen(), 50);
    for (mtbf, weight) in [
        (0.0, 2.0),
        (f64::NAN, 2.0),
        (1.0, 0.0),
        (1.0, f64::NAN),
        (f64::MAX, 2.0),
    ] {
        assert!(Failures::new(mtbf, weight).is_err());
    }
    let before = failures.node_mtbf_s();
    for seconds in [f64::NAN, -1.0, f64::INFINITY, f64::MAX] {
        assert!(failures.observe(2, seconds, 1).is_err());
    }
    assert_eq!(failures.node_mtbf_s(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_figures_give_an_interval_or_a_sentence(
        pause: f64, background: f64, slowdown in -0.5..1.5, restart: f64, mtbf: f64, budget: f64, least: f64, most: f64,
    ) {
        let of = |f: fn(f64) -> f64| {
            let costs = Costs {
                pause_s: f(pause), background_s: f(background), slowdown, restart_s: f(restart),
            };
            choose(costs, f(mtbf), 8, Limits { budget: f(budget).min(1.0), least_s: f(least), most_s: f(most) })
        };
        for choice in [of(|x| x), of(f64::abs)].into_iter().flatten() {
            prop_assert!(choice.interval_s > 0.0 && choice.interval_s <= most.abs());
            prop_assert!(choice.interval_s >= least.abs());
            prop_assert!((0.0..=1.0).contains(&choice.lost) && (0.0..=1.0).contains(&choice.overhead), "{choice:?}");
            prop_assert!(!choice.to_string().contains("NaN"));
        }
    }

    #[test]
    fn the_budget_holds(pause in 0.1..1000.0_f64, mtbf in 1000.0..1e7_f64) {
        let limits = Limits { least_s: 1.0, most_s: 1e9, ..Limits::default() };
        let choice = choose(costs(pause), mtbf, 8, limits).unwrap();
        prop_assert!(choice.overhead <= 0.03);
        prop_assert!(choice.interval_s >= choice.daly_s);
    }
}
