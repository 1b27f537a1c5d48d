//! What is parked on NVMe: extents go to gpuos_mover piece by piece, and come back before the process's turn.
//!
//! All of it happens while the gate is sealed. An extent is given up when all of its pieces are written, and not before: until then its bytes are
//! where they were. What is gone has addresses and no memory; its tier in the table stays what it was, for that is where it comes back to.
//! gpuos_mover may end and be started anew at any time: what it has not confirmed is handed over again, and what it has it finds.

mod line;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gpuos_driver::Prop;
use gpuos_memory::stow::{Digest, FromProgram, PIECE, ToProgram};
use gpuos_memory::table::{State, Tier};

use crate::device::Device;
use crate::driver::code;
use crate::memory::{self, Memory};
use crate::mutant::{self, Mutant};
use crate::range::{Extent, Stowed};
use crate::shift::{self, Aside, View};
use crate::vmm::{self, Answer};
use crate::{figures, process};
pub(crate) use line::forget;
use line::{Line, Trouble};

/// So long gpuos_mover is looked for when something is to go there, ...
const PATIENCE: Duration = Duration::from_secs(30);
/// ... and when something is there that would be lost. gpuosd ends who is not back in time.
const HOPE: Duration = Duration::from_secs(600);
/// So often something is begun anew when a connection is lost.
const TRIES: usize = 100;
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(200);

/// The process's segment.
#[derive(Debug)]
pub(crate) struct Segment {
    /// gpuos_mover's socket.
    path: String,
    /// Where what comes next goes.
    next: u64,
}

/// An extent, for a copy.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    /// Where it is mapped; of what the program maps itself, which may be mapped nowhere, a part of its handle.
    at: u64,
    bytes: u64,
    context: u64,
    stream: u64,
    /// Where the program's own memory is mapped to be copied.
    aside: Option<u64>,
}

/// The extent of the program's own that is mapped to be copied. One at a time: the pieces of an extent come mostly one after the other.
#[derive(Default)]
struct Window(Option<(u32, Aside)>);

impl Window {
    /// Where the bytes of an extent are as long as no other one is asked for.
    fn address(&mut self, part: &Part) -> Answer<u64> {
        let Some(at) = part.aside else {
            return Ok(part.at);
        };
        if !matches!(&self.0, Some((number, _)) if *number == part.number) {
            // First the other one goes: the addresses are the same.
            self.0 = None;
            let memory = &mut memory::lock();
            let (handle, device) = physical(memory, part.number).ok_or(code::INVALID)?;
            self.0 = Some((part.number, Aside::show(at, part.bytes, handle, device)?));
        }
        Ok(at)
    }

    /// The memory behind it may go.
    fn close(&mut self) {
        self.0 = None;
    }
}

impl Part {
    /// Offset and length of its pieces.
    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.bytes;
        let starts = (0..bytes.div_ceil(PIECE)).map(|nth| nth * PIECE);
        starts.map(move |start| (start, PIECE.min(bytes - start)))
    }
}

impl Segment {
    /// One that is empty.
    pub(crate) fn new(path: String) -> Segment {
        Segment { path, next: 0 }
    }

