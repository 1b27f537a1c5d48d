//! What the process may move between its GPUs and the host while nobody waits for it: gpuosd gives each that works on a GPU a part of the
//! link. What is parked and comes back is not bounded.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes a second, by device.
static RATES: Mutex<BTreeMap<i32, u64>> = Mutex::new(BTreeMap::new());

/// gpuosd has given a part of a device's link.
pub(crate) fn set(device: i32, rate: u64) {
    let mut rates = RATES.lock().unwrap_or_else(PoisonError::into_inner);
    rates.insert(device, rate);
}

/// How long nothing more is moved where so many bytes took so long: the links of all devices together have carried no more than their parts
/// then. Without gpuosd there is no bound.
pub(crate) fn pause(moved: u64, took: Duration) -> Duration {
    let rates = RATES.lock().unwrap_or_else(PoisonError::into_inner);
    let rate: u64 = rates
        .values()
        .fold(0, |sum, rate| sum.saturating_add(*rate));
    // One that has no part at all could never move what the policy has begun to count on.
    match rates.is_empty() {
        true => Duration::ZERO,
        false => {
            let ns = u128::from(moved) * 1_000_000_000 / u128::from(rate.max(1 << 20));
            Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).saturating_sub(took)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_followed_by_as_much_rest_as_its_part_of_the_link_asks_for() {
        let took = Duration::from_millis(20);
        assert_eq!(pause(1 << 40, took), Duration::ZERO, "nobody gave a part");
        set(0, 1_000_000_000);
        assert_eq!(pause(100_000_000, took), Duration::from_millis(80));
        set(1, 1_000_000_000);
        assert_eq!(pause(100_000_000, took), Duration::from_millis(30));
        assert_eq!(pause(1000, took), Duration::ZERO);
        set(0, 0);
        set(1, 0);
        assert_eq!(pause(1 << 20, took), Duration::from_millis(980));
    }
}
