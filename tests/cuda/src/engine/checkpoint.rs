//! The driver's checkpoint calls, as the process sees them that is checkpointed: another process locks this one, has what it has on its
//! devices brought to host memory, and back.
//!
//! A process that can be checkpointed (`checkpoint=` of the settings) listens on a socket with its number in its name, and a thread does
//! what is asked there, one thing after another, also when whoever asked has died meanwhile. All other calls wait from when the process is
//! locked until it is unlocked.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{Answer, Code, code};
use crate::engine::driver::Driver;
use crate::setup::Checkpoint;

/// `CUprocessState`.
pub(crate) const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;

/// Between two looks whether work is done.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Gate {
    state: u32,
    /// Calls that are under way.
    inside: usize,
}

static GATE: (Mutex<Gate>, Condvar) = (
    Mutex::new(Gate {
        state: RUNNING,
        inside: 0,
    }),
    Condvar::new(),
);

thread_local! {
    /// Calls of the thread that are inside: one that is made inside another does not wait.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A call that is under way, until it is dropped.
pub(crate) struct Inside {
    counted: bool,
}

fn gate() -> MutexGuard<'static, Gate> {
    GATE.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call begins. It waits while the process is locked, unless it is one of those that are about that.
pub(crate) fn enter(name: &str) -> Inside {
    let counted = DEPTH.get() == 0 && !name.starts_with("cuCheckpoint");
    DEPTH.set(DEPTH.get() + 1);
    if counted {
        let mut gate = gate();
        while gate.state != RUNNING {
            gate = GATE.1.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        gate.inside += 1;
    }
    Inside { counted }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if self.counted {
            gate().inside -= 1;
            GATE.1.notify_all();
        }
    }
}

fn address(process: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("gpuos-cuda-checkpoint-{process}"))
}

/// Has this process be one that can be checkpointed, where its settings say so.
pub(crate) fn begin(driver: &'static Driver, how: Option<Checkpoint>) {
    static BEGUN: OnceLock<()> = OnceLock::new();
    let Some(how) = how else { return };
    BEGUN.get_or_init(|| {
        let listener =
            address(std::process::id()).and_then(|address| UnixListener::bind_addr(&address));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return eprintln!("simulated libcuda: no checkpoints: {error}"),
        };
        let mut process = Process {
            driver,
            how,
            kept: Vec::new(),
        };
        let serve = move || {
            for mut stream in listener.incoming().flatten() {
                process.answer(&mut stream);
            }
        };
        let thread = std::thread::Builder::new().name("cuda-checkpoint".into());
        if let Err(error) = thread.spawn(serve) {
            eprintln!("simulated libcuda: no checkpoints: {error}");
        }
    });
}

/// Whether who asks is root, or of the user of this process.
fn may(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: an open socket, and room for what the kernel writes, with its size.
    let (told, own) = unsafe {
        let told = libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        );
        (told, libc::geteuid())
    };
    told == 0 && (peer.uid == 0 || peer.uid == own)
}

/// This process.
struct Process {
    driver: &'static Driver,
    how: Checkpoint,
    /// What its devices had, in their order.
    kept: Vec<Vec<u8>>,
}

impl Process {
    fn answer(&mut self, stream: &mut UnixStream) {
        let mut line = String::new();
        if BufReader::new(&*stream).read_line(&mut line).is_err() {
            return;
        }
        let done = match may(stream) {
            true => self.ask(line.trim()),
            false => Err(code::NOT_PERMITTED),
        };
        let told = done.err().unwrap_or(code::OK);
        // Who asked may be dead.
        let _ = writeln!(stream, "{told} {}", gate().state);
    }

    fn ask(&mut self, what: &str) -> Answer<()> {
        match what.split_once(' ').unwrap_or((what, "")) {
            ("state", _) => Ok(()),
            ("lock", limit) => self.lock(limit.parse().map_err(|_| code::INVALID)?),
            ("checkpoint", _) => self.checkpoint(),
            ("restore", _) => self.restore(),
            ("unlock", _) => change(LOCKED, RUNNING),
            _ => Err(code::INVALID),
        }
    }

    /// No call begins any more, and all work is done. Without a limit it waits for ever.
    fn lock(&self, limit_ms: u64) -> Answer<()> {
        change(RUNNING, LOCKED)?;
        let until = (limit_ms > 0).then(|| Instant::now() + Duration::from_millis(limit_ms));
        let idle = || {
            let mut works = gate().inside > 0;
            let contexts = &self.driver.contexts;
            contexts.each(|context| works |= !context.is_idle());
            !works
        };
        while !idle() {
            if until.is_some_and(|until| Instant::now() >= until) {
                change(LOCKED, RUNNING)?;
                return Err(code::NOT_READY);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn takes_time(&self) -> Answer<()> {
        match self.how {
            Checkpoint::Takes(time) => std::thread::sleep(time),
            Checkpoint::Refused => return Err(code::NOT_SUPPORTED),
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Answer<()> {
        if gate().state != LOCKED {
            return Err(code::ILLEGAL_STATE);
        }
        self.takes_time()?;
        let devices = self.driver.devices.iter();
        self.kept = devices.map(|device| device.memory.take_out()).collect();
        change(LOCKED, CHECKPOINTED)
    }

    fn restore(&mut self) -> Answer<()> {
        if gate().state != CHECKPOINTED {
            return Err(code::ILLEGAL_STATE);
        }
        self.takes_time()?;
        let devices = &self.driver.devices;
        for (count, (device, kept)) in devices.iter().zip(&self.kept).enumerate() {
            if !device.memory.bring_back(kept) {
                for before in &devices[..count] {
                    before.memory.take_out();
                }
                return Err(code::OUT_OF_MEMORY);
            }
        }
        self.kept.clear();
        change(CHECKPOINTED, LOCKED)
    }
}

fn change(from: u32, to: u32) -> Answer<()> {
    let mut gate = gate();
    if gate.state != from {
        return Err(code::ILLEGAL_STATE);
    }
    gate.state = to;
    GATE.1.notify_all();
    Ok(())
}

/// Asks a process, by its number; answers its state after it. One that is none of ours is an invalid value.
pub(crate) fn ask(process: i32, what: &str) -> Answer<u32> {
    let process = u32::try_from(process).map_err(|_| code::INVALID)?;
    let talk = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect_addr(&address(process)?)?;
        writeln!(stream, "{what}")?;
        let mut told = String::new();
        BufReader::new(stream).read_line(&mut told)?;
        Ok(told)
    };
    let told = talk().map_err(|_| code::INVALID)?;
    let mut words = told.split_whitespace().map(str::parse::<Code>);
    match (words.next(), words.next()) {
        (Some(Ok(code::OK)), Some(Ok(state))) => Ok(state),
        (Some(Ok(error)), _) => Err(error),
        // It has ended meanwhile.
        _ => Err(code::INVALID),
    }
}
