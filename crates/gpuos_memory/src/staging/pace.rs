//! Whether a program is faster with what it needs exchanged before it is used: measured over whole periods, in turn without and with.

/// With is kept where a period takes at most so many hundredths of one without.
const FASTER: u64 = 100;
/// Periods without, after with was slower: at first and at most, each time twice as many.
const FEWEST: u32 = 8;
const MOST: u32 = 1024;

/// What a period is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It shows how long one takes without.
    Without,
    /// The first one with: what it lacks comes.
    Begins,
    /// It shows how long one takes with.
    With,
    /// With was faster.
    On,
    /// With was slower: so many periods are left until it is tried again.
    Off(u32),
}

/// The pace of a program.
#[derive(Debug)]
pub struct Pace {
    phase: Phase,
    /// The touch and the time at which this period began.
    begun: Option<(u64, u64)>,
    /// How long one took without, in nanoseconds for each touch.
    without: u64,
    /// Periods without after it is slower once more.
    rest: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            phase: Phase::Without,
            begun: None,
            without: 0,
            rest: FEWEST,
        }
    }
}

impl Pace {
    /// With, whatever it costs.
    pub fn always() -> Pace {
        Pace {
            phase: Phase::On,
            ..Pace::default()
        }
    }

    /// Whether this period is one with.
    pub fn is_on(&self) -> bool {
        matches!(self.phase, Phase::Begins | Phase::With | Phase::On)
    }

    /// It is not known any more what the program does: the period that was being measured is none.
    pub fn lost(&mut self) {
        self.begun = None;
        if self.phase == Phase::With {
            self.phase = Phase::Begins;
        }
    }

    /// So many touches there were now, in microseconds, of a program that does the same again after `period` touches.
    pub fn at(&mut self, touches: u64, now: u64, period: u64) {
        let Some((first, since)) = self.begun else {
            self.begun = Some((touches, now));
            return;
        };
        if touches - first < period {
            return;
        }
        let took = now.saturating_sub(since) * 1000 / (touches - first);
        self.begun = Some((touches, now));
        self.phase = match self.phase {
            Phase::Without => {
                self.without = took;
                Phase::Begins
            }
            Phase::Begins => Phase::With,
            Phase::With if took * 100 <= self.without * FASTER => Phase::On,
            Phase::With => {
                let rest = self.rest;
                self.rest = (rest * 2).min(MOST);
                Phase::Off(rest)
            }
            Phase::On => Phase::On,
            Phase::Off(0) => Phase::Without,
            Phase::Off(left) => Phase::Off(left - 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs periods of 100 touches that take so many microseconds without and with. Answers which of them were with.
    fn run(
        pace: &mut Pace,
        periods: u64,
        without: u64,
        with: u64,
        clock: &mut (u64, u64),
    ) -> Vec<bool> {
        let mut seen = Vec::new();
        for _ in 0..periods {
            seen.push(pace.is_on());
            for _ in 0..100 {
                clock.0 += 1;
                let took = if pace.is_on() { with } else { without };
                clock.1 += took / 100;
                pace.at(clock.0, clock.1, 100);
            }
        }
        seen
    }

    #[test]
    fn what_is_faster_stays() {
        let mut pace = Pace::default();
        let seen = run(&mut pace, 50, 1000, 900, &mut (0, 0));
        assert!(seen[2..].iter().all(|on| *on), "{seen:?}");
    }

    #[test]
    fn what_is_slower_is_tried_again_ever_more_rarely() {
        let mut pace = Pace::default();
        let mut clock = (0, 0);
        let seen = run(&mut pace, 200, 1000, 1100, &mut clock);
        let on = seen.iter().filter(|on| **on).count();
        assert!((2..20).contains(&on), "{seen:?}");
        let seen = run(&mut pace, 2000, 1000, 1100, &mut clock);
        let on = seen.iter().filter(|on| **on).count();
        assert!(on < 20, "{on} of 2000");
        let seen = run(&mut pace, 4000, 1000, 900, &mut clock);
        assert!(seen.last() == Some(&true), "it has become faster");
    }

    #[test]
    fn a_period_that_was_lost_is_not_measured() {
        let mut pace = Pace::default();
        let mut clock = (0, 0);
        run(&mut pace, 2, 1000, 900, &mut clock);
        pace.lost();
        clock.1 += 1_000_000;
        let seen = run(&mut pace, 10, 1000, 900, &mut clock);
        assert!(seen.last() == Some(&true), "{seen:?}");
    }
}
