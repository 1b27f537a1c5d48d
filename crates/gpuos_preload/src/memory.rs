//! The memory of the process: ranges of extents, devices, contexts. One lock holds all of it. Who holds it is inside the gate, or moves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use gpuos_driver::Prop;
use gpuos_memory::table::{State, Tier};
use gpuos_memory::trace;

use crate::device::Device;
use crate::driver::code;
use crate::graphs::Graphs;
use crate::lease::Lease;
use crate::maps::{FIRST_HANDLE, Held as Holding, Maps};
use crate::mutant::{self, Mutant};
use crate::process::BLOCK;
use crate::range::{Context, Freed, Native, Ordered, Pool, Range, Small};
use crate::recorder::Recorder;
use crate::vmm::{self, Answer};
use crate::watch;

/// Touches that are kept until the mover takes them.
pub(crate) const KEPT: usize = 4096;

/// What was touched.
#[derive(Clone, Copy)]
pub(crate) enum Touch {
    /// An extent, by its number.
    Extent(u32),
    /// What a graph touches, by its executable form.
    Graph(u64),
}

/// All of it.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) devices: BTreeMap<i32, Option<Device>>,
    /// By address; physical memory that the program maps itself by its handle, which is no address.
    pub(crate) ranges: BTreeMap<u64, Range>,
    /// Handles of physical memory that is not moved.
    pub(crate) natives: BTreeMap<u64, Native>,
    /// What the program has mapped of both.
    pub(crate) maps: Maps,
    /// How far from the first one the next virtual handle is.
    next_handle: u64,
    pub(crate) small: BTreeMap<u64, Small>,
    /// Pools that were seen, by their handle.
    pub(crate) pools: BTreeMap<u64, Pool>,
    /// Freed in the order of a stream that has not come there yet, or kept for the next who allocates.
    pub(crate) ordered: Vec<Ordered>,
    /// Freed while a stream captured, when nobody can wait for work: given back later.
    deferred: Vec<(u64, Range)>,
    /// Contexts that work can be under way in.
    pub(crate) contexts: BTreeMap<u64, Context>,
    /// The primary context of each device.
    pub(crate) primaries: BTreeMap<i32, u64>,
    /// Streams that capture, default ones with their thread: no other work can be waited for meanwhile.
    pub(crate) captures: BTreeSet<(u64, i32)>,
    /// Ranges and extents by number.
    pub(crate) numbers: Vec<Option<(u64, usize)>>,
    free_numbers: Vec<u32>,
    pub(crate) touches: Vec<Touch>,
    /// Extents that somebody waits for to be in the memory of their GPU.
    pub(crate) asked: BTreeSet<u32>,
    /// When each extent was touched last, by its number, as [`crate::figures`] counts.
    pub(crate) touched: Vec<u64>,
    /// Nothing runs until the process has its turn: what leaves for host memory need not be where the program sees it.
    pub(crate) parked: bool,
    /// Arguments of kernels: offset and bytes.
    pub(crate) kernels: HashMap<u64, Arc<[(usize, usize)]>>,
    /// What graphs touch.
    pub(crate) graphs: Graphs,
    /// Who writes down what is touched.
    pub(crate) recorder: Option<Box<Recorder>>,
}

