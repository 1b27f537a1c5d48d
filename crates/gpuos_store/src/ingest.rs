//! A program's folder into a segment. The folder is a user's, who may be hostile and has processes that run meanwhile.
//!
//! What is read is decided on open files, never on paths: a folder or file is looked at, opened without following a link, and
//! must then be what was looked at. Only folders and regular files of the job's user are taken, so that no file comes into a
//! checkpoint that the user could not have read by himself.
//!
//! A file that changes while it is read would be a mixture of two states; it is refused. What tells is size, mtime and ctime
//! before and after. Two writes within one tick of the kernel's clock (up to 10 ms) look the same on kernels before 6.13,
//! which stamps finer what was just looked at; and a shared mapping is stamped at the first write to a page only.

use std::collections::VecDeque;
use std::io;
use std::thread;

use gpuos_checkpoint::manifest::{
    Extent, FileEntry, FolderEntry, Kind, MAX_DEPTH, MAX_EXTENT, MAX_EXTENTS, MAX_FILES,
    MAX_MANIFEST, MAX_PATH, MAX_SEGMENT,
};

use rustix::io::Errno;

use crate::append;
use crate::buffer::Buffer;
use crate::coding::{Coder, Compress, Given};
use crate::digests::{self, Digests};
use crate::disk::{Disk, Facts, Form};
use crate::error::{Error, Result, Tried, shown};
use crate::room::Room;
use crate::segment::SegmentWriter;
use crate::small::read_full;
use crate::stream::IN_FLIGHT;

/// What is taken at most, and in which pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Folders within each other.
    pub depth: usize,
    /// Files and folders.
    pub files: usize,
    /// Sum of the sizes of files, holes included.
    pub bytes: u64,
    /// What may be written of it: extents that the previous checkpoint does not have.
    pub room: Room,
    /// Bytes of an extent: a multiple of 4096 up to 64 MiB.
    pub extent: u32,
}

impl Default for Limits {
    /// All that a manifest takes, in extents of 2 MiB: a huge page, and long enough for any disk to write at full speed.
    fn default() -> Limits {
        Limits {
            depth: MAX_DEPTH - 1,
            files: MAX_FILES,
            bytes: MAX_SEGMENT,
            room: Room::default(),
            extent: 2 << 20,
        }
    }
}

/// Bytes of memory in which extents are at once, at most, while a folder is stored: those whose digests are made, those that are on their way to the disk,
/// one that is read and one for what is short, the room in which short ones are gathered, and what each thread compresses into. What a
/// manifest takes comes to it.
pub const fn memory(limits: &Limits) -> u64 {
    let buffers = digests::MOST_WAITING + IN_FLIGHT + 4 + digests::MOST + 1;
    let extent = limits.extent as u64;
    let gathered = append::STEP as u64;
    buffers as u64 * if extent > gathered { extent } else { gathered }
}

/// What was read.
pub(crate) struct Tree {
    pub(crate) folders: Vec<FolderEntry>,
    pub(crate) files: Vec<FileEntry>,
}

/// All paths together: half of what a manifest can have, and known before they take the memory of a daemon that has other users' jobs.
const MAX_PATHS: usize = MAX_MANIFEST / 2;

const NEXT: &str = "have the program write only folders and regular files of its own there";
const STILL: &str =
    "have the program finish writing before it asks for a checkpoint, and try again";
const REPLACED: &str = "another file took its place while it was read";
/// The kernel tells both in the same way.
const MOUNTED: &str = "something is mounted there, or it was moved away while it was read";
const LEASED: &str = "a process has a lease on it";
const LESS: &str = "checkpoint less, or have the limit raised";

