//! Why there are no sets.

use std::fmt;

use super::scheme::{Scheme, SchemeError};

/// Why nodes cannot be arranged. The sentence says what was asked for, why it cannot be, and what can be asked for instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoSets {
    /// The scheme is out of its limits.
    Scheme(SchemeError),
    /// More nodes than [`NodeIndex`](crate::ids::NodeIndex) can number.
    TooMany {
        /// How many.
        nodes: usize,
    },
    /// Not even one set.
    TooFew {
        /// What was asked for.
        scheme: Scheme,
        /// How many nodes there are.
        nodes: usize,
        /// What their number and their domains leave; none: `single` only.
        fits: Vec<Scheme>,
    },
    /// Impossible, by counting: the nodes of a domain have to be in sets of their own, and there are not so many.
    Crowded {
        /// What was asked for.
        scheme: Scheme,
        /// How many nodes there are.
        nodes: usize,
        /// The level of the domain.
        level: String,
        /// The domain.
        label: String,
        /// How many nodes are in it.
        crowd: usize,
        /// How many sets there are at most.
        sets: usize,
        /// What the domains leave; none: `single` only.
        fits: Vec<Scheme>,
    },
    /// Counting does not rule it out, and a search of bounded length found nothing.
    NotFound {
        /// What was asked for.
        scheme: Scheme,
        /// How many nodes there are.
        nodes: usize,
        /// Levels that cross each other.
        levels: Vec<String>,
        /// With smaller sets, of which there are more, it may be found.
        fits: Vec<Scheme>,
    },
}

impl fmt::Display for NoSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSets::Scheme(error) => error.fmt(f),
            NoSets::TooMany { nodes } => write!(
                f,
                "{nodes} nodes cannot be arranged in sets: 65536 can be numbered; use fewer nodes in a job"
            ),
            NoSets::TooFew {
                scheme,
                nodes,
                fits,
            } => write!(
                f,
                "l2={scheme} needs at least {} nodes, and the job has {nodes}; ask for more nodes, or give {}",
                scheme.nodes(),
                Forms(fits)
            ),
            NoSets::Crowded {
                scheme,
                nodes,
                level,
                label,
                crowd,
                sets,
                fits,
            } => write!(
                f,
                "l2={scheme} is impossible: {crowd} nodes of {level} domain {label}, only {sets} sets of {} or more among {nodes} nodes; \
                 it takes {crowd} sets or more: give {}, or ask for nodes of other {level} domains",
                scheme.nodes(),
                Forms(fits)
            ),
            NoSets::NotFound {
                scheme,
                nodes,
                levels,
                fits,
            } => write!(
                f,
                "l2={scheme}: no arrangement of {nodes} nodes found that keeps their {} domains apart, though counting does not rule \
                 one out; give {}, or demand fewer levels",
                levels.join(", "),
                Forms(fits)
            ),
        }
    }
}

impl std::error::Error for NoSets {}

/// Schemes as a user can give them.
struct Forms<'a>(&'a [Scheme]);

impl fmt::Display for Forms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else {
            return f.write_str("l2=single, which keeps nothing for lost nodes");
        };
        write!(f, "l2={first}")?;
        others
            .iter()
            .try_for_each(|other| write!(f, " or l2={other}"))
    }
}
