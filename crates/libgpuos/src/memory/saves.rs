//! The functions of `include/gpuos.h` about checkpoints of memory.

use std::ffi::{OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gpuos_fabric::{Failure, ObjectId, saved};

use super::calls::{on, run, wrong};
use super::place::{give, give_text, text};

/// Registers an object for checkpoints.
///
/// # Safety
/// `name` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_register(mem: u64, object: u64, name: *const c_char) -> c_int {
    on("gpuos_mem_register", mem, |fabric| {
        // SAFETY: as this function's own.
        let name = unsafe { text(name) }.map(|name| name.to_str());
        let name = name
            .transpose()
            .map_err(|_| wrong("a name that is not UTF-8"))?;
        fabric.register(ObjectId(object), name)?;
        Ok(0)
    })
}

/// A registered object.
///
/// # Safety
/// `object` is NULL or may be written; `name` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_registered(
    mem: u64,
    index: usize,
    object: *mut u64,
    name: *mut c_char,
    size: usize,
) -> c_int {
    on("gpuos_mem_registered", mem, |fabric| {
        let all = fabric.registered()?;
        let Some((found, its_name)) = all.get(index) else {
            return Ok(0);
        };
        if !name.is_null() {
            // SAFETY: as this function's own.
            unsafe { give_text(name, size, its_name, false) }?;
        }
        // SAFETY: as this function's own.
        unsafe { give(object, found.0) }?;
        Ok(1)
    })
}

/// The time of now.
///
/// # Safety
/// `time` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_now(mem: u64, time: *mut u64) -> c_int {
    on("gpuos_mem_now", mem, |fabric| {
        let now = fabric.now()?;
        // SAFETY: as this function's own.
        unsafe { give(time, now) }?;
        Ok(0)
    })
}

/// The next part that was written.
///
/// # Safety
/// `offset` and `length` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_written(
    mem: u64,
    object: u64,
    since: u64,
    from: u64,
    offset: *mut u64,
    length: *mut u64,
) -> c_int {
    on("gpuos_mem_written", mem, |fabric| {
        let Some(span) = fabric.written(ObjectId(object), since, from)? else {
            return Ok(0);
        };
        // SAFETY: as this function's own.
        unsafe {
            give(offset, span.offset)?;
            give(length, span.length)?;
        }
        Ok(1)
    })
}

/// The path of a folder, and flags, of which there are none yet.
///
/// # Safety
/// `folder` is NULL or ends with a NUL, and stays as it is as long as the path is used.
unsafe fn path<'a>(folder: *const c_char, flags: c_uint) -> Result<&'a Path, Failure> {
    if flags != 0 {
        return Err(wrong("unknown flags: give 0"));
    }
    // SAFETY: as this function's own.
    let folder = unsafe { text(folder) }.ok_or_else(|| wrong("a NULL folder"))?;
    Ok(Path::new(OsStr::from_bytes(folder.to_bytes())))
}

/// Saves all registered objects.
///
/// # Safety
/// `folder` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_save(mem: u64, folder: *const c_char, flags: c_uint) -> c_int {
    on("gpuos_mem_save", mem, |fabric| {
        // SAFETY: as this function's own.
        fabric.save(unsafe { path(folder, flags) }?)?;
        Ok(0)
    })
}

/// Loads all registered objects.
///
/// # Safety
/// `folder` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_load(mem: u64, folder: *const c_char, flags: c_uint) -> c_int {
    on("gpuos_mem_load", mem, |fabric| {
        // SAFETY: as this function's own.
        fabric.load(unsafe { path(folder, flags) }?)?;
        Ok(0)
    })
}

/// An object of a save.
///
/// # Safety
/// `folder` is NULL or ends with a NUL; `name` is NULL or has room for `size` bytes; `bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_saved(
    folder: *const c_char,
    index: usize,
    name: *mut c_char,
    size: usize,
    bytes: *mut u64,
) -> c_int {
    run("gpuos_mem_saved", || {
        // SAFETY: as this function's own.
        let all = saved(unsafe { path(folder, 0) }?)?;
        let Some((its_name, its_bytes)) = all.get(index) else {
            return Ok(0);
        };
        // SAFETY: as this function's own.
        unsafe {
            if !name.is_null() {
                give_text(name, size, its_name, false)?;
            }
            if !bytes.is_null() {
                give(bytes, *its_bytes)?;
            }
        }
        Ok(1)
    })
}
