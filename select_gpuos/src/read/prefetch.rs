//! Where the GPU state of nodes stood when it was read last: to have the processor fetch it before it is read
//! again. Between two calls other work has thrown it out of the caches, and it hangs on a chain of pointers,
//! each of which would be waited for in turn. An address may be wrong: nothing is ever read through it.

use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;
use slurm_ffi::layout::Layout;
use slurm_ffi::mem::prefetch;

/// So many nodes are fetched before the one that is read.
const AHEAD: usize = 8;

/// Addresses for one node.
type Addresses = [usize; 6];

/// By node index.
#[derive(Default)]
pub struct Prefetch(Vec<Addresses>);

impl Prefetch {
    /// Has the processor fetch what belongs to the first nodes.
    pub fn fetch_first(&self) {
        for addresses in self.0.iter().take(AHEAD) {
            addresses.iter().for_each(|address| prefetch(*address));
        }
    }

    /// Makes room for so many nodes and fetches the first candidates; what comes back are those that follow,
    /// one for [`Prefetch::fetch`] at each node that is read.
    pub fn begin<'a>(
        &mut self,
        candidates: Bitmap<'a>,
        nodes: usize,
    ) -> impl Iterator<Item = usize> + use<'a> {
        self.0.resize(nodes, Addresses::default());
        let mut ahead = candidates.iter();
        ahead
            .by_ref()
            .take(AHEAD)
            .for_each(|index| self.fetch(Some(index)));
        ahead
    }

    /// Has the processor fetch what belongs to a node.
    pub fn fetch(&self, index: Option<usize>) {
        if let Some(addresses) = index.and_then(|index| self.0.get(index)) {
            addresses.iter().for_each(|address| prefetch(*address));
        }
    }

    /// Remembers where the state of a node was found.
    pub fn remember(
        &mut self,
        index: usize,
        node: Node<'_>,
        gpus: NodeGres<'_>,
        bits: Option<Bitmap<'_>>,
        layout: &Layout,
    ) {
        let gres = gpus.raw() as usize;
        let bits = bits.map_or(0, |bits| bits.raw() as usize);
        if let Some(addresses) = self.0.get_mut(index) {
            *addresses = [
                node.raw() as usize + layout.node.gres_list,
                node.raw() as usize + layout.node_extra.unwrap_or(0),
                node.gres_list() as usize,
                gres + layout.gres_node.gres_bit_alloc,
                gres + layout.gres_node.topo_cnt,
                bits,
            ];
        }
    }
}
