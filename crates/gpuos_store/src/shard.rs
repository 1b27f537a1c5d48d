//! Parity of other nodes: pieces of a fixed length, each with its own keyed digest, and the digests after them.
//!
//! Where the digests begin follows from the shard's length, which its manifest says; nothing in the file is believed before
//! its code holds. The key of a shard is its own: the bytes of another shard, checkpoint, job or user never verify.

use gpuos_checkpoint::ids::CheckpointId;

use crate::append::Appender;
use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::key::{ShardKey, same};
use crate::names::{self, unfinished};
use crate::pace::Pace;
use crate::small::{make_or_open, read_along, read_full, remove_if_there};

/// Bytes of a piece; the last may be shorter. As an extent by default.
pub const PIECE: usize = 2 << 20;

const DIGEST: usize = 32;

/// Which shard, and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Which {
    id: CheckpointId,
    stripe: u32,
    place: u16,
    length: u64,
}

impl Which {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.id.number.to_le_bytes().to_vec();
        bytes.extend(self.id.attempt.to_le_bytes());
        bytes.extend(self.stripe.to_le_bytes());
        bytes.extend(self.place.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        bytes
    }

    fn pieces(&self) -> u64 {
        self.length.div_ceil(PIECE as u64)
    }

    /// Bytes of a piece; 0 beyond the last.
    fn piece(&self, index: u64) -> usize {
        let begin = index.saturating_mul(PIECE as u64);
        let left = self.length.saturating_sub(begin);
        left.min(PIECE as u64) as usize
    }
}

/// Writes a shard piece by piece.
pub struct ShardWriter<'a, D: Disk> {
    disk: &'a D,
    folder: D::Folder,
    file: Appender<'a, D>,
    /// The one that signs, and others by which what comes from elsewhere may hold.
    keys: Vec<ShardKey>,
    which: Which,
    tried: String,
    digests: Vec<u8>,
}

/// Reads a shard piece by piece.
pub struct ShardReader<'a, D: Disk> {
    disk: &'a D,
    pace: Option<&'a Pace>,
    file: D::File,
    key: ShardKey,
    which: Which,
    tried: String,
    digests: Vec<u8>,
}

impl<'a, D: Disk> ShardWriter<'a, D> {
    /// Begins a shard of `length` bytes; it has its name once it is finished.
    ///
    /// # Errors
    /// The disk fails.
    pub fn create(
        job: &JobStore<'a, D>,
        id: CheckpointId,
        stripe: u32,
        place: u16,
        length: u64,
    ) -> Result<ShardWriter<'a, D>> {
        let what = job.tried(format!("write shard {stripe}-{place} of"), id);
        let tried = || what.clone();
        let which = Which {
            id,
            stripe,
            place,
            length,
        };
        let name = id.to_string();
        let folder = make_or_open(job.disk, &job.folder, name.as_bytes()).tried(tried)?;
        let name = unfinished(&names::shard(stripe, place));
        remove_if_there(job.disk, &folder, &name).tried(tried)?;
        let file = job.disk.create(&folder, &name).tried(tried)?;
        let file = Appender::new(job.disk, file, job.pace).tried(tried)?;
        Ok(ShardWriter {
            disk: job.disk,
            folder,
            file,
            keys: job.keys.shards(&which.bytes()),
            which,
            tried: what,
            digests: Vec::new(),
        })
    }

    /// Appends a piece: [`PIECE`] bytes, the last what is left.
    ///
    /// # Errors
    /// It has another length, or the disk fails.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        let index = (self.digests.len() / DIGEST) as u64;
        let due = self.which.piece(index);
        if bytes.len() != due || due == 0 {
            let why = format!("piece {index} has {due} bytes, {} came", bytes.len());
            let next =
                "tell the developers of gpuos: shards are cut in another way than they are kept";
            return Err(Error::refused(self.tried.clone(), why, next));
        }
        self.file.append(bytes).tried(|| self.tried.clone())?;
        self.digests.extend(self.keys[0].piece(index, bytes));
        Ok(())
    }

    /// Appends a piece that came from another store of the job, as [`ShardReader::sealed`] gave it.
    ///
    /// # Errors
    /// Its digest does not hold, or as for [`ShardWriter::piece`].
    pub fn sealed(&mut self, sealed: &[u8]) -> Result<()> {
        let index = (self.digests.len() / DIGEST) as u64;
        let holds = sealed.split_last_chunk().filter(|(bytes, digest)| {
            let mut keys = self.keys.iter();
            keys.any(|key| same(key.piece(index, bytes), digest))
        });
        match holds {
            Some((bytes, _)) => self.piece(bytes),
            None => {
                let tried = format!("{}, piece {index}", self.tried);
                Err(Error::damaged(tried, "its digest does not hold"))
            }
        }
    }

    /// Writes the digests, and has all on the disk under its name.
    ///
    /// # Errors
    /// Pieces are missing, or the disk fails.
    pub fn finish(mut self) -> Result<()> {
        let what = std::mem::take(&mut self.tried);
        let tried = || what.clone();
        let pieces = (self.digests.len() / DIGEST) as u64;
        if pieces != self.which.pieces() {
            let why = format!("it has {pieces} of {} pieces", self.which.pieces());
            let next = "have the missing pieces sent, then finish it";
            return Err(Error::refused(tried(), why, next));
        }
        let mut trailer = self.digests.clone();
        trailer.extend(self.keys[0].trailer(&self.digests));
        self.file.append(&trailer).tried(tried)?;
        self.file.finish().tried(tried)?;
        let name = names::shard(self.which.stripe, self.which.place);
        let renamed = self
            .disk
            .rename(&self.folder, &unfinished(&name), &name, true);
        renamed.tried(tried)?;
        self.disk.sync_folder(&self.folder).tried(tried)
    }
}

