//! What backfill asks twice.

/// So many jobs are remembered that are beside nobody for good; with more, no first question is answered.
const LONERS: usize = 64;

/// Backfill asks twice for a job: whether it could start now beside nobody, and then when it could start
/// at all. The first answer counts only if it is "now".
#[derive(Default)]
pub struct Twofold {
    /// The job whose first question was answered, until its second one comes; 0 = none.
    pub open: u32,
    /// Jobs for which no second one came: for them it is the only one.
    loners: Vec<u32>,
}

impl Twofold {
    /// A question about a job comes in. Returns whether it is a first one, which another will follow.
    pub fn asked(&mut self, job: u32, first: bool) -> bool {
        let open = std::mem::take(&mut self.open);
        let followed = open == job && !first;
        if open != 0 && !followed && self.loners.len() < LONERS {
            self.loners.push(open);
        }
        first && self.loners.len() < LONERS && !self.loners.contains(&job)
    }

    /// The same, where a first one is never looked into.
    pub fn asked_unread(&mut self, job: u32, first: bool) -> bool {
        let asked = self.asked(job, first);
        if asked {
            self.open = job;
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::{LONERS, Twofold};

    /// A first question that is answered when it may be.
    fn first(twofold: &mut Twofold, job: u32) -> bool {
        twofold.asked_unread(job, true)
    }

    #[test]
    fn a_first_question_is_answered_while_a_second_one_follows() {
        let mut twofold = Twofold::default();
        for job in [7, 8, 7] {
            assert!(first(&mut twofold, job));
            assert!(!twofold.asked(job, false));
        }
        assert!(twofold.loners.is_empty());
    }

    #[test]
    fn a_job_with_one_question_only_is_not_answered_twice() {
        let mut twofold = Twofold::default();
        assert!(first(&mut twofold, 7));
        // Another job's question shows that no second one came.
        assert!(!twofold.asked(8, false));
        assert!(!first(&mut twofold, 7));
        assert!(first(&mut twofold, 9));
        assert!(first(&mut twofold, 10));
        assert!(!first(&mut twofold, 9));
        assert!(!twofold.asked(10, false));
        assert_eq!(twofold.loners, [7, 9, 10]);
    }

    #[test]
    fn with_too_many_of_them_none_is_answered() {
        let mut twofold = Twofold::default();
        let answered = (1..=2 * LONERS as u32).filter(|job| first(&mut twofold, *job));
        assert_eq!(answered.count(), LONERS);
    }
}
