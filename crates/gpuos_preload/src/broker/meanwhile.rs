//! Listening to gpuosd while the program's work is waited for.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{FromProgram, HAS_WORKING, ToProgram};

use super::{AGAIN, Broker, IDLE, LOOK, TELL};
use crate::process;

impl Broker {
    /// Does what may take as long as the program's work does. gpuosd is told so each second, and what it says meanwhile is kept; a sentence for
    /// the user is said at once, as it may be the last one. `None`: an error of gpuos ended it.
    pub(super) fn meanwhile<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let done = self.aside.begin(work);
        let (begun, mut told, mut tried) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            match done.recv_timeout(LOOK) {
                Ok(done) => return Some(done),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < IDLE => continue,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stream.is_none() && tried.elapsed() >= AGAIN {
                tried = Instant::now();
                // Who has parked has no work.
                let parked = self.parked.is_some();
                let _ = self.connect(Some(parked));
            }
            match self.next(Duration::ZERO) {
                Ok(Some(ToProgram::Note { text })) => process::say(format_args!("{text}")),
                Ok(Some(other)) => self.later.push_back(other),
                Ok(None) => {}
                Err(_) => self.close(),
            }
            if told.elapsed() >= TELL && self.version >= HAS_WORKING {
                told = Instant::now();
                self.say(FromProgram::Working);
            }
        }
    }
}
