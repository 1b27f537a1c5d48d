//! A job that the workload manager will end: it saves in time, and is requeued once that is committed. One that may not be requeued is told that
//! this is its last checkpoint, so that its program can end by itself.

use gpuos_config::gpuos_toml::AROUND_END_S;
use gpuos_mover::program::{Reason, View};

/// How long a checkpoint takes, in milliseconds, as long as none was measured in this run of the job. Own choice.
const UNMEASURED: u64 = 60_000;
/// What comes on top of a measured one.
const AROUND: u64 = AROUND_END_S as u64 * 1000;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Ask the program for a checkpoint, with this reason.
    Save(Reason),
    /// It is committed: the job can be requeued.
    Requeue,
    /// It is committed, and the job may not be requeued.
    Leave,
    /// The program was told of an end that does not come: it makes checkpoints as before.
    Off,
}

/// How far the end is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Approach {
    /// Further than a checkpoint takes, or there is none.
    #[default]
    Far,
    /// One newer than `newest` is waited for.
    Saving {
        /// The newest that there was.
        newest: u32,
        /// The program was asked; if not, the one that was being made will do.
        asked: bool,
    },
    /// It is there.
    Saved,
}

/// The end of a job, as the node sees it that leads. Times in milliseconds of the caller's clock.
#[derive(Clone, Default, Debug)]
pub struct Ends {
    at: Option<u64>,
    preempted: bool,
    may_requeue: bool,
    approach: Approach,
    /// The program was told that the job will be ended.
    told: bool,
}

impl Ends {
    /// What the workload manager says: seconds until the end, if there is one; whether another job waits for this one to go, so that
    /// it is not to use them up; and whether it would be requeued.
    pub fn told(&mut self, now: u64, ends_in_s: Option<u64>, preempted: bool, may_requeue: bool) {
        self.at = ends_in_s.map(|left| now.saturating_add(left.saturating_mul(1000)));
        self.preempted = preempted;
        self.may_requeue = may_requeue;
    }

    /// How it ends, as a sentence for the log.
    pub fn words(&self, now: u64) -> String {
        match self.left(now) {
            _ if self.preempted => "it has to go, as it is preempted or held".into(),
            Some(left) => format!("it will be ended in {} s", left / 1000),
            None => "it will not be ended".into(),
        }
    }

    fn left(&self, now: u64) -> Option<u64> {
        Some(self.at?.saturating_sub(now))
    }

    /// Time went by, and the checkpoints are so far.
    pub fn look(&mut self, now: u64, view: &View) -> Option<Next> {
        let near = self.left(now).is_some_and(|left| left <= needed(view)) || self.preempted;
        let newest = view.newest.map_or(0, |id| id.number);
        let (approach, next) = match self.approach {
            // It was moved, or a checkpoint takes less than was thought.
            _ if !near => {
                let off = std::mem::take(&mut self.told);
                (Approach::Far, off.then_some(Next::Off))
            }
            Approach::Saving { newest: before, .. } if newest > before => {
                let next = match self.may_requeue {
                    true => Next::Requeue,
                    false => Next::Leave,
                };
                (Approach::Saved, Some(next))
            }
            Approach::Far if view.making.is_some() && self.may_requeue => {
                let asked = false;
                (Approach::Saving { newest, asked }, None)
            }
            Approach::Far | Approach::Saving { asked: false, .. } if view.making.is_none() => {
                let asked = true;
                // A first one tells how long the program may still work.
                self.told = !self.may_requeue && !view.took.is_empty();
                let reason = match self.told {
                    true => Reason::End,
                    false => Reason::Asked,
                };
                (Approach::Saving { newest, asked }, Some(Next::Save(reason)))
            }
            same => (same, None),
        };
        self.approach = approach;
        next
    }
}

/// How long before the end a checkpoint has to be begun: the longest of the last ones and half as much again, and some time around it.
fn needed(view: &View) -> u64 {
    let took = view.took.iter();
    let longest = took.map(|took| took.pause_ms.saturating_add(took.background_ms));
    longest.max().map_or(UNMEASURED, |took| {
        (took.saturating_mul(3) / 2).saturating_add(AROUND)
    })
}

#[cfg(test)]
mod tests {
    use gpuos_checkpoint::ids::CheckpointId;
    use gpuos_mover::program::{Making, Stage, Took};

    use super::*;

    fn view(newest: u32, took_ms: &[u64], making: Option<u32>) -> View {
        let took = |ms: &u64| Took {
            number: 1,
            pause_ms: ms / 2,
            background_ms: ms - ms / 2,
        };
        View {
            newest: (newest > 0).then_some(CheckpointId {
                number: newest,
                attempt: 7,
            }),
            took: took_ms.iter().map(took).collect(),
            making: making.map(|number| Making {
                number,
                reason: Reason::Interval,
                stage: Stage::Saving,
                since: 0,
            }),
            ..View::default()
        }
    }

    fn ends(left_s: u64, may_requeue: bool) -> Ends {
        let mut ends = Ends::default();
        ends.told(0, Some(left_s), false, may_requeue);
        ends
    }

