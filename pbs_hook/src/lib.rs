//! libgpuos_pbs_hook.so: what `gpuos_hook.py` loads for events of pbs_mom. `include/gpuos_pbs.h` has its three functions.
//!
//! All decisions are those of [`gpuos_pbs::hook`]. Here is what C needs: texts with an end, no panic that leaves a function, and
//! not a byte on standard output and error, which belong to the user's job where the event is a launch. And what they do not do: lines
//! to the daemons of this host and back.

mod budget;
mod daemons;
mod mutant;

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::Once;

use gpuos_pbs::hook::event::Verdict;
use gpuos_pbs::hook::{MOST_BYTES, Step, begin};

/// What hook and library have in common: another number is another form of JSON or another set of functions.
const VERSION: u32 = 1;

/// The answer where there is none.
const FAILED: &str = "libgpuos_pbs_hook.so failed on this event; report it with the event, which the hook's debug=true keeps";

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_pbs_version() -> u32 {
    VERSION
}

/// The answer to an event, both as JSON, for [`gpuos_pbs_free`]; a null pointer where there is no memory for it.
///
/// # Safety
/// `json` is null, or points to bytes that end with a NUL and that nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_pbs_event(json: *const c_char) -> *mut c_char {
    let said = silently(|| {
        // SAFETY: the caller's promise is that of `read`.
        match unsafe { read(json) } {
            Ok(text) => {
                mutant::panic_if_planted(&text);
                match begin(&text) {
                    Step::Done(said) => said,
                    Step::Ask(question) => {
                        question.answer(&daemons::ask(&question, budget::of(&text)))
                    }
                }
            }
            Err(why) => Verdict::error_json(&why),
        }
    });
    // JSON has no NUL: it writes one as an escape.
    let said = said.unwrap_or_else(|| Verdict::error_json(FAILED));
    CString::new(said).map_or(std::ptr::null_mut(), CString::into_raw)
}

/// Gives back an answer. A null pointer is none.
///
/// # Safety
/// `answer` is null, or came from [`gpuos_pbs_event`] of this library and was not given back yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_pbs_free(answer: *mut c_char) {
    if !answer.is_null() {
        // SAFETY: it is a `CString` that `into_raw` gave away, and nobody else has it, as the caller promises.
        drop(unsafe { CString::from_raw(answer) });
    }
}

/// The text at an address, up to its NUL or one byte more than an event may have.
///
/// # Safety
/// As [`gpuos_pbs_event`].
unsafe fn read(json: *const c_char) -> Result<String, String> {
    if json.is_null() {
        return Err("there is no event".into());
    }
    let mut bytes = Vec::new();
    for at in 0..=MOST_BYTES {
        // SAFETY: no byte before this one was a NUL, so the text goes on at least up to here, as the caller promises.
        let byte = unsafe { json.add(at).read() };
        if byte == 0 {
            break;
        }
        bytes.push(byte.to_ne_bytes()[0]);
    }
    String::from_utf8(bytes).map_err(|_| "the event is no UTF-8".into())
}

thread_local! {
    /// Whether this thread is inside a call, where a panic is caught and says nothing.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call; `None` after a panic, of which nothing is printed. Panics of others in the process are as they were.
fn silently<T>(call: impl FnOnce() -> T + std::panic::UnwindSafe) -> Option<T> {
    static SILENT: Once = Once::new();
    SILENT.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !INSIDE.get() {
                before(panic);
            }
        }));
    });
    INSIDE.set(true);
    let done = catch_unwind(call);
    INSIDE.set(false);
    done.ok()
}
