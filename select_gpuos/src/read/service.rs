//! What a node's `Extra` says: which of its GPUs gpuosd has taken out of service, which it takes for degraded, whether the node is short of
//! host memory, and of which jobs checkpoints lie there.

use std::collections::BTreeMap;

use gpuos_core::health::{ExtraError, ExtraPart};
use gpuos_model::gpu_index::NvmlSet;
use gpuos_model::gpuset::GpuSet;
use slurm_ffi::extra::Remembered;
use slurm_ffi::handles::Node;
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::messages;
use crate::read::prefetch::Prefetch;
use crate::read::site::Site;

/// What is known of one node.
#[derive(Default)]
struct Known {
    text: Remembered,
    out: GpuSet,
    degraded: GpuSet,
    pool_out: NvmlSet,
    short: bool,
    held: BTreeMap<u32, u32>,
    /// And others, which it does not name.
    more: bool,
}

impl Known {
    /// Takes what a text says; what of it cannot be read.
    fn parse(&mut self, text: &str) -> Option<ExtraError> {
        let (part, wrong) = ExtraPart::read(text);
        self.out = part.out.into_iter().collect();
        self.degraded = part.degraded.into_iter().collect();
        self.pool_out = part.pool_out.into_iter().collect();
        self.short = part.short;
        self.held = part.held;
        self.more = part.held_more;
        wrong
    }
}

/// What the nodes' `Extra` says, by node index.
#[derive(Default)]
pub struct Service {
    known: Vec<Known>,
    /// How many of them have an `Extra` at all.
    texts: usize,
    /// How many of them name jobs of which checkpoints lie there.
    holding: usize,
    /// How many of them are short of host memory.
    short: usize,
    /// Whether a text of Slurm's was no text: then none is read any more.
    refused: bool,
}

impl Service {
    /// Whether GPUs that are out of service are withheld from anybody.
    pub fn serves(&self, site: &Site) -> bool {
        site.steers() && site.layout.node_extra.is_some() && !self.refused
    }

    /// Looks at the `Extra` of the candidates; whether any of the cluster has one.
    pub fn refresh(&mut self, frame: &Frame<'_>, prefetch: &mut Prefetch) -> bool {
        let source = &frame.source;
        let mut ahead = prefetch.begin(frame.candidates, source.nodes());
        for index in frame.indices() {
            prefetch.fetch(ahead.next());
            if let Some(node) = source.node(index)
                && (node.extra() != 0 || self.texts > 0)
            {
                self.read(source, index, node);
            }
        }
        self.texts > 0
    }

    /// Forgets everything: the node table is made anew.
    pub fn clear(&mut self) {
        self.known.clear();
        (self.texts, self.holding, self.short) = (0, 0, 0);
    }

    /// Whether any node names jobs of which checkpoints lie there, as far as nodes were read.
    pub fn has_holders(&self) -> bool {
        self.holding > 0
    }

    /// GiB that checkpoints of a job take on a node; `None`: the node does not name the job.
    pub fn held(&self, node: usize, job: u32) -> Option<u32> {
        self.known.get(node)?.held.get(&job).copied()
    }

    /// Whether a node may hold checkpoints of a job although it does not name it: it leaves jobs out.
    pub fn may_hold(&self, node: usize, job: u32) -> bool {
        let known = self.known.get(node);
        known.is_some_and(|known| known.more && !known.held.contains_key(&job))
    }

    /// Whether any node is short of host memory, as far as nodes were read.
    pub fn has_short(&self) -> bool {
        self.short > 0
    }

    /// Whether a node is.
    pub fn is_short(&self, node: usize) -> bool {
        self.known.get(node).is_some_and(|known| known.short)
    }

    /// GPUs of a node that are out of service, and those that are to be given last.
    #[inline]
    pub fn of(&self, node: usize) -> (GpuSet, GpuSet) {
        match self.texts {
            0 => (GpuSet::EMPTY, GpuSet::EMPTY),
            _ => self
                .known
                .get(node)
                .map_or_else(Default::default, |known| (known.out, known.degraded)),
        }
    }

    /// GPUs of the node's pool that are out of service.
    pub fn pool_out(&self, node: usize) -> NvmlSet {
        let known = self.known.get(node).filter(|_| self.texts > 0);
        known.map_or(NvmlSet::EMPTY, |known| known.pool_out)
    }

