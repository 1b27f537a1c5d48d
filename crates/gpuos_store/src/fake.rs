//! A file system in memory that crashes and fails as real ones may, for tests of what is built on [`Disk`].
//!
//! What a crash leaves is drawn from a seed: of a file that was not synced, each block of 4 KiB is the old or the new one, and its
//! length is the old one, the new one or between; of the names in a folder that was not synced, any subset of the changes since.
//! Source: "All File Systems Are Not Created Equal" (Pillai et al., OSDI 2014), section 3, for what file systems do allow.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuos_checkpoint::manifest::Time;
use rustix::io::Errno;

use crate::buffer::Buffer;
use crate::disk::{Disk, Dress, Facts, Form, Space, part};
use crate::small::write_full;
use crate::stream::Stream;

const BLOCK: usize = 4096;

/// What goes wrong, and when. Calls count from 0 since [`FakeDisk::trouble`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Nothing.
    None,
    /// The machine stops in this call: it and all later ones fail. [`FakeDisk::reboot`] says what is left.
    Crash {
        /// Which call.
        at: u64,
    },
    /// This call fails.
    Fail {
        /// Which call.
        at: u64,
        /// With which error.
        errno: Errno,
    },
    /// From this call on, all that change something fail with `EROFS`.
    ReadOnly {
        /// Which call.
        at: u64,
    },
    /// Writes fail with `ENOSPC` once so many bytes were written; the one in which that happens writes what fits.
    Full {
        /// Bytes.
        after: u64,
    },
}

/// The file system. Clones are the same one.
#[derive(Clone)]
pub struct FakeDisk(Arc<Mutex<World>>);

/// A file or folder that is open, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open(usize);

/// Writes that are on their way: they reach the file in any order, one when the next begins and the others at the end. What is on its way in
/// a crash is lost.
pub struct FakeStream {
    disk: FakeDisk,
    file: Open,
    waiting: Vec<(Buffer, usize, u64)>,
    random: Random,
}

/// Writes that wait at most.
const WAITING: usize = 3;

impl FakeStream {
    fn one(&mut self) -> io::Result<Option<Buffer>> {
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let which = self.random.below(self.waiting.len() as u64) as usize;
        let (buffer, length, offset) = self.waiting.swap_remove(which);
        write_full(&self.disk, &self.file, &buffer.as_slice()[..length], offset)?;
        Ok(Some(buffer))
    }
}

impl Stream for FakeStream {
    fn write(&mut self, buffer: Buffer, length: usize, offset: u64) -> io::Result<Buffer> {
        let capacity = buffer.capacity();
        self.waiting.push((buffer, length, offset));
        let free = match self.waiting.len() > WAITING {
            true => self.one()?,
            false => None,
        };
        let free = free.filter(|free| free.capacity() >= capacity);
        Ok(free.unwrap_or_else(|| Buffer::new(capacity)))
    }

    fn is_behind(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    fn finish(mut self) -> io::Result<()> {
        while self.one()?.is_some() {}
        Ok(())
    }
}

/// A change of some names in a folder, of which a crash leaves all or nothing.
type Change = Vec<(Vec<u8>, Option<usize>)>;

#[derive(Clone)]
struct Node {
    form: Form,
    uid: u32,
    mode: u16,
    mtime: Time,
    ctime: Time,
    bytes: Vec<u8>,
    synced: Vec<u8>,
    names: BTreeMap<Vec<u8>, usize>,
    synced_names: BTreeMap<Vec<u8>, usize>,
    changes: Vec<Change>,
}

#[derive(Clone)]
struct World {
    nodes: Vec<Node>,
    uid: u32,
    clock: i64,
    calls: u64,
    written: u64,
    trouble: Trouble,
}

impl Default for FakeDisk {
    fn default() -> FakeDisk {
        FakeDisk::new(0)
    }
}

impl FakeDisk {
    /// With an empty folder of mode 0700; all that is made is owned by `uid`.
    pub fn new(uid: u32) -> FakeDisk {
        let mut world = World {
            nodes: Vec::new(),
            uid,
            clock: 0,
            calls: 0,
            written: 0,
            trouble: Trouble::None,
        };
        world.make(Form::Folder, 0o700);
        FakeDisk(Arc::new(Mutex::new(world)))
    }

