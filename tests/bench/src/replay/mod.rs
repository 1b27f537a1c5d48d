//! Jobs of a trace through two real slurmctld, stock and gpuos side by side.
//!
//! The nodes are in `State=CLOUD` and no slurmd stands behind them: slurmctld gives a job its
//! nodes and GPUs and then waits for nodes that never come up, so the job holds them until it is
//! taken back. One driver submits every job to both at its time, and takes it back from each when
//! its run is over there, counted from the moment at which that slurmctld started it.

mod report;
mod tally;

use std::io::Read as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use gpuos_host::slurm::Job as SlurmJob;
use gpuos_lab::{LabSpec, Suite};
use gpuos_model::node_types::by_name;
use gpuos_sim::gangs::philly;
use gpuos_sim::replay::jobs::{self, Job, Scale};
use gpuos_sim::replay::judge::Judge;

use crate::peer::{Files, Peer, Who};
use crate::samples::{Kind, Sample};
use report::{Report, Run};
use tally::Tally;

/// The most nodes of one job.
const MOST_NODES: u32 = 32;

/// A replay of 2,000 jobs of Philly's trace in the real slurmctld, stock and gpuos side by side.
#[derive(Parser)]
#[command(name = "gpuos-bench replay")]
pub struct Options {
    /// Which Slurm: native, or a Debian suite. May be given more than once; native, trixie and sid
    /// when it is not.
    #[arg(long = "slurm", default_values = ["native", "trixie", "sid"], hide_default_value = true)]
    slurm: Vec<String>,
    /// How many jobs.
    #[arg(long, default_value_t = 2000)]
    jobs: usize,
    /// Seconds in which they are submitted.
    #[arg(long, default_value_t = 240.0)]
    seconds: f64,
    /// GPU time asked for over the GPU time that there is while jobs are submitted.
    #[arg(long, default_value_t = 0.95)]
    load: f64,
    /// Nodes.
    #[arg(long, default_value_t = 256)]
    nodes: usize,
    /// Nodes under one leaf switch.
    #[arg(long, default_value_t = 32)]
    leaf: usize,
    /// Type of the nodes.
    #[arg(long, default_value = "pairs-8")]
    node_type: String,
    /// The two that are compared. `stock,stock` shows by how much two equal ones differ: what is
    /// less than that between stock and gpuos is noise.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["stock", "gpuos"], value_name = "ONE,OTHER")]
    peers: Vec<Who>,
    /// 60 jobs in 10 seconds on 16 nodes in leaves of 4.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 when gpuos is behind stock in some figure.
    #[arg(long)]
    check: bool,
    /// Folder for replay.json and replay.csv.
    #[arg(long, env = "GPUOS_BENCH_OUT", default_value = "target/bench")]
    out: PathBuf,
    #[command(flatten)]
    files: Files,
}

/// Replays on every release that was asked for; false: a goal was missed and `--check` given.
pub fn run(options: &Options) -> Result<bool> {
    let node_type = by_name(&options.node_type)
        .with_context(|| format!("--node-type {}: no such node type", options.node_type))?;
    let mut scale = Scale {
        jobs: options.jobs,
        seconds: options.seconds,
        load: options.load,
        nodes: options.nodes,
        node_gpus: node_type.gpus as u32,
        gang_scale: 4,
        most_nodes: MOST_NODES.min(options.nodes as u32),
        seed: 0,
    };
    let mut leaf = options.leaf;
    if options.quick {
        (scale.jobs, scale.seconds, scale.nodes) = (60, 10.0, 16);
        (scale.most_nodes, leaf) = (4, 4);
    }
    ensure!(
        leaf > 0 && scale.nodes > 0,
        "give at least one node and one to a leaf"
    );
    let jobs = jobs::build(&trace()?, &scale).map_err(anyhow::Error::msg)?;
    eprint!(
        "{}",
        report::headline(&scale, leaf, &options.node_type, &jobs)
    );
    let mut judge = Judge::new(scale.nodes, leaf, &node_type);
    let [one, other] = options.peers[..] else {
        bail!("--peers takes two, each stock or gpuos");
    };
    let mut report = Report::new(
        crate::report::today()?,
        names(one, other),
        scale,
        leaf,
        &options.node_type,
        &jobs,
    );
    for name in &options.slurm {
        let suite: Suite = name.parse()?;
        match replay(options, &suite, &scale, leaf, &jobs, &mut judge) {
            Ok(run) => report.runs.push(run),
            Err(why) if crate::skipped(&why) => eprintln!("{name}: skipped: {why:#}"),
            Err(why) => return Err(why.context(name.clone())),
        }
        // What was measured stays, whatever happens to the next release.
        report.write(&options.out)?;
    }
    if report.runs.is_empty() {
        bail!("nothing could be measured");
    }
    print!("{}", report.table());
    println!(
        "written: {0}/replay.json, {0}/replay.csv",
        options.out.display()
    );
    let missed = report.missed();
    for line in &missed {
        println!("behind: {line}");
    }
    Ok(!options.check || missed.is_empty())
}

