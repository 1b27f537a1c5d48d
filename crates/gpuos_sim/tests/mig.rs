//! Slices of GPUs through the public face: the same figures every time, streams that are what they
//! say, and gpuos no worse than its baseline.

use gpuos_sim::mig::board::{board, names};
use gpuos_sim::mig::policy::Packing;
use gpuos_sim::mig::report::{self, FIGURES};
use gpuos_sim::mig::stream::{LENGTH, MEAN, Stream};
use gpuos_sim::mig::{Case, Options, run};

use crate::baseline;

const BASELINE: &str = include_str!("mig-baseline.csv");

fn options(name: &str, gpus: u32) -> Options {
    Options {
        board: board(name).expect("there is such a board"),
        gpus,
        streams: Stream::ALL.to_vec(),
        loads: vec![90, 120],
        policies: vec![
            Packing::FirstFit,
            Packing::NvidiaOrder,
            Packing::BestFit,
            Packing::Gpuos,
        ],
        seeds: (1..=2).collect(),
    }
}

fn cases(options: &Options) -> Vec<Case> {
    run(options, |_| ()).expect("it runs")
}

/// gpuos may become better than its baseline, not worse; the others are the yardstick, and stay as
/// they are. When gpuos has become better, write its new lines into the file.
#[test]
fn small_pools_keep_their_figures() {
    let mut found = String::new();
    for name in ["h100-80gb", "a30", "rtx-pro-6000"] {
        let options = options(name, 32);
        found += &report::csv(&options, &cases(&options));
    }
    let accepted = |text: &str| -> f64 {
        text.split(',')
            .nth(4)
            .and_then(|cell| cell.parse().ok())
            .unwrap_or(0.0)
    };
    baseline::holds(BASELINE, &found, |known, now| {
        let bad = match known.contains(",gpuos,") {
            true => accepted(now) < accepted(known) - 0.05,
            false => known != now,
        };
        bad.then(|| format!("it was {known}")).into_iter().collect()
    });
}

#[test]
fn streams_bring_the_load_that_they_say() {
    for name in names() {
        let board = board(&name).expect("it is named");
        for stream in Stream::ALL {
            let jobs = stream.jobs(&board, 64, 100, 7);
            let size = |profile: usize| u64::from(board.geometry.profiles()[profile].size);
            let work: u64 = jobs.iter().map(|job| job.life * size(job.profile)).sum();
            let wanted = u64::from(board.geometry.slices()) * 64 * LENGTH * MEAN;
            assert!(
                work >= wanted && work - wanted < wanted / 20,
                "{name} {work} {wanted}"
            );
            assert!(jobs.is_sorted() && jobs.iter().all(|job| job.at < LENGTH * MEAN));
            let plain = |job: &gpuos_sim::mig::stream::Job| {
                board.geometry.profiles()[job.profile].suffix().is_empty()
            };
            assert!(jobs.iter().all(plain));
            let mean = jobs.iter().map(|job| job.life).sum::<u64>() / jobs.len() as u64;
            assert!(
                mean.abs_diff(MEAN) < MEAN / 5,
                "{name}: {mean} s in {} jobs",
                jobs.len()
            );
        }
    }
}

#[test]
fn nobody_accepts_more_than_there_is_and_the_same_seed_gives_the_same() {
    let mut options = options("h200", 16);
    options.loads = vec![110];
    let first = cases(&options);
    assert_eq!(first, cases(&options));
    for case in &first {
        for run in case.figures.iter().flatten() {
            assert!(run.accepted_ppm <= run.most_ppm && run.most_ppm <= 1_000_000);
            assert!(run.pooled_ppm <= run.most_ppm && run.filled_ppm <= 1_000_000);
            assert!(run.rejected_ppm < 1_000_000 && run.fragmented_ppm < 1_000_000);
        }
    }
    let json = report::json(&options, &first);
    assert_eq!(json["cases"].as_array().map(Vec::len), Some(3));
    assert!(report::plot(&options, &first).contains("</svg>"));
    assert_eq!(report::csv(&options, &first).lines().count(), 1 + 3 * 4 * 2);
}

/// The order in which the driver itself takes placements: seven of 1g.10gb print as instances 13, 11,
/// 12, 7, 8, 9, 10 on A100 and H100, which are 7 and the slice.
#[test]
fn the_driver_takes_placements_in_its_own_order() {
    let h100 = board("h100-80gb").expect("it is there");
    let starts = |name: &str| -> Vec<u8> {
        let profile = h100.geometry.by_name(name).expect("a profile");
        let spots = h100.default_order[profile].iter();
        spots.map(|&spot| h100.states.spots()[spot].start).collect()
    };
    assert_eq!(starts("1g.10gb"), [6, 4, 5, 0, 1, 2, 3]);
    assert_eq!(starts("2g.20gb"), [4, 0, 2]);
    assert_eq!(starts("3g.40gb"), [4, 0]);
    let error = board("h1000").expect_err("no such board");
    assert!(error.contains("a100-40gb"), "{error}");
}

/// Under heavy load gpuos accepts more than the others, in all streams.
#[test]
fn gpuos_accepts_the_most_under_heavy_load() {
    let mut options = options("h100-80gb", 128);
    options.loads = vec![100];
    for case in cases(&options) {
        let mean = |at: usize| report::mean(&case.figures[at], &FIGURES[0]).mean;
        let best = (0..3).map(mean).fold(0.0, f64::max);
        assert!(
            mean(3) > best,
            "{}: {} against {best}",
            case.stream.name(),
            mean(3)
        );
    }
}
