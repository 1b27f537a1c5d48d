//! When a checkpoint is due.

use gpuos_checkpoint::interval::choice::{Costs, choose};
use gpuos_checkpoint::interval::estimate::Cost;

use super::start::Reason;
use super::types::Every;

/// The shortest wait after a failure, in milliseconds.
const LEAST_WAIT: u64 = 1000;

/// A pause that was too short to be measured counts as so many seconds: a cost of nothing has no optimum.
const LEAST_PAUSE_S: f64 = 0.001;

/// After a failure: when the next try may come, and how long was waited for it.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: u64,
    wait: u64,
}

/// The interval, with what it comes from.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    every: Every,
    nodes: u16,
    /// The least time between one that was begun and one that somebody asks for, in milliseconds.
    least_ms: u64,
    /// When one was begun last.
    begun: Option<u64>,
    pause: Cost,
    background: Cost,
    committed: Option<u64>,
    retry: Option<Retry>,
}

impl Pace {
    pub(super) fn new(every: Every, nodes: u16, least_ms: u64) -> Pace {
        Pace {
            every,
            nodes,
            least_ms,
            begun: None,
            pause: Cost::default(),
            background: Cost::default(),
            committed: None,
            retry: None,
        }
    }

    /// The interval in milliseconds, and the sentence why.
    pub(super) fn interval(&self) -> (u64, String) {
        let (mtbf_s, limits) = match self.every {
            Every::Fixed(ms) => return (ms, "as the job asks for".into()),
            Every::Auto { mtbf_s, limits } => (mtbf_s, limits),
        };
        let Some(pause_s) = self.pause.seconds() else {
            let why = "the shortest that is allowed, until it is known what a checkpoint costs";
            return (ms(limits.least_s), why.into());
        };
        let costs = Costs {
            pause_s: pause_s.max(LEAST_PAUSE_S),
            background_s: self.background.seconds().unwrap_or(0.0),
            slowdown: 0.0,
            restart_s: 0.0,
        };
        match choose(costs, mtbf_s, self.nodes.into(), limits) {
            Ok(choice) => (ms(choice.interval_s), choice.to_string()),
            Err(why) => (
                ms(limits.most_s),
                format!("the longest that is allowed, as none can be chosen: {why}"),
            ),
        }
    }

    /// Whether the interval is over, or the wait after a failure. `complete`: since when all ranks have joined.
    pub(super) fn is_due(&self, now: u64, complete: u64) -> bool {
        match self.retry {
            Some(retry) => now >= retry.at,
            None => {
                let base = self.committed.map_or(complete, |at| at.max(complete));
                now >= base.saturating_add(self.interval().0)
            }
        }
    }

    /// Whether one that somebody wants has to wait after a failure.
    pub(super) fn may(&self, now: u64) -> bool {
        self.retry.is_none_or(|retry| now >= retry.at)
    }

    /// Whether one that is wanted for this reason may begin now, by the site's least time between two. The end of a job waits for nothing.
    pub(super) fn is_time(&self, reason: Reason, now: u64) -> bool {
        let early = |begun: u64| now < begun.saturating_add(self.least_ms);
        reason == Reason::End || !self.begun.is_some_and(early)
    }

    /// One was begun.
    pub(super) fn begun(&mut self, now: u64) {
        self.begun = Some(now);
    }

    /// Somebody wants one: the wait after a failure is over, as soon as one may begin for that reason.
    pub(super) fn hurry(&mut self, reason: Reason, now: u64) {
        let least = match (reason, self.begun) {
            (Reason::End, _) | (_, None) => now,
            (_, Some(begun)) => now.max(begun.saturating_add(self.least_ms)),
        };
        if let Some(retry) = &mut self.retry {
            retry.at = retry.at.min(least);
        }
    }

    pub(super) fn committed(&mut self, now: u64, pause_ms: u64, background_ms: u64) {
        // Times of a clock that does not jump back are costs, which are never refused.
        let _ = self.pause.add(pause_ms as f64 / 1000.0);
        let _ = self.background.add(background_ms as f64 / 1000.0);
        self.committed = Some(now);
        self.retry = None;
    }

    /// The next try comes after a tenth of the interval, then after twice that, up to the interval.
    pub(super) fn failed(&mut self, now: u64) {
        let interval = self.interval().0.max(LEAST_WAIT);
        let wait = match self.retry {
            None => interval / 10,
            Some(retry) => retry.wait.saturating_mul(2),
        };
        let wait = wait.clamp(LEAST_WAIT, interval);
        let at = now.saturating_add(wait);
        self.retry = Some(Retry { at, wait });
    }

    /// The program has started anew: what failed before says nothing.
    pub(super) fn started(&mut self) {
        self.retry = None;
    }
}

/// Seconds in milliseconds. No number, or one below 0, is 0; a cast keeps to the largest.
fn ms(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}
