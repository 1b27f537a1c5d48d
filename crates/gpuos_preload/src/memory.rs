//! The memory of the process: ranges of extents, devices, contexts. One lock holds all of it. Who holds it is inside the gate, or moves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use gpuos_memory::policy::Policy;
use gpuos_memory::stow::Digest;
use gpuos_memory::table::{self, ExtentId, State, Table, Tier};
use gpuos_memory::trace;

use crate::driver::code;
use crate::lease;
use crate::mutant::{self, Mutant};
use crate::process::{self, BLOCK};
use crate::vmm::{self, Answer, Place};

/// Touches that are kept until the mover takes them.
pub(crate) const KEPT: usize = 4096;

/// Bytes that move at once, and room that is kept for it in host memory.
pub(crate) const BATCH: u64 = 256 << 20;

/// Attributes of devices.
const HAS_VIRTUAL_MEMORY: u64 = 102;
const NODE: u64 = 134;
const HAS_VIRTUAL_MEMORY_OF_HOST: u64 = 141;

/// Where an extent lies on NVMe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stowed {
    /// In the process's segment.
    pub(crate) at: u64,
    /// Of its pieces.
    pub(crate) digests: Vec<Digest>,
}

/// A piece of a range that is moved as a whole.
pub(crate) struct Extent {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Its physical memory; 0: it has none.
    pub(crate) handle: u64,
    pub(crate) id: ExtentId,
    /// By which the policy knows it.
    pub(crate) number: u32,
    /// It is on NVMe, and has no memory or is getting it.
    pub(crate) stowed: Option<Stowed>,
}

/// An allocation.
pub(crate) struct Range {
    pub(crate) device: i32,
    pub(crate) context: u64,
    /// As the program asked for it.
    pub(crate) asked: u64,
    /// Whole blocks.
    pub(crate) bytes: u64,
    /// It is never moved any more.
    pub(crate) pinned: bool,
    pub(crate) extents: Vec<Extent>,
    kept: table::Range,
}

/// A GPU.
pub(crate) struct Device {
    pub(crate) table: Table,
    grant: u64,
    hbm: u64,
    /// Bytes of the driver's own allocations, which are small.
    small: u64,
    /// The nearest NUMA node.
    node: i32,
    /// Addresses at which extents are copied.
    pub(crate) scratch: Option<u64>,
    /// Other devices that have access to its memory.
    peers: BTreeSet<i32>,
    pub(crate) policy: Option<Box<dyn Policy + Send>>,
}

/// An allocation that is the driver's.
struct Small {
    bytes: u64,
    device: i32,
    context: u64,
}

/// All of it.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) devices: BTreeMap<i32, Option<Device>>,
    pub(crate) ranges: BTreeMap<u64, Range>,
    small: BTreeMap<u64, Small>,
    /// Freed while a stream captured, when nobody can wait for work: given back later.
    deferred: Vec<(u64, Range)>,
    /// Contexts that work can be under way in, with the mover's stream in each.
    pub(crate) contexts: BTreeMap<u64, Option<u64>>,
    /// The primary context of each device.
    pub(crate) primaries: BTreeMap<i32, u64>,
    /// Streams that capture, default ones with their thread: no other work can be waited for meanwhile.
    pub(crate) captures: BTreeSet<(u64, i32)>,
    /// Ranges and extents by number.
    pub(crate) numbers: Vec<Option<(u64, usize)>>,
    free_numbers: Vec<u32>,
    pub(crate) touches: Vec<u32>,
    /// Arguments of kernels: offset and bytes.
    pub(crate) kernels: HashMap<u64, Arc<[(usize, usize)]>>,
}

/// Something lies in host memory.
static COLD: AtomicBool = AtomicBool::new(false);

