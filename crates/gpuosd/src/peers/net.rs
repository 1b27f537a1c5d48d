//! Datagrams: one thread reads them and has munge open them, one has munge seal them and writes them.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::peers::Datagram;
use gpuos_host::munge::{Credentials, Error, MAX_CREDENTIAL, may_be_credential};

use super::Notice;
use super::gate::Gate;

/// Messages that wait to be sealed; what comes on top is lost, as datagrams may be.
const WAITING: usize = 512;
/// A thread that waits for datagrams looks up so often.
const LOOK_UP: Duration = Duration::from_millis(500);
/// A call of munge takes less than a millisecond; one that takes longer than this makes a node deaf.
const LONG: Duration = Duration::from_millis(700);

/// The node's way to the others. Dropping it ends the threads.
pub(super) struct Net {
    out: SyncSender<Out>,
    state: Arc<State>,
}

enum Out {
    Message(Box<Datagram>, SocketAddr),
    Flush(Sender<()>),
}

/// What both threads tell.
struct State {
    ends: AtomicBool,
    began: Instant,
    /// When a call of munge began, in ms since `began` and at least 1, of either thread; 0: none runs.
    calls: [AtomicU64; 2],
    /// A call failed for munged's sake.
    absent: AtomicBool,
    /// Works now, as far as is known.
    well: AtomicBool,
}

impl State {
    fn call<T>(&self, thread: usize, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let now = self.began.elapsed().as_millis() as u64 + 1;
        self.calls[thread].store(now, Ordering::Relaxed);
        let done = call();
        self.calls[thread].store(0, Ordering::Relaxed);
        let absent = matches!(&done, Err(e) if e.is_absence());
        if absent {
            self.absent.store(true, Ordering::Relaxed);
        }
        self.well.store(!absent, Ordering::Relaxed);
        done
    }
}

impl Net {
    /// Listens and sends by a socket that is bound.
    pub fn start(
        socket: UdpSocket,
        munge: Arc<dyn Credentials>,
        to: Sender<Notice>,
    ) -> std::io::Result<Net> {
        socket.set_read_timeout(Some(LOOK_UP))?;
        let state = Arc::new(State {
            ends: AtomicBool::new(false),
            began: Instant::now(),
            calls: [AtomicU64::new(0), AtomicU64::new(0)],
            absent: AtomicBool::new(false),
            well: AtomicBool::new(true),
        });
        let (out, from) = sync_channel(WAITING);
        let writer = (socket.try_clone()?, munge.clone(), state.clone());
        thread::Builder::new()
            .name("peers-out".into())
            .spawn(move || write(&writer.0, &*writer.1, &writer.2, &from))?;
        let reader = state.clone();
        thread::Builder::new()
            .name("peers-in".into())
            .spawn(move || read(&socket, &*munge, &reader, &to))?;
        Ok(Net { out, state })
    }

    /// Sends a message, or loses it.
    pub fn send(&self, told: Datagram, to: SocketAddr) {
        let _ = self.out.try_send(Out::Message(Box::new(told), to));
    }

    /// `done` is told when all that was sent before is on its way.
    pub fn flush(&self, done: Sender<()>) {
        let _ = self.out.try_send(Out::Flush(done));
    }

    /// Whether munged hangs, or has failed since this was asked last.
    pub fn is_munge_failing(&self) -> bool {
        let now = self.state.began.elapsed().as_millis() as u64 + 1;
        let hangs = self.state.calls.iter().any(|began| {
            let began = began.load(Ordering::Relaxed);
            began > 0 && now.saturating_sub(began) > LONG.as_millis() as u64
        });
        self.state.absent.swap(false, Ordering::Relaxed) || hangs
    }

    /// Whether munged answered the last time.
    pub fn is_well(&self) -> bool {
        self.state.well.load(Ordering::Relaxed)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
    }
}

fn write(socket: &UdpSocket, munge: &dyn Credentials, state: &State, from: &Receiver<Out>) {
    for out in from {
        match out {
            Out::Message(told, to) => {
                if let Ok(credential) = state.call(0, || munge.seal(&told.encode())) {
                    // A network that is down is what the others are to find out.
                    let _ = socket.send_to(credential.as_bytes(), to);
                }
            }
            Out::Flush(done) => drop(done.send(())),
        }
    }
}

fn read(socket: &UdpSocket, munge: &dyn Credentials, state: &State, to: &Sender<Notice>) {
    let own = rustix::process::geteuid().as_raw();
    let mut gate = Gate::default();
    let port = socket.local_addr().ok().map(|own| own.port());
    // One byte more tells that a datagram is too long.
    let mut buffer = [0; MAX_CREDENTIAL + 1];
    while !state.ends.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(read) => read,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            // The answer of a machine where nobody listens comes back as an error here.
            Err(_) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        let bytes = &buffer[..length];
        if !may_be_credential(bytes)
            || !gate.lets((from.ip(), Some(from.port()) == port), Instant::now())
        {
            continue;
        }
        let Ok(opened) = state.call(1, || munge.open(bytes)) else {
            continue;
        };
        // Whoever may not change nodes in Slurm has no say about them.
        if opened.uid != 0 && opened.uid != own {
            continue;
        }
        let told = Datagram::decode(&opened.payload);
        if told.is_some_and(|told| to.send(Notice::Received(told, from)).is_err()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use gpuos_core::peers::Body;
    use gpuos_host::munge::Twin;

    use super::*;

    #[test]
    fn only_what_munge_and_root_vouch_for_is_heard() {
        let own = rustix::process::geteuid().as_raw();
        let munge = Twin::new(1, own);
        let (root, user) = (munge.other(own), munge.other(own + 1000));
        let foreign = Twin::new(2, own);
        let (to, heard) = channel();
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr().unwrap();
        let munge = Arc::new(munge);
        let net = Net::start(bound, munge.clone(), to).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let ping = |from: &str| Datagram::new(from, "n1", Body::Ping).encode();
        let send = |bytes: &[u8]| assert!(socket.send_to(bytes, address).is_ok());
        let good = root.seal(&ping("good")).unwrap();
        for nonsense in [
            user.seal(&ping("user")).unwrap().into_bytes(),
            foreign.seal(&ping("foreign")).unwrap().into_bytes(),
            root.seal(b"no message").unwrap().into_bytes(),
            ping("naked"),
            vec![0; 9000],
            vec![b'M'; MAX_CREDENTIAL + 1],
            Vec::new(),
        ] {
            send(&nonsense);
        }
        send(good.as_bytes());
        // Once more is once too often.
        send(good.as_bytes());
        send(root.seal(&ping("last")).unwrap().as_bytes());
        let limit = Duration::from_secs(60);
        let mut names = Vec::new();
        while names.last().is_none_or(|name| name != "last") {
            match heard.recv_timeout(limit) {
                Ok(Notice::Received(told, _)) => names.push(told.from),
                _ => panic!("nothing more is heard after {names:?}"),
            }
        }
        assert_eq!(names, ["good", "last"]);
        assert!(net.is_well() && !net.is_munge_failing());
        // Without munged it is deaf, and says so.
        munge.set_stopped(true);
        send(root.seal(&ping("unheard")).unwrap().as_bytes());
        let short = Duration::from_millis(20);
        let mut deaf = false;
        for _ in 0..3000 {
            deaf |= net.is_munge_failing();
            if deaf {
                break;
            }
            assert!(matches!(
                heard.recv_timeout(short),
                Err(RecvTimeoutError::Timeout)
            ));
        }
        assert!(deaf && !net.is_well());
    }
}
