//! GPUs as NVIDIA's management library (NVML) shows them: one trait, the library of the driver
//! behind it ([`Driver`]), and a twin in memory ([`Twin`]) for tests.

mod driver;
mod error;
mod events;
mod fields;
mod gpm;
mod mig;
mod poll;
mod raw;
mod raw_gpm;
mod raw_mig;
mod twin;
mod twin_mig;

use std::time::Duration;

pub use gpuos_core::health::{RecoveryAction, Sample};
use gpuos_core::mig::Shown;
use gpuos_model::cluster::Link;
use gpuos_model::mig::{MigPlacement, Profile};

pub use driver::{Driver, LIBRARY};
pub use error::{Answer, Error};
pub use twin::{Twin, TwinGpu};

/// Whether a GPU can be divided into MIG instances, and whether it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigMode {
    /// On now.
    pub on: bool,
    /// On after the next reset.
    pub pending: bool,
    /// Most MIG devices that it can have.
    pub most: u32,
}

/// The multi-node NVLink domain that a GPU is registered in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricDomain {
    /// UUID of the cluster, as 32 hexadecimal digits.
    pub cluster: String,
    /// Number of the clique in it: GPUs of one clique reach each other over NVLink.
    pub clique: u32,
}

/// What stays the same while the driver is loaded. What a board does not tell is `None` or empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// `GPU-…`.
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// PCI address in the kernel's form, lower case: `0000:1b:00.0`.
    pub pci: String,
    /// Product name.
    pub name: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// `None` when it has no MIG.
    pub mig: Option<MigMode>,
    /// `None` when no fabric manager registered it.
    pub fabric: Option<FabricDomain>,
    /// NUMA nodes near it, by NVML; empty when NVML does not tell.
    pub numa: Vec<u16>,
    /// CPUs near it, by NVML; empty when NVML does not tell.
    pub cpus: Vec<u32>,
    /// Least, default and greatest power limit in milliwatts.
    pub power_limits_mw: Option<[u32; 3]>,
}

/// What is at the other end of an NVLink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkPeer {
    /// A GPU with this PCI address, in the kernel's form.
    Gpu(String),
    /// An NVSwitch.
    Switch,
    /// Something else, or the driver does not tell.
    Unknown,
}

/// One NVLink of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvLink {
    /// Its number.
    pub number: u8,
    /// Whether it is up.
    pub up: bool,
    /// Generation of NVLink, for example 4.
    pub version: Option<u32>,
    /// The other end.
    pub peer: LinkPeer,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// GPU memory in MiB, where the driver knows.
    pub memory_mib: Option<u64>,
    /// MIG instance, on a divided GPU.
    pub gpu_instance: Option<u32>,
    /// Compute instance, on a divided GPU.
    pub compute_instance: Option<u32>,
}

/// What happened to a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// An Xid, with the MIG instances that it names.
    Xid {
        /// Its number.
        code: u32,
        /// MIG instance.
        gpu_instance: Option<u32>,
        /// Compute instance.
        compute_instance: Option<u32>,
    },
    /// ECC errors: corrected (single-bit) or not.
    Ecc {
        /// Uncorrected.
        uncorrected: bool,
    },
    /// The recovery action changed (event 0x8000): ask [`GpuLibrary::recovery_action`].
    RecoveryAction,
    /// MIG instances were made or destroyed.
    MigChanged,
    /// The GPU has gone: no event of it comes any more.
    Lost,
    /// Another kind, by its bit.
    Other(u64),
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuEvent {
    /// NVML index.
    pub gpu: u8,
    /// What happened.
    pub what: Happening,
}

/// How busy a GPU instance was for some time, by NVML's counters (GPM).
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Share of its multiprocessors that worked, 0 to 1 (`NVML_GPM_METRIC_SM_UTIL`).
    pub sm: Answer<f64>,
    /// Share of the memory bandwidth that was used, 0 to 1 (`NVML_GPM_METRIC_DRAM_BW_UTIL`).
    pub memory: Answer<f64>,
}

