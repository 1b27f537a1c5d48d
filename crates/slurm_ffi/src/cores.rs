//! Idle cores of a node, hidden from cons_tres for the length of one call.
//!
//! cons_tres leaves out the cores that a node keeps for itself (`node_spec_bitmap`, from CoreSpecCount or
//! CpuSpecList). A node that keeps none has null there, and can be given a bitmap for one call.

use std::ffi::c_void;

use crate::bits::{self, Bitmap};
use crate::field::place;
use crate::handles::Node;
use crate::layout::Layout;
use crate::mem::read;

/// Which cores stay in sight on nodes of one shape: the lowest ones of each socket.
struct Map {
    sockets: u16,
    cores: u16,
    leave: u32,
    // Slurm's form of a bitmap.
    words: Box<[u64]>,
}

/// The bitmaps in use, kept from call to call.
#[derive(Default)]
pub struct CoreMaps(Vec<Map>);

/// More shapes than this are not kept.
const MOST: usize = 16;

impl CoreMaps {
    fn get(&mut self, sockets: u16, cores: u16, leave: u32) -> *mut c_void {
        let same = |map: &Map| (map.sockets, map.cores, map.leave) == (sockets, cores, leave);
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            let mut words = bits::zeroed(usize::from(sockets) * usize::from(cores));
            // SAFETY: a bitmap of this process' own, borrowed for these lines.
            if let Some(map) = unsafe { Bitmap::new(words.as_mut_ptr().cast()) } {
                let low = |core: &usize| core % usize::from(cores) < leave as usize;
                (0..map.len())
                    .filter(low)
                    .for_each(|core| map.set_bit(core, true));
            }
            self.0.push(Map {
                sockets,
                cores,
                leave,
                words,
            });
            self.0.len() - 1
        });
        self.0[at].words.as_mut_ptr().cast()
    }

    /// Gives back what was kept for shapes of earlier calls. No node may have hidden cores.
    pub fn free_cached(&mut self) {
        if self.0.len() > MOST {
            self.0.clear();
        }
    }
}

impl Node<'_> {
    /// Hides all but the lowest `leave` cores of each socket, where that is most of them and the node keeps
    /// none for itself. Returns whether it did: then [`Node::show_cores`] has to follow within the call.
    pub fn hide_cores(self, maps: &mut CoreMaps, leave: u32) -> bool {
        let (sockets, cores) = (self.sockets(), self.cores_per_socket());
        let layout = self.layout();
        let total: u16 = self.get(layout.tot_cores);
        if leave == 0
            || leave.saturating_mul(2) > u32::from(cores)
            || u32::from(total) != u32::from(sockets) * u32::from(cores)
            || self.get::<usize>(layout.node_spec_bitmap) != 0
        {
            return false;
        }
        // SAFETY: a pointer field of a live record, which the node write lock keeps to this thread; the
        // bitmap stays in `maps` for longer than the call.
        unsafe {
            *place::<*mut c_void>(self.raw(), layout.node_spec_bitmap) =
                maps.get(sockets, cores, leave)
        };
        true
    }

    /// Takes back what [`Node::hide_cores`] did.
    pub fn show_cores(self) {
        // SAFETY: as there; the field was null before.
        unsafe {
            *place::<*mut c_void>(self.raw(), self.layout().node_spec_bitmap) = std::ptr::null_mut()
        };
    }
}

/// Whether the layout of cores fits a node, seen by reads that cannot fault.
pub fn fits(layout: &Layout, record: *mut c_void) -> bool {
    let (at, fields) = (record as usize, &layout.node);
    let half = |offset: usize| read::<u16>(at + offset).map(usize::from);
    let (Some(sockets), Some(cores), Some(total), Some(kept)) = (
        half(fields.tot_sockets),
        half(fields.cores),
        half(fields.tot_cores),
        read::<usize>(at + fields.node_spec_bitmap),
    ) else {
        return false;
    };
    total == sockets * cores
        && (kept == 0 || bits::probe(kept).is_some_and(|(len, _)| len == total))
}
