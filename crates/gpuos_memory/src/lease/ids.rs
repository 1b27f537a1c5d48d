//! Who holds memory, and what of.

use std::fmt;

/// A job. The caller numbers jobs, and numbers them alike after a restart: the journal has these numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// A process of a job. As [`JobId`]: the same process has the same number after a restart of the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// A GPU of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GpuId(pub u32);

/// An account of the workload manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccountId(pub u64);

/// A move of bytes over a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MoveId(pub u64);

/// What bytes go over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkId {
    /// Between a GPU and the host.
    Gpu(GpuId),
    /// To and from the node's NVMe.
    Nvme,
}

/// Where the memory of a process is that does not work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refuge {
    /// In host memory.
    Host,
    /// On NVMe, with all that it has in host memory.
    Nvme,
}

/// Where the memory of a process is, as the process says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// In GPU memory as its lease has it: it works, or could.
    Gpu,
    /// It is parked there.
    Parked(Refuge),
}

/// Bytes as a person reads them: GiB with one digit behind the point, below one MiB.
pub(super) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        match self.0 {
            bytes if bytes >= GIB => write!(f, "{:.1} GiB", bytes as f64 / GIB as f64),
            bytes if bytes >= MIB => write!(f, "{} MiB", bytes / MIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
