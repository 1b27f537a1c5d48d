//! Slurm's own log, found at run time; stderr in programs that have none.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use crate::api;

static PREFIX: OnceLock<&'static str> = OnceLock::new();

/// Sets the name that starts each line, for example `select/gpuos`. First caller wins.
pub fn set_prefix(prefix: &'static str) {
    let _ = PREFIX.set(prefix);
}

/// An error: something does not work as configured.
pub fn error(text: &str) {
    write(c"slurm_error", text);
}

/// A fact an administrator wants to find at the default log level.
pub fn info(text: &str) {
    write(c"slurm_info", text);
}

/// Detail for `SlurmctldDebug=debug` and above.
pub fn debug(text: &str) {
    write(c"slurm_debug", text);
}

fn write(function: &std::ffi::CStr, text: &str) {
    let prefix = PREFIX.get().copied().unwrap_or("gpuos");
    let line: Vec<u8> = format!("{prefix}: {text}")
        .bytes()
        .filter(|b| *b != 0)
        .collect();
    let Ok(line) = CString::new(line) else { return };
    type Log = unsafe extern "C" fn(*const c_char, ...) -> c_int;
    match api::symbol(function) {
        // SAFETY: slurm_error, slurm_info and slurm_debug are printf-like in every release; the format
        // has one %s and its argument is NUL-terminated and lives over the call.
        Some(address) => unsafe {
            let log: Log = std::mem::transmute::<*mut libc::c_void, Log>(address);
            log(c"%s".as_ptr(), line.as_ptr());
        },
        None => eprintln!("{}", line.to_string_lossy()),
    }
}
