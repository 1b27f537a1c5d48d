//! Who may ask for what.
use super::Request;

/// Who is on the other end of a connection, by the kernel's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Process, as it was when it connected; 0: it is outside of this one's PID namespace.
    pub pid: u32,
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Everybody may.
    Everybody,
    /// Root only.
    Root,
}

/// What a request needs. A whole match, so that a new request cannot be forgotten.
pub fn needs(request: &Request) -> Right {
    match request {
        Request::Hello { .. } | Request::Status | Request::Watch | Request::Mig => Right::Everybody,
        // Reports come from slurmstepd, which is root's.
        Request::StepStart { .. } | Request::StepEnd { .. } => Right::Root,
        Request::Admin { .. } | Request::Reload | Request::Audit { .. } => Right::Root,
    }
}

/// Whether `peer` may make a request. The daemon's own user counts as root, so that one that runs as
/// an ordinary user, as in a test, can be told what to do by that user.
pub fn may(peer: Peer, daemon_uid: u32, request: &Request) -> bool {
    match needs(request) {
        Right::Everybody => true,
        Right::Root => peer.uid == 0 || peer.uid == daemon_uid,
    }
}
