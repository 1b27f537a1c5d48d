//! The side that is connected to.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::doorway::Doorway;
use super::error::Error;
use super::link::Link;
use super::options::{Options, after};
use super::shake::{Shake, nonce};
use crate::session::{Credentials, Handshake, Places};

/// Failures that are kept for the log.
const KEPT: usize = 32;
/// A wait where the system has no descriptor or no memory for a connection.
const SHORT: Duration = Duration::from_millis(20);
/// A handshake needs a few frames of the stack, and there may be many at a time.
const STACK: usize = 512 << 10;

/// Handshakes that came to nothing since this was asked last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// How many.
    pub count: u64,
    /// The last of them: who it was, and why.
    pub last: VecDeque<(SocketAddr, Error)>,
}

/// Takes connections. One thread accepts, and one for each handshake carries it through. Dropping it ends both; links stay.
pub struct Listener {
    address: SocketAddr,
    socket: Arc<TcpListener>,
    state: Arc<State>,
    links: mpsc::Receiver<Link>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    places: Arc<dyn Places>,
    credentials: Arc<dyn Credentials>,
    options: Options,
    to: SyncSender<Link>,
    ends: AtomicBool,
    /// Handshakes with a thread. One that was put out may still wait for munge in it.
    threads: AtomicUsize,
    door: Mutex<Door>,
    failures: Mutex<Failures>,
}

/// The table, and the sockets of those in it.
struct Door {
    table: Doorway,
    sockets: HashMap<u64, TcpStream>,
}

impl Listener {
    /// Takes connections at a socket that is bound. As many links as there may be unfinished handshakes wait to be accepted.
    ///
    /// # Errors
    /// The socket has no address, or no thread can be started.
    pub fn start(
        socket: TcpListener,
        places: Arc<dyn Places>,
        credentials: Arc<dyn Credentials>,
        options: Options,
    ) -> Result<Listener, Error> {
        let address = socket.local_addr().map_err(Error::io("listen for nodes"))?;
        let (to, links) = sync_channel(options.unfinished.max(1));
        let table = Doorway::new(options.unfinished, options.unfinished_by_source);
        let state = Arc::new(State {
            places,
            credentials,
            options,
            to,
            ends: AtomicBool::new(false),
            threads: AtomicUsize::new(0),
            door: Mutex::new(Door {
                table,
                sockets: HashMap::new(),
            }),
            failures: Mutex::default(),
        });
        let socket = Arc::new(socket);
        let (accepts, door) = (socket.clone(), state.clone());
        let thread = thread::Builder::new()
            .name("link-accept".into())
            .spawn(move || accept(&accepts, &door))
            .map_err(Error::io("start a thread that listens"))?;
        Ok(Listener {
            address,
            socket,
            state,
            links,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next link; waits for it so long. `None`: there was none.
    pub fn accept(&self, patience: Duration) -> Option<Link> {
        self.links.recv_timeout(patience).ok()
    }

    /// The failures since this was asked last, for the log.
    pub fn failures(&self) -> Failures {
        std::mem::take(&mut *lock(&self.state.failures))
    }

    /// Handshakes that are under way.
    pub fn unfinished(&self) -> usize {
        lock(&self.state.door).sockets.len()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // On Linux this ends a wait in accept.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Read);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for (_, stream) in lock(&self.state.door).sockets.drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(socket: &TcpListener, state: &Arc<State>) {
    while !state.ends.load(Ordering::SeqCst) {
        match socket.accept() {
            Ok((stream, from)) => {
                if let Err(error) = admit(stream, from, state) {
                    state.failed(from, error);
                }
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            Err(_) if state.ends.load(Ordering::SeqCst) => {}
            // Nothing else can be done than to wait until something is given back.
            Err(_) => thread::sleep(SHORT),
        }
    }
}

/// Starts the handshake of one that came in.
fn admit(stream: TcpStream, from: SocketAddr, state: &Arc<State>) -> Result<(), Error> {
    let most = state.options.unfinished.max(1);
    // Those that are put out end at once, but for a munge that hangs.
    if state.threads.load(Ordering::SeqCst) >= most.saturating_mul(2) {
        return Err(Error::Waiting(most));
    }
    let spare = stream
        .try_clone()
        .map_err(Error::io("set up a connection"))?;
    let number = {
        let mut door = lock(&state.door);
        let entered = door.table.enter(from.ip()).ok_or(Error::Waiting(most))?;
        if let Some(stream) = entered.out.and_then(|out| door.sockets.remove(&out)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        door.sockets.insert(entered.number, spare);
        entered.number
    };
    let visit = Visit {
        number,
        state: state.clone(),
    };
    state.threads.fetch_add(1, Ordering::SeqCst);
    let thread = thread::Builder::new().name("link-shake".into());
    let started = thread
        .stack_size(STACK)
        .spawn(move || visit.run(stream, from));
    // Where no thread starts the visit is dropped with what it was to do.
    started.map(drop).map_err(Error::io("start a thread"))
}

/// A place in the doorway and a thread, which are given back when it is dropped.
struct Visit {
    number: u64,
    state: Arc<State>,
}

impl Visit {
    fn run(self, stream: TcpStream, from: SocketAddr) {
        let state = &self.state;
        let link = self.shake(stream, from);
        // From here on the link is not the listener's, to be shut with it.
        self.leave();
        let passed = link.and_then(|link| match state.to.try_send(link) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Error::Waiting(state.options.unfinished)),
            Err(TrySendError::Disconnected(_)) => Err(Error::Dropped),
        });
        if let Err(error) = passed {
            state.failed(from, error);
        }
    }

    fn leave(&self) {
        let mut door = lock(&self.state.door);
        door.table.leave(self.number);
        door.sockets.remove(&self.number);
    }

    fn shake(&self, stream: TcpStream, from: SocketAddr) -> Result<Link, Error> {
        let state = &self.state;
        let options = &state.options;
        let deadline = after(options.handshake);
        let quick = stream.set_nodelay(true);
        quick.map_err(Error::io("set up a connection"))?;
        let handshake = Handshake::respond(state.places.clone(), nonce()?, options.settings);
        let shake = Shake {
            stream: &stream,
            credentials: &*state.credentials,
            limit: options.handshake,
            deadline,
        };
        let known = || lock(&state.door).table.is_known(self.number);
        let done = shake.run(handshake, &[], known)?;
        Link::new(stream, from, done, options)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.leave();
        self.state.threads.fetch_sub(1, Ordering::SeqCst);
    }
}

impl State {
    fn failed(&self, from: SocketAddr, error: Error) {
        let mut failures = lock(&self.failures);
        failures.count += 1;
        if failures.last.len() == KEPT {
            failures.last.pop_front();
        }
        failures.last.push_back((from, error));
    }
}
