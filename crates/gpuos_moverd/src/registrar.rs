//! Which jobs this node has a part in: a thread that asks the workload manager, starts a thread for each job, and ends it.
//!
//! Whose a job is, where it runs and how often it was started is the workload manager's word, never that of who asks.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::NodeDomains;
use gpuos_config::access::Standing;
use gpuos_config::options::parse_checkpoint;
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::MOVER_ALIVE;
use gpuos_link::session::Place;
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Job, JobState};

use crate::clock::seconds;
use crate::domains::FailureDomains;
use crate::event::{Event, SavedRun};
use crate::job::{Shared, Start, Worker};
use crate::jobs::{Jobs, Served, locked};
use crate::launch::Launch;
use crate::left::{Goes, Left};
use crate::sweeper::Sweeper;

/// The option by which jobs ask for checkpoints, without dashes.
const OPTION: &str = "gpuos-checkpoint";
/// How often the workload manager is asked about the jobs that are served.
const LOOK: Duration = Duration::from_secs(5);
/// A job that another mover names and that is none of this node's is looked up so often at most.
const AGAIN: Duration = Duration::from_secs(1);
/// How often what ended jobs have left is looked at.
const SWEEP: Duration = Duration::from_secs(600);
/// Events that wait for the thread of a job. Each may be a piece of a segment, so that few may wait.
const WAITING: usize = 64;
/// How long a step waits for the thread of its job: slurmstepd waits for longer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// A step of whose job the workload manager does not tell is looked up again so often, and for so long: its program may wait.
const LATER: Duration = Duration::from_secs(2);
const LATER_MOST: Duration = Duration::from_secs(600);
/// Stack of a job's thread.
const STACK: usize = 2 << 20;

/// A job's record, or a sentence why there is none.
fn known(job: &JobId, answer: Result<Option<Job>, Outcome>) -> Result<Job, String> {
    match answer {
        Ok(Some(record)) => Ok(record),
        Ok(None) => Err(format!("the workload manager knows no job {job}")),
        Err(outcome) => Err(format!(
            "the workload manager does not tell of job {job}: {}",
            outcome.words()
        )),
    }
}

/// What the registrar is asked.
pub enum Ask {
    /// A step has started here.
    Step {
        /// Of this job.
        job: JobId,
        /// As this start of its program.
        launch: Launch,
        /// Its user, as slurmstepd says.
        uid: u32,
        /// The group of its processes.
        gid: u32,
        /// The value of the option.
        asked: String,
        /// Where the folder goes, or a sentence why there is none.
        reply: SyncSender<Result<PathBuf, String>>,
    },
    /// Another node's mover names a job.
    Named(JobId),
    /// The mover ends, and all threads of jobs with it. The other half is dropped when they have.
    Stop(SyncSender<()>),
}

/// The state of the thread.
pub struct Registrar {
    shared: Arc<Shared>,
    jobs: Arc<Jobs>,
    manager: Arc<dyn WorkloadManager>,
    domains: Arc<FailureDomains>,
    /// When a job was looked up in vain.
    in_vain: BTreeMap<JobId, Instant>,
    /// Threads of jobs, also of those that were told to end.
    threads: BTreeMap<JobId, JoinHandle<()>>,
    /// Folders of an earlier mover.
    left: Left,
    /// Steps of whose jobs the workload manager has not told, and since when.
    unknown: Vec<(Instant, StepAsk)>,
    sweeper: Sweeper,
}

/// See [`Ask::Step`].
struct StepAsk {
    job: JobId,
    launch: Launch,
    owner: (u32, u32),
    asked: String,
    reply: SyncSender<Result<PathBuf, String>>,
}

impl Registrar {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(
        shared: Arc<Shared>,
        jobs: Arc<Jobs>,
        (manager, domains): (Arc<dyn WorkloadManager>, FailureDomains),
        left: Left,
        from: Receiver<Ask>,
    ) -> std::io::Result<()> {
        let registrar = Registrar {
            shared,
            jobs,
            manager,
            domains: Arc::new(domains),
            in_vain: BTreeMap::new(),
            threads: BTreeMap::new(),
            left,
            unknown: Vec::new(),
            sweeper: Sweeper::default(),
        };
        let thread = thread::Builder::new().name("registrar".into());
        thread.spawn(move || registrar.run(&from))?;
        Ok(())
    }

