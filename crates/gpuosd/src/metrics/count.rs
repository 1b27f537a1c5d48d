//! What is counted since the daemon started.

use std::collections::BTreeMap;

use gpuos_core::health::{Effect, Event};
use gpuos_model::node_gpu::NodeGpu;

/// Kinds of Xid that are counted one by one for a GPU; further ones are counted together as [`OTHER`]. NVIDIA's
/// catalogue has some 170, and a GPU shows few of them.
const CODES: usize = 64;
/// Stands for all Xids beyond [`CODES`].
pub const OTHER: u32 = u32::MAX;

/// Something that the daemon did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// A step was killed.
    KillStep,
    /// A job was requeued.
    Requeue,
    /// The node's record was written.
    Publish,
    /// The node was drained.
    DrainNode,
    /// The node's drain was taken back.
    UndrainNode,
    /// A GPU was reset.
    Reset,
    /// A GPU was checked.
    Check,
    /// A process on a GPU that it does not own was killed.
    KillProcess,
}

impl Act {
    /// All of them.
    pub const ALL: [Act; 8] = [
        Act::KillStep,
        Act::Requeue,
        Act::Publish,
        Act::DrainNode,
        Act::UndrainNode,
        Act::Reset,
        Act::Check,
        Act::KillProcess,
    ];

    /// Its label.
    pub const fn name(self) -> &'static str {
        match self {
            Act::KillStep => "kill_step",
            Act::Requeue => "requeue",
            Act::Publish => "publish",
            Act::DrainNode => "drain_node",
            Act::UndrainNode => "undrain_node",
            Act::Reset => "reset",
            Act::Check => "check",
            Act::KillProcess => "kill_process",
        }
    }
}

/// The counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Xids, by GPU and number.
    pub xids: BTreeMap<NodeGpu, BTreeMap<u32, u64>>,
    /// Xids of the kernel's log that the library did not tell, by GPU.
    pub logged: BTreeMap<NodeGpu, u64>,
    /// Times that a GPU was lost, by GPU.
    pub lost: BTreeMap<NodeGpu, u64>,
    /// Acts: done, and failed or refused.
    pub acts: BTreeMap<Act, [u64; 2]>,
    /// Warnings.
    pub warnings: u64,
}

impl Counts {
    /// An event.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Xid { gpu, code, .. } => {
                let codes = self.xids.entry(*gpu).or_default();
                let known = codes.contains_key(code) || codes.len() < CODES;
                let code = if known { *code } else { OTHER };
                *codes.entry(code).or_default() += 1;
            }
            Event::Logged { gpu, .. } => *self.logged.entry(*gpu).or_default() += 1,
            Event::Lost { gpu } => *self.lost.entry(*gpu).or_default() += 1,
            Event::Published { ok, .. } => self.act(Act::Publish, *ok),
            Event::ResetDone { ok, .. } => self.act(Act::Reset, *ok),
            Event::CheckDone { ok, .. } => self.act(Act::Check, *ok),
            _ => {}
        }
    }

    /// What came of an event.
    pub fn effects(&mut self, effects: &[Effect]) {
        let warning = |effect: &&Effect| matches!(effect, Effect::Warn { .. });
        self.warnings += effects.iter().filter(warning).count() as u64;
    }

    /// Something was done, or could not be.
    pub fn act(&mut self, act: Act, ok: bool) {
        self.acts.entry(act).or_default()[usize::from(!ok)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(code: u32) -> Event {
        Event::Xid {
            gpu: 3u8.try_into().unwrap(),
            code,
            gpu_instance: None,
            compute_instance: None,
            pid: None,
        }
    }

    #[test]
    fn the_kinds_of_xid_are_bounded_and_none_is_lost() {
        let mut counts = Counts::default();
        for code in 0..1000 {
            counts.event(&xid(code));
            counts.event(&xid(13));
        }
        let codes = &counts.xids[&NodeGpu::try_from(3).unwrap()];
        assert!(codes.len() <= CODES + 1, "{}", codes.len());
        assert_eq!(codes.values().sum::<u64>(), 2000);
        assert_eq!(codes[&13], 1001);
    }

    #[test]
    fn acts_count_by_their_end() {
        let mut counts = Counts::default();
        let published = |ok| Event::Published { revision: 1, ok };
        counts.event(&published(true));
        counts.event(&published(false));
        counts.event(&published(true));
        assert_eq!(counts.acts[&Act::Publish], [2, 1]);
    }
}
