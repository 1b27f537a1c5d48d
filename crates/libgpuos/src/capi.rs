//! The functions of `include/gpuos.h`. No panic leaves them: it becomes `GPUOS_CKPT_ERROR`.

use std::ffi::{CStr, c_char, c_int, c_long};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use crate::handle::{ERROR, Handle, reason};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// The version of the library, as text that stays.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Makes a handle for a rank, or for what the environment says if `rank` and `size` are negative.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_ckpt_open(rank: c_long, size: c_long) -> *mut Handle {
    let opened = catch_unwind(|| {
        let given = (rank >= 0 || size >= 0).then(|| {
            // A negative half is no rank of any size, and is refused as such.
            let half = |number| u64::try_from(number).unwrap_or(u64::MAX);
            (half(rank), half(size))
        });
        Box::into_raw(Box::new(Handle::open(given)))
    });
    opened.unwrap_or(ptr::null_mut())
}

/// Ends a handle; nothing for NULL.
///
/// # Safety
///
/// `handle` is NULL or of [`gpuos_ckpt_open`], and no call uses it at the same time or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_close(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: the caller gives back what `gpuos_ckpt_open` made with `Box::into_raw`, once, and nobody else uses it.
        let owned = unsafe { Box::from_raw(handle) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
    }
}

/// 1: the job makes checkpoints; 0: it does not.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_available(handle: *const Handle) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| c_int::from(handle.available())) }
}

/// The rank, or an error.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_rank(handle: *const Handle) -> c_int {
    let rank = |handle: &Handle| handle.rank().map_or(ERROR, |rank| rank.rank().into());
    // SAFETY: as this function's own.
    unsafe { with(handle, rank) }
}

/// How many ranks there are, or an error.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_size(handle: *const Handle) -> c_int {
    let size = |handle: &Handle| handle.rank().map_or(ERROR, |rank| rank.size().into());
    // SAFETY: as this function's own.
    unsafe { with(handle, size) }
}

/// Joins and waits for the answer.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_join(handle: *const Handle, limit_ms: c_long) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| handle.join(limit(limit_ms))) }
}

/// The checkpoint that the program goes on from.
///
/// # Safety
///
/// `handle` is NULL or an open one; `number` is NULL or may be written; `folder` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_restored(
    handle: *const Handle,
    number: *mut u32,
    folder: *mut c_char,
    size: usize,
) -> c_int {
    let restored = |handle: &Handle| {
        let Some((checkpoint, path)) = handle.restored() else {
            return handle.refuse("the program goes on from no checkpoint");
        };
        // SAFETY: the caller says that both may be written, and names the room.
        unsafe {
            give(number, checkpoint);
            text(handle, path.as_os_str().as_bytes(), folder, size)
        }
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, restored) }
}

/// The program can begin from a checkpoint of any number of ranks.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_any_ranks(handle: *const Handle) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, Handle::any_ranks) }
}

/// How many ranks have made the checkpoint that the program goes on from.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_restored_ranks(handle: *const Handle) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, Handle::restored_ranks) }
}

/// Says that the checkpoint cannot be loaded.
///
/// # Safety
///
/// `handle` is NULL or an open one; `why` is NULL or a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_refuse(handle: *const Handle, why: *const c_char) -> c_int {
    let said = match why.is_null() {
        true => String::new(),
        // SAFETY: the caller says that it ends with a NUL; it is read before this returns.
        false => unsafe { CStr::from_ptr(why) }
            .to_string_lossy()
            .into_owned(),
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| handle.refuse_given(&said)) }
}

/// Asks for a checkpoint.
///
/// # Safety
///
/// `handle` is NULL or of [`gpuos_ckpt_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_ask(handle: *const Handle) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, Handle::ask) }
}

/// `GPUOS_CKPT_BEFORE_LOST`: the checkpoint that was saved last came to nothing, and which; 0: it did not, as far as is known.
///
/// # Safety
///
/// `handle` is NULL or an open one; `number` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_lost(handle: *const Handle, number: *mut u32) -> c_int {
    let lost = |handle: &Handle| {
        handle.lost(|lost| {
            // SAFETY: the caller says that it may be written.
            unsafe { give(number, lost) };
        })
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, lost) }
}

