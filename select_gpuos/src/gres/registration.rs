//! Nodes whose GPUs slurmctld does not know yet.
//!
//! From a start of slurmctld until a node registers, some releases start GPU jobs there that get no GPU in their own
//! record, and run without them. Slurm 22.05 does not save the topology of a node's GRES; jobs without a GPU type
//! then get GPUs taken off the node that are never given back. 23.11.0 to 24.11.0 save it and do not go by it; 24.11.1
//! and later do where the node has answered, and start jobs without it where an administrator has opened a node that has
//! not. Here such nodes are kept out of the start of GPU jobs; a node registers within moments of its first answer.

use gpuos_placement::withhold::registration::{Known, Readiness, SavedTopology};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::abi::frame::Frame;
use crate::messages;

/// By what a release starts GPU jobs on a node that has not registered. (`gres_sock_list_create` of cons_tres.)
fn topology(release: Release) -> SavedTopology {
    if release < Release::new(23, 2, 0) {
        SavedTopology::Lost
    } else if release < Release::new(23, 11, 0) {
        SavedTopology::Used
    } else if release < Release::new(24, 11, 1) {
        SavedTopology::Ignored
    } else {
        SavedTopology::UsedOnceItAnswers
    }
}

/// Whether this release starts jobs on nodes that it does not know yet.
pub fn matters(release: Release) -> bool {
    topology(release).matters()
}

/// Whether a job that starts on a node now would lack what it gets of this GRES in its own record.
pub fn loses(release: Release, node: Node<'_>, gres: NodeGres<'_>) -> bool {
    topology(release).loses(known(node, gres))
}

fn known(node: Node<'_>, gres: NodeGres<'_>) -> Known {
    Known {
        provisional: gres.is_provisional(),
        has_topology: gres.topologies() > 0,
        has_types: gres.types() > 0,
        out_of_touch: node.out_of_touch(),
        power_saved: node.power_saved(),
    }
}

/// Which nodes have registered: bits by node index.
#[derive(Default)]
pub struct Registration {
    /// Jobs can have the GPUs of these.
    ready: Vec<u64>,
    /// These have not registered, and the log says so.
    logged: Vec<u64>,
}

/// Nodes taken out of the candidates; put back when this is dropped, unless the call succeeded.
pub struct Excluded<'a> {
    candidates: Bitmap<'a>,
    nodes: Vec<usize>,
}

impl<'a> Excluded<'a> {
    /// Takes nodes out of the candidates; `None` where there are none.
    pub fn new(candidates: Bitmap<'a>, nodes: Vec<usize>) -> Option<Excluded<'a>> {
        nodes
            .iter()
            .for_each(|node| candidates.set_bit(*node, false));
        (!nodes.is_empty()).then_some(Excluded { candidates, nodes })
    }

    /// The call has made its choice: it stands in the candidates.
    pub fn done(mut self) {
        self.nodes.clear();
    }
}

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        self.nodes
            .iter()
            .for_each(|node| self.candidates.set_bit(*node, true));
    }
}

impl Registration {
    /// Forgets everything: the node table is made anew.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.logged.clear();
    }

    /// Takes the nodes that have not registered out of the candidates; `None` where there are none.
    pub fn keep_out<'a>(&mut self, release: Release, frame: &Frame<'a>) -> Option<Excluded<'a>> {
        let count = frame.source.nodes();
        let words = count.div_ceil(64);
        self.ready.resize(words, 0);
        self.logged.resize(words, 0);
        let mut nodes = Vec::new();
        // By words: once all have registered, a call costs no look at each.
        for word in 0..words {
            let mut unsure = frame.candidates.chunk(word) & !self.ready[word];
            while unsure != 0 {
                let bit = unsure & unsure.wrapping_neg();
                unsure ^= bit;
                let index = word * 64 + bit.trailing_zeros() as usize;
                if index < count && self.waits(release, frame, index, bit) {
                    nodes.push(index);
                }
            }
        }
        Excluded::new(frame.candidates, nodes)
    }

    /// Whether no GPU job is to start on a node yet; `bit` is its bit in its word.
    #[cold]
    fn waits(&mut self, release: Release, frame: &Frame<'_>, index: usize, bit: u64) -> bool {
        let source = &frame.source;
        let word = index / 64;
        let both = source
            .node(index)
            .and_then(|node| Some((node, source.gpus(node)?)));
        let readiness = match both {
            Some((node, gpus)) => topology(release).readiness(known(node, gpus)),
            None => Readiness::ForGood,
        };
        if readiness == Readiness::ForGood {
            self.ready[word] |= bit;
        }
        let Some((node, _)) = both.filter(|_| readiness == Readiness::Waits) else {
            return false;
        };
        if self.logged[word] & bit == 0 {
            self.logged[word] |= bit;
            let name = node.name();
            log::info(&messages::not_registered(name));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{SavedTopology, matters, topology};
    use slurm_ffi::release::Release;

    #[test]
    fn releases_that_start_jobs_too_early() {
        for (text, expected) in [
            ("22.05.0", SavedTopology::Lost),
            ("22.05.11", SavedTopology::Lost),
            ("23.02.0", SavedTopology::Used),
            ("23.02.8", SavedTopology::Used),
            ("23.11.0", SavedTopology::Ignored),
            ("24.05.0", SavedTopology::Ignored),
            ("24.05.8", SavedTopology::Ignored),
            ("24.11.0", SavedTopology::Ignored),
            ("24.11.1", SavedTopology::UsedOnceItAnswers),
            ("25.05.3", SavedTopology::UsedOnceItAnswers),
            ("26.05.5", SavedTopology::UsedOnceItAnswers),
        ] {
            let release = Release::parse(text).expect("a release");
            assert_eq!(topology(release), expected, "{text}");
            assert_eq!(matters(release), expected != SavedTopology::Used, "{text}");
        }
    }
}
