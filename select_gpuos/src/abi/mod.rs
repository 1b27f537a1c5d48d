//! What stands between Slurm and the rest: how cons_tres is asked, and the one way to Slurm's records.

pub mod call;
pub mod clock;
pub mod forward;
pub mod frame;
pub mod masks;
pub mod shards_of_call;
pub mod source;
