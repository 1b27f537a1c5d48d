//! How often a program is started again.

/// What bounds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Starts in all.
    pub starts: u32,
    /// Failures in a row that no lost node explains, and between which no checkpoint was made.
    pub failures: u32,
}

/// What is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tries {
    limits: Limits,
    /// Starts so far.
    pub starts: u32,
    failures: u32,
    /// The newest checkpoint when it failed last.
    newest: Option<u32>,
}

/// What follows from a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It is started once more.
    Again,
    /// It was started too often.
    Started,
    /// It failed too often without a new checkpoint.
    Failed,
}

impl Tries {
    /// Nothing was started yet.
    pub fn new(limits: Limits) -> Tries {
        Tries {
            limits,
            starts: 0,
            failures: 0,
            newest: None,
        }
    }

    /// It is started.
    pub fn start(&mut self) {
        self.starts += 1;
    }

    /// It ended, and not as it should. `lost`: nodes were; `newest`: the checkpoint that there is now.
    pub fn failed(&mut self, lost: bool, newest: Option<u32>) -> Next {
        if lost || newest > self.newest {
            self.failures = 0;
        }
        self.newest = self.newest.max(newest);
        if !lost {
            self.failures += 1;
        }
        if self.failures >= self.limits.failures {
            return Next::Failed;
        }
        match self.starts < self.limits.starts {
            true => Next::Again,
            false => Next::Started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(starts: u32, failures: u32) -> Tries {
        Tries::new(Limits { starts, failures })
    }

    #[test]
    fn failures_in_a_row_end_it_unless_there_is_something_new_between() {
        let mut of = tries(100, 3);
        let next = [
            (None, Next::Again),
            (None, Next::Again),
            (Some(1), Next::Again),
            (Some(1), Next::Again),
            (Some(2), Next::Again),
            (Some(2), Next::Again),
            (Some(2), Next::Failed),
        ];
        for (newest, next) in next {
            of.start();
            assert_eq!(of.failed(false, newest), next);
        }
    }

    #[test]
    fn lost_nodes_are_no_failures_of_the_program_and_starts_are_bounded() {
        let mut of = tries(5, 2);
        for _ in 0..4 {
            of.start();
            assert_eq!(of.failed(true, None), Next::Again);
        }
        of.start();
        assert_eq!(of.failed(true, None), Next::Started);
        let mut of = tries(9, 2);
        of.start();
        assert_eq!(of.failed(false, None), Next::Again);
        assert_eq!(of.failed(true, None), Next::Again);
        assert_eq!(of.failed(false, None), Next::Again);
        assert_eq!(of.failed(false, None), Next::Failed);
    }
}
