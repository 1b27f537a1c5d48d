//! The mix of jobs that was learned, and the values that follow from it.

use super::Planner;
use super::gpus::GpuTable;
use super::kinds::Kinds;
use super::values::Building;
use crate::frag::Expected;

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
        match self.building.take().map(|building| building.work(entries)) {
            Some(Ok(values)) => {
                self.values = Some(values);
                self.scores.reset(self.fabric.len() as usize);
                true
            }
            Some(Err(building)) => {
                self.building = Some(building);
                false
            }
            None => false,
        }
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
    pub fn idle_worth(
        &self,
        node_type: usize,
        free: crate::gpuset::GpuSet,
        cpus: u32,
        memory_mib: u64,
    ) -> Option<u32> {
        let known: Option<&GpuTable> = self.tables.get(node_type);
        let free = free.and(known?.all);
        let values = self.values.as_ref()?;
        Some(values.of(node_type as u16, free, cpus, memory_mib))
    }
}
