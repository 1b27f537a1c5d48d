//! The daemon's side: a thread that accepts, and a small one for each connection. None of them can
//! hold up the daemon: all they do with it is to ask a [`RequestHandler`].

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    Code, Happening, Lines, MAX_REPLY, MAX_REQUEST, PROTOCOL, Peer, Reply, Request, WireError,
    decode, encode, may, refusal,
};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::bucket::{Bucket, Rate};
use super::gate::{Gate, Pass};
use super::peer::peer;
use super::{Limits, Need};

/// A connection that says nothing for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// A client that does not take an answer for so long is dropped.
const SLOW: Duration = Duration::from_secs(2);
/// How often a watched connection is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Connections that are taken from the queue of the socket for everybody: those that are refused cost little each, and a
/// flood of them is to take a small part of a core. Who waits in the queue comes in turn.
const ACCEPTS: Rate = Rate {
    each_second: 1000.0,
    at_once: 200.0,
};
/// Stack of a connection's thread: it reads and writes short lines.
const STACK: usize = 256 << 10;

/// What answers requests. Rights, limits and the protocol's first line are checked before.
pub trait RequestHandler: Send + Sync + 'static {
    /// The daemon's release and node, for the first line.
    fn who(&self) -> (String, String);
    /// Answers a request; it may take a few seconds.
    fn ask(&self, peer: Peer, request: Request) -> Reply;
    /// Whose a job is, by the word of root or of the workload manager; `None`: it is not known, and nobody's. A handler that does not
    /// look it up knows no job.
    fn user_of(&self, _job: &JobId) -> Option<u32> {
        None
    }
    /// How many GPUs of this node the running jobs of each user have, by the same word: that many more connections he may have.
    fn need(&self) -> Arc<Need> {
        Arc::default()
    }
    /// What happens from now on. The sender goes when the receiver is too slow.
    fn watch(&self, peer: Peer) -> Receiver<Happening>;
}

/// A running server.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Serves the socket for root, which nobody else can reach: none of its queue is ever a user's.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start_for_root(
        listener: UnixListener,
        handler: Arc<dyn RequestHandler>,
        limits: Limits,
    ) -> io::Result<Server> {
        let daemon_uid = rustix::process::getuid().as_raw();
        let gate = Gate::new(daemon_uid);
        let accept = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => admit(stream, &gate, limits, daemon_uid, &handler),
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        thread::Builder::new()
            .name("accept-root".into())
            .spawn(accept)?;
        Ok(Server)
    }

    /// Serves a socket in threads of its own, until the process ends.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(
        listener: UnixListener,
        handler: Arc<dyn RequestHandler>,
        limits: Limits,
    ) -> io::Result<Server> {
        let daemon_uid = rustix::process::getuid().as_raw();
        let gate = Gate::new(daemon_uid);
        let accept = move || {
            let mut rate = Bucket::full(ACCEPTS, Instant::now());
            for stream in listener.incoming() {
                thread::sleep(rate.take_in_advance(Instant::now()));
                let Ok(stream) = stream else {
                    // Too many open files: they close again.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                admit(stream, &gate, limits, daemon_uid, &handler);
            }
        };
        thread::Builder::new().name("accept".into()).spawn(accept)?;
        Ok(Server)
    }
}

fn admit(
    stream: UnixStream,
    gate: &Gate,
    limits: Limits,
    daemon_uid: u32,
    handler: &Arc<dyn RequestHandler>,
) {
    let set = stream
        .set_write_timeout(Some(SLOW))
        .and_then(|()| stream.set_read_timeout(Some(LOOK)));
    let (Ok(()), Ok(peer)) = (set, peer(&stream)) else {
        return;
    };
    // One open file for both: who is to give his place up is told by it.
    let stream = Arc::new(stream);
    let by = (limits, &*handler.need());
    let passed = gate.enter(peer.uid, by, Some(&stream), Instant::now());
    let mut talk = Talk {
        stream,
        pass: None,
        lines: Lines::new(MAX_REQUEST),
        peer,
        daemon_uid,
        handler: Arc::clone(handler),
        deaf: false,
    };
    match passed {
        Ok(pass) => talk.pass = Some(pass),
        Err(full) => return talk.refuse(Code::Busy, full.sentence()),
    }
    let run = move || {
        // Whatever ends a connection, the client has been told, or is gone.
        let _ = talk.run();
    };
    let _ = thread::Builder::new()
        .name("client".into())
        .stack_size(STACK)
        .spawn(run);
}

struct Talk {
    stream: Arc<UnixStream>,
    /// Its place; `None`: it has none, and is refused.
    pass: Option<Pass>,
    lines: Lines,
    peer: Peer,
    daemon_uid: u32,
    handler: Arc<dyn RequestHandler>,
    /// The client writes and does not read, and may have gone: what it wrote still counts.
    deaf: bool,
}

/// Why a conversation ends.
struct End;

