//! The time of the machine's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC.
pub fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

/// Milliseconds since 1970, UTC.
pub fn millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}