    fn run(mut self, from: &Receiver<Ask>) {
        let mut due = Instant::now() + LOOK;
        let mut sweep = Instant::now();
        self.take_up();
        let mut later = Instant::now();
        loop {
            let next = if self.unknown.is_empty() {
                due
            } else {
                due.min(later)
            };
            match from.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Ask::Step {
                    job,
                    launch,
                    uid,
                    gid,
                    asked,
                    reply,
                }) => {
                    let step = StepAsk {
                        job,
                        launch,
                        owner: (uid, gid),
                        asked,
                        reply,
                    };
                    self.step(Instant::now(), step);
                }
                Ok(Ask::Named(job)) => self.named(&job),
                Ok(Ask::Stop(_done)) => return self.stop(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= later {
                for (since, step) in std::mem::take(&mut self.unknown) {
                    // Where it does not tell of one it would not of the others, either.
                    match self.unknown.is_empty() {
                        true => self.step(since, step),
                        false => self.unknown.push((since, step)),
                    }
                }
                later = Instant::now() + LATER;
            }
            if Instant::now() >= due {
                alive(&self.shared.folders);
                self.take_up();
                self.look();
                due = Instant::now() + LOOK;
            }
            if Instant::now() >= sweep {
                self.sweep();
                sweep = Instant::now() + SWEEP;
            }
        }
    }

    /// A step has started: its job is served from now on, if it is not. While the workload manager does not tell of it, it is tried again.
    fn step(&mut self, since: Instant, step: StepAsk) {
        let record = self.manager.job(&step.job);
        if record.is_err() && since.elapsed() < LATER_MOST {
            return self.unknown.push((since, step));
        }
        let record = known(&step.job, record);
        let StepAsk {
            job,
            launch,
            owner: (uid, gid),
            asked,
            reply,
        } = step;
        let (job, refuse) = (&job, |why: String| drop(reply.try_send(Err(why))));
        let record = match record {
            Ok(record) => record,
            Err(why) => return refuse(why),
        };
        if record.uid != uid {
            return refuse(format!(
                "job {job} is not user {uid}'s by the workload manager"
            ));
        }
        let served = self
            .allowed(&record, &asked)
            .and_then(|()| self.serve(job, launch, &record));
        let served = match served {
            Ok(served) => served,
            Err(why) => return refuse(why),
        };
        let folder = locked(&served.folder).clone();
        if let Some(folder) = folder {
            drop(reply.try_send(Ok(folder.into())));
            return;
        }
        // The job's thread answers, so that other jobs do not wait for it.
        let event = Event::Step { gid, asked, reply };
        let _ = served.to.try_send(event);
    }

    /// Serves the jobs that an earlier mover has served, as far as the workload manager tells of them.
    fn take_up(&mut self) {
        if self.left.is_empty() {
            return;
        }
        let jobs = self.jobs.clone();
        let is_served = |job: &JobId| jobs.get(job).is_some();
        let go = self
            .left
            .decide(&*self.manager, &self.shared.node, is_served);
        for Goes { record, kept } in go {
            let job = record.id.clone();
            let allowed = self.allowed(&record, &kept.asked);
            let served = allowed.and_then(|()| self.serve(&job, kept.launch, &record));
            let event = Event::Step {
                gid: kept.gid,
                asked: kept.asked,
                // Nobody waits for it.
                reply: sync_channel(1).0,
            };
            match served {
                Ok(served) => drop(served.to.try_send(event)),
                Err(why) => tracing::error!(%job, "job {job} is not served on: {why}"),
            }
        }
    }

    /// Ends the threads of all jobs, which run on.
    fn stop(mut self) {
        for (_, served) in self.jobs.all() {
            let _ = served.to.send(Event::Stop);
        }
        for (_, thread) in std::mem::take(&mut self.threads) {
            let _ = thread.join();
        }
    }

