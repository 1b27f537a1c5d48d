//! What can go wrong with NVIDIA's management library, as values that callers tell apart.

use std::fmt;

/// Result of a call of [`super::GpuLibrary`].
pub type Answer<T> = Result<T, Error>;

/// Why a call gave nothing. `Display` is a sentence with what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The library could not be opened: its path and the loader's reason.
    Missing {
        /// What was opened.
        path: String,
        /// What the loader said.
        reason: String,
    },
    /// The library is there, the kernel driver does not answer it.
    NoDriver,
    /// Library and kernel driver are of different releases.
    OtherDriver,
    /// The library was closed, and opening it again did not succeed.
    Closed,
    /// The library has no function of that name: the driver is older than the call.
    Symbol(&'static str),
    /// This GPU does not have what was asked for.
    NotSupported,
    /// Only root, or somebody with rights to the GPU, may do that.
    NoPermission,
    /// There is no GPU with that index.
    NoSuchGpu,
    /// The GPU has fallen off the bus, or cannot be reached any more.
    Lost,
    /// The driver or its firmware did not answer in time.
    Timeout,
    /// The GPU answers again after a reset only.
    ResetRequired,
    /// Processes use the GPU.
    InUse,
    /// What is asked for is taken: the memory slices of a MIG instance, or something else of which the
    /// GPU has only so much.
    InsufficientResources,
    /// A value is not what the GPU accepts: which one, and what is accepted.
    Refused(String),
    /// Any other return code.
    Other {
        /// NVML's function.
        call: &'static str,
        /// `nvmlReturn_t`.
        code: u32,
    },
}

impl Error {
    /// Whether the question makes no sense on this board or driver, so that asking again is useless.
    pub fn is_absence(&self) -> bool {
        matches!(self, Error::Symbol(_) | Error::NotSupported)
    }

    /// Whether the GPU or the whole library gives no answers at all at present, so that other
    /// questions would fail as well.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Error::Missing { .. }
                | Error::NoDriver
                | Error::OtherDriver
                | Error::Closed
                | Error::NoSuchGpu
                | Error::Lost
                | Error::Timeout
                | Error::ResetRequired
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { path, reason } => write!(
                f,
                "NVIDIA's management library {path} cannot be opened ({reason}): install the \
                 driver's package that holds libnvidia-ml.so.1 (libnvidia-ml1 on Debian), or \
                 name the file with --nvml"
            ),
            Error::NoDriver => f.write_str(
                "NVIDIA's kernel driver is not loaded: `modprobe nvidia`, and look at dmesg if it fails",
            ),
            Error::OtherDriver => f.write_str(
                "NVIDIA's library and kernel driver are of different releases: reload the \
                 driver or reboot after the update",
            ),
            Error::Closed => f.write_str("NVIDIA's management library is closed: it did not open again"),
            Error::Symbol(name) => {
                write!(f, "the driver's library has no {name}: it needs a newer driver")
            }
            Error::NotSupported => f.write_str("this GPU or driver does not support that"),
            Error::NoPermission => f.write_str("only root may do that on this GPU"),
            Error::NoSuchGpu => f.write_str("there is no GPU with that index"),
            Error::Lost => f.write_str(
                "the GPU is lost: it has fallen off the bus; the node needs a reboot or a power cycle",
            ),
            Error::Timeout => f.write_str("the driver did not answer in time"),
            Error::ResetRequired => f.write_str("the GPU needs a reset before it answers"),
            Error::InUse => f.write_str("processes still use the GPU"),
            Error::InsufficientResources => f.write_str(
                "the GPU has no room: other MIG instances have these memory slices, or all that there is of it",
            ),
            Error::Refused(why) => f.write_str(why),
            Error::Other { call, code } => write!(f, "{call} failed with NVML code {code}"),
        }
    }
}

impl std::error::Error for Error {}
