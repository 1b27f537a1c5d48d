//! Slurm's nodes: the record of one, the table of all, and which are in service.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::bits::Bitmap;
use crate::field::{field, text};
use crate::layout::{Layout, NodeRecord};
use crate::mem::Plain;

/// In a node's weight as it is scheduled by: power saving has it off (`_set_sched_weight`, src/slurmctld/node_scheduler.c).
pub const POWERED_DOWN: u64 = 0x200_0000_0000;

/// Slurm's `node_record_t`.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pointer: *mut c_void,
    layout: &'a Layout,
    life: PhantomData<&'a mut c_void>,
}

impl<'a> Node<'a> {
    /// Takes a `node_record_t *`; `None` for null.
    ///
    /// # Safety
    /// As [`Job::new`](crate::handles::Job::new), for a node record.
    pub unsafe fn new(pointer: *mut c_void, layout: &'a Layout) -> Option<Node<'a>> {
        (!pointer.is_null()).then_some(Node {
            pointer,
            layout,
            life: PhantomData,
        })
    }

    pub(crate) fn get<T: Plain>(self, offset: usize) -> T {
        // SAFETY: `new`'s caller vouches for record and layout.
        unsafe { field(self.pointer, offset) }
    }

    /// Slurm's pointer, to come back with within the same call.
    pub fn raw(self) -> *mut c_void {
        self.pointer
    }

    pub(crate) fn layout(self) -> &'a NodeRecord {
        &self.layout.node
    }

    /// Node name.
    pub fn name(self) -> &'a str {
        // SAFETY: the name of a live record is a NUL-terminated string.
        unsafe { text(self.get(self.layout.node.name)) }.unwrap_or("?")
    }

    /// CPUs that jobs may use.
    pub fn cpus(self) -> u32 {
        let effective: u16 = self.get(self.layout.node.cpus_efctv);
        u32::from(if effective == 0 {
            self.get(self.layout.node.cpus)
        } else {
            effective
        })
    }

    /// Memory in MiB; 1 or less means that the site did not say.
    pub fn memory(self) -> u64 {
        self.get(self.layout.node.real_memory)
    }

    /// Slurm's weight: nodes of lower weight are to be used first. Without the lowest byte, in which cons_tres counts GPUs near cores.
    pub fn weight(self) -> u64 {
        self.get::<u64>(self.layout.node.sched_weight) & !0xff
    }

    /// What Slurm orders nodes by in a call that asks for a start, or when a job could start (`is_forecast`).
    pub fn weight_for(self, is_forecast: bool) -> u64 {
        match is_forecast {
            true => self.weight_for_forecast(),
            false => self.weight(),
        }
    }

    /// The weight, on the scale of a start, where it is asked when a job could start: then the record has what an earlier call left. Nodes that still
    /// clean up after a job come after others of their weight, as cons_tres has it.
    fn weight_for_forecast(self) -> u64 {
        // NODE_STATE_COMPLETING, _POWERED_DOWN and _POWERING_DOWN of slurm.h.
        const COMPLETING: u32 = 1 << 10;
        const OFF: u32 = 1 << 12 | 1 << 18;
        let state = self.get::<u32>(self.layout.node.node_state);
        let off = match state & OFF {
            0 => 0,
            _ => POWERED_DOWN,
        };
        off | u64::from(self.configured_weight()) << 8 | u64::from(state & COMPLETING != 0)
    }

    /// The weight that slurm.conf gives the node. [`Node::weight`] is of use only where a job may start: cons_tres
    /// writes into it for a forecast.
    pub fn configured_weight(self) -> u32 {
        self.get(self.layout.node.weight)
    }

    /// Whether Slurm's power saving has the node off, or turns it on or off.
    pub fn power_saved(self) -> bool {
        // NODE_STATE_CLOUD, _POWERED_DOWN, _POWERING_UP, _POWERING_DOWN, _POWER_DOWN, _POWER_UP and
        // _POWER_DRAIN of slurm.h.
        const FLAGS: u32 = 1 << 7 | 1 << 12 | 1 << 14 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 25;
        self.get::<u32>(self.layout.node.node_state) & FLAGS != 0
    }

    /// Whether slurmctld has the node as unknown, down, drained or silent.
    pub fn out_of_touch(self) -> bool {
        // NODE_STATE_BASE, of which 0 is unknown and 1 down, NODE_STATE_DRAIN and NODE_STATE_NO_RESPOND of slurm.h.
        const BASE: u32 = 0xf;
        const FLAGS: u32 = 1 << 9 | 1 << 11;
        let state = self.get::<u32>(self.layout.node.node_state);
        state & BASE <= 1 || state & FLAGS != 0
    }

    /// Sockets.
    pub fn sockets(self) -> u16 {
        self.get(self.layout.node.tot_sockets)
    }

    /// Cores per socket.
    pub fn cores_per_socket(self) -> u16 {
        self.get(self.layout.node.cores)
    }

    /// Where the administrator's free text (`Extra`) stands; 0 where there is none. It moves or changes
    /// whenever somebody writes it, always under the node write lock. To be read with [`crate::extra`].
    #[inline]
    pub fn extra(self) -> usize {
        self.layout.node_extra.map_or(0, |offset| self.get(offset))
    }

    /// Where the text stands that puts the node into topologies itself; 0 where there is none. It moves when somebody changes it.
    #[inline]
    pub fn topology_at(self) -> usize {
        let offset = self.layout.node_topology;
        offset.map_or(0, |offset| self.get(offset))
    }

    /// That text; empty where there is none.
    pub fn topology(self) -> &'a str {
        // SAFETY: null or a NUL-terminated string of a live record.
        unsafe { text(self.topology_at()) }.unwrap_or_default()
    }

    /// The node's list of GRES, or null.
    pub fn gres_list(self) -> *mut c_void {
        self.get::<usize>(self.layout.node.gres_list) as *mut c_void
    }
}