/// Reads everything beneath a folder of user `uid`.
pub(crate) fn read<S: Disk, D: Disk>(
    source: &S,
    folder: &S::Folder,
    uid: u32,
    limits: &Limits,
    (coder, compress): (Coder<'_>, Compress),
    segment: &mut SegmentWriter<'_, D>,
) -> Result<Tree> {
    let extent = limits.extent;
    if extent == 0 || extent > MAX_EXTENT || !extent.is_multiple_of(4096) {
        let why = format!("extents of {extent} bytes were asked for");
        let next = "ask for a multiple of 4096 up to 64 MiB";
        return Err(Error::refused("read the program's folder", why, next));
    }
    let tree = Tree {
        folders: Vec::new(),
        files: Vec::new(),
    };
    let facts = source.folder_facts(folder).reading(b"")?;
    thread::scope(|scope| {
        let mut walk = Walk {
            source,
            uid,
            limits,
            segment,
            digests: Digests::new(scope, coder),
            compress,
            given: 0,
            waiting: VecDeque::new(),
            free: Vec::new(),
            bytes: 0,
            paths: 0,
            extents: 0,
            tree,
        };
        walk.belongs(&facts, b"")?;
        walk.folder(folder, b"", 0)?;
        while walk.settle()? {}
        Ok(walk.tree)
    })
}

/// What was read of a file and has no place in the segment yet.
struct Waiting {
    /// Which file, by its index.
    file: usize,
    raw: u64,
    /// Whether nothing was read of it, as it is in a hole.
    hole: bool,
}

struct Walk<'a, 'b, 'scope, 'env, S: Disk, D: Disk> {
    source: &'a S,
    uid: u32,
    limits: &'a Limits,
    segment: &'a mut SegmentWriter<'b, D>,
    digests: Digests<'scope, 'env>,
    compress: Compress,
    /// Extents that were given to be looked at.
    given: u64,
    /// In the order in which it was read.
    waiting: VecDeque<Waiting>,
    free: Vec<Buffer>,
    bytes: u64,
    paths: usize,
    extents: u64,
    tree: Tree,
}

impl<S: Disk, D: Disk> Walk<'_, '_, '_, '_, S, D> {
    fn folder(&mut self, folder: &S::Folder, path: &[u8], depth: usize) -> Result<()> {
        let before = self.source.folder_facts(folder).reading(path)?;
        let room = self
            .limits
            .files
            .min(MAX_FILES)
            .saturating_sub(self.count());
        let names = match self.source.list(folder, room) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OVERFLOW) => {
                return Err(self.too_many(path));
            }
            names => names.reading(path)?,
        };
        for name in names {
            let path = join(path, &name)?;
            self.paths += path.len();
            if self.paths > MAX_PATHS {
                let why = format!("with it, paths have more than {MAX_PATHS} bytes together");
                return Err(Error::refused(tried(&path), why, LESS));
            }
            // Names that were listed in folders above count too, once they are reached.
            if self.count() >= self.limits.files.min(MAX_FILES) {
                return Err(self.too_many(&path));
            }
            let facts = self.source.look(folder, &name).reading(&path)?;
            self.belongs(&facts, &path)?;
            match facts.form {
                Form::Folder => self.enter(folder, &name, &facts, path, depth)?,
                Form::File => self.file(folder, &name, &facts, path)?,
                form => {
                    let why = format!("it is {form}");
                    return Err(Error::refused(tried(&path), why, NEXT));
                }
            }
        }
        let after = self.source.folder_facts(folder).reading(path)?;
        unchanged(&before, &after, path)
    }

    fn enter(
        &mut self,
        at: &S::Folder,
        name: &[u8],
        looked: &Facts,
        path: Vec<u8>,
        depth: usize,
    ) -> Result<()> {
        if depth >= self.limits.depth.min(MAX_DEPTH - 1) {
            let why = format!("it is more than {depth} folders deep");
            return Err(Error::refused(tried(&path), why, LESS));
        }
        let folder = self.source.open_folder(at, name).reading(&path)?;
        let facts = self.source.folder_facts(&folder).reading(&path)?;
        self.same(looked, &facts, &path)?;
        self.tree.folders.push(FolderEntry {
            path: path.clone(),
            mode: facts.mode & 0o777,
        });
        self.folder(&folder, &path, depth + 1)
    }

    fn file(&mut self, at: &S::Folder, name: &[u8], looked: &Facts, path: Vec<u8>) -> Result<()> {
        let file = self.source.open(at, name).reading(&path)?;
        let facts = self.source.facts(&file).reading(&path)?;
        self.same(looked, &facts, &path)?;
        self.bytes = self.bytes.saturating_add(facts.size);
        if self.bytes > self.limits.bytes.min(MAX_SEGMENT) {
            let why = format!("with it, files have more than {} bytes", self.limits.bytes);
            return Err(Error::refused(tried(&path), why, LESS));
        }
        let number = self.tree.files.len();
        self.tree.files.push(FileEntry {
            path: path.clone(),
            mode: facts.mode & 0o777,
            mtime: facts.mtime,
            size: facts.size,
            extents: Vec::new(),
        });
        self.extents(&file, facts.size, number, &path)?;
        let after = self.source.facts(&file).reading(&path)?;
        unchanged(&facts, &after, &path)
    }

    fn extents(&mut self, file: &S::File, size: u64, number: usize, path: &[u8]) -> Result<()> {
        let step = u64::from(self.limits.extent);
        let mut at = 0;
        while at < size {
            let data = self.source.next_data(file, at).reading(path)?;
            let data = data.map_or(size, |data| data.clamp(at, size));
            // Whole extents of a hole are not read; the one in which data begins is.
            let hole = if data == size {
                size
            } else {
                data - data % step
            };
            while self.waiting.len() >= self.digests.depth() {
                self.settle()?;
            }
            let raw = if hole > at {
                hole - at
            } else {
                let raw = step.min(size - at);
                self.give(file, raw as usize, at, path)?;
                raw
            };
            self.waiting.push_back(Waiting {
                file: number,
                raw,
                hole: hole > at,
            });
            at += raw;
        }
        Ok(())
    }

    /// Reads an extent, and has its digest made.
    fn give(&mut self, file: &S::File, length: usize, at: u64, path: &[u8]) -> Result<()> {
        let free = self.free.pop();
        let mut buffer = free.unwrap_or_else(|| Buffer::new(self.limits.extent as usize));
        let bytes = &mut buffer.bytes()[..length];
        let read = read_full(self.source, file, bytes, at).reading(path)?;
        if read < length {
            let why = "it became shorter while it was read";
            return Err(Error::refused(tried(path), why, STILL));
        }
        let pack = match self.compress {
            Compress::No => false,
            Compress::Behind => self.segment.is_behind(),
            Compress::Always => true,
        };
        let given = Given {
            buffer,
            length,
            pack,
            nth: self.given,
        };
        self.given += 1;
        self.digests.give(given).tried(|| tried(path))
    }

    /// Gives the oldest of what is waiting its place in the segment. Whether anything was waiting.
    fn settle(&mut self) -> Result<bool> {
        let Some(Waiting { file, raw, hole }) = self.waiting.pop_front() else {
            return Ok(false);
        };
        let file = &mut self.tree.files[file];
        let mut kind = Kind::Zero;
        if !hole {
            let storing = || format!("store {} of the program's folder", shown(&file.path));
            if let Some(looked) = self.digests.take().tried(storing)? {
                let (found, free) = self.segment.add(looked).tried(storing)?;
                kind = found;
                self.free.push(free);
            }
            if self.segment.length() > self.limits.room.bytes {
                return Err(self.limits.room.full(storing()));
            }
        }
        match file.extents.last_mut() {
            Some(last) if last.kind == Kind::Zero && kind == Kind::Zero => last.raw += raw,
            _ => {
                file.extents.push(Extent { raw, kind });
                self.extents += 1;
            }
        }
        if self.extents > MAX_EXTENTS {
            let why = format!("with it, files have more than {MAX_EXTENTS} extents");
            return Err(Error::refused(tried(&file.path), why, LESS));
        }
        Ok(true)
    }

    fn count(&self) -> usize {
        self.tree.files.len() + self.tree.folders.len()
    }

    fn too_many(&self, path: &[u8]) -> Error {
        let why = format!(
            "there are more than {} files and folders",
            self.limits.files
        );
        Error::refused(tried(path), why, LESS)
    }

    fn belongs(&self, facts: &Facts, path: &[u8]) -> Result<()> {
        if facts.uid == self.uid {
            return Ok(());
        }
        let why = format!(
            "{} is owned by user {}, the job is of user {}",
            facts.form, facts.uid, self.uid
        );
        Err(Error::refused(tried(path), why, NEXT))
    }

    /// What was opened is what was looked at.
    fn same(&self, looked: &Facts, opened: &Facts, path: &[u8]) -> Result<()> {
        self.belongs(opened, path)?;
        if (looked.form, looked.inode) == (opened.form, opened.inode) {
            return Ok(());
        }
        Err(Error::refused(tried(path), REPLACED, STILL))
    }
}

