//! SPANK plugin: the `--gpuos-*` options of sbatch, salloc and srun, and the
//! `GPUOS_*` variables that a job finds on its nodes.
//!
//! On the user's side the options are checked as they are given, and a value
//! that is no value ends the command before anything is sent. On the node every
//! hook returns 0 whatever happens: Slurm drains a node whose plugins fail.
//!
//! - `client`: in the commands; which value counts there, and what a job hands to its steps, is `gpuos_config::options`,
//! - `node`: on the nodes; `job_env` and `ranks`: variables and rank file; `limits` and `mig`: power, clocks and MPS, and slices, of a step
//!   and its tasks,
//! - `report`: what gpuosd is told, and answers; `checkpoint`: the same of gpuos_mover, and `ahead`: while that is away; `memory`: the folder in memory,
//! - `tiers`: memory beyond that of the GPUs; `daemon`: the way to both.

mod ahead;
mod checkpoint;
mod client;
mod daemon;
mod job_env;
mod limits;
mod memory;
mod messages;
mod mig;
mod node;
mod ranks;
mod report;
mod tiers;

use std::ffi::{c_char, c_int};

use slurm_ffi::guard::guard;
use slurm_ffi::spank::{Context, RawHandle, Spank};

slurm_ffi::plugin!(b"gpuos\0", b"spank\0", "spank/gpuos");

/// Version of this plugin, which Slurm neither reads nor shows.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "SPANK's name")]
pub static spank_plugin_version: u32 = 1;

/// Called when the plugin stack is loaded: registers the options.
///
/// # Safety
/// Called by Slurm with the handle of this hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    handle: RawHandle,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    guard(
        "slurm_spank_init",
        || 0,
        || {
            // SAFETY: Slurm's handle, used in this call only.
            let spank = unsafe { Spank::new(handle) };
            match spank.context() {
                Context::Local | Context::Allocator => client::init(spank),
                Context::Remote => client::register(spank),
                Context::Other => {}
            }
            0
        },
    )
}

/// Called when all options are known: settles what is sent along with the job, or, on the node, what
/// the job finds in its environment.
///
/// # Safety
/// Called by Slurm with the handle of this hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    handle: RawHandle,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    guard(
        "slurm_spank_init_post_opt",
        || 0,
        || {
            // SAFETY: Slurm's handle, used in this call only.
            let spank = unsafe { Spank::new(handle) };
            match spank.context() {
                Context::Local | Context::Allocator => client::send_options(spank),
                Context::Remote => {
                    node::set_variables(spank);
                    // SAFETY: SPANK's arguments of this hook.
                    let socket = unsafe { report::socket(argc, argv) };
                    // SAFETY: the same.
                    let library = unsafe { tiers::library(argc, argv) };
                    node::report(spank, &socket, &library);
                    // SAFETY: the same.
                    let (mover, jobs) = unsafe { checkpoint::places(argc, argv) };
                    node::prepare_checkpoints(spank, &mover, &jobs);
                    0
                }
                Context::Other => 0,
            }
        },
    )
}

/// Called in slurmstepd, as the user, when the step's standard error is there: says what was found out before.
///
/// # Safety
/// Called by Slurm with the handle of this hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_user_init(
    _handle: RawHandle,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    guard(
        "slurm_spank_user_init",
        || 0,
        || {
            limits::print_notes();
            0
        },
    )
}

/// Called in a task's process, as the user, before its program is there: looks whether it sees the job's folder in
/// memory, gives it its own slices, or ends it where those of the step could not be made.
///
/// # Safety
/// Called by Slurm with the handle of this hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    handle: RawHandle,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    guard(
        "slurm_spank_task_init",
        || 0,
        || {
            // SAFETY: Slurm's handle, used in this call only.
            let spank = unsafe { Spank::new(handle) };
            if spank.context() == Context::Remote {
                memory::look();
                mig::start_task(spank);
            }
            0
        },
    )
}

/// Called when the step has ended, or the command: removes what [`ranks`] has written, and tells gpuosd.
///
/// # Safety
/// Called by Slurm with the handle of this hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_exit(
    _handle: RawHandle,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    guard(
        "slurm_spank_exit",
        || 0,
        || {
            ranks::remove();
            report::ended();
            0
        },
    )
}
