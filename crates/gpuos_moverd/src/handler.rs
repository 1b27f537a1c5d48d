//! What clients on this node ask.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    CHECKPOINT_VARIABLE, CheckpointFigures, CheckpointForm, CheckpointJob, CheckpointKept,
    CheckpointRefused, CheckpointRequest, Code, Happening, MAX_REPLY, MomReport, MoverSettings,
    Peer, Reply, Request, encode, is_root,
};
use gpuos_host::socket::{Need, RequestHandler};
use gpuos_mover::program::Reason;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::{Error, Result as Stored};
use gpuos_store::inventory::Forms;
use gpuos_store::job::JobStore;
use gpuos_store::owned::{Owned, Owner};
use gpuos_store::verify::verify;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::Job;

use crate::audit::removed;
use crate::event::Event;
use crate::job::Shared;
use crate::jobs::{Jobs, Standing, locked};
use crate::launch::Launch;
use crate::level3::Unwanted;
use crate::registrar::{Ask, PATIENCE};

/// Of a list that is too long for an answer so many are told.
const FEW: usize = 8;

/// Answers the requests of clients for the mover.
pub struct Handler {
    /// What all jobs of this node share.
    pub shared: Arc<Shared>,
    /// Those that are served.
    pub jobs: Arc<Jobs>,
    /// To the registrar.
    pub registrar: SyncSender<Ask>,
    /// Users for whom something is being verified.
    pub verifying: Mutex<BTreeSet<u32>>,
    /// What the mover runs with, and what was wrong with its store when it was opened.
    pub settings: MoverSettings,
}

/// The one verification that runs for a user.
struct Turn<'a> {
    all: &'a Mutex<BTreeSet<u32>>,
    user: u32,
}

impl<'a> Turn<'a> {
    fn take(all: &'a Mutex<BTreeSet<u32>>, user: u32) -> Option<Turn<'a>> {
        locked(all).insert(user).then_some(Turn { all, user })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        locked(self.all).remove(&self.user);
    }
}

impl RequestHandler for Handler {
    fn who(&self) -> (String, String) {
        (crate::RELEASE.into(), self.shared.node.clone())
    }

    fn ask(&self, peer: Peer, request: Request) -> Reply {
        let what = match request {
            Request::Checkpoint { what } => what,
            Request::Mom { report } => return self.told(&report),
            _ => {
                let why = "gpuos_mover knows of checkpoints only: ask gpuosd";
                return refused(Code::Malformed, why.into());
            }
        };
        match what {
            CheckpointRequest::Step {
                id,
                uid,
                gid,
                asked,
                start,
            } => {
                let launch = Launch {
                    step: start.map(|_| id.step),
                    start: start.unwrap_or_default(),
                };
                self.step((id.job, launch), (uid, gid), asked)
            }
            CheckpointRequest::List { job } => self.list(peer, job.as_ref()),
            CheckpointRequest::Report { since, job } => self.report(peer, since, job.as_ref()),
            CheckpointRequest::Figures => self.figures(),
            CheckpointRequest::Now { job } => audited("now", peer, &job, self.now(&job)),
            CheckpointRequest::Choose { job, number } => {
                audited("restart", peer, &job, self.choose(&job, number))
            }
            CheckpointRequest::Verify { job } => {
                audited("verify", peer, &job, self.verify(peer, &job))
            }
            CheckpointRequest::Requeue { job } => {
                audited("requeue", peer, &job, self.requeue(peer, &job))
            }
            CheckpointRequest::Prune { job, anew } => {
                audited("prune", peer, &job, self.prune(peer, &job, anew))
            }
        }
    }

    fn user_of(&self, job: &JobId) -> Option<u32> {
        let served = self.jobs.get(job).map(|served| served.uid);
        served.or_else(|| Some(self.shared.store.existing(job).ok()?.uid()))
    }

    fn need(&self) -> Arc<Need> {
        Arc::default()
    }

    /// Nothing is told to watchers; the channel ends at once.
    fn watch(&self, _: Peer) -> Receiver<Happening> {
        sync_channel(1).1
    }
}

impl Handler {
    /// The daemon of the workload manager tells which jobs are here. What follows the registrar sees when it looks next.
    fn told(&self, report: &MomReport) -> Reply {
        match self.shared.manager.told(report) {
            Some(told) => Reply::Mom {
                orders: Box::new(told.orders),
            },
            None => {
                let why = "this gpuos_mover asks Slurm for jobs: start it with --workload pbs or --workload gridengine";
                refused(Code::Failed, why.into())
            }
        }
    }

