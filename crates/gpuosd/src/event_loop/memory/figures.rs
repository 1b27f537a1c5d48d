//! What a program says of its memory, held against what it can be. Its user may write any number: nothing is decided by it, and it is
//! shown to him and counted in sums, so no number may be larger than what a machine could have done since he was asked last.

use std::time::{Duration, Instant};

use gpuos_memory::protocol::Figures;

/// No link between GPU and host is faster, in bytes a second; own choice (NVLink-C2C has 450 GB/s each way).
const FASTEST: u64 = 1_000_000_000_000;
/// So much more may be told at once: clocks of two processes are not one.
const SLACK: u64 = 1 << 30;
/// What a link carried is smoothed over about so long.
const SMOOTH: Duration = Duration::from_secs(4);

/// What a program has told, as far as it can be.
#[derive(Debug)]
pub struct Told {
    /// Since when it is connected, and when it told of moves and of figures last.
    since: Instant,
    at: Instant,
    figures_at: Instant,
    /// What it told last.
    pub figures: Figures,
    /// Bytes to host memory and back in all.
    pub moved: [u64; 2],
    /// Bytes a second over its links, when that was told.
    rate: u64,
}

/// What a sum may be after so long, where it was so much.
fn bounded(before: u64, now: u64, elapsed: Duration) -> u64 {
    let most = u128::from(FASTEST) * elapsed.as_millis() / 1000;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    // It never becomes less: a counter of Prometheus would take that for a new one.
    now.clamp(before, before.saturating_add(most).saturating_add(SLACK))
}

impl Told {
    /// Nothing yet.
    pub fn new(now: Instant) -> Told {
        Told {
            since: now,
            at: now,
            figures_at: now,
            figures: Figures::default(),
            moved: [0; 2],
            rate: 0,
        }
    }

    /// It tells what it has moved in all.
    pub fn moved(&mut self, now: Instant, moved: [u64; 2]) {
        let elapsed = now.saturating_duration_since(self.at);
        let before = self.moved;
        for (known, told) in self.moved.iter_mut().zip(moved) {
            *known = bounded(*known, told, elapsed);
        }
        let more: u64 = (0..2).map(|way| self.moved[way] - before[way]).sum();
        let ms = elapsed.as_millis().max(1);
        let rate = u128::from(more) * 1000 / ms;
        let weight = ms.min(SMOOTH.as_millis());
        let all = SMOOTH.as_millis();
        let smooth = (u128::from(self.rate) * (all - weight) + rate * weight) / all;
        self.rate = u64::try_from(smooth).unwrap_or(u64::MAX).min(FASTEST);
        self.at = now;
    }

    /// It tells of its memory, where it has so many bytes in all.
    pub fn figures(&mut self, now: Instant, told: Figures, bytes: u64) {
        let elapsed = now.saturating_duration_since(self.figures_at);
        self.figures_at = now;
        let old = self.figures;
        let mut left = bytes;
        let mut part = |told: u64| {
            let part = told.min(left);
            left -= part;
            part
        };
        let [hot, warm, cold] = told.heat;
        let connected = now.saturating_duration_since(self.since).as_millis();
        let connected = u64::try_from(connected).unwrap_or(u64::MAX);
        self.figures = Figures {
            heat: [part(hot), part(warm), part(cold)],
            fetched: bounded(old.fetched, told.fetched, elapsed),
            evicted: bounded(old.evicted, told.evicted, elapsed),
            pressed: bounded(old.pressed, told.pressed, elapsed),
            held_ms: told.held_ms.clamp(old.held_ms, connected.max(old.held_ms)),
        };
    }

    /// Bytes a second over its links of late.
    pub fn rate(&self, now: Instant) -> u64 {
        // Who tells nothing moves nothing.
        match now.saturating_duration_since(self.at) > SMOOTH {
            true => 0,
            false => self.rate,
        }
    }

    /// How much longer it takes than without moves, of 1000: by what it moved over links of so many bytes a second, and as it measured.
    pub fn slower(&self, now: Instant, link: u64) -> [u64; 2] {
        let all = now.saturating_duration_since(self.since).as_millis();
        let all = u64::try_from(all).unwrap_or(u64::MAX).max(1);
        let it = &self.figures;
        let moved = u128::from(it.fetched) + u128::from(it.evicted) + u128::from(it.pressed);
        let ms = u64::try_from(moved * 1000 / u128::from(link.max(1))).unwrap_or(u64::MAX);
        [ms, it.held_ms].map(|held| {
            let worked = all.saturating_sub(held).max(all / 100).max(1);
            let slower = u128::from(all) * 1000 / u128::from(worked);
            u64::try_from(slower).unwrap_or(u64::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn figures(bytes: u64) -> Figures {
        Figures {
            heat: [bytes; 3],
            fetched: bytes,
            evicted: bytes,
            pressed: bytes,
            held_ms: bytes,
        }
    }

    #[test]
    fn what_cannot_be_is_not_shown() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut told = Told::new(start);
        told.figures(at(1), figures(u64::MAX), 10 * GIB);
        told.moved(at(1), [u64::MAX; 2]);
        assert_eq!(told.figures.heat, [10 * GIB, 0, 0]);
        assert!(told.figures.fetched <= FASTEST + GIB, "{told:?}");
        assert!(told.moved.iter().all(|moved| *moved <= FASTEST + GIB));
        assert_eq!(told.figures.held_ms, 1000);
        assert!(told.rate(at(1)) <= FASTEST);
        // Sums do not become less.
        let before = told.figures.fetched;
        told.figures(at(2), figures(0), 10 * GIB);
        assert_eq!((told.figures.fetched, told.figures.held_ms), (before, 1000));
        assert_eq!(told.figures.heat, [0; 3]);
        let slower = told.slower(at(2), 1);
        assert_eq!(slower, [100_000, 2000]);
    }

    #[test]
    fn rates_and_slowdowns_follow_from_what_was_moved() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut told = Told::new(start);
        for second in 1..=60 {
            told.moved(at(second), [second * GIB, second * GIB]);
        }
        let rate = told.rate(at(60));
        assert!(rate > 19 * GIB / 10 && rate <= 2 * GIB, "{rate}");
        assert_eq!(told.rate(at(70)), 0);
        let one = Figures {
            heat: [GIB, 2 * GIB, 3 * GIB],
            fetched: 60_000_000_000,
            held_ms: 12_000,
            ..Figures::default()
        };
        told.figures(at(120), one, 100 * GIB);
        // 6 s by a link of 10 GB/s, and 12 s as it says, of 120.
        assert_eq!(told.slower(at(120), 10_000_000_000), [1052, 1111]);
    }
}
