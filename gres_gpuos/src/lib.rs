//! Slurm GRES plugin for `gpuos`: one bit for each memory slice of the GPUs in a node's MIG pool.
//!
//! slurmctld counts the bits by itself. On a node the plugin tells Slurm's device control group which files each
//! slice opens ([`slices`]), and jobs which slices they have, in `GPUOS_SLICES`. Whatever goes wrong, no node is
//! drained and no step fails: then there is no variable, and no device is allowed.
//!
//! `slices` reads the files that say what a slice opens, `state` keeps what a process has to know between calls.

mod messages;
mod slices;
mod state;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use slurm_ffi::guard::guard;
use slurm_ffi::release::Release;

slurm_ffi::plugin!(b"Memory slices of GPUs\0", b"gres/gpuos\0", "gres/gpuos");

const SUCCESS: c_int = 0;

/// Called once, when a daemon or slurmstepd loads the plugin.
#[unsafe(no_mangle)]
pub extern "C" fn init() -> c_int {
    guard(
        "init",
        || SUCCESS,
        || {
            let release = plugin_version.load(std::sync::atomic::Ordering::Relaxed);
            state::start(Release(release));
            SUCCESS
        },
    )
}

/// Called when slurmd reads gres.conf, and in slurmctld for each cloud node.
///
/// # Safety
/// `list` is null or Slurm's live list of `gres_slurmd_conf_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_node_config_load(list: *mut c_void, _config: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::configure(list) };
    guard("gres_p_node_config_load", || (), body);
    SUCCESS
}

/// The variables of a batch script or an interactive step, in slurmstepd.
///
/// # Safety
/// `env` is a place with Slurm's array of variables, `bits` null or a live bitmap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_job_set_env(
    env: *mut *mut *mut c_char,
    bits: *mut c_void,
    _count: u64,
    _flags: u32,
) {
    guard(
        "gres_p_job_set_env",
        || (),
        // SAFETY: as the caller promises.
        || unsafe {
            state::hold(bits);
            state::environment(env, bits, null_mut());
        },
    );
}

/// The variables of a step, in slurmstepd.
///
/// # Safety
/// As [`gres_p_job_set_env`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_step_set_env(
    env: *mut *mut *mut c_char,
    bits: *mut c_void,
    _count: u64,
    _flags: u32,
) {
    guard(
        "gres_p_step_set_env",
        || (),
        // SAFETY: as the caller promises.
        || unsafe {
            state::hold(bits);
            state::environment(env, bits, null_mut());
        },
    );
}

/// The variables of one task that is bound to a part of its step's GRES.
///
/// # Safety
/// As [`gres_p_job_set_env`]; `usable` is null or a live bitmap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_task_set_env(
    env: *mut *mut *mut c_char,
    bits: *mut c_void,
    _count: u64,
    usable: *mut c_void,
    _flags: u32,
) {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::environment(env, bits, usable) };
    guard("gres_p_task_set_env", || (), body);
}

/// What slurmd hands to each slurmstepd.
///
/// # Safety
/// `buffer` is Slurm's live `buf_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_send_stepd(buffer: *mut c_void) {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::send(buffer) };
    guard("gres_p_send_stepd", || (), body);
}

/// What slurmd has handed over.
///
/// # Safety
/// As [`gres_p_send_stepd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_recv_stepd(buffer: *mut c_void) {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::receive(buffer) };
    guard("gres_p_recv_stepd", || (), body);
}

/// The devices of all slices of the node, for the task plugin in slurmstepd. They stay the plugin's.
#[unsafe(no_mangle)]
pub extern "C" fn gres_p_get_devices() -> *mut c_void {
    guard("gres_p_get_devices", null_mut, state::devices)
}

/// Nothing: instances are made by gpuosd.
#[unsafe(no_mangle)]
pub extern "C" fn gres_p_step_hardware_init(_usable: *mut c_void, _settings: *mut c_char) {}

/// Nothing, as [`gres_p_step_hardware_init`].
#[unsafe(no_mangle)]
pub extern "C" fn gres_p_step_hardware_fini() {}

/// Nothing beyond what Slurm itself tells of a job (until 24.05).
#[unsafe(no_mangle)]
pub extern "C" fn gres_p_get_job_info(
    _job: *mut c_void,
    _node: u32,
    _what: c_int,
    _to: *mut c_void,
) -> c_int {
    libc::EINVAL
}

/// Nothing beyond what Slurm itself tells of a step (until 24.05).
#[unsafe(no_mangle)]
pub extern "C" fn gres_p_get_step_info(
    _step: *mut c_void,
    _node: u32,
    _what: c_int,
    _to: *mut c_void,
) -> c_int {
    libc::EINVAL
}

/// What prolog and epilog of a job are told, in slurmctld and slurmd (from 23.02 on).
///
/// # Safety
/// `job` is a live `gres_job_state_t`, kept as it is during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_prep_build_env(job: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::prep(job) };
    guard("gres_p_prep_build_env", null_mut, body)
}

/// The variables of prolog and epilog on a node (from 23.02 on).
///
/// # Safety
/// `env` is a place with Slurm's array of variables or null; `prep` is what [`gres_p_prep_build_env`] gave.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_prep_set_env(
    env: *mut *mut *mut c_char,
    prep: *mut c_void,
    node: c_int,
) {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::prep_environment(env, prep, node) };
    guard("gres_p_prep_set_env", || (), body);
}

/// As [`gres_p_prep_build_env`], in 22.05.
///
/// # Safety
/// As [`gres_p_prep_build_env`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_epilog_build_env(job: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::prep(job) };
    guard("gres_p_epilog_build_env", null_mut, body)
}

/// As [`gres_p_prep_set_env`], in 22.05.
///
/// # Safety
/// As [`gres_p_prep_set_env`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gres_p_epilog_set_env(
    env: *mut *mut *mut c_char,
    prep: *mut c_void,
    node: c_int,
) {
    // SAFETY: as the caller promises.
    let body = || unsafe { state::prep_environment(env, prep, node) };
    guard("gres_p_epilog_set_env", || (), body);
}
