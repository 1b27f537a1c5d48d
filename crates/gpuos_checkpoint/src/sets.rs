//! Which nodes keep redundancy for each other.
