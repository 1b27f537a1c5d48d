//! The folder of one job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuos_checkpoint::manifest::rank_folder;
use gpuos_config::options::parse_checkpoint;
use gpuos_core::job::JobId;
use gpuos_core::wire::{MEMORY_FOLDER, MEMORY_UNSEEN};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, mkdirat, openat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::at::{self, Walk};
use super::error::Error;
use super::joined::{Joined, is_settled, read_joins};
use super::kept::{Kept, RUN};
use super::memory::Memory;
use super::names::{
    any_names, ask_name, join_name, one_line, refused_name, restored_name, start_file, start_name,
    told,
};
use super::resume::{Start, there};
use super::shared::leave_all;
use super::trash::Trash;
use gpuos_mover::program::Join;

pub(super) const RANKS: &str = "ranks";
const FILES: &str = "files";
pub(super) const REQUEST: &str = "request";
pub(super) const TAKEN: &str = "taken";
pub(super) const COMMIT: &str = "commit";
pub(super) const FAILED: &str = "failed";

/// Names in a folder of the user's that are looked at: one for each rank that a program can have.
pub(super) const MOST_NAMES: usize = 1 << 16;
/// What is removed of earlier folders when a new one is made: a moment's work.
const AT_FIRST: usize = 1024;

/// The folder of a job on this node, open. Calls may come from several threads.
pub struct JobFolder {
    path: PathBuf,
    job: JobId,
    owner: (u32, u32),
    root: OwnedFd,
    ranks: OwnedFd,
    trash: Trash,
    /// Whether the job wants its files in memory first.
    wants_memory: bool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) joined: Option<Joined>,
    /// The last join of each rank that was answered.
    pub(super) answered: BTreeMap<u16, Start>,
    /// The highest epoch of an answer.
    pub(super) epoch: u64,
    pub(super) asked: Option<Asked>,
    /// A checkpoint that was asked for before the movers gathered, of which the programs do not know yet what became of it.
    pub(super) open: Option<u32>,
    /// What they had been told then: the newest one that exists, and the newest that came to nothing.
    pub(super) told: [Option<u32>; 2],
    /// The highest number that the programs have heard of.
    pub(super) highest: u32,
    /// What could not be moved to the trash, since the user has mounted something on it.
    stays: BTreeSet<String>,
    /// The folder in memory, once it was found.
    pub(super) memory: Option<Memory>,
    /// A checkpoint did not fit in there: later ones are written to the disk.
    too_small: bool,
    /// What was said about it, and what is still to be said.
    said: BTreeSet<&'static str>,
    to_say: Option<&'static str>,
}

impl State {
    fn say(&mut self, why: &'static str) {
        if self.said.insert(why) {
            self.to_say = Some(why);
        }
    }
}

/// The checkpoint that is wanted.
pub(super) struct Asked {
    pub(super) number: u32,
    folder: OwnedFd,
    ranks: BTreeSet<u16>,
    in_memory: bool,
}

impl JobFolder {
    /// The folder of a job in `base`, which is there, and in which nobody but root may write. One that an earlier mover has made for the
    /// same run is gone on with; what an earlier run has left under this name is moved away.
    ///
    /// # Errors
    /// The base is not safe, or the disk fails.
    pub fn create(base: &Path, job: &JobId, kept: &Kept) -> Result<JobFolder, Error> {
        let trash = Trash::open(base)?;
        let failed = |error| {
            let tried = format!("make the folder of job {job} in {}", base.display());
            let next = "see that the disk has space and is writable, and requeue the job";
            Error::new(tried, error, next)
        };
        let before = there(&trash, job, kept);
        let goes_on = before.is_some();
        let made = before.map_or_else(|| make(&trash, job, kept), Ok);
        let (root, ranks) = made.map_err(failed)?;
        // What is left then is for the loop that empties the trash.
        let _ = trash.step(AT_FIRST);
        let folder = JobFolder {
            path: base.join(job.to_string()),
            job: job.clone(),
            owner: (kept.uid, kept.gid),
            root,
            ranks,
            trash,
            wants_memory: parse_checkpoint(&kept.asked).is_ok_and(|it| it.memory_mib.is_some()),
            state: Mutex::default(),
        };
        if goes_on {
            folder.resume().map_err(failed)?;
        }
        Ok(folder)
    }