impl Talk {
    fn run(&mut self) -> Result<(), End> {
        self.greet()?;
        loop {
            let request = self.request()?;
            let user_of = |job: &JobId| self.handler.user_of(job);
            if !may(self.peer, self.daemon_uid, &request, user_of) {
                self.refuse(Code::Forbidden, refusal(&request));
                continue;
            }
            match request {
                Request::Watch if !self.pass.as_ref().is_none_or(Pass::watch) => {
                    let why = "too many watchers of this user: close some";
                    self.refuse(Code::Busy, why);
                }
                Request::Watch => return self.watch(),
                Request::Hello { .. } => self.hello()?,
                request => {
                    let reply = self.handler.ask(self.peer, request);
                    self.send(&reply)?;
                }
            }
            // What root's slurmstepd has said counts when it has gone; what a user has left unread by going is not worth his place.
            if self.deaf && self.peer.uid != self.daemon_uid {
                return Err(End);
            }
        }
    }

    fn greet(&mut self) -> Result<(), End> {
        match self.request()? {
            Request::Hello {
                protocol: PROTOCOL, ..
            } => self.hello(),
            Request::Hello { protocol, .. } => {
                let why = format!(
                    "this gpuosd speaks protocol {PROTOCOL}, the client {protocol}: use the gpuos of \
                     the same release"
                );
                self.refuse(Code::Protocol, &why);
                Err(End)
            }
            _ => {
                self.refuse(Code::Protocol, "the first line has to be a hello");
                Err(End)
            }
        }
    }

    fn hello(&mut self) -> Result<(), End> {
        let (release, node) = self.handler.who();
        self.send(&Reply::Hello {
            protocol: PROTOCOL,
            release,
            node,
        })
    }

    /// The next request. What is none is refused: a line that cannot be read does not end the connection,
    /// one that is too long does.
    fn request(&mut self) -> Result<Request, End> {
        loop {
            let line = self.line()?;
            // Whoever asks often is answered late; nothing else waits with him.
            let wait = self.pass.as_ref().map(|pass| pass.line(Instant::now()));
            thread::sleep(wait.unwrap_or_default());
            match decode(&line, MAX_REQUEST) {
                Ok(request) => return Ok(request),
                Err(e) => self.refuse(Code::Malformed, &e.to_string()),
            }
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, End> {
        let deadline = Instant::now() + IDLE;
        let mut bytes = [0; 4096];
        loop {
            match self.lines.next_line() {
                Ok(Some(line)) => return Ok(line),
                Ok(None) => {}
                Err(e) => {
                    let code = match e {
                        WireError::TooLong(_) => Code::TooLong,
                        WireError::Malformed(_) => Code::Malformed,
                    };
                    self.refuse(code, &e.to_string());
                    return Err(End);
                }
            }
            match (&*self.stream).read(&mut bytes) {
                Ok(0) => return Err(End),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(e) if is_wait(&e) && Instant::now() < deadline => {}
                Err(_) => return Err(End),
            }
        }
    }

    /// Tells what happens until the client goes or falls behind.
    fn watch(&mut self) -> Result<(), End> {
        if !matches!(self.lines.next_line(), Ok(None)) {
            return self.no_more();
        }
        let happenings = self.handler.watch(self.peer);
        let mut look = Instant::now() + LOOK;
        loop {
            let wait = look.saturating_duration_since(Instant::now());
            match happenings.recv_timeout(wait) {
                // A look whether somebody watches still.
                Ok(event) if event.what.is_empty() => {}
                Ok(event) => {
                    self.send(&Reply::Happened { event })?;
                    if self.deaf {
                        return Err(End);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.refuse(
                        Code::TooSlow,
                        "events came faster than they were read: connect again and ask for the status",
                    );
                    return Err(End);
                }
            }
            if Instant::now() >= look {
                self.is_watched()?;
                look = Instant::now() + LOOK;
            }
        }
    }

    /// Whether the client of a watched connection is there. It has nothing more to say: who writes all the same is not read on and on, for as
    /// long as something of him is unread the kernel does not say that he has gone.
    fn is_watched(&mut self) -> Result<(), End> {
        let mut bytes = [0; 4096];
        match recv(&*self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(End),
            Ok(_) => self.no_more(),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(End),
        }
    }

    fn no_more(&mut self) -> Result<(), End> {
        let why = "a connection that watches takes no more requests: open another one";
        self.refuse(Code::Malformed, why);
        Err(End)
    }

    fn send(&mut self, reply: &Reply) -> Result<(), End> {
        let line = encode(reply, MAX_REPLY).or_else(|e| {
            let refused = Reply::Refused {
                code: Code::Failed,
                message: e.to_string(),
            };
            encode(&refused, MAX_REPLY)
        });
        let line = line.map_err(|_| End)?;
        if self.deaf {
            return Ok(());
        }
        match (&*self.stream).write_all(&line) {
            Ok(()) => Ok(()),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                self.deaf = true;
                Ok(())
            }
            Err(_) => Err(End),
        }
    }

    fn refuse(&mut self, code: Code, message: &str) {
        let message = message.to_owned();
        let _ = self.send(&Reply::Refused { code, message });
    }
}

fn is_wait(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