/// Whether one of these words is an address in memory of ours.
pub(crate) fn knows(words: &[u64]) -> bool {
    if crate::gate::is_off() {
        return false;
    }
    let memory = lock();
    words
        .iter()
        .any(|word| memory.at(memory.place(*word)).is_some())
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

impl Memory {
    /// A device, as it is when it is asked for the first time.
    pub(crate) fn device(&mut self, device: i32) -> Option<&mut Device> {
        self.devices
            .entry(device)
            .or_insert_with(|| Device::open(device))
            .as_mut()
    }

    /// Notes that an extent was touched.
    pub(crate) fn touched_at(&mut self, number: u32, now: u64) {
        let at = number as usize;
        if self.touched.len() <= at {
            self.touched.resize(at + 1, 0);
        }
        self.touched[at] = now;
    }

    /// The extent of a number: where its range begins, the range, and its place among the extents of that.
    pub(crate) fn extent(&self, number: u32) -> Option<(u64, &Range, usize)> {
        let (start, at) = (*self.numbers.get(number as usize)?)?;
        Some((start, self.ranges.get(&start)?, at))
    }

    /// Bytes of an extent.
    pub(crate) fn bytes_of(&self, number: u32) -> u64 {
        self.extent(number)
            .map_or(0, |(_, range, at)| range.extents[at].bytes)
    }

    /// The device of an extent.
    pub(crate) fn device_of(&self, number: u32) -> Option<i32> {
        self.extent(number).map(|(_, range, _)| range.device)
    }

    /// Bytes that are free of a device's memory.
    pub(crate) fn room_on(&self, device: i32) -> u64 {
        let there = self.devices.get(&device).and_then(Option::as_ref);
        there.map_or(0, |there| there.table.room(Tier::Hbm) * BLOCK)
    }

    /// When an extent was touched last; 0: never, or nobody knows.
    pub(crate) fn last_touch(&self, number: u32) -> u64 {
        self.touched.get(number as usize).copied().unwrap_or(0)
    }

    /// A device has another lease; what the program sees stays. Answers whether it uses more of the GPU, and of the host, than that has.
    pub(crate) fn regrant(&mut self, device: i32, lease: Lease) -> [bool; 2] {
        let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
            return [false; 2];
        };
        let total = vmm::total(device).unwrap_or(u64::MAX);
        there.hbm = lease.hbm.min(total);
        let host = there.table.grant(Tier::Host, lease.host.div_ceil(BLOCK));
        there.keep_within();
        there.count_small(0, 0);
        [there.over() > 0, host > 0]
    }

    /// Bytes that the process uses of a device, in both tiers.
    fn used(&self, device: i32) -> u64 {
        let deferred = self.deferred.iter().map(|(_, range)| range);
        let ordered = self.ordered.iter().filter_map(|one| match &one.what {
            Freed::Range(_, range) => Some(range),
            Freed::Small(_) => None,
        });
        let ranges = self
            .ranges
            .values()
            .chain(deferred)
            .chain(ordered)
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

    /// The allocation that an address lies in, with its start.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &Range)> {
        self.at(address).filter(|(_, range)| range.held.is_none())
    }

    /// The same, also of physical memory by its handle.
    pub(crate) fn at(&self, place: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.ranges.range(..=place).next_back()?;
        (place - start < range.bytes).then_some((*start, range))
    }

    /// Where what an address leads to is among the ranges: at the address itself, or in the memory of a handle.
    pub(crate) fn place(&self, address: u64) -> u64 {
        match self.maps.around(address) {
            Some((start, map)) => map.handle.saturating_add(map.offset + (address - start)),
            None => address,
        }
    }

    /// A context is there.
    pub(crate) fn saw_context(&mut self, context: u64) {
        self.contexts.entry(context).or_default();
    }

    /// The context in which memory of a range is copied: its own, or of what belongs to none some context of its device.
    pub(crate) fn context_for(&mut self, device: i32, own: u64) -> Option<u64> {
        match own {
            0 => self.context_on(device),
            own => Some(own),
        }
    }

    /// Some context of a device.
    pub(crate) fn context_on(&mut self, device: i32) -> Option<u64> {
        for (context, known) in &mut self.contexts {
            if known.device.is_none() {
                known.device = vmm::device_of(*context).ok();
            }
            if known.device == Some(device) {
                return Some(*context);
            }
        }
        None
    }

    /// Allocates. The device is one whose memory is in tiers.
    pub(crate) fn allocate(&mut self, device: i32, context: u64, asked: u64) -> Answer<u64> {
        let start = self.make(device, context, asked, None)?;
        self.saw_context(context);
        Ok(start)
    }

    /// Physical memory of such a device, for the program to map: a virtual handle.
    pub(crate) fn create(&mut self, prop: Prop, bytes: u64) -> Answer<u64> {
        self.make(prop.location.id, 0, bytes, Some(Holding::new(prop)))
    }

    fn make(
        &mut self,
        device: i32,
        context: u64,
        asked: u64,
        held: Option<Holding>,
    ) -> Answer<u64> {
        let bytes = asked
            .checked_next_multiple_of(BLOCK)
            .ok_or(code::OUT_OF_MEMORY)?;
        let used = self.used(device);
        let handle = FIRST_HANDLE + self.next_handle;
        let there = self.device(device).ok_or(code::NOT_SUPPORTED)?;
        let within = used
            .checked_add(bytes)
            .is_some_and(|all| all <= there.grant);
        if !within && !mutant::is(Mutant::Grant) {
            return Err(code::OUT_OF_MEMORY);
        }
        let plain = |held: &Holding| held.prop == Prop::at(held.prop.location);
        let kept = match held.as_ref().is_none_or(plain) {
            true => there.table.allocate(bytes / BLOCK),
            // In parts it cannot be handed out, and is there all the same.
            false => there
                .table
                .allocate_whole(bytes / BLOCK)
                .or_else(|_| there.table.allocate(bytes / BLOCK)),
        };
        let kept = kept.map_err(|_| code::OUT_OF_MEMORY)?;
        let mut range = Range {
            device,
            context,
            asked,
            bytes,
            // Peers have access to allocations of their own accord, and to other memory where the program says so.
            pinned: held.is_none() && !there.peers.is_empty(),
            extents: Vec::with_capacity(kept.extents.len()),
            kept,
            held,
            pool: 0,
        };
        let start = match &range.held {
            Some(_) => Ok(handle),
            None => vmm::reserve(bytes),
        };
        let start = match start {
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
        if range.held.is_some() {
            self.next_handle += bytes;
        }
        self.adopt(start, range);
        self.look_for_cold();
        Ok(start)
    }

    /// Has a range be the program's: its extents get numbers.
    pub(crate) fn adopt(&mut self, start: u64, mut range: Range) {
        for (at, extent) in range.extents.iter_mut().enumerate() {
            extent.number = self.free_numbers.pop().unwrap_or_else(|| {
                self.numbers.push(None);
                self.numbers.len() as u32 - 1
            });
            self.numbers[extent.number as usize] = Some((start, at));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.adopt(&range);
        }
        self.ranges.insert(start, range);
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

    /// Takes a range out, with its memory.
    pub(crate) fn forget(&mut self, start: u64) -> Option<Range> {
        let range = self.ranges.remove(&start)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.forget(&range);
        }
        for extent in &range.extents {
            self.numbers[extent.number as usize] = None;
            self.asked.remove(&extent.number);
            if let Some(touched) = self.touched.get_mut(extent.number as usize) {
                *touched = 0;
            }
            self.free_numbers.push(extent.number);
            let device = self.devices.get_mut(&range.device).and_then(Option::as_mut);
            if let Some(policy) = device.and_then(|device| device.policy.as_mut()) {
                policy.freed(trace::Extent(extent.number));
            }
        }
        Some(range)
    }

    /// Gives everything of a range back to the driver.
    pub(crate) fn give(&mut self, start: u64, range: Range) {
        for extent in range.extents.iter().filter(|extent| extent.handle != 0) {
            if range.held.is_none() && extent.aside == 0 {
                let _ = vmm::unmap(extent.at, extent.bytes);
            }
            extent.piece().give();
        }
        if range.held.is_none() {
            let _ = vmm::unreserve(start, range.bytes);
        }
        if let Some(device) = self.device(range.device) {
            let _ = device.table.free(&range.kept);
        }
    }

    pub(crate) fn look_for_cold(&self) {
        let mut devices = self.devices.values().flatten();
        watch::set_cold(devices.any(|device| device.table.used(Tier::Host) > 0));
    }

    /// Pins every range that one of these words is an address in. Answers whether there was one.
    pub(crate) fn pin(&mut self, words: &[u64]) -> bool {
        let starts: Vec<u64> = words
            .iter()
            .filter_map(|word| Some(self.at(self.place(*word))?.0))
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
            .filter(|(_, range)| range.device == device && range.held.is_none())
        {
            range.pinned = true;
            vmm::access(*start, range.bytes, &devices)?;
        }
        Ok(())
    }

    /// An allocation of the driver's own.
    pub(crate) fn saw_small(&mut self, at: u64, small: Small) {
        let context = small.context;
        if let Some(there) = self.device(small.device) {
            there.count_small(small.bytes, 0);
            self.small.insert(at, small);
            self.saw_context(context);
        }
    }

    /// One of those is freed.
    pub(crate) fn freed_small(&mut self, at: u64) {
        if let Some(small) = self.small.remove(&at) {
            self.uncount(&small);
        }
    }

    /// It counts no more.
    pub(crate) fn uncount(&mut self, small: &Small) {
        if let Some(there) = self.device(small.device) {
            there.count_small(0, small.bytes);
        }
    }

    /// Physical memory that the driver alone has.
    pub(crate) fn saw_native(&mut self, handle: u64, device: i32, bytes: u64, prop: Prop) {
        if let Some(there) = self.device(device) {
            there.count_small(bytes, 0);
            let held = Holding::new(prop);
            let native = Native {
                device,
                bytes,
                held,
            };
            self.natives.insert(handle, native);
        }
    }

    /// How the program holds the memory of a handle, if that is known.
    pub(crate) fn holding(&mut self, handle: u64) -> Option<&mut Holding> {
        match self.ranges.get_mut(&handle) {
            Some(range) => range.held.as_mut(),
            None => Some(&mut self.natives.get_mut(&handle)?.held),
        }
    }

    /// Frees the memory of a handle that nobody can reach any more.
    pub(crate) fn drop_held(&mut self, handle: u64) {
        if !self.holding(handle).is_some_and(|held| held.is_gone()) {
            return;
        }
        match self.natives.remove(&handle) {
            Some(native) => {
                if let Some(there) = self.device(native.device) {
                    there.count_small(0, native.bytes);
                }
            }
            None => self.free(handle),
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
        // Freed in the order of its streams, or allocated in it.
        for mut one in std::mem::take(&mut self.ordered) {
            let ended = one.context == context;
            match one.what {
                Freed::Range(start, range) if ended || range.context == context => {
                    self.give(start, range);
                    continue;
                }
                Freed::Small(small) if ended => {
                    self.uncount(&small);
                    continue;
                }
                what => one.what = what,
            }
            self.ordered.push(one);
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
