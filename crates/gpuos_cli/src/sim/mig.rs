//! Slices of GPUs, packed as jobs come and go.

use anyhow::{Result, anyhow};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_sim::mig::policy::Packing;
use gpuos_sim::mig::report::{self, BOUNDS, FIGURES};
use gpuos_sim::mig::stream::Stream;
use gpuos_sim::mig::{self, Case, Options, board};
use gpuos_sim::policy::Name;
use gpuos_sim::replay::report::Estimate;
use serde_json::json;

use crate::cli::{Cli, SimArgs};
use crate::reply::Reply;
use crate::table::{Table, count};

const BOARD: &str = "h100-80gb";
const GPUS: u32 = 128;
const LOADS: [u64; 6] = [70, 80, 90, 100, 110, 120];
/// The others are compared with the first.
const PACKINGS: [Packing; 4] = [
    Packing::FirstFit,
    Packing::NvidiaOrder,
    Packing::BestFit,
    Packing::Gpuos,
];

pub fn run(args: &SimArgs) -> Result<Reply> {
    let options = options(args)?;
    let cases = super::with_bar(options.runs(), |begin| mig::run(&options, begin));
    let cases = cases.map_err(|e| anyhow!(e))?;
    super::write(
        args,
        &report::csv(&options, &cases),
        Some(&report::plot(&options, &cases)),
    )?;
    let mut json = json!({ "protocol": "mig" });
    if let (Some(all), serde_json::Value::Object(more)) =
        (json.as_object_mut(), report::json(&options, &cases))
    {
        all.extend(more);
    }
    Ok(Reply {
        schema: "gpuos.sim/1",
        json,
        text: text(&options, &cases),
        yes: true,
    })
}

fn options(args: &SimArgs) -> Result<Options> {
    let usage = |problem: &str| Cli::command().error(ErrorKind::ArgumentConflict, problem);
    let foreign = [
        (
            args.trace.is_some(),
            "--protocol mig makes its jobs: leave out the trace",
        ),
        (
            args.nodes.is_some(),
            "--protocol mig has its own nodes: leave out --nodes",
        ),
        (
            args.whole_gpus,
            "--whole-gpus does not go with --protocol mig",
        ),
        (
            args.policy != [Name::Gpuos],
            "--policy is about whole GPUs: use --packing with --protocol mig",
        ),
    ];
    if let Some((_, problem)) = foreign.iter().find(|(given, _)| *given) {
        return Err(usage(problem).into());
    }
    if let Some(option) = args.gangs.first_given() {
        return Err(usage(&format!("{option} goes with --protocol gangs")).into());
    }
    let or = |given: &[u64], default: &[u64]| match given {
        [] => default.to_vec(),
        given => given.to_vec(),
    };
    let own = &args.mig;
    let board = own.board.as_deref().unwrap_or(BOARD);
    Ok(Options {
        board: board::board(board).map_err(|e| Cli::command().error(ErrorKind::InvalidValue, e))?,
        gpus: own.gpus.unwrap_or(GPUS),
        streams: match own.stream.is_empty() {
            true => Stream::ALL.to_vec(),
            false => own.stream.clone(),
        },
        loads: or(&own.loads, &LOADS),
        policies: match own.packing.is_empty() {
            true => PACKINGS.to_vec(),
            false => own.packing.clone(),
        },
        seeds: args.seeds.iter().collect(),
    })
}

fn text(options: &Options, cases: &[Case]) -> String {
    let base = options
        .policies
        .first()
        .map_or("", |packing| packing.name());
    let against = format!("against {base} %");
    let mut headings = vec!["stream", "load %", "policy"];
    headings.extend(FIGURES.iter().map(|figure| figure.0));
    headings.push(&against);
    let mut table = Table::new(&headings);
    let signed = |of: Estimate| format!("{:+.2} ± {:.2}", of.mean, of.error);
    for case in cases {
        let first = (&case.figures[0][..], &FIGURES[0]);
        for (packing, runs) in options.policies.iter().zip(&case.figures) {
            let mut row = vec![
                case.stream.name().to_string(),
                case.load.to_string(),
                packing.name().to_string(),
            ];
            row.extend(
                FIGURES
                    .iter()
                    .map(|f| format!("{:.2}", report::mean(runs, f).mean)),
            );
            row.push(signed(report::gain((runs, &FIGURES[0]), first)));
            table.row(row);
        }
        for bound in &BOUNDS {
            let mut row = vec![
                case.stream.name().to_string(),
                case.load.to_string(),
                format!("({})", bound.0),
                format!("{:.2}", report::mean(&case.figures[0], bound).mean),
            ];
            row.extend(std::iter::repeat_n(String::new(), FIGURES.len() - 1));
            row.push(signed(report::gain((first.0, bound), first)));
            table.row(row);
        }
    }
    format!(
        "{} of {}, {}: mean lifetime {} h, jobs that fit nowhere are rejected, nothing waits\n\n{}\n\
         accepted: slices that run, of all. pooled: a pool without placements that takes what fits; most: nobody can \
         accept more.\nAgainst {base}: on the same jobs, mean difference and its standard error.\n",
        options.gpus,
        options.board.name,
        count(options.seeds.len(), "seed"),
        mig::stream::MEAN / 3600,
        table.render()
    )
}
