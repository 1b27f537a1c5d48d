//! GRES state of nodes: what is there, what is allocated, and the temporary mask that steers
//! cons_tres to chosen GPUs.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::api::Api;
use crate::bits::Bitmap;
use crate::field::{field, place, text};
use crate::handles::NO_VAL16;
use crate::layout::{GresJob, GresNode};

/// Slurm's "not set" for 64-bit values.
const NO_VAL64: u64 = 0xffff_ffff_ffff_fffe;

/// Slurm's `gres_node_state_t` of one GRES on one node, borrowed for the length of one call.
#[derive(Clone, Copy)]
pub struct NodeGres<'a> {
    pointer: *mut c_void,
    layout: &'a GresNode,
    life: PhantomData<&'a mut c_void>,
}

impl<'a> NodeGres<'a> {
    /// Takes a `gres_node_state_t *`; `None` for null.
    ///
    /// # Safety
    /// `pointer` is null or a live `gres_node_state_t` of the release that `layout` describes, and
    /// the caller holds slurmctld's node write lock for `'a`.
    pub unsafe fn new(pointer: *mut c_void, layout: &'a GresNode) -> Option<NodeGres<'a>> {
        (!pointer.is_null()).then_some(NodeGres {
            pointer,
            layout,
            life: PhantomData,
        })
    }

    fn get<T: crate::mem::Plain>(self, offset: usize) -> T {
        // SAFETY: `new`'s caller vouches for the structure and its layout.
        unsafe { field(self.pointer, offset) }
    }

    /// Slurm's pointer, to come back with within the same call.
    pub fn raw(self) -> *mut c_void {
        self.pointer
    }

    /// Whether slurmctld has the GPUs from slurm.conf and saved state alone, not yet from the node.
    pub fn is_provisional(self) -> bool {
        self.get::<u64>(self.layout.gres_cnt_found) == NO_VAL64
    }

    /// Number of GPU types, named in slurm.conf or by the node.
    pub fn types(self) -> usize {
        self.get::<u16>(self.layout.type_cnt) as usize
    }

    /// Units that exist (`gres_cnt_avail`).
    pub fn available(self) -> u64 {
        self.get(self.layout.gres_cnt_avail)
    }

    /// Units allocated.
    pub fn allocated(self) -> u64 {
        self.get(self.layout.gres_cnt_alloc)
    }

    /// One bit per device, when the GRES has device files.
    pub fn bits(self) -> Option<Bitmap<'a>> {
        // SAFETY: the field holds null or a live bitstr_t as long as the structure lives.
        unsafe { Bitmap::new(self.get::<usize>(self.layout.gres_bit_alloc) as *mut c_void) }
    }

    /// Number of device files; 0 where the GRES has none.
    pub fn devices(self) -> usize {
        self.bits().map_or(0, |bits| bits.len())
    }

    /// The first 64 devices that are given to jobs, as bits; none where the GRES has no device files.
    pub fn allocated_devices(self) -> u64 {
        self.bits().map_or(0, |bits| bits.chunk(0))
    }

    /// Number of topology entries: lines of gres.conf that name cores or a type.
    pub fn topologies(self) -> usize {
        self.get::<u16>(self.layout.topo_cnt) as usize
    }

    fn element<T: crate::mem::Plain>(self, array: usize, index: usize) -> Option<T> {
        let base: usize = self.get(array);
        // SAFETY: Slurm's arrays of this structure have topo_cnt (or type_cnt, link_len) elements, and the
        // callers below stay under it.
        (base != 0).then(|| unsafe { field(base as *mut c_void, index * size_of::<T>()) })
    }

