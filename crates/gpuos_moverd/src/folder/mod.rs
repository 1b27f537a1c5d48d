//! The mover's side of the folder of a job, `/var/lib/gpuos/jobs/JOB`, through which it and the job's program speak with each other.
//!
//! ```text
//! JOB/                          root's, 0755
//! JOB/ranks/R.S.NONCE           the user's folder, 0700: ranks join here
//! JOB/ranks/any.R.NONCE         it can begin from the files of any number of ranks; all.R.NONCE: and needs those of all
//! JOB/ranks/refused.R.NONCE     a rank cannot load what it was given
//! JOB/restored.N/rank-R-of-S/   the files of all ranks of N, for those that were told so
//! JOB/start.R.NONCE             the answer to that, and what was restored for it in restore.R.NONCE/, the user's
//! JOB/request                   checkpoint N is wanted
//! JOB/N/files/rank-R-of-S/      the user's: ranks write here, and make N/ready.R
//! JOB/taken  commit  failed     what became of N
//! JOB/memory/                   where the job asks for it: a tmpfs that slurmstepd has mounted; then JOB/N is a link to memory/N
//! ```
//!
//! The user means harm, and root acts here. So nothing goes by path once the folder is made: folders are held open, every name is one
//! part, no link is followed, no mount is entered but that of `memory`, which is root's, and what lies in a folder of the user's is at most counted, looked at, and read by
//! what takes checkpoints. What is removed goes to the trash first ([`Trash`]), which no user can enter.

mod at;
mod error;
mod job;
mod joined;
mod kept;
mod memory;
mod names;
mod refused;
mod resume;
mod shared;
mod trash;

pub use error::Error;
pub use job::JobFolder;
pub use kept::Kept;
pub use names::{read_join, restored_name};
pub use shared::{begin_all, end_all, has_all};
pub use trash::{Progress, Trash};