impl<'a, D: Disk> ShardReader<'a, D> {
    /// Opens a shard of `length` bytes.
    ///
    /// # Errors
    /// It is missing, has another length, or its digests do not hold.
    pub fn open(
        job: &JobStore<'a, D>,
        id: CheckpointId,
        stripe: u32,
        place: u16,
        length: u64,
    ) -> Result<ShardReader<'a, D>> {
        let what = job.tried(format!("read shard {stripe}-{place} of"), id);
        let tried = || what.clone();
        let which = Which {
            id,
            stripe,
            place,
            length,
        };
        let folder = job.folder(id).tried(tried)?;
        let name = names::shard(stripe, place);
        let file = job.disk.open(&folder, &name).tried(tried)?;
        let size = job.disk.facts(&file).tried(tried)?.size;
        let trailer = which.pieces().saturating_mul(DIGEST as u64) + DIGEST as u64;
        if Some(size) != length.checked_add(trailer) {
            let why = format!("it has {size} bytes, which a shard of {length} bytes has not");
            return Err(Error::damaged(what, why));
        }
        let mut digests = vec![0; trailer as usize];
        let read = read_full(job.disk, &file, &mut digests, length).tried(tried)?;
        let code = digests.split_off(digests.len() - DIGEST);
        let code = code.first_chunk();
        let code = code.filter(|_| read == digests.len() + DIGEST);
        let mut keys = job.keys.shards(&which.bytes()).into_iter();
        let key = keys.find(|key| code.is_some_and(|code| same(key.trailer(&digests), code)));
        let Some(key) = key else {
            return Err(Error::damaged(what, "its digests do not hold"));
        };
        Ok(ShardReader {
            disk: job.disk,
            pace: job.pace,
            file,
            key,
            which,
            tried: what,
            digests,
        })
    }

    /// Pieces of the shard.
    pub fn pieces(&self) -> u64 {
        self.which.pieces()
    }

    /// Reads a piece into a buffer of [`PIECE`] bytes, or of the shard's length if that is less.
    ///
    /// # Errors
    /// There is no such piece, its digest does not hold, or the disk fails. The buffer has zeros then.
    pub fn piece<'b>(&self, index: u64, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        let tried = || format!("{}, piece {index}", self.tried);
        let length = self.which.piece(index);
        let begin = usize::try_from(index)
            .unwrap_or(usize::MAX)
            .saturating_mul(DIGEST);
        let digest = self.digests.get(begin..).and_then(<[u8]>::first_chunk);
        let (Some(bytes), Some(digest)) = (buffer.get_mut(..length), digest) else {
            let next = "ask for a piece that the shard has, with a buffer that takes it";
            return Err(Error::refused(tried(), "it does not fit", next));
        };
        if let Some(pace) = self.pace {
            pace(length as u64);
        }
        let read = read_along(self.disk, &self.file, bytes, index * PIECE as u64).tried(tried)?;
        if read == length && same(self.key.piece(index, bytes), digest) {
            return Ok(bytes);
        }
        bytes.fill(0);
        Err(Error::damaged(tried(), "its digest does not hold"))
    }

    /// A piece and its digest, for another store of the job.
    ///
    /// # Errors
    /// As for [`ShardReader::piece`].
    pub fn sealed(&self, index: u64) -> Result<Vec<u8>> {
        let length = self.which.piece(index);
        let mut sealed = vec![0; length];
        self.piece(index, &mut sealed)?;
        let begin = usize::try_from(index)
            .unwrap_or(usize::MAX)
            .saturating_mul(DIGEST);
        let digest = self
            .digests
            .get(begin..)
            .and_then(<[u8]>::first_chunk::<DIGEST>);
        sealed.extend(digest.unwrap_or(&[0; DIGEST]));
        Ok(sealed)
    }
}
