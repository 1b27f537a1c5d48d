//! No panic crosses C: every exported function runs its body in [`guard`].

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{log, messages};

static DEGRADED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

thread_local! {
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether an entry of this plugin has panicked. From then on every guarded
/// entry goes straight to its fallback, until the daemon restarts.
pub fn degraded() -> bool {
    DEGRADED.load(Ordering::Relaxed)
}

/// Runs `body`; if it panics, or an entry panicked before, runs `fallback`.
///
/// `symbol` names the entry in the one log line that a panic leaves. State that
/// `body` changes in Slurm's structures has to be restored by drop guards.
pub fn guard<T>(symbol: &'static str, fallback: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    if degraded() {
        return fallback();
    }
    // The hook of this plugin's own copy of std: the daemon's stderr stays clean and
    // the log line can say where.
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info
                .location()
                .map_or_else(String::new, |l| format!("{}:{}", l.file(), l.line()));
            let _ = PLACE.try_with(|cell| *cell.borrow_mut() = place);
        }));
    });
    let run = AssertUnwindSafe(|| {
        inject(symbol);
        body()
    });
    match catch_unwind(run) {
        Ok(value) => value,
        Err(payload) => {
            DEGRADED.store(true, Ordering::Relaxed);
            let place = PLACE
                .try_with(|cell| cell.borrow().clone())
                .unwrap_or_default();
            let what = message(payload.as_ref());
            log::error(&messages::internal_error(symbol, what, place));
            // A payload whose own drop panics would unwind into C.
            std::mem::forget(payload);
            fallback()
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A place where a debug build can panic, named by `$GPUOS_PANIC_AT`. Nothing in a release build, which is what `make install`
/// installs.
pub fn inject(symbol: &str) {
    if cfg!(debug_assertions) && std::env::var("GPUOS_PANIC_AT").is_ok_and(|at| at == symbol) {
        panic!("injected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_in_the_fallback_and_stays_there() {
        assert_eq!(guard("first", || 1, || 2), 2);
        assert_eq!(guard("second", || 1, || panic!("on purpose")), 1);
        assert!(degraded());
        assert_eq!(guard("third", || 1, || 2), 1);
    }
}
