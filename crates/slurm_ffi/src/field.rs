//! Fields of Slurm's records.

use std::ffi::{CStr, c_char, c_void};

use crate::mem::Plain;

/// Reads a field.
///
/// # Safety
/// `base + offset` is a readable place of a live record that holds a `T`.
pub(crate) unsafe fn field<T: Plain>(base: *mut c_void, offset: usize) -> T {
    // SAFETY: by the caller.
    unsafe { base.cast::<u8>().add(offset).cast::<T>().read_unaligned() }
}

/// Pointer to a field.
///
/// # Safety
/// `base + offset` lies in a live record.
pub(crate) unsafe fn place<T>(base: *mut c_void, offset: usize) -> *mut T {
    // SAFETY: by the caller.
    unsafe { base.cast::<u8>().add(offset).cast() }
}

/// A string of Slurm's, if it is UTF-8.
///
/// # Safety
/// `pointer` is 0 or a NUL-terminated string that lives for `'a`.
pub(crate) unsafe fn text<'a>(pointer: usize) -> Option<&'a str> {
    if pointer == 0 {
        return None;
    }
    // SAFETY: by the caller.
    unsafe { CStr::from_ptr(pointer as *const c_char) }
        .to_str()
        .ok()
}
