//! How long a decision takes, as a histogram: p50 and p99, warm and cold, with the allocations
//! counted; then a pass over 10,000 waiting jobs, and the cost against the size of the cluster.
//!
//! `cargo bench -p gpuos_placement --bench latency [-- FOLDER]` (relative to this crate); with `-- --learned` only what a learned
//! mix of jobs matters to, with `-- --passes` only the passes and many forms in turns. With a folder the series of sizes is
//! written there as `placement-speed.csv` and `placement-speed.svg`. Figures are of the machine
//! that it runs on; nothing is asserted about them but that no decision allocates. A decision
//! during which the kernel gave the processor to another program is asked again and not counted.

#[path = "../tests/counting/mod.rs"]
mod counting;
mod interruptions;
mod load;

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuos_model::cluster::NodeType;
use gpuos_placement::frag::{Expected, Share};
use gpuos_placement::plan::{GpuShape, Placement, Planner, Request};
use interruptions::interruptions;
use load::support::{irregular, nvswitch, pairs, request, wish};
use load::{Fill, Random};

/// Durations of one kind of decision, sorted.
struct Times(Vec<Duration>);

impl Times {
    fn us(&self, per_mille: usize) -> f64 {
        let at = (self.0.len() * per_mille / 1000).min(self.0.len() - 1);
        self.0[at].as_nanos() as f64 / 1000.0
    }
}

/// Asks `runs` times, each time after one event; with `cold`, after other memory was used.
fn measure(
    planner: &mut Planner,
    request: &Request,
    fill: Fill,
    runs: usize,
    cold: Option<&mut [u64]>,
) -> (Times, usize, usize) {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut cold = cold;
    let (mut placed, mut allocations) = (0, 0);
    // Once beforehand: lists grow to their size.
    black_box(planner.decide(request, None, 0)).ok();
    let mut times: Vec<Duration> = (0..runs)
        .map(|run| {
            load::event(planner, fill, &mut random);
            if let Some(other) = cold.as_deref_mut() {
                other
                    .iter_mut()
                    .step_by(8)
                    .for_each(|word| *word += run as u64);
                black_box(&other);
            }
            loop {
                let quiet = interruptions();
                let before = counting::allocations();
                let start = Instant::now();
                let placed_now = black_box(planner.decide(black_box(request), None, 0)).is_ok();
                let time = start.elapsed();
                let allocated = counting::allocations() - before;
                if interruptions() == quiet {
                    // A refusal may carry names.
                    placed += usize::from(placed_now);
                    allocations += if placed_now { allocated } else { 0 };
                    break time;
                }
            }
        })
        .collect();
    times.sort_unstable();
    (Times(times), placed, allocations)
}

fn table(nodes: u32, levels: usize, fill: Fill, runs: usize, learned: bool) {
    let by = match learned {
        true => ", a learned mix",
        false => "",
    };
    println!("\n{nodes} nodes of 8 GPUs, {levels} levels, {fill:?}{by}");
    println!(
        "  {:<32} {:>8} {:>8} {:>9} {:>8} {:>8}  placed allocations",
        "microseconds", "p50", "p99", "p99.9", "cold p50", "p99"
    );
    // Larger than the caches of most machines' cores.
    let mut other = vec![0u64; 4 << 20];
    let mut random = Random(7);
    let mut planner = load::planner(load::levels(pairs(), nodes, levels), fill, &mut random);
    if learned {
        load::learn(&mut planner);
    }
    // A mix matters to jobs on one node.
    let mut requests = load::requests();
    requests.retain(|(_, of)| !learned || (of.max_nodes == 1 && of.topology.is_none()));
    for (name, request) in requests {
        let (warm, placed, allocations) = measure(&mut planner, &request, fill, runs, None);
        let (cold, _, more) = measure(&mut planner, &request, fill, 200, Some(&mut other));
        println!(
            "  {name:<32} {:8.2} {:8.2} {:9.2} {:8.2} {:8.2}  {:3} %  {}",
            warm.us(500),
            warm.us(990),
            warm.us(999),
            cold.us(500),
            cold.us(990),
            placed * 100 / runs,
            allocations + more
        );
        assert_eq!(allocations + more, 0, "a decision allocated");
    }
}

/// A queue of many different requests, most of which do not fit.
fn waiting(jobs: usize) -> Vec<Request> {
    let mut random = Random(99);
    (0..jobs)
        .map(|_| {
            let mut job = match random.below(10) {
                0..4 => request(1, GpuShape::PerNode(1 + random.below(8) as u32)),
                4..8 => request(1 << random.below(8), GpuShape::PerNode(8)),
                _ => {
                    let mut total = request(1, GpuShape::Total(1 + random.below(1024) as u32));
                    total.max_nodes = 1024;
                    total
                }
            };
            job.cpus_per_gpu = [0, 4, 8][random.below(3) as usize];
            job.placement = match random.below(6) {
                0 => Placement::Pack,
                1 => Placement::Spread,
                _ => Placement::Default,
            };
            match random.below(8) {
                0 => wish(job, "leaf", true),
                1 => wish(job, "nvlink", false),
                _ => job,
            }
        })
        .collect()
}