    /// Connects, and looks for gpuos_mover where it is not there.
    fn connect(&self, deadline: Instant) -> Result<Line, String> {
        loop {
            match Line::connect(&self.path) {
                Ok(line) => return Ok(line),
                Err(Trouble::No(why)) => return Err(why),
                Err(Trouble::Lost(why)) if Instant::now() >= deadline => return Err(why),
                Err(Trouble::Lost(_)) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Does something over a connection, and again over another one where that is lost.
    fn over<T>(
        &self,
        patience: Duration,
        mut what: impl FnMut(&mut Line) -> Result<T, Trouble>,
    ) -> Result<T, String> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let mut line = self.connect(Instant::now() + patience)?;
            match what(&mut line) {
                Ok(done) => return Ok(done),
                Err(Trouble::No(why)) => return Err(why),
                Err(Trouble::Lost(why)) => last = why,
            }
        }
        Err(last)
    }

    /// Brings extents to NVMe. Answers their bytes.
    ///
    /// # Errors
    /// Something does not go there: why. What has gone stays there.
    pub(crate) fn put(&mut self, numbers: &[u32]) -> Result<u64, String> {
        let mut places = BTreeMap::new();
        let mut bytes = 0;
        for number in numbers {
            if let Some(part) = part(&mut memory::lock(), *number) {
                places.insert(*number, self.next);
                self.next += part.bytes;
                bytes += part.bytes;
            }
        }
        if places.is_empty() {
            return Ok(0);
        }
        let end = self.next;
        let put = self.over(PATIENCE, |line| {
            if end > line.limit {
                let why = "it takes more of NVMe than gpuosd has promised";
                return Err(Trouble::No(why.into()));
            }
            put_all(line, &places)
        });
        if put.is_err() {
            // What did not go has no place: another one gets it. gpuos_mover takes a new connection when nothing of this one is under way.
            self.next = end_of_stowed(&memory::lock());
        }
        put.map(|()| bytes)
    }

    /// Brings everything back and gives the segment up: to where it was, to the memory of GPUs what is of `up`, or all of it to `to`. Answers
    /// the bytes that came. What does not come is lost: work that touches it fails.
    pub(crate) fn get(&mut self, up: &BTreeSet<u32>, to: Option<Tier>) -> u64 {
        let before = stowed(&memory::lock()).len();
        if before == 0 && self.next == 0 {
            return 0;
        }
        let mut came = 0;
        let got = self.over(HOPE, |line| get_all(line, (up, to), &mut came));
        if let Err(why) = got {
            let left = stowed(&memory::lock());
            left.into_iter().for_each(|number| lose(number, &why));
        }
        self.next = 0;
        came
    }
}

/// Copies pieces to the ring and gives up what is written.
fn put_all(line: &mut Line, places: &BTreeMap<u32, u64>) -> Result<(), Trouble> {
    /// An extent on its way.
    struct Going {
        part: Part,
        left: usize,
        digests: Vec<Digest>,
    }
    let mut going: BTreeMap<u32, Going> = BTreeMap::new();
    let mut slots: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
    let mut window = Window::default();
    let hear = |line: &mut Line,
                going: &mut BTreeMap<u32, Going>,
                slots: &mut BTreeMap<u32, (u32, usize)>| {
        let (slot, digest) = match line.next()? {
            ToProgram::Done { slot, digest } => (slot, digest),
            ToProgram::Failed { why, .. } => return Err(Trouble::No(why)),
            ToProgram::Refused { why } => return Err(Trouble::No(why)),
            _ => return Err(strange()),
        };
        let (number, nth) = slots.remove(&slot).ok_or_else(strange)?;
        line.give(slot);
        if let Some(one) = going.get_mut(&number) {
            one.digests[nth] = digest;
            one.left -= 1;
            if one.left == 0 {
                let digests = std::mem::take(&mut one.digests);
                let at = places[&number];
                give_up(&mut memory::lock(), &one.part, Stowed { at, digests });
                going.remove(&number);
            }
        }
        Ok(())
    };
    for (number, at) in places {
        // What is there already was confirmed before a connection was lost.
        let Some(part) = part(&mut memory::lock(), *number) else {
            continue;
        };
        line.register(part.context);
        let count = part.pieces().count();
        going.insert(
            *number,
            Going {
                part,
                left: count,
                digests: vec![Digest([0; 32]); count],
            },
        );
        for (nth, (start, bytes)) in part.pieces().enumerate() {
            let slot = loop {
                match line.slot() {
                    Some(slot) => break slot,
                    None => hear(line, &mut going, &mut slots)?,
                }
            };
            let to = line.address(slot);
            let copied = mutant::is(Mutant::StowNothing)
                || vmm::within(part.context, || {
                    let from = window.address(&part)?;
                    vmm::download(to, from + start, bytes, part.stream)?;
                    vmm::finish(part.stream)
                })
                .is_ok();
            if !copied {
                return Err(Trouble::No("the driver does not copy it".into()));
            }
            slots.insert(slot, (*number, nth));
            line.say(&FromProgram::Put {
                slot,
                at: at + start,
                bytes,
            })?;
        }
        // It is given up when its pieces are written.
        window.close();
    }
    while !line.is_idle() {
        hear(line, &mut going, &mut slots)?;
    }
    Ok(())
}

/// An extent that comes back.
struct Coming {
    part: Part,
    /// Pieces that are not there yet.
    left: usize,
}

/// Brings back what is on NVMe, and gives the segment up.
fn get_all(
    line: &mut Line,
    (up, to): (&BTreeSet<u32>, Option<Tier>),
    came: &mut u64,
) -> Result<(), Trouble> {
    let mut waiting = stowed(&memory::lock()).into_iter();
    // Pieces of extents that have memory again: extent, offset, length, place and digest.
    let mut pieces: VecDeque<(u32, u64, u64, u64, Digest)> = VecDeque::new();
    let mut coming: BTreeMap<u32, Coming> = BTreeMap::new();
    let mut slots: BTreeMap<u32, (u32, u64, u64)> = BTreeMap::new();
    let mut window = Window::default();
    loop {
        while let Some(slot) = line.slot() {
            while pieces.is_empty()
                && let Some(number) = waiting.next()
            {
                let to = to.or(up.contains(&number).then_some(Tier::Hbm));
                let taken = take_back(&mut memory::lock(), number, to);
                let Some((part, stowed)) = taken else {
                    lose(number, "the driver has no memory for it");
                    continue;
                };
                line.register(part.context);
                let all = part.pieces().zip(stowed.digests);
                let all = all.map(|((start, bytes), digest)| {
                    (number, start, bytes, stowed.at + start, digest)
                });
                pieces.extend(all);
                let left = pieces.len();
                coming.insert(number, Coming { part, left });
            }
            let Some((number, start, bytes, at, digest)) = pieces.pop_front() else {
                line.give(slot);
                break;
            };
            slots.insert(slot, (number, start, bytes));
            line.say(&FromProgram::Get {
                slot,
                at,
                bytes,
                digest,
            })?;
        }
        if slots.is_empty() {
            break;
        }
        let (slot, failed) = match line.next()? {
            ToProgram::Done { slot, .. } => (slot, None),
            ToProgram::Failed { slot, why } => (slot, Some(why)),
            _ => return Err(strange()),
        };
        let (number, start, bytes) = slots.remove(&slot).ok_or_else(strange)?;
        let Some(one) = coming.get_mut(&number) else {
            return Err(strange());
        };
        let (from, part) = (line.address(slot), one.part);
        let failed = failed.or_else(|| {
            let copied = mutant::is(Mutant::UnstowNothing)
                || vmm::within(part.context, || {
                    let to = window.address(&part)?;
                    vmm::upload(to + start, from, bytes, part.stream)?;
                    vmm::finish(part.stream)
                })
                .is_ok();
            (!copied).then(|| "the driver does not copy it".into())
        });
        if let Some(why) = failed {
            window.close();
            lose(number, &why);
            // Its other pieces are on their way, and nobody wants them any more.
            return Err(Trouble::Lost(why));
        }
        line.give(slot);
        one.left -= 1;
        if one.left == 0 {
            has_come(&mut memory::lock(), number);
            *came += part.bytes;
            coming.remove(&number);
        }
    }
    line.say(&FromProgram::Drop)?;
    match line.next()? {
        ToProgram::Dropped => Ok(()),
        _ => Err(strange()),
    }
}

fn strange() -> Trouble {
    Trouble::No("gpuos_mover answers something else".into())
}

fn lose(number: u32, why: &str) {
    let mut memory = memory::lock();
    if let Some(part) = describe(&mut memory, number) {
        process::say(format_args!(
            "{} MiB at {:#x} cannot be had back from NVMe ({why}): work that touches them fails",
            part.bytes >> 20,
            part.at
        ));
    }
    forget_bytes(&mut memory, number);
}

/// An extent that has memory and can go.
fn part(memory: &mut Memory, number: u32) -> Option<Part> {
    memory.movable(number)?;
    describe(memory, number)
}

fn describe(memory: &mut Memory, number: u32) -> Option<Part> {
    let (_, range, at) = memory.extent(number)?;
    let extent = &range.extents[at];
    let (device, context, at, bytes) = (range.device, range.context, extent.is_at(), extent.bytes);
    let mut aside = None;
    if range.held.is_some() && extent.aside == 0 {
        aside = memory.devices.get_mut(&device)?.as_mut()?.scratch();
        aside?;
    }
    let context = memory.context_for(device, context)?;
    let stream = memory.stream(context, Tier::Host)?;
    Some(Part {
        number,
        at,
        bytes,
        context,
        stream,
        aside,
    })
}

/// The physical memory of an extent, and its device.
fn physical(memory: &Memory, number: u32) -> Option<(u64, i32)> {
    let (_, range, at) = memory.extent(number)?;
    let handle = range.extents[at].handle;
    (handle != 0).then_some((handle, range.device))
}

/// All places at which the program sees an extent.
fn views(memory: &Memory, number: u32) -> Vec<View> {
    let found = memory.extent(number);
    found.map_or_else(Vec::new, |(start, range, at)| {
        memory.views(range, start, at)
    })
}

/// Takes an extent's memory away, wherever it is seen.
fn take_away(memory: &mut Memory, number: u32) {
    let seen = views(memory, number);
    let Some(extent) = extent(memory, number) else {
        return;
    };
    let piece = extent.piece();
    (extent.handle, extent.aside) = (0, 0);
    if piece.at == 0 {
        for view in seen {
            let _ = view.hide();
        }
    }
    piece.give();
}

/// Extents that are on NVMe.
fn stowed(memory: &Memory) -> Vec<u32> {
    let ranges = memory.ranges.values().flat_map(|range| &range.extents);
    let stowed = ranges.filter(|extent| extent.stowed.is_some());
    stowed.map(|extent| extent.number).collect()
}

/// Where the last of them ends in the segment.
fn end_of_stowed(memory: &Memory) -> u64 {
    let ranges = memory.ranges.values().flat_map(|range| &range.extents);
    let ends = ranges.filter_map(|extent| Some(extent.stowed.as_ref()?.at + extent.bytes));
    ends.max().unwrap_or(0)
}

fn extent(memory: &mut Memory, number: u32) -> Option<&mut Extent> {
    let (start, at) = (*memory.numbers.get(number as usize)?)?;
    Some(&mut memory.ranges.get_mut(&start)?.extents[at])
}

/// Its memory goes to others: its bytes are on NVMe.
fn give_up(memory: &mut Memory, part: &Part, stowed: Stowed) {
    take_away(memory, part.number);
    if let Some(extent) = extent(memory, part.number) {
        extent.stowed = Some(stowed);
        figures::count(true, extent.bytes);
    }
}

/// Gives it memory, in its tier or in that one. `None`: there is none.
fn take_back(memory: &mut Memory, number: u32, to: Option<Tier>) -> Option<(Part, Stowed)> {
    // Its device is borrowed beside it.
    let (start, at) = (*memory.numbers.get(number as usize)?)?;
    let range = memory.ranges.get(&start)?;
    let (device, extent) = (range.device, &range.extents[at]);
    let stowed = extent.stowed.clone()?;
    // A connection may have been lost since.
    if extent.handle == 0 {
        let views = memory.views(range, start, at);
        let prop = range.held.as_ref().map(|held| held.prop);
        let there = memory.devices.get_mut(&device)?.as_mut()?;
        let handle = create(there, device, extent, to, prop.as_ref()).ok()?;
        if shift::show(&views, handle).is_err() {
            vmm::release(handle);
            return None;
        }
        memory.ranges.get_mut(&start)?.extents[at].handle = handle;
    }
    Some((describe(memory, number)?, stowed))
}

/// Its bytes are there.
fn has_come(memory: &mut Memory, number: u32) {
    if let Some(extent) = extent(memory, number) {
        extent.stowed = None;
        let bytes = extent.bytes;
        figures::count(false, bytes);
    }
}

/// Its bytes are nowhere. Nothing else is ever seen in their place: it has no memory.
fn forget_bytes(memory: &mut Memory, number: u32) {
    if let Some(extent) = extent(memory, number) {
        extent.stowed = None;
        if extent.handle != 0 {
            take_away(memory, number);
        }
    }
}

/// Physical memory for an extent that comes back: in its tier or in that one, and in host memory where the GPU has less than was granted.
fn create(
    there: &mut Device,
    device: i32,
    extent: &Extent,
    to: Option<Tier>,
    prop: Option<&Prop>,
) -> Answer<u64> {
    let (id, bytes) = (extent.id, extent.bytes);
    let own = match there.table.state(id) {
        Ok(State::Host) => Tier::Host,
        _ => Tier::Hbm,
    };
    let mut tier = to.unwrap_or(own);
    let begun = tier != own && there.table.begin(id, tier).is_ok();
    if tier == Tier::Hbm && own == Tier::Host && !begun {
        tier = Tier::Host;
    }
    let made = there.memory(device, tier, bytes, prop);
    if begun {
        let _ = there.table.end(id, made.is_ok());
        if there.table.state(id) == Ok(State::HbmWithShadow) {
            let _ = there.table.drop_shadow(id);
        }
    }
    match made {
        Err(code::OUT_OF_MEMORY) if tier == Tier::Hbm => {
            // Where the books have no room for it, they have it where it was: that is a matter of speed alone.
            if own == Tier::Hbm && there.table.begin(id, Tier::Host).is_ok() {
                let _ = there.table.end(id, true);
            }
            there.memory(device, Tier::Host, bytes, prop)
        }
        made => made,
    }
}

/// Of these extents, bytes that are on NVMe.
pub(crate) fn gone(numbers: &[u32]) -> u64 {
    let mut memory = memory::lock();
    let mut bytes = 0;
    for number in numbers {
        let gone = extent(&mut memory, *number).filter(|it| it.stowed.is_some());
        bytes += gone.map_or(0, |extent| extent.bytes);
    }
    bytes
}
