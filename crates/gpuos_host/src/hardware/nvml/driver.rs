//! [`GpuLibrary`] on the driver's library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use gpuos_core::mig::Shown;
use gpuos_model::cluster::Link;
use gpuos_model::mig::{MigPlacement, Profile};
use nvml_wrapper_sys::bindings as nvml;

use super::events::Listener;
use super::fields::Numbering;
use super::gpm::Gpm;
use super::mig;
use super::poll::poll;
use super::raw::{Device, Raw, text};
use super::{
    Answer, Error, FabricDomain, GpuEvent, GpuLibrary, Happening, Identity, LinkPeer, Load,
    MigMode, NvLink, Process, RecoveryAction, Sample,
};

/// The name that the loader searches; the driver's packages provide it.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// NVLinks that a GPU can have, by NVML's header.
pub(super) const MAX_LINKS: u32 = nvml::NVML_NVLINK_MAX_LINKS;

/// How long [`Driver::reopen`] waits for calls that still run.
const REOPEN_WAIT: Duration = Duration::from_secs(5);
/// How long a wait for events keeps the library from being reopened.
const SLICE: Duration = Duration::from_millis(100);

/// What is known while the library is initialised.
pub(super) struct Session {
    /// Handles by index; for a GPU without one, the reason.
    pub devices: Vec<Answer<Device>>,
    /// The driver's numbers of field values.
    pub numbering: Numbering,
    /// Counters of GPU instances, by index of the GPU. They are freed with the session, before the library is closed.
    gpms: Vec<Gpm>,
}

/// The driver's library, opened at run time. One for a process is enough; it may be shared by threads.
pub struct Driver {
    raw: Arc<Raw>,
    // Calls hold it for reading, `reopen` for writing: handles are valid within a session.
    session: RwLock<Answer<Session>>,
    listener: Mutex<Listener>,
    reopening: AtomicBool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let closed = Err(Error::Closed);
        let session = self.session.get_mut();
        let session = session.unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(session, closed).is_ok() {
            let _ = self.raw.shutdown();
        }
    }
}

impl Session {
    fn begin(raw: &Raw) -> Answer<Session> {
        let numbering = Numbering::of_driver(&raw.driver_version()?);
        let count = raw.count()?.min(u8::MAX.into());
        Ok(Session {
            devices: (0..count).map(|index| raw.device(index)).collect(),
            numbering,
            gpms: (0..count).map(|_| Gpm::default()).collect(),
        })
    }

    fn gpm(&self, gpu: u8) -> Answer<&Gpm> {
        self.gpms.get(usize::from(gpu)).ok_or(Error::NoSuchGpu)
    }
}

impl Driver {
    /// Opens [`LIBRARY`], or the file that `path` names.
    pub fn open(path: Option<&str>) -> Answer<Driver> {
        let raw = Raw::open(path.unwrap_or(LIBRARY))?;
        let session = Session::begin(&raw);
        if let Err(error) = &session {
            let _ = raw.shutdown();
            return Err(error.clone());
        }
        Ok(Driver {
            raw: Arc::new(raw),
            session: RwLock::new(session),
            listener: Mutex::default(),
            reopening: AtomicBool::new(false),
        })
    }

    fn session(&self) -> RwLockReadGuard<'_, Answer<Session>> {
        self.session.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, gpu: u8, work: impl FnOnce(&Session, Device) -> Answer<T>) -> Answer<T> {
        let guard = self.session();
        let session = guard.as_ref().map_err(Clone::clone)?;
        let known = session.devices.get(usize::from(gpu));
        let device = match known.ok_or(Error::NoSuchGpu)? {
            Ok(device) => *device,
            // It had no handle when the library was opened: it may have come back.
            Err(_) => self.raw.device(gpu.into())?,
        };
        work(session, device)
    }
}

/// A value, unless the board or the driver does not have it. Errors of the GPU or the driver as a whole stay.
pub(super) fn optional<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_silence() => Err(error),
        Err(_) => Ok(None),
    }
}

/// The PCI address as the kernel writes it. NVML's domain has 8 digits, the kernel's 4 or more.
fn address(pci: &nvml::nvmlPciInfo_t) -> String {
    let name = text(&pci.busId).to_ascii_lowercase();
    let function = name.rsplit_once('.').map_or("0", |(_, function)| function);
    format!(
        "{:04x}:{:02x}:{:02x}.{function}",
        pci.domain, pci.bus, pci.device
    )
}

/// Memory affinity may name nodes that are GPUs themselves; only those with a number that fits are kept.
fn small(nodes: Vec<u32>) -> Vec<u16> {
    nodes
        .into_iter()
        .filter_map(|node| node.try_into().ok())
        .collect()
}

/// The generation of NVLink, of NVML's number for its versions (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0).
fn generation(version: u32) -> Option<u32> {
    [1, 2, 2, 3, 3, 4, 5]
        .get(version.checked_sub(1)? as usize)
        .copied()
}

