//! What a job asks of its nodes beside GPUs, and what a job that runs holds of them: the fields that
//! cons_tres goes by when it refuses a node.

use std::ffi::c_void;

use gpuos_placement::fits::{Cores, Memory, SOCKETS};

use crate::bits::Bitmap;
use crate::field::field;
use crate::gres::{JobGres, NodeGres};
use crate::handles::{Job, NO_VAL, known16};
use crate::layout::{GresState, Layout};
use crate::nodes::Node;

/// SelectTypeParameters: CR_CPU.
pub const CR_CPU: u16 = 0x0001;
/// SelectTypeParameters: CR_Socket.
pub const CR_SOCKET: u16 = 0x0002;
/// SelectTypeParameters: CR_Core.
pub const CR_CORE: u16 = 0x0004;
/// SelectTypeParameters: CR_Memory, so that memory is a consumable resource.
pub const CR_MEMORY: u16 = 0x0010;

/// In a size of memory: it is per CPU.
const MEM_PER_CPU: u64 = 1 << 63;
/// Bits of `job_record.bit_flags`, the same in every known release.
const GRES_ENFORCE_BIND: u64 = 1 << 4;
const SPREAD_JOB: u64 = 1 << 8;
const JOB_MEM_SET: u64 = 1 << 23;
/// In `part_record.max_share`: jobs share without asking for it.
const SHARED_FORCE: u16 = 0x8000;
/// Slurm's "no limit" and "not set" for 16-bit values are the two highest.
const UNSAID: u16 = 0xfffe;

/// With whom a job may share the cores of a node, by its partition's `OverSubscribe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// With nobody: a core is one job's.
    #[default]
    Cores,
    /// With jobs of the same kind.
    Overlaps,
    /// It has its nodes alone.
    Nothing,
}

