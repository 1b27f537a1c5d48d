//! A checkpoint's files into a folder.
//!
//! The tree grows beneath a folder of another name that nobody but the running user can enter, and gets its name when all of it
//! is verified, written and on the disk. Every extent is held against its digest before a byte of it is written.

use gpuos_checkpoint::manifest::{ALIGNMENT, FileEntry, Kind, MAX_DEPTH, Manifest};

use crate::buffer::Buffer;
use crate::disk::{Disk, Dress, Form, part};
use crate::error::{Error, Result, Tried, shown};
use crate::job::JobStore;
use crate::small::write_full;
use crate::source::{Extents, LocalSource, Source};
use crate::sparse::{is_sparse, runs};
use crate::stream::Stream;

/// Where files go, and whose they become.
pub struct Target<'a, T: Disk> {
    /// The file system.
    pub disk: &'a T,
    /// An open folder, in which the restored one is made.
    pub folder: &'a T::Folder,
    /// Its name there; nothing has it yet.
    pub name: &'a [u8],
    /// The user and group that own the files; `None`: who runs this.
    pub owner: Option<(u32, u32)>,
}

/// Names that are tried for the folder that is not complete yet.
const TRIES: u32 = 100;

/// Files that are at least as long are written while their next bytes are read.
const LONG: u64 = 4 << 20;

/// What a folder has until it is complete, also one that the manifest does not name.
const PRIVATE: u16 = 0o700;

/// Permission bits that what is restored may have ...
const USUAL: u16 = 0o777;
/// ... and if nobody is to write there.
const READABLE: u16 = 0o555;

/// Writes the files of a checkpoint of this job and node.
///
/// # Errors
/// Something does not verify, the name is taken, or a disk fails; what was written is removed then as far as that is possible,
/// and nothing has the name.
pub fn restore<D: Disk, T: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    target: &Target<'_, T>,
) -> Result<()> {
    let source = &mut LocalSource::new(job);
    write(job, manifest, (None, USUAL), target, source)
}

/// Writes what one folder of a checkpoint has: it becomes the folder of the target itself. `only` is its name at the top of the
/// program's folder. The manifest may be that of another node of the job, as it was read by [`JobStore::opened`], and the bytes may come
/// from there.
///
/// # Errors
/// As of [`restore`]; the checkpoint has no such folder; the source fails.
pub fn restore_part<D: Disk, T: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    only: &[u8],
    target: &Target<'_, T>,
    source: &mut dyn Source,
) -> Result<()> {
    of_folder(job, manifest, (only, USUAL), target, source)
}

/// The same for several readers: nobody is permitted to write.
///
/// # Errors
/// As there.
pub fn restore_shared<D: Disk, T: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    only: &[u8],
    target: &Target<'_, T>,
    source: &mut dyn Source,
) -> Result<()> {
    of_folder(job, manifest, (only, READABLE), target, source)
}

fn of_folder<D: Disk, T: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    (only, modes): (&[u8], u16),
    target: &Target<'_, T>,
    source: &mut dyn Source,
) -> Result<()> {
    let within = |path: &[u8]| beneath(only, path).is_some();
    let folder = manifest.folders.iter().any(|folder| folder.path == only);
    let there = folder || manifest.files.iter().any(|file| within(&file.path));
    if !there || part(only).is_err() {
        let tried = job.tried(format!("restore {} of", shown(only)), manifest.id);
        let why = format!("node {} has no such folder in it", manifest.node);
        let next = "ask for a folder that lies at the top of the program's folder";
        return Err(Error::refused(tried, why, next));
    }
    write(job, manifest, (Some(only), modes), target, source)
}

