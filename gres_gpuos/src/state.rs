//! What the plugin keeps in a process: slurmd's list of slice files, and in slurmstepd the bits and devices of the
//! step that it runs.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use gpuos_model::gpuset::GpuSet;
use slurm_ffi::gres_plugin::{Device, GresPlugin, first_bits};
use slurm_ffi::log;
use slurm_ffi::mem;
use slurm_ffi::release::Release;

use crate::{messages, slices};

/// The GRES.
const NAME: &str = "gpuos";

/// The variable with the bits of a job or step on a node, as `12-15`.
const VARIABLE: &CStr = c"GPUOS_SLICES";

static PLUGIN: OnceLock<Option<GresPlugin>> = OnceLock::new();
/// `File=` of the records of gres.conf.
static RECORDS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Number of bits, and those that the job or step of this slurmstepd has.
static HELD: Mutex<Option<(usize, u64)>> = Mutex::new(None);
/// Slurm's list of devices, made once: Slurm keeps the addresses of its devices from one question to the next.
static DEVICES: OnceLock<usize> = OnceLock::new();

/// Whether steps are kept to their devices by programs that cannot be long.
static FEW: AtomicBool = AtomicBool::new(false);

/// The first release of Slurm whose programs for devices can have as many as there are: before, the kernel's words about a long
/// one did not fit into what Slurm had for them, and it was not loaded.
const LONG_PROGRAMS: Release = Release::new(23, 2, 4);

/// A file that the root of a hierarchy of version 2 has, and no other folder that is mounted there.
const VERSION_2: &str = "/sys/fs/cgroup/cgroup.controllers";

/// Finds the layout of the release. Without one the plugin sets no variable and names no device, and says so once.
pub fn start(release: Release) {
    let few = release < LONG_PROGRAMS && Path::new(VERSION_2).exists();
    FEW.store(few, Ordering::Relaxed);
    PLUGIN.get_or_init(|| match GresPlugin::new(release) {
        Ok(plugin) => Some(plugin),
        Err(why) => {
            log::error(&messages::no_layout(why));
            None
        }
    });
}

fn plugin() -> Option<&'static GresPlugin> {
    PLUGIN.get()?.as_ref()
}

/// Takes the records of gres.conf.
///
/// # Safety
/// `list` is null or Slurm's live list of them.
pub unsafe fn configure(list: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    // Here and not at the start: commands load the plugin, too.
    if let Err(why) = mem::detour() {
        log::error(&messages::no_layout(why));
        return;
    }
    // SAFETY: by the caller.
    let records = unsafe { plugin.files(list, NAME) };
    if let Err(why) = slices::files(&records) {
        log::error(&messages::gres_conf_is_wrong(why));
    }
    *RECORDS.lock().unwrap_or_else(PoisonError::into_inner) = records;
}

/// Hands slurmstepd what slurmd knows.
///
/// # Safety
/// `buffer` is Slurm's live `buf_t`.
pub unsafe fn send(buffer: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    let records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: by the caller.
    unsafe { plugin.send(buffer, &records.join(",")) }
}

/// Takes what slurmd has sent.
///
/// # Safety
/// As [`send`].
pub unsafe fn receive(buffer: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    // SAFETY: by the caller.
    let text = unsafe { plugin.receive(buffer) };
    *RECORDS.lock().unwrap_or_else(PoisonError::into_inner) = text.into_iter().collect();
}

/// Sets `GPUOS_SLICES` to the bits that are also in `usable` (null: all of them); without any the variable goes,
/// also one that a user has set or a step inherits.
///
/// # Safety
/// `env` is null or a place with Slurm's array of variables; `bits` and `usable` are null or live bitmaps.
pub unsafe fn environment(env: *mut *mut *mut c_char, bits: *mut c_void, usable: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    // SAFETY: by the caller.
    let (held, usable) = unsafe { (first_bits(bits), first_bits(usable)) };
    let bits = held.map_or(0, |(_, bits)| bits) & usable.map_or(u64::MAX, |(_, bits)| bits);
    let value = (bits != 0).then(|| GpuSet(bits).to_string());
    // SAFETY: by the caller.
    unsafe { plugin.set_env(env, VARIABLE, value.as_deref()) }
}

/// Notes what the job or step of this slurmstepd holds, which comes before its devices are asked for.
///
/// # Safety
/// `bits` is null or a live bitmap.
pub unsafe fn hold(bits: *mut c_void) {
    // SAFETY: by the caller.
    let held = unsafe { first_bits(bits) };
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = held;
}

/// `GPUOS_SLICES` for prolog and epilog.
///
/// # Safety
/// `env` as in [`environment`]; `prep` is null or a live `gres_prep_t`.
pub unsafe fn prep_environment(env: *mut *mut *mut c_char, prep: *mut c_void, node: i32) {
    let Some(plugin) = plugin() else { return };
    let bits = plugin.prep_bits(prep, node);
    // SAFETY: by the caller; the bits are those of the live record.
    unsafe { environment(env, bits, std::ptr::null_mut()) }
}

/// What prolog and epilog of a job are told.
///
/// # Safety
/// `job` is null or a live `gres_job_state_t`.
pub unsafe fn prep(job: *mut c_void) -> *mut c_void {
    // SAFETY: by the caller.
    plugin().map_or(std::ptr::null_mut(), |plugin| unsafe { plugin.prep(job) })
}

/// The devices of the node's slices for the task plugin, read once, after the step's instances were made.
pub fn devices() -> *mut c_void {
    let Some(plugin) = plugin() else {
        return std::ptr::null_mut();
    };
    let list = DEVICES.get_or_init(|| {
        let records = RECORDS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let held = *HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let files = slices::files(&records).unwrap_or_default();
        plugin.device_list(&known(&files, held)) as usize
    });
    *list as *mut c_void
}

/// Without the devices whose bit this node's bitmaps do not have: slurm.conf may name fewer than gres.conf.
fn known(files: &[PathBuf], held: Option<(usize, u64)>) -> Vec<Device> {
    let bits = held.map_or(files.len(), |(bits, _)| bits.min(files.len()));
    let free = !held.map_or(0, |(_, held)| held);
    // Who holds all slices of a node has no neighbour to be kept from.
    let closed = (free.trailing_zeros() as usize) < bits;
    let (files, closed) = (&files[..bits], closed.then_some(free.trailing_zeros()));
    if FEW.load(Ordering::Relaxed) {
        slices::few_devices(files, closed, !free)
    } else {
        slices::devices(files, closed)
    }
}
