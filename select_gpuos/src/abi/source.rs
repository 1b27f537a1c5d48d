//! The one way to slurmctld's records: of nodes, of jobs, and of what both have of a GRES.
//!
//! A [`Source`] is made where slurmctld calls the plugin, under its locks, once the layout table has been held against
//! its records. Whoever has one may read and needs no promise of his own; what he gets lives no longer than the call.

use std::ffi::c_void;
use std::marker::PhantomData;

use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::check::{self, Gres, Misfit, Strings};
use slurm_ffi::extra::Remembered;
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::{self, Job, Node, NodeTable, gres_data};
use slurm_ffi::layout::Layout;
use slurm_ffi::needs::for_each_gres;
use slurm_ffi::nodes::nodes_in_service;
use slurm_ffi::{cores, mem, qos};

/// Which GRES are read.
#[derive(Clone, Copy)]
pub struct GresIds {
    /// GRES `gpu`.
    pub gpu: u32,
    /// GRES `shard`, where a node has any: a GPU of which a shard is in use is nobody's as a whole.
    pub shard: Option<u32>,
}

/// Where to read from, for the length of one call.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Slurm's functions.
    pub api: &'static Api,
    /// Offsets.
    pub layout: &'static Layout,
    /// Slurm's node table.
    pub table: NodeTable,
    ids: GresIds,
    /// Whether memory is a consumable resource.
    pub memory_counts: bool,
    life: PhantomData<&'a Layout>,
}