fn write<D: Disk, T: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    (only, modes): (Option<&[u8]>, u16),
    target: &Target<'_, T>,
    source: &mut dyn Source,
) -> Result<()> {
    let tried = || {
        let what = job.tried("restore", manifest.id);
        format!("{what} to {}", shown(target.name))
    };
    if target.disk.look(target.folder, target.name).is_ok() {
        let next = "remove it, or have the checkpoint restored to another name";
        return Err(Error::refused(tried(), "the name is taken", next));
    }
    let (name, folder) = begin(target, &tried)?;
    let mut tree = Tree {
        target,
        tried: &tried,
        manifest,
        only,
        modes,
        source,
        extents: Extents::of(&job.keys, manifest),
    };
    let done = tree.fill(&folder).and_then(|()| {
        let renamed = target.disk.rename(target.folder, &name, target.name, false);
        renamed.tried(tried)
    });
    if done.is_err() {
        // Only through the folder that was made here: what has its name meanwhile may be another.
        let _ = empty(target.disk, &folder, MAX_DEPTH);
        let _ = target.disk.remove_folder(target.folder, &name);
        return done;
    }
    target.disk.sync_folder(target.folder).tried(tried)
}

/// The rest of a path that leads into a folder.
fn beneath<'a>(folder: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    path.strip_prefix(folder)?.strip_prefix(b"/")
}

/// Makes the folder in which the tree grows, and makes sure that it is the one that was made: the folder above may be the user's,
/// who could put another one in its place.
fn begin<T: Disk>(
    target: &Target<'_, T>,
    tried: &dyn Fn() -> String,
) -> Result<(Vec<u8>, T::Folder)> {
    for number in 0..TRIES {
        let suffix = format!(".restoring-{number}");
        let name = [target.name, suffix.as_bytes()].concat();
        match target.disk.make_folder(target.folder, &name) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => made.tried(tried)?,
        }
        let folder = target.disk.open_folder(target.folder, &name).tried(tried)?;
        let facts = target.disk.folder_facts(&folder).tried(tried)?;
        let ours = facts.uid == target.disk.user() && facts.mode & 0o077 == 0;
        let empty = target.disk.list(&folder, 0).is_ok();
        if ours && empty {
            return Ok((name, folder));
        }
        let next = "have nothing else write there meanwhile";
        let why = "another folder took the place of the one that was made";
        return Err(Error::refused(tried(), why, next));
    }
    let next = "remove folders there whose names end with .restoring- and a number";
    Err(Error::refused(
        tried(),
        "earlier attempts have left too many folders",
        next,
    ))
}

struct Tree<'a, T: Disk> {
    target: &'a Target<'a, T>,
    tried: &'a dyn Fn() -> String,
    manifest: &'a Manifest,
    /// The folder whose inside is restored; `None`: everything.
    only: Option<&'a [u8]>,
    /// Permission bits that files and folders may have.
    modes: u16,
    source: &'a mut dyn Source,
    extents: Extents<'a>,
}

impl<'a, T: Disk> Tree<'a, T> {
    /// Where a path of the manifest lies in the target. `None`: it is not restored.
    fn place(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        match self.only {
            Some(only) => beneath(only, path),
            None => Some(path),
        }
    }

    fn fill(&mut self, root: &T::Folder) -> Result<()> {
        let disk = self.target.disk;
        let manifest = self.manifest;
        let folders = manifest.folders.iter();
        let placed = folders.filter_map(|entry| Some((self.place(&entry.path)?, entry.mode)));
        let mut folders: Vec<(&[u8], u16)> = placed.collect();
        for (path, _) in &folders {
            self.parent(root, &[path, &b"/"[..]].concat())?;
        }
        for file in &manifest.files {
            if let Some(path) = self.place(&file.path) {
                self.file(root, file, path)?;
            }
        }
        // The deepest first: a folder whose permissions are set may not be entered any more, and writing changes its time.
        folders.sort_unstable_by(|a, b| b.cmp(a));
        for (path, mode) in folders {
            let path = [path, b"/"].concat();
            if let Some(folder) = self.parent(root, &path)? {
                self.dress_folder(&folder, mode)?;
            }
        }
        self.dress_folder(root, PRIVATE)?;
        disk.sync_folder(root).tried(self.tried)
    }

    fn dress_folder(&self, folder: &T::Folder, mode: u16) -> Result<()> {
        let dress = Dress {
            owner: self.target.owner,
            mode: mode & self.modes,
            mtime: None,
        };
        let disk = self.target.disk;
        disk.dress_folder(folder, &dress).tried(self.tried)?;
        disk.sync_folder(folder).tried(self.tried)
    }

