//! What is counted for one peer: where its jobs lay, and how long they waited.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::NodeChoice;
use gpuos_sim::replay::jobs::Job;
use gpuos_sim::replay::judge::Judge;

/// One job's place and times, seconds since 1970.
#[derive(Clone, Debug)]
pub struct Place {
    /// Became eligible, as Slurm says: whole seconds.
    pub eligible: f64,
    /// Started, as Slurm says: whole seconds.
    pub start: f64,
    /// When the driver ended it.
    pub end: f64,
    /// Nodes and GPUs.
    pub nodes: Vec<NodeChoice>,
}

/// The jobs of one peer by the number that Slurm gave them.
#[derive(Default)]
pub struct Tally {
    /// By Slurm's number: index in the replay.
    pub index: HashMap<u32, usize>,
    /// By index: where it lay.
    pub places: Vec<Option<Place>>,
}

impl Tally {
    /// For so many jobs.
    pub fn new(jobs: usize) -> Tally {
        Tally {
            index: HashMap::new(),
            places: vec![None; jobs],
        }
    }

    /// Reads what holds GPUs at one moment. Every job that is seen for the first time is
    /// returned by its index. Fails when a GPU is held twice or a job holds what it did not ask.
    pub fn look(&mut self, jobs: &[Job], now: &[gpuos_host::slurm::Job]) -> Result<Vec<usize>> {
        let mut held: HashMap<u32, (GpuSet, u32)> = HashMap::new();
        let mut new = Vec::new();
        for job in now {
            // What ends may have given its GPUs back already.
            if !["RUNNING", "CONFIGURING"].contains(&job.state.as_str()) {
                continue;
            }
            let Some(&index) = self.index.get(&job.id) else {
                continue;
            };
            let nodes = nodes(job)?;
            for at in &nodes {
                let (gpus, by) = held.entry(at.node).or_insert((GpuSet::EMPTY, job.id));
                ensure!(
                    gpus.and(at.gpus).is_empty(),
                    "jobs {by} and {} both hold one of the GPUs {} of c{}",
                    job.id,
                    at.gpus,
                    at.node + 1
                );
                (*gpus, *by) = (GpuSet(gpus.0 | at.gpus.0), job.id);
            }
            if self.places[index].is_some() {
                continue;
            }
            let asked = &jobs[index];
            let right = nodes.len() == asked.nodes as usize
                && nodes
                    .iter()
                    .all(|n| n.gpus.len() == asked.per_node as usize);
            ensure!(
                right,
                "job {} asked for {} nodes with {} GPUs and got {nodes:?}",
                job.id,
                asked.nodes,
                asked.per_node
            );
            self.places[index] = Some(Place {
                eligible: seconds(&job.eligible)?,
                start: seconds(&job.start)?,
                end: 0.0,
                nodes,
            });
            new.push(index);
        }
        Ok(new)
    }

    /// The figures once all jobs have ended.
    pub fn figures(&self, jobs: &[Job], judge: &mut Judge, seconds: f64) -> Result<Figures> {
        let mut figures = Figures::default();
        let places: Option<Vec<&Place>> = self.places.iter().map(Option::as_ref).collect();
        let places = places.context("a job has not run")?;
        let from = places.iter().map(|p| p.eligible).fold(f64::MAX, f64::min);
        let (mut waits, mut inside, mut total) = (Vec::new(), 0.0, 0.0);
        let mut weighted = (0.0, 0.0);
        let mut by_work = (0.0, 0.0);
        for (job, place) in jobs.iter().zip(places) {
            let gpus = f64::from(job.gpus());
            let wait = place.start - place.eligible;
            waits.push(wait);
            let kind = match (job.nodes, job.per_node) {
                (1, 1) => &mut figures.single_waits,
                (1, _) => &mut figures.local_waits,
                _ => &mut figures.gang_waits,
            };
            kind.push(wait);
            by_work.0 += wait * gpus * job.run;
            by_work.1 += gpus * job.run;
            figures.makespan = figures.makespan.max(place.end - from);
            inside += gpus * (place.end.min(from + seconds) - place.start).max(0.0);
            total += gpus * (place.end - place.start);
            if job.gpus() < 2 {
                continue;
            }
            let gbps = judge.ring_gbps(job.nodes, job.per_node, &place.nodes);
            weighted.0 += gbps * gpus * job.run;
            weighted.1 += gpus * job.run;
            if job.nodes == 1 {
                figures.local.push(gbps);
            } else {
                let span = judge.span(&place.nodes) as f64;
                figures.gang_gbps.push(gbps);
                figures.spans.push(span);
            }
        }
        let capacity = f64::from(judge.gpus());
        figures.allocation = inside / (capacity * seconds);
        figures.whole_allocation = total / (capacity * figures.makespan);
        figures.weighted_gbps = weighted.0 / f64::max(weighted.1, 1.0);
        figures.wait_by_work = by_work.0 / f64::max(by_work.1, 1.0);
        waits.sort_unstable_by(f64::total_cmp);
        figures.waits = waits;
        Ok(figures)
    }
}

/// The figures of one peer.
#[derive(Clone, Default, Debug)]
pub struct Figures {
    /// Waits of all jobs in seconds, ascending.
    pub waits: Vec<f64>,
    /// Waits of jobs on several nodes.
    pub gang_waits: Vec<f64>,
    /// Waits of jobs with several GPUs of one node.
    pub local_waits: Vec<f64>,
    /// Waits of jobs with one GPU.
    pub single_waits: Vec<f64>,
    /// Mean wait, each job counted by its GPU time, seconds. Whoever only lets other jobs go first does not change it: where no
    /// GPU is idle for nothing, the sum of wait times work is the same in any order (Kleinrock's conservation law, 1965).
    pub wait_by_work: f64,
    /// First submission to last end, seconds.
    pub makespan: f64,
    /// Share of the GPUs held while jobs were submitted.
    pub allocation: f64,
    /// Share of the GPUs held from the first submission to the last end.
    pub whole_allocation: f64,
    /// Ring bandwidth of the jobs with several GPUs on one node, GB/s.
    pub local: Vec<f64>,
    /// Ring bandwidth of the jobs on several nodes, GB/s.
    pub gang_gbps: Vec<f64>,
    /// Ring bandwidth of all jobs with several GPUs, weighted with their GPU time, GB/s.
    pub weighted_gbps: f64,
    /// Leaves that the jobs on several nodes lie in.
    pub spans: Vec<f64>,
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len().max(1)) as f64
}

fn nodes(job: &gpuos_host::slurm::Job) -> Result<Vec<NodeChoice>> {
    let mut nodes = Vec::new();
    for part in &job.allocations {
        for name in &part.nodes {
            let number = name.strip_prefix('c').and_then(|n| n.parse::<u32>().ok());
            let Some(number) = number.filter(|n| *n > 0) else {
                bail!("job {} is on {name}, which is no node of the lab", job.id);
            };
            nodes.push(NodeChoice {
                node: number - 1,
                gpus: part.gpus,
            });
        }
    }
    nodes.sort_unstable_by_key(|at| at.node);
    Ok(nodes)
}

fn seconds(text: &str) -> Result<f64> {
    text.parse()
        .with_context(|| format!("{text:?} is no time in seconds since 1970"))
}
