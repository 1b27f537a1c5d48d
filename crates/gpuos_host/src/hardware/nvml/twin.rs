//! A node's GPUs in memory, for tests: what each method answers is what was put in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuos_core::mig::Shown;
use gpuos_model::cluster::{Link, NodeType};
use gpuos_model::mig::{MigPlacement, Profile};

use super::{
    Answer, Error, FabricDomain, GpuEvent, GpuLibrary, Happening, Identity, LinkPeer, Load, NvLink,
    Process, RecoveryAction, Sample,
};

/// One GPU of the twin. All fields may be changed at any time.
#[derive(Clone, Debug, Default)]
pub struct TwinGpu {
    /// Who it is.
    pub identity: Identity,
    /// Its NVLinks.
    pub nvlinks: Vec<NvLink>,
    /// What a poll finds. [`GpuLibrary::recovery_action`] answers from it too.
    pub sample: Sample,
    /// What runs on it.
    pub processes: Vec<Process>,
    /// Power limit in milliwatts.
    pub power_limit_mw: u32,
    /// Clock range in MHz, when locked.
    pub clocks: Option<(u32, u32)>,
    /// How it can be divided; [`Twin::divide`] turns MIG mode on with it.
    pub mig_profiles: Vec<Profile>,
    /// Its GPU instances. Whether a process uses one is told by `processes`, not here.
    pub mig_instances: Vec<Shown>,
    /// Its MIG mode changes with a reset only.
    pub mig_waits: bool,
    /// Whether it has counters of how busy instances are.
    pub gpm: bool,
    /// Busy shares of GPU instances by id, multiprocessors and memory bandwidth; 0 of those that are not here.
    pub mig_loads: BTreeMap<u32, [f64; 2]>,
    /// Of which instances counters are kept.
    pub(super) counted: BTreeSet<u32>,
    /// What every call for this GPU answers, when set.
    pub fault: Option<Error>,
}

#[derive(Debug, Default)]
struct State {
    gpus: Vec<TwinGpu>,
    paths: Vec<Link>,
    events: VecDeque<GpuEvent>,
    fault: Option<Error>,
    /// Calls block until then.
    silent_until: Option<Instant>,
    reopened: u32,
    /// Compute instances made so far: no UUID comes twice.
    computes: u64,
}

/// The twin. Clones of an `Arc` of it are how a test and the code under test share it.
#[derive(Debug, Default)]
pub struct Twin {
    state: Mutex<State>,
    changed: Condvar,
}

impl Twin {
    /// The GPUs of a node type, healthy and idle.
    pub fn of(node_type: &NodeType) -> Twin {
        let count = node_type.gpus;
        let gpu = |index: usize| gpu_of(node_type, index);
        let paths = (0..count * count).map(|pair| pcie(node_type, pair / count, pair % count));
        let state = State {
            gpus: (0..count).map(gpu).collect(),
            paths: paths.collect(),
            ..State::default()
        };
        Twin {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a GPU. Nothing happens for an index that there is not.
    pub fn change(&self, gpu: u8, work: impl FnOnce(&mut TwinGpu)) {
        if let Some(gpu) = self.lock().gpus.get_mut(usize::from(gpu)) {
            work(gpu);
        }
    }

    /// Makes an event happen.
    pub fn happen(&self, gpu: u8, what: Happening) {
        self.lock().events.push_back(GpuEvent { gpu, what });
        self.changed.notify_all();
    }

    /// An Xid without MIG instances.
    pub fn xid(&self, gpu: u8, code: u32) {
        let what = Happening::Xid {
            code,
            gpu_instance: None,
            compute_instance: None,
        };
        self.happen(gpu, what);
    }

    /// The GPU falls off the bus: its calls fail, and those who wait are told.
    pub fn lose(&self, gpu: u8) {
        self.change(gpu, |gpu| gpu.fault = Some(Error::Lost));
        self.happen(gpu, Happening::Lost);
    }

    /// Every call answers this, or works again.
    pub fn fail(&self, fault: Option<Error>) {
        self.lock().fault = fault;
    }

    /// Every call blocks for that long, as with a driver that hangs.
    pub fn hang(&self, time: Duration) {
        self.lock().silent_until = Some(Instant::now() + time);
    }

    /// Ends [`Twin::hang`].
    pub fn wake(&self) {
        self.lock().silent_until = None;
        self.changed.notify_all();
    }

    /// How often [`GpuLibrary::reopen`] was called.
    pub fn reopened(&self) -> u32 {
        self.lock().reopened
    }

    /// The state, once nothing hangs.
    fn awake(&self) -> Answer<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while let Some(until) = state.silent_until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.silent_until = None;
                break;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        match &state.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(state),
        }
    }

