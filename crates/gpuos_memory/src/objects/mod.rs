//! Objects of programs that say what they use: which of their extents are where, and what is moved next.
//!
//! ```text
//!                   In                     write
//!   Zero, Home  ---------->  HBM + source ------->  HBM alone
//!   Host, File  <----------                <-------
//!                Out: no copy              Out: copied to host memory, or to the file
//! ```
//!
//! An extent has copies: in GPU memory, in host memory, in the file of the process, the file that the program mapped (`Home`), or none that takes room as all its
//! bytes are zero (`Zero`). All copies have the same bytes: who acquires an extent for writing leaves the one in GPU memory and no other. So there
//! are never two different ones, and what has a second copy leaves GPU memory without being copied.
//!
//! [`Objects`] only decides. Whoever moves asks it for the next [`Task`], does it, and says how it went; there is one task at a time. Programs hold what they acquired by
//! tickets; what is held stays. Tickets that have to wait hold nothing, and the first that fits is served with all its extents: two of them never wait
//! for each other.
//!
//! What is promised is there: all objects together fit into the three tiers, with one extent to spare, without which two full tiers could not swap.

mod bytes;
mod plan;
mod pool;
mod slots;
mod state;

use std::fmt;

pub use bytes::Going;
pub use state::Objects;

use crate::link::Bounds;

/// Where room is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// GPU memory, or what stands for it.
    Hbm,
    /// Host memory.
    Host,
    /// A file on the node's disk.
    File,
}

/// What there is for objects.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of an extent.
    pub extent: u64,
    /// Extents that each tier takes, by [`Tier`].
    pub limits: [u32; 3],
    /// A name of [`crate::policy::NAMES`].
    pub policy: String,
    /// What is moved ahead, at most.
    pub ahead: Bounds,
}

/// An object. Ids are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u64);

/// What a program holds extents by. Ids are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TicketId(pub u64);

/// What becomes of an object's extents when they have no copy elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// They begin as zeros.
    Zero,
    /// They are those of a file that nobody writes.
    Home,
}

/// A part of an object, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// What a program knows about a part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Nothing: the policy alone decides.
    Normal,
    /// It leaves GPU memory last.
    Hot,
    /// It leaves as soon as room is needed.
    Cold,
    /// It is rarely written: its copy in host memory is given up last.
    ReadMostly,
    /// It stays in GPU memory once it is there.
    Pin,
}

/// Where a ticket stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Something has to be moved first.
    Waiting,
    /// All of it is in GPU memory and held.
    Held,
    /// It came to nothing, and holds nothing.
    Failed(Refused),
}

/// Where bytes come from or go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// Nowhere: they are zero.
    Zero,
    /// This frame of GPU memory.
    Hbm(u32),
    /// This frame of host memory.
    Host(u32),
    /// This slot of the file.
    File(u32),
    /// The file that the object was made of, at the extent's offset.
    Home,
}

/// What is done with an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It gets a frame of GPU memory, which is filled whole.
    In {
        /// The frame.
        frame: u32,
        /// Where its bytes are.
        from: Spot,
    },
    /// It leaves its frame of GPU memory, as soon as the work that was given before it was released has ended.
    Out {
        /// The frame.
        frame: u32,
        /// Where its bytes go; `None`: they are elsewhere already.
        to: Option<Spot>,
    },
    /// It goes from a frame of host memory to a slot of the file.
    Down {
        /// The frame.
        frame: u32,
        /// The slot.
        slot: u32,
    },
}

/// A move. Nobody else touches the extent meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// The object.
    pub object: ObjectId,
    /// Which of its extents.
    pub index: u64,
    /// Its number among all extents.
    pub extent: u32,
    /// What is done.
    pub kind: Kind,
}

/// How a task went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Well.
    Done,
    /// The place where the bytes were to go is not there after all, as memory of others; they are where they were.
    NoTarget,
    /// The bytes could not be read, and are lost.
    Lost,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This.
    Task(Task),
    /// Nothing, but tickets have changed: tell who waits, and ask again.
    Changed,
    /// Nothing.
    Idle,
}

/// What a program should know, as it can help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A ticket waits for so many extents of GPU memory that others hold or have pinned.
    Wanted(u32),
    /// So many extents of a tier are used or held beyond what it may take now.
    Over(Tier, u32),
    /// A tier had less than it was to have, and takes so many extents from now on.
    Less(Tier, u32),
}

/// What was done so far, in extents.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Acquired and there already.
    pub hits: u64,
    /// Brought into GPU memory.
    pub brought: u64,
    /// Of these, ahead of being acquired.
    pub ahead: u64,
    /// Left GPU memory and were copied.
    pub copied: u64,
    /// Left it without being copied.
    pub dropped: u64,
    /// Written to the file.
    pub filed: u64,
    /// Lost.
    pub poisoned: u64,
}

/// Why something is not done; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No such object has ever been.
    NoObject,
    /// It was freed before.
    Freed,
    /// No such ticket has ever been.
    NoTicket,
    /// It was released before.
    Released,
    /// A size or a length of zero.
    Zero,
    /// The part does not lie in the object, which has so many bytes.
    Outside(u64),
    /// The object is made of a file, and is not written.
    ReadOnly,
    /// The bytes of this extent are lost.
    Poisoned(u64),
    /// This extent of a mapped file could not be read now.
    Unreadable(u64),
    /// More extents than GPU memory takes: wanted, and what it takes.
    TooLarge(u64, u64),
    /// More than all tiers together take: wanted, and what is free.
    Full(u64, u64),
    /// Nothing can leave GPU memory, as the lower tiers are full.
    NoRoom,
    /// So many tickets hold it.
    Held(u32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoObject => write!(f, "there is no such object"),
            Refused::Freed => write!(f, "the object was freed before"),
            Refused::NoTicket => write!(f, "there is no such ticket"),
            Refused::Released => write!(f, "the ticket was released before"),
            Refused::Zero => write!(f, "a size of 0: give at least 1 byte"),
            Refused::Outside(size) => write!(
                f,
                "the part is not inside the object, which has {size} bytes"
            ),
            Refused::ReadOnly => write!(f, "the object is a mapped file, which can only be read"),
            Refused::Poisoned(index) => write!(
                f,
                "the bytes of extent {index} are lost, as they could not be read when they were moved: free the object and make it anew"
            ),
            Refused::Unreadable(index) => write!(
                f,
                "extent {index} of the mapped file cannot be read: the file is shorter than it was, or its disk has an error"
            ),
            Refused::TooLarge(wanted, most) => write!(
                f,
                "{wanted} extents at once, and GPU memory takes {most}: acquire less at a time"
            ),
            Refused::Full(wanted, free) => write!(
                f,
                "{wanted} extents are wanted, and all tiers together have {free} left"
            ),
            Refused::NoRoom => write!(
                f,
                "nothing can leave GPU memory, as host memory and the file are full or held"
            ),
            Refused::Held(times) => write!(f, "{times} tickets hold it: release them first"),
        }
    }
}

impl std::error::Error for Refused {}