/// One peer and its jobs.
struct Side {
    peer: Peer,
    tally: Tally,
    samples: Vec<Sample>,
    /// Running jobs: end in seconds since 1970, index, Slurm's number.
    running: Vec<(f64, usize, u32)>,
    ended: usize,
}

fn replay(
    options: &Options,
    suite: &Suite,
    scale: &Scale,
    leaf: usize,
    jobs: &[Job],
    judge: &mut Judge,
) -> Result<Run> {
    let mut sides = Vec::new();
    for &who in &options.peers {
        sides.push(Side {
            peer: Peer::start(
                who,
                suite,
                spec(scale, leaf, &options.node_type),
                &options.files,
            )?,
            tally: Tally::new(jobs.len()),
            samples: Vec::new(),
            running: Vec::new(),
            ended: 0,
        });
    }
    let steered = || (0..2).filter(|&at| options.peers[at] == Who::Gpuos);
    for at in steered() {
        crate::steers(&sides[at].peer)?;
    }
    let version = sides[0].peer.version().to_string();
    eprintln!(
        "Slurm {version}: {} jobs on {} nodes",
        jobs.len(),
        scale.nodes
    );
    // Before the first job all nodes are in one state: on, as far as slurmctld knows.
    for side in &sides {
        let nodes = format!("NodeName=c[1-{}]", scale.nodes);
        side.peer
            .client("scontrol", &["update", &nodes, "State=POWER_UP"])?;
    }
    sleep(Duration::from_secs(2));
    let late = drive(&mut sides, jobs, scale)?;
    let mut peers = Vec::new();
    for side in &mut sides {
        side.samples.extend(side.peer.take()?);
        let figures = side.tally.figures(jobs, judge, scale.seconds)?;
        peers.push((figures, report::Work::of(&side.samples)));
    }
    for at in steered() {
        crate::steers(&sides[at].peer)?;
    }
    let peers = <[_; 2]>::try_from(peers).map_err(|_| anyhow::anyhow!("two peers"))?;
    let run = Run {
        slurm: version,
        names: names(options.peers[0], options.peers[1]),
        late,
        peers,
    };
    eprint!("{}", run.text());
    Ok(run)
}