    /// The folder that all else is beneath.
    pub fn root(&self) -> Open {
        Open(0)
    }

    /// Another one that is the same up to now.
    pub fn fork(&self) -> FakeDisk {
        FakeDisk(Arc::new(Mutex::new(self.world().clone())))
    }

    /// Has something go wrong from now on, instead of what was planned before.
    pub fn trouble(&self, trouble: Trouble) {
        let mut world = self.world();
        world.trouble = trouble;
        world.calls = 0;
        world.written = 0;
    }

    /// Calls since the last [`FakeDisk::trouble`].
    pub fn calls(&self) -> u64 {
        self.world().calls
    }

    /// What a crash leaves, by a seed. No file or folder is open any more, and nothing goes wrong.
    pub fn reboot(&self, seed: u64) {
        let mut world = self.world();
        let mut random = Random(seed);
        for node in &mut world.nodes {
            node.bytes = left_of(&node.synced, &node.bytes, &mut random);
            node.synced = node.bytes.clone();
            for change in std::mem::take(&mut node.changes) {
                if random.below(2) == 0 {
                    apply(&mut node.synced_names, change);
                }
            }
            node.names = node.synced_names.clone();
        }
        world.trouble = Trouble::None;
        world.calls = 0;
    }

    /// Changes bytes of an open file beneath all caches, as a fault of the disk would.
    pub fn damage(&self, file: Open, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let node = &mut world.nodes[file.0];
        change(&mut node.bytes);
        node.synced = node.bytes.clone();
    }

    /// A test that panicked holds nothing that another could not go on with.
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.world();
        world.count(false)?;
        Ok(world)
    }

    fn change(&self) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.world();
        world.count(true)?;
        world.clock += 1;
        Ok(world)
    }
}

impl World {
    fn count(&mut self, changes: bool) -> io::Result<()> {
        let call = self.calls;
        self.calls += 1;
        let errno = match self.trouble {
            Trouble::Crash { at } if call >= at => Errno::IO,
            Trouble::Fail { at, errno } if call == at => errno,
            Trouble::ReadOnly { at } if call >= at && changes => Errno::ROFS,
            _ => return Ok(()),
        };
        Err(errno.into())
    }

    fn now(&self) -> Time {
        Time {
            seconds: self.clock,
            nanos: 0,
        }
    }

    fn make(&mut self, form: Form, mode: u16) -> usize {
        let now = self.now();
        self.nodes.push(Node {
            form,
            uid: self.uid,
            mode,
            mtime: now,
            ctime: now,
            bytes: Vec::new(),
            synced: Vec::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            changes: Vec::new(),
        });
        self.nodes.len() - 1
    }

    fn find(&self, at: Open, name: &[u8], form: Form) -> io::Result<Open> {
        let found = self.nodes[at.0].names.get(part(name)?);
        let found = *found.ok_or(Errno::NOENT)?;
        if self.nodes[found].form != form {
            return Err(Errno::NOTDIR.into());
        }
        Ok(Open(found))
    }

    fn alter(&mut self, at: Open, change: Change) {
        let now = self.now();
        let node = &mut self.nodes[at.0];
        (node.mtime, node.ctime) = (now, now);
        apply(&mut node.names, change.clone());
        node.changes.push(change);
    }

    fn add(&mut self, at: Open, name: &[u8], form: Form, mode: u16) -> io::Result<Open> {
        if self.nodes[at.0].names.contains_key(part(name)?) {
            return Err(Errno::EXIST.into());
        }
        let made = self.make(form, mode);
        self.alter(at, vec![(name.to_vec(), Some(made))]);
        Ok(Open(made))
    }

