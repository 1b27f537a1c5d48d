//! How programs get the driver's functions: by `dlsym` and by `cuGetProcAddress`. What is found is answered by its wrapper; a
//! function that the table does not know pins the process, since it may touch memory behind the gate.

use std::ffi::{CStr, c_char};

use crate::{driver, process, record, table};

/// Whether a name can be one of the driver's: `cu` and a capital.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn is_drivers(name: *const c_char) -> bool {
    // SAFETY: the caller's promise; each byte is looked at only if none before it ended the string.
    let at = |index: usize| unsafe { *name.cast::<u8>().add(index) };
    !name.is_null() && at(0) == b'c' && at(1) == b'u' && at(2).is_ascii_uppercase()
}

/// A call of `dlsym` from `caller`. `None`: libc's answer is right.
pub(crate) fn by_loader(handle: usize, name: *const c_char, caller: usize) -> Option<usize> {
    // SAFETY: dlsym wants a C string.
    if !unsafe { is_drivers(name) } || driver::is_opening() {
        return None;
    }
    if process::grant().is_none() {
        record::tell_none();
        return None;
    }
    // The driver looks up its own functions too.
    if driver::is_at(caller) {
        return None;
    }
    let found = driver::look(handle, name);
    if found == 0 {
        return None;
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    match table::export(text) {
        // Of another library of that name, or no driver: that is not ours.
        Some(index) if driver::real(index) == found => Some(wrapped(index).unwrap_or(found)),
        Some(_) => Some(found),
        None => {
            if driver::exports(name, found) {
                unknown(text);
            }
            Some(found)
        }
    }
}

fn wrapped(index: usize) -> Option<usize> {
    Some(table::ROWS[index].wrapper.address()).filter(|address| *address != 0)
}

fn unknown(name: &[u8]) {
    let name = String::from_utf8_lossy(name);
    process::pin(format_args!(
        "the program asks the driver for '{}', which this gpuos does not know",
        name.escape_debug()
    ));
}

/// Functions by which one can see whether another library stands before this one.
const TELLING: [&CStr; 5] = [
    c"cuInit",
    c"cuMemAlloc_v2",
    c"cuLaunchKernel",
    c"cuMemcpyHtoDAsync_v2",
    c"cuGetProcAddress_v2",
];

/// A library that has functions of the driver too, and is found before this one: what it hands to the driver itself nobody sees.
pub(crate) fn look_for_others() {
    for name in TELLING {
        let found = driver::look(libc::RTLD_DEFAULT as usize, name.as_ptr());
        // The wrapper's address is no help: where another library has its name, the loader gives that one's for it.
        if found == 0 || driver::is_own(found) || driver::is_at(found) {
            continue;
        }
        let library = driver::library_of(found);
        process::pin(format_args!(
            "{} stands between the program and gpuos with a {} of its own",
            library.escape_debug(),
            name.to_string_lossy()
        ));
        return;
    }
}

/// For a thread's own default stream.
const OWN_STREAM: u64 = 2;

/// What `cuGetProcAddress` answers instead of `found`.
pub(crate) fn by_driver(name: &[u8], found: usize, version: u32, flags: u64) -> usize {
    if let Some(index) = driver::row_at(found) {
        return wrapped(index).unwrap_or(found);
    }
    // The driver gave a function under another address than its export has.
    if !table::is_base(name) || version > table::NEWEST {
        // The loader may have given the driver a wrapper for the function of its own that it answers.
        if !driver::is_own(found) {
            unknown(name);
        }
        return found;
    }
    let form = table::form(name, version, flags & OWN_STREAM != 0);
    match form.and_then(|index| Some((index, wrapped(index)?))) {
        Some((index, wrapper)) => {
            driver::learn(index, found);
            wrapper
        }
        None => found,
    }
}
