//! What ranks say beside their joins: that they could not load what they were given, by a file; and that they run, by a lock.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use gpuos_checkpoint::refusal::MAX_SAID;
use gpuos_mover::program::{Join, Refused, Told};
use gpuos_store::within;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat};

use super::at;
use super::job::{JobFolder, State};
use super::names::{cut_line, join_name, refused_name};

/// Bytes of the user's file that are read at most.
const MOST: u64 = 1024;

impl JobFolder {
    /// A rank that could not load what it was told to restore, as [`JobFolder::joins`] has found it last; of several that of the newest
    /// checkpoint.
    pub fn refused(&self) -> Option<Refused> {
        self.state().joined.as_ref()?.refused.clone()
    }

    /// Those of these joins whose process has ended: while it takes part it keeps its file locked. Of one that says nothing of a lock in its
    /// file that is never known.
    pub fn gone(&self, joins: &[Join]) -> Vec<Join> {
        let gone = joins.iter().filter(|join| is_free(self.ranks(), join));
        gone.copied().collect()
    }

    /// Looks for the file of each rank that was told to restore something. After the joins, so that none is missed that was made before a join.
    pub(super) fn find_refused(&self, state: &State) -> Option<Refused> {
        let told = state.answered.iter().filter_map(|(rank, start)| {
            let Told::Restore(number) = start.told else {
                return None;
            };
            let (rank, size, nonce) = (*rank, start.size?, start.nonce);
            Some((number, Join { rank, size, nonce }))
        });
        let is_there = |(_, join): &(u32, Join)| {
            let name = refused_name(join.rank, join.nonce);
            let stat = at::look(self.ranks(), &name[..]);
            stat.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile)
        };
        let refused = told.filter(is_there);
        let (number, join) =
            refused.max_by_key(|(number, join)| (*number, std::cmp::Reverse(*join)))?;
        let said = said(
            self.ranks(),
            &refused_name(join.rank, join.nonce),
            self.uid(),
        );
        Some(Refused {
            join,
            number,
            said: said.unwrap_or_default(),
        })
    }
}

/// Whether nobody holds the lock that was there before the file had anything in it.
fn is_free(ranks: &OwnedFd, join: &Join) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let Ok(file) = within::open(ranks, &join_name(join)[..], flags, Mode::empty()) else {
        return false;
    };
    let says = fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size > 0
    });
    // What this takes is given back when the file is closed.
    says && flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// The first line of a file of the user's. What he has linked there of others is not read for him.
fn said(ranks: &OwnedFd, name: &str, uid: u32) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = within::open(ranks, name, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || stat.st_uid != uid {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(file).take(MOST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(cut_line(text.lines().next()?, MAX_SAID))
}
