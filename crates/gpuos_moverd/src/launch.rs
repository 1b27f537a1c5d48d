//! Starts of a job's program on some of its nodes.

/// Which start of the program a run of the job is at. Later ones are larger.
///
/// Without spares a job's program has all nodes from the start of the run to its end, and [`Launch::default`] is the only launch. Where `gpuos
/// run` starts it, each step is a launch of its own, with nodes of its own: those that the workload manager names for the step. Its number
/// is the workload manager's, too, so that nobody can claim a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Launch {
    /// The step; `None`: all steps, on all nodes.
    pub step: Option<u32>,
    /// How often the program was started in this run of the job, with this step, by the word of the job's user: it decides for how long
    /// others are waited for, and nothing more.
    pub start: u32,
}

impl Launch {
    /// The number of its list of nodes, by which movers know that they mean the same; 0 is that of all nodes.
    pub fn list(self) -> u32 {
        self.step.map_or(0, |step| step.saturating_add(1))
    }

    /// As a word: empty for all nodes, else `.STEP.START`.
    pub fn word(self) -> String {
        match self.step {
            None => String::new(),
            Some(step) => format!(".{step}.{}", self.start),
        }
    }

    /// Reads what stands behind the number of the run.
    pub fn read(word: &str) -> Option<Launch> {
        if word.is_empty() {
            return Some(Launch::default());
        }
        let (step, start) = word.strip_prefix('.')?.split_once('.')?;
        let launch = Launch {
            step: Some(step.parse().ok()?),
            start: start.parse().ok()?,
        };
        (launch.word() == word).then_some(launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_steps_are_later_turns_and_have_other_lists() {
        let launch = |step, start| Launch {
            step: Some(step),
            start,
        };
        let all = [Launch::default(), launch(0, 9), launch(3, 1), launch(4, 1)];
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(all.windows(2).all(|pair| pair[0].list() < pair[1].list()));
        for launch in all {
            assert_eq!(Launch::read(&launch.word()), Some(launch));
        }
        for bad in [
            ".",
            ".1",
            ".1.",
            "1.2",
            ".01.2",
            ".1.2.3",
            ".-1.2",
            ".4294967296.1",
        ] {
            assert_eq!(Launch::read(bad), None, "{bad}");
        }
    }
}