    /// Devices of topology entry `index`.
    pub fn topology_bits(self, index: usize) -> Option<Bitmap<'a>> {
        let pointer: usize = self.element(self.layout.topo_gres_bitmap, index)?;
        // SAFETY: an element of topo_gres_bitmap is null or a live bitstr_t.
        unsafe { Bitmap::new(pointer as *mut c_void) }
    }

    /// Units of topology entry `index`, which is under [`NodeGres::topologies`]: those that there are, and those
    /// that are allocated.
    pub fn topology_counts(self, index: usize) -> Option<(u64, u64)> {
        let had = self.element(self.layout.topo_gres_cnt_avail, index)?;
        Some((had, self.element(self.layout.topo_gres_cnt_alloc, index)?))
    }

    /// Marks those of the first 64 devices as allocated of which units are in use and whose mark is missing, and counts
    /// nothing: Slurm before 23.11.5 takes away the mark of a shared device when the first of its jobs ends.
    /// Returns what was marked, for [`NodeGres::hide_in_use`] right after the call.
    pub fn show_in_use(self) -> u64 {
        let Some(bits) = self.bits() else { return 0 };
        let missing = self.in_use() & !bits.chunk(0) & low(bits.len());
        bits.set_low_bits(missing, true);
        missing
    }

    /// Those of the first 64 devices of which units are in use, marked or not.
    pub fn in_use(self) -> u64 {
        let in_use = |at: &usize| self.topology_counts(*at).is_some_and(|(_, used)| used > 0);
        let devices = (0..self.topologies()).filter(in_use);
        let devices = devices.filter_map(|at| self.topology_bits(at));
        devices.fold(0, |all, bits| all | bits.chunk(0))
    }

    /// Takes back what [`NodeGres::show_in_use`] marked.
    pub fn hide_in_use(self, marked: u64) {
        if let Some(bits) = self.bits() {
            bits.set_low_bits(marked, false);
        }
    }

    /// Has no unit be left of the topology entries with `devices`, of the first 64, and calls `closed` with each entry
    /// and the number of its units that are allocated: both for [`NodeGres::reopen`] right after the call.
    pub fn close(self, devices: u64, mut closed: impl FnMut(usize, u64)) {
        for index in 0..self.topologies() {
            let allocated =
                self.topology_bits(index).map_or(0, |bits| bits.chunk(0)) & devices != 0;
            if let Some((had, used)) = self.topology_counts(index).filter(|_| allocated)
                && used < had
            {
                closed(index, used);
                self.set_used(index, had);
            }
        }
    }

    /// Takes back what [`NodeGres::close`] did to an entry.
    pub fn reopen(self, index: usize, used: u64) {
        if index < self.topologies() {
            self.set_used(index, used);
        }
    }

    fn set_used(self, index: usize, used: u64) {
        let counters: usize = self.get(self.layout.topo_gres_cnt_alloc);
        if counters != 0 {
            // SAFETY: topo_gres_cnt_alloc has topo_cnt counters, and the callers stay under it; the node write lock makes
            // this the only writer.
            unsafe { place::<u64>(counters as *mut c_void, index * 8).write(used) };
        }
    }

    /// Cores near the devices of topology entry `index`.
    pub fn topology_cores(self, index: usize) -> Option<Bitmap<'a>> {
        let pointer: usize = self.element(self.layout.topo_core_bitmap, index)?;
        // SAFETY: an element of topo_core_bitmap is null or a live bitstr_t.
        unsafe { Bitmap::new(pointer as *mut c_void) }
    }

    /// Type name of topology entry `index`.
    pub fn topology_type(self, index: usize) -> Option<&'a str> {
        let pointer: usize = self.element(self.layout.topo_type_name, index)?;
        // SAFETY: an element of topo_type_name is null or a NUL-terminated string of Slurm's.
        unsafe { text(pointer) }
    }

    /// Type name from slurm.conf, when the node has exactly one type.
    pub fn only_type(self) -> Option<&'a str> {
        if self.get::<u16>(self.layout.type_cnt) != 1 {
            return None;
        }
        let pointer: usize = self.element(self.layout.type_name, 0)?;
        // SAFETY: an element of type_name is null or a NUL-terminated string of Slurm's.
        unsafe { text(pointer) }
    }

    /// Row and column count of the link matrix from `Links=`; 0 without one.
    pub fn link_len(self) -> usize {
        let len: i32 = self.get(self.layout.link_len);
        usize::try_from(len).unwrap_or(0)
    }

    /// Links between devices `a` and `b`, both under [`NodeGres::link_len`].
    pub fn links(self, a: usize, b: usize) -> Option<i32> {
        let row: usize = self.element(self.layout.links_cnt, a)?;
        // SAFETY: a row of links_cnt has link_len ints.
        (row != 0).then(|| unsafe { field(row as *mut c_void, b * size_of::<i32>()) })
    }

    /// Adds the devices of `marked` to every counter that Slurm keeps of allocated devices, or takes them off.
    fn count(self, marked: u64, add: bool) {
        let step = |place: *mut u64, devices: u64| {
            let devices = u64::from(devices.count_ones());
            // SAFETY: `place` is a live counter of this structure; the node write lock makes this the only writer.
            unsafe {
                *place = if add {
                    (*place).wrapping_add(devices)
                } else {
                    (*place).saturating_sub(devices)
                }
            }
        };
        // SAFETY: offset of a u64 counter in a live structure.
        step(
            unsafe { place(self.pointer, self.layout.gres_cnt_alloc) },
            marked,
        );
        let mut rest = marked;
        for index in 0..self.topologies() {
            // A device belongs to one entry; a second one would be counted by Slurm only once, too.
            let devices = rest & self.topology_bits(index).map_or(0, |bits| bits.chunk(0));
            if devices == 0 {
                continue;
            }
            rest &= !devices;
            let counters: usize = self.get(self.layout.topo_gres_cnt_alloc);
            if counters != 0 {
                // SAFETY: topo_gres_cnt_alloc has topo_cnt counters.
                step(
                    unsafe { place(counters as *mut c_void, index * 8) },
                    devices,
                );
            }
            let wanted: Option<u32> = self.element(self.layout.topo_type_id, index);
            let types = self.get::<u16>(self.layout.type_cnt) as usize;
            let type_counters: usize = self.get(self.layout.type_cnt_alloc);
            for kind in 0..types {
                let id: Option<u32> = self.element(self.layout.type_id, kind);
                if type_counters != 0 && id.is_some() && id == wanted {
                    // SAFETY: type_cnt_alloc has type_cnt counters.
                    step(
                        unsafe { place(type_counters as *mut c_void, kind * 8) },
                        devices,
                    );
                }
            }
        }
    }

    /// Marks the free devices of `unwanted` as allocated, so that cons_tres leaves them alone.
    /// Returns what was marked: to be handed to [`NodeGres::unmask`] right after the call.
    pub fn mask(self, unwanted: u64) -> u64 {
        let Some(bits) = self.bits() else { return 0 };
        let marked = unwanted & !bits.chunk(0) & low(bits.len());
        if marked != 0 {
            bits.set_low_bits(marked, true);
            self.count(marked, true);
        }
        marked
    }

    /// Takes back exactly what [`NodeGres::mask`] marked.
    pub fn unmask(self, marked: u64) {
        let Some(bits) = self.bits() else { return };
        let still = marked & bits.chunk(0);
        if still != 0 {
            bits.set_low_bits(still, false);
            self.count(still, false);
        }
    }
}