    fn named(&mut self, job: &JobId) {
        let lately = |at: &Instant| at.elapsed() < AGAIN;
        if self.jobs.get(job).is_some() || self.in_vain.get(job).is_some_and(lately) {
            return;
        }
        self.in_vain.retain(|_, at| at.elapsed() < AGAIN);
        let record = self.record(job).and_then(|record| {
            // While the nodes of a requeued job are cleaned up it has the number of its next run, and what is left of its last nodes.
            if record.state == JobState::Ending {
                return Err(format!("job {job} ends on this node"));
            }
            self.allowed(&record, "")?;
            Ok(record)
        });
        if record
            .and_then(|record| self.serve(job, Launch::default(), &record))
            .is_err()
        {
            self.in_vain.insert(job.clone(), Instant::now());
        }
    }

    /// Whether the site lets a job have checkpoints: not every one comes through job_submit_gpuos, and a waiting one can be moved.
    fn allowed(&self, record: &Job, asked: &str) -> Result<(), String> {
        let forbidden = &self.shared.forbidden;
        if !forbidden.knows([OPTION].into_iter()) {
            return Ok(());
        }
        if !record.unreadable.is_empty() {
            return Err(format!(
                "--{OPTION} is left out: the workload manager does not say where job {} is, and not all jobs may use it",
                record.id
            ));
        }
        let partitions: Vec<&str> = record.partitions.iter().map(String::as_str).collect();
        let standing = Standing {
            partitions: &partitions,
            account: &record.account,
            qos: &record.qos,
        };
        let value = parse_checkpoint(asked).map_or(String::new(), |value| value.to_string());
        match forbidden.refuses(OPTION, &standing) {
            Some(rule) => Err(rule.refusal(OPTION, &value).to_string()),
            None => Ok(()),
        }
    }

    /// A job as the workload manager has it.
    fn record(&self, job: &JobId) -> Result<Job, String> {
        known(job, self.manager.job(job))
    }

    /// The nodes that the program has in this start.
    fn nodes(&self, job: &JobId, launch: Launch, record: &Job) -> Result<Vec<String>, String> {
        let Some(step) = launch.step else {
            return Ok(record.nodes.clone());
        };
        let id = StepId {
            job: job.clone(),
            step,
        };
        match self.manager.step_nodes(&id) {
            Ok(Some(nodes)) if nodes.iter().all(|node| record.nodes.contains(node)) => Ok(nodes),
            Ok(Some(_)) => Err(format!(
                "step {job}.{step} has nodes that job {job} has not, by the workload manager"
            )),
            Ok(None) => Err(format!("the workload manager knows no step {job}.{step}")),
            Err(outcome) => Err(format!(
                "the workload manager does not tell of step {job}.{step}: {}",
                outcome.words()
            )),
        }
    }

    /// Serves a job that has its nodes, this one among them; an earlier run of it, or start of its program, ends.
    fn serve(&mut self, job: &JobId, launch: Launch, record: &Job) -> Result<Served, String> {
        let before = self.jobs.get(job);
        if let Some(served) = before
            .as_ref()
            .filter(|served| served.run == record.restarts)
        {
            // Steps that are not the program alone have what there is.
            if launch.step.is_none() || launch.step == served.launch.step {
                return Ok(served.clone());
            }
            if launch < served.launch {
                return Err(format!(
                    "a later step of job {job} is its program here already"
                ));
            }
        }
        let program = self.nodes(job, launch, record)?;
        let own = program.iter().position(|node| *node == self.shared.node);
        let own = own.and_then(|seat| u16::try_from(seat).ok());
        // One that is requeued for a lost node counts its next run already while the other nodes clean up, and has these alone.
        let runs = record.is_running() && record.state != JobState::Ending;
        let (Some(own), true) = (own, runs) else {
            return Err(format!("job {job} does not run on this node"));
        };
        let nodes = u16::try_from(program.len())
            .map_err(|_| format!("job {job} has more nodes than checkpoints can have"))?;
        let lost = before
            .as_ref()
            .filter(|served| served.run == record.restarts && served.launch.step.is_some())
            .map(|served| locked(&served.status).nodes.clone());
        if before.is_some() {
            self.end(job);
        }
        let place = Place {
            job: job.clone(),
            list: launch.list(),
            own: NodeIndex(own),
            nodes,
        };
        let (to, from) = sync_channel(WAITING);
        let served = Served {
            uid: record.uid,
            run: record.restarts,
            launch,
            place: place.clone(),
            to: to.clone(),
            over: Arc::default(),
            status: Arc::new(Mutex::default()),
            folder: Arc::default(),
        };
        let mut start = Start {
            job: job.clone(),
            uid: record.uid,
            run: record.restarts,
            launch,
            queued_at: record.queued_at,
            started_at: record.started_at,
            spares: others(&record.nodes, &program),
            lost: lost.map_or(Vec::new(), |before| others(&before, &program)),
            domains: vec![NodeDomains::default(); program.len()],
            nodes: program,
            place,
            over: served.over.clone(),
        };
        let (shared, status, folder) = (
            self.shared.clone(),
            served.status.clone(),
            served.folder.clone(),
        );
        let before = self.threads.remove(job);
        let domains = self.domains.clone();
        let run = move || {
            // Two runs of a job never write to its store at the same time.
            if let Some(before) = before {
                let _ = before.join();
            }
            // Only who draws the roster needs them. Reading files is this thread's: other jobs do not wait for it.
            if start.place.own.0 == 0 {
                let (known, notes) = domains.of(&start.nodes);
                start.domains = known;
                for note in notes {
                    tracing::warn!(job = %start.job, "job {}: {note}", start.job);
                }
            }
            Worker::new(shared, start, to, status, folder).run(&from);
        };
        let thread = thread::Builder::new().name(format!("job {job}"));
        let thread = thread.stack_size(STACK).spawn(run);
        let thread = thread.map_err(|e| format!("cannot start a thread for job {job}: {e}"))?;
        self.threads.insert(job.clone(), thread);
        self.jobs.enter(job.clone(), served.clone());
        Ok(served)
    }

