//! What is withheld from a job, whoever decides where it goes, and why.
//!
//! - [`out`]: GPUs that are out of service,
//! - [`registration`]: nodes that slurmctld does not know well enough yet.

pub mod out;
pub mod registration;