/// Slurm's `gres_job_state_t`: a job's request for one GRES, and what cons_tres selected for it.
#[derive(Clone, Copy)]
pub struct JobGres<'a> {
    pointer: *mut c_void,
    layout: &'a GresJob,
    life: PhantomData<&'a mut c_void>,
}

impl<'a> JobGres<'a> {
    /// Takes a `gres_job_state_t *`; `None` for null.
    ///
    /// # Safety
    /// As [`NodeGres::new`], for a job's request, with the job write lock.
    pub unsafe fn new(pointer: *mut c_void, layout: &'a GresJob) -> Option<JobGres<'a>> {
        (!pointer.is_null()).then_some(JobGres {
            pointer,
            layout,
            life: PhantomData,
        })
    }

    fn get<T: crate::mem::Plain>(self, offset: usize) -> T {
        // SAFETY: `new`'s caller vouches for the structure and its layout.
        unsafe { field(self.pointer, offset) }
    }

    pub(crate) fn read<T: crate::mem::Plain>(self, offset: usize) -> T {
        self.get(offset)
    }

    pub(crate) fn offsets(self) -> &'a GresJob {
        self.layout
    }

    /// `--gpus`
    pub fn per_job(self) -> u64 {
        self.get(self.layout.gres_per_job)
    }

    /// `--gpus-per-node`, `--gres`
    pub fn per_node(self) -> u64 {
        self.get(self.layout.gres_per_node)
    }

    /// `--gpus-per-socket`
    pub fn per_socket(self) -> u64 {
        self.get(self.layout.gres_per_socket)
    }

    /// `--gpus-per-task`
    pub fn per_task(self) -> u64 {
        self.get(self.layout.gres_per_task)
    }

    /// Whether the number of GPUs has a say in the number of CPUs or tasks, by the job's wish or the
    /// partition's default.
    pub fn binds_cpus(self) -> bool {
        let layout = self.layout;
        let fields = [
            layout.cpus_per_gres,
            layout.def_cpus_per_gres,
            layout.ntasks_per_gres,
        ];
        fields
            .iter()
            .any(|field| !matches!(self.get::<u16>(*field), 0 | NO_VAL16))
    }

