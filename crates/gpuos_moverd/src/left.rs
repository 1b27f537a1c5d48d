//! Folders of jobs that an earlier mover of this node has left: of jobs that run here still, and of jobs that are over.

use std::io;
use std::sync::Arc;

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_workload::WorkloadManager;
use gpuos_workload::job::Job;

use crate::folder::{Kept, Trash};

/// What has not been decided on yet.
pub struct Left {
    trash: Arc<Trash>,
    jobs: Vec<JobId>,
}

/// A job that runs here in the run to which its folder belongs.
#[derive(Clone, PartialEq, Debug)]
pub struct Goes {
    /// As the workload manager has it.
    pub record: Job,
    /// As the folder has it.
    pub kept: Kept,
}

impl Left {
    /// Looks what is there.
    ///
    /// # Errors
    /// The folder of all jobs cannot be read.
    pub fn find(trash: Arc<Trash>) -> io::Result<Left> {
        let jobs = trash.jobs()?;
        Ok(Left { trash, jobs })
    }

    /// Whether all is decided.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Asks the workload manager: gives the jobs that run on `node` in the run of their folder, and moves the folders of others away. Of
    /// a job of which it does not tell nothing is decided; that can be asked again. `is_served`: the job has a thread, whose folder is not
    /// touched.
    pub fn decide(
        &mut self,
        manager: &dyn WorkloadManager,
        node: &str,
        is_served: impl Fn(&JobId) -> bool,
    ) -> Vec<Goes> {
        let mut go = Vec::new();
        let mut open = Vec::new();
        for job in std::mem::take(&mut self.jobs) {
            // It is not asked again and again while it is away.
            let asked = open.is_empty().then(|| manager.job(&job));
            let Some(Ok(record)) = asked else {
                open.push(job);
                continue;
            };
            let goes = record.and_then(|record| self.goes(&job, record, node));
            let step = goes.as_ref().and_then(|goes| goes.kept.launch.step);
            let step = step.map(|step| StepId {
                job: job.clone(),
                step,
            });
            // The program of a step that is gone has nothing to do with its folder any more.
            let goes = match step.map(|step| manager.step_nodes(&step)) {
                Some(Err(_)) => {
                    open.push(job);
                    continue;
                }
                Some(Ok(None)) => None,
                Some(Ok(Some(_))) | None => goes,
            };
            match goes {
                Some(goes) => go.push(goes),
                None if is_served(&job) => {}
                None => match self.trash.remove_job(&job) {
                    Ok(()) => crate::audit::folder_removed(&job),
                    Err(error) => {
                        tracing::error!(%job, "the folder of job {job} is not removed: {error}")
                    }
                },
            }
        }
        self.jobs = open;
        go
    }

    fn goes(&self, job: &JobId, record: Job, node: &str) -> Option<Goes> {
        let here = record.is_running() && record.nodes.iter().any(|name| name == node);
        let kept = self.trash.kept(job).filter(|_| here)?;
        let same = (kept.run, kept.uid) == (record.restarts, record.uid);
        same.then_some(Goes { record, kept })
    }
}
