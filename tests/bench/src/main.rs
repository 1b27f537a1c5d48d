//! Times `job_test` inside slurmctld for stock Slurm and for gpuos, in turns, in the same run.

mod cells;
mod older;
mod peer;
mod replay;
mod report;
mod samples;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use gpuos_lab::{LabError, Suite};

use cells::{Call, Cell, Cluster, Load};
use peer::{Files, Peer, Who};
use report::{Figures, Line, Report, Run};
use samples::{Ask, Kind, Sample};

/// Job-test time inside slurmctld: stock select/cons_tres and select/gpuos in the same run.
#[derive(Parser)]
#[command(
    name = "gpuos-bench",
    after_help = "gpuos-bench replay --help: a replay of trace jobs instead"
)]
struct Options {
    /// Which Slurm: native, or a Debian suite. May be given more than once; native, trixie and sid
    /// when it is not.
    #[arg(long = "slurm", default_values = ["native", "trixie", "sid"], hide_default_value = true)]
    slurm: Vec<String>,
    /// Eight samples in each cell instead of 30 and more.
    #[arg(long)]
    quick: bool,
    /// Samples in each cell, where the default will not do.
    #[arg(long, value_name = "N", conflicts_with = "quick", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// The cluster of four nodes only: where the work of gpuos itself shows most.
    #[arg(long)]
    small: bool,
    /// The cluster of 12,500 nodes and 100,000 GPUs only, and the first job after a start of slurmctld.
    #[arg(long, conflicts_with = "small")]
    huge: bool,
    /// Without a topology.conf: all nodes alike.
    #[arg(long)]
    flat: bool,
    /// Exit with 1 when gpuos is slower than stock in some cell, or less than 4 times faster for
    /// 64-node gangs; with --older, when it takes more than 1.05 times as long as that (by the whole interval, see older.csv).
    #[arg(long)]
    check: bool,
    /// Folder for bench.json, bench.csv and bench.svg.
    #[arg(long, env = "GPUOS_BENCH_OUT", default_value = "target/bench")]
    out: PathBuf,
    /// An older build of the select plugin, in the place of stock Slurm: tells what a change costs. Writes older.csv alone.
    #[arg(long, value_name = "FILE", conflicts_with = "flat")]
    older: Option<PathBuf>,
    /// With --older: so many clusters of both, one after the other, with so many turns each. One start differs from the next by more than most builds do.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "older", conflicts_with = "huge", value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    #[command(flatten)]
    files: Files,
}

impl Options {
    /// What gpuos is compared with.
    fn other(&self) -> Who {
        match self.files.older {
            Some(_) => Who::Older,
            None => Who::Stock,
        }
    }
}