    /// Reads what has changed of a node.
    #[cold]
    #[inline(never)]
    fn read<'a>(&mut self, source: &Source<'a>, index: usize, node: Node<'a>) {
        if index >= self.known.len() {
            self.known.resize_with(index + 1, Known::default);
        }
        let known = &mut self.known[index];
        let had = known.text.is_some();
        if source.has_same_extra(node, &known.text) {
            return;
        }
        let before = (known.out, known.degraded, known.pool_out);
        (known.out, known.degraded) = (GpuSet::EMPTY, GpuSet::EMPTY);
        known.pool_out = NvmlSet::EMPTY;
        self.holding -= usize::from(!std::mem::take(&mut known.held).is_empty());
        self.short -= usize::from(std::mem::take(&mut known.short));
        known.more = false;
        let name = node.name();
        match known.text.set(node.extra()) {
            Ok(text) => {
                if let Some(why) = known.parse(&text) {
                    log::error(&messages::extra_is_odd(name, why));
                }
                if let Some(words) = ExtraPart::unknown(&text) {
                    log::info(&messages::extra_has_unknown_words(name, words));
                }
            }
            Err(why) => {
                self.refused = true;
                log::error(&messages::extra_misfits(name, why));
            }
        }
        let now = (known.out, known.degraded, known.pool_out);
        if now != before {
            log::info(&messages::service_changed(name, now.0, now.1, now.2));
        }
        self.holding += usize::from(!known.held.is_empty());
        self.short += usize::from(known.short);
        match (had, known.text.is_some()) {
            (false, true) => self.texts += 1,
            (true, false) => self.texts -= 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &[usize]) -> GpuSet {
        list.iter().copied().fold(GpuSet::EMPTY, GpuSet::with)
    }

    #[test]
    fn a_gpu_that_is_out_stays_out_whatever_stands_beside_it() {
        let mut known = Known::default();
        for text in [
            "[gpuos:1 out=2,5 degraded=3 mig-out=6]",
            "[gpuos:1 asleep=7 out=2,5 zone=out=1 degraded=3 quiet mig-out=6 x=]",
            "rack 7 [gpuos:1 mig-out=6 later out=5 out=2 degraded=2,3] fan",
        ] {
            assert_eq!(known.parse(text), None, "{text}");
            assert_eq!(known.out, set(&[2, 5]), "{text}");
            assert_eq!(known.degraded, set(&[3]), "{text}");
            assert_eq!(known.pool_out, NvmlSet(set(&[6])), "{text}");
        }
        // Which ones a damaged word named is not known: then it is all that it may have named.
        assert!(known.parse("[gpuos:1 later out=2,x mig-out=6]").is_some());
        assert_eq!((known.out.len(), known.pool_out.0), (64, set(&[6])));
        assert!(known.parse("[gpuos:1 out=2 degraded=3,x]").is_some());
        assert_eq!((known.out, known.degraded), (set(&[2]), set(&[3])));
        assert_eq!(known.parse("rack 7"), None);
        assert!(known.out.is_empty() && known.pool_out.is_empty());
    }

    #[test]
    fn jobs_whose_checkpoints_lie_there_are_known_and_garbage_is_ignored() {
        let mut known = Known::default();
        for text in [
            "[gpuos:1 ckpt=7:3,900:41 out=2]",
            "rack 7 [gpuos:1 out=2 ckpt=7:3,x,0:1,-1:2,900:41,9:99999999999] ckpt=5:5",
        ] {
            assert_eq!(known.parse(text), None, "{text}");
            assert_eq!(known.held, [(7, 3), (900, 41)].into(), "{text}");
            assert_eq!((known.out, known.degraded), (set(&[2]), GpuSet::EMPTY));
        }
        assert_eq!(known.parse("[gpuos:1 ckpt=x out=2]"), None);
        assert!(known.held.is_empty() && known.out == set(&[2]));
    }

    #[test]
    fn a_node_is_short_only_where_gpuosd_says_so() {
        let mut known = Known::default();
        assert_eq!(
            known.parse("rack 7 [gpuos:1 out=2 short=host ckpt=7:3]"),
            None
        );
        assert!(known.short && known.out == set(&[2]) && known.held.len() == 1);
        for text in [
            "short=host",
            "[gpuos:1 short out=2]",
            "[gpuos:1 short=hosts]",
        ] {
            assert_eq!(known.parse(text), None, "{text}");
            assert!(!known.short, "{text}");
        }
    }
}