/// NVIDIA's management library. GPUs are named by NVML's index, from 0 to [`GpuLibrary::count`] − 1.
///
/// Calls may block as long as the driver does: a daemon makes them in a thread that it can leave behind.
pub trait GpuLibrary: Send + Sync {
    /// Version of the driver, for example `580.95.05`.
    fn driver_version(&self) -> Answer<String>;
    /// How many GPUs there are, lost ones included.
    fn count(&self) -> Answer<u8>;
    /// Who the GPU is. Error when uuid, PCI address or name is not to be had.
    fn identity(&self, gpu: u8) -> Answer<Identity>;
    /// Its NVLinks, in the order of their numbers; none on a board without NVLink.
    fn nvlinks(&self, gpu: u8) -> Answer<Vec<NvLink>>;
    /// The PCIe path between two GPUs: [`Link::Pix`] to [`Link::Sys`], whatever NVLinks there are.
    fn path(&self, a: u8, b: u8) -> Answer<Link>;
    /// One poll. Error only when the GPU or the driver does not answer at all.
    fn sample(&self, gpu: u8) -> Answer<Sample>;
    /// What NVML wants done (field 230).
    fn recovery_action(&self, gpu: u8) -> Answer<RecoveryAction>;
    /// Processes that compute on the GPU.
    fn processes(&self, gpu: u8) -> Answer<Vec<Process>>;
    /// Waits for events of all GPUs and gives those that came; none after `timeout`. One caller at a time.
    fn wait_events(&self, timeout: Duration) -> Answer<Vec<GpuEvent>>;
    /// The power limit that was set, in milliwatts.
    fn power_limit_mw(&self, gpu: u8) -> Answer<u32>;
    /// Sets it; root only. Error when outside of the board's limits.
    fn set_power_limit_mw(&self, gpu: u8, milliwatts: u32) -> Answer<()>;
    /// Least and greatest clock of the multiprocessors, in MHz.
    fn clock_range_mhz(&self, gpu: u8) -> Answer<[u32; 2]>;
    /// Locks the GPU's clock to a range in MHz; root only.
    fn lock_clocks(&self, gpu: u8, least_mhz: u32, most_mhz: u32) -> Answer<()>;
    /// Undoes [`GpuLibrary::lock_clocks`].
    fn unlock_clocks(&self, gpu: u8) -> Answer<()>;
    /// Turns MIG mode on or off; root only. `Ok` when it is so now. [`Error::InUse`] while a process uses the GPU or it has
    /// instances, [`Error::Refused`] where the mode would wait for a reset; in both cases it stays as it was.
    fn set_mig_mode(&self, gpu: u8, on: bool) -> Answer<()>;
    /// How the GPU can be divided, the smallest profile first, for [`gpuos_model::mig::Geometry::new`]. [`Error::NotSupported`] when it is
    /// not in MIG mode.
    fn mig_profiles(&self, gpu: u8) -> Answer<Vec<Profile>>;
    /// Its GPU instances by ascending id, each with its compute instances by ascending id; none when it
    /// has no MIG or MIG mode is off.
    fn mig_instances(&self, gpu: u8) -> Answer<Vec<Shown>>;
    /// Memory of each MIG device, by its UUID: total and used MiB, or why the driver does not tell it. Compute
    /// instances of one GPU instance share its memory. None when the GPU has no MIG or MIG mode is off.
    fn mig_memory(&self, gpu: u8) -> Answer<Vec<(String, Answer<[u64; 2]>)>>;
    /// How busy each GPU instance with a compute instance was since the call of before, by its id, or why that is not
    /// known; `None` where this is the first call for it. Calls within 100 ms get the same: NVML's counters are no
    /// finer. [`Error::NotSupported`] when the GPU (before Hopper) or its driver (before 520) has no such counters.
    /// None when it has no MIG or MIG mode is off.
    fn mig_load(&self, gpu: u8) -> Answer<Vec<(u32, Answer<Option<Load>>)>>;
    /// Makes a GPU instance of the profile with this id (as in `nvidia-smi mig -lgip`) at exactly this
    /// placement; root only. Gives its id. [`Error::InsufficientResources`] when it is taken, [`Error::Refused`] when the
    /// GPU has no such profile or placement.
    fn mig_make_gpu(&self, gpu: u8, profile: u32, placement: MigPlacement) -> Answer<u32>;
    /// Makes the compute instance that takes all of a GPU instance; root only. Gives its id and UUID
    /// (`MIG-…`). [`Error::InsufficientResources`] when one is there.
    fn mig_make_compute(&self, gpu: u8, gi: u32) -> Answer<(u32, String)>;
    /// Destroys all compute instances of a GPU instance; root only. `Ok` when there is none, or no such
    /// GPU instance; [`Error::InUse`] while a process uses one.
    fn mig_destroy_compute(&self, gpu: u8, gi: u32) -> Answer<()>;
    /// Destroys a GPU instance; root only. `Ok` when it is gone; [`Error::InUse`] while compute instances
    /// are in it.
    fn mig_destroy_gpu(&self, gpu: u8, gi: u32) -> Answer<()>;
    /// Closes and opens the library again: after a reset, or when the driver was loaded anew.
    fn reopen(&self) -> Answer<()>;
}

/// Whether a power limit is one that the board takes. Boards without limits take none.
fn within(limits: Option<[u32; 3]>, milliwatts: u32) -> Answer<()> {
    let [least, _, most] = limits.ok_or(Error::NotSupported)?;
    match (least..=most).contains(&milliwatts) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "power limit {} W: this GPU takes {} W to {} W",
            milliwatts / 1000,
            least / 1000,
            most / 1000
        ))),
    }
}
