//! Slurm job_submit plugin: checks the gpuos options of a job when it is submitted, and refuses with
//! a sentence what could never run. `--gpuos-mig` and `--gpuos-share` become the GRES that Slurm counts, `--gpuos-mem` memory.
//!
//! Texts of users with control characters are refused in every job, and GRES `shard` by name where jobs share GPUs in turns with their memory.
//! Apart from that, jobs without gpuos options pass untouched, and so does everything when the release is not known or the site's files have a mistake: then one line in
//! slurmctld's log says so.
//!
//! - `request`, `shape` and `check`: what is asked for, against the cluster; `forbid`: against what the site forbids; `refusal`: why not,
//! - `spares`: what a job with spare nodes becomes; `checkpoint`: whether the site makes checkpoints, and the job has nodes enough,
//! - `memory`: host memory for GPUs whose programs have more than there is on them; `memory_share`: what of it a site lets a job have,
//! - `mig`: board, profiles and GRES of a request for slices; `share`: shards, and what they keep apart; `turns`: host memory for what is parked,
//! - `notes`: what of a job that is taken is ignored; `jobs` and `neighbours`: whether anybody has a name,
//! - `wake`: jobs that are let go after a requeue;
//! - `environment`: jobs of slurmrestd, which ask by variables; `hands`: what changes a description; `texts`: control characters; `state` and `site`: what is read at start and reconfigure.

mod check;
mod checkpoint;
mod environment;
mod forbid;
mod hands;
mod jobs;
mod memory;
mod memory_share;
mod messages;
mod mig;
mod neighbours;
mod notes;
mod refusal;
mod request;
mod shape;
mod share;
mod site;
mod spares;
mod state;
mod texts;
mod turns;
mod wake;

use std::ffi::{c_char, c_int, c_void};

use slurm_ffi::api::{self, Api};
use slurm_ffi::guard::guard;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use refusal::{Kind, Refusal};

slurm_ffi::plugin!(
    b"Checks of the gpuos options\0",
    b"job_submit/gpuos\0",
    "job_submit/gpuos"
);

const SUCCESS: c_int = 0;

/// `ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE`, the same in every release.
const NODE_CONFIG_UNAVAILABLE: c_int = 2014;

/// `job_modify` has an `err_msg` from this release on.
const MODIFY_HAS_MESSAGE: Release = Release::new(23, 2, 0);

const HANDS: hands::Hands = hands::Hands {
    rewrite,
    put,
    relist,
};

/// Called once, when slurmctld loads the plugin.
#[unsafe(no_mangle)]
pub extern "C" fn init() -> c_int {
    guard(
        "init",
        || SUCCESS,
        || {
            state::start(release());
            SUCCESS
        },
    )
}

/// Called for each new job, and each component of a heterogeneous one, with read locks held.
///
/// # Safety
/// Called by slurmctld: `description` is a live `job_desc_msg_t`, `message` null or a place for a
/// string on Slurm's heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_submit(
    description: *mut c_void,
    submit_uid: u32,
    message: *mut *mut c_char,
) -> c_int {
    guard(
        "job_submit",
        || SUCCESS,
        || match texts(description, submit_uid).and_then(|()| state::submit(description, &HANDS)) {
            Ok(None) => SUCCESS,
            Ok(Some(sentence)) => {
                // SAFETY: as the caller promises. sbatch, salloc and srun show it, and go on.
                unsafe { set_string(message, &sentence) };
                SUCCESS
            }
            // SAFETY: as the caller promises.
            Err(refusal) => unsafe { refuse(&refusal, message) },
        },
    )
}

/// Called for each change of a job, with read locks held.
///
/// # Safety
/// As [`job_submit`]; `record` is the live record of the job. `message` is garbage before 23.02.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_modify(
    description: *mut c_void,
    record: *mut c_void,
    submit_uid: u32,
    message: *mut *mut c_char,
) -> c_int {
    guard(
        "job_modify",
        || SUCCESS,
        || match texts(description, submit_uid).and_then(|()| state::modify(description, record)) {
            Ok(()) => {
                // Root is who lets jobs go: gpuosd and gpuos_mover.
                if submit_uid == 0 && state::is_let_go(description, record) {
                    api::schedule();
                }
                SUCCESS
            }
            Err(refusal) => {
                let message = if release() >= MODIFY_HAS_MESSAGE {
                    message
                } else {
                    std::ptr::null_mut()
                };
                // SAFETY: as the caller promises, and null where there is no such argument.
                unsafe { refuse(&refusal, message) }
            }
        },
    )
}

/// Checks the texts of a job, if they come from a user: those of root and of SlurmUser, as whom slurmctld runs, are their
/// own business.
fn texts(description: *mut c_void, submit_uid: u32) -> Result<(), Refusal> {
    // SAFETY: geteuid has no conditions.
    let own = unsafe { libc::geteuid() };
    match submit_uid == 0 || submit_uid == own {
        true => Ok(()),
        false => state::texts(description),
    }
}

