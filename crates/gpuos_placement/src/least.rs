//! The fewest GPUs that a job is to be given, by what it asks for, against what it was given.
//!
//! cons_tres can answer yes and give fewer: where links, cores or sockets leave it no way to the GPUs that a node has free. Each step of such a
//! job then fails. Whoever has narrowed what cons_tres sees takes such an answer for a no.

/// What a job asks for of one GRES, in each form; 0 = not in this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// On each node.
    pub per_node: u64,
    /// In all.
    pub per_job: u64,
    /// For each task.
    pub per_task: u64,
    /// Tasks of the job; 0 = not known.
    pub tasks: u64,
    /// On each socket.
    pub per_socket: u64,
    /// Sockets of each node; 0 = not said.
    pub sockets: u64,
}

/// A job was given too little.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// GPUs that it was given.
    pub given: u64,
    /// GPUs that it asked for, there.
    pub asked: u64,
    /// The node on which they lack; `None`: in all.
    pub node: Option<usize>,
}

impl Asked {
    /// The fewest on each node.
    pub fn of_each_node(&self) -> u64 {
        let of_sockets = self.per_socket.saturating_mul(self.sockets.max(1));
        self.per_node.max(of_sockets)
    }

    /// The fewest in all, whatever the number of nodes.
    pub fn in_all(&self) -> u64 {
        self.per_job.max(self.per_task.saturating_mul(self.tasks))
    }

    /// Whether less was given than this, `given` being the index of each node of the job and how many there were: the first node
    /// that lacks some, or the sum.
    pub fn shortage(&self, given: impl Iterator<Item = (usize, u64)>) -> Option<Shortage> {
        let least = self.of_each_node();
        let mut sum: u64 = 0;
        for (node, given) in given {
            if given < least {
                return Some(Shortage {
                    given,
                    asked: least,
                    node: Some(node),
                });
            }
            sum = sum.saturating_add(given);
        }
        let asked = self.in_all();
        (sum < asked).then_some(Shortage {
            given: sum,
            asked,
            node: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(asked: Asked, given: &[u64]) -> Option<(Option<usize>, u64, u64)> {
        let short = asked.shortage(given.iter().copied().enumerate());
        short.map(|short| (short.node, short.given, short.asked))
    }

    #[test]
    fn every_form_of_request_is_held_against_what_was_given() {
        let none = Asked::default();
        assert_eq!(shortage(none, &[]), None);
        assert_eq!(shortage(none, &[0, 0]), None);
        let per_node = Asked {
            per_node: 2,
            ..none
        };
        assert_eq!(shortage(per_node, &[2, 3]), None);
        assert_eq!(shortage(per_node, &[2, 1]), Some((Some(1), 1, 2)));
        let per_job = Asked { per_job: 5, ..none };
        assert_eq!(shortage(per_job, &[4, 1]), None);
        assert_eq!(shortage(per_job, &[4, 0]), Some((None, 4, 5)));
        let per_task = Asked {
            per_task: 2,
            tasks: 3,
            ..none
        };
        assert_eq!(shortage(per_task, &[4, 2]), None);
        assert_eq!(shortage(per_task, &[4, 1]), Some((None, 5, 6)));
        let per_socket = Asked {
            per_socket: 4,
            sockets: 2,
            ..none
        };
        assert_eq!(shortage(per_socket, &[8]), None);
        assert_eq!(shortage(per_socket, &[4]), Some((Some(0), 4, 8)));
        let both = Asked {
            per_job: 6,
            per_node: 3,
            ..none
        };
        assert_eq!(shortage(both, &[3, 3]), None);
        assert_eq!(shortage(both, &[2, 2]), Some((Some(0), 2, 3)));
        assert_eq!(shortage(both, &[3]), Some((None, 3, 6)));
    }
}
