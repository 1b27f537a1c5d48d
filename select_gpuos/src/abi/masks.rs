//! What a call writes into Slurm's records for its own length or less, and how that is taken back: the one guard for
//! all of it.
//!
//! Whoever marks something holds a [`Masks`], or a [`Scope`] of one, until it is to be as it was. Both take back what
//! they hold when they are dropped, also while a panic unwinds.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use slurm_ffi::cores::CoreMaps;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;
use slurm_ffi::layout::Layout;

/// What was marked.
#[derive(Clone, Copy)]
enum What {
    /// Free devices of a GRES, as allocated: with Slurm's counters. By bits.
    Allocated(u64),
    /// Devices in use whose mark was missing, by bits.
    InUse(u64),
    /// Idle cores of a node, as the node's own.
    Cores,
    /// Shards that are left of one entry of a GRES state, of which so many are given.
    Shards { entry: usize, used: u64 },
    /// Nothing any more.
    TakenBack,
}

impl What {
    /// The devices of the GRES state that are marked, by bits.
    fn devices(self) -> u64 {
        match self {
            What::Allocated(bits) | What::InUse(bits) => bits,
            What::Cores | What::Shards { .. } | What::TakenBack => 0,
        }
    }
}

/// One mark, in the GRES state or node record at an address.
struct Mark {
    what: What,
    at: usize,
}

/// Marks in Slurm's records, and the room for them, which outlives a call.
///
/// Slurm's records are at the addresses as long as slurmctld's locks are held under which the handles were made. So a
/// `Masks` with marks lives no longer than one call: that of [`crate::abi::call::Call`] ends with the call, and others are
/// marked under a [`Scope`].
#[derive(Default)]
pub struct Masks {
    marks: RefCell<Vec<Mark>>,
    layout: Cell<Option<&'static Layout>>,
}

impl Masks {
    /// Has those of a GRES state's devices that are free and in `bits` count as allocated. The number of the mark, for
    /// [`Masks::revert_one`], and which devices they are; `None`: there are none.
    pub fn allocate(
        &self,
        layout: &'static Layout,
        gres: NodeGres<'_>,
        bits: u64,
    ) -> Option<(usize, u64)> {
        let mask = || Some(gres.mask(bits)).filter(|bits| *bits != 0);
        let marked = self.mark(layout, gres.raw(), || mask().map(What::Allocated));
        marked.map(|(number, what)| (number, what.devices()))
    }

    /// Marks the devices of a GRES state that are in use and whose mark Slurm has lost.
    pub fn show_in_use(&self, layout: &'static Layout, gres: NodeGres<'_>) {
        let show = || Some(gres.show_in_use()).filter(|bits| *bits != 0);
        self.mark(layout, gres.raw(), || show().map(What::InUse));
    }

    /// Hides the idle cores of a node but the lowest `leave` of each socket; whether there were any.
    pub fn hide_cores(
        &self,
        layout: &'static Layout,
        node: Node<'_>,
        maps: &mut CoreMaps,
        leave: u32,
    ) -> bool {
        let hide = || node.hide_cores(maps, leave).then_some(What::Cores);
        self.mark(layout, node.raw(), hide).is_some()
    }

    /// Leaves no shards of the GPUs in `gpus`.
    pub fn close_shards(&self, layout: &'static Layout, shards: NodeGres<'_>, gpus: u64) {
        self.layout.set(Some(layout));
        let mut marks = self.marks.borrow_mut();
        let at = shards.raw() as usize;
        shards.close(gpus, |entry, used| {
            let what = What::Shards { entry, used };
            marks.push(Mark { what, at });
        });
    }

    fn mark(
        &self,
        layout: &'static Layout,
        at: *mut c_void,
        write: impl FnOnce() -> Option<What>,
    ) -> Option<(usize, What)> {
        self.layout.set(Some(layout));
        let mut marks = self.marks.borrow_mut();
        // Its place first: what is written is never without somebody who takes it back.
        marks.reserve(1);
        let (at, what) = (at as usize, write()?);
        marks.push(Mark { what, at });
        Some((marks.len() - 1, what))
    }

    /// Whether nothing is marked.
    pub fn is_empty(&self) -> bool {
        self.marks.borrow().is_empty()
    }

    /// What is marked in one GRES state.
    pub fn of(&self, gres: NodeGres<'_>) -> u64 {
        let (marks, at) = (self.marks.borrow(), gres.raw() as usize);
        let own = marks.iter().filter(|mark| mark.at == at);
        own.fold(0, |all, mark| all | mark.what.devices())
    }

    /// Takes one mark back.
    pub fn revert_one(&self, number: usize) {
        if let Some(mark) = self.marks.borrow_mut().get_mut(number) {
            self.undo(mark);
            mark.what = What::TakenBack;
        }
    }

    /// Takes all marks back, in the order in which they were made.
    pub fn revert_all(&self) {
        for mark in self.marks.borrow_mut().drain(..) {
            self.undo(&mark);
        }
    }

    fn undo(&self, mark: &Mark) {
        let Some(layout) = self.layout.get() else {
            return;
        };
        let record = mark.at as *mut c_void;
        match mark.what {
            What::Allocated(_) | What::InUse(_) | What::Shards { .. } => {
                // SAFETY: the address is that of a handle from which it was taken in this call, under slurmctld's node
                // write lock, which the call's owner holds until this guard is gone.
                let gres = unsafe { NodeGres::new(record, &layout.gres_node) };
                match (gres, mark.what) {
                    (Some(gres), What::Allocated(bits)) => gres.unmask(bits),
                    (Some(gres), What::InUse(bits)) => gres.hide_in_use(bits),
                    (Some(gres), What::Shards { entry, used }) => gres.reopen(entry, used),
                    _ => {}
                }
            }
            What::Cores => {
                // SAFETY: as above, a node's handle.
                if let Some(node) = unsafe { Node::new(record, layout) } {
                    node.show_cores();
                }
            }
            What::TakenBack => {}
        }
    }

    /// Takes back what is marked until the scope ends.
    pub fn scope(&self) -> Scope<'_> {
        Scope(self)
    }

    /// Makes room for so many marks.
    pub fn reserve(&self, marks: usize) {
        self.marks.borrow_mut().reserve(marks);
    }

    /// Exchanges the room for marks with that of another one. Neither has any mark.
    pub fn swap_buffers(&self, other: &Masks) {
        debug_assert!(self.is_empty() && other.is_empty());
        self.marks.swap(&other.marks);
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.revert_all();
    }
}

/// A part of a call at whose end all marks are taken back.
pub struct Scope<'a>(&'a Masks);

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.0.revert_all();
    }
}
