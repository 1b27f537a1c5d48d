//! Checkpoints that a program asks for by itself.

/// Checkpoints that the program asks for by itself: one that comes too soon waits, and several are one.
#[derive(Default, Debug)]
pub struct Asks {
    /// No more often than that, in milliseconds.
    pub pace_ms: u64,
    last: Option<u64>,
    waits: bool,
}

impl Asks {
    /// Time went by, and somebody may have asked. Whether a checkpoint is wanted now.
    pub fn look(&mut self, now: u64, asked: bool) -> bool {
        self.waits |= asked;
        let early = self
            .last
            .is_some_and(|last| now < last.saturating_add(self.pace_ms));
        if !self.waits || early {
            return false;
        }
        self.waits = false;
        self.last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_asks_all_the_time_is_heard_at_its_pace() {
        let mut asks = Asks {
            pace_ms: 1000,
            ..Asks::default()
        };
        assert!(!asks.look(0, false));
        let heard: Vec<u64> = (0..50)
            .map(|at| at * 100)
            .filter(|now| asks.look(*now, true))
            .collect();
        assert_eq!(heard, [0, 1000, 2000, 3000, 4000]);
        // What came too soon is not forgotten.
        assert!(!asks.look(4950, false) && asks.look(5000, false) && !asks.look(9000, false));
    }
}
