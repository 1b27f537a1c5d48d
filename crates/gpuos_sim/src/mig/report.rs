//! The figures of all runs, and by how much one policy is ahead of another on the same jobs.

use serde_json::{Value, json};

use super::run::Figures;
use super::{Case, Options};
use crate::plot::{Line, Titles, svg};
use crate::replay::report::{Estimate, estimate};

/// A figure in percent: its heading, its name in CSV and JSON, how to read it.
pub type Figure = (&'static str, &'static str, fn(&Figures) -> u64);

/// All figures of a policy, in the order of the table.
pub const FIGURES: [Figure; 6] = [
    ("accepted %", "accepted_percent", |f| f.accepted_ppm),
    ("rejected work %", "rejected_work_percent", |f| {
        f.rejected_ppm
    }),
    ("rejected jobs %", "rejected_jobs_percent", |f| {
        f.rejected_jobs_ppm
    }),
    ("whole GPUs free %", "whole_free_percent", |f| f.whole_ppm),
    ("fragmented %", "fragmented_percent", |f| f.fragmented_ppm),
    ("filled until a reject %", "filled_percent", |f| {
        f.filled_ppm
    }),
];

/// What no policy has a say in.
pub const BOUNDS: [Figure; 2] = [
    ("pooled", "pooled_percent", |f| f.pooled_ppm),
    ("most", "most_percent", |f| f.most_ppm),
];

const PPM: f64 = 1e4;

/// Mean over the seeds and its standard error, in percent.
pub fn mean(runs: &[Figures], figure: &Figure) -> Estimate {
    estimate(runs.iter().map(|run| figure.2(run) as f64 / PPM))
}

/// By how many percent one figure of runs is above another of the same seeds, with the standard
/// error of the mean difference.
pub fn gain(of: (&[Figures], &Figure), base: (&[Figures], &Figure)) -> Estimate {
    let whole = mean(base.0, base.1).mean;
    let pairs = of.0.iter().zip(base.0);
    let differences = pairs.map(|(a, b)| (of.1.2)(a) as f64 - (base.1.2)(b) as f64);
    let found = estimate(differences);
    let percent = 100.0 / PPM / if whole == 0.0 { 1.0 } else { whole };
    Estimate {
        mean: found.mean * percent,
        error: found.error * percent,
    }
}

/// All figures of all runs in percent, a line for each run.
pub fn csv(options: &Options, cases: &[Case]) -> String {
    let figures = || FIGURES.iter().chain(&BOUNDS);
    let names: Vec<&str> = figures().map(|figure| figure.1).collect();
    let mut text = format!("stream,load,policy,seed,{}\n", names.join(","));
    for case in cases {
        for (packing, runs) in options.policies.iter().zip(&case.figures) {
            for (seed, run) in options.seeds.iter().zip(runs) {
                let values = figures().map(|f| format!("{:.4}", (f.2)(run) as f64 / PPM));
                text += &format!(
                    "{},{},{},{seed},{}\n",
                    case.stream.name(),
                    case.load,
                    packing.name(),
                    values.collect::<Vec<_>>().join(",")
                );
            }
        }
    }
    text
}

/// The whole outcome as JSON.
pub fn json(options: &Options, cases: &[Case]) -> Value {
    let value =
        |estimate: Estimate| json!({ "mean": estimate.mean, "standard_error": estimate.error });
    let cases = cases.iter().map(|case| {
        let policies = options
            .policies
            .iter()
            .zip(&case.figures)
            .map(|(packing, runs)| {
                let mut row = serde_json::Map::new();
                row.insert("policy".into(), packing.name().into());
                for figure in &FIGURES {
                    row.insert(figure.1.into(), value(mean(runs, figure)));
                }
                let gain = gain((runs, &FIGURES[0]), (&case.figures[0], &FIGURES[0]));
                row.insert("accepted_against_first_percent".into(), value(gain));
                Value::Object(row)
            });
        let mut all = json!({
            "stream": case.stream.name(),
            "load_percent": case.load,
            "policies": policies.collect::<Vec<_>>(),
        });
        for bound in &BOUNDS {
            all[bound.1] = value(mean(&case.figures[0], bound));
        }
        all
    });
    json!({
        "board": options.board.name,
        "gpus": options.gpus,
        "seeds": options.seeds,
        "cases": cases.collect::<Vec<_>>(),
    })
}

/// A plot: accepted work of each policy against the first, by load, a line for each policy and stream.
pub fn plot(options: &Options, cases: &[Case]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for &stream in &options.streams {
        for (at, packing) in options.policies.iter().enumerate().skip(1) {
            let mine = cases.iter().filter(|case| case.stream == stream);
            let points = mine.map(|case| {
                let gain = gain(
                    (&case.figures[at], &FIGURES[0]),
                    (&case.figures[0], &FIGURES[0]),
                );
                (case.load as f64, gain.mean)
            });
            lines.push(Line {
                name: format!("{}, {}", packing.name(), stream.name()),
                points: points.collect(),
            });
        }
    }
    let base = options
        .policies
        .first()
        .map_or("", |packing| packing.name());
    let title = format!(
        "Accepted work against {base}, {} x {}",
        options.gpus, options.board.name
    );
    let titles = Titles {
        title: &title,
        x: "load, %",
        y: "more accepted work, %",
    };
    svg(titles, &lines)
}
