//! One attempt: narrow the candidates to a choice, hide the other free GPUs of its nodes, ask
//! cons_tres, and undo.

use std::ffi::{c_int, c_void};

use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::Choice;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::layout::GresNode;

use crate::call::Call;
use crate::snapshot::Snapshot;

/// Marks set in Slurm's counters, taken back when this is dropped, also while a panic unwinds.
struct Masks<'a> {
    nodes: &'a mut Vec<(usize, u64)>,
    layout: &'a GresNode,
}

impl Drop for Masks<'_> {
    fn drop(&mut self) {
        for (address, marked) in self.nodes.drain(..) {
            // SAFETY: the address was a live GRES state when it was marked in this call, and the node
            // write lock is still held.
            if let Some(gres) = unsafe { NodeGres::new(address as *mut c_void, self.layout) } {
                gres.unmask(marked);
            }
        }
    }
}

/// The candidates as Slurm gave them, put back when an attempt did not succeed.
struct Narrowed<'a> {
    nodes: Bitmap<'a>,
    saved: &'a [u64],
    keep: bool,
}

impl Drop for Narrowed<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.nodes.restore(self.saved);
        }
    }
}

/// Buffers for attempts, kept from call to call.
#[derive(Default)]
pub struct Steering {
    saved: Vec<u64>,
    marked: Vec<(usize, u64)>,
}

/// How the answer to an attempt is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It is the answer to Slurm: on success the choice stays in the bitmap.
    Answer,
    /// It is only compared with others: the bitmap is put back, nothing is preempted.
    Question,
}

impl Steering {
    /// Remembers the candidates of this call.
    pub fn begin(&mut self, nodes: Bitmap<'_>) {
        nodes.save(&mut self.saved);
    }

    /// Asks cons_tres for exactly the nodes of `choice`, and, where it names GPUs, for no others than these.
    pub fn attempt(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        layout: &GresNode,
        snapshot: &Snapshot,
        choice: &Choice,
        purpose: Purpose,
    ) -> c_int {
        let mut narrowed = Narrowed {
            nodes,
            saved: &self.saved,
            keep: false,
        };
        let masks = Masks {
            nodes: &mut self.marked,
            layout,
        };
        nodes.clear();
        for one in &choice.nodes {
            let index = one.node as usize;
            nodes.put(index, true);
            if one.gpus == GpuSet::EMPTY {
                continue;
            }
            let unwanted = GpuSet(u64::MAX).minus(one.gpus);
            // SAFETY: the snapshot read this address in this very call, under the node write lock.
            let gres = unsafe { NodeGres::new(snapshot.places[index].gres as *mut c_void, layout) };
            if let Some(gres) = gres {
                let marked = gres.mask(unwanted.0);
                if marked != 0 {
                    masks.nodes.push((snapshot.places[index].gres, marked));
                }
            }
        }
        slurm_ffi::guard::inject("job_test.masked");
        let code = match purpose {
            Purpose::Answer => call.forward(),
            Purpose::Question => call.forward_without_preemption(),
        };
        narrowed.keep = code == 0 && purpose == Purpose::Answer;
        code
    }
}
