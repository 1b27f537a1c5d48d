//! Processes of this program that act with a user's rights: how they are started and waited for, and how they give root's away.
//!
//! They are started as root and become the user's themselves. Executing a program lets every process of its user trace it: who was the
//! user's before that could be given code of the user's, in gpuosd's control group and with its devices.

use std::io;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Pid, Signal, Uid, geteuid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// How long one is waited for that was killed: the kernel may hold it even then.
const DIES: Duration = Duration::from_secs(1);

/// Those that had not ended by then.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Runs a process for so long at most, with so much time between two looks whether it has ended. `None`: it had to be killed.
///
/// # Errors
/// It cannot be started or waited for.
pub fn run(
    command: &mut Command,
    time: Duration,
    pause: Duration,
) -> io::Result<Option<(ExitStatus, Option<ChildStdout>)>> {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    drop(left);
    let mut child = command.spawn()?;
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status, child.stdout.take())));
        }
        thread::sleep(pause);
    }
    let _ = child.kill();
    let deadline = Instant::now() + DIES;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            left.push(child);
            break;
        }
        thread::sleep(pause);
    }
    Ok(None)
}

/// Has this process end with its parent. Whether that is the parent still, who may have ended before. The kernel forgets it when a process
/// gets other rights.
pub fn ends_with(parent: Option<Pid>) -> bool {
    let set = set_parent_process_death_signal(Some(Signal::KILL));
    set.is_ok() && getppid() == parent
}

/// Gives root's rights away for a user's, further groups and capabilities too. From then on this process can be traced by nobody but root.
/// It must have one thread.
///
/// # Errors
/// The kernel refuses, and this process is not to go on.
pub fn become_user(uid: u32, gid: u32) -> rustix::io::Result<()> {
    // To the kernel these are no change.
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Errno::INVAL);
    }
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}
