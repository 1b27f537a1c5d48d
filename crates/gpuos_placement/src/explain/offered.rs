//! Why Slurm refused a job that asks for GPUs, from what is counted anyway while it is decided.
use std::fmt;

use super::sentence::plural;

/// What a job asks for of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// So many on each node.
    Each(u32),
    /// So many in all.
    All(u32),
    /// In a form that is not counted here: several types, on each socket, parts of GPUs.
    Other,
}

/// A refusal, as data: without text, so that remembering one allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Fewest nodes that the job needs.
    pub needed: u32,
    /// Most that it may have.
    pub most: u32,
    /// What it asks for.
    pub asked: Asked,
    /// Nodes that Slurm offered: those that are up, not kept for others, and that the job may use.
    pub offered: u32,
    /// Of these, at most so many have enough free GPUs, or some where it asks for GPUs in all: CPUs and memory may have
    /// been looked at or not.
    pub found: u32,
    /// Free GPUs on them together.
    pub free: u32,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal {
            needed,
            most,
            offered,
            found,
            free,
            ..
        } = *self;
        let nodes = match (needed, most) {
            (least, most) if least >= most => plural(least, "node"),
            (least, most) => format!("{least} to {most} nodes"),
        };
        let of = format!("of {} that Slurm offered last", plural(offered, "node"));
        let have = if found == 1 { "has" } else { "have" };
        let rest = "not with all else that it asks for (CPUs, memory, a level, a node that it names, other resources)";
        match self.asked {
            Asked::Each(gpus) => {
                write!(
                    f,
                    "The job needs {} with {} each: {of}, at most {found} {have} room for that",
                    plural(needed, "node"),
                    plural(gpus, "free GPU"),
                )?;
                match found >= needed {
                    true => write!(f, ", and {rest}."),
                    false => f.write_str("."),
                }
            }
            Asked::All(gpus) => {
                let some = match found {
                    0 => "none has any for it".to_string(),
                    found => format!("at most {found} {have} some for it, {free} together"),
                };
                write!(
                    f,
                    "The job needs {} on {nodes}: {of}, {some}",
                    plural(gpus, "free GPU"),
                )?;
                match free >= gpus {
                    true => write!(f, ", and {rest}, or not on so many nodes."),
                    false => f.write_str("."),
                }
            }
            Asked::Other => write!(
                f,
                "Slurm found no room for the job's GPUs on the {} that it offered last.",
                plural(offered, "node")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_was_counted() {
        let refusal = Refusal {
            needed: 2,
            most: 2,
            asked: Asked::Each(6),
            offered: 3,
            found: 1,
            free: 7,
        };
        assert_eq!(
            refusal.to_string(),
            "The job needs 2 nodes with 6 free GPUs each: of 3 nodes that Slurm offered last, at most 1 has room \
             for that."
        );
        let found = Refusal {
            found: 2,
            ..refusal
        };
        assert!(
            found
                .to_string()
                .contains("at most 2 have room for that, and not with all else")
        );
        let all = Refusal {
            needed: 1,
            most: 8,
            asked: Asked::All(8),
            ..refusal
        };
        assert_eq!(
            all.to_string(),
            "The job needs 8 free GPUs on 1 to 8 nodes: of 3 nodes that Slurm offered last, at most 1 has some \
             for it, 7 together."
        );
        let none = Refusal {
            found: 0,
            free: 0,
            ..all
        };
        assert!(none.to_string().ends_with("none has any for it."));
        let other = Refusal {
            asked: Asked::Other,
            offered: 1,
            ..all
        };
        assert_eq!(
            other.to_string(),
            "Slurm found no room for the job's GPUs on the 1 node that it offered last."
        );
    }
}