fn main() -> ExitCode {
    // Its options are others: a first word tells the two apart.
    let replay = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "replay");
    let done = match replay {
        true => replay::run(&replay::Options::parse_from(std::env::args_os().skip(1))),
        false => {
            let mut options = Options::parse();
            options.files.older = options.older.take();
            run(&options)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("gpuos-bench: {why:#}");
            ExitCode::from(1)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    let mut report = Report::new(options.flat, report::today()?);
    for name in &options.slurm {
        let suite: Suite = name.parse()?;
        let clusters = match (options.small, options.huge) {
            (true, _) => vec![Cluster::small()],
            (_, true) => vec![Cluster::huge()],
            _ => vec![Cluster::small(), Cluster::large()],
        };
        for cluster in clusters {
            match measure(options, &suite, &cluster) {
                Ok(run) => report.runs.push(run),
                Err(why) if skipped(&why) => {
                    eprintln!("{name}: skipped: {why:#}");
                    break;
                }
                Err(why) => return Err(why.context(format!("{name}, {} nodes", cluster.nodes))),
            }
        }
    }
    if report.runs.is_empty() {
        bail!("nothing could be measured");
    }
    if options.files.older.is_some() {
        return against_older(options, &report);
    }
    print!("{}", report.table());
    report.write(&options.out)?;
    println!(
        "written: {0}/bench.json, {0}/bench.csv, {0}/bench.svg",
        options.out.display()
    );
    let missed = report.missed();
    for line in &missed {
        println!("goal missed: {line}");
    }
    Ok(!options.check || missed.is_empty())
}

fn against_older(options: &Options, report: &Report) -> Result<bool> {
    let path = options.out.join("older.csv");
    fs::create_dir_all(&options.out)?;
    fs::write(&path, older::csv(report))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("written: {}", path.display());
    let slower = older::slower(report);
    for line in &slower {
        println!("slower: {line}");
    }
    for line in older::undecided(report) {
        println!("undecided: {line}");
    }
    Ok(!options.check || slower.is_empty())
}

fn skipped(why: &anyhow::Error) -> bool {
    let lab = why.downcast_ref::<LabError>();
    why.is::<Skip>() || lab.is_some_and(LabError::is_environment)
}

fn measure(options: &Options, suite: &Suite, cluster: &Cluster) -> Result<Run> {
    let begin = Instant::now();
    let mut run = Run {
        slurm: String::new(),
        nodes: cluster.nodes,
        gpus: cluster.nodes * cells::GPUS,
        lines: Vec::new(),
    };
    let mut measured: Vec<(Cell, Measured)> = [Load::Idle, Load::Full]
        .into_iter()
        .flat_map(|load| cluster.cells(load))
        .map(|cell| (cell, Measured::default()))
        .collect();
    for start in 1..=options.starts {
        let up = Instant::now();
        let peers = [options.other(), Who::Gpuos]
            .map(|who| Peer::up(who, suite, cluster, options.flat, &options.files));
        let [other, gpuos] = peers;
        let mut peers = [other?, gpuos?];
        run.slurm = peers[0].version().to_string();
        steers(&peers[1])?;
        eprintln!(
            "Slurm {}, {} nodes, start {start} of {}: up in {:.1} s",
            run.slurm,
            cluster.nodes,
            options.starts,
            up.elapsed().as_secs_f64()
        );
        measure_start(options, &mut peers, cluster, &mut measured, &mut run.lines)?;
        steers(&peers[1])?;
    }
    let other = options.other().name();
    for (cell, measured) in &measured {
        run.lines.push(measured.line(cell, other)?);
    }
    eprintln!(
        "Slurm {}, {} nodes: done in {:.1} s",
        run.slurm,
        cluster.nodes,
        begin.elapsed().as_secs_f64()
    );
    Ok(run)
}

/// Adds what one start of both peers gives.
fn measure_start(
    options: &Options,
    peers: &mut [Peer; 2],
    cluster: &Cluster,
    measured: &mut [(Cell, Measured)],
    lines: &mut Vec<Line>,
) -> Result<()> {
    for load in [Load::Idle, Load::Full] {
        if load == Load::Full {
            for peer in peers.iter() {
                fill(peer, cluster)?;
            }
        }
        if cluster.is_huge() {
            lines.push(first_line(options, peers, load)?);
        }
        for (cell, measured) in measured.iter_mut().filter(|(cell, _)| cell.load == load) {
            measure_cell(options, peers, cell, measured)?;
        }
    }
    Ok(())
}

/// Nothing is to be compared where gpuos passes everything through, as with a release that it does
/// not know.
fn steers(gpuos: &Peer) -> Result<()> {
    match gpuos.pass_through() {
        Some(line) => Err(Skip(line).into()),
        None => Ok(()),
    }
}

/// Why a release is not measured.
#[derive(Debug)]
struct Skip(String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gpuos does not steer: {}", self.0)
    }
}

impl std::error::Error for Skip {}

fn fill(peer: &Peer, cluster: &Cluster) -> Result<()> {
    for (i, fill) in cluster.fill.iter().enumerate() {
        peer.submit(&[
            "--job-name=fill",
            &format!("--partition=fill{i}"),
            &format!("--array=1-{}", fill.jobs),
            &format!("-N{}", fill.job_nodes),
            &format!("-n{}", fill.job_nodes),
            &format!("--gres=gpu:{}", fill.job_gpus),
        ])?;
    }
    peer.wait_started(Duration::from_secs(120))
        .context("filling the cluster")?;
    // slurmctld renews these counts once a second.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let used = peer.gpus_in_use()?;
        if used == cluster.full() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "{used} GPUs are in use, {} were meant to be",
                cluster.full()
            );
        }
        sleep(Duration::from_millis(300));
    }
}

