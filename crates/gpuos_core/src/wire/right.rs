//! Who may ask for what.
use super::{CheckpointRequest, Request};
use crate::job::JobId;

/// Who is on the other end of a connection, by the kernel's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Process, as it was when it connected; 0: it is outside of this one's PID namespace.
    pub pid: u32,
}

/// What a request needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Right {
    /// Everybody may.
    Everybody,
    /// The user whose job this is, and root.
    Owner(JobId),
    /// Root only.
    Root,
}

/// What a request needs. A whole match, so that a new request cannot be forgotten.
pub fn needs(request: &Request) -> Right {
    match request {
        Request::Hello { .. }
        | Request::Status
        | Request::Watch
        | Request::Mig
        | Request::Memory => Right::Everybody,
        Request::Audit { job: Some(job), .. } => Right::Owner(job.clone()),
        Request::Checkpoint { what } => match what {
            // Nobody is told of jobs of others.
            CheckpointRequest::List { .. } | CheckpointRequest::Report { .. } => Right::Everybody,
            CheckpointRequest::Step { .. } | CheckpointRequest::Figures => Right::Root,
            CheckpointRequest::Now { job }
            | CheckpointRequest::Choose { job, .. }
            | CheckpointRequest::Verify { job }
            | CheckpointRequest::Requeue { job }
            | CheckpointRequest::Prune { job, .. } => Right::Owner(job.clone()),
        },
        // Reports come from slurmstepd, which is root's.
        Request::StepStart { .. } | Request::StepEnd { .. } => Right::Root,
        // So do those of a pbs_mom.
        Request::Mom { .. } | Request::Confine { .. } => Right::Root,
        Request::Admin { .. } | Request::Reload | Request::Audit { job: None, .. } => Right::Root,
    }
}

/// Whether `peer` may make a request. `user_of` says whose a job is, by the word of root or of the workload manager; a job of which
/// it knows nothing is nobody's, and root's alone to ask about.
pub fn may(
    peer: Peer,
    daemon_uid: u32,
    request: &Request,
    user_of: impl FnOnce(&JobId) -> Option<u32>,
) -> bool {
    match needs(request) {
        Right::Everybody => true,
        Right::Owner(_) | Right::Root if is_root(peer.uid, daemon_uid) => true,
        Right::Owner(job) => user_of(&job) == Some(peer.uid),
        Right::Root => false,
    }
}

/// Whether a user is root for the daemon. The daemon's own user counts as root, so that one that runs as an ordinary user, as in
/// a test, can be told what to do by that user.
pub fn is_root(uid: u32, daemon_uid: u32) -> bool {
    uid == 0 || uid == daemon_uid
}

/// What somebody is told who has not the right. It is the same for a job of others and for one that there is not: nobody learns by it
/// which jobs there are.
pub fn refusal(request: &Request) -> &'static str {
    match needs(request) {
        Right::Owner(_) => "only root and the user whose job it is may do that",
        Right::Everybody | Right::Root => "only root may do that",
    }
}
