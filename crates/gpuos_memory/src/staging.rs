//! What is exchanged between a GPU's memory and the host's just before a program uses it.
//!
//! A program that gives its work to the GPU kernel by kernel says with each one what that touches. Where it does what it did before (a step of
//! training, a pass of a solver), what follows is known: so a kernel that lacks something of the GPU's memory waits until that is there,
//! and what the next ones lack comes with it, in place of what is used latest. A program that does something new is not kept waiting.
//!
//! Whether that is faster the program's own pace tells: how long it takes from one place to the next that is like it, with and without. Where it is
//! not faster it is left alone, and tried again later.
//!
//! To exchange an extent costs about as much as reading it twice where it lies, since both ways of the link are used at once. So one that few
//! kernels use before it would have to leave again stays where it is.

mod pace;

use std::collections::HashSet;

use pace::Pace;

use crate::table::Tier;
use crate::tape::Tape;
use crate::trace::Extent;

/// Touches in a row that have to come as they came before, until what follows is believed.
const SURE: u64 = 64;
/// Touches, of all extents, by which those of one use of an extent lie apart at most, ...
const APART: u64 = 2048;
/// ... and so that a program comes so many times as far until it does the same again.
const PARTS: u64 = 8;
/// Kernels of a use from which on an exchange costs less than reading in place.
const WORTH: usize = 2;
/// What follows is looked through for so many touches.
const LOOKED: usize = 4096;

/// What a program did with one GPU, kernel by kernel.
#[derive(Default)]
pub struct Staging {
    tape: Tape,
    pace: Pace,
}

/// What leaves the GPU's memory and what comes: what is used latest first, and what is used soonest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exchange {
    /// Goes to host memory.
    pub down: Vec<Extent>,
    /// Comes to the GPU's.
    pub up: Vec<Extent>,
}

impl Exchange {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.up.is_empty() && self.down.is_empty()
    }
}

/// An extent that the GPU's memory lacks.
struct Lacking {
    extent: Extent,
    bytes: u64,
    /// So many touches from now on it is used; 0 by the kernel that waits.
    ahead: u64,
}

impl Staging {
    /// A program of which nothing is known.
    pub fn new() -> Staging {
        Staging::default()
    }

    /// The same, of which nobody looks whether it is faster so.
    pub fn always() -> Staging {
        Staging {
            pace: Pace::always(),
            ..Staging::default()
        }
    }

    /// The program is about to give the GPU a kernel that touches these. `now`: microseconds since any moment.
    pub fn kernel(&mut self, named: &[Extent], now: u64) {
        for extent in named {
            self.tape.touched(*extent);
        }
        match self.tape.period().filter(|_| self.tape.run() >= SURE) {
            Some(period) => self.pace.at(self.tape.count(), now, period),
            None => self.pace.lost(),
        }
    }

    /// Whether the program does what it did before and is faster so, as far as that is known: [`Staging::exchange`] has an answer.
    pub fn is_used(&self) -> bool {
        self.tape.run() >= SURE && self.pace.is_on()
    }

    /// What is to be exchanged before the kernel that touches `named` begins. `place` says in which tier an extent is that can be moved, with its
    /// bytes; `resident` are those in the GPU's memory, `room` the bytes that are free there, and `most` what comes at once.
    pub fn exchange(
        &self,
        named: &[Extent],
        resident: impl Iterator<Item = (Extent, u64)>,
        place: impl Fn(Extent) -> Option<(Tier, u64)>,
        room: u64,
        most: u64,
    ) -> Exchange {
        let mut exchange = Exchange::default();
        if !self.is_used() {
            return exchange;
        }
        let lacking = self.lacking(named, place, most);
        if lacking.is_empty() {
            return exchange;
        }
        let kept: HashSet<Extent> = named.iter().copied().collect();
        let mut leaving: Vec<(u64, Extent, u64)> = resident
            .filter(|(extent, _)| !kept.contains(extent))
            .map(|(extent, bytes)| (self.next(extent, 0), extent, bytes))
            .collect();
        leaving.sort_unstable_by_key(|(next, ..)| *next);
        let mut room = room;
        let period = self.tape.period().unwrap_or(u64::MAX);
        let apart = APART.min(period / PARTS);
        for one in lacking {
            let again = self.next(one.extent, one.ahead + apart);
            let is_worth = self.tape.uses(one.extent, one.ahead, apart) + 1 >= WORTH;
            let mut left = leaving.len();
            let mut there = room;
            while there < one.bytes && left > 0 {
                let (next, _, bytes) = leaving[left - 1];
                if next <= one.ahead || (next <= again && !is_worth) {
                    break;
                }
                left -= 1;
                there += bytes;
            }
            if there < one.bytes {
                continue;
            }
            let gone = leaving.drain(left..).rev().map(|(_, extent, _)| extent);
            exchange.down.extend(gone);
            exchange.up.push(one.extent);
            room = there - one.bytes;
        }
        exchange
    }

    /// What the kernel lacks, and the kernels that follow.
    fn lacking(
        &self,
        named: &[Extent],
        place: impl Fn(Extent) -> Option<(Tier, u64)>,
        most: u64,
    ) -> Vec<Lacking> {
        let mut seen = HashSet::new();
        let (mut lacking, mut sum) = (Vec::new(), 0);
        let now = named.iter().map(|extent| (*extent, 0));
        let looked = usize::try_from(self.tape.run()).unwrap_or(usize::MAX);
        let next = self.tape.ahead().take(looked.min(LOOKED)).zip(1..);
        for (extent, ahead) in now.chain(next) {
            if ahead > 0 && lacking.is_empty() {
                break;
            }
            let Some((Tier::Host, bytes)) = place(extent) else {
                continue;
            };
            if !seen.insert(extent) {
                continue;
            }
            if sum + bytes > most {
                break;
            }
            sum += bytes;
            lacking.push(Lacking {
                extent,
                bytes,
                ahead,
            });
        }
        lacking
    }

    /// In how many touches an extent is used, after so many have passed; a large number where that is not known.
    fn next(&self, extent: Extent, passed: u64) -> u64 {
        self.tape.next_after(extent, passed).unwrap_or(u64::MAX)
    }
}