    pub(super) fn with<T>(
        &self,
        gpu: u8,
        work: impl FnOnce(&mut TwinGpu) -> Answer<T>,
    ) -> Answer<T> {
        let mut state = self.awake()?;
        let found = state.gpus.get_mut(usize::from(gpu));
        let gpu = found.ok_or(Error::NoSuchGpu)?;
        match &gpu.fault {
            Some(fault) => Err(fault.clone()),
            None => work(gpu),
        }
    }
}

/// The PCIe part of a link: of GPUs that NVLink joins the node type says no more than their NUMA nodes.
fn pcie(node_type: &NodeType, a: usize, b: usize) -> Link {
    match node_type.link(a, b) {
        Link::Nv(_) if node_type.numa[a] == node_type.numa[b] => Link::Node,
        Link::Nv(_) => Link::Sys,
        other => other,
    }
}

fn gpu_of(node_type: &NodeType, index: usize) -> TwinGpu {
    let bus = 0x10 + 8 * index;
    let address = |gpu: usize| format!("0000:{:02x}:00.0", 0x10 + 8 * gpu);
    // Through a switch every link serves every pair; a bridge's links belong to one peer.
    let peers = (0..node_type.gpus).filter_map(|peer| match node_type.link(index, peer) {
        Link::Nv(count) => Some((peer, usize::from(count))),
        _ => None,
    });
    let ends: Vec<LinkPeer> = match node_type.nvswitch {
        true => {
            let count = peers.map(|(_, count)| count).max().unwrap_or(0);
            vec![LinkPeer::Switch; count]
        }
        false => peers
            .flat_map(|(peer, count)| vec![LinkPeer::Gpu(address(peer)); count])
            .collect(),
    };
    let nvlinks: Vec<NvLink> = (0..)
        .zip(ends)
        .map(|(number, peer)| NvLink {
            number,
            up: true,
            version: None,
            peer,
        })
        .collect();
    let watts = node_type.figures.gpu_watts * 1000;
    let cores = u32::from(node_type.cores_per_socket);
    let first = u32::from(node_type.numa[index]) * cores;
    let sample = Sample {
        celsius: Some(35),
        power_mw: Some(watts / 8),
        power_limit_mw: Some(watts),
        clock_reasons: Some(1),
        thermal_ns: Some(0),
        power_brake_ns: Some(0),
        busy_percent: Some(0),
        memory_used_mib: Some(0),
        ecc_corrected: Some(0),
        ecc_uncorrected: Some(0),
        nvlinks: nvlinks.iter().fold(0, |set, link| set | 1 << link.number),
        recovery_action: Some(0),
        processes: Some(0),
        ..Sample::default()
    };
    TwinGpu {
        identity: Identity {
            uuid: format!("GPU-00000000-0000-4000-8000-{bus:012x}"),
            minor: Some(index as u32),
            pci: address(index),
            name: node_type.gpu.clone(),
            memory_mib: node_type.gpu_memory_mib,
            mig: None,
            fabric: node_type.nvswitch.then(|| FabricDomain {
                cluster: "0".repeat(32),
                clique: 0,
            }),
            numa: vec![node_type.numa[index]],
            cpus: (first..first + cores).collect(),
            power_limits_mw: (watts > 0).then_some([watts / 4, watts, watts]),
        },
        nvlinks,
        sample,
        power_limit_mw: watts,
        ..TwinGpu::default()
    }
}

impl GpuLibrary for Twin {
    fn driver_version(&self) -> Answer<String> {
        self.awake().map(|_| "580.95.05".into())
    }

    fn count(&self) -> Answer<u8> {
        Ok(self.awake()?.gpus.len() as u8)
    }

    fn identity(&self, gpu: u8) -> Answer<Identity> {
        self.with(gpu, |gpu| Ok(gpu.identity.clone()))
    }

    fn nvlinks(&self, gpu: u8) -> Answer<Vec<NvLink>> {
        self.with(gpu, |gpu| Ok(gpu.nvlinks.clone()))
    }

    fn path(&self, a: u8, b: u8) -> Answer<Link> {
        let state = self.awake()?;
        let (a, b, count) = (usize::from(a), usize::from(b), state.gpus.len());
        match a < count && b < count {
            true => Ok(state.paths[a * count + b]),
            false => Err(Error::NoSuchGpu),
        }
    }

    fn sample(&self, gpu: u8) -> Answer<Sample> {
        self.with(gpu, |gpu| Ok(gpu.sample.clone()))
    }

    fn recovery_action(&self, gpu: u8) -> Answer<RecoveryAction> {
        self.with(gpu, |gpu| {
            let action = gpu.sample.recovery_action.ok_or(Error::NotSupported)?;
            Ok(RecoveryAction::from_nvml(action))
        })
    }

    fn processes(&self, gpu: u8) -> Answer<Vec<Process>> {
        self.with(gpu, |gpu| Ok(gpu.processes.clone()))
    }

