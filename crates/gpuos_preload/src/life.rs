//! The life of the process: `cuInit`, `fork` and the end.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::broker::{self, Asked};
use crate::mutant::{self, Mutant};
use crate::table::index;
use crate::{driver, gate, lookup, mover, process, record, recorder, stow, watch};

/// gpuosd has said that the process is to use no GPU.
static DENIED: AtomicBool = AtomicBool::new(false);

/// Whether the process is to use no GPU.
pub(crate) fn is_denied() -> bool {
    DENIED.load(Ordering::Relaxed)
}

/// The driver was initialised. From here on a child of `fork` has none.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    if process::grant().is_none() {
        return record::tell_none();
    }
    BEGUN.call_once(|| {
        extern "C" fn child() {
            if !mutant::is(Mutant::Fork) {
                gate::off();
            }
            watch::forget_trace();
            recorder::close();
            broker::forget();
            stow::forget();
        }
        extern "C" fn end() {
            mover::stop();
        }
        // SAFETY: functions without arguments. What runs in the child stores one word, and takes no lock.
        let registered = unsafe { libc::pthread_atfork(None, None, Some(child)) == 0 && libc::atexit(end) == 0 };
        if registered && driver::real(index::cuMemAddressReserve) != 0 {
            match broker::begin() {
                // Said by those who asked; the gate stays off, and every call goes to the driver.
                Asked::Refused => return record::tell_none(),
                Asked::Denied => {
                    DENIED.store(true, Ordering::Relaxed);
                    return record::tell_none();
                }
                // Sealed already.
                Asked::Wait => {}
                Asked::Go => gate::on(),
            }
            record::begin();
            lookup::look_for_others();
            mover::begin();
        } else {
            process::say(format_args!("the driver has no virtual memory, or libc no room for a handler: the program runs without gpuos's memory"));
            record::tell_none();
        }
    });
}
