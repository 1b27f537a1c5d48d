//! A token bucket: how long a sender has to wait to keep to a rate.

use std::time::Duration;

/// Units of a byte: as a rate of bytes per second has so many in a nanosecond, nothing is rounded.
const UNITS: i128 = 1_000_000_000;

/// Lets bytes through at a rate, and some at once after a pause. In any time `t` no more than `burst + rate * t` bytes go, and the last
/// piece. Several senders may share one: each waits behind those that asked before it.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Bytes per second.
    rate: u64,
    /// What a full bucket holds, in units.
    full: i128,
    /// What it holds; less than nothing is what is still to be waited for.
    level: i128,
    at: Duration,
}

impl Bucket {
    /// A full bucket. `rate` is in bytes per second, 0 counts as 1; `burst` in bytes.
    pub fn new(rate: u64, burst: u64) -> Bucket {
        let full = i128::from(burst) * UNITS;
        Bucket {
            rate: rate.max(1),
            full,
            level: full,
            at: Duration::ZERO,
        }
    }

    /// Takes `bytes` and tells how long to wait before they are sent. `now` is the time since a moment that is always the same; a
    /// time before the last one counts as the last.
    pub fn take(&mut self, bytes: usize, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let passed = i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX);
        let gained = passed.saturating_mul(self.rate.into());
        self.level = self.level.saturating_add(gained).min(self.full);
        let bytes = i128::try_from(bytes).unwrap_or(i128::MAX);
        self.level = self.level.saturating_sub(bytes.saturating_mul(UNITS));
        let missing = self.level.min(0).unsigned_abs();
        let nanos = missing.div_ceil(self.rate.into());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