    fn step(&self, (job, launch): (JobId, Launch), (uid, gid): (u32, u32), asked: String) -> Reply {
        let (reply, answer) = sync_channel(1);
        let ask = Ask::Step {
            job,
            launch,
            uid,
            gid,
            asked,
            reply,
        };
        if self.registrar.try_send(ask).is_err() {
            return refused(Code::Busy, "gpuos_mover is busy".into());
        }
        let mut environment = BTreeMap::new();
        let mut notes = Vec::new();
        match answer.recv_timeout(PATIENCE) {
            Ok(Ok(folder)) => {
                let folder = folder.to_string_lossy().into_owned();
                environment.insert(CHECKPOINT_VARIABLE.into(), folder);
            }
            Ok(Err(why)) => notes.push(format!("checkpoints are not made on this node: {why}")),
            // What was asked is still done; the step may have its program wait for that.
            Err(_) => {
                let why = "gpuos_mover did not answer in time; see its log";
                return refused(Code::Busy, why.into());
            }
        }
        Reply::Prepared {
            notes,
            environment,
            failed: None,
        }
    }

    fn list(&self, peer: Peer, only: Option<&JobId>) -> Reply {
        let own = rustix::process::getuid().as_raw();
        let all = is_root(peer.uid, own);
        // Nothing is read of what is not told: everybody may ask, as often as the socket lets him.
        let is_told =
            |job: &JobId, uid: u32| (all || uid == peer.uid) && only.is_none_or(|only| only == job);
        let mut jobs: BTreeMap<JobId, CheckpointJob> = BTreeMap::new();
        for (job, served) in self.jobs.all() {
            if is_told(&job, served.uid) {
                jobs.insert(job, locked(&served.status).clone());
            }
        }
        for job in self.shared.store.jobs().unwrap_or_default() {
            let Ok(store) = self.shared.store.existing(&job) else {
                continue;
            };
            if !is_told(&job, store.uid()) {
                continue;
            }
            let told = jobs.entry(job.clone()).or_insert_with(|| CheckpointJob {
                job,
                uid: store.uid(),
                ..CheckpointJob::default()
            });
            match kept(&store) {
                Ok(checkpoints) => told.checkpoints = with_times(checkpoints, &told.checkpoints),
                Err(error) => told.faults.push(error.to_string()),
            }
        }
        Reply::Checkpoints {
            jobs: fitting(jobs.into_values().collect()),
        }
    }

    /// What was measured of restarts and drills: a user is told of his own jobs'.
    fn report(&self, peer: Peer, since: u64, only: Option<&JobId>) -> Reply {
        let own = rustix::process::getuid().as_raw();
        let all = is_root(peer.uid, own);
        let recoveries = self.shared.journal.told(MAX_REPLY / 2, |one| {
            let told = all || one.uid == peer.uid;
            told && one.time >= since && only.is_none_or(|only| *only == one.job)
        });
        Reply::CheckpointReport { recoveries }
    }

    fn figures(&self) -> Reply {
        let (made, failed, restored) = self.shared.totals.read();
        let usage = self.shared.store.usage_of_jobs().ok();
        let (kept, kept_more) = match &usage {
            Some(usage) => {
                let (jobs, more) = self.shared.ended.named(usage);
                (Some(jobs), more)
            }
            None => (None, false),
        };
        let space = self.shared.store.space().ok();
        let jobs = self.jobs.all().into_iter().map(|(_, served)| {
            let told = locked(&served.status).clone();
            // An answer has a limit, and a job thousands of nodes.
            CheckpointJob {
                nodes: Vec::new(),
                ranks: Vec::new(),
                making: None,
                checkpoints: Vec::new(),
                failures: Vec::new(),
                ..told
            }
        });
        let figures = CheckpointFigures {
            made,
            failed,
            restored,
            stored: usage
                .as_ref()
                .map(|usage| usage.iter().map(|one| one.bytes).sum()),
            space: space.map(|space| (space.free, space.total)),
            kept,
            kept_more,
            recoveries: Some(self.shared.journal.counted()),
            settings: Some(self.settings()),
            jobs: jobs.collect(),
        };
        Reply::CheckpointFigures {
            figures: Box::new(figures),
        }
    }

