//! What clients ask is asked of the loop, and what it answers is handed on.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use gpuos_core::wire::{Code, Happening, Peer, Reply, Request};
use gpuos_host::socket;

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
}

/// Answers the requests of clients for the daemon.
#[derive(Debug)]
pub struct SocketHandler {
    /// The node's name.
    pub node: String,
    /// Where the audit log is.
    pub state_dir: PathBuf,
    /// To the loop.
    pub to: Sink<Notice>,
}

impl socket::RequestHandler for SocketHandler {
    fn who(&self) -> (String, String) {
        (RELEASE.into(), self.node.clone())
    }

    fn ask(&self, peer: Peer, request: Request) -> Reply {
        // The file answers for itself.
        if let Request::Audit { lines } = request {
            return match audit::tail(&self.state_dir, lines.min(MOST_LINES) as usize) {
                Ok(lines) => Reply::Audit { lines },
                Err(e) => refused(Code::Failed, format!("the audit log cannot be read: {e}")),
            };
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

    fn watch(&self, peer: Peer) -> Receiver<Happening> {
        let (to, from) = sync_channel(BEHIND);
        // Where the loop does not take it, the sender goes and the watcher is told.
        let _ = self.to.try_send(Notice::Watch(peer, to));
        from
    }
}

/// A refusal.
pub fn refused(code: Code, message: String) -> Reply {
    Reply::Refused { code, message }
}
