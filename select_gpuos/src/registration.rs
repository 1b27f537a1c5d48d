//! Nodes whose GPUs slurmctld does not know yet.
//!
//! Slurm 22.05 does not save the topology of a node's GRES. From a start of slurmctld until the node
//! registers, a job without a GPU type that starts there gets GPUs taken off the node but none in its own
//! record: it runs without them, and they are never given back. 23.02 saves the topology. Here such nodes
//! are kept out of the start of GPU jobs; a node registers within moments of its first answer.

use slurm_ffi::bits::Bitmap;
use slurm_ffi::handles::Node;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::snapshot::Source;

/// The first release that saves the topology of GRES.
const SAVED_SINCE: Release = Release::new(23, 2, 0);

/// Whether this release starts jobs on nodes that it does not know yet.
pub fn matters(release: Release) -> bool {
    release < SAVED_SINCE
}

/// What is known of one node.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    /// It has not registered, and the log says so.
    Waits,
    /// Jobs can have its GPUs.
    Ready,
}

/// Which nodes have registered, by node index.
#[derive(Default)]
pub struct Registration {
    known: Vec<Known>,
}

/// Nodes taken out of the candidates; put back when this is dropped, unless the call succeeded.
pub struct KeptOut<'a> {
    candidates: Bitmap<'a>,
    nodes: Vec<usize>,
}

impl<'a> KeptOut<'a> {
    /// Takes nodes out of the candidates; `None` where there are none.
    pub fn new(candidates: Bitmap<'a>, nodes: Vec<usize>) -> Option<KeptOut<'a>> {
        nodes.iter().for_each(|node| candidates.put(*node, false));
        (!nodes.is_empty()).then_some(KeptOut { candidates, nodes })
    }

    /// The call has made its choice: it stands in the candidates.
    pub fn done(mut self) {
        self.nodes.clear();
    }
}

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        self.nodes
            .iter()
            .for_each(|node| self.candidates.put(*node, true));
    }
}

impl Registration {
    /// Forgets everything: the node table is made anew.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Takes the nodes that have not registered out of the candidates; `None` where there are none.
    ///
    /// # Safety
    /// The caller holds slurmctld's node write lock for `'a`, and the layout was accepted.
    pub unsafe fn keep_out<'a>(
        &mut self,
        source: &Source<'_>,
        candidates: Bitmap<'a>,
    ) -> Option<KeptOut<'a>> {
        let count = source.table.len();
        self.known.resize(count, Known::Nothing);
        let mut nodes = Vec::new();
        for index in candidates.iter().take_while(|index| *index < count) {
            if self.known[index] == Known::Ready {
                continue;
            }
            // SAFETY: by the caller; the table's slot holds null or a live record.
            let waits = unsafe {
                Node::new(source.table.raw(index), source.layout).filter(|node| {
                    // A node that is off registers only after a job has been given to it.
                    !node.power_saved() && source.gpus(*node).is_some_and(|g| g.is_provisional())
                })
            };
            let Some(node) = waits else {
                self.known[index] = Known::Ready;
                continue;
            };
            if self.known[index] == Known::Nothing {
                self.known[index] = Known::Waits;
                let name = node.name();
                log::info(&format!(
                    "{name} has not registered since slurmctld started: no GPU job starts there until it has"
                ));
            }
            nodes.push(index);
        }
        KeptOut::new(candidates, nodes)
    }
}
