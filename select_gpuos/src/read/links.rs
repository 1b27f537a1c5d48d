//! Links of gres.conf for which cons_tres leaves a GPU out.
//!
//! Before 24.05 it takes the first GPU of each socket and then only others to which the sum of their links is not negative. -1 and -2 are
//! read as numbers there, also where the -1 of a row is not at the row's own place: of two such GPUs alone it takes one.

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_placement::plan::Choice;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::release::Release;

use crate::abi::source::Source;

/// From this release on GPUs are sorted by their links, and none is left out.
const SORTED_FROM: Release = Release::new(24, 5, 0);

/// The nodes with negative links between two GPUs.
#[derive(Default)]
pub struct NegativeLinks {
    /// By node, ascending: for each GPU the others that it has a negative number of links to.
    nodes: Vec<(u32, Vec<GpuSet>)>,
}

impl NegativeLinks {
    /// Reads all nodes.
    pub fn read(source: &Source<'_>, release: Release) -> NegativeLinks {
        let of_node = |index: usize| {
            let rows = rows(source.gpus_of(index)?);
            let any = rows.iter().any(|row| !row.is_empty());
            any.then_some((index as u32, rows))
        };
        let all = if release < SORTED_FROM {
            source.nodes()
        } else {
            0
        };
        NegativeLinks {
            nodes: (0..all).filter_map(of_node).collect(),
        }
    }

    /// Whether cons_tres may leave out some of the GPUs of a choice, offered alone.
    pub fn may_shorten(&self, choice: &Choice) -> bool {
        !self.nodes.is_empty()
            && choice.nodes.iter().any(|one| {
                let found = self
                    .nodes
                    .binary_search_by_key(&one.node, |(node, _)| *node);
                let rows = found.ok().map(|at| &self.nodes[at].1);
                rows.is_some_and(|rows| {
                    let mut rows = one.gpus.iter().filter_map(|gpu| rows.get(gpu));
                    rows.any(|row| !row.and(one.gpus).is_empty())
                })
            })
    }
}

fn rows(gpus: NodeGres<'_>) -> Vec<GpuSet> {
    let count = gpus.link_len();
    if count == 0 || count > MAX_GPUS || count != gpus.devices() {
        return Vec::new();
    }
    let negative = |a: usize, b: usize| a != b && gpus.links(a, b).is_some_and(|links| links < 0);
    let row = |a: usize| {
        let all = (0..count).filter(|b| negative(a, *b));
        GpuSet(all.fold(0, |set, b| set | 1 << b))
    };
    (0..count).map(row).collect()
}