    fn end(&self, job: &JobId) {
        if let Some(served) = self.jobs.leave(job) {
            served.over.store(true, Ordering::Relaxed);
            // One that is busy looks when it is not any more: nobody else's job waits for this one's disk.
            let _ = served.to.try_send(Event::End);
        }
    }

    /// Ends the threads of jobs that do not run here any more. Each is asked about alone: a node has few, and the cluster many.
    fn look(&mut self) {
        self.threads.retain(|_, thread| !thread.is_finished());
        for (job, served) in self.jobs.all() {
            // Without an answer nothing is known, and nothing ends.
            let Ok(record) = self.manager.job(&job) else {
                continue;
            };
            let record = record.filter(|record| {
                let here = record.nodes.contains(&self.shared.node);
                here && record.is_running() && record.restarts == served.run
            });
            match record {
                Some(record) => self.look_at_script(&record),
                None => self.end(&job),
            }
        }
        let kept = self.shared.store.jobs().unwrap_or_default();
        self.shared.ended.look(&kept, &self.jobs, &*self.manager);
    }

    /// A job that lives on when a node fails can lose the node of its script. Slurm leaves it as it is, with nothing that runs, until its
    /// limit: it is requeued, or ended where that may not be, as stock Slurm does with jobs that lose a node. Its first node does it.
    fn look_at_script(&self, record: &Job) {
        let lost = !record.script_on.is_empty() && !record.nodes.contains(&record.script_on);
        let first = record.nodes.first() == Some(&self.shared.node);
        if !lost || !first || record.state != JobState::Running {
            return;
        }
        let job = &record.id;
        tracing::warn!(%job, "job {job} has lost node {}, on which its script ran", record.script_on);
        if record.may_requeue {
            // Full is for now.
            let (job, run) = (job.clone(), record.restarts);
            let _ = self.shared.requeue.try_send(SavedRun { job, run });
            return;
        }
        let action = Action::Kill {
            job: job.clone(),
            step: None,
        };
        let outcome = self.manager.act(&action);
        tracing::warn!(%job, "job {job} may not be requeued: {}", outcome.words());
    }

    /// Removes what jobs have left that are over, some time after their end.
    fn sweep(&mut self) {
        let (jobs, manager) = (self.jobs.clone(), self.manager.clone());
        let is_over = |job: &JobId| jobs.is_over(job, &*manager);
        self.sweeper.sweep(&self.shared, is_over, seconds());
    }
}

/// By this steps that start while the mover is away see that it was here.
pub fn alive(folders: &Path) {
    let file = File::create(folders.join(MOVER_ALIVE));
    // A disk that is full or read-only is told of by whoever needs it.
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Those of some nodes that are not among these.
fn others(all: &[String], these: &[String]) -> Vec<String> {
    let others = all.iter().filter(|node| !these.contains(node));
    others.cloned().collect()
}
