//! Marks on checkpoints that a program could not load.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::MAC_BYTES;
use gpuos_checkpoint::refusal::{MAX_NODE, MAX_SAID, Refusal};

use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::key::same;
use crate::names::REFUSED;
use crate::small::{read_whole, replace};

/// Bytes of a mark at most: its texts, with their lengths, a rank and a code.
const MAX_MARK: usize = MAX_NODE + MAX_SAID + 16 + MAC_BYTES;

impl<D: Disk> JobStore<'_, D> {
    /// Marks a checkpoint that has something here as one that a program could not load. The mark goes with the checkpoint. The first one
    /// stays.
    ///
    /// # Errors
    /// Nothing of the checkpoint is here, or the disk fails.
    pub fn refuse(&self, id: CheckpointId, refusal: &Refusal) -> Result<()> {
        if self.refusal(id).is_ok_and(|mark| mark.is_some()) {
            return Ok(());
        }
        let tried = || self.tried("mark as refused", id);
        let folder = self.folder(id).tried(tried)?;
        let mut mark = refusal.encode();
        let code = self.keys.refusal_code(id.to_string().as_bytes(), &mark);
        mark.extend(code);
        replace(self.disk, &folder, REFUSED, &mark).tried(tried)
    }

    /// Who could not load a checkpoint. `None`: nobody has said so.
    ///
    /// # Errors
    /// The mark does not hold, or cannot be read.
    pub fn refusal(&self, id: CheckpointId) -> Result<Option<Refusal>> {
        let tried = || self.tried("read who has refused", id);
        let folder = match self.folder(id) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            folder => folder.tried(tried)?,
        };
        let mark = match read_whole(self.disk, &folder, REFUSED, MAX_MARK) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            mark => mark.tried(tried)?,
        };
        let damaged = || Error::damaged(tried(), "the mark does not hold");
        let (signed, code) = mark.split_last_chunk().ok_or_else(damaged)?;
        let expected = self.keys.refusal_code(id.to_string().as_bytes(), signed);
        if !same(expected, code) {
            return Err(damaged());
        }
        Refusal::decode(signed).map(Some).ok_or_else(damaged)
    }
}
