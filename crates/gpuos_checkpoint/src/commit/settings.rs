//! Time limits, and the back-off of what is repeated.

/// Time limits in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The leader gives up an attempt that is not prepared by then.
    pub prepare_ms: u64,
    /// A message without an answer is repeated after so long, then after twice that, and so on.
    pub retry_ms: u64,
    /// The longest time between two repeats.
    pub retry_most_ms: u64,
    /// A node that said `Prepared` and hears nothing asks after so long.
    pub ask_ms: u64,
}

impl Default for Settings {
    /// 30 minutes for the parts, which is 450 GB of a node at 250 MB/s. Repeats from 2 s to 1 min; members ask after 20 s.
    fn default() -> Settings {
        Settings {
            prepare_ms: 1_800_000,
            retry_ms: 2000,
            retry_most_ms: 60_000,
            ask_ms: 20_000,
        }
    }
}

/// When something is repeated next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    at: u64,
    wait: u64,
    most: u64,
}

impl Backoff {
    /// First after `wait`, which doubles each time up to `most`.
    pub(super) fn new(now: u64, wait: u64, most: u64) -> Backoff {
        // A wait of 0 would never double.
        let wait = wait.max(1);
        Backoff {
            at: now.saturating_add(wait),
            wait,
            most: most.max(wait),
        }
    }

    /// Whether it is due; then the next time is later.
    pub(super) fn due(&mut self, now: u64) -> bool {
        let due = now >= self.at;
        if due {
            self.wait = self.wait.saturating_mul(2).min(self.most);
            self.at = now.saturating_add(self.wait);
        }
        due
    }
}
