//! The descriptor that tells of pressure: readable while there is an event.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use gpuos_memory::objects::Event;

/// Events that are kept; of more, the oldest are forgotten.
const MOST: usize = 64;

/// Events that wait to be read.
pub(crate) struct Bell {
    descriptor: File,
    events: VecDeque<Event>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        // SAFETY: no pointers; the descriptor is new, and the file's alone.
        let descriptor = unsafe {
            let number = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(number)
        };
        Ok(Bell {
            descriptor,
            events: VecDeque::new(),
        })
    }

    /// The descriptor's number. Programs wait for it, and do not read it.
    pub(crate) fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn ring(&mut self, event: Event) {
        if self.events.contains(&event) {
            return;
        }
        if self.events.len() == MOST {
            self.events.pop_front();
        }
        self.events.push_back(event);
        // It is never so full that this could block, and if the program has closed it nobody waits.
        let _ = self.descriptor.write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            let mut count = [0; 8];
            let _ = self.descriptor.read(&mut count);
        }
        event
    }
}
