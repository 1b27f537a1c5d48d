//! The client's side.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use gpuos_core::wire::{
    Lines, MAX_REPLY, MAX_REQUEST, PROTOCOL, Reply, Request, Status, WireError, decode, encode,
    root_socket,
};

/// Why a client got no answer.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens: no socket, or one that a dead daemon left.
    NoDaemon(io::Error),
    /// The connection broke, or no answer came in time.
    Broken(io::Error),
    /// What came is no reply.
    Wire(WireError),
    /// The daemon refused: its sentence.
    Refused(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::NoDaemon(e) => write!(
                f,
                "no gpuosd answers here ({e}): `systemctl start gpuosd`, or name its directory with \
                 --runtime-dir"
            ),
            ClientError::Broken(e) => write!(f, "gpuosd did not answer: {e}"),
            ClientError::Wire(e) => write!(f, "gpuosd's answer cannot be read: {e}"),
            ClientError::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ClientError {}

/// A connection to gpuosd.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: Lines,
    /// Release and node that the daemon told.
    pub daemon: (String, String),
}

impl Client {
    /// Connects to the socket at `path` and says hello. No call waits longer than `patience`.
    ///
    /// # Errors
    /// No daemon is there, or it speaks another protocol.
    pub fn connect(path: &Path, patience: Duration) -> Result<Client, ClientError> {
        let stream = dial(path).map_err(ClientError::NoDaemon)?;
        let set = stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)));
        set.map_err(ClientError::Broken)?;
        let mut client = Client {
            stream,
            lines: Lines::new(MAX_REPLY),
            daemon: Default::default(),
        };
        let hello = Request::Hello {
            protocol: PROTOCOL,
            client: concat!("gpuos ", env!("CARGO_PKG_VERSION")).into(),
        };
        match client.ask(&hello)? {
            Reply::Hello { release, node, .. } => client.daemon = (release, node),
            _ => return Err(unexpected()),
        }
        Ok(client)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The daemon refused, or did not answer.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = encode(request, MAX_REQUEST).map_err(ClientError::Wire)?;
        if let Err(broken) = self.stream.write_all(&line) {
            // A daemon that refuses and closes before it is asked has still said why.
            return match broken.kind() {
                io::ErrorKind::BrokenPipe => match self.next_reply() {
                    Err(why @ ClientError::Refused(_)) => Err(why),
                    _ => Err(ClientError::Broken(broken)),
                },
                _ => Err(ClientError::Broken(broken)),
            };
        }
        match self.next_reply()? {
            Some(reply) => Ok(reply),
            None => Err(ClientError::Broken(io::ErrorKind::TimedOut.into())),
        }
    }

    /// How the node is.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status)? {
            Reply::Status { status } => Ok(*status),
            _ => Err(ClientError::Refused(
                "gpuosd gave another answer than its status".into(),
            )),
        }
    }

    /// The next reply; `None` where none came within the patience. For what a watch tells.
    ///
    /// # Errors
    /// The daemon refused, or is gone.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ClientError> {
        let mut bytes = [0; 8192];
        loop {
            if let Some(line) = self.lines.next_line().map_err(ClientError::Wire)? {
                return match decode(&line, MAX_REPLY).map_err(ClientError::Wire)? {
                    Reply::Refused { message, .. } => Err(ClientError::Refused(message)),
                    reply => Ok(Some(reply)),
                };
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ClientError::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Ok(None);
                }
                Err(e) => return Err(ClientError::Broken(e)),
            }
        }
    }

    /// Asks to be told what happens; [`Client::next_reply`] gives it.
    ///
    /// # Errors
    /// The connection broke.
    pub fn watch(&mut self) -> Result<(), ClientError> {
        let line = encode(&Request::Watch, MAX_REQUEST).map_err(ClientError::Wire)?;
        self.stream.write_all(&line).map_err(ClientError::Broken)
    }
}

/// Root goes by the socket that is its own, if there is one: nobody else can fill that.
fn dial(path: &Path) -> io::Result<UnixStream> {
    let own = rustix::process::geteuid().is_root();
    let own = own.then(|| UnixStream::connect(root_socket(&path.to_string_lossy())));
    match own {
        Some(Ok(stream)) => Ok(stream),
        _ => UnixStream::connect(path),
    }
}

fn unexpected() -> ClientError {
    ClientError::Wire(WireError::Malformed(
        "another reply than was asked for".into(),
    ))
}