    /// Opens the folder of a path, which is made as far as it is missing. `None`: it is the root.
    fn parent(&self, root: &T::Folder, path: &[u8]) -> Result<Option<T::Folder>> {
        let disk = self.target.disk;
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        parts.pop();
        let mut at: Option<T::Folder> = None;
        for part in parts {
            let above = at.as_ref().unwrap_or(root);
            let mut opened = disk.open_folder(above, part);
            let missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
            if opened.as_ref().is_err_and(missing) {
                disk.make_folder(above, part).tried(self.tried)?;
                opened = disk.open_folder(above, part);
                if let Ok(folder) = &opened {
                    self.dress_folder(folder, PRIVATE)?;
                }
            }
            at = Some(opened.tried(self.tried)?);
        }
        Ok(at)
    }

    fn file(&mut self, root: &T::Folder, file: &FileEntry, path: &[u8]) -> Result<()> {
        let disk = self.target.disk;
        let of_all = self.tried;
        let tried = || format!("{}, file {}", of_all(), shown(&file.path));
        let parent = self.parent(root, path)?;
        let at = parent.as_ref().unwrap_or(root);
        let name = path.rsplit(|byte| *byte == b'/').next();
        let open = disk.create(at, name.unwrap_or_default()).tried(tried)?;
        // Holes are what is not written. Writes that extend a file would wait for each other.
        disk.set_length(&open, file.size).tried(tried)?;
        let mut stream = match file.size >= LONG {
            true => Some(disk.stream(&open).tried(tried)?),
            false => None,
        };
        let mut offset = 0;
        for (number, it) in file.extents.iter().enumerate() {
            let what = || format!("{}, extent {number}", tried());
            if it.kind != Kind::Zero {
                let length = self.extents.plain(&mut *self.source, it, &what)?;
                let buffer = &mut self.extents.buffer;
                let bytes = &buffer.as_slice()[..length];
                if is_sparse(bytes) {
                    // What is zero stays a hole, as it may have been before.
                    for run in runs(bytes) {
                        let (bytes, offset) = (&bytes[run.clone()], offset + run.start as u64);
                        match &mut stream {
                            None => write_full(disk, &open, bytes, offset).tried(what)?,
                            Some(stream) => {
                                let mut part =
                                    Buffer::new(bytes.len().next_multiple_of(ALIGNMENT as usize));
                                part.bytes()[..bytes.len()].copy_from_slice(bytes);
                                stream.write(part, bytes.len(), offset).tried(what)?;
                            }
                        }
                    }
                    offset += it.raw;
                    continue;
                }
                match &mut stream {
                    None => {
                        let bytes = &buffer.as_slice()[..length];
                        write_full(disk, &open, bytes, offset).tried(what)?;
                    }
                    Some(stream) => {
                        let full = std::mem::replace(buffer, Buffer::new(0));
                        *buffer = stream.write(full, length, offset).tried(what)?;
                    }
                }
            }
            offset += it.raw;
        }
        if let Some(stream) = stream {
            stream.finish().tried(tried)?;
        }
        let dress = Dress {
            owner: self.target.owner,
            mode: file.mode & self.modes,
            mtime: Some(file.mtime),
        };
        disk.dress(&open, &dress).tried(tried)?;
        disk.sync(&open).tried(tried)?;
        disk.sync_folder(at).tried(tried)
    }
}

/// Removes all that is in a folder which was made here, not deeper than a manifest goes: the folder may be the user's already.
fn empty<T: Disk>(disk: &T, folder: &T::Folder, deep: usize) -> std::io::Result<()> {
    for name in disk.list(folder, usize::MAX)? {
        if disk.look(folder, &name)?.form == Form::Folder {
            let inner = disk.open_folder(folder, &name)?;
            let deep = deep
                .checked_sub(1)
                .ok_or(std::io::ErrorKind::DirectoryNotEmpty)?;
            empty(disk, &inner, deep)?;
            disk.remove_folder(folder, &name)?;
        } else {
            disk.unlink(folder, &name)?;
        }
    }
    Ok(())
}
