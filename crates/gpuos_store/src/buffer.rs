//! A buffer whose bytes begin at a page, which direct I/O asks for.

use gpuos_checkpoint::manifest::ALIGNMENT;

const PAGE: usize = ALIGNMENT as usize;

/// Bytes that begin at a multiple of a page in memory; reused from extent to extent.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// At least this many bytes, rounded up to whole pages.
    pub(crate) fn new(least: usize) -> Buffer {
        let length = least.next_multiple_of(PAGE);
        let bytes = vec![0; length + PAGE];
        // The address stays while the vector does: it never grows.
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer {
            bytes,
            start,
            length,
        }
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
