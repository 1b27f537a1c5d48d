//! Which nodes are kept for a job that does not fit now, and from when on.
//!
//! A scheduler with backfill keeps them whole from the job's start on. Until then they serve only jobs that
//! end before, so the least is lost on those that have the least free now: others can go on starting
//! elsewhere. Where the job will lie is decided when it starts, not here.
use super::Planner;
use super::types::NodeState;

/// A gang of at most this part of the narrowest domain is at home in many of them.
const PART: u32 = 4;

/// See [`Planner::keeps_busiest`].
pub(super) fn keeps_busiest(planner: &Planner, nodes: u32) -> bool {
    let widest = planner.fabric.widest(0);
    nodes <= 1 || !planner.fabric.islands && nodes.saturating_mul(PART) <= widest
}

/// GPUs that a running job gives back on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// When, in any unit.
    pub at: i64,
    /// Node index.
    pub node: u32,
    /// How many.
    pub gpus: u32,
}

/// A node that will have room for a part of the job. Ordered: the one that is rather kept comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Coming {
    /// What speaks against it ([`NodeState::against`]).
    pub penalty: u16,
    /// GPUs free now: the fewer, the fewer jobs it keeps away.
    pub now: u32,
    /// GPUs free when the job starts: what is left over of them is kept too.
    pub then: u32,
    /// Node index.
    pub node: u32,
}

/// Leaves those of `able` that are kept for a job on so many nodes, ascending by index; whether there are
/// enough.
pub fn keep(able: &mut Vec<Coming>, nodes: usize) -> bool {
    if nodes == 0 || able.len() < nodes {
        return false;
    }
    able.select_nth_unstable(nodes - 1);
    able.truncate(nodes);
    able.sort_unstable_by_key(|coming| coming.node);
    true
}

/// Foretells starts; its buffers are kept from one to the next.
#[derive(Clone, Default, Debug)]
pub struct Foresight {
    then: Vec<u32>,
    able: Vec<Coming>,
}

impl Foresight {
    /// The earliest moment, `from` or later, at which so many candidates have `each` GPUs free, and the nodes
    /// that are kept for it. `endings` ascend by their time. GPUs that are taken and that no ending gives back
    /// count as free from `from` on, so the moment is never later than the true one.
    /// `None`: that never comes.
    pub fn find(
        &mut self,
        state: &[NodeState],
        endings: &[Ending],
        from: i64,
        nodes: u32,
        each: u32,
    ) -> Option<(i64, &[Coming])> {
        let candidate = |node: u32| state.get(node as usize).filter(|state| state.candidate);
        self.then.clear();
        self.then.extend(state.iter().map(count));
        for ending in endings.iter().filter(|ending| ending.at > from) {
            if let Some(then) = self.then.get_mut(ending.node as usize) {
                *then = then.saturating_sub(ending.gpus);
            }
        }
        let mut able = 0;
        for (then, state) in self.then.iter_mut().zip(state) {
            *then = (*then).max(state.free.len() as u32);
            able += u32::from(state.candidate && *then >= each);
        }
        let mut moment = from;
        for ending in endings.iter().filter(|ending| ending.at > from) {
            // All that end at one moment count together.
            if able >= nodes && ending.at > moment {
                break;
            }
            moment = ending.at;
            if let Some(state) = candidate(ending.node) {
                let then = &mut self.then[ending.node as usize];
                let before = *then;
                *then = (before + ending.gpus).min(count(state));
                able += u32::from(before < each && *then >= each);
            }
        }
        self.able.clear();
        let coming = state.iter().zip(&self.then).enumerate();
        let coming = coming.filter(|(_, (state, then))| state.candidate && **then >= each);
        self.able.extend(coming.map(|(node, (state, then))| Coming {
            penalty: state.against(),
            now: state.free.len() as u32,
            then: *then,
            node: node as u32,
        }));
        keep(&mut self.able, nodes as usize).then_some((moment, &self.able))
    }
}

/// GPUs that a node has.
fn count(state: &NodeState) -> u32 {
    state.present.len() as u32
}
