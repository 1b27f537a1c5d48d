//! What becomes of a checkpoint that was asked for, told by looks at the job one after the other.

use gpuos_core::wire::{CheckpointJob, CheckpointPhase};

/// So many looks may pass between the end of a checkpoint and the word of how it ended.
const QUIET: u32 = 10;

/// How it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// This checkpoint exists.
    Committed(u32),
    /// It came to nothing; its number, where one was given, and why.
    Failed(Option<u32>, String),
}

/// A checkpoint that is waited for.
#[derive(Debug)]
pub struct Wait {
    /// What has this number, or a lower one, was begun before it was asked for.
    base: u32,
    /// The one that was being made then: the one that was asked for comes after it.
    before: Option<u32>,
    own: Option<u32>,
    failures: Vec<String>,
    quiet: u32,
}

impl Wait {
    /// Begins with the job as it is before the checkpoint is asked for.
    pub fn new(job: &CheckpointJob) -> Wait {
        let kept = job.checkpoints.iter().map(|kept| kept.number);
        let before = job.making.as_ref().map(|making| making.number);
        Wait {
            base: kept.chain(before).max().unwrap_or(0),
            before,
            own: None,
            failures: job.failures.clone(),
            quiet: 0,
        }
    }

    /// Looks at the job; `None`: gpuos_mover does not know it any more. Returns how it ended, once it has.
    pub fn look(&mut self, job: Option<&CheckpointJob>) -> Option<Outcome> {
        let failed = |number, why: &str| Some(Outcome::Failed(number, why.into()));
        let Some(job) = job else {
            return failed(self.own, "the job has ended");
        };
        let committed = job.checkpoints.iter().filter(|kept| kept.committed);
        let newer = committed.map(|kept| kept.number);
        if let Some(number) = newer.filter(|number| *number > self.base).min() {
            return Some(Outcome::Committed(number));
        }
        match job.phase {
            CheckpointPhase::Failed => return failed(self.own, &job.why),
            CheckpointPhase::Left => return failed(self.own, "the job has ended"),
            _ => {}
        }
        let making = job.making.as_ref().map(|making| making.number);
        if let Some(before) = self.before {
            if making != Some(before) {
                self.before = None;
            }
            // Whatever is told of until now is about that one.
            self.failures = job.failures.clone();
            self.own = making.filter(|number| *number > self.base);
            return None;
        }
        // The first that is new: another one may have failed after it.
        let mut told = job.failures.iter();
        let new = told.find(|why| !self.failures.contains(why));
        let why = match job.failures == self.failures {
            true => None,
            false => new.or(job.failures.last()),
        };
        match (self.own, making.filter(|number| *number > self.base)) {
            (None, Some(number)) => {
                self.own = Some(number);
                self.failures = job.failures.clone();
                None
            }
            (Some(own), Some(number)) if own == number => None,
            (own, _) => match (why, own) {
                (Some(why), own) => failed(own, why),
                (None, None) => None,
                (None, Some(own)) => {
                    self.quiet += 1;
                    let why = "gpuos_mover gives no reason; its log may have one";
                    (self.quiet > QUIET).then(|| Outcome::Failed(Some(own), why.into()))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_core::wire::{CheckpointKept, CheckpointMaking};

    use super::*;

    fn job(committed: &[u32], making: Option<u32>, failures: &[&str]) -> CheckpointJob {
        let kept = |number: &u32| CheckpointKept {
            number: *number,
            committed: true,
            ..CheckpointKept::default()
        };
        CheckpointJob {
            phase: CheckpointPhase::Running,
            checkpoints: committed.iter().map(kept).collect(),
            making: making.map(|number| CheckpointMaking {
                number,
                ..CheckpointMaking::default()
            }),
            failures: failures.iter().map(|why| why.to_string()).collect(),
            ..CheckpointJob::default()
        }
    }

    /// The first outcome of these looks, and at which.
    fn ends(looks: &[CheckpointJob]) -> Option<(usize, Outcome)> {
        let mut wait = Wait::new(&looks[0]);
        let later = looks.iter().enumerate().skip(1);
        later
            .map(|(at, job)| (at, wait.look(Some(job))))
            .find_map(|(at, outcome)| Some((at, outcome?)))
    }

    #[test]
    fn one_that_is_committed_is_done() {
        let looks = [
            job(&[4], None, &[]),
            job(&[4], None, &[]),
            job(&[4], Some(5), &[]),
            job(&[4, 5], None, &[]),
        ];
        assert_eq!(ends(&looks), Some((3, Outcome::Committed(5))));
        // It was so quick that nobody saw it, and the old one is gone.
        assert_eq!(
            ends(&[job(&[4], None, &[]), job(&[5], None, &[])]),
            Some((1, Outcome::Committed(5)))
        );
        assert_eq!(ends(&[job(&[4], None, &[]), job(&[4], None, &[])]), None);
    }

    #[test]
    fn one_that_fails_is_told_with_its_reason() {
        let failed = |number, why: &str| Some((2, Outcome::Failed(number, why.into())));
        let looks = [
            job(&[4], None, &["old"]),
            job(&[4], Some(5), &["old"]),
            job(&[4], None, &["old", "5: no room"]),
        ];
        assert_eq!(ends(&looks), failed(Some(5), "5: no room"));
        // Its successor is being made already.
        let looks = [
            job(&[4], None, &[]),
            job(&[4], Some(5), &[]),
            job(&[4], Some(6), &["5: no room"]),
        ];
        assert_eq!(ends(&looks), failed(Some(5), "5: no room"));
        let looks = [
            job(&[4], None, &[]),
            job(&[4], None, &[]),
            job(&[4], None, &["5: refused"]),
        ];
        assert_eq!(ends(&looks), failed(None, "5: refused"));
    }

    #[test]
    fn one_that_was_being_made_already_is_not_it() {
        let looks = [
            job(&[4], Some(5), &[]),
            job(&[4], Some(5), &[]),
            job(&[4, 5], None, &[]),
            job(&[4, 5], Some(6), &[]),
            job(&[4, 5, 6], None, &[]),
        ];
        assert_eq!(ends(&looks), Some((4, Outcome::Committed(6))));
        // It fails, and the next one is made at once.
        let looks = [
            job(&[4], Some(5), &[]),
            job(&[4], Some(6), &["5: no room"]),
            job(&[4, 6], None, &["5: no room"]),
        ];
        assert_eq!(ends(&looks), Some((2, Outcome::Committed(6))));
    }

    #[test]
    fn one_of_which_nothing_more_is_told_ends_the_wait() {
        let mut wait = Wait::new(&job(&[4], None, &[]));
        assert_eq!(wait.look(Some(&job(&[4], Some(5), &[]))), None);
        let looks = (0..=QUIET).map(|_| wait.look(Some(&job(&[4], None, &[]))));
        let outcomes: Vec<_> = looks.flatten().collect();
        assert!(matches!(&outcomes[..], [Outcome::Failed(Some(5), _)]));
    }

    #[test]
    fn a_job_that_ends_ends_the_wait() {
        let mut wait = Wait::new(&job(&[4], None, &[]));
        assert!(matches!(wait.look(None), Some(Outcome::Failed(None, _))));
        let mut left = job(&[4], None, &[]);
        left.phase = CheckpointPhase::Left;
        assert!(matches!(wait.look(Some(&left)), Some(Outcome::Failed(..))));
        left.checkpoints.push(CheckpointKept {
            number: 5,
            committed: true,
            ..CheckpointKept::default()
        });
        assert_eq!(wait.look(Some(&left)), Some(Outcome::Committed(5)));
        let mut broken = job(&[4], None, &[]);
        broken.phase = CheckpointPhase::Failed;
        broken.why = "n2 is away".into();
        assert_eq!(
            wait.look(Some(&broken)),
            Some(Outcome::Failed(None, "n2 is away".into()))
        );
    }

    /// Checkpoints as they come and go, with the truth about each.
    #[derive(Clone, Default)]
    struct Story {
        last: u32,
        making: Option<u32>,
        committed: Vec<u32>,
        failed: Vec<u32>,
    }

    impl Story {
        /// One of: begins, is committed, fails, nothing.
        fn goes_on(&mut self, event: u32) {
            match (event, self.making) {
                (0, None) => {
                    self.last += 1;
                    self.making = Some(self.last);
                }
                (1, Some(number)) => {
                    self.committed.push(number);
                    self.making = None;
                }
                (2, Some(number)) => {
                    self.failed.push(number);
                    self.making = None;
                }
                _ => {}
            }
        }

        fn job(&self) -> CheckpointJob {
            let failures: Vec<String> = self.failed.iter().map(u32::to_string).collect();
            let failures: Vec<&str> = failures.iter().map(String::as_str).collect();
            job(&self.committed, self.making, &failures)
        }
    }

    /// All stories of some length, looked at or not after each event: what is told is true, and of one begun later than asked for.
    #[test]
    fn no_story_is_told_wrong() {
        const EVENTS: u32 = 5;
        let mut ends = 0;
        for begun in [false, true] {
            for code in 0..8u32.pow(EVENTS) {
                let mut story = Story::default();
                if begun {
                    story.goes_on(0);
                }
                let (base, mut wait) = (story.last, Wait::new(&story.job()));
                let mut code = code;
                let mut outcome = None;
                for _ in 0..EVENTS {
                    story.goes_on(code % 4);
                    if code / 4 % 2 == 1 && outcome.is_none() {
                        outcome = wait.look(Some(&story.job()));
                    }
                    code /= 8;
                }
                ends += u32::from(outcome.is_some());
                // Whatever was missed, one that exists ends the wait.
                let seen = outcome.or_else(|| wait.look(Some(&story.job())));
                if story.committed.iter().any(|number| *number > base) {
                    assert!(seen.is_some(), "{:?}", story.committed);
                }
                match seen {
                    Some(Outcome::Committed(number)) => {
                        assert!(number > base && story.committed.contains(&number));
                    }
                    Some(Outcome::Failed(number, why)) => {
                        let told: u32 = why.parse().unwrap();
                        assert!(told > base && story.failed.contains(&told));
                        assert!(number.is_none_or(|number| number == told));
                    }
                    None => {}
                }
            }
        }
        assert!(ends > 5_000, "{ends}");
    }
}