/// Says what was read when that fails.
trait Reading<T> {
    fn reading(self, path: &[u8]) -> Result<T>;
}

impl<T> Reading<T> for io::Result<T> {
    fn reading(self, path: &[u8]) -> Result<T> {
        self.map_err(|error| match Errno::from_io_error(&error) {
            // What was there a moment ago is gone, or is a link or a socket now.
            Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => {
                Error::refused(tried(path), REPLACED, STILL)
            }
            Some(Errno::XDEV) => Error::refused(tried(path), MOUNTED, NEXT),
            // The kernel does not let a reader wait for it, as it is told not to.
            Some(Errno::AGAIN) => Error::refused(tried(path), LEASED, STILL),
            _ => Error::disk(tried(path), &error),
        })
    }
}

fn unchanged(before: &Facts, after: &Facts, path: &[u8]) -> Result<()> {
    let seen = |facts: &Facts| (facts.size, facts.mtime, facts.ctime);
    if seen(before) == seen(after) {
        return Ok(());
    }
    let why = "it was changed while it was read";
    Err(Error::refused(tried(path), why, STILL))
}

fn join(path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let joined = if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    };
    if joined.len() > MAX_PATH {
        let why = format!("its path has more than {MAX_PATH} bytes");
        return Err(Error::refused(tried(&joined), why, LESS));
    }
    Ok(joined)
}

