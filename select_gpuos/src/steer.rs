//! One attempt: narrow the candidates to a choice, hide the other free GPUs of its nodes, ask
//! cons_tres, and undo.

use std::ffi::{c_int, c_void};

use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::Choice;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::cores::CoreMaps;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;
use slurm_ffi::layout::{GresNode, Layout};

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

/// Nodes with hidden cores, shown again when this is dropped, also while a panic unwinds.
struct Hidden<'a> {
    nodes: &'a mut Vec<usize>,
    layout: &'a Layout,
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        for address in self.nodes.drain(..) {
            // SAFETY: the address was a live node record when its cores were hidden in this call, and the
            // node write lock is still held.
            if let Some(node) = unsafe { Node::new(address as *mut c_void, self.layout) } {
                node.show_cores();
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
    maps: CoreMaps,
    hidden: Vec<usize>,
    /// How many cores of each socket are enough for the job of this call, where that is known.
    enough: Option<u32>,
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
    /// Remembers the candidates of this call, and how many cores of each socket are enough for its job.
    pub fn begin(&mut self, nodes: Bitmap<'_>, enough: Option<u32>) {
        nodes.save(&mut self.saved);
        self.enough = enough;
        self.maps.tidy();
    }

    /// Gives the candidates back as they came, after an answer that does not count.
    pub fn put_back(&self, nodes: Bitmap<'_>) {
        nodes.restore(&self.saved);
    }

    /// Runs `ask` with the idle cores hidden that the job has no use for, and once more with all in sight
    /// if the answer is no: that must never be for a lack of cores. `ask` sets the node bitmap first.
    fn with_fewer_cores(
        &mut self,
        layout: &Layout,
        snapshot: &Snapshot,
        nodes: impl Iterator<Item = usize>,
        mut ask: impl FnMut() -> c_int,
    ) -> c_int {
        let Some(enough) = self.enough else {
            return ask();
        };
        let hidden = Hidden {
            nodes: &mut self.hidden,
            layout,
        };
        for place in nodes.filter_map(|index| snapshot.places.get(index)) {
            // SAFETY: the snapshot read this address in this very call, under the node write lock.
            let node = unsafe { Node::new(place.record as *mut c_void, layout) };
            if place.idle && node.is_some_and(|node| node.hide_cores(&mut self.maps, enough)) {
                hidden.nodes.push(place.record);
            }
        }
        if hidden.nodes.is_empty() {
            return ask();
        }
        slurm_ffi::guard::inject("job_test.cores");
        let code = ask();
        drop(hidden);
        if code == 0 {
            return code;
        }
        self.enough = None;
        ask()
    }

    /// Asks cons_tres for all candidates.
    pub fn all(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        layout: &Layout,
        snapshot: &Snapshot,
    ) -> c_int {
        let saved = std::mem::take(&mut self.saved);
        let code = self.with_fewer_cores(layout, snapshot, 0..snapshot.places.len(), || {
            nodes.restore(&saved);
            call.forward()
        });
        self.saved = saved;
        code
    }

    /// Asks cons_tres for exactly these nodes, and on each for no other slices than these: the node's index, the
    /// address of its GRES state, read in this very call, and the slices. Nobody is preempted: what
    /// somebody gives up then is not what was chosen.
    pub fn attempt_slices(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        layout: &Layout,
        chosen: &[(usize, usize, u64)],
    ) -> c_int {
        let (saved, mut marked) = (
            std::mem::take(&mut self.saved),
            std::mem::take(&mut self.marked),
        );
        let code = {
            let mut narrowed = Narrowed {
                nodes,
                saved: &saved,
                keep: false,
            };
            let masks = Masks {
                nodes: &mut marked,
                layout: &layout.gres_node,
            };
            nodes.clear();
            for (node, gres, bits) in chosen {
                nodes.put(*node, true);
                // SAFETY: the caller read this address in this call, under the node write lock.
                let state = unsafe { NodeGres::new(*gres as *mut c_void, &layout.gres_node) };
                let marked = state.map_or(0, |state| state.mask(!bits));
                if marked != 0 {
                    masks.nodes.push((*gres, marked));
                }
            }
            slurm_ffi::guard::inject("job_test.slices");
            let code = call.without_preemption(|| call.forward());
            narrowed.keep = code == 0;
            code
        };
        (self.saved, self.marked) = (saved, marked);
        code
    }

    /// Asks cons_tres for exactly the nodes of `choice`, and, where it names GPUs, for no others than these.
    pub fn attempt(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        layout: &Layout,
        snapshot: &Snapshot,
        choice: &Choice,
        purpose: Purpose,
    ) -> c_int {
        // Both live in the guards of this attempt, and are put back for the next.
        let (saved, mut marked) = (
            std::mem::take(&mut self.saved),
            std::mem::take(&mut self.marked),
        );
        let code = {
            let mut narrowed = Narrowed {
                nodes,
                saved: &saved,
                keep: false,
            };
            let masks = Masks {
                nodes: &mut marked,
                layout: &layout.gres_node,
            };
            for one in &choice.nodes {
                if one.gpus == GpuSet::EMPTY {
                    continue;
                }
                let place = &snapshot.places[one.node as usize];
                let unwanted = GpuSet(u64::MAX).minus(one.gpus);
                // SAFETY: the snapshot read this address in this very call, under the node write lock.
                let gres = unsafe { NodeGres::new(place.gres as *mut c_void, &layout.gres_node) };
                if let Some(gres) = gres {
                    let marked = gres.mask(unwanted.0);
                    if marked != 0 {
                        masks.nodes.push((place.gres, marked));
                    }
                }
            }
            slurm_ffi::guard::inject("job_test.masked");
            let chosen = choice.nodes.iter().map(|one| one.node as usize);
            let code = self.with_fewer_cores(layout, snapshot, chosen.clone(), || {
                nodes.clear();
                chosen.clone().for_each(|node| nodes.put(node, true));
                match purpose {
                    Purpose::Answer => call.forward(),
                    Purpose::Question => call.forward_without_preemption(),
                }
            });
            narrowed.keep = code == 0 && purpose == Purpose::Answer;
            code
        };
        (self.saved, self.marked) = (saved, marked);
        code
    }
}
