//! Handles to Slurm's records, each borrowed for the length of one call into the plugin.
//!
//! A handle is made from a pointer that Slurm handed over and the [`Layout`] that the self-check
//! accepted ([`crate::check`]). Lifetimes keep it from outliving the call, under whose locks alone
//! the record is valid.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::api::Api;
use crate::bits::Bitmap;
use crate::field::{field, place, text};
use crate::layout::{JobRecord, Layout, PartRecord};
use crate::mem::Plain;

pub use crate::nodes::{Node, NodeTable, POWERED_DOWN};

/// Slurm's "not set" for 32-bit values.
pub const NO_VAL: u32 = 0xffff_fffe;
/// Slurm's "not set" for 16-bit values.
pub const NO_VAL16: u16 = 0xfffe;

/// Slurm's `job_record_t`.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pointer: *mut c_void,
    details: *mut c_void,
    layout: &'a Layout,
    life: PhantomData<&'a mut c_void>,
}

/// What a record says of how a job waits: cons_tres holds a job that it cannot lay out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Slurm's priority; 0: it is held.
    pub priority: u32,
    /// Code of the reason.
    pub reason: u32,
}

/// The topology that a partition goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionTopology<'a> {
    /// Its number among Slurm's topologies.
    pub number: i32,
    /// The name that the partition gives; empty where it gives none and has the cluster's.
    pub name: &'a str,
}

impl<'a> Job<'a> {
    /// Takes a `job_record_t *` with details; `None` without either.
    ///
    /// # Safety
    /// `pointer` is null or a live job record of the release that `layout` describes, locked by
    /// slurmctld for `'a`.
    pub unsafe fn new(pointer: *mut c_void, layout: &'a Layout) -> Option<Job<'a>> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: by the caller.
        let details = unsafe { field::<usize>(pointer, layout.job.details) } as *mut c_void;
        (!details.is_null()).then_some(Job {
            pointer,
            details,
            layout,
            life: PhantomData,
        })
    }

    pub(crate) fn get<T: Plain>(self, offset: usize) -> T {
        // SAFETY: `new`'s caller vouches for record and layout.
        unsafe { field(self.pointer, offset) }
    }

