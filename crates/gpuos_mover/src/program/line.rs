//! A state that one node keeps telling another one until it is heard.

/// The newest state and how far it was heard.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    version: u64,
    state: Option<T>,
    heard: u64,
    at: u64,
    wait: u64,
    first: u64,
    most: u64,
}

impl<T: Clone + PartialEq> Line<T> {
    /// Repeats come after `first` milliseconds, then after twice that, up to `most`.
    pub(super) fn new(first: u64, most: u64) -> Line<T> {
        let first = first.max(1);
        Line {
            version: 0,
            state: None,
            heard: 0,
            at: 0,
            wait: first,
            first,
            most: most.max(first),
        }
    }

    /// This is the state now. Another one than before is told at once.
    pub(super) fn tell(&mut self, state: T) {
        if self.state.as_ref() != Some(&state) {
            self.state = Some(state);
            self.version += 1;
            self.at = 0;
            self.wait = self.first;
        }
    }

    /// What is to be said now, with its version.
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, T)> {
        if self.is_heard() || now < self.at {
            return None;
        }
        self.at = now.saturating_add(self.wait);
        self.wait = self.wait.saturating_mul(2).min(self.most);
        Some((self.version, self.state.clone()?))
    }

    /// The other node has heard it up to this version.
    pub(super) fn heard(&mut self, version: u64) {
        if version <= self.version {
            self.heard = self.heard.max(version);
        }
    }

    /// Whether the other node knows the newest state.
    pub(super) fn is_heard(&self) -> bool {
        self.heard == self.version
    }
}
