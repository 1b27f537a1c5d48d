//! C's pointers, as the words that calls come with.

/// Writes a value to where a call wants it; nowhere if that is null.
pub(crate) fn give<T>(to: u64, value: T) {
    if to != 0 {
        // SAFETY: by CUDA's contract the caller has room for this value there. It need not be aligned.
        unsafe { (to as *mut T).write_unaligned(value) };
    }
}

/// Reads a value that a call points to; `None` if that is null.
pub(crate) fn take<T: Copy>(from: u64) -> Option<T> {
    // SAFETY: by CUDA's contract there is such a value. It need not be aligned.
    (from != 0).then(|| unsafe { (from as *const T).read_unaligned() })
}

/// A C string that a call points to; empty if that is null.
pub(crate) fn text<'a>(from: u64) -> &'a [u8] {
    if from == 0 {
        return b"";
    }
    // SAFETY: by the contract of those calls it is a C string, which is there as long as the call lasts.
    unsafe { std::ffi::CStr::from_ptr(from as *const std::ffi::c_char) }.to_bytes()
}
