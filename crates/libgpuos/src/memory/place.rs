//! Numbers, structures and texts at C's pointers.

use std::ffi::{CStr, c_char};

use gpuos_fabric::{Failure, Why};

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Why::Wrong, text)
}

/// Writes a value.
///
/// # Safety
/// `place` is NULL or may be written.
pub(super) unsafe fn give<T: Copy>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(wrong("a NULL pointer for a result"));
    }
    // SAFETY: the caller says that it may be written; nothing that has to be dropped is there.
    unsafe { place.write(value) };
    Ok(())
}

/// A text, or none for NULL.
///
/// # Safety
/// `text` is NULL or ends with a NUL.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise; it is read before the call returns.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Writes a text and its NUL; `cut`: as much of it as there is room for.
///
/// # Safety
/// `place` is NULL or has room for `size` bytes.
pub(super) unsafe fn give_text(
    place: *mut c_char,
    size: usize,
    value: &str,
    cut: bool,
) -> Result<(), Failure> {
    let mut end = value.len();
    if cut {
        end = end.min(size.saturating_sub(1));
        while !value.is_char_boundary(end) {
            end -= 1;
        }
    }
    if place.is_null() || end >= size {
        return Err(wrong(format!(
            "the text needs {} bytes, and the caller has room for {size}",
            end + 1
        )));
    }
    // SAFETY: there is room for the text and its NUL; the caller's memory is none of ours.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr().cast(), place, end);
        place.add(end).write(0);
    }
    Ok(())
}

/// A structure whose first field is its size, as the program was built with it: fields that the program does not know are zero.
///
/// # Safety
/// `from` is NULL or as large as it says; `T` is of plain numbers and pointers, for which zeros are good, and begins with a `usize`.
pub(super) unsafe fn sized<T: Copy>(from: *const T) -> Result<T, Failure> {
    if from.is_null() {
        return Err(wrong("a NULL structure"));
    }
    // SAFETY: it begins with its size.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    let own = size_of::<T>();
    if size < size_of::<usize>() || size > 4 * own {
        return Err(wrong(format!(
            "a structure of {size} bytes: set its field size to sizeof"
        )));
    }
    // SAFETY: zeros are good for it, and as many bytes are copied as both have.
    unsafe {
        let mut whole: T = std::mem::zeroed();
        let count = size.min(own);
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut whole).cast::<u8>(), count);
        Ok(whole)
    }
}

/// Fills a structure whose first field is its size, as far as the program knows it.
///
/// # Safety
/// As for [`sized`], and it may be written.
pub(super) unsafe fn give_sized<T: Copy>(place: *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: as this function's own. It is read for its size.
    unsafe { sized(place.cast_const()) }?;
    // SAFETY: as above; the size itself stays as it is.
    unsafe {
        let first = size_of::<usize>();
        let size = place.cast::<usize>().read_unaligned().min(size_of::<T>());
        std::ptr::copy_nonoverlapping(
            (&raw const value).cast::<u8>().add(first),
            place.cast::<u8>().add(first),
            size - first,
        );
    }
    Ok(())
}
