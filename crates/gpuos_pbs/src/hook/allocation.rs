//! What PBS gave a job on the host of a mom: counts, of which gpuosd there chooses the GPUs.

use std::collections::BTreeSet;

use gpuos_model::gpu_index::{GresGpu, NvmlIndex};

use super::event::{Event, Host};
use super::resources::{MIG_COMPUTE, MIG_MEMORY, NGPUS, SHARE_PARTS};
use super::vnodes::{Given, gpu_of, host_of, hosts, parse_exec_vnode, short};

/// What a job has of one host, and its hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Allocation {
    /// Whole GPUs that PBS counts for it.
    pub count: u32,
    /// GPUs that it has by the names of vnodes of a release that made one of each GPU.
    pub named: BTreeSet<GresGpu>,
    /// Parts of one shared GPU.
    pub parts: u16,
    /// Shared GPUs by such names.
    pub named_shared: BTreeSet<GresGpu>,
    /// Compute slices.
    pub compute: u64,
    /// Memory slices.
    pub memory: u64,
    /// Chunks with slices.
    pub chunks: u32,
    /// Divided GPUs by such names.
    pub named_divided: BTreeSet<NvmlIndex>,
    /// Memory of the host in KiB.
    pub memory_kib: u64,
    /// All hosts of the job, each once, that of its script first.
    pub hosts: Vec<String>,
}

impl Allocation {
    /// Reads `exec_vnode` for the host of an event.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn of(event: &Event, exec_vnode: &str) -> Result<Allocation, String> {
        let chunks = parse_exec_vnode(exec_vnode)?;
        let mut found = Allocation {
            hosts: hosts(chunks.iter().flatten()),
            ..Allocation::default()
        };
        let this = short(&event.host);
        let host = event.described().find(|host| !host.gpus.is_empty());
        for chunk in &chunks {
            let here = chunk.iter().filter(|one| {
                event.vnodes.contains_key(&one.vnode) || short(host_of(&one.vnode)) == this
            });
            let mut has_slices = false;
            for given in here {
                found.add(given, former(host, given));
                has_slices |= given.count(MIG_MEMORY) > 0;
            }
            found.chunks += u32::from(has_slices);
        }
        Ok(found)
    }

    fn add(&mut self, given: &Given, former: Option<usize>) {
        let whole = u32::try_from(given.count(NGPUS)).unwrap_or(u32::MAX);
        let parts = u16::try_from(given.count(SHARE_PARTS)).unwrap_or(u16::MAX);
        let slices = given.count(MIG_MEMORY);
        match former {
            Some(index) => {
                let gpu = GresGpu::new(index);
                self.named.extend(gpu.filter(|_| whole > 0));
                self.named_shared.extend(gpu.filter(|_| parts > 0));
                let gpu = NvmlIndex::new(index);
                self.named_divided.extend(gpu.filter(|_| slices > 0));
            }
            None => {
                self.count = self.count.saturating_add(whole);
                self.parts = self.parts.saturating_add(parts);
            }
        }
        self.compute = self.compute.saturating_add(given.count(MIG_COMPUTE));
        self.memory = self.memory.saturating_add(slices);
        self.memory_kib = self.memory_kib.saturating_add(given.memory_kib());
    }

    /// Whether it has whole GPUs here.
    pub(super) fn has_whole(&self) -> bool {
        self.count > 0 || !self.named.is_empty()
    }

    /// Whether it has a part of a GPU here.
    pub(super) fn has_parts(&self) -> bool {
        self.parts > 0 || !self.named_shared.is_empty()
    }

    /// Whether it has slices here.
    pub(super) fn has_slices(&self) -> bool {
        self.memory > 0
    }

    /// Whether it has GPUs here, or parts of some.
    pub(super) fn has_any(&self) -> bool {
        self.has_whole() || self.has_parts() || self.has_slices()
    }

    /// Whether gpuosd has to choose GPUs for it.
    pub(super) fn is_chosen(&self) -> bool {
        self.count > 0 || self.parts > 0
    }

    /// Whether its script runs on this host; so does that of a job whose hosts are not known.
    pub(super) fn is_of_script(&self, event: &Event) -> bool {
        self.hosts
            .first()
            .is_none_or(|first| *first == short(&event.host))
    }
}

/// The GPU of a vnode that a release before this one has made, and that jobs still have.
fn former(host: Option<&Host>, given: &Given) -> Option<usize> {
    let (_, index) = gpu_of(&given.vnode)?;
    host?.former.contains(&index).then_some(index)
}
