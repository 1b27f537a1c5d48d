//! The connection to gpuosd.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{FromProgram, Lines, NOT_UNDERSTOOD, OLDEST, ToProgram};

use super::{Broker, Gpu, LOOK, OPEN, PATIENCE};
use crate::process;

impl Broker {
    /// Connects, and says and asks what has to be. `parked`: it was connected before.
    pub(super) fn connect(&mut self, parked: Option<bool>) -> io::Result<()> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(LOOK))?;
        OPEN.store(stream.as_raw_fd(), Ordering::SeqCst);
        self.lines = Lines::default();
        // What was said on a connection that is lost is said again.
        self.later.clear();
        self.stream = Some(stream);
        let bytes = process::grant().map_or(0, |grant| grant.bytes);
        self.say(FromProgram::Hello {
            version: self.version,
        });
        self.demoted = [None, self.demoted[0].or(self.demoted[1])];
        match parked {
            Some(true) if self.stowed => self.say(FromProgram::ReturnStowed),
            Some(parked) => self.say(FromProgram::Return { parked }),
            None => {}
        }
        for at in 0..self.gpus.len() {
            let Gpu {
                uuid: gpu,
                total: hbm,
                ..
            } = self.gpus[at];
            self.say(FromProgram::Ask { gpu, bytes, hbm });
        }
        Ok(())
    }

    /// Whether a refusal is that of a gpuosd of an earlier release: then it is asked again, by what it speaks.
    pub(super) fn is_older(&mut self, why: &str) -> bool {
        let older = why == NOT_UNDERSTOOD && self.version > OLDEST;
        if older {
            self.version -= 1;
        }
        older
    }

    pub(super) fn close(&mut self) {
        OPEN.store(-1, Ordering::SeqCst);
        if self.stream.take().is_some() {
            self.lost = Instant::now();
        }
    }

    /// Says something; a connection that does not take it is none.
    pub(super) fn say(&mut self, what: FromProgram) {
        let line = what.line();
        let said = self
            .stream
            .as_mut()
            .map(|stream| stream.write_all(line.as_bytes()));
        if matches!(said, Some(Err(_))) {
            self.close();
        }
    }

    /// The next message within `patience`.
    pub(super) fn next(&mut self, patience: Duration) -> io::Result<Option<ToProgram>> {
        let deadline = Instant::now() + patience;
        let mut bytes = [0; 1024];
        let broken = || io::Error::from(ErrorKind::InvalidData);
        loop {
            if let Some(line) = self.lines.next_line().map_err(|_| broken())? {
                return ToProgram::parse(&line).map(Some).map_err(|_| broken());
            }
            let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
            match stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if Instant::now() >= deadline => {
                        return Ok(None);
                    }
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}
