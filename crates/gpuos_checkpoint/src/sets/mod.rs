//! Which nodes keep redundancy for each other.
//!
//! The nodes of a job are dealt into sets. What can fail together, such as a chassis, a power feed or a leaf switch, is a
//! **failure domain**; no two members of a set share one, at any level. So a failed domain takes at most one member of each
//! set, and a set with parity `m` outlives `m` failed domains.
//!
//! All nodes compute the sets by themselves from the same list, so [`arrange`] depends on nothing but its arguments.

mod arrange;
mod cross;
mod deal;
mod domains;
mod refusal;
mod scheme;
mod search;

pub use arrange::{Set, arrange};
pub use domains::NodeDomains;
pub use refusal::NoSets;
pub use scheme::{MOST_NODES, MOST_PARITY, Scheme, SchemeError};
