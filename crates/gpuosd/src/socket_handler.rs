//! What clients ask is asked of the loop, and what it answers is handed on.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use gpuos_core::job::JobId;
use gpuos_core::wire::{Code, Happening, MomReport, Peer, Reply, Request, is_root};
use gpuos_host::socket::{self, Need};
use gpuos_model::gpu_index::GresGpu;
use gpuos_workload::WorkloadManager;

use crate::confine::Confiner;
use crate::known::Known;
use crate::sink::{NotTaken, Sink};
use crate::{RELEASE, audit};

/// How long an answer may take: that of a reload waits for slurmctld.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events that wait for a watcher; one that is slower is dropped.
const BEHIND: usize = 256;
/// Most lines of the audit log in one answer.
const MOST_LINES: u32 = 500;

/// What clients make it tell the loop.
#[derive(Debug)]
pub enum Notice {
    /// A client asks.
    Asked {
        /// Who.
        peer: Peer,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: SyncSender<Reply>,
    },
    /// A client watches.
    Watch(Peer, SyncSender<Happening>),
    /// The daemon of the workload manager has told what it has by itself; whether GPUs have other numbers now.
    Told(bool),
}

/// Answers the requests of clients for the daemon.
pub struct SocketHandler {
    /// The node's name.
    pub node: String,
    /// Where the audit log is.
    pub state_dir: PathBuf,
    /// The jobs of this node.
    pub known: Known,
    /// What the workload manager's daemon tells goes there at once.
    pub manager: Arc<dyn WorkloadManager>,
    /// Confines programs of jobs; `None`: the workload manager does.
    pub confiner: Option<Arc<Confiner>>,
    /// To the loop.
    pub to: Sink<Notice>,
    /// GPUs have other numbers now, and the loop was not told yet.
    pub renumbered: AtomicBool,
}

impl fmt::Debug for SocketHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketHandler of {}", self.node)
    }
}

impl socket::RequestHandler for SocketHandler {
    fn who(&self) -> (String, String) {
        (RELEASE.into(), self.node.clone())
    }

    fn ask(&self, peer: Peer, request: Request) -> Reply {
        // The file answers for itself.
        if let Request::Audit { lines, job } = request {
            return self.audit(peer, lines, job);
        }
        if let Request::Mom { report } = request {
            return self.told(&report);
        }
        // The program waits, and the loop has no part in it.
        if let Request::Confine {
            job,
            pid,
            started,
            slices,
        } = request
        {
            return self.confine(&job, (pid, started), slices);
        }
        let (reply, answer) = sync_channel(1);
        let asked = Notice::Asked {
            peer,
            request,
            reply,
        };
        match self.to.try_send(asked) {
            Ok(()) => {}
            Err(NotTaken::Full) => {
                return refused(Code::Busy, "gpuosd is busy: ask again in a moment".into());
            }
            Err(NotTaken::Ended) => {
                return refused(Code::Failed, "gpuosd is ending".into());
            }
        }
        let none = |_| {
            refused(
                Code::Failed,
                "gpuosd did not answer in time: see its log".into(),
            )
        };
        answer.recv_timeout(PATIENCE).unwrap_or_else(none)
    }

    fn user_of(&self, job: &JobId) -> Option<u32> {
        // The log is read whatever is known, so that the time that it takes says nothing either.
        let recorded = audit::user_of(&self.state_dir, job);
        self.known.user_of(job).or(recorded.ok().flatten())
    }

    fn need(&self) -> Arc<Need> {
        self.known.need()
    }

    fn watch(&self, peer: Peer) -> Receiver<Happening> {
        let (to, from) = sync_channel(BEHIND);
        // Where the loop does not take it, the sender goes and the watcher is told.
        let _ = self.to.try_send(Notice::Watch(peer, to));
        from
    }
}

impl SocketHandler {
    /// What the daemon of the workload manager is to do. Mom waits for it, and not for the loop, which is told to look.
    fn told(&self, report: &MomReport) -> Reply {
        let Some(told) = self.manager.told(report) else {
            let why = format!(
                "this gpuosd serves {} and hears no pbs_mom: start it with --workload pbs",
                self.manager.daemon()
            );
            return refused(Code::Failed, why);
        };
        if let Some(confiner) = self.confiner.as_ref().filter(|_| told.renumbered) {
            confiner.renumbered();
        }
        let untold = self.renumbered.swap(false, Ordering::AcqRel);
        let renumbered = told.renumbered || untold;
        // Where the loop does not take it, the next report, within seconds, tells it the same.
        if self.to.try_send(Notice::Told(renumbered)).is_err() && renumbered {
            self.renumbered.store(true, Ordering::Release);
        }
        Reply::Mom {
            orders: Box::new(told.orders),
        }
    }

    fn confine(&self, job: &JobId, process: (u32, u64), slices: bool) -> Reply {
        let Some(confiner) = &self.confiner else {
            let why = "this gpuosd confines no jobs: its workload manager does";
            return refused(Code::Failed, why.into());
        };
        // Nothing that comes from outside says which GPUs these are.
        let gpus = match self.manager.devices(job) {
            Ok(gpus) => gpus.iter().filter_map(GresGpu::new).collect::<Vec<_>>(),
            Err(why) => return refused(Code::Failed, why),
        };
        let instances = slices.then(|| self.known.instances_of(job));
        match confiner.confine(job, process, (&gpus, instances.as_ref())) {
            Ok(()) => Reply::Done {
                message: format!("the program is kept to the GPUs of job {job}"),
            },
            Err(why) => refused(Code::Failed, why),
        }
    }

    /// Lines of the audit log, to one who may have them: to a user those about his own job that were his when they were written.
    fn audit(&self, peer: Peer, lines: u32, job: Option<JobId>) -> Reply {
        let most = lines.min(MOST_LINES) as usize;
        let own = rustix::process::getuid().as_raw();
        let user = Some(peer.uid).filter(|uid| !is_root(*uid, own));
        let told = match job {
            Some(job) => audit::of_job(&self.state_dir, most, &job, user),
            None => audit::tail(&self.state_dir, most),
        };
        match told {
            Ok(lines) => Reply::Audit { lines },
            Err(e) => refused(Code::Failed, format!("the audit log cannot be read: {e}")),
        }
    }
}

/// A refusal.
pub fn refused(code: Code, message: String) -> Reply {
    Reply::Refused { code, message }
}