fn tried(path: &[u8]) -> String {
    if path.is_empty() {
        "read the program's folder".into()
    } else {
        format!("read {} in the program's folder", shown(path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
    use gpuos_core::job::JobId;

    use super::*;
    use crate::buffer::counted;
    use crate::disk::LinuxDisk;
    use crate::job::New;
    use crate::key::SiteKey;
    use crate::store::Store;

    #[test]
    fn buffers_take_no_more_memory_than_is_said_however_large_the_folder_is() {
        let place = tempfile::TempDir::new().unwrap();
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(place.path(), private).unwrap();
        fs::create_dir(place.path().join("program")).unwrap();
        // Long extents and short ones by turns.
        for nth in 0..90_u32 {
            let length = if nth % 3 == 0 { 10_000 } else { 3 << 20 };
            let bytes: Vec<u8> = (0..length).map(|at| (at ^ nth) as u8 | 1).collect();
            fs::write(place.path().join(format!("program/{nth}")), bytes).unwrap();
        }
        let store = place.path().join("store");
        fs::create_dir(&store).unwrap();
        fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
        let root = LinuxDisk::folder(&store).unwrap();
        let key = SiteKey::derive(b"a key of tests that is long enough");
        let (store, _) = Store::open(LinuxDisk, root, key).unwrap();
        let job = store.job(&JobId::from(1), LinuxDisk.user()).unwrap();
        let new = New {
            id: CheckpointId {
                number: 1,
                attempt: 1,
            },
            node: NodeIndex(0),
            nodes: 1,
            time: 0,
        };
        let limits = Limits {
            extent: 512 << 10,
            ..Limits::default()
        };
        let folder = LinuxDisk::folder(&place.path().join("program")).unwrap();
        let before = counted::most();
        job.ingest(&new, &LinuxDisk, &folder, &limits, None)
            .unwrap();
        let most = counted::most() - before;
        assert!(most as u64 <= memory(&limits), "{most}");
        assert!(most >= 4 * limits.extent as usize, "{most}: they were used");
    }
}
