//! PBS as the workload manager of a mom's host. Nothing is done to pbs_server, of which root on this host is no manager: what there is
//! is what the hook in this host's mom tells, and what is to be done waits here until it comes again. Only about jobs that mom has not
//! pbs_server may be asked, where that is wanted.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::peers::ManagerAnswer;
use gpuos_core::step::StepId;
use gpuos_core::wire::{HostOrder, MomJob, MomOrders, MomReport, MomVnodes};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Allocation, Job, JobState, Unplaced};
use gpuos_workload::node::NodeRecord;
use gpuos_workload::numbering::GpuNumbering;
use gpuos_workload::{Addresses, Holder, Silent, Told, Topology, WorkloadManager};

use super::FOLDER;
use super::by_server::by_server;
use crate::Machine;

/// What mom told is gone by for so long: its hook comes every 5 s.
const SILENT: Duration = Duration::from_secs(60);
/// How long it is waited for pbs_server to show what was changed: the hook has to come twice.
const SHOWS: Duration = Duration::from_secs(13);
/// So often pbs_server is asked about a job for another node, and so long after one another.
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_secs(2);
/// With a vnode offline, pbs_server is looked at so often.
const LOOK: Duration = Duration::from_secs(15);
/// How long the answer to a hook waits for what follows from what it tells.
const SETTLE: Duration = Duration::from_millis(400);

/// A host of PBS.
pub struct Mom {
    node: String,
    state: Mutex<State>,
    changed: Condvar,
    /// By which pbs_server is asked about jobs that mom has not; `None`: it is not asked, and of a job its part on this host counts.
    server: Option<Arc<dyn Machine + Send + Sync>>,
}

#[derive(Default)]
struct State {
    /// When mom told all its jobs last.
    heard: Option<Instant>,
    /// UUIDs of the GPUs, in the order of their vnodes.
    gpus: Vec<String>,
    /// GPUs that are divided and have a vnode.
    pool: Vec<NvmlIndex>,
    /// Another one gives the GPUs, and what has to be done is only said.
    advise: bool,
    jobs: BTreeMap<JobId, MomJob>,
    /// Jobs of which a program was launched since all were told, and whether one list came since then without them: it may have been made before.
    fresh: BTreeMap<JobId, bool>,
    /// The vnodes as pbs_server had them, and when.
    vnodes: Option<(MomVnodes, Instant)>,
    /// The state of the GPUs as it has to be; `None`: nobody has said yet.
    wanted: Option<ExtraPart>,
    /// The same of the whole host.
    drain: Option<Option<String>>,
    /// Jobs that have to run again or to end, and how often mom was told.
    rerun: BTreeMap<JobId, u32>,
    end: BTreeMap<JobId, u32>,
    /// Somebody waits for pbs_server to show something.
    awaited: u32,
}

impl Mom {
    /// The host, by the name of this node.
    pub fn new(node: &str) -> Mom {
        Mom {
            node: node.into(),
            state: Mutex::default(),
            changed: Condvar::new(),
            server: None,
        }
    }