    /// What the mover runs with, and what does not work now.
    fn settings(&self) -> MoverSettings {
        let mut settings = self.settings.clone();
        let level3 = self.shared.level3.as_ref();
        let off = level3.and_then(|level3| level3.why_off());
        settings
            .troubles
            .extend(off.map(|why| format!("checkpoints are not drained: {why}")));
        settings
    }

    fn now(&self, job: &JobId) -> Reply {
        let Some(served) = self.jobs.get(job) else {
            let why = format!(
                "job {job} does not run here with checkpoints: ask on one of its nodes, or submit it with --gpuos-checkpoint"
            );
            return refused(Code::Failed, why);
        };
        match served.to.try_send(Event::Want(Reason::Asked)) {
            Ok(()) => Reply::Done {
                message: format!(
                    "a checkpoint of job {job} is wanted; it begins no sooner than the site's least-seconds after the one before"
                ),
            },
            Err(_) => refused(
                Code::Busy,
                "gpuos_mover has much to do for this job: ask again in a moment".into(),
            ),
        }
    }

    /// Has a job run again that may. Where users can ask the workload manager themselves, it knows who may.
    fn requeue(&self, peer: Peer, job: &JobId) -> Reply {
        let manager = &self.shared.manager;
        let failed = |why: String| refused(Code::Failed, why);
        if manager.users_requeue() {
            return failed(
                "ask the workload manager itself for that: with Grid Engine, qmod -rj".into(),
            );
        }
        let record = match manager.job_anywhere(job) {
            Ok(record) => record,
            Err(outcome) => return failed(outcome.words().into()),
        };
        let here = |record: &Job| record.nodes.contains(&self.shared.node);
        let Some(record) = record.filter(here) else {
            return failed(format!("job {job} does not run on this node"));
        };
        // What is kept under this name may be another's, of before PBS was set up anew.
        let own = rustix::process::getuid().as_raw();
        if !is_root(peer.uid, own) && record.uid != peer.uid {
            return failed(format!("job {job} is another user's"));
        }
        if !record.may_requeue {
            return failed(format!(
                "job {job} may not run again, as its user has said (qsub -r n)"
            ));
        }
        match manager.act(&Action::Requeue { job: job.clone() }) {
            Outcome::Done(message) => Reply::Done { message },
            other => failed(other.words().into()),
        }
    }

    /// Has the next run of a job begin from a checkpoint that is kept here.
    fn choose(&self, job: &JobId, number: u32) -> Reply {
        if !self.shared.manager.counts_runs() {
            let why = "none can be chosen here: this workload manager counts no runs of a job, and each begins from the newest checkpoint";
            return refused(Code::Failed, why.into());
        }
        let Some(served) = self.jobs.get(job) else {
            let why = format!(
                "job {job} does not run here with checkpoints: ask on one of its nodes, or submit it with --gpuos-checkpoint"
            );
            return refused(Code::Failed, why);
        };
        // An earlier job of this id may have been another user's.
        let peer = Peer {
            uid: served.uid,
            pid: 0,
        };
        let kept = self.kept_for(peer, job).and_then(|store| store.kept());
        let kept: Vec<u32> = match kept {
            Ok(kept) => kept.iter().map(|part| part.id.number).collect(),
            Err(error) => return refused(Code::Failed, error.to_string()),
        };
        if !kept.contains(&number) {
            let kept: Vec<String> = kept.iter().map(u32::to_string).collect();
            let why = format!(
                "checkpoint {number} of job {job} is not kept here; these are: {}",
                kept.join(", ")
            );
            return refused(Code::Failed, why);
        }
        let (reply, answer) = sync_channel(1);
        if served.to.try_send(Event::Choose { number, reply }).is_err() {
            let why = "gpuos_mover has much to do for this job: ask again in a moment";
            return refused(Code::Busy, why.into());
        }
        match answer.recv_timeout(PATIENCE) {
            Ok(Ok(())) => Reply::Done {
                message: format!("the next run of job {job} begins from checkpoint {number}"),
            },
            Ok(Err(why)) => refused(Code::Failed, format!("nothing is chosen: {why}")),
            Err(_) => refused(
                Code::Busy,
                "the job's other nodes have not answered: ask again in a moment".into(),
            ),
        }
    }

