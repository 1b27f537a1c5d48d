//! Nodes that are short of host memory come after others for a job whose programs may need some.
//!
//! They count as nodes against which one more rule speaks, so they tell places apart and forbid none. For all other jobs nothing is different.

use gpuos_config::options::JobOptions;

use crate::abi::frame::Frame;
use crate::read::service::Service;
use crate::read::snapshot::Snapshot;

/// The candidates that are short of host memory, where the job of the call may need some.
#[derive(Default)]
pub struct Short {
    nodes: Vec<u32>,
}

impl Short {
    /// Finds them; `service` was read in this call.
    pub fn find(&mut self, frame: &Frame<'_>, service: &Service, options: &JobOptions) {
        self.nodes.clear();
        if service.has_short() && options.needs_host_memory() {
            self.list(frame, service);
        }
    }

    #[cold]
    #[inline(never)]
    fn list(&mut self, frame: &Frame<'_>, service: &Service) {
        let short = frame.indices().filter(|index| service.is_short(*index));
        self.nodes.extend(short.map(|index| index as u32));
    }

    /// Marks them. After what else rules say of the candidates.
    pub fn mark(&self, snapshot: &mut Snapshot) {
        for node in &self.nodes {
            if let Some(state) = snapshot.states.get_mut(*node as usize) {
                state.add_rule();
            }
        }
    }
}