fn release() -> Release {
    Release(plugin_version.load(std::sync::atomic::Ordering::Relaxed))
}

/// Hands the sentence to the user and says no.
///
/// # Safety
/// `message` is null, or a place with null or a string on Slurm's heap.
unsafe fn refuse(refusal: &Refusal, message: *mut *mut c_char) -> c_int {
    log::debug(&format!("refused: {}", refusal.sentence));
    // SAFETY: by the caller.
    unsafe { set_string(message, &refusal.sentence) };
    match refusal.kind {
        Kind::Invalid => libc::EINVAL,
        Kind::Impossible => NODE_CONFIG_UNAVAILABLE,
    }
}

/// Puts a text in place of a string of Slurm's; whether that was done.
///
/// # Safety
/// As [`refuse`]'s `message`.
unsafe fn set_string(place: *mut *mut c_char, text: &str) -> bool {
    let (Ok(api), false) = (Api::get(), place.is_null()) else {
        return false;
    };
    let text = api.xstrdup(text);
    if text.is_null() {
        return false;
    }
    // SAFETY: by the caller; xfree takes null and leaves null, and the new string is Slurm's too.
    unsafe {
        (api.xfree)(place.cast());
        *place = text;
    }
    true
}

/// Changes numbers of a job that is submitted. They are in the description of the call, at the offsets of the exact release, and were
/// read there just before: [`state::submit`] asks for it after that only.
fn put(description: *mut c_void, changes: &[spares::Change]) {
    for change in changes {
        match *change {
            spares::Change::Wide(at, number) => {
                let place = description.wrapping_byte_add(at).cast::<u32>();
                // SAFETY: see above. slurmctld made the description of a message of its own, which no other thread has.
                unsafe { place.write_unaligned(number) };
            }
            spares::Change::Narrow(at, number) => {
                let place = description.wrapping_byte_add(at).cast::<u16>();
                // SAFETY: as above.
                unsafe { place.write_unaligned(number) };
            }
            spares::Change::Long(at, number) => {
                let place = description.wrapping_byte_add(at).cast::<u64>();
                // SAFETY: as above.
                unsafe { place.write_unaligned(number) };
            }
        }
    }
}

/// Changes what a job that is submitted asks of each node or for each GPU; whether that was done.
///
/// `place` is in the description of the call, at the offset of the exact release, and was read as null or a
/// string just before: [`state::submit`] asks for it after that only.
fn rewrite(place: *mut *mut c_char, text: &str) -> bool {
    // SAFETY: see above. slurmctld made the description of a message of its own, which no other thread has.
    unsafe { set_string(place, text) }
}

/// Leaves out entries of an array of texts of a job that is submitted, and adds others; whether that was done. `kept` has as many elements as
/// the array.
///
/// The array is in the description of the call, at the offsets of the exact release, and was read just before: [`state::submit`] asks for it
/// after that only.
fn relist(description: *mut c_void, list: hands::List, kept: &[bool], added: &[String]) -> bool {
    let Ok(api) = Api::get() else {
        return false;
    };
    let free = |mut text: *mut c_void| {
        // SAFETY: null or of Slurm's heap, and nobody has it; xfree takes null.
        unsafe { (api.xfree)(&raw mut text) }
    };
    let made: Vec<*mut c_char> = added.iter().map(|text| api.xstrdup(text)).collect();
    let count = kept.iter().filter(|stays| **stays).count() + made.len();
    // Slurm ends such arrays with null, and counts without it.
    let array = api.xcalloc_pointers(count + 1);
    let counted = u32::try_from(count);
    let (Ok(counted), false, false) = (
        counted,
        array.is_null(),
        made.iter().any(|text| text.is_null()),
    ) else {
        made.into_iter().for_each(|text| free(text.cast()));
        free(array.cast());
        return false;
    };
    let place = description.wrapping_byte_add(list.array);
    let place = place.cast::<*mut *mut c_char>();
    // SAFETY: see above. slurmctld made the description of a message of its own, which no other thread has.
    let old = unsafe { place.read_unaligned() };
    let mut next = 0;
    for (index, stays) in kept.iter().enumerate() {
        // SAFETY: the old array has as many elements as `kept`, and each text has one owner: the new array, or nobody.
        let text = unsafe { old.add(index).read() };
        match stays {
            // SAFETY: the new array has an element for each that stays or was made, and one more.
            true => unsafe { array.add(next).write(text) },
            false => free(text.cast()),
        }
        next += usize::from(*stays);
    }
    for (index, text) in made.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { array.add(next + index).write(text) };
    }
    let counts = description.wrapping_byte_add(list.count).cast::<u32>();
    // SAFETY: as for `old`.
    unsafe {
        place.write_unaligned(array);
        counts.write_unaligned(counted);
    }
    // Its texts are the new array's.
    free(old.cast());
    true
}
