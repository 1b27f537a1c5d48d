//! What memory consists of: extents, the ranges that they make up, and what the driver alone has.

use gpuos_memory::stow::Digest;
use gpuos_memory::table::{self, ExtentId};

use crate::maps::Held;
use crate::process::BLOCK;
use crate::spare::Piece;

/// Bytes of the largest extent.
pub(crate) const LARGEST: u64 = table::MOST_BLOCKS * BLOCK;

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
    /// Where it is mapped, in addresses of a piece, while the process is parked and nothing is where the program sees it; 0: there it is.
    pub(crate) aside: u64,
    /// It is on NVMe, and has no memory or is getting it.
    pub(crate) stowed: Option<Stowed>,
}

impl Extent {
    /// Where its bytes are, if they are mapped; of what the program maps itself, unless it is parked, a part of the handle.
    pub(crate) fn is_at(&self) -> u64 {
        match self.aside {
            0 => self.at,
            aside => aside,
        }
    }

    /// Its memory, with where that is mapped besides.
    pub(crate) fn piece(&self) -> Piece {
        Piece {
            handle: self.handle,
            at: self.aside,
            bytes: self.bytes,
        }
    }
}

/// An allocation, or physical memory that the program maps itself.
pub(crate) struct Range {
    pub(crate) device: i32,
    /// Of physical memory 0: it belongs to no context.
    pub(crate) context: u64,
    /// As the program asked for it.
    pub(crate) asked: u64,
    /// Whole blocks.
    pub(crate) bytes: u64,
    /// It is never moved any more.
    pub(crate) pinned: bool,
    pub(crate) extents: Vec<Extent>,
    pub(crate) kept: table::Range,
    /// Of physical memory that the program maps itself.
    pub(crate) held: Option<Held>,
    /// The pool that it was allocated from; 0: none.
    pub(crate) pool: u64,
}

impl Range {
    /// Whether the program may hand it to other processes or adapters.
    pub(crate) fn is_for_others(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.prop.handle_types != 0 || held.prop.rdma != 0)
    }
}

/// A context that work can be under way in.
#[derive(Default)]
pub(crate) struct Context {
    /// Its device, once that was asked for.
    pub(crate) device: Option<i32>,
    /// The mover's streams in it: to the GPU's memory, and to the host's.
    pub(crate) streams: [Option<u64>; 2],
}

/// Physical memory that is the driver's alone: large and for others, compressed, of tiles.
pub(crate) struct Native {
    pub(crate) device: i32,
    pub(crate) bytes: u64,
    pub(crate) held: Held,
}

/// An allocation that is the driver's.
pub(crate) struct Small {
    pub(crate) bytes: u64,
    pub(crate) device: i32,
    pub(crate) context: u64,
    /// The pool that it is of; 0: none.
    pub(crate) pool: u64,
}

/// A pool of stream-ordered allocations.
pub(crate) struct Pool {
    pub(crate) device: i32,
    /// Large allocations of it are ranges of ours.
    pub(crate) ours: bool,
    /// Bytes that may stay with it when nothing uses them.
    pub(crate) threshold: u64,
    /// The most bytes that were in use, and that ranges of ours had.
    pub(crate) used_high: u64,
    pub(crate) own_high: u64,
}

/// What was freed in the order of a stream.
pub(crate) struct Ordered {
    pub(crate) what: Freed,
    /// Marks the place in the stream; 0: the stream has come to it.
    pub(crate) event: u64,
    /// The context of the stream.
    pub(crate) context: u64,
    /// The stream, default ones with their thread; `None`: it is there no more.
    pub(crate) stream: Option<(u64, i32)>,
}

/// What that was.
pub(crate) enum Freed {
    /// A range, with its start.
    Range(u64, Range),
    /// The driver's own.
    Small(Small),
}

impl Freed {
    pub(crate) fn device(&self) -> i32 {
        match self {
            Freed::Range(_, range) => range.device,
            Freed::Small(small) => small.device,
        }
    }

    pub(crate) fn pool(&self) -> u64 {
        match self {
            Freed::Range(_, range) => range.pool,
            Freed::Small(small) => small.pool,
        }
    }

    /// Bytes as the program asked for them.
    pub(crate) fn asked(&self) -> u64 {
        match self {
            Freed::Range(_, range) => range.asked,
            Freed::Small(small) => small.bytes,
        }
    }
}
