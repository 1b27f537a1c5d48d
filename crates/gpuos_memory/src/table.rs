//! Where each extent of a program is, and what may be done with it.
//!
//! ```text
//!                 wrote                        begin(Host): no copy
//!        Hbm <------------ HbmWithShadow ------------------------+
//!         |                      ^                               |
//!         | begin(Host)          | end(true)                     v
//!         v                      |        begin(Hbm)
//!       ToHost ----------------- ToHbm <------------------------ Host
//!         |      end(true)                                       ^
//!         +------------------------------------------------------+
//! ```
//!
//! A move that fails ends where it began. An extent has one place whose bytes are good; a shadow is a second one with the same bytes, and is gone as
//! soon as the extent is written. While an extent moves, nobody may touch it: the program's gate is closed.
//!
//! What is promised is there: each tier has a budget, a move has its room in both tiers while it lasts, and a shadow has
//! its room in host memory. Sizes are counted in blocks of [`BLOCK_MIB`].

use std::fmt;

/// Size of a block in MiB: the granularity of virtual memory on NVIDIA's GPUs.
pub const BLOCK_MIB: u64 = 2;
/// Blocks of the largest extent: 64 MiB.
pub const MOST_BLOCKS: u64 = 32;
/// A range has at least so many extents, if it has so many blocks, so that a part of it can stay.
const EXTENTS_OF_RANGE: u64 = 16;
/// From so many blocks on, 128 MiB, it has only ...
const BLOCKS_OF_LARGE: u64 = 64;
/// ... so many: each extent costs calls of the driver to move, which take as long as the copy of a small one (docs/results/gpu.md).
const EXTENTS_OF_LARGE: u64 = 4;

/// Where bytes can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// The memory of the GPU.
    Hbm,
    /// Memory of the host that the GPU reads in place.
    Host,
}

/// An extent of a table. Ids are not used again for another extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentId {
    slot: u32,
    use_of_slot: u32,
}

/// What was allocated at once: its extents in the order of their addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// All of them; all but the last are equally large.
    pub extents: Vec<ExtentId>,
}

/// What an extent is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// In GPU memory alone.
    Hbm,
    /// In GPU memory, and host memory has the same bytes.
    HbmWithShadow,
    /// In host memory.
    Host,
    /// On its way from GPU memory to host memory.
    ToHost,
    /// On its way from host memory to GPU memory.
    ToHbm,
    /// On the node's disk, with the whole process.
    Parked,
    /// Its bytes are lost; whoever touches it has to be told.
    Poisoned,
}

impl State {
    /// Whether it has room in a tier.
    fn is_in(self, tier: Tier) -> bool {
        match self {
            State::Hbm => tier == Tier::Hbm,
            State::Host => tier == Tier::Host,
            State::HbmWithShadow | State::ToHost | State::ToHbm => true,
            State::Parked | State::Poisoned => false,
        }
    }
}

/// Why something is not done; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such extent any more.
    Freed,
    /// It moves.
    Moving,
    /// It does not move, or is where it is to go.
    NotSo(State),
    /// A tier lacks room: blocks that are wanted and blocks that are free.
    Full {
        /// Wanted.
        wanted: u64,
        /// Free, of both tiers if either would do.
        free: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Freed => write!(f, "the memory was freed before"),
            Refused::Moving => write!(f, "the extent is being moved"),
            Refused::NotSo(state) => write!(f, "the extent is not in a state for that: {state:?}"),
            Refused::Full { wanted, free } => write!(
                f,
                "{} MiB are wanted and {} MiB are free",
                wanted * BLOCK_MIB,
                free * BLOCK_MIB
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// What a move needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// The bytes have to be copied; [`Table::end`] says how that went.
    Copy,
    /// Nothing: host memory has the bytes. It is done.
    Remap,
}

#[derive(Clone, Copy)]
struct Slot {
    use_of_slot: u32,
    blocks: u16,
    /// `None`: free.
    state: Option<State>,
}

/// The extents of one process on one GPU.
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Blocks that may be used, by tier.
    budget: [u64; 2],
    used: [u64; 2],
}

fn index(tier: Tier) -> usize {
    match tier {
        Tier::Hbm => 0,
        Tier::Host => 1,
    }
}