    /// Reads all that is kept of a job, for which a user has to wait his turn: the disk is everybody's.
    fn verify(&self, peer: Peer, job: &JobId) -> Reply {
        let Some(_turn) = Turn::take(&self.verifying, peer.uid) else {
            let why =
                "another verification for this user runs on this node: wait until it has ended";
            return refused(Code::Busy, why.into());
        };
        let verified = self.kept_for(peer, job).and_then(|store| {
            let mut faults = Vec::new();
            for part in store.kept()? {
                let found = verify(&store, part.id)?;
                faults.extend(found.iter().map(ToString::to_string));
            }
            Ok(CheckpointJob {
                job: job.clone(),
                uid: store.uid(),
                checkpoints: kept(&store)?,
                faults,
                ..CheckpointJob::default()
            })
        });
        match verified {
            Ok(told) => Reply::Checkpoints { jobs: vec![told] },
            Err(error) => refused(Code::Failed, error.to_string()),
        }
    }

    /// What is kept of a job, for who asks: under the id of one that runs here an earlier one, of another user, may lie.
    fn kept_for(&self, peer: Peer, job: &JobId) -> Stored<JobStore<'_, LinuxDisk>> {
        let store = self.shared.store.existing(job)?;
        let own = rustix::process::getuid().as_raw();
        match is_root(peer.uid, own) || store.uid() == peer.uid {
            true => Ok(store),
            false => Err(Error::refused(
                format!("open the checkpoints of job {job}"),
                "they are another user's, of an earlier job of this id",
                "name a job of your own",
            )),
        }
    }

    /// Removes what is kept of a job, at the word of who asks. What the job may come back to stays, unless he says `anew`.
    fn prune(&self, peer: Peer, job: &JobId, anew: bool) -> Reply {
        let node = &self.shared.node;
        let by = Owner::of(peer, rustix::process::getuid().as_raw());
        let standing = self.jobs.standing(job, &*self.shared.manager);
        let stays = match &standing {
            Standing::Over => None,
            Standing::Here => Some(format!(
                "job {job} runs here: its checkpoints are removed when it has ended, or end it first"
            )),
            Standing::Untold(_) => Some(format!(
                "nothing is removed of job {job}: {standing}; ask again when it answers"
            )),
            Standing::Ends(_) => Some(format!(
                "nothing is removed of job {job}: {standing}; ask again in a moment"
            )),
            Standing::Waits(_) | Standing::Elsewhere(..) if anew => None,
            Standing::Waits(_) | Standing::Elsewhere(..) => Some(format!(
                "nothing is removed of job {job}: {standing}; cancel the job first, or say --anew, after which it begins from its start"
            )),
        };
        if let Some(why) = stays {
            return refused(Code::Failed, why);
        }
        let owned = self.shared.store.owned(job, by);
        let gone = owned.and_then(|owned| owned.map(Owned::remove).transpose());
        // Later, by another thread: the file system may hang, and the job may run elsewhere.
        if let (Some(level3), Ok(_)) = (&self.shared.level3, &gone) {
            let job = job.clone();
            level3.remove(Unwanted {
                job,
                by,
                anew,
                asked_s: crate::clock::seconds(),
            });
        }
        let message = match gone {
            Ok(Some(uid)) => {
                let why = format!("user {} has asked for that; {standing}", peer.uid);
                removed(job, uid, &why);
                // The command shows the answers of several nodes one below the other.
                let gone = format!("{node}: what was kept of job {job} is removed");
                match (standing, uid) {
                    (Standing::Over, _) | (_, None) => gone,
                    (_, uid) => self.forgotten(job, uid, &gone),
                }
            }
            Ok(None) => {
                let nothing = format!("{node}: nothing was kept of job {job}");
                // It was removed while the job had ended, when slurmctld lets nobody change its record.
                match standing {
                    Standing::Waits(_) if anew => self.forgotten(job, by.uid(), &nothing),
                    _ => nothing,
                }
            }
            Err(error) => return refused(Code::Failed, error.to_string()),
        };
        Reply::Done { message }
    }

