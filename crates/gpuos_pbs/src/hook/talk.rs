//! What daemons of a mom's host are told of an event, and what they say.

use gpuos_core::wire::{
    Code, Lines, MAX_REPLY, MAX_REQUEST, PROTOCOL, Reply, Request, decode, encode, root_socket,
};

/// How long gpuosd is waited for where mom tells what it has, in milliseconds, and how long a start waits for a daemon to take what nobody
/// waits for.
const ANSWERS: u64 = 1_000;
pub(super) const TAKES: u64 = 300;

/// A daemon of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Daemon {
    /// gpuosd.
    Gpuosd,
    /// gpuosd, about the control group of a program.
    Groups,
    /// gpuos_mover.
    Mover,
}

/// Lines for a daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Talk {
    /// Which.
    pub daemon: Daemon,
    /// Its socket.
    pub socket: String,
    /// The lines.
    pub lines: Vec<u8>,
    /// How many lines of it are waited for; 0: nothing depends on what it says.
    pub answers: usize,
    /// How long the talk may take, in milliseconds.
    pub patience_ms: u64,
    /// How long it is begun anew where the daemon is away, or goes away before it has answered, in milliseconds.
    pub absence_ms: u64,
}

impl Talk {
    /// A talk that begins with a greeting; each request has an answer. `None`: a request is longer than a daemon reads.
    pub(super) fn new(daemon: Daemon, socket: &str, requests: &[Request]) -> Option<Talk> {
        let hello = Request::Hello {
            protocol: PROTOCOL,
            client: concat!("gpuos_pbs_hook ", env!("CARGO_PKG_VERSION")).into(),
        };
        let mut lines = encode(&hello, MAX_REQUEST).ok()?;
        for request in requests {
            lines.extend(encode(request, MAX_REQUEST).ok()?);
        }
        // Users cannot fill the queues of these.
        let socket = root_socket(socket);
        Some(Talk {
            daemon,
            socket,
            lines,
            answers: requests.len() + 1,
            patience_ms: ANSWERS,
            absence_ms: 0,
        })
    }

    /// The same where nobody waits for what the daemon says.
    pub(super) fn tell(self) -> Talk {
        Talk {
            answers: 0,
            patience_ms: TAKES,
            ..self
        }
    }

    /// The same with another time.
    pub(super) fn within(self, patience_ms: u64) -> Talk {
        Talk {
            patience_ms,
            ..self
        }
    }

    /// The same over a daemon that is started anew.
    pub(super) fn over(self, absence_ms: u64) -> Talk {
        Talk { absence_ms, ..self }
    }
}

/// What a daemon said: its lines, or why there are none. An empty text: it is not here.
pub type Said = Result<Vec<u8>, String>;

/// What a daemon answered after its greeting, in order. A refusal is an answer.
///
/// # Errors
/// It is of another release, or broke off before the first.
pub(super) fn replies(said: &[u8]) -> Result<Vec<Reply>, String> {
    let mut lines = Lines::new(MAX_REPLY);
    lines.push(said);
    let mut replies = Vec::new();
    while let Some(line) = lines.next_line().map_err(|why| why.to_string())? {
        let reply = decode(&line, MAX_REPLY).map_err(|why| why.to_string())?;
        match reply {
            Reply::Hello { .. } => {}
            Reply::Refused {
                code: Code::Protocol,
                message,
            } => return Err(message),
            reply => replies.push(reply),
        }
    }
    match replies.is_empty() {
        true => Err("it ended before it had answered".into()),
        false => Ok(replies),
    }
}