    fn wait_events(&self, timeout: Duration) -> Answer<Vec<GpuEvent>> {
        let end = Instant::now() + timeout;
        let mut state = self.awake()?;
        while state.events.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.events.drain(..).collect())
    }

    fn power_limit_mw(&self, gpu: u8) -> Answer<u32> {
        self.with(gpu, |gpu| Ok(gpu.power_limit_mw))
    }

    fn set_power_limit_mw(&self, gpu: u8, milliwatts: u32) -> Answer<()> {
        self.with(gpu, |gpu| {
            super::within(gpu.identity.power_limits_mw, milliwatts)?;
            gpu.power_limit_mw = milliwatts;
            gpu.sample.power_limit_mw = Some(milliwatts);
            Ok(())
        })
    }

    fn clock_range_mhz(&self, gpu: u8) -> Answer<[u32; 2]> {
        self.with(gpu, |_| Ok([345, 1980]))
    }

    fn lock_clocks(&self, gpu: u8, least_mhz: u32, most_mhz: u32) -> Answer<()> {
        self.with(gpu, |gpu| {
            gpu.clocks = Some((least_mhz, most_mhz));
            Ok(())
        })
    }

    fn unlock_clocks(&self, gpu: u8) -> Answer<()> {
        self.with(gpu, |gpu| {
            gpu.clocks = None;
            Ok(())
        })
    }

    fn set_mig_mode(&self, gpu: u8, on: bool) -> Answer<()> {
        self.with(gpu, |gpu| gpu.set_mig_mode(on))
    }

    fn mig_profiles(&self, gpu: u8) -> Answer<Vec<Profile>> {
        self.with(gpu, |gpu| gpu.profiles())
    }

    fn mig_instances(&self, gpu: u8) -> Answer<Vec<Shown>> {
        self.with(gpu, |gpu| Ok(gpu.instances()))
    }

    fn mig_memory(&self, gpu: u8) -> Answer<Vec<(String, Answer<[u64; 2]>)>> {
        self.with(gpu, |gpu| Ok(gpu.memory()))
    }

    fn mig_load(&self, gpu: u8) -> Answer<Vec<(u32, Answer<Option<Load>>)>> {
        self.with(gpu, |gpu| gpu.loads())
    }

    fn mig_make_gpu(&self, gpu: u8, profile: u32, placement: MigPlacement) -> Answer<u32> {
        self.changes(gpu, |gpu| gpu.make_gpu(profile, placement))
    }

    fn mig_make_compute(&self, gpu: u8, gi: u32) -> Answer<(u32, String)> {
        let serial = {
            let mut state = self.lock();
            state.computes += 1;
            state.computes
        };
        self.changes(gpu, |gpu| gpu.make_compute(gi, serial))
    }

    fn mig_destroy_compute(&self, gpu: u8, gi: u32) -> Answer<()> {
        self.changes(gpu, |gpu| gpu.destroy_compute(gi))
    }

    fn mig_destroy_gpu(&self, gpu: u8, gi: u32) -> Answer<()> {
        self.changes(gpu, |gpu| gpu.destroy_gpu(gi))
    }

    fn reopen(&self) -> Answer<()> {
        let mut state = self.awake()?;
        state.reopened += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twin(name: &str) -> Twin {
        Twin::of(&gpuos_model::node_types::by_name(name).unwrap())
    }

    #[test]
    fn shows_the_node_type() {
        let twin = twin("dgx-h100");
        assert_eq!(twin.count(), Ok(8));
        assert_eq!(twin.identity(3).unwrap().name, "NVIDIA H100 80GB HBM3");
        assert_eq!(twin.nvlinks(0).unwrap().len(), 18);
        assert_eq!(twin.path(0, 7), Ok(Link::Sys));
        assert_eq!(twin.identity(8), Err(Error::NoSuchGpu));
    }

    #[test]
    fn faults_and_events_reach_those_who_ask() {
        let twin = twin("l40s-8");
        twin.xid(2, 79);
        twin.lose(2);
        let events = twin.wait_events(Duration::ZERO).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].what, Happening::Lost);
        assert_eq!(twin.sample(2), Err(Error::Lost));
        assert!(twin.sample(1).is_ok() && twin.nvlinks(1).unwrap().is_empty());
        twin.fail(Some(Error::Timeout));
        assert_eq!(twin.count(), Err(Error::Timeout));
    }

    #[test]
    fn a_limit_outside_of_the_boards_is_refused() {
        let twin = twin("dgx-h100");
        twin.set_power_limit_mw(0, 300_000).unwrap();
        assert_eq!(twin.power_limit_mw(0), Ok(300_000));
        let refused = twin.set_power_limit_mw(0, 900_000).unwrap_err();
        assert!(refused.to_string().contains("175 W to 700 W"), "{refused}");
        assert_eq!(twin.power_limit_mw(0), Ok(300_000));
    }
}