    pub(crate) fn fields(self) -> &'a JobRecord {
        &self.layout.job
    }

    pub(crate) fn details(self) -> &'a crate::layout::JobDetails {
        &self.layout.details
    }

    pub(crate) fn layout(self) -> &'a Layout {
        self.layout
    }

    pub(crate) fn detail<T: Plain>(self, offset: usize) -> T {
        // SAFETY: as `get`; details is part of the record.
        unsafe { field(self.details, offset) }
    }

    /// A field of the job's partition, if it has one.
    pub(crate) fn of_part<T: Plain>(self, offset: fn(&PartRecord) -> usize) -> Option<T> {
        let part = self.get::<usize>(self.layout.job.part_ptr) as *mut c_void;
        // SAFETY: part_ptr is null or a live partition record.
        (!part.is_null()).then(|| unsafe { field(part, offset(&self.layout.part)) })
    }

    /// The job that Slurm has under an id.
    ///
    /// # Safety
    /// The caller holds at least slurmctld's job read lock for `'a`, and `layout` describes this release.
    pub unsafe fn find(id: u32, layout: &'a Layout) -> Option<Job<'a>> {
        // SAFETY: a record that Slurm just found under the lock, or null.
        unsafe { Job::new(crate::api::find_job_record(id)?, layout) }
    }

    /// Job id; 0 for the synthetic records of reservations.
    pub fn id(self) -> u32 {
        self.get(self.layout.job.job_id)
    }

    /// Predicted or real start, in seconds since the epoch.
    pub fn start_time(self) -> i64 {
        self.get(self.layout.job.start_time)
    }

    /// Slurm's pointer, for the self-check.
    pub fn raw(self) -> *mut c_void {
        self.pointer
    }

    /// Whether one of `names` means this job: its id, its name, its user's number or name.
    pub fn is_named(self, names: &[String]) -> bool {
        // SAFETY: each is null or a NUL-terminated string of the record.
        let texts = unsafe {
            [self.layout.job.name, self.layout.job.user_name].map(|field| text(self.get(field)))
        };
        let numbers = [self.id(), self.get(self.layout.job.user_id)].map(|n| n.to_string());
        names.iter().any(|name| {
            texts.contains(&Some(name.as_str())) || numbers.iter().any(|number| number == name)
        })
    }

    /// Partition that the job is being placed in; of several that it named, the one at hand.
    pub fn partition(self) -> &'a str {
        let name = self.of_part(|part| part.name).unwrap_or(0);
        // SAFETY: null or a NUL-terminated string of a live partition record.
        unsafe { text(name) }.unwrap_or_default()
    }

    /// The topology of that partition (25.05 and later); `None` where the layout does not have it.
    pub fn partition_topology(self) -> Option<PartitionTopology<'a>> {
        let layout = self.layout.part_topology.as_ref()?;
        let part = self.get::<usize>(self.layout.job.part_ptr) as *mut c_void;
        if part.is_null() {
            return None;
        }
        // SAFETY: a live partition record, and the layout was accepted; the name is null or a NUL-terminated string of it.
        let (number, name) = unsafe {
            let name = text(field(part, layout.topology_name));
            (field(part, layout.topology_idx), name.unwrap_or_default())
        };
        Some(PartitionTopology { number, name })
    }

    /// Number of the job's QOS; 0 = none.
    pub fn qos(self) -> u32 {
        known(self.get(self.layout.job.qos_id))
    }

    /// Slurm's priority of the job.
    pub fn priority(self) -> u32 {
        known(self.get(self.layout.job.priority))
    }

    /// Priority and code of the reason why it waits, as they stand in its record.
    pub fn standing(self) -> Standing {
        Standing {
            priority: self.get(self.layout.job.priority),
            reason: self.reason(),
        }
    }

    /// Number of the job's user.
    pub fn user(self) -> u32 {
        self.get(self.layout.job.user_id)
    }

    /// Name of the job.
    pub fn name(self) -> &'a str {
        // SAFETY: null or a NUL-terminated string of the record.
        unsafe { text(self.get(self.layout.job.name)) }.unwrap_or_default()
    }

    /// Whether the job ended by itself, with success.
    pub fn completed(self) -> bool {
        const JOB_COMPLETE: u32 = 3;
        self.get::<u32>(self.layout.job.job_state) & 0xff == JOB_COMPLETE
    }

    /// Code of the reason why the job waits.
    pub fn reason(self) -> u32 {
        self.get(self.layout.job.state_reason)
    }

    /// Whether the job waits to start.
    pub fn is_pending(self) -> bool {
        const JOB_PENDING: u32 = 0;
        self.get::<u32>(self.layout.job.job_state) & 0xff == JOB_PENDING
    }

    /// Whether squeue shows a sentence as the reason why the job waits, and not the name of the code alone.
    pub fn has_reason_text(self) -> bool {
        self.get::<usize>(self.layout.job.state_desc) != 0
    }

    /// Whether the job runs or is suspended, that is, holds what its record says.
    pub fn holds_resources(self) -> bool {
        matches!(self.get::<u32>(self.layout.job.job_state) & 0xff, 1 | 2)
    }

    /// Whether the job has ended and its nodes have cleaned up after it: its record still says what it had.
    pub fn is_over(self) -> bool {
        // slurm.h: from JOB_COMPLETE on, and JOB_COMPLETING.
        let state = self.get::<u32>(self.layout.job.job_state);
        state & 0xff >= 3 && state & 0x8000 == 0
    }

    /// Since when it could start, as far as its wishes go: in seconds since 1970, 0 when not known yet.
    pub fn eligible_time(self) -> i64 {
        self.detail(self.layout.details.begin_time)
    }

    /// Tasks (0 = not said).
    pub fn tasks(self) -> u32 {
        known(self.detail(self.layout.details.num_tasks))
    }

    /// Tasks per node (0 = not said).
    pub fn tasks_per_node(self) -> u32 {
        known16(self.detail(self.layout.details.ntasks_per_node))
    }

    /// CPUs of one task (at least 1).
    pub fn cpus_per_task(self) -> u32 {
        known16(self.detail(self.layout.details.cpus_per_task)).max(1)
    }

    /// CPUs of the whole job.
    pub fn min_cpus(self) -> u32 {
        known(self.detail(self.layout.details.min_cpus))
    }

    /// CPUs on each node at least.
    pub fn min_cpus_per_node(self) -> u32 {
        known(self.detail(self.layout.details.pn_min_cpus))
    }

    /// Memory in MiB on each node, or `None` when it is per CPU or not said.
    pub fn memory_per_node(self) -> Option<u64> {
        let value: u64 = self.detail(self.layout.details.pn_min_memory);
        // The top bit says "per CPU" (MEM_PER_CPU).
        (value >> 63 == 0 && value != 0).then_some(value)
    }

    /// Nodes of `--nodelist`.
    pub fn required_nodes(self) -> Option<Bitmap<'a>> {
        let pointer: usize = self.detail(self.layout.details.req_node_bitmap);
        // SAFETY: null or a live bitmap of the record.
        unsafe { Bitmap::new(pointer as *mut c_void) }
    }

    /// Whether the job takes whole nodes, by its own wish or its partition's rule.
    pub fn whole_nodes(self) -> bool {
        let exclusive_partition = self.of_part::<u16>(|part| part.max_share) == Some(0);
        self.detail::<u8>(self.layout.details.whole_node) & 1 == 1
            || self.detail::<u8>(self.layout.details.share_res) == 0
            || exclusive_partition
    }

    /// Whether the job takes whole nodes with all their GRES, and none where any GRES is in use. `--exclusive=user` and
    /// `mcs` do not: they are 2, and 3 up to 23.11, 4 in 24.11 (WHOLE_NODE_MCS).
    pub fn takes_whole_nodes(self) -> bool {
        let whole = self.detail::<u8>(self.layout.details.whole_node);
        whole & 1 == 1 && whole != 3
    }

    /// Whether the job is given all GRES of its nodes, asked for or not: by its own wish or its partition's rule.
    pub fn gets_all_gres(self) -> bool {
        self.takes_whole_nodes() || self.of_part::<u16>(|part| part.max_share) == Some(0)
    }

    /// Whether the record has the job beside no other one, though it takes no whole nodes. Backfill writes that
    /// into the record for its first question of two (src/plugins/sched/backfill/backfill.c, `_try_sched`), and
    /// `scontrol update OverSubscribe=no` for good.
    pub fn beside_nobody(self) -> bool {
        self.detail::<u8>(self.layout.details.share_res) == 0
            && self.detail::<u8>(self.layout.details.whole_node) == 0
    }

    /// CPUs on each node, where the job has a known number of tasks on each and no wish beside that says
    /// which cores it gets, or how many: then more cores are of no use to it.
    pub fn cpus_of_each_node(self, nodes: u32) -> Option<u32> {
        const NOT_SHARED: u16 = 1;
        let details = &self.layout.details;
        let own = self.of_part(|part| part.max_share) == Some(NOT_SHARED);
        let plain = self.detail::<u8>(details.whole_node) == 0
            && self.detail::<u8>(details.overcommit) == 0
            && self.detail::<u16>(details.core_spec) == NO_VAL16
            && known16(self.detail(details.ntasks_per_tres)) == 0;
        let (min, max): (u32, u32) = (
            self.detail(details.min_nodes),
            self.detail(details.max_nodes),
        );
        let tasks = match (self.tasks_per_node(), self.tasks()) {
            (0, tasks) if tasks == 1 || tasks == min && tasks == max => 1,
            (0, tasks) if max == 1 => tasks,
            (each, _) => each,
        };
        if !own || !plain || tasks == 0 {
            return None;
        }
        let share = self.min_cpus().div_ceil(nodes.max(1));
        Some(
            tasks
                .saturating_mul(self.cpus_per_task())
                .max(share)
                .max(self.min_cpus_per_node()),
        )
    }

    /// The list of requested GRES (`gres_list_req`), or null.
    pub fn gres_list(self) -> *mut c_void {
        self.get::<usize>(self.layout.job.gres_list_req) as *mut c_void
    }

    /// Entries of `spank_job_env` that are UTF-8, at most 256.
    pub fn spank_env(self) -> impl Iterator<Item = &'a str> {
        let array: usize = self.get(self.layout.job.spank_job_env);
        let count: u32 = self.get(self.layout.job.spank_job_env_size);
        let count = if array == 0 {
            0
        } else {
            (count as usize).min(256)
        };
        (0..count).filter_map(move |index| {
            // SAFETY: spank_job_env has spank_job_env_size pointers to NUL-terminated strings.
            unsafe { text(field::<usize>(array as *mut c_void, index * 8)) }
        })
    }

    /// Whether some SPANK plugin has an option of the job's.
    pub fn has_spank_env(self) -> bool {
        self.get::<u32>(self.layout.job.spank_job_env_size) > 0
    }

    /// The nodes that the job was given last (`job_resrcs->node_bitmap`), where it was given any.
    pub fn allocated_nodes(self) -> Option<Bitmap<'a>> {
        let resources = self.get::<usize>(self.layout.job.job_resrcs) as *mut c_void;
        if resources.is_null() {
            return None;
        }
        // SAFETY: job_resrcs is a live job_resources_t, whose node_bitmap is a live bitmap or null.
        unsafe {
            Bitmap::new(field::<usize>(resources, self.layout.resources.node_bitmap) as *mut c_void)
        }
    }

    /// Frees what cons_tres has set aside for a start that is not to be, as it does itself before it looks at a job anew.
    ///
    /// The job waits: of one that runs this would be what it holds.
    pub fn free_resources(self, api: &Api) {
        // SAFETY: the field holds null or a job_resources_t that is this record's own; Slurm's function frees it and
        // writes null. The caller holds the job write lock.
        unsafe {
            let slot = place::<*mut c_void>(self.raw(), self.layout.job.job_resrcs);
            (api.free_job_resources)(slot);
        }
    }

    /// What the job holds on each node, `(node index, CPUs, memory in MiB)`, handed to `each`.
    pub fn for_each_held(self, mut each: impl FnMut(usize, u32, u64)) {
        let resources = self.get::<usize>(self.layout.job.job_resrcs) as *mut c_void;
        if resources.is_null() {
            return;
        }
        let Some(nodes) = self.allocated_nodes() else {
            return;
        };
        let layout = &self.layout.resources;
        // SAFETY: job_resrcs is a live job_resources_t; its arrays have nhosts elements, one per set bit
        // of node_bitmap, or are null.
        unsafe {
            let hosts = field::<u32>(resources, layout.nhosts) as usize;
            let cpus = field::<usize>(resources, layout.cpus) as *mut c_void;
            let memory = field::<usize>(resources, layout.memory_allocated) as *mut c_void;
            for (rank, node) in nodes.iter().take(hosts).enumerate() {
                let cpus = if cpus.is_null() {
                    0
                } else {
                    u32::from(field::<u16>(cpus, rank * 2))
                };
                let memory = if memory.is_null() {
                    0
                } else {
                    field::<u64>(memory, rank * 8)
                };
                each(node, cpus, memory);
            }
        }
    }

    /// Has priority and reason be what they were.
    pub fn set_standing(self, before: Standing) {
        let fields = &self.layout.job;
        // SAFETY: both are u32 of the record, which slurmctld has write-locked.
        unsafe {
            place::<u32>(self.pointer, fields.priority).write_unaligned(before.priority);
            place::<u32>(self.pointer, fields.state_reason).write_unaligned(before.reason);
        }
    }

    /// The sentence that squeue shows as the reason a job waits, and the code behind it.
    pub fn set_reason(self, api: &Api, code: u32, sentence: &str) {
        self.set_text(api, self.layout.job.state_desc, sentence);
        // SAFETY: state_reason is a u32 of the record, which slurmctld has write-locked.
        unsafe { place::<u32>(self.pointer, self.layout.job.state_reason).write_unaligned(code) }
    }

    /// The job's `SystemComment`, shown by `scontrol show job` and kept in accounting.
    pub fn set_system_comment(self, api: &Api, line: &str) {
        self.set_text(api, self.layout.job.system_comment, line);
    }

    /// The job's `SystemComment` as it stands.
    pub fn system_comment(self) -> Option<&'a str> {
        // SAFETY: null or a NUL-terminated string of the record.
        unsafe { text(self.get(self.layout.job.system_comment)) }
    }

    fn set_text(self, api: &Api, offset: usize, value: &str) {
        // SAFETY: the field holds null or a string on Slurm's heap (the self-check saw that), xfree
        // takes both and leaves null, and the new string comes from the same heap.
        unsafe {
            let slot = place::<*mut c_void>(self.pointer, offset);
            (api.xfree)(slot);
            if !value.is_empty() {
                *slot = api.xstrdup(value).cast();
            }
        }
    }
}