/// The trace that comes with gpuos_sim.
fn trace() -> Result<Vec<philly::TraceJob>> {
    let packed = include_bytes!("../../../../crates/gpuos_sim/data/philly/philly.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .context("cannot unpack Philly's trace")?;
    Ok(philly::parse(&text)?)
}

/// What the two are called: two of a kind are told apart by a number.
fn names(one: Who, other: Who) -> [String; 2] {
    let mut names = [one, other].map(|who| who.name().to_string());
    if one == other {
        names[1] += "-2";
    }
    names
}

fn spec(scale: &Scale, leaf: usize, node_type: &str) -> LabSpec {
    let mut spec = LabSpec {
        cloud_nodes: Some(scale.nodes),
        node_type: node_type.to_string(),
        slurm_conf_extra: vec![
            // Slurm's own scheduling, at the pace of minutes that stand for days.
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,default_queue_depth=1000,\
             bf_interval=5"
                .to_string(),
            // Jobs that have ended need not be shown again and again.
            "MinJobAge=2".to_string(),
        ],
        ..LabSpec::default()
    };
    spec.topology_conf = Some(LabSpec::tree_topology(&spec.cloud_names(), leaf));
    spec
}

/// Submits, looks, ends, until every job has ended on both sides; returns by how many seconds the
/// latest submission was late.
fn drive(sides: &mut [Side], jobs: &[Job], scale: &Scale) -> Result<f64> {
    let begin = now();
    let limit = begin + scale.seconds * 4.0 + 300.0;
    let (mut next, mut late, mut looked, mut told) = (0, 0.0_f64, 0.0, begin);
    // Whoever comes second waits for the first one's client: that alternates.
    let mut order = [0, 1];
    while sides.iter().any(|side| side.ended < jobs.len()) {
        order.reverse();
        for i in order {
            end_due(&mut sides[i])?;
        }
        if now() - looked > 0.8 {
            looked = now();
            for i in order {
                look(&mut sides[i], jobs)?;
            }
        }
        match jobs.get(next) {
            Some(job) if begin + job.submit <= now() => {
                late = late.max(now() - begin - job.submit);
                // Who comes first alternates.
                let order = if next % 2 == 0 { [0, 1] } else { [1, 0] };
                for i in order {
                    submit(&mut sides[i], job, next)?;
                }
                next += 1;
            }
            _ => sleep(Duration::from_millis(20)),
        }
        if now() - told > 30.0 {
            told = now();
            eprintln!(
                "  {:>4.0} s: {next} submitted, ended: {}, {}; running: {}, {}",
                now() - begin,
                sides[0].ended,
                sides[1].ended,
                sides[0].running.len(),
                sides[1].running.len()
            );
        }
        ensure!(
            now() < limit,
            "after {:.0} s one has ended {} and the other {} of {} jobs",
            now() - begin,
            sides[0].ended,
            sides[1].ended,
            jobs.len()
        );
    }
    Ok(late)
}

fn submit(side: &mut Side, job: &Job, index: usize) -> Result<()> {
    let nodes = format!("-N{}", job.nodes);
    let tasks = format!("-n{}", job.nodes);
    let gpus = format!("--gres=gpu:{}", job.per_node);
    let time = format!("--time={}", job.limit);
    let fixed = ["--parsable", "--output=/dev/null", "--wrap=true", "--mem=1"];
    let own = [nodes.as_str(), &tasks, &gpus, &time, "--ntasks-per-node=1"];
    let text = side.peer.client("sbatch", &[&fixed[..], &own].concat())?;
    let id = text.trim().split(';').next().unwrap_or_default();
    let id = id
        .parse()
        .with_context(|| format!("sbatch said {text:?}"))?;
    side.tally.index.insert(id, index);
    Ok(())
}

/// Learns what has started.
fn look(side: &mut Side, jobs: &[Job]) -> Result<()> {
    let text = side.peer.client("scontrol", &["-d", "show", "jobs"])?;
    let seen = SlurmJob::parse_all(&text);
    for index in side.tally.look(jobs, &seen)? {
        let place = side.tally.places[index].as_ref().context("was just seen")?;
        let id = side.tally.index.iter().find(|(_, at)| **at == index);
        let id = *id.context("was just seen")?.0;
        // Slurm tells whole seconds, cut off: half a second more is right on the average.
        let end = place.start + 0.5 + jobs[index].run;
        side.running.push((end, index, id));
    }
    side.samples.extend(side.peer.take()?);
    Ok(())
}

/// Takes back the jobs whose run is over.
fn end_due(side: &mut Side) -> Result<()> {
    let moment = now();
    let (due, running): (Vec<_>, Vec<_>) = side
        .running
        .drain(..)
        .partition(|(end, _, _)| *end <= moment);
    side.running = running;
    if due.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = due.iter().map(|(_, _, id)| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    side.peer.client("scancel", &ids)?;
    side.ended += due.len();
    let moment = now();
    for (_, index, _) in due {
        if let Some(place) = &mut side.tally.places[index] {
            place.end = moment;
        }
    }
    Ok(())
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Calls by kind, for [`report::Work`].
fn of_kind(samples: &[Sample], kind: Kind) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(move |sample| sample.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(more: &[&str]) -> Option<Vec<Who>> {
        let fixed = ["replay", "--probe=p", "--plugin=q"];
        let options = Options::try_parse_from(fixed.iter().chain(more));
        options.ok().map(|options| options.peers)
    }

    #[test]
    fn the_two_peers_may_be_of_a_kind() {
        assert_eq!(peers(&[]), Some(vec![Who::Stock, Who::Gpuos]));
        let both = peers(&["--peers", "stock,stock"]);
        assert_eq!(both, Some(vec![Who::Stock; 2]));
        assert_eq!(names(Who::Stock, Who::Stock), ["stock", "stock-2"]);
        assert_eq!(peers(&["--peers=stock,other"]), None);
    }
}