    fn facts(&self, of: Open) -> Facts {
        let node = &self.nodes[of.0];
        let size = node.bytes.len() as u64;
        Facts {
            form: node.form,
            uid: node.uid,
            mode: node.mode,
            size,
            taken: size.next_multiple_of(BLOCK as u64),
            mtime: node.mtime,
            ctime: node.ctime,
            inode: (0, of.0 as u64),
        }
    }

    fn dress(&mut self, of: Open, dress: &Dress) {
        let now = self.now();
        let node = &mut self.nodes[of.0];
        node.ctime = now;
        node.mode = dress.mode;
        node.uid = dress.owner.map_or(node.uid, |(uid, _)| uid);
        node.mtime = dress.mtime.unwrap_or(node.mtime);
    }

    fn write(&mut self, file: Open, bytes: &[u8], offset: usize) {
        let now = self.now();
        let node = &mut self.nodes[file.0];
        (node.mtime, node.ctime) = (now, now);
        let end = offset + bytes.len();
        if node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        node.bytes[offset..end].copy_from_slice(bytes);
    }
}

fn apply(names: &mut BTreeMap<Vec<u8>, usize>, change: Change) {
    for (name, node) in change {
        match node {
            Some(node) => names.insert(name, node),
            None => names.remove(&name),
        };
    }
}

fn left_of(old: &[u8], new: &[u8], random: &mut Random) -> Vec<u8> {
    if old == new {
        return old.to_vec();
    }
    let (short, long) = (old.len().min(new.len()), old.len().max(new.len()));
    let between = short + random.below((long - short) as u64 + 1) as usize;
    let lengths = [old.len(), new.len(), between / BLOCK * BLOCK];
    let mut left = vec![0; lengths[random.below(3) as usize]];
    for (index, block) in left.chunks_mut(BLOCK).enumerate() {
        let from = if random.below(2) == 0 { old } else { new };
        let from = from.get(index * BLOCK..).unwrap_or_default();
        let length = block.len().min(from.len());
        block[..length].copy_from_slice(&from[..length]);
    }
    left
}

impl Disk for FakeDisk {
    type Folder = Open;
    type File = Open;
    type Stream = FakeStream;

    fn user(&self) -> u32 {
        self.world().uid
    }

    fn open_folder(&self, at: &Open, name: &[u8]) -> io::Result<Open> {
        self.call()?.find(*at, name, Form::Folder)
    }

    fn make_folder(&self, at: &Open, name: &[u8]) -> io::Result<()> {
        let mut world = self.change()?;
        world.add(*at, name, Form::Folder, 0o700).map(|_| ())
    }

    fn open(&self, at: &Open, name: &[u8]) -> io::Result<Open> {
        self.call()?.find(*at, name, Form::File)
    }

    fn create(&self, at: &Open, name: &[u8]) -> io::Result<Open> {
        self.change()?.add(*at, name, Form::File, 0o600)
    }

    fn list(&self, folder: &Open, most: usize) -> io::Result<Vec<Vec<u8>>> {
        let world = self.call()?;
        let names = &world.nodes[folder.0].names;
        if names.len() > most {
            return Err(Errno::OVERFLOW.into());
        }
        Ok(names.keys().cloned().collect())
    }

    fn look(&self, at: &Open, name: &[u8]) -> io::Result<Facts> {
        let world = self.call()?;
        let found = *world.nodes[at.0]
            .names
            .get(part(name)?)
            .ok_or(Errno::NOENT)?;
        Ok(world.facts(Open(found)))
    }

    fn facts(&self, file: &Open) -> io::Result<Facts> {
        Ok(self.call()?.facts(*file))
    }

    fn folder_facts(&self, folder: &Open) -> io::Result<Facts> {
        Ok(self.call()?.facts(*folder))
    }

