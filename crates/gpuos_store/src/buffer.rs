//! A buffer whose bytes begin at a page, which direct I/O asks for.

use gpuos_checkpoint::manifest::ALIGNMENT;

const PAGE: usize = ALIGNMENT as usize;

/// Bytes that begin at a multiple of a page in memory; reused from extent to extent.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// At least this many bytes, rounded up to whole pages.
    pub fn new(least: usize) -> Buffer {
        let length = least.next_multiple_of(PAGE);
        let bytes = vec![0; length + PAGE];
        // The address stays while the vector does: it never grows.
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        #[cfg(test)]
        counted::made(length);
        Buffer {
            bytes,
            start,
            length,
        }
    }

    /// Bytes that it has.
    pub fn capacity(&self) -> usize {
        self.length
    }

    /// All of it, to be read.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// What buffers of a thread have at once, for the test of the bound.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<usize> = const { Cell::new(0) };
        static MOST: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn made(bytes: usize) {
        NOW.set(NOW.get() + bytes);
        MOST.set(MOST.get().max(NOW.get()));
    }

    pub(crate) fn most() -> usize {
        MOST.get()
    }

    impl Drop for super::Buffer {
        fn drop(&mut self) {
            NOW.set(NOW.get().saturating_sub(self.length));
        }
    }
}
