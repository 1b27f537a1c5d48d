//! Where the shards of the candidates are, for a job that asks for some to start now.
//!
//! Where the cores that a job gets are near no GPU with enough shards, cons_tres before 23.11.5 takes the first GPU with
//! enough of them, and does not look whether somebody has it whole.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::layout::Layout;

use crate::abi::masks::Masks;

/// The GRES states of a node, by their addresses. Valid for one call.
struct OfNode {
    node: usize,
    shards: usize,
    gpus: usize,
}

/// Shards of the candidates of one call.
#[derive(Default)]
pub struct ShardsOfCall {
    nodes: RefCell<Vec<OfNode>>,
    layout: Cell<Option<&'static Layout>>,
}

impl ShardsOfCall {
    /// Notes those of a candidate.
    pub fn note(
        &self,
        layout: &'static Layout,
        node: usize,
        shards: NodeGres<'_>,
        gpus: NodeGres<'_>,
    ) {
        self.layout.set(Some(layout));
        self.nodes.borrow_mut().push(OfNode {
            node,
            shards: shards.raw() as usize,
            gpus: gpus.raw() as usize,
        });
    }

    /// Whether there are any.
    pub fn has_any(&self) -> bool {
        !self.nodes.borrow().is_empty()
    }

    /// Leaves no shards of GPUs that count as given, on the candidates that are left. Whatever marks GPUs does so before.
    pub fn close(&self, masks: &Masks, candidates: *mut c_void) {
        // SAFETY: the bitmap of this call, locked by slurmctld for its length.
        let candidates = unsafe { Bitmap::new(candidates) };
        let (Some(layout), Some(candidates)) = (self.layout.get(), candidates) else {
            return;
        };
        let nodes = self.nodes.borrow();
        for own in nodes.iter().filter(|own| candidates.test(own.node)) {
            // SAFETY: both addresses are those of handles from which they were taken in this call, under slurmctld's
            // node write lock, which is held until it has ended.
            let [shards, gpus] = [own.shards, own.gpus]
                .map(|at| unsafe { NodeGres::new(at as *mut c_void, &layout.gres_node) });
            if let (Some(shards), Some(gpus)) = (shards, gpus) {
                masks.close_shards(layout, shards, gpus.allocated_devices());
            }
        }
    }
}
