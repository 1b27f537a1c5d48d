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
            share: share.filter(|(data, _)| *data > 0).unwrap_or((1, 1)),
        }
    }

    /// How much a part may add now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn room(&self) -> Result<Room> {
        self.store.room(self.uid, self.most, self.share)
    }
}
