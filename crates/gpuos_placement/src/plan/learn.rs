//! The mix of jobs that was learned, and the values that follow from it.
use super::Planner;
use super::gpus::GpuTable;
use super::kinds::Kinds;
use super::types::Request;
use super::values::Building;
use crate::frag::{Expected, Share};

impl Planner {
    /// Begins to compute what idle nodes are worth to this mix. [`Planner::work`] goes on with it;
    /// when it is done, jobs on one node under the rules `default` and `frag` go by it. Allocates.
    pub fn learn(&mut self, expected: Expected) {
        if self.kinds.is_empty() {
            self.kinds = self.tables.iter().map(Kinds::new).collect();
        }
        self.building = Some(Building::new(expected, &self.kinds));
    }

    /// Goes on with what [`Planner::learn`] has begun, for so many entries of its tables (about
    /// a fifth of a microsecond each; `usize::MAX` = to the end). `true` when it has just come into use.
    pub fn work(&mut self, entries: usize) -> bool {
        let done = self.building.as_mut().is_some_and(|b| b.work(entries));
        if let Some(building) = self.building.take_if(|_| done) {
            self.values = Some(building.finish());
            let positions = 0..self.fabric.len();
            let types = positions.map(|at| self.type_of[self.fabric.node(at) as usize]);
            self.scores.reset(self.fabric.len() as usize, types);
            self.invalidate_cache();
        }
        done
    }

    /// Whether [`Planner::work`] has something to do.
    pub fn has_work(&self) -> bool {
        self.building.is_some()
    }

    /// The mix whose values are being computed.
    pub fn learning(&self) -> Option<&Expected> {
        self.building.as_ref().map(Building::expected)
    }

    /// The mix that decides, if one was learned.
    pub fn learned(&self) -> Option<&Expected> {
        self.values.as_ref().map(|values| &values.expected)
    }

    /// Forgets the mix.
    pub fn unlearn(&mut self) {
        self.values = None;
        self.building = None;
    }

    /// What a request counts as in the mix: its share of one node, and of how many nodes. `named`
    /// are the nodes with GPUs of the type that it names; none when it names no type.
    pub fn share(
        &self,
        request: &Request,
        nodes: u32,
        named: impl Iterator<Item = u32>,
    ) -> (Share, u32) {
        let units = request.gpus.units();
        let (gpus, nodes) = match units.gpus_in_all() {
            None => (units.gpus, nodes),
            Some(gpus) => {
                let most = self.tables.iter().map(|table| table.gpus as u32).max();
                let nodes = gpus.div_ceil(most.unwrap_or(1).max(1));
                let nodes = nodes.max(request.min_nodes).max(1);
                (gpus.div_ceil(nodes), nodes)
            }
        };
        let cpus = request.cpus_per_gpu.saturating_mul(gpus);
        let share = Share {
            gpus: gpus.min(255) as u8,
            cpus: cpus.max(request.cpus_per_node),
            memory_gib: request.memory_mib_per_node.div_ceil(1024).min(1 << 20) as u32,
            types: self.types_of(named),
        };
        (share, nodes)
    }

    /// The types of nodes, as [`Share::types`] has them.
    pub fn types_of(&self, nodes: impl Iterator<Item = u32>) -> u64 {
        let bit = |node| 1u64.checked_shl(self.type_number(node).unwrap_or(0) as u32);
        nodes.fold(0, |all, node| all | bit(node).unwrap_or(0))
    }

    /// Number of a node's type, in the order of their first nodes; `None` for a node without GPUs.
    pub fn type_number(&self, node: u32) -> Option<usize> {
        let number = *self.type_of.get(node as usize)?;
        (number != super::NO_TYPE).then_some(usize::from(number))
    }

    /// How many types of nodes the cluster has.
    pub fn types(&self) -> usize {
        self.tables.len()
    }

    /// What an idle node of a type with these GPUs, CPUs and memory free is worth under the mix
    /// that was learned, in thousandths of a GPU.
    pub fn idle_value(
        &self,
        node_type: usize,
        free: gpuos_model::gpuset::GpuSet,
        cpus: u32,
        memory_mib: u64,
    ) -> Option<u32> {
        let known: Option<&GpuTable> = self.tables.get(node_type);
        let free = free.and(known?.all);
        let values = self.values.as_ref()?;
        Some(values.of(node_type as u16, free, cpus, memory_mib))
    }
}
