//! GPUs that get worse: the jobs that have them save before the fault comes, if they make checkpoints. gpuos_mover of this node is asked, by a
//! thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::health::{GpuState, Job, NodeHealth};
use gpuos_core::job::JobId;
use gpuos_core::wire::{CheckpointRequest, Reply, Request};
use gpuos_host::socket::Client;
use gpuos_model::node_gpu::NodeGpu;

/// A job is asked so often at most, however often its GPUs come and go. Own choice.
const PAUSE: Duration = Duration::from_secs(600);
/// gpuos_mover may take so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Jobs that wait to be asked for.
const WAITING: usize = 64;

/// What is suspected, and whose jobs were told.
pub struct Suspicions {
    mover: PathBuf,
    ask: Option<SyncSender<JobId>>,
    degraded: BTreeSet<NodeGpu>,
    asked: BTreeMap<JobId, Instant>,
}

impl Suspicions {
    /// Of a node as it was saved: what is suspected already is nothing new. Nobody is asked before [`Suspicions::set`].
    pub fn new(mover: PathBuf, node: &NodeHealth) -> Suspicions {
        Suspicions {
            mover,
            ask: None,
            degraded: degraded(node),
            asked: BTreeMap::new(),
        }
    }

    /// Whether checkpoints are made on this site.
    pub fn set(&mut self, checkpoints: bool) {
        self.ask = match (checkpoints, self.ask.take()) {
            (false, _) => None,
            (true, Some(ask)) => Some(ask),
            // Without a thread nobody is asked, and it is tried at the next reload.
            (true, None) => start(self.mover.clone()).ok(),
        };
    }

    /// Has the jobs asked whose GPUs are degraded since the last look, and gives them, each with its GPU.
    pub fn look(&mut self, node: &NodeHealth, now: Instant) -> Vec<(NodeGpu, JobId)> {
        self.compare(degraded(node), &node.jobs, now)
    }

    fn compare(
        &mut self,
        degraded: BTreeSet<NodeGpu>,
        jobs: &[Job],
        now: Instant,
    ) -> Vec<(NodeGpu, JobId)> {
        let before = std::mem::replace(&mut self.degraded, degraded);
        let Some(ask) = &self.ask else {
            return Vec::new();
        };
        let mut asked = Vec::new();
        self.asked
            .retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        for gpu in self.degraded.difference(&before) {
            for job in jobs.iter().filter(|job| job.gpus.contains(gpu)) {
                if !self.asked.contains_key(&job.job) && ask.try_send(job.job.clone()).is_ok() {
                    self.asked.insert(job.job.clone(), now);
                    asked.push((*gpu, job.job.clone()));
                }
            }
        }
        asked
    }
}

fn degraded(node: &NodeHealth) -> BTreeSet<NodeGpu> {
    let jobs = node.jobs.iter().flat_map(|job| &job.gpus).copied();
    let gpus: BTreeSet<NodeGpu> = jobs
        .chain(node.part().degraded.into_iter().map(NodeGpu::from))
        .collect();
    gpus.into_iter()
        .filter(|gpu| node.state(*gpu) == GpuState::Degraded)
        .collect()
}

fn start(mover: PathBuf) -> std::io::Result<SyncSender<JobId>> {
    let (ask, jobs) = sync_channel(WAITING);
    let run = move || run(&mover, &jobs);
    thread::Builder::new().name("suspicion".into()).spawn(run)?;
    Ok(ask)
}

fn run(mover: &Path, jobs: &Receiver<JobId>) {
    for job in jobs {
        let what = CheckpointRequest::Now { job: job.clone() };
        let asked = Client::connect(mover, PATIENCE)
            .and_then(|mut client| client.ask(&Request::Checkpoint { what }));
        match asked {
            Ok(Reply::Done { .. }) => {
                tracing::info!(%job, "a checkpoint of job {job} is wanted: a GPU of it is degraded");
            }
            // Most jobs make none.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%job, "job {job} is not asked to save although a GPU of it is degraded: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize) -> NodeGpu {
        gpuos_model::gpu_index::GresGpu::new(index).unwrap().into()
    }

    fn job(number: u32, gpus: &[usize]) -> Job {
        Job {
            job: number.into(),
            gpus: gpus.iter().copied().map(gpu).collect(),
            ..Job::default()
        }
    }

    #[test]
    fn the_jobs_of_a_gpu_are_asked_once_for_each_suspicion() {
        let (ask, jobs) = sync_channel(8);
        let mut suspicions = Suspicions {
            mover: PathBuf::new(),
            ask: Some(ask),
            degraded: BTreeSet::from([gpu(7)]),
            asked: BTreeMap::new(),
        };
        let table = [job(1, &[0, 1]), job(2, &[3]), job(1, &[1]), job(3, &[7])];
        let now = Instant::now();
        let mut look = |all: &[usize], after: u64| {
            let all = all.iter().copied().map(gpu).collect();
            suspicions.compare(all, &table, now + Duration::from_secs(after))
        };
        assert_eq!(look(&[7], 0), [], "it was so before");
        assert_eq!(look(&[1, 7], 1), [(gpu(1), 1.into())]);
        assert_eq!(look(&[1, 7], 2), []);
        assert_eq!(
            look(&[1, 3, 5], 3),
            [(gpu(3), 2.into())],
            "nobody has GPU 5"
        );
        // It comes and goes.
        assert_eq!(look(&[3], 4), []);
        assert_eq!(look(&[1, 3], 5), []);
        assert_eq!(look(&[3], 590), []);
        assert_eq!(look(&[1, 3], 605), [(gpu(1), 1.into())]);
        let told: Vec<JobId> = jobs.try_iter().collect();
        assert_eq!(told, [1.into(), 2.into(), 1.into()]);
    }

    #[test]
    fn where_no_checkpoints_are_made_nobody_is_asked() {
        let mut suspicions = Suspicions {
            mover: PathBuf::new(),
            ask: None,
            degraded: BTreeSet::new(),
            asked: BTreeMap::new(),
        };
        let asked = suspicions.compare([gpu(0)].into(), &[job(1, &[0])], Instant::now());
        assert_eq!(asked, []);
    }
}
