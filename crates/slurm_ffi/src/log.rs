//! Slurm's own log, found at run time; stderr in programs that have none.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use gpuos_model::messages::Message;

use crate::api;

static PREFIX: OnceLock<&'static str> = OnceLock::new();

/// Sets the name that starts each line, for example `select/gpuos`. First caller wins.
pub fn set_prefix(prefix: &'static str) {
    let _ = PREFIX.set(prefix);
}

type Log = unsafe extern "C" fn(*const c_char, ...) -> c_int;

/// An error: something does not work as configured. Who reads it acts, so it comes from a table of messages.
pub fn error(text: &Message) {
    static FOUND: OnceLock<Log> = OnceLock::new();
    write(&FOUND, c"slurm_error", text);
}

/// A fact an administrator wants to find at the default log level. From a table, too.
pub fn info(text: &Message) {
    static FOUND: OnceLock<Log> = OnceLock::new();
    write(&FOUND, c"slurm_info", text);
}

/// Detail for `SlurmctldDebug=debug` and above.
pub fn debug(text: &str) {
    static FOUND: OnceLock<Log> = OnceLock::new();
    write(&FOUND, c"slurm_debug", text);
}

fn write(found: &OnceLock<Log>, name: &std::ffi::CStr, text: &str) {
    let prefix = PREFIX.get().copied().unwrap_or("gpuos");
    // One line in the log, whatever a user wrote into what it is about.
    let line = format!("{prefix}: {}", gpuos_model::screen::line(text));
    let Ok(line) = CString::new(line) else { return };
    let log = found.get().copied().or_else(|| {
        // SAFETY: slurm_error, slurm_info and slurm_debug are printf-like in every release.
        let log: Log = unsafe { std::mem::transmute(api::symbol(name)?) };
        let _ = found.set(log);
        Some(log)
    });
    match log {
        // SAFETY: the format has one %s, its argument is NUL-terminated and lives over the call.
        Some(log) => unsafe {
            log(c"%s".as_ptr(), line.as_ptr());
        },
        None => eprintln!("{}", line.to_string_lossy()),
    }
}
