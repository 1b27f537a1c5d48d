//! A node as a workload manager has it.

use gpuos_core::health::ExtraPart;

/// One node's record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// Why it gets no new jobs; `None`: it is not drained. The reason may be empty.
    pub drain: Option<String>,
    /// Sockets.
    pub sockets: u16,
    /// Cores per socket.
    pub cores_per_socket: u16,
    /// GPU types and their counts, in the order of their numbers; an empty type is none.
    pub gpus: Vec<(String, usize)>,
    /// What stands there of the state of its GPUs; of damaged words the worst that they may have said.
    pub published: ExtraPart,
    /// What is wrong with that part of the record: a sentence.
    pub damaged: Option<String>,
}

impl NodeRecord {
    /// How many GPUs are counted on the node.
    pub fn gpu_count(&self) -> usize {
        self.gpus.iter().map(|(_, count)| count).sum()
    }
}