impl Job<'_> {
    /// Bits that say how resources are chosen: `SelectTypeParameters`, or those of the job's partition.
    pub fn select_parameters(self, of_site: u16) -> u16 {
        let own = self.of_part::<u16>(|part| part.cr_type).unwrap_or(0);
        match own {
            0 => of_site,
            _ if of_site & (CR_SOCKET | CR_CORE) == 0 => of_site,
            own => of_site & !(CR_SOCKET | CR_CORE | CR_MEMORY) | own,
        }
    }

    /// What of a node's memory it needs. `per_gpu`: what it asks for each GPU, 0 = nothing.
    pub fn memory(self, per_gpu: u64) -> Memory {
        let asked: u64 = self.detail(self.details().pn_min_memory);
        let said = self.get::<u64>(self.fields().bit_flags) & JOB_MEM_SET != 0;
        match asked {
            _ if per_gpu > 0 && !said => Memory::Gpu(per_gpu),
            0 => Memory::All,
            asked if asked & MEM_PER_CPU != 0 => Memory::Cpu(asked & !MEM_PER_CPU),
            asked => Memory::Node(asked),
        }
    }

    /// What it asks of the cores of each node.
    pub fn cores(self, parameters: u16) -> Cores {
        let details = self.details();
        let layout = self.layout();
        let limit = |most: u32| (most < NO_VAL).then_some(most);
        let mut cores = Cores {
            tasks_per_node: self.tasks_per_node(),
            cpus_per_task: self.cpus_per_task(),
            least: self.min_cpus_per_node(),
            whole_sockets: parameters & CR_SOCKET != 0,
            overcommit: self.detail::<u8>(details.overcommit) != 0,
            most_per_node: self.of_part(|part| part.max_cpus_per_node).and_then(limit),
            most_per_socket: layout
                .part_cpus_per_socket
                .and_then(|offset| self.of_part_at(offset))
                .and_then(limit),
            ..Cores::default()
        };
        let asked = self.detail::<usize>(details.mc_ptr) as *mut c_void;
        if let Some(at) = layout.multi_core.filter(|_| !asked.is_null()) {
            // SAFETY: mc_ptr is null or a live multi_core_data_t of the record.
            let [sockets, per_socket, threads, on_socket, on_core] = [
                at.sockets_per_node,
                at.cores_per_socket,
                at.threads_per_core,
                at.ntasks_per_socket,
                at.ntasks_per_core,
            ]
            .map(|offset| unsafe { field::<u16>(asked, offset) })
            .map(|value| if value >= UNSAID { 0 } else { value });
            (cores.sockets, cores.per_socket, cores.threads) = (sockets, per_socket, threads);
            (cores.tasks_per_socket, cores.tasks_per_core) = (on_socket, on_core);
        }
        cores
    }

    /// Tasks that run on each node for sure: all of them where the job has one node.
    pub fn tasks_on_each(self, overcommit: bool) -> u32 {
        let most: u32 = self.detail(self.details().max_nodes);
        match self.tasks_per_node() {
            0 if overcommit => 1,
            0 if most == 1 => self.tasks().max(1),
            0 => 1,
            each => each,
        }
    }

    /// Whether its GPUs have to be near its cores (`--gres-flags=enforce-binding`).
    pub fn binds_gpus(self) -> bool {
        self.get::<u64>(self.fields().bit_flags) & GRES_ENFORCE_BIND != 0
    }

    /// Whether it is to be spread over as many nodes as it may have (`--spread-job`).
    pub fn is_spread(self) -> bool {
        self.get::<u64>(self.fields().bit_flags) & SPREAD_JOB != 0
    }

    /// With whom it may share cores.
    pub fn sharing(self) -> Sharing {
        let rule = self.of_part::<u16>(|part| part.max_share).unwrap_or(1);
        let asks = self.detail::<u8>(self.details().share_res) == 1;
        match rule {
            0 => Sharing::Nothing,
            rule if rule & SHARED_FORCE != 0 || rule > 1 && asks => Sharing::Overlaps,
            _ => Sharing::Cores,
        }
    }

    /// A number that is another one for each partition, and the same as long as slurmctld's tables stand.
    pub fn partition_key(self) -> usize {
        self.get(self.fields().part_ptr)
    }

    /// What else its record has that cons_tres goes by and nothing here does, condensed: two jobs that agree
    /// in this ask for the same.
    pub fn other_requests(self) -> [u64; 3] {
        let details = self.details();
        [
            self.get::<u64>(self.fields().bit_flags) & GRES_ENFORCE_BIND
                | u64::from(self.detail::<u16>(details.core_spec)) << 32,
            u64::from(self.detail::<u16>(details.ntasks_per_tres)) << 32
                | u64::from(self.detail::<u8>(details.whole_node)) << 8
                | u64::from(self.detail::<u8>(details.share_res)),
            u64::from(self.tasks()) << 32 | u64::from(self.min_cpus()),
        ]
    }

    /// How many cores of each socket the job holds on a node, handed to `each` with the node's index, in the
    /// order of its nodes. `shape`: sockets and cores of one socket of a node. Nothing is handed on where these
    /// do not add up to what the record has, or a node has too many sockets.
    pub fn for_each_cores(
        self,
        shape: impl Fn(usize) -> Option<(usize, usize)>,
        mut each: impl FnMut(usize, [u16; SOCKETS]),
    ) {
        let resources = self.get::<usize>(self.fields().job_resrcs) as *mut c_void;
        let Some(nodes) = self.allocated_nodes() else {
            return;
        };
        // SAFETY: given_nodes saw a live job_resources_t; its core_bitmap is null or live.
        let cores = unsafe {
            Bitmap::new(
                field::<usize>(resources, self.layout().resources.core_bitmap) as *mut c_void,
            )
        };
        let Some(cores) = cores else { return };
        let total: Option<usize> = nodes
            .iter()
            .map(|node| shape(node).filter(|(sockets, _)| *sockets <= SOCKETS))
            .map(|shape| shape.map(|(sockets, cores)| sockets * cores))
            .sum();
        if total != Some(cores.len()) {
            return;
        }
        let mut at = 0;
        for node in nodes.iter() {
            let (sockets, of_each) = shape(node).unwrap_or_default();
            let mut held = [0; SOCKETS];
            for held in &mut held[..sockets.min(SOCKETS)] {
                *held = cores.count_in(at..at + of_each) as u16;
                at += of_each;
            }
            each(node, held);
        }
    }

    fn of_part_at<T: crate::mem::Plain>(self, offset: usize) -> Option<T> {
        let part = self.get::<usize>(self.fields().part_ptr) as *mut c_void;
        // SAFETY: part_ptr is null or a live partition record, and the layout was accepted.
        (!part.is_null()).then(|| unsafe { field(part, offset) })
    }
}

