//! All extents, and lists of them by what can be done with them.

use std::collections::BTreeSet;

use super::pool::Pool;
use super::{Advice, Spot, Tier};

/// Copies of an extent, as bits.
pub(super) mod copy {
    pub(crate) const HBM: u8 = 1;
    pub(crate) const HOST: u8 = 2;
    pub(crate) const FILE: u8 = 4;
    pub(crate) const ZERO: u8 = 8;
    pub(crate) const HOME: u8 = 16;
}

/// What the policy has to do with an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Nothing.
    Out,
    /// It is one that the policy keeps.
    Member,
    /// It is in GPU memory, or about to be, and the policy would rather have others there: the lowest leaves first.
    Guest(u64),
}

/// An extent.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) object: u64,
    pub(super) index: u64,
    pub(super) copies: u8,
    /// Its frame in each tier that has a copy.
    pub(super) frames: [u32; 3],
    pub(super) class: Class,
    pub(super) advice: Advice,
    /// Tickets that hold it.
    pub(super) holds: u32,
    /// Of these, those that may write.
    pub(super) writers: u32,
    /// It is being moved or read, or its object goes.
    pub(super) busy: bool,
    pub(super) poisoned: bool,
    /// When it was acquired last, and when it was written last; 0: never.
    pub(super) used: u64,
    pub(super) written: u64,
}

impl Slot {
    pub(super) fn has(&self, copies: u8) -> bool {
        self.copies & copies != 0
    }

    /// Whether it has copies beside these.
    pub(super) fn has_beside(&self, copies: u8) -> bool {
        self.copies & !copies != 0
    }

    /// Whether it stays in GPU memory whatever is wanted.
    pub(super) fn stays(&self) -> bool {
        self.holds > 0 || self.advice == Advice::Pin && self.has(copy::HBM)
    }

    pub(super) fn can_leave(&self) -> bool {
        self.has(copy::HBM) && !self.stays() && !self.busy
    }

    /// The best copy outside GPU memory.
    pub(super) fn source(&self) -> Spot {
        if self.has(copy::ZERO) {
            Spot::Zero
        } else if self.has(copy::HOST) {
            Spot::Host(self.frames[Tier::Host as usize])
        } else if self.has(copy::HOME) {
            Spot::Home
        } else {
            Spot::File(self.frames[Tier::File as usize])
        }
    }
}

/// The extents, and what of them is where.
pub(super) struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    pub(super) pools: [Pool; 3],
    /// Those in GPU memory, by last use.
    pub(super) resident: BTreeSet<(u64, u32)>,
    pub(super) guests: BTreeSet<(u64, u32)>,
    /// Those in host memory that have another copy, and that have none, by last use.
    pub(super) spare: BTreeSet<(u64, u32)>,
    pub(super) sole: BTreeSet<(u64, u32)>,
    pub(super) members: usize,
    /// How many stay whatever is wanted.
    pub(super) staying: u64,
}

impl Slots {
    pub(super) fn new(limits: [u32; 3]) -> Slots {
        Slots {
            all: Vec::new(),
            free: Vec::new(),
            pools: limits.map(Pool::new),
            resident: BTreeSet::new(),
            guests: BTreeSet::new(),
            spare: BTreeSet::new(),
            sole: BTreeSet::new(),
            members: 0,
            staying: 0,
        }
    }

    pub(super) fn get(&self, at: u32) -> &Slot {
        &self.all[at as usize]
    }

    pub(super) fn pool(&mut self, tier: Tier) -> &mut Pool {
        &mut self.pools[tier as usize]
    }

    pub(super) fn add(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = slot;
                at
            }
            None => {
                self.all.push(slot);
                self.all.len() as u32 - 1
            }
        }
    }

    /// How many more extents can be added.
    pub(super) fn left(&self) -> u64 {
        u64::from(u32::MAX) - self.all.len() as u64 + self.free.len() as u64
    }

    pub(super) fn remove(&mut self, at: u32) {
        self.drop_copies(at, u8::MAX);
        self.change(at, |slot| {
            slot.class = Class::Out;
            slot.holds = 0;
            slot.advice = Advice::Normal;
        });
        self.free.push(at);
    }

    /// Changes an extent and keeps the lists.
    pub(super) fn change(&mut self, at: u32, how: impl FnOnce(&mut Slot)) {
        self.list(at, false);
        how(&mut self.all[at as usize]);
        self.list(at, true);
    }

    fn list(&mut self, at: u32, add: bool) {
        let slot = &self.all[at as usize];
        let put = |list: &mut BTreeSet<(u64, u32)>, by: u64| {
            if add {
                list.insert((by, at));
            } else {
                list.remove(&(by, at));
            }
        };
        if slot.has(copy::HBM) {
            put(&mut self.resident, slot.used);
        }
        if slot.has(copy::HOST) {
            let list = if slot.has_beside(copy::HOST) {
                &mut self.spare
            } else {
                &mut self.sole
            };
            put(list, slot.used);
        }
        if let Class::Guest(order) = slot.class {
            put(&mut self.guests, order);
        }
        let count = |number: u64, counts: bool| match (counts, add) {
            (true, true) => number + 1,
            (true, false) => number - 1,
            _ => number,
        };
        self.members = count(self.members as u64, slot.class == Class::Member) as usize;
        self.staying = count(self.staying, slot.stays());
    }

    /// Gives up these copies of an extent, and their room.
    pub(super) fn drop_copies(&mut self, at: u32, copies: u8) {
        let slot = self.get(at);
        let gone = slot.copies & copies;
        let frames = slot.frames;
        for (tier, bit) in [copy::HBM, copy::HOST, copy::FILE].into_iter().enumerate() {
            if gone & bit != 0 {
                self.pools[tier].give(frames[tier]);
            }
        }
        self.change(at, |slot| slot.copies &= !gone);
    }

    /// An extent has a copy in this frame.
    pub(super) fn add_copy(&mut self, at: u32, tier: Tier, frame: u32) {
        let bit = [copy::HBM, copy::HOST, copy::FILE][tier as usize];
        self.change(at, |slot| {
            slot.copies |= bit;
            slot.frames[tier as usize] = frame;
        });
    }

    /// An extent with a copy in host memory that it can do without.
    pub(super) fn droppable(&self) -> Option<u32> {
        let mut good = self.spare.iter().map(|(_, at)| *at);
        let mut last = None;
        let found = good.find(|at| {
            let slot = self.get(*at);
            if slot.busy {
                return false;
            }
            last = last.or(Some(*at));
            slot.advice != Advice::ReadMostly
        });
        found.or(last)
    }
}
