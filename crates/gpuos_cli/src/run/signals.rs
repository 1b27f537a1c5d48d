//! Signals that `gpuos run` gets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register;

/// What was asked for by signals.
pub struct Signals {
    /// The program is to end, now.
    pub ends: Arc<AtomicBool>,
    /// srun has got Ctrl-C as well, and says what it does with it; the program is not started again.
    pub stops: Arc<AtomicBool>,
}

impl Signals {
    /// Takes them from now on.
    ///
    /// # Errors
    /// As of the kernel.
    pub fn take() -> io::Result<Signals> {
        let signals = Signals {
            ends: Arc::default(),
            stops: Arc::default(),
        };
        for signal in [SIGTERM, SIGHUP] {
            register(signal, signals.ends.clone())?;
        }
        register(SIGINT, signals.stops.clone())?;
        Ok(signals)
    }
}
