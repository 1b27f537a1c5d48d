//! A buffer whose bytes begin at a page, which direct I/O asks for, in huge pages where it is long enough.

use gpuos_checkpoint::manifest::ALIGNMENT;
use memmap2::{Advice, MmapMut};

const PAGE: usize = ALIGNMENT as usize;

/// A huge page of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE: usize = 2 << 20;

/// Bytes that begin at a multiple of a page in memory; reused from extent to extent.
pub struct Buffer {
    memory: Memory,
    start: usize,
    length: usize,
}

/// Where the bytes are. Neither moves as long as it is there.
enum Memory {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Memory {
    /// Huge pages where the kernel has them: a direct write looks up each page of its buffer, and digests go through all of them.
    fn huge(length: usize) -> Option<Memory> {
        let map = MmapMut::map_anon(length + HUGE).ok()?;
        // Only advice: ordinary pages do as well.
        let _ = map.advise(Advice::HugePage);
        Some(Memory::Mapped(map))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(map) => map,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(map) => map,
        }
    }
}

impl Buffer {
    /// At least this many bytes, rounded up to whole pages. All are zero.
    pub fn new(least: usize) -> Buffer {
        let length = least.next_multiple_of(PAGE);
        let mapped = (length >= HUGE).then(|| Memory::huge(length)).flatten();
        let align = if mapped.is_some() { HUGE } else { PAGE };
        let memory = mapped.unwrap_or_else(|| Memory::Heap(vec![0; length + PAGE]));
        let start = memory.bytes().as_ptr().align_offset(align).min(align);
        #[cfg(test)]
        counted::made(length);
        Buffer {
            memory,
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
        &self.memory.bytes()[self.start..self.start + self.length]
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.start..self.start + self.length]
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