impl Node<'_> {
    /// Memory in MiB that jobs may have: what the node keeps for itself is left out.
    pub fn memory_for_jobs(self) -> u64 {
        self.memory()
            .saturating_sub(self.get(self.layout().mem_spec_limit))
    }

    /// CPUs of one core.
    pub fn threads(self) -> u16 {
        self.get::<u16>(self.layout().tpc).max(1)
    }

    /// Cores in all.
    pub fn cores(self) -> u16 {
        self.get(self.layout().tot_cores)
    }

    /// How many cores of a range the node keeps for itself: those whose bits are not set.
    pub fn reserved_cores(self, range: std::ops::Range<usize>) -> u16 {
        let kept: usize = self.get(self.layout().node_spec_bitmap);
        // SAFETY: null or a live bitmap of the record.
        let kept = unsafe { Bitmap::new(kept as *mut c_void) };
        kept.map_or(0, |map| (range.len() - map.count_in(range.clone())) as u16)
    }
}

impl JobGres<'_> {
    /// CPUs that each GPU brings along, by the job's wish or the partition's default; 0 = none.
    pub fn cpus_for_each(self, cpus_per_task: u32) -> u32 {
        let layout = self.offsets();
        let [said, tasks, default] = [
            layout.cpus_per_gres,
            layout.ntasks_per_gres,
            layout.def_cpus_per_gres,
        ]
        .map(|offset| known16(self.read::<u16>(offset)));
        match (said, tasks) {
            (0, 0) => default,
            (0, tasks) => tasks.saturating_mul(cpus_per_task.max(1)),
            (said, _) => said,
        }
    }

    /// Memory in MiB for each GPU, by the job's wish or the partition's default; 0 = not said.
    pub fn memory_for_each(self) -> u64 {
        let layout = self.offsets();
        let [said, default] = [layout.mem_per_gres, layout.def_mem_per_gres]
            .map(|offset| self.read::<u64>(offset))
            .map(|value| if value >= u64::MAX - 1 { 0 } else { value });
        if said > 0 { said } else { default }
    }

    /// Units that a node must have for a part of the job.
    pub fn units_on_a_node(self) -> u64 {
        let least = self.per_node().max(self.per_task()).max(self.per_socket());
        least.max(u64::from(self.per_job() > 0))
    }
}

impl NodeGres<'_> {
    /// Units that nobody holds.
    pub fn free_units(self) -> u64 {
        self.available().saturating_sub(self.allocated())
    }
}

/// Calls `each` with the GRES and the data of every entry of a GRES list.
///
/// # Safety
/// `list` is null or a live `List` of `gres_state_t` of the release that `layout` describes; `each` does
/// not unwind.
pub unsafe fn for_each_gres(
    api: &crate::api::Api,
    layout: &Layout,
    list: *mut c_void,
    each: &mut dyn FnMut(u32, *mut c_void),
) {
    struct Walk<'w> {
        layout: GresState,
        each: &'w mut dyn FnMut(u32, *mut c_void),
    }
    unsafe extern "C" fn one(item: *mut c_void, argument: *mut c_void) -> i32 {
        // SAFETY: `argument` is the Walk below; `item` a live gres_state_t.
        unsafe {
            let walk = &mut *argument.cast::<Walk<'_>>();
            let data = field::<usize>(item, walk.layout.gres_data) as *mut c_void;
            (walk.each)(field(item, walk.layout.plugin_id), data);
        }
        0
    }
    let mut walk = Walk {
        layout: layout.gres,
        each,
    };
    if !list.is_null() {
        // SAFETY: by the caller; `one` matches ForEach and gets the Walk it expects.
        unsafe { (api.list_for_each)(list, one, (&raw mut walk).cast()) };
    }
}
