//! How often something may be done: so many at once, and then so many a second.

use std::time::{Duration, Instant};

/// How many there may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// A second.
    pub each_second: f64,
    /// At once, after a pause.
    pub at_once: f64,
}

/// What is left of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    pub fn full(rate: Rate, now: Instant) -> Bucket {
        Bucket {
            rate,
            tokens: rate.at_once,
            at: now,
        }
    }

    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * self.rate.each_second).min(self.rate.at_once);
        self.at = now.max(self.at);
    }

    /// Takes one; whether there was one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }

    /// Takes one, in advance if there is none; how long to wait for it.
    pub fn take_in_advance(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.rate.each_second)
    }

    /// Whether nothing was taken for so long that it is full.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.tokens >= self.rate.at_once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_what_the_rate_allows_and_no_more() {
        let (begun, rate) = (
            Instant::now(),
            Rate {
                each_second: 5.0,
                at_once: 20.0,
            },
        );
        let mut bucket = Bucket::full(rate, begun);
        // Ten seconds, a thousand tries in each.
        let tries = (0..10_000).map(|n| begun + Duration::from_millis(n));
        let got = tries.filter(|now| bucket.take(*now)).count();
        assert!((68..=70).contains(&got), "{got}");
        assert!(!bucket.is_full(begun + Duration::from_secs(11)));
        assert!(bucket.is_full(begun + Duration::from_secs(15)));
        // A clock that stands still, or goes back, gives nothing.
        let mut bucket = Bucket::full(rate, begun + Duration::from_secs(9));
        assert_eq!((0..100).filter(|_| bucket.take(begun)).count(), 20);
    }

    #[test]
    fn who_owes_waits_for_his_turn() {
        let now = Instant::now();
        let rate = Rate {
            each_second: 10.0,
            at_once: 2.0,
        };
        let mut bucket = Bucket::full(rate, now);
        let waits: Vec<u128> = (0..5)
            .map(|_| bucket.take_in_advance(now).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 100, 200, 300]);
    }
}