    /// What was kept of a job that may come back is removed: its record may not send it to look for that.
    fn forgotten(&self, job: &JobId, uid: Option<u32>, gone: &str) -> String {
        match self.shared.manager.forget_checkpoints(job, uid) {
            Outcome::Done(_) | Outcome::Nothing(_) => {
                format!("{gone}; it begins from its start where no other node keeps any of it")
            }
            // An earlier job had its number.
            Outcome::Refused(why) => format!("{gone}; {why}"),
            other => format!(
                "{gone}, but its record still says that a checkpoint was made ({}): say it again, or \
                 the job is told that its checkpoint is not found",
                other.words()
            ),
        }
    }
}

/// The answer, which the log has, too.
fn audited(what: &'static str, peer: Peer, job: &JobId, reply: Reply) -> Reply {
    let outcome = match &reply {
        Reply::Done { message } | Reply::Refused { message, .. } => message,
        Reply::Checkpoints { jobs } if jobs.iter().any(|job| !job.faults.is_empty()) => {
            "something does not hold"
        }
        _ => "all of it holds",
    };
    crate::audit::asked(what, peer.uid, job, outcome);
    reply
}

/// The same with less of each job, where all of it would not fit into an answer: no job is left out because another has much to tell.
fn fitting(mut jobs: Vec<CheckpointJob>) -> Vec<CheckpointJob> {
    let most = MAX_REPLY / 2 / jobs.len().max(1);
    for job in &mut jobs {
        let length = encode(
            &Reply::Checkpoints {
                jobs: vec![job.clone()],
            },
            most,
        );
        if length.is_err() {
            job.ranks.truncate(FEW);
            job.nodes.truncate(FEW);
            job.failures.truncate(1);
            job.passed_over.truncate(1);
            job.faults.truncate(1);
            let older = job.checkpoints.len().saturating_sub(FEW);
            job.checkpoints.drain(..older);
            if let Some(making) = &mut job.making {
                making.waits_for.truncate(FEW);
            }
        }
    }
    jobs
}

/// What is kept of a job, as clients see it.
fn kept(store: &JobStore<'_, LinuxDisk>) -> Stored<Vec<CheckpointKept>> {
    let kept = store.kept()?.into_iter();
    let told = kept.map(|part| CheckpointKept {
        number: part.id.number,
        nodes: Some(part.nodes.into()),
        ranks: part.ranks.map(u32::from),
        attempt: format!("{:016x}", part.id.attempt),
        committed: part.committed,
        time: part.time,
        files: part.files,
        bytes: part.bytes,
        stored: part.taken,
        form: form(part.forms),
        took_ms: None,
        refused: part.refused.map(|by| CheckpointRefused {
            rank: by.rank.into(),
            node: by.node,
            said: by.said,
        }),
    });
    Ok(told.collect())
}

/// `None`: all of it is kept as it is in files.
fn form(forms: Forms) -> Option<CheckpointForm> {
    let coded = forms.compressed || forms.encrypted > 0;
    coded.then(|| CheckpointForm {
        plain: forms.plain,
        kept: forms.kept,
        compression: forms.compressed.then(|| "zstd".into()),
        encryption: (forms.encrypted > 0).then(|| "AES-256-CTR".into()),
        encrypted: forms.encrypted,
    })
}

/// How long each took, where the job's thread knows.
fn with_times(mut kept: Vec<CheckpointKept>, known: &[CheckpointKept]) -> Vec<CheckpointKept> {
    for part in &mut kept {
        let of = known.iter().find(|known| known.number == part.number);
        part.took_ms = of.and_then(|known| known.took_ms);
    }
    kept
}

/// A refusal.
fn refused(code: Code, message: String) -> Reply {
    Reply::Refused { code, message }
}

/// Whether a folder of root's may be used as it is; what is wrong with it is said.
pub fn is_safe(flag: &str, folder: &Path) -> bool {
    match gpuos_daemon::places::unsafe_to_write(folder) {
        Some(why) => {
            tracing::error!(
                "{flag} {}: {why}; name a folder of root's",
                folder.display()
            );
            false
        }
        None => true,
    }
}
