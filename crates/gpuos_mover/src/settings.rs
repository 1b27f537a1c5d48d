//! A node's place in its job, and its limits.

use gpuos_checkpoint::commit;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::pull::{MOST_WINDOW, Patience};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_checkpoint::sets::Set;
use gpuos_core::job::JobId;
use gpuos_store::ingest::Limits;

use crate::message::MAX_PIECE;

/// What a node has to know before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: JobId,
    /// The user that owns it.
    pub uid: u32,
    /// This node.
    pub own: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// The run of the job: Slurm's count of its restarts. A node that restarts belongs to a new run.
    pub run: u32,
    /// The sets, the same in all runs and on all nodes.
    pub sets: Vec<Set>,
    /// Bytes of a piece, 1 to [`MAX_PIECE`]. 1 MiB is usual.
    pub piece: u32,
    /// Pieces in flight at most, 1 to [`MOST_WINDOW`].
    pub window: u16,
    /// How long answers are waited for, also those that are no pieces.
    pub patience: Patience,
    /// Time limits of the commit.
    pub commit: commit::Settings,
    /// What is taken of a program's folder.
    pub limits: Limits,
    /// So many committed checkpoints stay, and what they need; 0 counts as 1. That of node 0 counts.
    pub keep: u32,
    /// Every so many checkpoints one is written in full; 0 counts as 1. That of node 0 counts.
    pub full_every: u32,
    /// The run goes on from the checkpoint of this number and no other. `None`: from the newest. That of node 0 counts.
    pub only: Option<u32>,
    /// Older ones than this are left alone: the run has something newer, of another number of nodes. That of node 0 counts.
    pub above: Option<CheckpointId>,
    /// Numbers up to this are taken, by checkpoints of other numbers of nodes. That of node 0 counts.
    pub beyond: u32,
    /// The parts are another job's, and are read only: nothing is marked, and no later checkpoint is taken back. The program that reads them could not
    /// load these, which are passed over.
    pub passed: Option<Vec<(CheckpointId, Refusal)>>,
}

impl Settings {
    /// With pieces of 1 MiB and a window of 8: 48 MiB of answers for 6 + 2. Two checkpoints stay, every eighth is written in full.
    pub fn new(
        job: JobId,
        uid: u32,
        own: NodeIndex,
        nodes: u16,
        run: u32,
        sets: Vec<Set>,
    ) -> Settings {
        Settings {
            job,
            uid,
            own,
            nodes,
            run,
            sets,
            piece: 1 << 20,
            window: 8,
            patience: Patience::default(),
            commit: commit::Settings::default(),
            limits: Limits::default(),
            keep: 2,
            full_every: 8,
            only: None,
            above: None,
            beyond: 0,
            passed: None,
        }
    }

    /// The set of this node and its place there.
    ///
    /// # Errors
    /// A sentence: the settings contradict each other.
    pub(crate) fn place(&self) -> Result<(Set, u8), String> {
        if self.piece == 0 || self.piece as usize > MAX_PIECE {
            return Err(format!(
                "a piece of {} bytes cannot be moved; give 1 to {MAX_PIECE}",
                self.piece
            ));
        }
        if !(1..=MOST_WINDOW).contains(&self.window) || self.patience.tries == 0 {
            return Err(format!(
                "a window of {} pieces with {} tries cannot be kept; give 1 to {MOST_WINDOW} pieces and 1 try or more",
                self.window, self.patience.tries
            ));
        }
        let mut members: Vec<u16> = self
            .sets
            .iter()
            .flat_map(|set| &set.members)
            .map(|node| node.0)
            .collect();
        members.sort_unstable();
        if !members.iter().copied().eq(0..self.nodes) {
            return Err(format!(
                "the sets are not of the job's {} nodes; arrange them again",
                self.nodes
            ));
        }
        let found = self
            .sets
            .iter()
            .find_map(|set| Some((set, set.position(self.own)?)));
        let place = found.and_then(|(set, place)| Some((set.clone(), u8::try_from(place).ok()?)));
        place.ok_or_else(|| {
            format!(
                "node {} is in no set of the job; look at the list of its nodes",
                self.own
            )
        })
    }
}