/// Whether something lies in host memory: only then it is of use to know what a program touches.
#[inline]
pub(crate) fn is_cold() -> bool {
    COLD.load(Ordering::Relaxed)
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

/// The memory, while it is held.
pub(crate) struct Held(MutexGuard<'static, Option<Memory>>);

impl std::ops::Deref for Held {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        self.0.as_ref().expect("it was made when it was locked")
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Memory {
        self.0.as_mut().expect("it was made when it was locked")
    }
}

fn held(mut guard: MutexGuard<'static, Option<Memory>>) -> Held {
    guard.get_or_insert_with(|| Memory {
        touches: Vec::with_capacity(KEPT),
        ..Memory::default()
    });
    Held(guard)
}

/// Locks it.
pub(crate) fn lock() -> Held {
    held(MEMORY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Locks it if nobody else has it.
pub(crate) fn try_lock() -> Option<Held> {
    match MEMORY.try_lock() {
        Ok(guard) => Some(held(guard)),
        Err(TryLockError::Poisoned(guard)) => Some(held(guard.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Gives back what was freed while a stream captured, where none does any more. The caller has no lock.
pub(crate) fn reap() {
    let mut memory = lock();
    if memory.deferred.is_empty() || !memory.captures.is_empty() {
        return;
    }
    let ranges = std::mem::take(&mut memory.deferred);
    drop(memory);
    for (start, range) in ranges {
        // Nobody waits for work with the lock: what it waits for may need that.
        let done = vmm::within(range.context, vmm::synchronize);
        let mut memory = lock();
        if done == Err(code::CAPTURE_UNSUPPORTED) {
            memory.deferred.push((start, range));
        } else {
            memory.give(start, range);
            memory.look_for_cold();
        }
    }
}

impl Device {
    /// What is granted of a device. `None`: its memory cannot be in tiers.
    fn open(device: i32) -> Option<Device> {
        let grant = process::grant()?;
        let has = |attribute| vmm::attribute(attribute, device).is_ok_and(|value| value != 0);
        if !has(HAS_VIRTUAL_MEMORY) || !has(HAS_VIRTUAL_MEMORY_OF_HOST) {
            process::say(format_args!(
                "GPU {device} cannot map host memory: its memory is the driver's alone"
            ));
            return None;
        }
        let node = vmm::attribute(NODE, device).unwrap_or(0).max(0);
        for place in [Place::Device(device), Place::Node(node)] {
            if !vmm::granularity(place).is_ok_and(|bytes| bytes > 0 && BLOCK.is_multiple_of(bytes))
            {
                process::say(format_args!(
                    "GPU {device} maps memory in pieces that are not 2 MiB: its memory is the driver's alone"
                ));
                return None;
            }
        }
        let total = vmm::total(device).ok()?;
        let (bytes, hbm, host) = match lease::of(device) {
            // gpuosd's word, whatever the environment says.
            Some(lease) => {
                let hbm = lease.hbm.min(total);
                // The driver keeps some of what NVML shows.
                let bytes = lease.bytes - (lease.hbm - hbm);
                (bytes.min(grant.bytes), hbm, lease.host)
            }
            None => {
                let hbm = grant.hbm.unwrap_or(u64::MAX).min(grant.bytes).min(total);
                // What moves has room in both tiers meanwhile.
                (grant.bytes, hbm, grant.bytes - hbm + hbm.min(BATCH))
            }
        };
        Some(Device {
            table: Table::new(hbm / BLOCK, host.div_ceil(BLOCK)),
            grant: bytes,
            hbm,
            small: 0,
            node,
            scratch: None,
            peers: BTreeSet::new(),
            policy: None,
        })
    }

    /// Where a tier is.
    pub(crate) fn place(&self, device: i32, tier: Tier) -> Place {
        match tier {
            Tier::Hbm => Place::Device(device),
            Tier::Host => Place::Node(self.node),
        }
    }

    /// Small allocations take of the GPU's memory too.
    fn count_small(&mut self, more: u64, less: u64) {
        self.small = (self.small + more).saturating_sub(less);
        self.table
            .grant(Tier::Hbm, self.hbm.saturating_sub(self.small) / BLOCK);
    }
}

impl Memory {
    /// A device, as it is when it is asked for the first time.
    pub(crate) fn device(&mut self, device: i32) -> Option<&mut Device> {
        self.devices
            .entry(device)
            .or_insert_with(|| Device::open(device))
            .as_mut()
    }

    /// Bytes that the process uses of a device, in both tiers.
    fn used(&self, device: i32) -> u64 {
        let deferred = self.deferred.iter().map(|(_, range)| range);
        let ranges = self
            .ranges
            .values()
            .chain(deferred)
            .filter(|range| range.device == device);
        let small = self
            .devices
            .get(&device)
            .and_then(Option::as_ref)
            .map_or(0, |device| device.small);
        ranges.map(|range| range.bytes).sum::<u64>() + small
    }

    /// Bytes that are in the memory of devices, the driver's own small allocations among them.
    pub(crate) fn bytes_in_hbm(&self) -> u64 {
        let devices = self.devices.values().flatten();
        let used = devices.map(|device| device.table.used(Tier::Hbm) * BLOCK + device.small);
        used.sum::<u64>().saturating_sub(self.away())
    }

    /// Bytes of extents that are on NVMe, and in the memory of devices by their tables.
    fn away(&self) -> u64 {
        let away = |range: &Range| {
            let device = self.devices.get(&range.device).and_then(Option::as_ref);
            let in_hbm = |id| device.is_some_and(|it| it.table.state(id) == Ok(State::Hbm));
            let extents = range.extents.iter();
            let away = extents.filter(|extent| extent.handle == 0 && in_hbm(extent.id));
            away.map(|extent| extent.bytes).sum::<u64>()
        };
        self.ranges.values().map(away).sum()
    }

    /// What a program sees as free, and in all.
    pub(crate) fn info(&mut self, device: i32) -> Option<(u64, u64)> {
        let grant = self.device(device)?.grant;
        Some((grant.saturating_sub(self.used(device)), grant))
    }

    /// The range that an address lies in, with its start.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((*start, range))
    }

    /// A context is there.
    pub(crate) fn saw_context(&mut self, context: u64) {
        self.contexts.entry(context).or_insert(None);
    }

    /// Allocates. The device is one whose memory is in tiers.
    pub(crate) fn allocate(&mut self, device: i32, context: u64, asked: u64) -> Answer<u64> {
        let bytes = asked
            .checked_next_multiple_of(BLOCK)
            .ok_or(code::OUT_OF_MEMORY)?;
        let used = self.used(device);
        let there = self.device(device).ok_or(code::NOT_SUPPORTED)?;
        let within = used
            .checked_add(bytes)
            .is_some_and(|all| all <= there.grant);
        if !within && !mutant::is(Mutant::Grant) {
            return Err(code::OUT_OF_MEMORY);
        }
        let kept = there
            .table
            .allocate(bytes / BLOCK)
            .map_err(|_| code::OUT_OF_MEMORY)?;
        let mut range = Range {
            device,
            context,
            asked,
            bytes,
            pinned: !there.peers.is_empty(),
            extents: Vec::with_capacity(kept.extents.len()),
            kept,
        };
        let start = match vmm::reserve(bytes) {
            Ok(start) => start,
            Err(error) => {
                let _ = there.table.free(&range.kept);
                return Err(error);
            }
        };
        if let Err(error) = there.back(start, &mut range) {
            self.give(start, range);
            return Err(error);
        }
        self.saw_context(context);
        for (at, extent) in range.extents.iter_mut().enumerate() {
            extent.number = self.free_numbers.pop().unwrap_or_else(|| {
                self.numbers.push(None);
                self.numbers.len() as u32 - 1
            });
            self.numbers[extent.number as usize] = Some((start, at));
        }
        self.ranges.insert(start, range);
        self.look_for_cold();
        Ok(start)
    }

    /// Frees the range that begins here.
    pub(crate) fn free(&mut self, start: u64) {
        if let Some(range) = self.forget(start) {
            self.give(start, range);
            self.look_for_cold();
        }
    }

    /// Frees it later: see [`reap`].
    pub(crate) fn defer(&mut self, start: u64) {
        if let Some(range) = self.forget(start) {
            self.deferred.push((start, range));
        }
    }

    fn forget(&mut self, start: u64) -> Option<Range> {
        let range = self.ranges.remove(&start)?;
        for extent in &range.extents {
            self.numbers[extent.number as usize] = None;
            self.free_numbers.push(extent.number);
            let device = self.devices.get_mut(&range.device).and_then(Option::as_mut);
            if let Some(policy) = device.and_then(|device| device.policy.as_mut()) {
                policy.freed(trace::Extent(extent.number));
            }
        }
        Some(range)
    }

    /// Gives everything of a range back to the driver.
    fn give(&mut self, start: u64, range: Range) {
        for extent in range.extents.iter().filter(|extent| extent.handle != 0) {
            let _ = vmm::unmap(extent.at, extent.bytes);
            vmm::release(extent.handle);
        }
        let _ = vmm::unreserve(start, range.bytes);
        if let Some(device) = self.device(range.device) {
            let _ = device.table.free(&range.kept);
        }
    }

    pub(crate) fn look_for_cold(&self) {
        let mut devices = self.devices.values().flatten();
        COLD.store(
            devices.any(|device| device.table.used(Tier::Host) > 0),
            Ordering::Relaxed,
        );
    }

    /// Pins every range that one of these words is an address in. Answers whether there was one.
    pub(crate) fn pin(&mut self, words: &[u64]) -> bool {
        let starts: Vec<u64> = words
            .iter()
            .filter_map(|word| Some(self.around(*word)?.0))
            .collect();
        for start in &starts {
            if let Some(range) = self.ranges.get_mut(start) {
                range.pinned = true;
            }
        }
        !starts.is_empty()
    }

    /// Another device has access to all memory of a device, as to the driver's own allocations: none of it is moved any more.
    pub(crate) fn peer(&mut self, device: i32, other: i32) -> Answer<()> {
        let Some(there) = self.device(device) else {
            return Ok(());
        };
        there.peers.insert(other);
        let devices = there.sharers(device);
        for (start, range) in self
            .ranges
            .iter_mut()
            .filter(|(_, range)| range.device == device)
        {
            range.pinned = true;
            vmm::access(*start, range.bytes, &devices, true)?;
        }
        Ok(())
    }

    /// An allocation of the driver's own.
    pub(crate) fn saw_small(&mut self, at: u64, bytes: u64, device: i32, context: u64) {
        if let Some(there) = self.device(device) {
            there.count_small(bytes, 0);
            self.small.insert(
                at,
                Small {
                    bytes,
                    device,
                    context,
                },
            );
            self.saw_context(context);
        }
    }

    /// One of those is freed.
    pub(crate) fn freed_small(&mut self, at: u64) {
        if let Some(small) = self.small.remove(&at)
            && let Some(there) = self.device(small.device)
        {
            there.count_small(0, small.bytes);
        }
    }

    /// A context has ended, and with it what was allocated in it.
    pub(crate) fn end_context(&mut self, context: u64) {
        let ranges = self
            .ranges
            .iter()
            .filter(|(_, range)| range.context == context);
        for start in ranges.map(|(start, _)| *start).collect::<Vec<u64>>() {
            self.free(start);
        }
        let deferred = std::mem::take(&mut self.deferred);
        let (ended, others): (Vec<_>, Vec<_>) = deferred
            .into_iter()
            .partition(|(_, range)| range.context == context);
        self.deferred = others;
        for (start, range) in ended {
            self.give(start, range);
        }
        let small = self
            .small
            .iter()
            .filter(|(_, small)| small.context == context);
        for at in small.map(|(at, _)| *at).collect::<Vec<u64>>() {
            self.freed_small(at);
        }
        self.contexts.remove(&context);
        self.kernels.clear();
    }
}

impl Device {
    /// All devices that have access to its memory.
    pub(crate) fn sharers(&self, device: i32) -> Vec<i32> {
        std::iter::once(device)
            .chain(self.peers.iter().copied())
            .collect()
    }

    /// Puts physical memory behind a range. What could not be is not in its extents.
    fn back(&mut self, start: u64, range: &mut Range) -> Answer<()> {
        let mut at = start;
        for id in range.kept.extents.clone() {
            let bytes = self.table.blocks(id).map_or(0, |blocks| blocks * BLOCK);
            let handle = self.create(range.device, id, bytes)?;
            if let Err(error) = vmm::map(at, bytes, handle) {
                vmm::release(handle);
                return Err(error);
            }
            range.extents.push(Extent {
                at,
                bytes,
                handle,
                id,
                number: 0,
                stowed: None,
            });
            at += bytes;
        }
        vmm::access(start, range.bytes, &self.sharers(range.device), true)
    }

    /// Physical memory for a new extent. The GPU may have less than was granted: then it is the host's.
    fn create(&mut self, device: i32, id: ExtentId, bytes: u64) -> Answer<u64> {
        let tier = match self.table.state(id) {
            Ok(State::Host) => Tier::Host,
            _ => Tier::Hbm,
        };
        match vmm::create(bytes, self.place(device, tier)) {
            Err(code::OUT_OF_MEMORY) if tier == Tier::Hbm => {
                let begun = self
                    .table
                    .begin(id, Tier::Host)
                    .and_then(|_| self.table.end(id, true));
                begun.map_err(|_| code::OUT_OF_MEMORY)?;
                vmm::create(bytes, self.place(device, Tier::Host))
            }
            created => created,
        }
    }
}
