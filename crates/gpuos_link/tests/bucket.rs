//! The token bucket keeps its rate, whatever is asked of it.

use std::time::Duration;

use gpuos_link::bucket::Bucket;
use proptest::prelude::*;

#[test]
fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
    let mut bucket = Bucket::new(1000, 500);
    let now = Duration::from_secs(9);
    assert_eq!(bucket.take(500, now), Duration::ZERO);
    assert_eq!(bucket.take(100, now), Duration::from_millis(100));
    // The next one waits behind it.
    assert_eq!(bucket.take(100, now), Duration::from_millis(200));
    let later = now + Duration::from_millis(200);
    assert_eq!(bucket.take(0, later), Duration::ZERO);
    // A long pause fills it to the burst and no further.
    let much_later = now + Duration::from_secs(3600);
    assert_eq!(bucket.take(600, much_later), Duration::from_millis(100));
}

#[test]
fn odd_figures_do_no_harm() {
    let mut still = Bucket::new(0, 0);
    assert_eq!(still.take(2, Duration::ZERO), Duration::from_secs(2));
    let mut fast = Bucket::new(u64::MAX, u64::MAX);
    assert_eq!(fast.take(usize::MAX, Duration::MAX), Duration::ZERO);
    let mut slow = Bucket::new(1, 0);
    for _ in 0..9 {
        assert!(slow.take(usize::MAX, Duration::MAX) > Duration::from_secs(1 << 30));
    }
}

proptest! {
    /// Whoever waits as he is told sends no more than burst and rate allow.
    #[test]
    fn the_rate_is_kept(
        rate in 1u64..1_000_000,
        burst in 0u64..1_000_000,
        pieces in prop::collection::vec((1usize..100_000, 0u64..2000), 1..50),
    ) {
        let mut bucket = Bucket::new(rate, burst);
        let (mut now, mut sent) = (Duration::ZERO, 0);
        for (bytes, pause_ms) in pieces {
            now += bucket.take(bytes, now);
            sent += bytes as u128 * 1_000_000_000;
            let allowed = u128::from(burst) * 1_000_000_000 + now.as_nanos() * u128::from(rate);
            prop_assert!(sent <= allowed);
            // A clock that goes back gives nothing.
            let back = bucket.take(0, Duration::ZERO);
            prop_assert_eq!(bucket.take(0, Duration::ZERO), back);
            now += Duration::from_millis(pause_ms);
        }
    }

    /// Whoever always has something to send waits no nanosecond longer than he has to.
    #[test]
    fn the_rate_is_used(rate in 1u64..1_000_000, pieces in prop::collection::vec(1usize..100_000, 1..50)) {
        // What a wait is rounded up by stays in the bucket.
        let mut bucket = Bucket::new(rate, 1);
        let (mut now, mut sent) = (Duration::ZERO, 0);
        for bytes in pieces {
            now += bucket.take(bytes, now);
            sent += bytes as u128 * 1_000_000_000;
            prop_assert!(sent + u128::from(rate) > now.as_nanos() * u128::from(rate));
        }
    }
}
