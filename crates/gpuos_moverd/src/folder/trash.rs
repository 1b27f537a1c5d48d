//! Removal of what users had in their hands: moved out of their reach at once, and removed in small steps.
//!
//! ```text
//! BASE/.gone/         root's, 0700
//! BASE/.gone/jobs/    folders of jobs, whole
//! BASE/.gone/ours/    folders that no user could enter yet
//! BASE/.gone/UID/     folders of that user
//! ```
//!
//! gpuosd has a process with the user's rights empty such folders. Here root does it itself, within the user's bounds: it changes a
//! folder only if that is the user's own, and there he could remove every name himself, whatever it is. So a folder of somebody
//! else's that he has moved in stays as it is. That needs no process for each removal, which he could stop, and can be left off
//! and gone on with at any time, since all of its state is what lies there: a folder with something in it is moved up beside the
//! one in which it lay, so that nothing is ever deep, and a few descriptors are open however the user nests.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_core::job::JobId;
use gpuos_core::wire::MEMORY_FOLDER;
use gpuos_store::disk::LinuxDisk;
use rustix::fs::{AtFlags, Mode, fstat, mkdirat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::at::{self, Removed, Walk};
use super::error::Error;

const GONE: &str = ".gone";
const JOBS: &str = "jobs";
const OURS: &str = "ours";

/// Names that are looked at in a folder of the trash at most.
const LOOK: usize = 1 << 16;
/// What each user gets of a step at least.
const LEAST: usize = 16;
/// How often a folder of the trash is made again that another thread has found empty and removed.
const TRIES: usize = 10;

/// What becomes of what is removed, beneath the folder of all jobs.
pub struct Trash {
    base: OwnedFd,
    gone: OwnedFd,
    us: u32,
    /// Steps begin at another name each time, so that what cannot be removed is in nothing's way.
    turn: AtomicUsize,
}

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Names that are gone.
    pub removed: usize,
    /// Folders that cannot be removed now: something is mounted in them, belongs to somebody else, or may not be changed.
    pub stuck: usize,
    /// Another step would go on. What is stuck alone can be tried again in a minute.
    pub more: bool,
}

impl Trash {
    /// Of the folder of all jobs.
    ///
    /// # Errors
    /// The folder cannot be opened, or somebody else could write there.
    pub fn open(base: &Path) -> Result<Trash, Error> {
        let failed = |why: &dyn std::fmt::Display| {
            let tried = format!("use {} for the folders of jobs", base.display());
            let next = "have it there with mode 0755, owned by who runs gpuos_mover, which is root";
            Error::new(tried, why, next)
        };
        let us = geteuid().as_raw();
        let base = LinuxDisk::folder(base).map_err(|error| failed(&error))?;
        Trash::within(base, us).map_err(|error| failed(&error))
    }

    /// Of an open folder.
    pub(super) fn within(base: OwnedFd, us: u32) -> io::Result<Trash> {
        if !is_safe(&base, us, 0o022)? {
            return Err(io::Error::other("others could write there"));
        }
        let gone = make_or_open(&base, GONE)?;
        if !is_safe(&gone, us, 0o077)? {
            return Err(io::Error::other("others could enter .gone in it"));
        }
        let turn = AtomicUsize::new(0);
        Ok(Trash {
            base,
            gone,
            us,
            turn,
        })
    }

    /// Jobs that have a folder, in their order: also those whose folder an earlier daemon has left.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn jobs(&self) -> io::Result<Vec<JobId>> {
        let mut jobs = Vec::new();
        at::each(&self.base, |name, _| {
            let text = name.to_str().ok();
            jobs.extend(text.and_then(|text| text.parse::<JobId>().ok()));
            Walk::On
        })?;
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// Moves the folder of a job away, whatever is in it. One that is not there is moved already.
    ///
    /// # Errors
    /// As of the kernel; it is where it was.
    pub fn remove_job(&self, job: &JobId) -> io::Result<()> {
        self.put(&self.base, &job.to_string(), JOBS)
    }