    /// Where it lies, for the variable of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It itself, to restore what a rank asked for as [`restored_name`] in it.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    pub(super) fn uid(&self) -> u32 {
        self.owner.0
    }

    pub(super) fn ranks(&self) -> &OwnedFd {
        &self.ranks
    }

    /// Removes what was restored for a join, to restore it once more.
    ///
    /// # Errors
    /// As of the kernel.
    pub fn discard_restored(&self, join: &Join) -> io::Result<()> {
        self.trash.discard(&self.root, &restored_name(join))
    }

    /// All ranks that have joined, the newest join of each by the time of its file, then by its nonce. Other names are passed over.
    /// While nothing changes there, this costs one call of the kernel.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn joins(&self) -> io::Result<Vec<Join>> {
        let mut state = self.state();
        let stat = fstat(&self.ranks)?;
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        if let Some(joined) = &state.joined
            && joined.changed == Some(changed)
        {
            return Ok(joined.newest.clone());
        }
        let mut joined = read_joins(&self.ranks)?;
        joined.refused = self.find_refused(&state);
        joined.changed = is_settled(changed).then_some(changed);
        let newest = joined.newest.clone();
        state.joined = Some(joined);
        Ok(newest)
    }

    /// Whether a rank that has joined asks for a checkpoint, as [`JobFolder::joins`] has found it last. Once: the file is removed, and what cannot be
    /// removed does not count.
    pub fn take_ask(&self) -> bool {
        let mut state = self.state();
        let Some(joined) = &mut state.joined else {
            return false;
        };
        let asks = std::mem::take(&mut joined.asks);
        let ranks = joined.newest.iter().map(|join| join.rank);
        let ranks: BTreeSet<u16> = ranks.filter(|rank| asks.contains(rank)).collect();
        // A name in the user's folder, which he can remove as well.
        let removed = ranks.iter().filter(|rank| {
            let flags = AtFlags::empty();
            unlinkat(&self.ranks, &ask_name(**rank)[..], flags).is_ok()
        });
        removed.count() > 0
    }

    /// Those of the ranks that [`JobFolder::joins`] has found last that can begin from the files of any number of ranks, and whether
    /// they need all in any case.
    pub fn any(&self) -> Vec<(Join, bool)> {
        let state = self.state();
        let Some(joined) = &state.joined else {
            return Vec::new();
        };
        let newest = joined.newest.iter();
        let says = newest.filter_map(|join| {
            let all = joined.any.get(&(join.rank, join.nonce))?;
            Some((*join, *all))
        });
        says.collect()
    }

    /// Answers a join in an epoch, once. Earlier ones of the rank are removed, with what was made for them.
    ///
    /// # Errors
    /// The disk fails; it can be tried again.
    pub fn answer(&self, join: &Join, line: &str, epoch: u64) -> io::Result<()> {
        let mut state = self.state();
        let before = state.answered.get(&join.rank).copied();
        let same =
            |it: Start| it.nonce == join.nonce && it.size.is_none_or(|size| size == join.size);
        if before.is_some_and(same) {
            return Ok(());
        }
        let line = one_line(line);
        self.write(&start_name(join), &format!("{line}\nepoch {epoch}"))?;
        let start = Start {
            nonce: join.nonce,
            size: Some(join.size),
            epoch,
            told: told(&line),
        };
        state.answered.insert(join.rank, start);
        // A file that was made before the answer counts from now on.
        if let Some(joined) = &mut state.joined {
            joined.changed = None;
        }
        state.epoch = state.epoch.max(epoch);
        let mut old = Vec::new();
        if let Some(joined) = &state.joined
            && joined.newest.contains(join)
        {
            let of_rank = joined.older.iter().filter(|it| it.rank == join.rank);
            old.extend(of_rank.copied());
        }
        if let Some(Start { nonce, size, .. }) = before {
            let _ = at::remove(&self.root, &start_file(join.rank, nonce)[..]);
            let size = size.unwrap_or(join.size);
            let rank = join.rank;
            old.push(Join { rank, size, nonce });
        }
        for old in old.iter().filter(|old| *old != join) {
            // A name in the user's folder, which he can remove as well.
            let _ = at::remove(&self.ranks, &join_name(old)[..]);
            let _ = at::remove(&self.ranks, &refused_name(old.rank, old.nonce)[..]);
            for says in any_names(old.rank, old.nonce) {
                let _ = at::remove(&self.ranks, &says[..]);
            }
            if old.nonce != join.nonce {
                let _ = at::remove(&self.root, &start_name(old)[..]);
                self.discard(&mut state, restored_name(old));
            }
        }
        Ok(())
    }

    /// Asks the program for a checkpoint: makes its folder with one for each of the ranks (rank, size), and then the request. A checkpoint
    /// that was asked for before is not waited for any more.
    ///
    /// # Errors
    /// The disk fails, or something has the number as its name; nothing is asked for then.
    pub fn ask(&self, number: u32, reason: &str, ranks: &[(u16, u16)]) -> io::Result<()> {
        let mut state = self.state();
        let name = number.to_string();
        if let Some(asked) = &state.asked {
            if asked.number == number {
                return Err(Errno::EXIST.into());
            }
            let old = asked.number.to_string();
            remove_file(&self.root, REQUEST)?;
            state.asked = None;
            self.discard(&mut state, old);
        }
        let memory = self.make_in_memory(&mut state, &name, ranks);
        let in_memory = memory.is_some();
        if !in_memory {
            mkdirat(&self.root, &name[..], Mode::RWXU)?;
        }
        let made = memory
            .map_or_else(|| self.make_files(&self.root, &name, ranks), Ok)
            .and_then(|folder| {
                self.write(REQUEST, &one_line(&format!("{number} {reason}")))?;
                Ok(folder)
            });
        match made {
            Ok(folder) => {
                state.highest = state.highest.max(number);
                let ranks = ranks.iter().map(|(rank, _)| *rank).collect();
                state.asked = Some(Asked {
                    number,
                    folder,
                    ranks,
                    in_memory,
                });
                Ok(())
            }
            Err(error) => {
                self.discard(&mut state, name);
                Err(error)
            }
        }
    }

    /// The same in the job's folder in memory, with a link to it; `None`: there is none that can be used, and the disk takes its place.
    fn make_in_memory(
        &self,
        state: &mut State,
        name: &str,
        ranks: &[(u16, u16)],
    ) -> Option<OwnedFd> {
        if !self.wants_memory {
            return None;
        }
        if state.memory.is_none() {
            state.memory = self.memory();
        }
        let why = match &state.memory {
            _ if state.too_small => "a checkpoint did not fit there: give more with l0=",
            _ if at::look(&self.ranks, MEMORY_UNSEEN).is_ok() => {
                "the program does not see it, as in a container with mounts of its own"
            }
            None => "no tmpfs of root's is mounted there: see what the job's standard error says",
            Some(memory) => {
                memory.free();
                let made = || -> io::Result<OwnedFd> {
                    mkdirat(memory.root(), name, Mode::RWXU)?;
                    let folder = self.make_files(memory.root(), name, ranks)?;
                    symlinkat(format!("{MEMORY_FOLDER}/{name}"), &self.root, name)?;
                    Ok(folder)
                };
                match made() {
                    Ok(folder) => return Some(folder),
                    Err(_) => {
                        let _ = memory.discard(name);
                        "no folder can be made there"
                    }
                }
            }
        };
        state.say(why);
        None
    }

    /// What is mounted in this folder, where the job wants that.
    pub(super) fn memory(&self) -> Option<Memory> {
        let opened = || Memory::open(&self.root, self.trash.us());
        self.wants_memory.then(opened).flatten()
    }

    /// Why files go to the disk though the job wants them in memory, each reason once.
    pub fn not_in_memory(&self) -> Option<&'static str> {
        self.state().to_say.take()
    }

    /// Nobody else can enter before all of it is there.
    fn make_files(&self, at: &OwnedFd, name: &str, ranks: &[(u16, u16)]) -> io::Result<OwnedFd> {
        let folder = at::folder(at, name)?;
        mkdirat(&folder, FILES, Mode::RWXU)?;
        let files = at::folder(&folder, FILES)?;
        let (uid, gid) = ids(self.owner);
        for (rank, size) in ranks {
            let name = rank_folder(*rank, *size);
            match mkdirat(&files, &name[..], Mode::RWXU) {
                Err(Errno::EXIST) => continue,
                made => made?,
            }
            chownat(&files, &name[..], uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        fchown(&files, uid, gid)?;
        fchown(&folder, uid, gid)?;
        Ok(folder)
    }

    /// The ranks that were asked for this checkpoint and whose files are complete. Of one that is not wanted: none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn saved(&self, number: u32) -> io::Result<BTreeSet<u16>> {
        let state = self.state();
        let mut saved = BTreeSet::new();
        let Some(asked) = state.asked.as_ref().filter(|it| it.number == number) else {
            return Ok(saved);
        };
        let mut looked = 0;
        at::each(&asked.folder, |name, told| {
            looked += 1;
            let rank = ready(name.to_bytes()).filter(|rank| asked.ranks.contains(rank));
            if let Some(rank) = rank
                && at::is_file(&asked.folder, name, told)
            {
                saved.insert(rank);
            }
            match looked < MOST_NAMES + 1 {
                true => Walk::On,
                false => Walk::Stop,
            }
        })?;
        Ok(saved)
    }

    /// The folder with the files of the checkpoint that is wanted, for [`gpuos_store::job::JobStore::ingest`], which takes nothing there
    /// for granted.
    ///
    /// # Errors
    /// This one is not wanted, or the user has put something else in its place.
    pub fn files(&self, number: u32) -> io::Result<OwnedFd> {
        let state = self.state();
        let asked = state.asked.as_ref().filter(|it| it.number == number);
        let asked = asked.ok_or(io::ErrorKind::NotFound)?;
        let files = at::folder(&asked.folder, FILES)?;
        match fstat(&files)?.st_uid == self.owner.0 {
            true => Ok(files),
            false => Err(Errno::PERM.into()),
        }
    }

    /// Says that the files of a checkpoint were read.
    ///
    /// # Errors
    /// The disk fails.
    pub fn taken(&self, number: u32) -> io::Result<()> {
        self.write(TAKEN, &number.to_string())
    }

    /// Says what became of a checkpoint, and removes the request and the program's files, if it is the one that was asked for last, also before
    /// the movers gathered.
    ///
    /// # Errors
    /// The disk fails; the files are removed all the same.
    pub fn close(&self, number: u32, failed: Option<&str>) -> io::Result<()> {
        let mut state = self.state();
        let told = match failed {
            None => self.write(COMMIT, &number.to_string()),
            Some(why) => self.write(FAILED, &format!("{number} {}", one_line(why))),
        };
        let mut gone = Ok(());
        if let Some(asked) = state.asked.take_if(|it| it.number == number) {
            // By its line it is found again if the mover ends before it was said.
            match told.is_ok() {
                true => gone = remove_file(&self.root, REQUEST),
                false => state.open = state.open.max(Some(number)),
            }
            let full = |memory: &Memory| asked.in_memory && memory.is_full();
            state.too_small |= failed.is_some() && state.memory.as_ref().is_some_and(full);
            self.discard(&mut state, number.to_string());
        }
        // What could not be said is open still.
        if told.is_ok() && state.open.take_if(|it| *it <= number).is_some() {
            state.told[usize::from(failed.is_some())] = Some(number);
            // The line may be that of the next one by now.
            if state.asked.is_none() {
                gone = gone.and(remove_file(&self.root, REQUEST));
            }
        }
        if failed.is_none() {
            // All ranks have saved something newer, and need no files of others any more.
            leave_all(self, &mut state, None);
        }
        for name in std::mem::take(&mut state.stays) {
            self.discard(&mut state, name);
        }
        if let Some(memory) = &state.memory {
            memory.free();
        }
        told.and(gone)
    }

    /// Moves the whole folder to the trash, at the end of the job. A newer one of the same job stays.
    ///
    /// # Errors
    /// As of the kernel; the next daemon finds it by [`Trash::jobs`].
    pub fn remove(&self) -> io::Result<()> {
        let id = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let name = self.job.to_string();
        match statat(self.trash.base(), &name[..], AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if id(stat) == id(fstat(&self.root)?) => self.trash.remove_job(&self.job),
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn discard(&self, state: &mut State, name: String) {
        let of_memory = state.memory.as_ref().map(|memory| memory.discard(&name));
        if self.trash.discard(&self.root, &name).is_err() || matches!(of_memory, Some(Err(_))) {
            state.stays.insert(name);
        }
    }

    /// A file of one line, which is there whole or not at all.
    pub(super) fn write(&self, name: &str, line: &str) -> io::Result<()> {
        write(&self.root, name, line)
    }

    /// A thread that panicked has left nothing half done that another could not go on with.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`JobFolder::write`].
fn write(root: &OwnedFd, name: &str, line: &str) -> io::Result<()> {
    let unfinished = format!(".{name}");
    remove_file(root, &unfinished)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(root, &unfinished[..], flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    file.write_all(format!("{line}\n").as_bytes())?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    Ok(renameat(root, &unfinished[..], root, name)?)
}

fn make(trash: &Trash, job: &JobId, kept: &Kept) -> io::Result<(OwnedFd, OwnedFd)> {
    trash.remove_job(job)?;
    let name = job.to_string();
    mkdirat(trash.base(), &name[..], Mode::RWXU)?;
    let root = at::folder(trash.base(), &name[..])?;
    mkdirat(&root, RANKS, Mode::RWXU)?;
    let ranks = at::folder(&root, RANKS)?;
    let (uid, gid) = ids((kept.uid, kept.gid));
    fchown(&ranks, uid, gid)?;
    write(&root, RUN, &kept.line())?;
    fchmod(&root, Mode::from_raw_mode(0o755))?;
    Ok((root, ranks))
}

fn ids((uid, gid): (u32, u32)) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

pub(super) fn remove_file(at: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The rank of a file `ready.R`.
fn ready(name: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(name.strip_prefix(b"ready.")?).ok()?;
    let rank: u16 = text.parse().ok()?;
    (rank.to_string() == text).then_some(rank)
}