    fn read_at(&self, file: &Open, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.call()?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = world.nodes[file.0].bytes.get(offset..).unwrap_or_default();
        let length = bytes.len().min(buffer.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn write_at(&self, file: &Open, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let offset = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        let mut world = self.world();
        let crashes = matches!(world.trouble, Trouble::Crash { at } if at == world.calls);
        let counted = world.count(true);
        world.clock += 1;
        if crashes {
            // Some of it was on its way already.
            world.write(*file, &bytes[..bytes.len() / 2], offset);
        }
        counted?;
        let fits = match world.trouble {
            Trouble::Full { after } => after.saturating_sub(world.written),
            _ => u64::MAX,
        };
        let length = bytes.len().min(usize::try_from(fits).unwrap_or(usize::MAX));
        if length == 0 && !bytes.is_empty() {
            return Err(Errno::NOSPC.into());
        }
        world.write(*file, &bytes[..length], offset);
        world.written += length as u64;
        Ok(length)
    }

    fn stream(&self, file: &Open) -> io::Result<FakeStream> {
        let calls = self.call()?.calls;
        Ok(FakeStream {
            disk: self.clone(),
            file: *file,
            waiting: Vec::new(),
            random: Random(calls),
        })
    }

    fn next_data(&self, file: &Open, offset: u64) -> io::Result<Option<u64>> {
        let world = self.call()?;
        let length = world.nodes[file.0].bytes.len() as u64;
        Ok((offset < length).then_some(offset))
    }

    fn set_length(&self, file: &Open, length: u64) -> io::Result<()> {
        let mut world = self.change()?;
        let length = usize::try_from(length).map_err(|_| Errno::FBIG)?;
        let now = world.now();
        let node = &mut world.nodes[file.0];
        (node.mtime, node.ctime) = (now, now);
        node.bytes.resize(length, 0);
        Ok(())
    }

    fn dress(&self, file: &Open, dress: &Dress) -> io::Result<()> {
        self.change()?.dress(*file, dress);
        Ok(())
    }

    fn dress_folder(&self, folder: &Open, dress: &Dress) -> io::Result<()> {
        self.change()?.dress(*folder, dress);
        Ok(())
    }

    fn sync(&self, file: &Open) -> io::Result<()> {
        let mut world = self.change()?;
        let node = &mut world.nodes[file.0];
        node.synced = node.bytes.clone();
        Ok(())
    }

    fn sync_folder(&self, folder: &Open) -> io::Result<()> {
        let mut world = self.change()?;
        let node = &mut world.nodes[folder.0];
        node.synced_names = node.names.clone();
        node.changes.clear();
        Ok(())
    }

    fn rename(&self, at: &Open, from: &[u8], to: &[u8], replace: bool) -> io::Result<()> {
        let mut world = self.change()?;
        let names = &world.nodes[at.0].names;
        let moved = *names.get(part(from)?).ok_or(Errno::NOENT)?;
        if names.contains_key(part(to)?) && !replace {
            return Err(Errno::EXIST.into());
        }
        world.alter(*at, vec![(from.to_vec(), None), (to.to_vec(), Some(moved))]);
        Ok(())
    }

    fn unlink(&self, at: &Open, name: &[u8]) -> io::Result<()> {
        let mut world = self.change()?;
        world.find(*at, name, Form::File)?;
        world.alter(*at, vec![(name.to_vec(), None)]);
        Ok(())
    }

    fn remove_folder(&self, at: &Open, name: &[u8]) -> io::Result<()> {
        let mut world = self.change()?;
        let found = world.find(*at, name, Form::Folder)?;
        if !world.nodes[found.0].names.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        world.alter(*at, vec![(name.to_vec(), None)]);
        Ok(())
    }

    fn space(&self, _folder: &Open) -> io::Result<Space> {
        drop(self.call()?);
        Ok(Space {
            free: 1 << 40,
            total: 1 << 41,
        })
    }
}

/// Knuth's linear congruential generator (MMIX), of which the upper bits count.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit.max(1)
    }
}