/// Measures what the first job after a start of slurmctld asks until it has its nodes: one sum for each start.
fn first_line(options: &Options, peers: &mut [Peer; 2], load: Load) -> Result<Line> {
    let starts = if options.quick { 3 } else { 5 };
    let mut own: [Vec<Sample>; 2] = [Vec::new(), Vec::new()];
    let mut candidates = 0;
    for _ in 0..starts {
        for (i, peer) in peers.iter_mut().enumerate() {
            peer.restart()?;
            let samples = peer.allocate(&["-N1", "-n1", "--gres=gpu:1"], |sample| {
                sample.kind == Kind::JobTest && sample.ask == Ask::RunNow && sample.code == 0
            })?;
            let last = samples
                .iter()
                .position(|s| s.ask == Ask::RunNow && s.kind == Kind::JobTest && s.code == 0);
            let Some(last) = last else {
                bail!("the first job after a start of slurmctld did not start");
            };
            let asked = samples[..=last].iter().filter(|s| s.kind == Kind::JobTest);
            let mut sum = samples[last];
            (sum.wall_ns, sum.cpu_ns, sum.inner_ns, sum.inner_calls) = (0, 0, 0, 0);
            for sample in asked {
                sum.wall_ns += sample.wall_ns;
                sum.cpu_ns += sample.cpu_ns;
                sum.inner_ns += sample.inner_ns;
                sum.inner_calls += sample.inner_calls;
            }
            candidates = sum.candidates;
            own[i].push(sum);
        }
    }
    let line = Line {
        job: "first job, 1 GPU".into(),
        job_nodes: 1,
        load,
        call: Call::First,
        candidates,
        stock: Figures::of(&own[0]),
        gpuos: Figures::of(&own[1]),
        ..Line::default()
    };
    eprintln!("  {}", line.text(options.other().name()));
    Ok(line)
}

/// Samples of one cell: of the other peer and of gpuos.
#[derive(Default)]
struct Measured {
    own: [Vec<Sample>; 2],
    /// Of the calls that come with it.
    around: [Vec<Sample>; 2],
    /// See [`Line::times`].
    times: Vec<f64>,
}

/// Adds one start of a cell: the peers take turns, and who begins alternates.
fn measure_cell(
    options: &Options,
    peers: &mut [Peer; 2],
    cell: &Cell,
    all: &mut Measured,
) -> Result<()> {
    let usual = if options.quick { 8 } else { 30 };
    let turns = options.turns.unwrap_or(usual);
    let before = [0, 1].map(|i| all.own[i].len());
    for turn in 0..=turns {
        for i in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let samples = turn_of(&mut peers[i], cell)?;
            // The first turn warms both up.
            if turn > 0 {
                all.own[i].extend(samples.iter().filter(|s| cell.takes(s)));
                all.around[i].extend(samples.iter().filter(|s| !cell.takes(s)));
            }
        }
    }
    let [other, gpuos] = [0, 1].map(|i| Figures::of(&all.own[i][before[i]..]));
    all.times.push(older::times(&other, &gpuos));
    Ok(())
}

impl Measured {
    fn line(&self, cell: &Cell, other: &str) -> Result<Line> {
        let of = |i: usize, wanted: &dyn Fn(&Sample) -> bool| {
            let some = self.around[i].iter().filter(|s| wanted(s));
            Figures::of(&some.copied().collect::<Vec<_>>())
        };
        let both = |wanted: &dyn Fn(&Sample) -> bool| [of(0, wanted), of(1, wanted)];
        let line = Line {
            job: cell.job.name.to_string(),
            job_nodes: cell.job.nodes,
            load: cell.load,
            call: cell.call,
            candidates: self.own[0].first().map_or(0, |s| s.candidates),
            stock: Figures::of(&self.own[0]),
            gpuos: Figures::of(&self.own[1]),
            times: self.times.clone(),
            test_only: both(&|s| s.kind == Kind::JobTest && s.ask == Ask::TestOnly),
            start: both(&|s| s.kind == Kind::NodeinfoSet),
            end: both(&|s| s.kind == Kind::JobFini),
        };
        eprintln!("  {}", line.text(other));
        if line.stock.samples == 0 || line.gpuos.samples == 0 {
            bail!(
                "no samples for {} ({:?}, {:?}): {other} {}, gpuos {}",
                cell.job.name,
                cell.load,
                cell.call,
                line.stock.samples,
                line.gpuos.samples
            );
        }
        Ok(line)
    }
}

/// One turn of one peer.
fn turn_of(peer: &mut Peer, cell: &Cell) -> Result<Vec<Sample>> {
    peer.take()?;
    let nodes = format!("-N{}", cell.job.nodes);
    let tasks = format!("-n{}", cell.job.nodes);
    let gpus = format!("--gres=gpu:{}", cell.job.gpus);
    let job = [nodes.as_str(), &tasks, &gpus];
    match cell.call {
        Call::When => {
            peer.ask(&job)?;
            peer.take()
        }
        Call::Start | Call::Refused | Call::First => {
            peer.allocate(&job, |sample| cell.takes(sample))
        }
    }
}
