//! How much the parts of a job may add to the store of this node.

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::Set;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::Result;
use gpuos_store::room::Room;
use gpuos_store::store::Store;

/// What is known of it for a whole run.
pub struct Quota {
    store: &'static Store<LinuxDisk>,
    uid: u32,
    /// Bytes of all checkpoints of the user here; 0: no limit.
    most: u64,
    /// The same as a part of the store's file system, in percent.
    percent: u64,
    /// Data shards of the node's set, and all of its shards.
    share: (u8, u8),
}

impl Quota {
    /// Of a user's job whose node `own` is in one of these sets.
    pub fn new(
        store: &'static Store<LinuxDisk>,
        uid: u32,
        config: &CheckpointConfig,
        sets: &[Set],
        own: NodeIndex,
    ) -> Quota {
        let set = sets.iter().find(|set| set.members.contains(&own));
        let share = set.map(|set| (set.data, set.data.saturating_add(set.parity)));
        Quota {
            store,
            uid,
            most: u64::from(config.user_gib) << 30,
            percent: config.user_percent.into(),
            share: share.filter(|(data, _)| *data > 0).unwrap_or((1, 1)),
        }
    }

    /// How much a part may add now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn room(&self) -> Result<Room> {
        let all = [self.most, self.part()?];
        let most = all.into_iter().filter(|most| *most > 0).min();
        self.store
            .room(self.uid, most.unwrap_or_default(), self.share)
    }

    /// The user's part of the file system, in bytes; 0: all of it.
    fn part(&self) -> Result<u64> {
        if self.percent >= 100 {
            return Ok(0);
        }
        let total = self.store.space()?.total;
        // A file system of no bytes says nothing.
        Ok((total / 100).saturating_mul(self.percent))
    }
}
