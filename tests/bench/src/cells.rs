//! What is measured: clusters, loads, jobs.

use crate::samples::{Ask, Kind, Sample};

/// GPUs of a node of the type that is measured (dgx-h100).
pub const GPUS: usize = 8;

/// A part of the cluster that jobs of one size fill: a partition of its own, so that the state
/// is the same whoever places them.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Nodes, by number from 1.
    pub nodes: Vec<usize>,
    /// Nodes of one job.
    pub job_nodes: usize,
    /// GPUs of one job on each of its nodes.
    pub job_gpus: usize,
    /// How many jobs.
    pub jobs: usize,
}

/// A cluster to measure on.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Nodes.
    pub nodes: usize,
    /// Nodes under one leaf switch.
    pub leaf: usize,
    /// Jobs that bring it to 90 % of its GPUs in use.
    pub fill: Vec<Fill>,
    /// Nodes of a gang.
    pub gang: usize,
    /// Nodes of a gang that finds no room at 90 %.
    pub too_large: usize,
}

impl Cluster {
    /// 4 nodes, 29 of 32 GPUs in use when full.
    pub fn small() -> Cluster {
        Cluster {
            nodes: 4,
            leaf: 2,
            fill: vec![
                fill(vec![1], 1, 1, 8),
                fill(vec![2], 1, 4, 2),
                fill(vec![3], 1, 8, 1),
                fill(vec![4], 1, 5, 1),
            ],
            gang: 4,
            too_large: 4,
        }
    }

    /// 1,250 nodes, 9,000 of 10,000 GPUs in use when full: 80 nodes are free, 180 have two free
    /// GPUs, 990 none; which ones is shuffled.
    pub fn large() -> Cluster {
        let mut order = shuffled(1250);
        let mut next = |nodes, job_nodes, job_gpus| {
            let part: Vec<usize> = order.drain(..nodes).collect();
            let jobs = nodes / job_nodes * (GPUS / job_gpus);
            fill(part, job_nodes, job_gpus, jobs)
        };
        Cluster {
            nodes: 1250,
            leaf: 32,
            fill: vec![
                next(50, 1, 1),
                next(60, 1, 2),
                next(80, 1, 4),
                next(304, 1, 8),
                next(496, 16, 8),
                next(180, 1, 6),
            ],
            gang: 64,
            too_large: 128,
        }
    }

    /// 12,500 nodes, 90,000 of 100,000 GPUs in use when full: 1,250 nodes are free; which ones is shuffled. Few and
    /// large jobs fill it: stock Slurm needs minutes for many small ones.
    pub fn huge() -> Cluster {
        let mut order = shuffled(12_500);
        // Room for nodes that a restart left between two states.
        let part: Vec<usize> = order.drain(..11_300).collect();
        Cluster {
            nodes: 12_500,
            leaf: 32,
            fill: vec![fill(part, 1125, GPUS, 10)],
            gang: 64,
            too_large: 128,
        }
    }

    /// PartitionName lines of slurm.conf for [`Cluster::fill`].
    pub fn partitions(&self) -> Vec<String> {
        let list = |nodes: &[usize]| {
            let names: Vec<String> = nodes.iter().map(usize::to_string).collect();
            format!("c[{}]", names.join(","))
        };
        self.fill
            .iter()
            .enumerate()
            .map(|(i, fill)| {
                format!(
                    "PartitionName=fill{i} Nodes={} MaxTime=INFINITE State=UP",
                    list(&fill.nodes)
                )
            })
            .collect()
    }

    /// GPUs in use when full.
    pub fn full(&self) -> usize {
        self.fill
            .iter()
            .map(|fill| fill.jobs * fill.job_nodes * fill.job_gpus)
            .sum()
    }

    /// Whether this is [`Cluster::huge`], where starts are measured and goals are times.
    pub fn is_huge(&self) -> bool {
        self.nodes > 10_000
    }

