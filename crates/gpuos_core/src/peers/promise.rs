//! Whose side a node has taken.
use std::collections::BTreeMap;

/// A node keeps to the side that it took for so long, in ms. Longer than slurmctld takes from the answer to its question
/// to the change of a node's state.
pub const HOLD_MS: u64 = 60_000;

/// Sides taken of late.
#[derive(Clone, Default, Debug)]
pub struct Promises {
    /// For whom, and until when.
    with: BTreeMap<String, u64>,
    /// Against whom.
    against: BTreeMap<String, u64>,
}

impl Promises {
    /// Whether this node may say for `asker` that `about` is gone.
    pub fn may(&self, asker: &str, about: &str, now: u64) -> bool {
        let holds = |sides: &BTreeMap<String, u64>, node: &str| {
            sides.get(node).is_some_and(|until| now < *until)
        };
        asker != about && !holds(&self.with, about) && !holds(&self.against, asker)
    }

    /// It says so.
    pub fn take(&mut self, asker: &str, about: &str, now: u64) {
        let until = now.saturating_add(HOLD_MS);
        self.with.retain(|_, until| now < *until);
        self.against.retain(|_, until| now < *until);
        self.with.insert(asker.into(), until);
        self.against.insert(about.into(), until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_kept_for_its_time() {
        let mut promises = Promises::default();
        assert!(promises.may("a", "b", 0) && !promises.may("a", "a", 0));
        promises.take("a", "b", 0);
        // More against others, also by others.
        assert!(promises.may("a", "c", 1) && promises.may("c", "b", 1));
        assert!(!promises.may("b", "c", 1) && !promises.may("c", "a", 1));
        assert!(!promises.may("b", "a", HOLD_MS - 1));
        assert!(promises.may("b", "a", HOLD_MS));
    }
}
