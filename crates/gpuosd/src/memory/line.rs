//! A connection to a program, as the loop sees it: it never waits for the other end.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use gpuos_memory::protocol::ToProgram;
use rustix::net::{SendFlags, send};

/// The writing end.
#[derive(Clone, Debug)]
pub struct Line {
    /// By which it is told from an older or newer connection of the same process.
    pub number: u64,
    /// The version of the protocol that the program speaks.
    pub version: u32,
    stream: Arc<UnixStream>,
}

impl Line {
    /// Of a connection.
    pub fn new(number: u64, version: u32, stream: Arc<UnixStream>) -> Line {
        Line {
            number,
            version,
            stream,
        }
    }

    /// Whether the program knows what this is.
    pub fn knows(&self, what: &ToProgram) -> bool {
        what.since() <= self.version
    }

    /// Says something that the program knows, or ends the connection where that would have to wait: a program that reads nothing is one without a connection.
    pub fn say(&self, what: &ToProgram) {
        if !self.knows(what) {
            return;
        }
        let line = what.line();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if send(&*self.stream, line.as_bytes(), flags) != Ok(line.len()) {
            self.end();
        }
    }

    /// Ends the connection. Its thread sees that, and tells.
    pub fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use gpuos_memory::protocol::Short;

    use super::*;

    #[test]
    fn who_does_not_read_loses_the_connection_and_nobody_waits() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let line = Line::new(1, 1, Arc::new(ours));
        // Of a version that does not know it.
        line.say(&ToProgram::Pressure(Short::Node));
        line.say(&ToProgram::Turn);
        let mut bytes = [0; 5];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"turn\n");
        for _ in 0..1_000_000 {
            line.say(&ToProgram::Turn);
        }
        // All that was taken can be read, and then it is over.
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 5_000_000);
    }
}
