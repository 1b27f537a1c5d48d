//! Checkpoints of processes, for another process of the same user or root's. They need no device of the caller's.

use std::ffi::{c_int, c_uint, c_void};

use super::cuda;
use crate::engine::checkpoint::ask;
use crate::pointer::{In, Out};

/// CUcheckpointLockArgs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockArgs {
    /// 0: without a limit.
    timeout_ms: c_uint,
    _reserved0: c_uint,
    _reserved1: [u64; 7],
}

cuda! {
    fn cuCheckpointProcessGetState(process: c_int, state: Out<c_uint>) {
        state.set(ask(process, "state")?)
    }
    fn cuCheckpointProcessLock(process: c_int, arguments: In<LockArgs>) {
        let limit = arguments.get().map_or(0, |it| it.timeout_ms);
        ask(process, &format!("lock {limit}")).map(drop)
    }
    fn cuCheckpointProcessCheckpoint(process: c_int, _arguments: *const c_void) {
        ask(process, "checkpoint").map(drop)
    }
    fn cuCheckpointProcessRestore(process: c_int, _arguments: *const c_void) {
        ask(process, "restore").map(drop)
    }
    fn cuCheckpointProcessUnlock(process: c_int, _arguments: *const c_void) {
        ask(process, "unlock").map(drop)
    }
}
