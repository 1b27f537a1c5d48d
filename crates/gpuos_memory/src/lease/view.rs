//! What there is to see: for status and metrics.

use super::ids::{ClientId, GpuId, JobId};
use super::record::{Lease, Place};

/// A tier, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tier {
    /// There is.
    pub present: u64,
    /// Promised.
    pub promised: u64,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuView {
    /// The GPU.
    pub gpu: GpuId,
    /// Its memory.
    pub hbm: Tier,
    /// Jobs have it in turns: all of them together do not fit.
    pub sliced: bool,
    /// The job whose turn it is; `None` also where it is not in turns.
    pub holder: Option<JobId>,
    /// Turns were given up on: they last until the end, or until there is no work.
    pub serialised: bool,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientView {
    /// The process.
    pub client: ClientId,
    /// Its job.
    pub job: JobId,
    /// Where its memory is.
    pub place: Place,
    /// What it has.
    pub leases: Vec<(GpuId, Lease)>,
    /// What it may have on NVMe now, in bytes.
    pub nvme: u64,
    /// Of that, bytes that are still in host memory and are to go there.
    pub leaving: u64,
    /// It has work.
    pub busy: bool,
    /// It is being ended.
    pub ending: bool,
    /// It is stopped, by a signal or with its job.
    pub stopped: bool,
    /// The driver parks it, or has.
    pub by_driver: bool,
    /// Bytes of host memory that this takes beyond its leases.
    pub beyond: u64,
    /// GPU time of its job in turns, in ms.
    pub gpu_ms: u64,
    /// Bytes that lie in host memory because others use a GPU who ask nobody.
    pub squeezed: u64,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// GPUs, in their order.
    pub gpus: Vec<GpuView>,
    /// Host memory.
    pub host: Tier,
    /// NVMe.
    pub nvme: Tier,
    /// Processes, in their order.
    pub clients: Vec<ClientView>,
    /// Host memory is short.
    pub pressure: bool,
    /// The step of the ladder that is next, or under way, in a word; `calm` where there is no pressure.
    pub rung: &'static str,
    /// Jobs that are short of their own memory.
    pub short: Vec<JobId>,
}