    #[test]
    fn a_job_saves_once_before_its_end_and_is_requeued_when_that_is_committed() {
        for (may_requeue, reason, then) in [
            (true, Reason::Asked, Next::Requeue),
            (false, Reason::End, Next::Leave),
        ] {
            let mut ends = ends(100, may_requeue);
            let before = view(4, &[10_000, 20_000, 4_000], None);
            // 45 s before: the longest took 20 s.
            assert_eq!(ends.look(54_999, &before), None);
            assert_eq!(ends.look(55_000, &before), Some(Next::Save(reason)));
            for now in [55_200, 60_000, 100_000, 130_000] {
                assert_eq!(ends.look(now, &before), None, "one is asked for once");
            }
            let after = view(5, &[10_000, 20_000, 4_000], None);
            assert_eq!(ends.look(130_200, &after), Some(then));
            let next = view(6, &[20_000], None);
            assert_eq!(ends.look(130_400, &next), None, "it is requeued once");
        }
    }

    #[test]
    fn a_first_checkpoint_is_made_in_time_and_tells_how_much_time_there_is() {
        let mut ends = ends(70, true);
        assert_eq!(ends.look(9_000, &view(0, &[], None)), None);
        assert_eq!(
            ends.look(10_000, &view(0, &[], None)),
            Some(Next::Save(Reason::Asked))
        );
        // It took 2 s, so that 18 s are enough: the job goes on until then.
        let made = view(1, &[2_000], None);
        assert_eq!(ends.look(12_000, &made), None);
        assert_eq!(ends.look(51_999, &made), None);
        assert_eq!(ends.look(52_000, &made), Some(Next::Save(Reason::Asked)));
        let last = view(2, &[2_000, 2_000], None);
        assert_eq!(ends.look(54_000, &last), Some(Next::Requeue));
    }

    #[test]
    fn one_that_is_being_made_is_good_enough_unless_it_fails() {
        let mut well = ends(10, true);
        assert_eq!(well.look(0, &view(3, &[1000], Some(4))), None);
        assert_eq!(well.look(200, &view(4, &[1000], None)), Some(Next::Requeue));
        let mut failed = ends(10, true);
        assert_eq!(failed.look(0, &view(3, &[1000], Some(4))), None);
        assert_eq!(
            failed.look(200, &view(3, &[1000], None)),
            Some(Next::Save(Reason::Asked))
        );
        assert_eq!(failed.look(400, &view(3, &[1000], Some(5))), None);
        assert_eq!(
            failed.look(600, &view(5, &[1000], None)),
            Some(Next::Requeue)
        );
    }

    #[test]
    fn a_preempted_job_saves_at_once_however_long_its_grace_is() {
        let mut ends = Ends::default();
        ends.told(0, Some(3600), true, true);
        assert_eq!(
            ends.look(0, &view(3, &[1000], None)),
            Some(Next::Save(Reason::Asked))
        );
        assert_eq!(ends.look(900, &view(3, &[1000], Some(4))), None);
        assert_eq!(
            ends.look(1000, &view(4, &[1000], None)),
            Some(Next::Requeue)
        );
    }

    #[test]
    fn an_end_that_moves_away_is_none_and_comes_again() {
        let mut ends = ends(10, true);
        let before = view(3, &[1000], None);
        assert_eq!(ends.look(0, &before), Some(Next::Save(Reason::Asked)));
        ends.told(100, Some(3600), false, true);
        // What was asked for is made, and nothing follows from it.
        assert_eq!(ends.look(200, &view(4, &[1000], None)), None);
        ends.told(5000, None, false, true);
        assert_eq!(ends.look(9000, &view(4, &[1000], None)), None);
        ends.told(9000, Some(0), false, true);
        assert_eq!(
            ends.look(9200, &view(4, &[1000], None)),
            Some(Next::Save(Reason::Asked))
        );
    }

    #[test]
    fn a_program_that_is_not_requeued_is_told_of_the_end_in_time_and_when_it_is_off() {
        let mut ends = ends(70, false);
        // Of what a checkpoint takes nothing is known: the program is not to end for that.
        let first = ends.look(10_000, &view(0, &[], None));
        assert_eq!(first, Some(Next::Save(Reason::Asked)));
        let made = view(1, &[2_000], None);
        assert_eq!(ends.look(12_000, &made), None);
        // One that is being made does not tell the program.
        assert_eq!(ends.look(52_000, &view(1, &[2_000], Some(2))), None);
        let made = view(2, &[2_000, 2_000], None);
        assert_eq!(ends.look(53_000, &made), Some(Next::Save(Reason::End)));
        let last = view(3, &[2_000, 2_000], None);
        assert_eq!(ends.look(55_000, &last), Some(Next::Leave));
        // An administrator gives it more time, and the program has not ended.
        ends.told(56_000, Some(3600), false, false);
        assert_eq!(ends.look(56_000, &last), Some(Next::Off));
        assert_eq!(ends.look(57_000, &last), None);
    }
}
