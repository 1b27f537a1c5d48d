//! What is counted of a job's checkpoints, on the node that leads, from what its conductor shows.

use std::sync::atomic::{AtomicU64, Ordering};

use gpuos_mover::program::View;

/// Counts of all jobs since the daemon started.
#[derive(Default, Debug)]
pub struct Totals {
    made: AtomicU64,
    failed: AtomicU64,
    restored: AtomicU64,
}

impl Totals {
    /// Checkpoints that were made and that came to nothing, and runs that went on from one.
    pub fn read(&self) -> (u64, u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.made), of(&self.failed), of(&self.restored))
    }
}

/// What was counted of one run of a job. Numbers of checkpoints only rise, so the last one counted is enough to know what is new.
#[derive(Default, Debug)]
pub(super) struct Tally {
    made: u32,
    failed: u32,
    restored: bool,
    /// Checkpoints in a row that came to nothing since the newest, and why the last of them did.
    pub failing: (u32, String),
    /// When a checkpoint was seen to be committed last, in milliseconds of the thread.
    saved_at: Option<u64>,
    /// How long the program and the store took for the newest checkpoint, in milliseconds.
    pub last: Option<(u64, u64)>,
}

impl Tally {
    /// Counts what is new in the view of the node that leads. It shows the last few checkpoints, so it is to be looked at several times
    /// a second.
    pub fn look(&mut self, view: &View, restored: bool, now: u64, totals: &Totals) {
        for took in view.took.iter().filter(|took| took.number > self.made) {
            totals.made.fetch_add(1, Ordering::Relaxed);
            self.saved_at = Some(now);
            self.last = Some((took.pause_ms, took.background_ms));
        }
        let newest = view.took.last().map_or(0, |took| took.number);
        if newest > self.made {
            self.made = newest;
            self.failing = Default::default();
        }
        let new = view.failures.iter();
        let new = new.filter(|(number, _)| *number > self.failed.max(self.made));
        for (number, why) in new {
            let count = self.failing.0.saturating_add(1);
            self.failing = (count, format!("checkpoint {number}: {why}"));
        }
        let failed = view.failures.iter().map(|(number, _)| *number);
        let new = failed.clone().filter(|number| *number > self.failed);
        totals
            .failed
            .fetch_add(new.count() as u64, Ordering::Relaxed);
        self.failed = failed.max().unwrap_or(0).max(self.failed);
        if restored && !self.restored {
            self.restored = true;
            totals.restored.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Seconds since a checkpoint was committed, or since the thread began.
    pub fn unsaved_s(&self, now: u64) -> u64 {
        now.saturating_sub(self.saved_at.unwrap_or(0)) / 1000
    }
}

#[cfg(test)]
mod tests {
    use gpuos_mover::program::Took;

    use super::*;

    fn view(took: &[u32], failed: &[u32]) -> View {
        let one = |number: &u32| Took {
            number: *number,
            pause_ms: u64::from(*number) * 10,
            background_ms: u64::from(*number) * 100,
        };
        View {
            took: took.iter().map(one).collect(),
            failures: failed.iter().map(|n| (*n, "a reason".into())).collect(),
            ..View::default()
        }
    }

    #[test]
    fn each_checkpoint_counts_once_however_often_it_is_seen() {
        let (totals, mut tally) = (Totals::default(), Tally::default());
        tally.look(&view(&[], &[]), false, 1000, &totals);
        assert_eq!((totals.read(), tally.unsaved_s(7000)), ((0, 0, 0), 7));
        for now in [8000, 8200] {
            tally.look(&view(&[4, 6], &[5]), true, now, &totals);
            assert_eq!(totals.read(), (2, 1, 1));
        }
        assert_eq!((tally.last, tally.unsaved_s(10_000)), (Some((60, 600)), 2));
        assert_eq!(tally.failing.0, 0, "6 came after 5");
        // The earliest are shown no more, and a gathering begins anew with none.
        tally.look(&view(&[6, 7], &[5, 8, 9]), true, 20_000, &totals);
        tally.look(&view(&[], &[]), true, 21_000, &totals);
        tally.look(&view(&[10], &[]), true, 22_000, &totals);
        assert_eq!(totals.read(), (4, 3, 1));
        assert_eq!(tally.unsaved_s(22_999), 0);
        assert_eq!(tally.failing.0, 0);
        for (failed, count) in [(&[11][..], 1), (&[11, 12], 2), (&[], 2), (&[13], 3)] {
            tally.look(&view(&[10], failed), true, 23_000, &totals);
            assert_eq!(tally.failing.0, count);
        }
        assert_eq!(tally.failing.1, "checkpoint 13: a reason");
        // Another job of the node.
        Tally::default().look(&view(&[1], &[]), false, 0, &totals);
        assert_eq!(totals.read(), (5, 6, 1));
    }
}