/// Slurm's table of nodes.
#[derive(Clone, Copy)]
pub struct NodeTable {
    // Addresses of Slurm's two globals, as numbers so that the handle can be kept in a static.
    table: usize,
    count: usize,
}

impl NodeTable {
    /// Finds the table in this daemon.
    pub fn find() -> Option<NodeTable> {
        let table = crate::api::symbol(c"node_record_table_ptr")? as usize;
        let count = crate::api::symbol(c"node_record_count")? as usize;
        Some(NodeTable { table, count })
    }

    /// Number of slots.
    pub fn len(self) -> usize {
        // SAFETY: Slurm's global int.
        usize::try_from(unsafe { (self.count as *const i32).read() }).unwrap_or(0)
    }

    /// Whether there is no slot.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The record in slot `index`; null for an empty slot or past the end.
    ///
    /// # Safety
    /// The caller holds at least slurmctld's node read lock.
    pub unsafe fn raw(self, index: usize) -> *mut c_void {
        if index >= self.len() {
            return std::ptr::null_mut();
        }
        // SAFETY: the table has node_record_count slots and does not move under the node lock.
        unsafe {
            let table = (self.table as *const *mut *mut c_void).read();
            if table.is_null() {
                std::ptr::null_mut()
            } else {
                table.add(index).read()
            }
        }
    }
}

/// Nodes that are up and not drained; `None` where slurmctld does not tell.
///
/// # Safety
/// The caller holds slurmctld's node read lock for `'a`.
pub unsafe fn nodes_in_service<'a>() -> Option<Bitmap<'a>> {
    let global = crate::api::symbol(c"avail_node_bitmap")?;
    // SAFETY: slurmctld's global `bitstr_t *avail_node_bitmap`, null or live under the lock.
    unsafe { Bitmap::new(global.cast::<*mut c_void>().read()) }
}