    /// The cells of this cluster under a load.
    pub fn cells(&self, load: Load) -> Vec<Cell> {
        let single = Job {
            name: "1 GPU",
            nodes: 1,
            gpus: 1,
        };
        let node = match self.is_huge() {
            false => Job {
                name: "1 node x 8 GPUs",
                nodes: 1,
                gpus: 8,
            },
            true => Job {
                name: "8 nodes x 8 GPUs",
                nodes: 8,
                gpus: 8,
            },
        };
        let gang = Job {
            name: if self.nodes > 64 {
                "64 nodes x 8 GPUs"
            } else {
                "4 nodes x 8 GPUs"
            },
            nodes: self.gang,
            gpus: 8,
        };
        let large = Job {
            name: "128 nodes x 8 GPUs",
            nodes: self.too_large,
            gpus: 8,
        };
        let cell = |job, call| Cell { job, load, call };
        if self.is_huge() {
            return [single, node, gang]
                .map(|job| cell(job, Call::Start))
                .into();
        }
        let starts = match (load, self.nodes > 64) {
            (Load::Idle, _) | (Load::Full, true) => vec![single, node, gang],
            (Load::Full, false) => vec![single],
        };
        let waits = match (load, self.nodes > 64) {
            (Load::Idle, _) => vec![],
            (Load::Full, true) => vec![large],
            (Load::Full, false) => vec![node, gang],
        };
        let mut cells: Vec<Cell> = starts.iter().map(|job| cell(*job, Call::Start)).collect();
        cells.extend(waits.iter().map(|job| cell(*job, Call::Refused)));
        let all = cells.clone();
        cells.extend(all.iter().map(|asked| cell(asked.job, Call::When)));
        cells
    }
}

/// How much of the cluster is in use.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Load {
    /// Nothing but the jobs that are measured.
    #[default]
    Idle,
    /// 90 % of the GPUs.
    Full,
}

/// A job that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// For people.
    pub name: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// GPUs on each.
    pub gpus: usize,
}

/// What slurmctld asks of the select plugin.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Call {
    /// RUN_NOW, answered with nodes.
    #[default]
    Start,
    /// RUN_NOW, answered with no: what every waiting job costs in every pass.
    Refused,
    /// WILL_RUN: what `--test-only` and the backfill scheduler ask.
    When,
    /// All that the first job after a start of slurmctld asks until it has its nodes.
    First,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Job.
    pub job: Job,
    /// Load.
    pub load: Load,
    /// Question.
    pub call: Call,
}

impl Cell {
    /// Whether a sample belongs to this cell.
    pub fn takes(&self, sample: &Sample) -> bool {
        let (ask, yes) = match self.call {
            Call::Start => (Ask::RunNow, Some(true)),
            Call::Refused => (Ask::RunNow, Some(false)),
            Call::When => (Ask::WillRun, None),
            Call::First => return sample.kind == Kind::JobTest,
        };
        sample.kind == Kind::JobTest
            && sample.ask == ask
            && sample.min_nodes as usize == self.job.nodes
            && yes.is_none_or(|yes| (sample.code == 0) == yes)
    }
}

fn fill(nodes: Vec<usize>, job_nodes: usize, job_gpus: usize, jobs: usize) -> Fill {
    Fill {
        nodes,
        job_nodes,
        job_gpus,
        jobs,
    }
}

/// 1 to `count` in an order that is the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (1..=count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..count).rev() {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_means_90_percent() {
        for (cluster, full) in [
            (Cluster::small(), 29),
            (Cluster::large(), 9000),
            (Cluster::huge(), 90_000),
        ] {
            assert_eq!(cluster.full(), full);
            let mut nodes: Vec<usize> = cluster.fill.iter().flat_map(|f| f.nodes.clone()).collect();
            nodes.sort_unstable();
            let count = nodes.len();
            nodes.dedup();
            assert_eq!(nodes.len(), count, "a node in two parts");
            for fill in &cluster.fill {
                assert!(fill.jobs * fill.job_nodes * fill.job_gpus <= fill.nodes.len() * GPUS);
            }
        }
    }
}
