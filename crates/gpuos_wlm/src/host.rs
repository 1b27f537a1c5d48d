//! The GPUs of a host, and which of them a job is given: by the planner, on a cluster of one node.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Node, NodeType};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_placement::explain::why_wait;
use gpuos_placement::plan::{GpuShape, NodeState, Planner, Request, TopologyRequest, Wait};

use crate::ask::Ask;

/// A GPU of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// N of `/dev/nvidiaN`, which stays the same when another GPU fails.
    pub number: u8,
    /// `GPU-…`; empty where the driver was not asked.
    pub uuid: String,
}

/// A host as its hardware shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Host {
    /// What its GPUs have between each other.
    pub kind: Arc<NodeType>,
    /// The GPUs that answer, in the order of `kind`.
    pub gpus: Vec<Gpu>,
}

/// GPUs for a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Their numbers, ascending.
    pub numbers: Vec<u8>,
    /// Names by which CUDA finds them: all by UUID, or all by number.
    pub visible: Vec<String>,
    /// `nvlink` or `node`; none for no GPU.
    pub level: Option<&'static str>,
}

/// Why a job gets no GPUs now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Short {
    /// Fewer are free than the workload manager has given: words for both.
    Gpus(String),
    /// Enough are free, but not within one domain of the required level.
    Level(String),
}

impl Host {
    /// A host of a known kind, whose GPUs have numbers only.
    pub fn of_kind(kind: Arc<NodeType>) -> Host {
        let number = |at: usize| Gpu {
            number: at as u8,
            uuid: String::new(),
        };
        Host {
            gpus: (0..kind.gpus.min(MAX_GPUS)).map(number).collect(),
            kind,
        }
    }

    /// The GPUs, as places in the order of `kind`, that nobody holds.
    fn free(&self, held: &BTreeSet<u8>) -> GpuSet {
        let places = self.gpus.iter().enumerate().take(self.kind.gpus);
        places.fold(GpuSet::EMPTY, |set, (at, gpu)| {
            match held.contains(&gpu.number) {
                true => set,
                false => set.with(at),
            }
        })
    }

    /// How many GPUs are free, and how many of them at most are linked by NVLink with each other.
    pub fn room(&self, held: &BTreeSet<u8>) -> (u32, u32) {
        let free = self.free(held);
        let all = free.len() as u32;
        let wish = TopologyRequest {
            level: "nvlink".into(),
            required: true,
        };
        let linked = (2..=all).rev().find(|count| {
            let found = self.plan(free, *count, Some(&wish));
            found.is_ok()
        });
        (all, linked.unwrap_or(all.min(1)))
    }

    /// Chooses GPUs that nobody holds.
    ///
    /// # Errors
    /// There are not enough.
    pub fn choose(&self, ask: &Ask, held: &BTreeSet<u8>) -> Result<Chosen, Short> {
        if ask.gpus == 0 {
            return Ok(Chosen {
                numbers: Vec::new(),
                visible: Vec::new(),
                level: None,
            });
        }
        let free = self.free(held);
        if free.len() < ask.gpus as usize {
            return Err(Short::Gpus(format!(
                "the job was given {} GPUs of this host, and {} of its {} are free here",
                ask.gpus,
                free.len(),
                self.gpus.len()
            )));
        }
        let found = self.plan(free, ask.gpus, ask.topology.as_ref());
        let (places, linked) = found.map_err(|wait| Short::Level(why_wait(&wait)))?;
        let level = if linked { "nvlink" } else { "node" };
        Ok(self.named(places.iter(), level))
    }

    /// GPUs that another one chose, by their names; `None` where one is not of this host, or named twice.
    pub fn given(&self, names: &[&str]) -> Option<Chosen> {
        let place = |name: &&str| {
            let is = |gpu: &Gpu| gpu.uuid == *name || gpu.number.to_string() == *name;
            self.gpus.iter().position(is)
        };
        let places: Option<Vec<usize>> = names.iter().map(place).collect();
        let places = places.filter(|places| places.iter().all(|at| *at < self.kind.gpus))?;
        let set = places.iter().fold(GpuSet::EMPTY, |set, at| set.with(*at));
        if set.is_empty() || set.len() != names.len() {
            return None;
        }
        let wish = TopologyRequest {
            level: "nvlink".into(),
            required: true,
        };
        let linked = set.len() > 1 && self.plan(set, set.len() as u32, Some(&wish)).is_ok();
        let level = if linked { "nvlink" } else { "node" };
        Some(self.named(set.iter(), level))
    }

    fn named(&self, places: impl Iterator<Item = usize>, level: &'static str) -> Chosen {
        let gpus: Vec<&Gpu> = places.filter_map(|at| self.gpus.get(at)).collect();
        let numbers = gpus.iter().map(|gpu| gpu.number);
        // A mixture of names and numbers is none that CUDA takes.
        let by_uuid = gpus.iter().all(|gpu| is_word(&gpu.uuid));
        let name = |gpu: &&Gpu| match by_uuid {
            true => gpu.uuid.clone(),
            false => gpu.number.to_string(),
        };
        Chosen {
            numbers: numbers.collect(),
            visible: gpus.iter().map(name).collect(),
            level: Some(level),
        }
    }

    /// The best set of so many free GPUs, and whether all of them are linked.
    fn plan(
        &self,
        free: GpuSet,
        count: u32,
        wish: Option<&TopologyRequest>,
    ) -> Result<(GpuSet, bool), Wait> {
        let mut planner = Planner::new(Cluster {
            nodes: vec![Node {
                name: "this host".into(),
                node_type: Some(Arc::clone(&self.kind)),
            }],
            ..Cluster::default()
        });
        let state = NodeState {
            candidate: true,
            present: GpuSet::first(self.kind.gpus),
            free,
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        };
        let request = Request {
            topology: wish.cloned(),
            ..Request::new(1, 1, GpuShape::PerNode(count))
        };
        let choice = planner.plan(&[state], &request, 0)?;
        let gpus = choice.nodes.first().map_or(GpuSet::EMPTY, |node| node.gpus);
        Ok((gpus, choice.reached == 0))
    }
}

impl Chosen {
    /// Variables for the job, which are words and commas: nothing of a user's is in them.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let numbers: Vec<String> = self.numbers.iter().map(u8::to_string).collect();
        // Without it CUDA shows all GPUs, other jobs' too.
        let mut all = vec![("CUDA_VISIBLE_DEVICES", self.visible.join(","))];
        if let Some(level) = self.level {
            // Numbers are NVIDIA's own, which count by the place on the PCI bus.
            all.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()));
            all.push(("GPUOS_GPUS", numbers.join(",")));
            all.push(("GPUOS_LEVEL", level.into()));
        }
        all
    }
}

/// Whether a text can stand in a list of devices.
fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(inner)
}
