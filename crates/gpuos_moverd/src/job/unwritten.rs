//! What the programs are told by files, tried again where the disk does not take it: a program that waits for an answer would wait for ever.

use std::collections::VecDeque;
use std::io;

use gpuos_mover::program::{Join, Reason};

use crate::folder::JobFolder;

/// Something that goes into the folder of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tell {
    /// The answer to a join, and the epoch to which it belongs.
    Answer(Join, String, u64),
    /// A checkpoint is wanted, of these ranks of so many.
    Ask(u32, Reason, Vec<(u16, u16)>),
    /// Its files were read.
    Taken(u32),
    /// It has ended, well or for a reason.
    Close(u32, Option<String>),
}

impl Tell {
    fn write(&self, folder: &JobFolder) -> io::Result<()> {
        match self {
            Tell::Answer(join, line, epoch) => folder.answer(join, line, *epoch),
            Tell::Ask(number, reason, ranks) => folder.ask(*number, &reason.to_string(), ranks),
            Tell::Taken(number) => folder.taken(*number),
            Tell::Close(number, failed) => folder.close(*number, failed.as_deref()),
        }
    }

    /// Whether nobody needs this any more when `later` is told.
    fn is_replaced_by(&self, later: &Tell) -> bool {
        match (self, later) {
            (Tell::Answer(join, ..), Tell::Answer(other, ..)) => join.rank == other.rank,
            (Tell::Ask(..) | Tell::Taken(_), Tell::Ask(..) | Tell::Close(..)) => true,
            // The newest that exists and the newest that does not.
            (Tell::Close(_, failed), Tell::Close(_, other)) => failed.is_some() == other.is_some(),
            _ => false,
        }
    }
}

/// What could not be written, in its order. There are no more than one answer for each rank and a few others.
#[derive(Default)]
pub struct Unwritten(VecDeque<Tell>);

impl Unwritten {
    /// Tells something, now or later. `Some`: a sentence for the log, when it begins to fail.
    pub fn tell(&mut self, folder: &JobFolder, tell: Tell) -> Option<String> {
        self.0.retain(|earlier| !earlier.is_replaced_by(&tell));
        let first = self.0.is_empty();
        self.0.push_back(tell);
        let error = self.again(folder).err().filter(|_| first)?;
        let at = folder.path().display();
        Some(format!(
            "cannot write to {at}: {error}; see whether its disk is full or read-only; it is tried again and again"
        ))
    }

    /// Tells what is left.
    ///
    /// # Errors
    /// As of the kernel; some is left still.
    pub fn again(&mut self, folder: &JobFolder) -> io::Result<()> {
        while let Some(tell) = self.0.front() {
            tell.write(folder)?;
            self.0.pop_front();
        }
        Ok(())
    }
}
