//! Errors that tests plant, to see that they are found: in builds with debug assertions, by `GPUOS_PRELOAD_MUTANT`. Else there are none.

use std::sync::OnceLock;

/// A planted error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// Graphs are launched past the gate.
    GraphGate,
    /// Kernels are launched past the gate.
    LaunchGate,
    /// Copies and fills go past the gate.
    CopyGate,
    /// Nobody waits until the calls that are inside have left.
    Inside,
    /// Nobody waits for work that is not done.
    Drain,
    /// Only one context is waited for.
    OneContext,
    /// What was moved can only be read.
    ReadOnly,
    /// Nobody has access to what was moved.
    NoAccess,
    /// The last page of an extent is not copied.
    ShortCopy,
    /// Nothing is copied.
    NoCopy,
    /// What is pinned is moved.
    Pinned,
    /// Freed while work is not done.
    FreeDrain,
    /// More is allocated than was granted.
    Grant,
    /// A child of `fork` goes on as if it had a driver.
    Fork,
    /// A process that is told to park moves nothing.
    ParkNothing,
    /// What was parked is not mapped again where the program sees it.
    ParkedUnseen,
    /// A process that is parked lets calls in.
    ParkOpen,
    /// Memory that a program maps more than once is moved in its first mapping alone.
    FirstMap,
    /// A mapping of a part of an extent begins at the extent's first byte once that was moved.
    MapOffset,
    /// What a program has unmapped is mapped again when the memory moves.
    Unmapped,
    /// Physical memory of a handle that is gone is kept.
    HandleKept,
    /// What is freed in the order of a stream is another stream's at once.
    PoolOrder,
    /// What the driver allocates of pools does not count.
    PoolCount,
    /// Nothing is copied to what goes to NVMe.
    StowNothing,
    /// Nothing is copied from what came from there.
    UnstowNothing,
}

const NAMES: [(&str, Mutant); 25] = [
    ("graph-gate", Mutant::GraphGate),
    ("launch-gate", Mutant::LaunchGate),
    ("copy-gate", Mutant::CopyGate),
    ("inside", Mutant::Inside),
    ("drain", Mutant::Drain),
    ("one-context", Mutant::OneContext),
    ("read-only", Mutant::ReadOnly),
    ("no-access", Mutant::NoAccess),
    ("short-copy", Mutant::ShortCopy),
    ("no-copy", Mutant::NoCopy),
    ("pinned", Mutant::Pinned),
    ("free-drain", Mutant::FreeDrain),
    ("grant", Mutant::Grant),
    ("fork", Mutant::Fork),
    ("park-nothing", Mutant::ParkNothing),
    ("parked-unseen", Mutant::ParkedUnseen),
    ("park-open", Mutant::ParkOpen),
    ("first-map", Mutant::FirstMap),
    ("map-offset", Mutant::MapOffset),
    ("unmapped", Mutant::Unmapped),
    ("handle-kept", Mutant::HandleKept),
    ("pool-order", Mutant::PoolOrder),
    ("pool-count", Mutant::PoolCount),
    ("stow-nothing", Mutant::StowNothing),
    ("unstow-nothing", Mutant::UnstowNothing),
];

/// Whether this error is planted.
#[inline]
pub(crate) fn is(mutant: Mutant) -> bool {
    static PLANTED: OnceLock<Option<Mutant>> = OnceLock::new();
    let read = || {
        let name = std::env::var("GPUOS_PRELOAD_MUTANT").ok()?;
        Some(
            NAMES
                .iter()
                .find(|(known, _)| *known == name)
                .expect("a mutant")
                .1,
        )
    };
    cfg!(debug_assertions) && *PLANTED.get_or_init(read) == Some(mutant)
}
