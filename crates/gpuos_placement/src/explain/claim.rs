//! What is said of a job that waits, as data: each claim is a fact that can be held against the cluster, and its
//! sentence says that fact and no more.
use std::fmt;

use crate::plan::Never;

/// Something that jobs cannot have now and that comes back: a node, or one GPU of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unavailable {
    /// The node.
    pub node: String,
    /// The GPU, by index; `None`: all of the node.
    pub gpu: Option<usize>,
    /// What it is, after "is": `out of service`, `drained`, `reserved`.
    pub state: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "GPU {}:{gpu} is {}", self.node, self.state),
            None => write!(f, "node {} is {}", self.node, self.state),
        }
    }
}

/// One fact on a job that waits. `Display` makes the sentence, without a full stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It fits on no part of the cluster as it is configured, with everything up, sound and idle.
    Never(Never),
    /// Even with all running jobs gone it has no room before each one of these is back.
    NotWhile(Vec<Unavailable>),
    /// The same, and it would do if these came back; others may do as well.
    EnoughBack(Vec<Unavailable>),
    /// At that time at the latest, when these jobs have ended, it has room.
    FitsAt {
        /// Local time, as Slurm writes it.
        at: String,
        /// Labels of the jobs.
        jobs: Vec<String>,
    },
    /// It has room when these jobs have ended, and of some of them no end is known.
    FitsAfter {
        /// Labels of the jobs.
        jobs: Vec<String>,
        /// Those of them without a known end.
        open: Vec<String>,
    },
    /// It has room once running jobs have ended that slurmctld does not show to the asking user.
    FitsAfterUnseen,
    /// With all running jobs gone it has room, but for the rules in gpuos.toml.
    RulesKeep,
    /// No request of the same form with less would start now.
    NothingSmaller,
}

/// Things that are named at most.
const NAMED: usize = 8;

/// `1, 2 and 3`, or with `or`; past the first ones only how many more.
pub(super) fn listed<T: fmt::Display>(all: &[T], and: &str) -> String {
    let shown: Vec<String> = all.iter().take(NAMED).map(T::to_string).collect();
    match (all.len().saturating_sub(NAMED), shown.split_last()) {
        (0, Some((last, []))) => last.clone(),
        (0, Some((last, first))) => format!("{} {and} {last}", first.join(", ")),
        (more, _) => format!("{} {and} {more} more", shown.join(", ")),
    }
}

/// `job 3 has`, `jobs 3, 4 and 5 have`.
pub fn have(jobs: &[String]) -> String {
    match jobs {
        [] => "they have".into(),
        [only] => format!("job {only} has"),
        all => format!("jobs {} have", listed(all, "and")),
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claim::Never(why) => {
                let why = why.to_string();
                write!(
                    f,
                    "The job can never start as it is: {}. Submit it again with a smaller request",
                    why.trim_end_matches('.')
                )
            }
            Claim::NotWhile(away) => write!(
                f,
                "It cannot start while {}, not even when all running jobs have ended",
                listed(away, "or")
            ),
            Claim::EnoughBack(away) => write!(
                f,
                "It cannot start with what is in service now, not even when all running jobs have ended: {}; the end \
                 of that would be enough",
                listed(away, "and")
            ),
            Claim::FitsAt { at, jobs } => write!(
                f,
                "Expected: at {at} at the latest, when {} ended (jobs with a higher priority may come first)",
                have(jobs)
            ),
            Claim::FitsAfter { jobs, open } => {
                write!(f, "There is room when {} ended, and ", have(jobs))?;
                match jobs == open {
                    true => f.write_str("no end of it is known: no time limit"),
                    false => write!(f, "no end of {} is known: no time limit", listed(open, "and")),
                }
            }
            Claim::FitsAfterUnseen => f.write_str(
                "There is room when jobs have ended that slurmctld does not show here (PrivateData)",
            ),
            Claim::RulesKeep => f.write_str(
                "The end of the running jobs makes room, but rules in gpuos.toml keep it from there",
            ),
            Claim::NothingSmaller => {
                f.write_str("No smaller request of this kind would start now")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(node: &str, gpu: Option<usize>, state: &str) -> Unavailable {
        Unavailable {
            node: node.into(),
            gpu,
            state: state.into(),
        }
    }

    #[test]
    fn what_comes_back_is_named_and_a_list_has_an_end() {
        let one = [away("n3", Some(5), "out of service")];
        assert_eq!(
            Claim::NotWhile(one.to_vec()).to_string(),
            "It cannot start while GPU n3:5 is out of service, not even when all running jobs have ended"
        );
        let two = [away("n1", None, "drained"), one[0].clone()];
        assert!(
            Claim::NotWhile(two.to_vec())
                .to_string()
                .contains("while node n1 is drained or GPU n3:5 is out of service,")
        );
        let many: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
        assert_eq!(have(&many), "jobs 1, 2, 3, 4, 5, 6, 7, 8 and 12 more have");
    }

    #[test]
    fn an_end_that_nobody_knows_is_not_given_a_time() {
        let jobs = ["3".to_string(), "4_1".to_string()];
        let some = Claim::FitsAfter {
            jobs: jobs.to_vec(),
            open: jobs[1..].to_vec(),
        };
        assert_eq!(
            some.to_string(),
            "There is room when jobs 3 and 4_1 have ended, and no end of 4_1 is known: no time limit"
        );
        let all = Claim::FitsAfter {
            jobs: jobs[..1].to_vec(),
            open: jobs[..1].to_vec(),
        };
        assert!(
            all.to_string()
                .ends_with("no end of it is known: no time limit")
        );
    }
}