fn known(value: u32) -> u32 {
    if value >= NO_VAL { 0 } else { value }
}

pub(crate) fn known16(value: u16) -> u32 {
    if value >= NO_VAL16 {
        0
    } else {
        u32::from(value)
    }
}

/// Calls `each` with every record in slurmctld's list of jobs.
///
/// # Safety
/// The caller holds at least slurmctld's job read lock; `each` does not unwind.
pub unsafe fn for_each_job(api: &Api, each: &mut dyn FnMut(*mut c_void)) {
    unsafe extern "C" fn one(item: *mut c_void, argument: *mut c_void) -> i32 {
        // SAFETY: `argument` is the closure reference below.
        let each = unsafe { &mut *argument.cast::<&mut dyn FnMut(*mut c_void)>() };
        each(item);
        0
    }
    let Some(list) = crate::api::symbol(c"job_list") else {
        return;
    };
    let mut each = each;
    // SAFETY: job_list is slurmctld's global List, null before it is made; `one` gets what it expects.
    unsafe {
        let list = list.cast::<*mut c_void>().read();
        if !list.is_null() {
            (api.list_for_each)(list, one, (&raw mut each).cast());
        }
    }
}

/// Collects the `gres_data` of all entries of a GRES list that have `plugin_id`, at most 8.
///
/// # Safety
/// `list` is null or a live `List` of `gres_state_t` of the release that `layout` describes.
pub unsafe fn gres_data(api: &Api, layout: &Layout, list: *mut c_void, plugin_id: u32) -> GresData {
    struct Walk<'w> {
        layout: &'w Layout,
        plugin_id: u32,
        found: GresData,
    }
    unsafe extern "C" fn each(item: *mut c_void, argument: *mut c_void) -> i32 {
        // SAFETY: `argument` is the Walk below; `item` a live gres_state_t. Nothing here can panic.
        unsafe {
            let walk = &mut *argument.cast::<Walk<'_>>();
            if field::<u32>(item, walk.layout.gres.plugin_id) == walk.plugin_id
                && walk.found.count < 8
            {
                let data = field::<usize>(item, walk.layout.gres.gres_data) as *mut c_void;
                walk.found.items[walk.found.count] = data;
                walk.found.count += 1;
            }
        }
        0
    }
    let mut walk = Walk {
        layout,
        plugin_id,
        found: GresData {
            items: [std::ptr::null_mut(); 8],
            count: 0,
        },
    };
    if !list.is_null() {
        // SAFETY: by the caller; `each` matches ForEach and gets the Walk it expects.
        unsafe { (api.list_for_each)(list, each, (&raw mut walk).cast()) };
    }
    walk.found
}

/// What [`gres_data`] found.
#[derive(Clone, Copy)]
pub struct GresData {
    items: [*mut c_void; 8],
    count: usize,
}

impl GresData {
    /// The entries, in Slurm's order.
    pub fn items(&self) -> &[*mut c_void] {
        &self.items[..self.count]
    }
}
