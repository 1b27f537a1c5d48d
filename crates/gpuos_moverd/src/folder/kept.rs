//! What the folder of a job says of the run that it belongs to, so that a mover that is started anew knows it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::path::Arg;

use super::names::number;
use crate::launch::Launch;

/// The name of the file.
pub(super) const RUN: &str = "run";

/// Bytes of a file of root's that are read at most.
const MOST: u64 = 4096;

/// A run of a job with checkpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The workload manager's count of the job's restarts.
    pub run: u32,
    /// The start of its program.
    pub launch: Launch,
    /// The job's user.
    pub uid: u32,
    /// The group of its processes.
    pub gid: u32,
    /// The value of the option.
    pub asked: String,
}

impl Kept {
    /// The line of the file.
    pub(super) fn line(&self) -> String {
        format!(
            "{}{} {} {} {}",
            self.run,
            self.launch.word(),
            self.uid,
            self.gid,
            self.asked
        )
    }

    /// Reads the file in an open folder of a job, in which nobody else can write. `None`: there is none, or not one as this writes it.
    pub(super) fn read(folder: &OwnedFd) -> Option<Kept> {
        let text = text(folder, RUN).ok()?;
        let kept = Kept::parse(text.strip_suffix('\n')?)?;
        (format!("{}\n", kept.line()) == text).then_some(kept)
    }

    fn parse(line: &str) -> Option<Kept> {
        let mut words = line.splitn(4, ' ');
        let run = words.next()?;
        let (run, launch) = run.split_at(run.find('.').unwrap_or(run.len()));
        let read = |word: &str| u32::try_from(number(word.as_bytes(), 10)?).ok();
        let (run, launch) = (read(run)?, Launch::read(launch)?);
        let mut next = || read(words.next()?);
        let (uid, gid) = (next()?, next()?);
        let asked = words.next()?.to_string();
        (!asked.is_empty() && !asked.contains(char::is_control)).then_some(Kept {
            run,
            launch,
            uid,
            gid,
            asked,
        })
    }
}

/// What a file says, as far as it is of interest.
pub(super) fn text(folder: impl AsFd, name: impl Arg) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder, name, flags, Mode::empty())?);
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}
