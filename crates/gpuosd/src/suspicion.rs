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
    /// GPUs that are degraded, and of the jobs that have them those for which nothing is left to do.
    degraded: BTreeMap<NodeGpu, BTreeSet<JobId>>,
    asked: BTreeMap<JobId, Instant>,
}

impl Suspicions {
    /// Of a node as it was saved: what is suspected already is nothing new. Nobody is asked before [`Suspicions::set`].
    pub fn new(mover: PathBuf, node: &NodeHealth) -> Suspicions {
        let known = degraded(node).into_iter();
        Suspicions {
            mover,
            ask: None,
            degraded: known.map(|gpu| (gpu, on(&node.jobs, gpu))).collect(),
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

    /// Has the jobs asked whose GPUs are degraded since the last look, and those of which it has become known since then that they have such a GPU:
    /// slurmctld may confirm a step later than a GPU gets worse. Gives them, each with its GPU.
    pub fn look(&mut self, node: &NodeHealth, now: Instant) -> Vec<(NodeGpu, JobId)> {
        self.compare(&degraded(node), &node.jobs, now)
    }

    fn compare(
        &mut self,
        degraded: &BTreeSet<NodeGpu>,
        jobs: &[Job],
        now: Instant,
    ) -> Vec<(NodeGpu, JobId)> {
        self.degraded.retain(|gpu, _| degraded.contains(gpu));
        let Some(ask) = &self.ask else {
            return Vec::new();
        };
        let mut asked = Vec::new();
        self.asked
            .retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        for gpu in degraded {
            let there = on(jobs, *gpu);
            let done = self.degraded.entry(*gpu).or_default();
            // Of a job that has gone nothing is remembered here.
            done.retain(|job| there.contains(job));
            for job in there {
                if done.contains(&job) {
                    continue;
                }
                if !self.asked.contains_key(&job) {
                    // Too many wait: the next look tries again.
                    if ask.try_send(job.clone()).is_err() {
                        continue;
                    }
                    self.asked.insert(job.clone(), now);
                    asked.push((*gpu, job.clone()));
                }
                done.insert(job);
            }
        }
        asked
    }
}

/// The jobs that have a GPU.
fn on(jobs: &[Job], gpu: NodeGpu) -> BTreeSet<JobId> {
    let jobs = jobs.iter().filter(|job| job.gpus.contains(&gpu));
    jobs.map(|job| job.job.clone()).collect()
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

    fn suspicions(ask: Option<SyncSender<JobId>>) -> Suspicions {
        Suspicions {
            mover: PathBuf::new(),
            ask,
            degraded: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    fn gpus(all: &[usize]) -> BTreeSet<NodeGpu> {
        all.iter().copied().map(gpu).collect()
    }

    #[test]
    fn the_jobs_of_a_gpu_are_asked_once_for_each_suspicion() {
        let (ask, jobs) = sync_channel(8);
        let mut suspicions = suspicions(Some(ask));
        suspicions.degraded.insert(gpu(7), [3.into()].into());
        let table = [job(1, &[0, 1]), job(2, &[3]), job(1, &[1]), job(3, &[7])];
        let now = Instant::now();
        let mut look = |all: &[usize], after: u64| {
            suspicions.compare(&gpus(all), &table, now + Duration::from_secs(after))
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
    fn a_job_that_slurmctld_confirms_later_is_asked_once_too() {
        let (ask, jobs) = sync_channel(8);
        let mut suspicions = suspicions(Some(ask));
        let now = Instant::now();
        let mut look = |table: &[Job], after: u64| {
            suspicions.compare(&gpus(&[1]), table, now + Duration::from_secs(after))
        };
        assert_eq!(
            look(&[], 0),
            [],
            "it is degraded, and nobody is known to have it"
        );
        assert_eq!(look(&[job(1, &[1])], 1), [(gpu(1), 1.into())]);
        // Much later, and beside another one.
        let both = [job(1, &[1]), job(2, &[1])];
        assert_eq!(look(&both, 700), [(gpu(1), 2.into())]);
        assert_eq!(look(&both, 2000), []);
        // It is gone, and comes again as another run.
        assert_eq!(look(&both[1..], 2100), []);
        assert_eq!(look(&both, 2200), [(gpu(1), 1.into())]);
        assert_eq!(jobs.try_iter().count(), 3);
    }

    #[test]
    fn who_could_not_be_asked_is_asked_when_others_have_been() {
        let (ask, jobs) = sync_channel(1);
        let mut suspicions = suspicions(Some(ask));
        let table = [job(1, &[0]), job(2, &[0])];
        let now = Instant::now();
        let mut look = || suspicions.compare(&gpus(&[0]), &table, now);
        assert_eq!(look(), [(gpu(0), 1.into())]);
        assert_eq!(look(), [], "one waits");
        assert_eq!(jobs.try_recv(), Ok(1.into()));
        assert_eq!(look(), [(gpu(0), 2.into())]);
    }

    #[test]
    fn where_no_checkpoints_are_made_nobody_is_asked() {
        let asked = suspicions(None).compare(&gpus(&[0]), &[job(1, &[0])], Instant::now());
        assert_eq!(asked, []);
    }
}
