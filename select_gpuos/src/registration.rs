//! Nodes whose GPUs slurmctld does not know yet.
//!
//! From a start of slurmctld until a node registers, some releases start GPU jobs there that get no GPU in their own
//! record, and run without them. Slurm 22.05 does not save the topology of a node's GRES; jobs without a GPU type
//! then get GPUs taken off the node that are never given back. 23.11.0 to 24.11.0 save it and do not go by it; 24.11.1
//! does. Here such nodes are kept out of the start of GPU jobs; a node registers within moments of its first answer.

use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::snapshot::Source;

/// By what a release starts GPU jobs on a node that has not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Topology {
    /// It is as slurmctld saved it: jobs get their GPUs.
    Saved,
    /// It is not saved.
    Lost,
    /// It is saved, and not used.
    Ignored,
}

impl Topology {
    fn of(release: Release) -> Topology {
        if release < Release::new(23, 2, 0) {
            Topology::Lost
        } else if (Release::new(23, 11, 0)..Release::new(24, 11, 1)).contains(&release) {
            Topology::Ignored
        } else {
            Topology::Saved
        }
    }
}

/// Whether this release starts jobs on nodes that it does not know yet.
pub fn matters(release: Release) -> bool {
    Topology::of(release) != Topology::Saved
}

/// Whether a job that starts on a node now would lack what it gets of this GRES in its own record.
pub fn loses(release: Release, gres: NodeGres<'_>) -> bool {
    gres.is_provisional()
        && match Topology::of(release) {
            Topology::Saved => false,
            Topology::Lost => gres.topologies() == 0 && gres.types() > 0,
            Topology::Ignored => gres.topologies() > 0 || gres.types() > 0,
        }
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
        release: Release,
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
                    !node.power_saved()
                        && source.gpus(*node).is_some_and(|gpus| loses(release, gpus))
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

#[cfg(test)]
mod tests {
    use super::{Topology, matters};
    use slurm_ffi::release::Release;

    #[test]
    fn releases_that_start_jobs_too_early() {
        for (text, topology) in [
            ("22.05.0", Topology::Lost),
            ("22.05.11", Topology::Lost),
            ("23.02.0", Topology::Saved),
            ("23.02.8", Topology::Saved),
            ("23.11.0", Topology::Ignored),
            ("24.05.0", Topology::Ignored),
            ("24.05.8", Topology::Ignored),
            ("24.11.0", Topology::Ignored),
            ("24.11.1", Topology::Saved),
            ("25.05.3", Topology::Saved),
            ("26.05.5", Topology::Saved),
        ] {
            let release = Release::parse(text).expect("a release");
            assert_eq!(Topology::of(release), topology, "{text}");
            assert_eq!(matters(release), topology != Topology::Saved, "{text}");
        }
    }
}