/// 1: a checkpoint is wanted, and which; 0: none.
///
/// # Safety
///
/// `handle` is NULL or an open one; `number` and `why` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_wanted(
    handle: *const Handle,
    number: *mut u32,
    why: *mut c_int,
) -> c_int {
    let wanted = |handle: &Handle| match handle.wanted() {
        None => 0,
        Some(request) => {
            // SAFETY: the caller says that both may be written.
            unsafe {
                give(number, request.number);
                give(why, reason(request.reason));
            }
            1
        }
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, wanted) }
}

/// The folder for this rank's files of a checkpoint.
///
/// # Safety
///
/// `handle` is NULL or an open one; `folder` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_folder(
    handle: *const Handle,
    number: u32,
    folder: *mut c_char,
    size: usize,
) -> c_int {
    let asked = |handle: &Handle| {
        handle.folder(number, |path| {
            // SAFETY: the caller names the room.
            unsafe { text(handle, path.as_os_str().as_bytes(), folder, size) }
        })
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, asked) }
}

/// Says that this rank's files of a checkpoint are complete.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_ready(handle: *const Handle, number: u32) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| handle.ready(number)) }
}

/// What has become of a checkpoint.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_outcome(handle: *const Handle, number: u32) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| handle.outcome(number)) }
}

/// Waits until a checkpoint has ended.
///
/// # Safety
///
/// `handle` is NULL or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_wait(
    handle: *const Handle,
    number: u32,
    limit_ms: c_long,
) -> c_int {
    // SAFETY: as this function's own.
    unsafe { with(handle, |handle| handle.wait(number, limit(limit_ms))) }
}

/// Why the last call that failed did, cut to the room that there is.
///
/// # Safety
///
/// `handle` is NULL or an open one; `message` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_ckpt_message(
    handle: *const Handle,
    message: *mut c_char,
    size: usize,
) -> c_int {
    let told = |handle: &Handle| {
        let why = handle.message();
        let mut end = size.saturating_sub(1).min(why.len());
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: the caller names the room, and what is cut fits.
        unsafe { text(handle, &why.as_bytes()[..end], message, size) }
    };
    // SAFETY: as this function's own.
    unsafe { with(handle, told) }
}

/// Runs `what` on the handle; NULL and panics are errors.
///
/// # Safety
///
/// `handle` is NULL or of [`gpuos_ckpt_open`] and not closed before this returns.
unsafe fn with(handle: *const Handle, what: impl FnOnce(&Handle) -> c_int) -> c_int {
    // SAFETY: the caller's handle is NULL or lives; it is shared only, and has a lock of its own.
    let Some(handle) = (unsafe { handle.as_ref() }) else {
        return ERROR;
    };
    catch_unwind(AssertUnwindSafe(|| what(handle))).unwrap_or(ERROR)
}

/// Writes a number where there is a place for it.
///
/// # Safety
///
/// `place` is NULL or may be written.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller says that it may be written; `T` is a number, so nothing is dropped.
        unsafe { place.write(value) };
    }
}

/// Writes a text and its NUL.
///
/// # Safety
///
/// `place` is NULL or has room for `size` bytes.
unsafe fn text(handle: &Handle, value: &[u8], place: *mut c_char, size: usize) -> c_int {
    if place.is_null() || value.len() >= size {
        let needed = value.len() + 1;
        return handle.refuse(format!(
            "the text needs {needed} bytes, and the caller has room for {size}"
        ));
    }
    // SAFETY: there is room for the text and its NUL; the caller's memory is none of ours.
    unsafe {
        ptr::copy_nonoverlapping(value.as_ptr().cast(), place, value.len());
        place.add(value.len()).write(0);
    }
    0
}

/// Milliseconds; negative: no limit.
fn limit(ms: c_long) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