    /// The type asked for.
    pub fn type_name(self) -> Option<&'a str> {
        // SAFETY: null or a NUL-terminated string of Slurm's.
        unsafe { text(self.get(self.layout.type_name)) }
    }

    fn nodes(self) -> usize {
        self.get::<u32>(self.layout.total_node_cnt) as usize
    }

    fn slot(self, node: usize) -> Option<*mut *mut c_void> {
        let array: usize = self.get(self.layout.gres_bit_select);
        // SAFETY: gres_bit_select has total_node_cnt elements.
        (array != 0 && node < self.nodes())
            .then(|| unsafe { place(array as *mut c_void, node * 8) })
    }

    /// The devices that cons_tres selected on a node, if it selected any by name.
    pub fn selected(self, node: usize) -> Option<Bitmap<'a>> {
        // SAFETY: an element of gres_bit_select is null or a live bitstr_t.
        unsafe { Bitmap::new(self.slot(node)?.read()) }
    }

    /// The devices that a job which runs has on the node with this place among its own. They outlive a restart of
    /// slurmctld, what cons_tres selected does not.
    pub fn held(self, place: usize) -> Option<Bitmap<'a>> {
        let array: usize = self.get(self.layout.gres_bit_alloc);
        if array == 0 || place >= self.get::<u32>(self.layout.node_cnt) as usize {
            return None;
        }
        // SAFETY: gres_bit_alloc has node_cnt elements, each null or a live bitstr_t.
        unsafe { Bitmap::new(field::<usize>(array as *mut c_void, place * 8) as *mut c_void) }
    }

    /// How many devices cons_tres selected on a node.
    pub fn selected_count(self, node: usize) -> u64 {
        let array: usize = self.get(self.layout.gres_cnt_node_select);
        if array == 0 || node >= self.nodes() {
            return 0;
        }
        // SAFETY: gres_cnt_node_select has total_node_cnt elements.
        unsafe { field(array as *mut c_void, node * 8) }
    }

    /// Takes back what cons_tres selected for a start that is not to be: [`JobGres::withdraw`], and the counts.
    pub fn take_back(self, api: &Api) {
        self.withdraw(api);
        let array: usize = self.get(self.layout.gres_cnt_node_select);
        for node in 0..if array == 0 { 0 } else { self.nodes() } {
            // SAFETY: gres_cnt_node_select has total_node_cnt elements; the job write lock makes this the only writer.
            unsafe { place::<u64>(array as *mut c_void, node * 8).write(0) };
        }
    }

    /// Says which devices a node gives where cons_tres only counted them (no topology entry). Does nothing
    /// where it chose by itself, or where the count differs. Returns whether the selection now is `devices`.
    pub fn supply(self, api: &Api, node: usize, devices: u64, node_devices: usize) -> bool {
        if let Some(chosen) = self.selected(node) {
            return chosen.chunk(0) == devices;
        }
        if u64::from(devices.count_ones()) != self.selected_count(node) || node >= self.nodes() {
            return false;
        }
        let array: usize = self.get(self.layout.gres_bit_select);
        // SAFETY: the array and the bitmap come from Slurm's allocator, which frees them with the job; the
        // array gets the length that Slurm expects (total_node_cnt).
        unsafe {
            if array == 0 {
                let new = (api.xcalloc)(
                    self.nodes(),
                    8,
                    true,
                    true,
                    c"gpuos".as_ptr(),
                    0,
                    c"supply".as_ptr(),
                );
                if new.is_null() {
                    return false;
                }
                *place::<*mut c_void>(self.pointer, self.layout.gres_bit_select) = new;
            }
            let map = (api.bit_alloc)(node_devices as i64);
            let Some(bits) = Bitmap::new(map) else {
                return false;
            };
            each(devices).for_each(|bit| bits.set_bit(bit, true));
            match self.slot(node) {
                Some(slot) => *slot = map,
                None => return false,
            }
        }
        true
    }

    /// Takes back the whole selection of an earlier RUN_NOW that did not become a start (a limit was
    /// met after the choice). cons_tres chooses anew, but does not look at nodes where it only counts
    /// devices: there a left-over of [`JobGres::supply`] would be given although others hold it by now.
    pub fn withdraw(self, api: &Api) {
        for node in 0..self.nodes() {
            let Some(slot) = self.slot(node) else { return };
            // SAFETY: the element is null or a bitmap of this request's own; bit_free leaves null.
            unsafe {
                if !slot.read().is_null() {
                    (api.bit_free)(slot);
                }
            }
        }
    }
}

fn low(len: usize) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

fn each(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        (mask != 0).then(|| {
            mask &= mask - 1;
            bit
        })
    })
}
