//! A trace of what the program touches, as it is written: which number a block has, and the text that is kept until it is.

mod file;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range as Span;

use gpuos_memory::trace::{Extent, MOST_EXTENTS, Touch};

pub(crate) use self::file::{Sink, close};
use crate::process::BLOCK;
use crate::range::{self, Range};

/// Text that is kept until it is written, and more than a line.
const KEPT: usize = 64 << 10;
const LINE: usize = 64;
/// An extent of ours that the trace does not have.
const NONE: u32 = u32::MAX;

/// What is written, and by which numbers.
pub(crate) struct Recorder {
    sink: Sink,
    text: String,
    /// The first GPU that something was allocated of: a trace is of one.
    device: Option<i32>,
    /// The first of its numbers in the trace, by the number of an extent of ours.
    first: Vec<u32>,
    /// Numbers that are free again, as the first of so many.
    free: BTreeMap<u32, Vec<u32>>,
    next: u32,
    /// The call that touched each number last; 0: none since it was allocated.
    seen: Vec<u64>,
    call: u64,
    /// Why nothing more is written.
    failed: Option<String>,
}

impl Recorder {
    pub(crate) fn new(sink: Sink) -> Recorder {
        Recorder {
            sink,
            text: String::with_capacity(KEPT + LINE),
            device: None,
            first: Vec::new(),
            free: BTreeMap::new(),
            next: 0,
            seen: Vec::new(),
            call: 0,
            failed: None,
        }
    }

    /// A range is the program's: its blocks get numbers.
    pub(crate) fn adopt(&mut self, range: &Range) {
        let of_trace = *self.device.get_or_insert(range.device) == range.device;
        for extent in &range.extents {
            let at = extent.number as usize;
            if self.first.len() <= at {
                self.first.resize(at + 1, NONE);
            }
            self.first[at] = if of_trace {
                self.numbers((extent.bytes / BLOCK) as u32)
            } else {
                NONE
            };
        }
    }

    /// So many numbers, by their first.
    fn numbers(&mut self, count: u32) -> u32 {
        if let Some(first) = self.free.get_mut(&count).and_then(Vec::pop) {
            return first;
        }
        let first = self.next;
        if first + count > MOST_EXTENTS {
            return NONE;
        }
        self.next += count;
        self.seen.resize(self.next as usize, 0);
        first
    }

    /// A range is the program's no more.
    pub(crate) fn forget(&mut self, range: &Range) {
        for extent in &range.extents {
            let Some(first) = self.first.get_mut(extent.number as usize) else {
                continue;
            };
            let first = std::mem::replace(first, NONE);
            if first == NONE {
                continue;
            }
            let count = (extent.bytes / BLOCK) as u32;
            for number in first..first + count {
                if std::mem::take(&mut self.seen[number as usize]) != 0 {
                    self.line(Touch::Free(Extent(number)));
                }
            }
            self.free.entry(count).or_default().push(first);
        }
    }

    /// Blocks of a range.
    pub(crate) fn blocks(&mut self, range: &Range, part: Span<u64>, writes: bool) {
        let ends = |extent: &range::Extent| extent.at + extent.bytes;
        let skip = range
            .extents
            .partition_point(|extent| ends(extent) <= part.start);
        for extent in range.extents[skip..]
            .iter()
            .take_while(|extent| extent.at < part.end)
        {
            let first = self.first.get(extent.number as usize).copied();
            let Some(first) = first.filter(|first| *first != NONE) else {
                continue;
            };
            let from = part.start.saturating_sub(extent.at) / BLOCK;
            let to = (part.end.min(ends(extent)) - extent.at).div_ceil(BLOCK);
            for number in first + from as u32..first + to as u32 {
                let seen = &mut self.seen[number as usize];
                if *seen == self.call {
                    continue;
                }
                *seen = self.call;
                self.line(match writes {
                    true => Touch::Write(Extent(number)),
                    false => Touch::Read(Extent(number)),
                });
            }
        }
    }

    fn line(&mut self, touch: Touch) {
        // Writing to a string does not fail, and there is room.
        let _ = writeln!(self.text, "{touch}");
        if self.text.len() > KEPT {
            self.write();
        }
    }

    /// What is kept is written.
    pub(crate) fn write(&mut self) {
        if self.failed.is_none() {
            self.failed = self.sink.append(&self.text).err();
        }
        self.text.clear();
    }

    /// A comment, where calls are missing.
    pub(crate) fn tell_missing(&mut self, missing: u64) {
        if missing > 0 {
            let _ = writeln!(self.text, "# {missing} calls are missing");
        }
    }

    /// Another call touches things.
    pub(crate) fn next_call(&mut self) {
        self.call += 1;
    }

    /// Why nothing more is written.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }
}
