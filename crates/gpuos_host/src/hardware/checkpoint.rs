//! The driver's checkpoint calls (CUDA 12.8, driver 570): one process has another one locked, what it has on GPUs brought to that process's
//! own host memory, and back.
//!
//! All unsafe code of it is here; it relies on this:
//!
//! - The functions are those of cuda.h: `cuInit` takes a number, the others the number of a process and a pointer to 64 bytes, which are zero
//!   but for the limit of a lock, or to where a state of 32 bits is written.
//! - The library stays open as long as its functions are known.

#![allow(unsafe_code, reason = "C functions of a library opened at run time")]

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libloading::Library;

// Of CUresult.
const SUCCESS: c_uint = 0;
const INVALID_VALUE: c_uint = 1;
const NOT_INITIALIZED: c_uint = 3;
/// What a lock answers whose time is over.
pub const NOT_READY: u32 = 600;
/// What bringing a process back answers where its GPU has no room.
pub const OUT_OF_MEMORY: u32 = 2;

/// How far the driver is with a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Its calls go on.
    Running,
    /// Its calls wait.
    Locked,
    /// They wait, and nothing of it is on a GPU.
    Checkpointed,
    /// It is on its way from one to the other.
    Between,
    /// The driver cannot go on with it.
    Failed,
}

/// A function of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `cuInit`.
    Init,
    /// `cuCheckpointProcessGetState`.
    State,
    /// `cuCheckpointProcessLock`.
    Lock,
    /// `cuCheckpointProcessCheckpoint`.
    Checkpoint,
    /// `cuCheckpointProcessRestore`.
    Restore,
    /// `cuCheckpointProcessUnlock`.
    Unlock,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 6] = [
        Call::Init,
        Call::State,
        Call::Lock,
        Call::Checkpoint,
        Call::Restore,
        Call::Unlock,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Call::Init => "cuInit",
            Call::State => "cuCheckpointProcessGetState",
            Call::Lock => "cuCheckpointProcessLock",
            Call::Checkpoint => "cuCheckpointProcessCheckpoint",
            Call::Restore => "cuCheckpointProcessRestore",
            Call::Unlock => "cuCheckpointProcessUnlock",
        }
    }
}

/// A call that the driver refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The call.
    pub call: Call,
    /// Its CUresult.
    pub code: u32,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {}", self.call.name(), self.code)
    }
}

/// What the driver is asked to do with a process, by its number. A number may mean another process by now: who asks has to know.
pub trait Checkpoints {
    /// How far it is with it.
    ///
    /// # Errors
    /// It refuses.
    fn state(&self, pid: u32) -> Result<State, Refused>;
    /// Has its calls wait, once all work is done, within so long.
    ///
    /// # Errors
    /// It refuses, or work was not done in time: then the process runs on.
    fn lock(&self, pid: u32, limit: Duration) -> Result<(), Refused>;
    /// Brings what a locked one has on GPUs to its host memory.
    ///
    /// # Errors
    /// It refuses.
    fn checkpoint(&self, pid: u32) -> Result<(), Refused>;
    /// Brings it back. It is locked then.
    ///
    /// # Errors
    /// It refuses, for instance as there is no room.
    fn restore(&self, pid: u32) -> Result<(), Refused>;
    /// Lets its calls go on.
    ///
    /// # Errors
    /// It refuses.
    fn unlock(&self, pid: u32) -> Result<(), Refused>;
}

/// A function about a process, by its number.
type About = unsafe extern "C" fn(c_int, *mut [u64; 8]) -> c_uint;

/// NVIDIA's driver.
pub struct Driver {
    init: unsafe extern "C" fn(c_uint) -> c_uint,
    state: About,
    lock: About,
    checkpoint: About,
    restore: About,
    unlock: About,
    // The functions above are its.
    _library: Library,
}