fn pass(nodes: u32, learned: bool) {
    let fill = Fill::Percent(99);
    let cluster = load::levels(nvswitch(), nodes, 2);
    let mut planner = load::planner(cluster, fill, &mut Random(5));
    if learned {
        load::learn(&mut planner);
    }
    if std::env::args().any(|arg| arg == "--plain") {
        planner.keep_ranks(false);
    }
    let jobs = waiting(10_000);
    let mut runs: Vec<(Duration, usize)> = (0..9)
        .map(|_| {
            let start = Instant::now();
            let fit = |job: &&Request| planner.decide(job, None, 0).is_ok();
            let fitting = jobs.iter().filter(fit).count();
            (start.elapsed(), fitting)
        })
        .collect();
    runs.sort_unstable();
    let (time, fitting) = runs[runs.len() / 2];
    println!(
        "a pass over {} waiting jobs on {nodes} nodes, 99 % full{}: {:.1} ms ({fitting} fit now)",
        jobs.len(),
        if learned { ", a learned mix" } else { "" },
        time.as_secs_f64() * 1000.0
    );
}

/// How long a piece of the work takes that is done after calls of the scheduler: as many entries as
/// select_gpuos does at a time. Pieces during which the processor was taken away are not counted.
fn pieces(name: &str, of: NodeType, mix: Expected) {
    let cluster = load::levels(of, 1_250, 2);
    let mut planner = load::planner(cluster, Fill::Percent(90), &mut Random(3));
    let classes = mix.classes.len();
    let entries = 16_000 / (classes + 16);
    planner.learn(mix);
    let mut times = Vec::new();
    while planner.has_work() {
        let quiet = interruptions();
        let start = Instant::now();
        black_box(planner.work(entries));
        let time = start.elapsed();
        if interruptions() == quiet {
            times.push(time);
        }
    }
    times.sort_unstable();
    let pieces = times.len();
    let times = Times(times);
    println!(
        "a mix of {classes} classes on {name}: {pieces} pieces of {entries} entries, us: p50 {:.1}, p99 {:.1}, most {:.1}",
        times.us(500),
        times.us(990),
        times.us(1000),
    );
}

/// Jobs on one node in more forms than the planner keeps figures of, in turns.
fn forms(nodes: u32, fill: Fill) {
    let mut planner = load::planner(load::levels(pairs(), nodes, 3), fill, &mut Random(5));
    load::learn(&mut planner);
    let forms: Vec<Request> = (0..24u32)
        .map(|nth| Request {
            cpus_per_node: nth,
            ..request(1, GpuShape::PerNode(1 + nth % 4))
        })
        .collect();
    let mut random = Random(17);
    let mut times = Vec::new();
    // A form is kept when it comes for the second time.
    for request in forms.iter().chain(&forms) {
        black_box(planner.decide(request, None, 0)).ok();
    }
    while times.len() < 2_000 {
        load::event(&mut planner, fill, &mut random);
        let request = &forms[times.len() % forms.len()];
        let quiet = interruptions();
        let start = Instant::now();
        black_box(planner.decide(request, None, 0)).ok();
        let time = start.elapsed();
        if interruptions() == quiet {
            times.push(time);
        }
    }
    times.sort_unstable();
    let times = Times(times);
    println!(
        "24 forms of jobs in turns on {nodes} nodes, {fill:?}, a learned mix, us: p50 {:.1}, p99 {:.1}",
        times.us(500),
        times.us(990),
    );
}

/// One point of the series: size of the cluster in GPUs, name of the request, microseconds.
struct Row {
    gpus: u32,
    name: &'static str,
    p50: f64,
    p99: f64,
}

fn series(runs: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for gpus in [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000] {
        let fill = Fill::Percent(90);
        let cluster = load::levels(pairs(), gpus / 8, 3);
        let mut planner = load::planner(cluster, fill, &mut Random(11));
        for (name, request) in load::requests() {
            if matches!(
                name,
                "1 GPU" | "4 GPUs" | "8 GPUs, 2 x 4" | "64 GPUs, 8 x 8"
            ) {
                let (times, ..) = measure(&mut planner, &request, fill, runs, None);
                let (p50, p99) = (times.us(500), times.us(990));
                rows.push(Row {
                    gpus,
                    name,
                    p50,
                    p99,
                });
            }
        }
    }
    rows
}

