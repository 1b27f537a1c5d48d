//! Why something about a checkpoint could not be done.

use std::path::PathBuf;
use std::{fmt, io};

/// Why something about a checkpoint could not be done. Its text is for the user: what was tried, why it failed, what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The job makes no checkpoints, and this needs one.
    NoCheckpoints,
    /// There is no checkpoint to be refused.
    NothingGiven,
    /// The rank and the number of ranks cannot be: a sentence.
    Rank(String),
    /// A file or folder of the protocol could not be read or made.
    Files {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// A line that this version does not know.
    Unknown {
        /// The file.
        path: PathBuf,
        /// What stands in it.
        line: String,
    },
    /// This checkpoint has ended already: its files are not wanted any more. The program goes on.
    Over {
        /// The checkpoint.
        number: u32,
        /// Why, as far as it is known.
        why: String,
    },
    /// The time limit was over before there was an answer: what was waited for.
    TimedOut(String),
}

impl Error {
    /// What a rank does that is not in the folder yet.
    pub(crate) const JOIN: &str = "join in";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCheckpoints => f.write_str(
                "this job makes no checkpoints: GPUOS_CHECKPOINT_DIR is not set (sbatch --gpuos-checkpoint=10m)",
            ),
            Error::NothingGiven => f.write_str(
                "there is nothing to refuse: the program was given no checkpoint, or has refused it; join again",
            ),
            Error::Rank(why) => f.write_str(why),
            Error::Files { doing, path, error } => {
                write!(f, "cannot {doing} {}: {error}", path.display())?;
                if *doing == Error::JOIN && error.kind() == io::ErrorKind::NotFound {
                    f.write_str(
                        "; in a container, bind $GPUOS_CHECKPOINT_DIR into it at the same path, writable",
                    )?;
                }
                Ok(())
            }
            Error::Unknown { path, line } => write!(
                f,
                "{} says {line:?}, which this version of gpuos does not know: use the library that is installed on the node",
                path.display()
            ),
            Error::Over { number, why } => {
                write!(f, "checkpoint {number} is not wanted any more: {why}")
            }
            Error::TimedOut(what) => write!(
                f,
                "{what} did not come within the time limit: `gpuos ckpt show` on the node tells how far gpuos_mover is"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Files { error, .. } => Some(error),
            _ => None,
        }
    }
}