impl Driver {
    /// Opens the library of this name or path, `libcuda.so.1` as a rule.
    ///
    /// # Errors
    /// A sentence: it is not there, or is older than CUDA 12.8.
    pub fn open(path: &str) -> Result<Driver, String> {
        // SAFETY: what runs when the driver's library is loaded touches nothing of this process's.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        macro_rules! function {
            ($call:expr) => {
                // SAFETY: see the top of the file; the pointer is used only while `_library` is open.
                *unsafe { library.get($call.name().as_bytes()) }
                    .map_err(|_| format!("{path} has no {}", $call.name()))?
            };
        }
        Ok(Driver {
            init: function!(Call::Init),
            state: function!(Call::State),
            lock: function!(Call::Lock),
            checkpoint: function!(Call::Checkpoint),
            restore: function!(Call::Restore),
            unlock: function!(Call::Unlock),
            _library: library,
        })
    }

    /// A call about a process. The driver may want to be initialised first.
    fn about(&self, call: Call, pid: u32, arguments: &mut [u64; 8]) -> Result<(), Refused> {
        let refused = |call, code| Err(Refused { call, code });
        let function = match call {
            Call::Init => return refused(call, NOT_INITIALIZED),
            Call::State => self.state,
            Call::Lock => self.lock,
            Call::Checkpoint => self.checkpoint,
            Call::Restore => self.restore,
            Call::Unlock => self.unlock,
        };
        let Ok(pid) = c_int::try_from(pid) else {
            return refused(call, INVALID_VALUE);
        };
        // SAFETY: see the top of the file; the arguments last as long as the call.
        let mut ask = || unsafe { function(pid, arguments) };
        let told = match ask() {
            NOT_INITIALIZED => {
                // SAFETY: see the top of the file.
                match unsafe { (self.init)(0) } {
                    SUCCESS => ask(),
                    code => return refused(Call::Init, code),
                }
            }
            told => told,
        };
        match told {
            SUCCESS => Ok(()),
            code => refused(call, code),
        }
    }
}

impl Checkpoints for Driver {
    fn state(&self, pid: u32) -> Result<State, Refused> {
        let mut state = [0; 8];
        self.about(Call::State, pid, &mut state)?;
        // A number of 32 bits was written.
        Ok(match state[0] as u32 {
            0 => State::Running,
            1 => State::Locked,
            2 => State::Checkpointed,
            4 | 5 => State::Between,
            _ => State::Failed,
        })
    }

    fn lock(&self, pid: u32, limit: Duration) -> Result<(), Refused> {
        // 0 is no limit.
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut arguments = [0; 8];
        arguments[0] = limit.into();
        self.about(Call::Lock, pid, &mut arguments)
    }

    fn checkpoint(&self, pid: u32) -> Result<(), Refused> {
        self.about(Call::Checkpoint, pid, &mut [0; 8])
    }

    fn restore(&self, pid: u32) -> Result<(), Refused> {
        self.about(Call::Restore, pid, &mut [0; 8])
    }

    fn unlock(&self, pid: u32) -> Result<(), Refused> {
        self.about(Call::Unlock, pid, &mut [0; 8])
    }
}

/// Whether the process of a descriptor (`pidfd_open`) has ended. Where it has not, its number has been its own since it was opened.
pub fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut look = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, as is said, which lasts as long as the call.
    let told = unsafe { libc::poll(&raw mut look, 1, 0) };
    told != 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::{Driver, has_ended};

    #[test]
    fn a_library_that_is_not_there_or_older_is_a_sentence() {
        let why = Driver::open("libcuda-of-nobody.so.1").err().unwrap();
        assert!(why.contains("libcuda-of-nobody"), "{why}");
        let why = Driver::open("libc.so.6").err().unwrap();
        assert_eq!(why, "libc.so.6 has no cuInit");
    }

    #[test]
    fn a_process_has_ended_when_it_is_dead() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let held = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert!(!has_ended(held.as_fd()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(held.as_fd()));
    }
}