impl<'a> Source<'a> {
    /// Slurm's records as they stand.
    ///
    /// # Safety
    /// The caller holds slurmctld's job and node write locks for `'a`, and its records fit `layout` as far as they are
    /// read.
    pub unsafe fn under_locks(
        api: &'static Api,
        layout: &'static Layout,
        table: NodeTable,
        ids: GresIds,
        memory_counts: bool,
    ) -> Source<'a> {
        Source {
            api,
            layout,
            table,
            ids,
            memory_counts,
            life: PhantomData,
        }
    }

    /// How many slots the node table has.
    pub fn nodes(&self) -> usize {
        self.table.len()
    }

    /// The node in a slot of the table, where there is one.
    #[inline]
    pub fn node(&self, index: usize) -> Option<Node<'a>> {
        // SAFETY: the slot holds null or a live record, under the locks that the maker of this source holds.
        unsafe { Node::new(self.table.raw(index), self.layout) }
    }

    /// The GPUs of a node, if it has any.
    #[inline]
    pub fn gpus(&self, node: Node<'a>) -> Option<NodeGres<'a>> {
        self.gres(node, self.ids.gpu)
    }

    /// The shards of a node's GPUs, if any node has some.
    #[inline]
    pub fn shards(&self, node: Node<'a>) -> Option<NodeGres<'a>> {
        self.gres(node, self.ids.shard?)
    }

    /// What a node has of a GRES, if it has any.
    pub fn gres(&self, node: Node<'a>, gres: u32) -> Option<NodeGres<'a>> {
        let layout = self.layout;
        // SAFETY: the node's own list, under the locks that the maker of this source holds.
        unsafe {
            let found = gres_data(self.api, layout, node.gres_list(), gres);
            let data = found.items().first()?;
            NodeGres::new(*data, &layout.gres_node)
        }
    }

    /// The same by the node's index.
    pub fn gres_of(&self, index: usize, gres: u32) -> Option<NodeGres<'a>> {
        self.gres(self.node(index)?, gres)
    }

    /// The GPUs of a node by its index.
    pub fn gpus_of(&self, index: usize) -> Option<NodeGres<'a>> {
        self.gres_of(index, self.ids.gpu)
    }

    /// A GRES state that was read in this call.
    ///
    /// # Safety
    /// `address` is 0 or that of a [`NodeGres`] of this call.
    pub unsafe fn gres_again(&self, address: usize) -> Option<NodeGres<'a>> {
        // SAFETY: by the caller; a call's records stay where they are.
        unsafe { NodeGres::new(address as *mut c_void, &self.layout.gres_node) }
    }

    /// Whether a node's `Extra` is still the text that is remembered of it.
    pub fn has_same_extra(&self, node: Node<'a>, remembered: &Remembered) -> bool {
        // SAFETY: the record's own field, under the locks that the maker of this source holds.
        unsafe { remembered.is_same(node.extra()) }
    }

    /// Nodes that are up and not drained; `None` where slurmctld does not tell.
    pub fn nodes_in_service(&self) -> Option<Bitmap<'a>> {
        // SAFETY: under the locks that the maker of this source holds.
        unsafe { nodes_in_service() }
    }

    /// Holds all nodes against the layout table, by reads that cannot fault.
    pub fn check_nodes(&self, strings: &Strings, gres: Gres) -> Result<(), Misfit> {
        // SAFETY: under the locks that the maker of this source holds.
        unsafe { check::nodes(self.api, self.layout, strings, self.table, gres) }
    }

    /// Whether the layout of cores fits all nodes, seen by reads that cannot fault.
    pub fn check_cores(&self) -> bool {
        let fits = |index| {
            // SAFETY: as above.
            let record = unsafe { self.table.raw(index) };
            record.is_null() || cores::fits(self.layout, record)
        };
        mem::in_blocks(|| (0..self.nodes()).all(fits))
    }

    /// The job that Slurm has under an id.
    pub fn job(&self, id: u32) -> Option<Job<'a>> {
        // SAFETY: under the locks that the maker of this source holds.
        unsafe { Job::find(id, self.layout) }
    }

    /// The job of a record that slurmctld has handed over.
    ///
    /// # Safety
    /// `record` is null or a live job record.
    pub unsafe fn job_at(&self, record: *mut c_void) -> Option<Job<'a>> {
        // SAFETY: by the caller, under the locks that the maker of this source holds.
        unsafe { Job::new(record, self.layout) }
    }

    /// All jobs of slurmctld's list.
    pub fn jobs(&self) -> Vec<Job<'a>> {
        let mut records = Vec::new();
        // SAFETY: under the locks that the maker of this source holds; pushing an address does not unwind.
        unsafe { handles::for_each_job(self.api, &mut |record| records.push(record as usize)) };
        let job = |record: usize| {
            // SAFETY: a record of Slurm's own list.
            unsafe { self.job_at(record as *mut c_void) }
        };
        records.into_iter().filter_map(job).collect()
    }

    /// Name of a QOS by its number.
    pub fn qos_name(&self, number: u32) -> Result<Option<String>, qos::Unknown> {
        // SAFETY: whoever makes a source holds no lock of the association manager.
        unsafe { qos::name(number) }
    }

    /// What a job asks for of a GRES, one entry for each type that it names.
    pub fn asked(&self, job: Job<'a>, gres: u32) -> impl Iterator<Item = JobGres<'a>> + use<'a> {
        let layout = self.layout;
        // SAFETY: the job's own list, under the locks that the maker of this source holds.
        let asked = unsafe { gres_data(self.api, layout, job.gres_list(), gres) };
        (0..).map_while(move |at| {
            let entry = *asked.items().get(at)?;
            // SAFETY: as above, an entry of that list.
            unsafe { JobGres::new(entry, &layout.gres_job) }
        })
    }

    /// The same, where the job names one type of it or none.
    pub fn asked_once(&self, job: Job<'a>, gres: u32) -> Option<JobGres<'a>> {
        let mut asked = self.asked(job, gres);
        asked.next().filter(|_| asked.next().is_none())
    }

    /// The GPUs that a job asks for, one entry for each type that it names.
    pub fn gpus_asked(&self, job: Job<'a>) -> impl Iterator<Item = JobGres<'a>> + use<'a> {
        self.asked(job, self.ids.gpu)
    }

    /// The GPUs that a job asks for, where they are of one type or of any: several types in one request are
    /// left to Slurm.
    pub fn one_type(&self, job: Job<'a>) -> Option<JobGres<'a>> {
        self.asked_once(job, self.ids.gpu)
    }

    /// Whether a job asks for GPUs, of whatever types.
    pub fn wants_gpus(&self, job: Job<'a>) -> bool {
        self.gpus_asked(job).next().is_some()
    }

    /// What a job asks for of GPUs of all types together.
    pub fn sum(&self, job: Job<'a>, of: impl Fn(JobGres<'a>) -> u64) -> u64 {
        self.gpus_asked(job).map(of).fold(0, u64::saturating_add)
    }

    /// The fewest GPUs that a node has to give to a job.
    pub fn of_each_node(&self, job: Job<'a>) -> u64 {
        let each = self.sum(job, JobGres::per_node);
        each.max(self.sum(job, JobGres::per_task)).max(1)
    }

    /// Calls `each`, which does not unwind, with every GRES that a job asks for beside GPUs and their shards.
    pub fn for_each_other(&self, job: Job<'a>, each: &mut dyn FnMut(u32, JobGres<'a>)) {
        let own = [Some(self.ids.gpu), self.ids.shard];
        let layout = self.layout;
        let mut entry = |id: u32, data: *mut c_void| {
            // SAFETY: an entry of the list below.
            let entry = unsafe { JobGres::new(data, &layout.gres_job) };
            if let Some(entry) = entry.filter(|_| !own.contains(&Some(id))) {
                each(id, entry);
            }
        };
        // SAFETY: the job's own list, under the locks that the maker of this source holds.
        unsafe { for_each_gres(self.api, layout, job.gres_list(), &mut entry) };
    }
}