fn csv(rows: &[Row]) -> String {
    let today = Command::new("date").args(["-u", "+%F"]).output();
    let today = today.expect("date runs").stdout;
    let today = String::from_utf8_lossy(&today);
    let mut text = String::from("date,gpus,request,p50_us,p99_us\n");
    for Row {
        gpus,
        name,
        p50,
        p99,
    } in rows
    {
        let _ = writeln!(text, "{},{gpus},\"{name}\",{p50:.2},{p99:.2}", today.trim());
    }
    text
}

/// Both axes logarithmic: a line that does not rise costs the same at every size.
fn svg(rows: &[Row]) -> String {
    let x = |gpus: f64| 70.0 + (gpus.log10() - 3.0) / 2.0 * 500.0;
    let y = |us: f64| 340.0 - (us.max(0.1).log10() + 1.0) / 4.0 * 300.0;
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 400\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"780\" height=\"400\" fill=\"white\"/>\n\
         <text x=\"70\" y=\"24\" font-size=\"14\">Time of one decision against the size of the \
         cluster, 90 % full (p50 solid, p99 dashed)</text>\n",
    );
    for (us, label) in [
        (0.1, "0.1"),
        (1.0, "1"),
        (10.0, "10"),
        (100.0, "100"),
        (1e3, "1000"),
    ] {
        let at = y(us);
        let _ = writeln!(
            text,
            "<path d=\"M70 {at:.1}H570\" stroke=\"#ccc\"/><text x=\"62\" y=\"{:.1}\" \
             text-anchor=\"end\">{label} us</text>",
            at + 4.0
        );
    }
    for (gpus, label) in [(1e3, "1,000"), (1e4, "10,000"), (1e5, "100,000 GPUs")] {
        let at = x(gpus);
        let _ = writeln!(
            text,
            "<path d=\"M{at:.1} 40V340\" stroke=\"#ccc\"/><text x=\"{at:.1}\" y=\"360\" \
             text-anchor=\"middle\">{label}</text>"
        );
    }
    let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    let colours = ["#1b6ca8", "#c8553d", "#588157", "#8e5ea2"];
    for (index, (name, colour)) in names.iter().zip(colours).enumerate() {
        let mine = || rows.iter().filter(|row| row.name == *name);
        let line = |of: fn(&Row) -> f64| {
            let points =
                mine().map(|row| format!("{:.1},{:.1}", x(f64::from(row.gpus)), y(of(row))));
            points.collect::<Vec<_>>().join(" ")
        };
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-dasharray=\"5 4\"/>\n\
             <text x=\"585\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            line(|row| row.p50),
            line(|row| row.p99),
            60 + index * 20
        );
    }
    text.push_str("</svg>\n");
    text
}

fn main() {
    // Cargo adds flags of its own.
    let only_learned = std::env::args().any(|arg| arg == "--learned");
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if std::env::args().any(|arg| arg == "--passes") {
        for nodes in [1_250, 12_500] {
            pass(nodes, false);
            pass(nodes, true);
        }
        for nodes in [1_250, 12_500] {
            forms(nodes, Fill::Percent(50));
            forms(nodes, Fill::Fragmented);
        }
        return;
    }
    for (nodes, levels) in [(1_250, 2), (12_500, 3)] {
        for fill in [
            Fill::Percent(0),
            Fill::Percent(50),
            Fill::Percent(90),
            Fill::Percent(99),
            Fill::Fragmented,
        ] {
            if !only_learned {
                table(nodes, levels, fill, 5_000, false);
            }
            table(nodes, levels, fill, 5_000, true);
        }
    }
    for levels in [1, 4].into_iter().filter(|_| !only_learned) {
        table(1_250, levels, Fill::Percent(90), 5_000, false);
    }
    println!();
    for nodes in [1_250, 12_500] {
        pass(nodes, false);
        pass(nodes, true);
    }
    for nodes in [1_250, 12_500] {
        forms(nodes, Fill::Percent(50));
        forms(nodes, Fill::Fragmented);
    }
    pieces("pairs", pairs(), load::mix());
    let many = || {
        let mut mix = load::mix();
        let more = mix.classes.clone().into_iter().cycle().zip(0..60);
        let more = more.map(|((share, weight), nth)| {
            let memory_gib = 100 + nth;
            (
                Share {
                    memory_gib,
                    ..share
                },
                weight,
            )
        });
        mix.classes.extend(more.collect::<Vec<_>>());
        mix
    };
    pieces("pairs", pairs(), many());
    pieces("an irregular type", irregular(), many());
    if only_learned {
        return;
    }
    let rows = series(5_000);
    print!("\n{}", csv(&rows));
    if let Some(folder) = folder {
        for (name, text) in [("csv", csv(&rows)), ("svg", svg(&rows))] {
            let path = format!("{folder}/placement-speed.{name}");
            match std::fs::write(&path, text) {
                Ok(()) => println!("written: {path}"),
                Err(why) => eprintln!("{path} could not be written: {why}"),
            }
        }
    }
}