/// An instance id, unless there is none.
pub(super) fn instance(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

impl GpuLibrary for Driver {
    fn driver_version(&self) -> Answer<String> {
        let guard = self.session();
        guard.as_ref().map_err(Clone::clone)?;
        self.raw.driver_version()
    }

    fn count(&self) -> Answer<u8> {
        let guard = self.session();
        Ok(guard.as_ref().map_err(Clone::clone)?.devices.len() as u8)
    }

    fn identity(&self, gpu: u8) -> Answer<Identity> {
        let raw = &self.raw;
        self.with(gpu, |_, device| {
            let mig = match optional(raw.mig_mode(device))? {
                Some([on, pending]) => Some(MigMode {
                    on,
                    pending,
                    most: optional(raw.max_mig_devices(device))?.unwrap_or(0),
                }),
                None => None,
            };
            let done = nvml::NVML_GPU_FABRIC_STATE_COMPLETED as u8;
            let fabric = optional(raw.fabric(device))?.filter(|(state, ..)| *state == done);
            let limits = optional(raw.limits(device))?;
            Ok(Identity {
                uuid: raw.uuid(device)?,
                minor: optional(raw.minor(device))?,
                pci: address(&raw.pci(device)?),
                name: raw.name(device)?,
                memory_mib: raw.memory(device)?[0] >> 20,
                mig,
                fabric: fabric.map(|(_, cluster, clique)| FabricDomain {
                    cluster: cluster.iter().map(|byte| format!("{byte:02x}")).collect(),
                    clique,
                }),
                numa: small(optional(raw.numa(device))?.unwrap_or_default()),
                cpus: optional(raw.cpus(device))?.unwrap_or_default(),
                power_limits_mw: match limits {
                    Some([least, most]) => {
                        let default = optional(raw.default_limit(device))?;
                        Some([least, default.unwrap_or(most), most])
                    }
                    None => None,
                },
            })
        })
    }

    fn nvlinks(&self, gpu: u8) -> Answer<Vec<NvLink>> {
        let raw = &self.raw;
        self.with(gpu, |_, device| {
            let mut links: Vec<NvLink> = Vec::new();
            for number in 0..MAX_LINKS {
                let Some(up) = optional(raw.link_state(device, number))? else {
                    continue;
                };
                let kind = optional(raw.link_peer_kind(device, number))?;
                let peer = match kind {
                    Some(nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH) => {
                        LinkPeer::Switch
                    }
                    Some(nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU) => {
                        let pci = optional(raw.link_peer(device, number))?;
                        pci.map_or(LinkPeer::Unknown, |pci| LinkPeer::Gpu(address(&pci)))
                    }
                    _ => LinkPeer::Unknown,
                };
                // All links of a GPU are of one generation.
                let version = match links.first() {
                    Some(first) => first.version,
                    None => optional(raw.link_version(device, number))?.and_then(generation),
                };
                links.push(NvLink {
                    number: number as u8,
                    up: up == 1,
                    version,
                    peer,
                });
            }
            Ok(links)
        })
    }

    fn path(&self, a: u8, b: u8) -> Answer<Link> {
        if a == b {
            return Ok(Link::Same);
        }
        let first = self.with(a, |_, device| Ok(device))?;
        self.with(b, |_, second| {
            Ok(match self.raw.ancestor(first, second)? {
                nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL
                | nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE => Link::Pix,
                nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE => Link::Pxb,
                nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE => Link::Phb,
                nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE => Link::Node,
                _ => Link::Sys,
            })
        })
    }

    fn sample(&self, gpu: u8) -> Answer<Sample> {
        self.with(gpu, |session, device| poll(&self.raw, session, device))
    }

    fn recovery_action(&self, gpu: u8) -> Answer<RecoveryAction> {
        let ask = [(nvml::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)];
        self.with(gpu, |_, device| {
            let found = self.raw.fields(device, &ask)?.pop();
            found
                .unwrap_or(Err(Error::NotSupported))
                .map(|value| RecoveryAction::from_nvml(value as u32))
        })
    }

    fn processes(&self, gpu: u8) -> Answer<Vec<Process>> {
        self.with(gpu, |_, device| {
            let mut all = self.raw.processes(device, false)?;
            all.extend(optional(self.raw.processes(device, true))?.unwrap_or_default());
            let mut list: Vec<Process> = all
                .iter()
                .map(|process| Process {
                    pid: process.pid,
                    memory_mib: (process.usedGpuMemory != u64::MAX)
                        .then_some(process.usedGpuMemory >> 20),
                    gpu_instance: instance(process.gpuInstanceId),
                    compute_instance: instance(process.computeInstanceId),
                })
                .collect();
            list.sort_by_key(|p| (p.pid, p.gpu_instance, p.compute_instance));
            list.dedup_by_key(|p| (p.pid, p.gpu_instance, p.compute_instance));
            Ok(list)
        })
    }

    fn wait_events(&self, timeout: Duration) -> Answer<Vec<GpuEvent>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let found = {
                let guard = self.session();
                let session = guard.as_ref().map_err(Clone::clone)?;
                let found = self
                    .listener()
                    .listen(&self.raw, session, left.min(SLICE))?;
                let changed = found.iter().filter(|e| e.what == Happening::MigChanged);
                for gpm in changed.filter_map(|e| session.gpms.get(usize::from(e.gpu))) {
                    gpm.changed();
                }
                found
            };
            let over = left.is_zero() || self.reopening.load(Ordering::Relaxed);
            if over || !found.is_empty() {
                return Ok(found);
            }
        }
    }

    fn power_limit_mw(&self, gpu: u8) -> Answer<u32> {
        self.with(gpu, |_, device| self.raw.power_limit(device))
    }

    fn set_power_limit_mw(&self, gpu: u8, milliwatts: u32) -> Answer<()> {
        let raw = &self.raw;
        self.with(gpu, |_, device| {
            let [least, most] = raw.limits(device)?;
            super::within(Some([least, most, most]), milliwatts)?;
            raw.set_power_limit(device, milliwatts)
        })
    }

    fn clock_range_mhz(&self, gpu: u8) -> Answer<[u32; 2]> {
        self.with(gpu, |_, device| self.raw.clock_range(device))
    }

    fn lock_clocks(&self, gpu: u8, least_mhz: u32, most_mhz: u32) -> Answer<()> {
        self.with(gpu, |_, device| {
            self.raw.lock_clocks(device, least_mhz, most_mhz)
        })
    }

    fn unlock_clocks(&self, gpu: u8) -> Answer<()> {
        self.with(gpu, |_, device| self.raw.unlock_clocks(device))
    }

    fn set_mig_mode(&self, gpu: u8, on: bool) -> Answer<()> {
        self.with(gpu, |_, device| mig::set_mode(&self.raw, device, on))
    }

    fn mig_profiles(&self, gpu: u8) -> Answer<Vec<Profile>> {
        self.with(gpu, |_, device| mig::profiles(&self.raw, device))
    }

    fn mig_instances(&self, gpu: u8) -> Answer<Vec<Shown>> {
        self.with(gpu, |_, device| mig::instances(&self.raw, device))
    }

    fn mig_memory(&self, gpu: u8) -> Answer<Vec<(String, Answer<[u64; 2]>)>> {
        self.with(gpu, |_, device| mig::memory(&self.raw, device))
    }

    fn mig_load(&self, gpu: u8) -> Answer<Vec<(u32, Answer<Option<Load>>)>> {
        self.with(gpu, |session, device| {
            session.gpm(gpu)?.loads(&self.raw, device)
        })
    }

    fn mig_make_gpu(&self, gpu: u8, profile: u32, placement: MigPlacement) -> Answer<u32> {
        self.with(gpu, |session, device| {
            let gi = mig::make_gpu(&self.raw, device, profile, placement)?;
            session.gpm(gpu)?.made(gi);
            Ok(gi)
        })
    }

    fn mig_make_compute(&self, gpu: u8, gi: u32) -> Answer<(u32, String)> {
        self.with(gpu, |_, device| mig::make_compute(&self.raw, device, gi))
    }

    fn mig_destroy_compute(&self, gpu: u8, gi: u32) -> Answer<()> {
        self.with(gpu, |_, device| mig::destroy_compute(&self.raw, device, gi))
    }

    fn mig_destroy_gpu(&self, gpu: u8, gi: u32) -> Answer<()> {
        self.with(gpu, |session, device| {
            session.gpm(gpu)?.going(gi);
            mig::destroy_gpu(&self.raw, device, gi)
        })
    }

    fn reopen(&self) -> Answer<()> {
        self.reopening.store(true, Ordering::Relaxed);
        let end = Instant::now() + REOPEN_WAIT;
        // Not a plain `write`: behind a call that hangs in the driver it would block all others.
        let done = loop {
            match self.session.try_write() {
                Ok(mut session) => break Ok(self.renew(&mut session)),
                Err(TryLockError::Poisoned(lock)) => break Ok(self.renew(&mut lock.into_inner())),
                Err(TryLockError::WouldBlock) if Instant::now() > end => break Err(Error::Timeout),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        self.reopening.store(false, Ordering::Relaxed);
        done?
    }
}

impl Driver {
    fn renew(&self, session: &mut Answer<Session>) -> Answer<()> {
        self.listener().stop(&self.raw);
        if std::mem::replace(session, Err(Error::Closed)).is_ok() {
            let _ = self.raw.shutdown();
        }
        *session = self.raw.init().and_then(|()| {
            let begun = Session::begin(&self.raw);
            if begun.is_err() {
                let _ = self.raw.shutdown();
            }
            begun
        });
        session.as_ref().map(|_| ()).map_err(Clone::clone)
    }
}