    /// The same for a daemon to which jobs have all their hosts, and live on while they wait: what mom has not pbs_server is asked about, by qstat, as
    /// anybody may.
    pub fn with_server(node: &str, machine: Arc<dyn Machine + Send + Sync>) -> Mom {
        Mom {
            server: Some(machine),
            ..Mom::new(node)
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something shown by pbs_server.
    fn show(&self, what: &str, change: impl FnOnce(&mut State)) -> Outcome {
        let mut state = self.lock();
        change(&mut state);
        state.awaited += 1;
        let waits = |state: &mut State| !state.is_shown();
        let waited = self.changed.wait_timeout_while(state, SHOWS, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.awaited -= 1;
        match state.is_shown() {
            true => Outcome::Done(format!("pbs_server shows {what}")),
            false => Outcome::NoAnswer(state.silence().unwrap_or_else(|| {
                format!(
                    "pbs_server does not show {what} yet: see the logs of pbs_mom and pbs_server"
                )
            })),
        }
    }

    /// A job that mom has.
    fn held(&self, state: &State, held: &MomJob) -> Job {
        let mut job = state.job(&self.node, held);
        let hosts = expand(&held.hosts).unwrap_or_default();
        if self.server.is_some() && !hosts.is_empty() {
            job.nodes = hosts;
            job.script_on.clone_from(&held.script_on);
        }
        if self.server.is_some() {
            // Before its end it is saved for a next run: that there may be one has to be known.
            job.may_requeue = held.may_rerun == Some(true);
        }
        job
    }

    fn again(&self, job: &JobId) -> Outcome {
        let mut state = self.lock();
        if let Some(left) = state.left_alone(job) {
            return left;
        }
        state.rerun.entry(job.clone()).or_default();
        self.changed.notify_all();
        Outcome::Done(format!("pbs_mom is told that job {job} has to run again"))
    }

    fn end(&self, job: &JobId) -> Outcome {
        let mut state = self.lock();
        if let Some(left) = state.left_alone(job) {
            return left;
        }
        state.rerun.remove(job);
        state.end.entry(job.clone()).or_default();
        self.changed.notify_all();
        Outcome::Done(format!("pbs_mom is told that job {job} has to end"))
    }
}

impl State {
    /// Why what is known cannot be gone by.
    fn silence(&self) -> Option<String> {
        let missing = "see that the hook of `gpuos pbs install` is in use and that pbs_mom runs";
        match self.heard {
            None => Some(format!(
                "pbs_mom has told nothing yet since gpuosd started; {missing}"
            )),
            Some(at) if at.elapsed() > SILENT => Some(format!(
                "pbs_mom told something last {} s ago; {missing}",
                at.elapsed().as_secs()
            )),
            Some(_) => None,
        }
    }

    /// All GPUs that have a vnode.
    fn all(&self) -> impl Iterator<Item = GresGpu> + use<> {
        (0..self.gpus.len()).filter_map(GresGpu::new)
    }

    /// Vnodes that have to be offline by a state of the GPUs, by their numbers.
    fn out(&self, part: &ExtraPart) -> Vec<GresGpu> {
        let whole = part.out.iter().filter(|gpu| gpu.index() < self.gpus.len());
        let pool = self.pool.iter().filter(|gpu| part.pool_out.contains(gpu));
        let pool = pool.filter_map(|gpu| GresGpu::new(gpu.index()));
        whole.copied().chain(pool).collect()
    }

    fn seen(&self) -> Option<&MomVnodes> {
        self.vnodes.as_ref().map(|(vnodes, _)| vnodes)
    }

    /// Whether pbs_server has the vnodes as they have to be.
    fn is_shown(&self) -> bool {
        let Some(seen) = self.seen() else {
            return false;
        };
        if self.advise {
            // Where another comment stands there is no place for it.
            return seen.whole || seen.drained == self.advice();
        }
        let whole = match &self.drain {
            None => true,
            Some(Some(_)) => seen.whole,
            Some(None) => seen.drained.is_none(),
        };
        let gpus = self.wanted.as_ref().is_none_or(|wanted| {
            let out = self.out(wanted);
            let offline = out.iter().all(|gpu| seen.offline.contains(gpu));
            offline && seen.own.iter().all(|gpu| out.contains(gpu))
        });
        whole && gpus
    }

    /// Why nothing is done to a job.
    fn left_alone(&self, job: &JobId) -> Option<Outcome> {
        let why = if self.advise {
            format!("gpuos only advises on this host: job {job} goes on")
        } else if !self.jobs.contains_key(job) {
            format!("job {job} is not here any more")
        } else {
            return None;
        };
        Some(Outcome::Nothing(why))
    }

    /// What an administrator is told where gpuos only advises, if something is to be done.
    fn advice(&self) -> Option<String> {
        let out = self.wanted.as_ref().map(|part| self.out(part));
        let out: Vec<String> = out.iter().flatten().map(GresGpu::to_string).collect();
        let what = match (&self.drain, &out[..]) {
            (Some(Some(_)), _) => "this host".to_owned(),
            (_, []) => return None,
            (_, [gpu]) => format!("GPU {gpu}"),
            (_, gpus) => format!("GPUs {}", gpus.join(",")),
        };
        Some(format!(
            "{what} should get no more jobs; gpuos health there says why"
        ))
    }

    fn looks(&self) -> bool {
        let Some((seen, at)) = &self.vnodes else {
            return true;
        };
        let out = !seen.own.is_empty() || seen.drained.is_some();
        let wanted = self
            .wanted
            .as_ref()
            .is_some_and(|part| !self.out(part).is_empty());
        !self.is_shown() || (out || wanted) && at.elapsed() > LOOK
    }

    fn orders(&self) -> MomOrders {
        if self.advise {
            let known = self.wanted.is_some() || self.drain.is_some();
            let host = match self.advice() {
                _ if !known => HostOrder::Leave,
                None => HostOrder::Online,
                Some(advice) => HostOrder::Offline(advice),
            };
            return MomOrders {
                host,
                look: self.looks(),
                ..MomOrders::default()
            };
        }
        MomOrders {
            out: self.wanted.as_ref().map(|part| self.out(part)),
            host: match &self.drain {
                None => HostOrder::Leave,
                Some(None) => HostOrder::Online,
                Some(Some(reason)) => HostOrder::Offline(reason.clone()),
            },
            look: self.looks(),
            rerun: self.rerun.clone(),
            end: self.end.clone(),
        }
    }

    /// What is published of the GPUs by the state of their vnodes. What PBS has no place for counts as published.
    fn published(&self, seen: &MomVnodes) -> ExtraPart {
        let mut part = self.wanted.clone().unwrap_or_default();
        if self.advise {
            let shown = self.is_shown();
            part.out.retain(|_| shown);
            return part;
        }
        let wanted = self.out(&part);
        let out = |gpu: &GresGpu| match wanted.contains(gpu) {
            true => seen.offline.contains(gpu),
            false => seen.own.contains(gpu),
        };
        part.out = self.all().filter(out).collect();
        let pool = self.pool.iter();
        let pool = pool.filter(|gpu| GresGpu::new(gpu.index()).as_ref().is_some_and(out));
        part.pool_out = pool.copied().collect();
        part
    }

    fn take(&mut self, report: &MomReport) -> bool {
        let before = std::mem::take(&mut self.jobs);
        match report.all {
            true => {
                let still = report.also.iter();
                let still = still.filter_map(|job| Some((job.clone(), before.get(job)?.clone())));
                self.jobs.extend(still);
            }
            false => self.jobs.clone_from(&before),
        }
        for job in &report.jobs {
            let mut job = job.clone();
            // Where pbs_server was not asked both are what they were.
            let known = before.get(&job.job).filter(|known| known.run == job.run);
            job.is_held = job.is_held.or(known.and_then(|known| known.is_held));
            job.may_rerun = job.may_rerun.or(known.and_then(|known| known.may_rerun));
            self.jobs.insert(job.job.clone(), job);
        }
        match report.all {
            true => self.keep_fresh(&before, report.asked),
            false => {
                let launched = report.jobs.iter().map(|job| (job.job.clone(), false));
                self.fresh.extend(launched);
            }
        }
        // A job that runs again is another one for what was to be done with it.
        let now = &self.jobs;
        let same = |job: &JobId| {
            let run = |jobs: &BTreeMap<JobId, MomJob>| jobs.get(job).map(|held| held.run);
            run(now).is_some() && run(now) == run(&before)
        };
        self.rerun.retain(|job, _| same(job));
        self.end.retain(|job, _| same(job));
        if let Some(vnodes) = &report.vnodes {
            self.vnodes = Some((vnodes.clone(), Instant::now()));
        }
        if !report.all {
            return false;
        }
        let renumbered = self.heard.is_none() || self.gpus != report.gpus;
        self.gpus.clone_from(&report.gpus);
        self.pool.clone_from(&report.pool);
        self.advise = report.advise;
        self.heard = Some(Instant::now());
        renumbered
    }

    /// Keeps jobs that were launched while this list was made, which has them not or as they were. `again`: it is the list of before once more.
    fn keep_fresh(&mut self, before: &BTreeMap<JobId, MomJob>, again: bool) {
        let jobs = &mut self.jobs;
        self.fresh.retain(|job, lacked| {
            let Some(launched) = before.get(job) else {
                return false;
            };
            if jobs.get(job).is_some_and(|told| told.run >= launched.run) {
                return false;
            }
            if *lacked && !again {
                return false;
            }
            *lacked = true;
            jobs.insert(job.clone(), launched.clone());
            true
        });
    }

    fn job(&self, node: &str, held: &MomJob) -> Job {
        let set = |gpus: &[GresGpu]| {
            let numbers = gpus.iter().map(|gpu| gpu.index());
            numbers.fold(GpuSet::EMPTY, GpuSet::with)
        };
        Job {
            id: held.job.clone(),
            user: held.user.clone(),
            uid: held.uid,
            state: JobState::Running,
            state_word: "R".into(),
            nodes: vec![node.into()],
            script_on: node.into(),
            // The hook asks pbs_server before it has a job run again.
            may_requeue: true,
            // PBS's first run has the number 1.
            restarts: u32::try_from(held.run.saturating_sub(1)).unwrap_or(u32::MAX),
            ends_in_s: held.ends_in_s,
            // It goes on until it is run again: nothing but that takes it out of the hands of mom.
            preempted: held.is_held == Some(true) && held.may_rerun == Some(true),
            allocations: vec![Allocation {
                nodes: vec![node.into()],
                gpus: set(&held.gpus),
                shared: set(&held.shared),
                memory_mib: held.memory_mib,
                ..Allocation::default()
            }],
            unplaced: held.slices.as_ref().map(|slices| Unplaced {
                request: slices.request.clone(),
                gpus: slices.gpus.iter().copied().collect(),
                compute: slices.compute,
                memory: slices.memory,
            }),
            ..Job::default()
        }
    }
}

impl WorkloadManager for Mom {
    fn act(&self, action: &Action) -> Outcome {
        match action {
            Action::Publish(part) => {
                let what = "which vnodes of GPUs are offline";
                self.show(what, |state| state.wanted = Some(part.clone()))
            }
            Action::Drain { reason } => {
                self.show("that all vnodes of this host are offline", |state| {
                    state.drain = Some(Some(reason.clone()));
                })
            }
            Action::Undrain { .. } => self.show("that the host is online again", |state| {
                state.drain = Some(None);
            }),
            Action::Requeue { job } => self.again(job),
            Action::Release { job, .. } | Action::LetGo { job } => {
                match self.lock().jobs.contains_key(job) {
                    true => Outcome::NotYet(format!("job {job} is still here")),
                    false => Outcome::Nothing(format!("PBS starts job {job} by itself")),
                }
            }
            Action::Kill { job, .. } => self.end(job),
            Action::Hold { job, .. } => Outcome::Refused(format!(
                "job {job} cannot be held: root on this host is no manager of pbs_server"
            )),
        }
    }

    fn node(&self) -> Result<NodeRecord, Outcome> {
        let state = self.lock();
        if let Some(why) = state.silence() {
            return Err(Outcome::NoAnswer(why));
        }
        let Some(seen) = state.seen() else {
            let why = "pbs_mom has not told yet how pbs_server has the vnodes of this host";
            return Err(Outcome::NoAnswer(why.into()));
        };
        let reason = state.drain.clone().flatten();
        let drained = match state.advise {
            true => reason.clone().filter(|_| state.is_shown()),
            false => seen.drained.clone(),
        };
        Ok(NodeRecord {
            name: self.node.clone(),
            drain: drained.map(|told| reason.unwrap_or(told)),
            gpus: vec![(String::new(), state.gpus.len())],
            published: state.published(seen),
            ..NodeRecord::default()
        })
    }

    fn jobs(&self) -> Result<Vec<Job>, Outcome> {
        let state = self.lock();
        match state.silence() {
            Some(why) => Err(Outcome::NoAnswer(why)),
            None => Ok(state
                .jobs
                .values()
                .map(|held| self.held(&state, held))
                .collect()),
        }
    }

    fn job(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let silence = {
            let state = self.lock();
            if let Some(held) = state.jobs.get(job) {
                return Ok(Some(self.held(&state, held)));
            }
            state.silence()
        };
        match (silence, &self.server) {
            (Some(why), _) => Err(Outcome::NoAnswer(why)),
            (None, Some(machine)) => match by_server(&**machine, job)? {
                // It has just come, or goes.
                Some(record) if record.is_running() && record.nodes.contains(&self.node) => Err(
                    Outcome::NoAnswer(format!("pbs_mom has not told of job {job} yet")),
                ),
                record => Ok(record),
            },
            (None, None) => Ok(None),
        }
    }

    fn job_anywhere(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let Some(machine) = &self.server else {
            return self.job(job);
        };
        let mut tried = 1;
        loop {
            match by_server(&**machine, job) {
                // Who asks has a program that waits, and does not ask again.
                Err(_) if tried < TRIES => std::thread::sleep(AGAIN),
                answer => return answer,
            }
            tried += 1;
        }
    }

    fn holders(&self, job: &JobId) -> Result<Vec<Holder>, Outcome> {
        let state = self.lock();
        let former = state.jobs.get(job).map(|held| held.former.clone());
        // Which of them are down pbs_server alone knows: who is asked and does not answer is.
        let nodes = expand(&former.unwrap_or_default()).unwrap_or_default();
        let holder = |node| Holder {
            node,
            is_down: false,
        };
        Ok(nodes.into_iter().map(holder).collect())
    }

    fn step_nodes(&self, _step: &StepId) -> Result<Option<Vec<String>>, Outcome> {
        Ok(None)
    }

    fn own_user(&self) -> Option<u32> {
        None
    }

    fn config_folder(&self) -> Option<PathBuf> {
        self.local_folder()
    }

    fn local_folder(&self) -> Option<PathBuf> {
        Some(Path::new(FOLDER).to_path_buf())
    }

    fn numbering(&self) -> Result<GpuNumbering, String> {
        let state = self.lock();
        match state.heard {
            // A guess would take a healthy GPU out of service where another has its number.
            None => Err(state.silence().unwrap_or_default()),
            Some(_) => Ok(GpuNumbering::of_uuids(&state.gpus)),
        }
    }

    fn addresses(&self) -> Result<Arc<dyn Addresses>, String> {
        Ok(Arc::new(Names))
    }

    fn topology(&self, nodes: &[String]) -> Result<Topology, String> {
        Ok(Topology {
            nodes: nodes.to_vec(),
            ..Topology::default()
        })
    }

    fn ask_daemon(&self, _address: SocketAddr, _limit: Duration) -> ManagerAnswer {
        ManagerAnswer::Gone
    }

    fn set_down(&self, silent: &Silent) -> Outcome {
        Outcome::Refused(format!("{} is pbs_server's to find silent", silent.node))
    }

    fn is_set_down(&self) -> Result<bool, Outcome> {
        Ok(false)
    }

    fn resume(&self) -> Outcome {
        Outcome::Nothing("gpuos sets no host of PBS down".into())
    }

    fn users_requeue(&self) -> bool {
        // qrerun is for operators.
        false
    }

    fn daemon(&self) -> &'static str {
        "pbs_mom"
    }

    fn advises(&self) -> bool {
        self.lock().advise
    }

    fn told(&self, report: &MomReport) -> Option<Told> {
        let mut state = self.lock();
        let awaited = state.awaited > 0 && report.vnodes.is_some();
        let renumbered = state.take(report);
        self.changed.notify_all();
        if awaited && state.is_shown() {
            // Jobs are requeued once a GPU is known to be out, and this hook does not come again for some seconds.
            let waits = |state: &mut State| state.rerun.is_empty() && state.end.is_empty();
            let waited = self.changed.wait_timeout_while(state, SETTLE, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let orders = state.orders();
        if report.asked {
            // The last answer to this event: what it says is done.
            let state = &mut *state;
            for told in state.rerun.values_mut().chain(state.end.values_mut()) {
                *told = told.saturating_add(1);
            }
        }
        Some(Told { orders, renumbered })
    }
}

/// Hosts of PBS have one name.
struct Names;

impl Addresses for Names {
    fn of(&self, node: &str) -> (String, u16) {
        (node.into(), 0)
    }

    fn munge_socket(&self) -> Option<PathBuf> {
        None
    }
}

#[cfg(test)]
#[path = "mom_tests.rs"]
mod tests;