impl Table {
    /// An empty one. `hbm`, `host`: blocks that it may use of each.
    pub fn new(hbm: u64, host: u64) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            budget: [hbm, host],
            used: [0, 0],
        }
    }

    /// Blocks that are used of a tier, with those of shadows and of moves.
    pub fn used(&self, tier: Tier) -> u64 {
        self.used[index(tier)]
    }

    /// Blocks that are free in a tier.
    pub fn room(&self, tier: Tier) -> u64 {
        self.budget[index(tier)].saturating_sub(self.used(tier))
    }

    /// Another budget for a tier. Answers the blocks that have to leave it, as far as it is exceeded.
    pub fn grant(&mut self, tier: Tier, blocks: u64) -> u64 {
        self.budget[index(tier)] = blocks;
        self.used(tier).saturating_sub(blocks)
    }

    /// What an extent is doing.
    ///
    /// # Errors
    /// It was freed.
    pub fn state(&self, extent: ExtentId) -> Result<State, Refused> {
        Ok(self.slot(extent)?.1)
    }

    /// Blocks of an extent.
    ///
    /// # Errors
    /// It was freed.
    pub fn blocks(&self, extent: ExtentId) -> Result<u64, Refused> {
        Ok(self.slot(extent)?.0)
    }

    fn slot(&self, extent: ExtentId) -> Result<(u64, State), Refused> {
        let slot = self.slots.get(extent.slot as usize);
        let slot = slot.filter(|slot| slot.use_of_slot == extent.use_of_slot);
        let state = slot.and_then(|slot| Some((u64::from(slot.blocks), slot.state?)));
        state.ok_or(Refused::Freed)
    }

    fn set(&mut self, extent: ExtentId, to: Option<State>) {
        let slot = &mut self.slots[extent.slot as usize];
        let from = std::mem::replace(&mut slot.state, to);
        for tier in [Tier::Hbm, Tier::Host] {
            let is_in = |state: Option<State>| state.is_some_and(|state| state.is_in(tier));
            let used = &mut self.used[index(tier)];
            match (is_in(from), is_in(to)) {
                (false, true) => *used += u64::from(slot.blocks),
                (true, false) => *used -= u64::from(slot.blocks),
                _ => {}
            }
        }
    }

    /// Allocates so many blocks: in GPU memory as far as there is room, the rest in host memory.
    ///
    /// # Errors
    /// Both together have not enough room.
    pub fn allocate(&mut self, blocks: u64) -> Result<Range, Refused> {
        if blocks >= BLOCKS_OF_LARGE
            && let Ok(range) = self.allocate_in(blocks, EXTENTS_OF_LARGE)
        {
            return Ok(range);
        }
        // Of smaller ones more may fit in what is left of each tier.
        self.allocate_in(blocks, EXTENTS_OF_RANGE)
    }

    /// The same in so many extents at least.
    fn allocate_in(&mut self, blocks: u64, least: u64) -> Result<Range, Refused> {
        let size = (blocks / least).next_power_of_two().clamp(1, MOST_BLOCKS);
        let extents = blocks.div_ceil(size);
        // The last extent may be smaller than the others, so which of them fit where is counted in whole ones, but for it.
        let in_hbm = (self.room(Tier::Hbm) / size).min(extents);
        let last = blocks - extents.saturating_sub(1) * size;
        let fits_last = in_hbm + 1 == extents && self.room(Tier::Hbm) - in_hbm * size >= last;
        let in_hbm = in_hbm + u64::from(fits_last);
        let rest = blocks.saturating_sub(in_hbm * size);
        let free = self.room(Tier::Hbm) + self.room(Tier::Host);
        if rest > self.room(Tier::Host) {
            return Err(Refused::Full {
                wanted: blocks,
                free,
            });
        }
        let place = |at: u64| {
            let state = if at < in_hbm { State::Hbm } else { State::Host };
            let blocks = if at + 1 == extents { last } else { size };
            self.place(blocks as u16, state)
        };
        let extents = (0..extents).map(place).collect();
        Ok(Range { extents })
    }

    /// Allocates one extent of so many blocks, [`MOST_BLOCKS`] at most: in GPU memory if there is room.
    ///
    /// # Errors
    /// Neither tier has room for it, or it is too large.
    pub fn allocate_whole(&mut self, blocks: u64) -> Result<Range, Refused> {
        let state = match [Tier::Hbm, Tier::Host].map(|tier| self.room(tier) >= blocks) {
            _ if !(1..=MOST_BLOCKS).contains(&blocks) => None,
            [true, _] => Some(State::Hbm),
            [_, true] => Some(State::Host),
            _ => None,
        };
        let free = self.room(Tier::Hbm) + self.room(Tier::Host);
        let state = state.ok_or(Refused::Full {
            wanted: blocks,
            free,
        })?;
        let extents = vec![self.place(blocks as u16, state)];
        Ok(Range { extents })
    }

    fn place(&mut self, blocks: u16, state: State) -> ExtentId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                use_of_slot: 0,
                blocks: 0,
                state: None,
            });
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.blocks = blocks;
        let extent = ExtentId {
            slot,
            use_of_slot: place.use_of_slot,
        };
        self.set(extent, Some(state));
        extent
    }

    /// Frees a range.
    ///
    /// # Errors
    /// It was freed before, or a part of it moves: the move has to end first.
    pub fn free(&mut self, range: &Range) -> Result<(), Refused> {
        for extent in &range.extents {
            if let State::ToHost | State::ToHbm = self.state(*extent)? {
                return Err(Refused::Moving);
            }
        }
        for extent in &range.extents {
            self.set(*extent, None);
            let slot = &mut self.slots[extent.slot as usize];
            // A slot whose uses are counted out is left alone: 8 bytes are lost, and no old id becomes good again.
            if let Some(next) = slot.use_of_slot.checked_add(1) {
                slot.use_of_slot = next;
                self.free.push(extent.slot);
            }
        }
        Ok(())
    }

    /// Whether a program that is to touch an extent can, and where it is then. `writes`: it may write it.
    ///
    /// # Errors
    /// It moves, is parked, poisoned, or was freed.
    pub fn touch(&mut self, extent: ExtentId, writes: bool) -> Result<Tier, Refused> {
        match self.state(extent)? {
            State::Hbm => Ok(Tier::Hbm),
            State::HbmWithShadow => {
                if writes {
                    self.set(extent, Some(State::Hbm));
                }
                Ok(Tier::Hbm)
            }
            State::Host => Ok(Tier::Host),
            State::ToHost | State::ToHbm => Err(Refused::Moving),
            state @ (State::Parked | State::Poisoned) => Err(Refused::NotSo(state)),
        }
    }

    /// Begins to move an extent to a tier.
    ///
    /// # Errors
    /// It is there, moves, is parked or poisoned, or the tier has no room.
    pub fn begin(&mut self, extent: ExtentId, to: Tier) -> Result<Move, Refused> {
        let (blocks, state) = self.slot(extent)?;
        let (next, answer) = match (state, to) {
            (State::HbmWithShadow, Tier::Host) => (State::Host, Move::Remap),
            (State::Hbm, Tier::Host) => (State::ToHost, Move::Copy),
            (State::Host, Tier::Hbm) => (State::ToHbm, Move::Copy),
            (State::ToHost | State::ToHbm, _) => return Err(Refused::Moving),
            (state, _) => return Err(Refused::NotSo(state)),
        };
        if answer == Move::Copy && blocks > self.room(to) {
            return Err(Refused::Full {
                wanted: blocks,
                free: self.room(to),
            });
        }
        self.set(extent, Some(next));
        Ok(answer)
    }

    /// A copy has ended; `done`: all of it.
    ///
    /// # Errors
    /// The extent does not move.
    pub fn end(&mut self, extent: ExtentId, done: bool) -> Result<(), Refused> {
        let next = match (self.state(extent)?, done) {
            (State::ToHost, true) | (State::ToHbm, false) => State::Host,
            (State::ToHbm, true) => State::HbmWithShadow,
            (State::ToHost, false) => State::Hbm,
            (state, _) => return Err(Refused::NotSo(state)),
        };
        self.set(extent, Some(next));
        Ok(())
    }

    /// Gives up the copy in host memory of an extent that is in GPU memory; host memory gets tight.
    ///
    /// # Errors
    /// It has none.
    pub fn drop_shadow(&mut self, extent: ExtentId) -> Result<(), Refused> {
        match self.state(extent)? {
            State::HbmWithShadow => self.set(extent, Some(State::Hbm)),
            state => return Err(Refused::NotSo(state)),
        }
        Ok(())
    }

    /// An extent was written to the node's disk, and leaves both tiers.
    ///
    /// # Errors
    /// It moves, is parked or poisoned.
    pub fn park(&mut self, extent: ExtentId) -> Result<(), Refused> {
        match self.state(extent)? {
            State::Hbm | State::HbmWithShadow | State::Host => {
                self.set(extent, Some(State::Parked));
                Ok(())
            }
            State::ToHost | State::ToHbm => Err(Refused::Moving),
            state => Err(Refused::NotSo(state)),
        }
    }

    /// An extent comes back from disk to a tier; with `None` its bytes could not be read.
    ///
    /// # Errors
    /// It is not parked, or the tier has no room.
    pub fn unpark(&mut self, extent: ExtentId, to: Option<Tier>) -> Result<(), Refused> {
        let (blocks, state) = self.slot(extent)?;
        if state != State::Parked {
            return Err(Refused::NotSo(state));
        }
        let Some(tier) = to else {
            self.set(extent, Some(State::Poisoned));
            return Ok(());
        };
        if blocks > self.room(tier) {
            return Err(Refused::Full {
                wanted: blocks,
                free: self.room(tier),
            });
        }
        let state = match tier {
            Tier::Hbm => State::Hbm,
            Tier::Host => State::Host,
        };
        self.set(extent, Some(state));
        Ok(())
    }
}
