//! The GRES of nodes during a call: what counts as given in it, and how cons_tres is asked for a choice.

pub mod enough;
pub mod registration;
pub mod shards;
pub mod slices;
pub mod steer;
pub mod switching;
pub mod switching_later;
pub mod withhold;