    /// Unmounts the folders in memory of jobs that are over. gpuos_mover itself may not where it has a mount namespace of its own.
    ///
    /// # Errors
    /// The trash cannot be read, or the first that was not unmounted.
    pub fn unmount(&self) -> io::Result<()> {
        let jobs = match at::folder(&self.gone, JOBS) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            jobs => jobs?,
        };
        let mut done = Ok(());
        for name in self.names(&jobs)? {
            if let Ok(job) = at::folder(&jobs, &name[..])
                && at::tmpfs(&job, MEMORY_FOLDER, self.us).is_some()
            {
                done = done.and(at::unmounted(&job, MEMORY_FOLDER));
            }
        }
        done
    }

    /// Moves all that has a name here to the trash, and removes some of it.
    pub(super) fn clear(&self, effort: usize) -> io::Result<Progress> {
        for name in self.names(&self.base)? {
            if name.as_bytes() != GONE.as_bytes() {
                // What cannot be moved now is tried again by who calls this again.
                let _ = self.discard(&self.base, &name.to_string_lossy());
            }
        }
        self.step(effort)
    }

    /// Unmounts the folder in memory of a job that is over, or, where that is not allowed, frees what lies there.
    fn release(&self, job: &OwnedFd, effort: usize, progress: &mut Progress) {
        let Some(root) = at::tmpfs(job, MEMORY_FOLDER, self.us) else {
            return;
        };
        if at::unmounted(job, MEMORY_FOLDER).is_ok() {
            return;
        }
        let freed = Trash::within(root, self.us).and_then(|memory| memory.clear(effort));
        if let Ok(freed) = freed {
            progress.removed += freed.removed;
            progress.more |= freed.more;
        }
    }

    /// Who runs this.
    pub(super) fn us(&self) -> u32 {
        self.us
    }

    /// The folder of all jobs.
    pub(super) fn base(&self) -> &OwnedFd {
        &self.base
    }

    /// Removes a name of a folder in which no user can write. A folder of a user's with something in it is moved away, to be removed
    /// later.
    ///
    /// # Errors
    /// As of the kernel, as when the user has mounted something there; it can be tried again.
    pub(super) fn discard(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        match at::remove(at, name) {
            Removed::Gone => return Ok(()),
            Removed::Blocked => return Err(Errno::BUSY.into()),
            Removed::Full => {}
        }
        let stat = match at::look(at, name) {
            // Another thread was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            stat => stat?,
        };
        // What is so has not been given to a user yet, with all that is in it.
        let ours = stat.st_uid == self.us && stat.st_mode & 0o077 == 0;
        match ours {
            true => self.put(at, name, OURS),
            false => self.put(at, name, &stat.st_uid.to_string()),
        }
    }

    /// Moves a name into a folder of the trash.
    fn put(&self, at: &OwnedFd, name: &str, pile: &str) -> io::Result<()> {
        for _ in 0..TRIES {
            let pile = match make_or_open(&self.gone, pile) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                pile => pile?,
            };
            match renameat(at, name, &pile, serial()) {
                // One of both is not there: the name, or the folder of the trash.
                Err(Errno::NOENT) => {}
                moved => return Ok(moved?),
            }
            match at::look(at, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                _ => {}
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Removes some of what lies in the trash: about `effort` names are looked at, each user's share of them alike. For a loop in a thread
    /// of its own; several threads do no harm to each other.
    ///
    /// # Errors
    /// The trash itself cannot be read.
    pub fn step(&self, effort: usize) -> io::Result<Progress> {
        let mut progress = Progress::default();
        if let Ok(jobs) = at::folder(&self.gone, JOBS) {
            self.empty_jobs(&jobs, effort, &mut progress)?;
        }
        let mut piles = Vec::new();
        at::each(&self.gone, |name, _| {
            let text = name.to_str().unwrap_or_default();
            let user = text.parse::<u32>().ok();
            if user.is_some() || text == OURS {
                piles.push((text.to_string(), user));
            }
            Walk::On
        })?;
        let share = (effort / piles.len().max(1)).max(LEAST);
        for (name, user) in piles {
            match at::folder(&self.gone, &name[..]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                pile => self.empty_pile(&pile?, user, share, &mut progress)?,
            }
            // Where something is in it, it stays.
            let _ = unlinkat(&self.gone, &name[..], AtFlags::REMOVEDIR);
        }
        Ok(progress)
    }

    /// Sorts what was in folders of jobs by its owner: in there nobody but we could write.
    fn empty_jobs(&self, jobs: &OwnedFd, effort: usize, progress: &mut Progress) -> io::Result<()> {
        let mut left = effort;
        for name in self.names(jobs)? {
            let name = name.to_string_lossy();
            if at::remove(jobs, &name[..]) == Removed::Gone {
                continue;
            }
            let Ok(job) = at::folder(jobs, &name[..]) else {
                progress.stuck += 1;
                continue;
            };
            if !is_safe(&job, self.us, 0o022)? {
                progress.stuck += 1;
                continue;
            }
            self.release(&job, effort, progress);
            let mut blocked = false;
            at::each(&job, |name, _| {
                if left == 0 {
                    return Walk::Stop;
                }
                left -= 1;
                // All names there are ours, and plain.
                match self.discard(&job, &name.to_string_lossy()) {
                    Ok(()) => progress.removed += 1,
                    Err(_) => blocked = true,
                }
                Walk::On
            })?;
            match at::remove(jobs, &name[..]) {
                Removed::Gone => {}
                _ if blocked => progress.stuck += 1,
                _ => progress.more = true,
            }
        }
        Ok(())
    }

    fn names(&self, folder: &OwnedFd) -> io::Result<Vec<CString>> {
        let mut names: Vec<CString> = Vec::new();
        at::each(folder, |name, _| {
            names.push(name.to_owned());
            match names.len() < LOOK {
                true => Walk::On,
                false => Walk::Stop,
            }
        })?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let first = turn.wrapping_mul(LEAST) % names.len().max(1);
        names.rotate_left(first);
        Ok(names)
    }

    fn empty_pile(
        &self,
        pile: &OwnedFd,
        user: Option<u32>,
        share: usize,
        progress: &mut Progress,
    ) -> io::Result<()> {
        let mut left = share;
        // What one round has moved up, the next one removes.
        loop {
            let mut round = Progress::default();
            for name in self.names(pile)? {
                if left == 0 {
                    round.more = true;
                    break;
                }
                left -= 1;
                match at::remove(pile, &name[..]) {
                    Removed::Gone => round.removed += 1,
                    Removed::Blocked => round.stuck += 1,
                    Removed::Full => empty_folder(pile, &name, user, &mut left, &mut round),
                }
            }
            progress.removed += round.removed;
            if left == 0 || !round.more {
                progress.stuck += round.stuck;
                progress.more |= round.more;
                return Ok(());
            }
        }
    }
}

/// Removes what is in a folder of a pile, which is the user's if there is one, and then the folder.
fn empty_folder(
    pile: &OwnedFd,
    name: &CStr,
    user: Option<u32>,
    left: &mut usize,
    progress: &mut Progress,
) {
    let own = |folder: &OwnedFd| {
        let stat = fstat(folder);
        stat.is_ok_and(|stat| user.is_none_or(|user| stat.st_uid == user))
    };
    let Some(folder) = at::folder(pile, name).ok().filter(own) else {
        progress.stuck += 1;
        return;
    };
    let mut blocked = false;
    let walked = at::each(&folder, |name, _| {
        if *left == 0 {
            return Walk::Stop;
        }
        *left -= 1;
        match at::remove(&folder, name) {
            Removed::Gone => progress.removed += 1,
            Removed::Blocked => blocked = true,
            Removed::Full => match renameat(&folder, name, pile, serial()) {
                Ok(()) => progress.more = true,
                Err(Errno::NOENT) => {}
                Err(_) => blocked = true,
            },
        }
        Walk::On
    });
    match at::remove(pile, name) {
        Removed::Gone => progress.removed += 1,
        _ if *left > 0 && (blocked || walked.is_err()) => progress.stuck += 1,
        _ => progress.more = true,
    }
}

/// Whether a folder is ours, and others lack these rights.
pub(super) fn is_safe(folder: &OwnedFd, us: u32, others: u32) -> io::Result<bool> {
    let stat = fstat(folder)?;
    Ok(stat.st_uid == us && stat.st_mode & others == 0)
}

fn make_or_open(at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(at, name, Mode::RWXU) {
        Err(Errno::EXIST) => {}
        made => made?,
    }
    at::folder(at, name)
}

/// A name that nothing has. If it had: what is replaced lies in the trash.
fn serial() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    format!("{:x}-{next:x}", since.unwrap_or_default().as_nanos())
}
