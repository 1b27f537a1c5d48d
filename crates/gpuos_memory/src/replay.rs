//! A trace under a policy.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::policy::{Answer, Policy};
use crate::trace::{Extent, Touch, Trace};

/// What went over the link, in extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Touches but frees.
    pub touches: u64,
    /// Touches of what was not in GPU memory: it was taken in, or read or written in place, which moves it once in any case. The first
    /// touch of a new extent is none, for there is nothing to be fetched.
    pub fetched: u64,
    /// Extents that left GPU memory and had been written since they came, so that their copy in host memory was not good any
    /// more; and new ones that were written in host memory at once.
    pub written_back: u64,
}

/// The policy broke a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// It took an extent in where there was no room.
    Full(Extent),
    /// It let one leave that was not there.
    Away(Extent),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Full(extent) => write!(f, "extent {} is taken in without room", extent.0),
            Broken::Away(extent) => write!(f, "extent {} leaves and is not there", extent.0),
        }
    }
}

impl std::error::Error for Broken {}

/// Replays a trace with room for `capacity` extents in GPU memory.
///
/// # Errors
/// The policy broke a rule; none of gpuos's does.
pub fn replay(trace: &Trace, capacity: usize, policy: &mut dyn Policy) -> Result<Moved, Broken> {
    let mut moved = Moved::default();
    // In GPU memory, and whether it was written since it came.
    let mut there: HashMap<Extent, bool> = HashMap::new();
    let mut known: HashSet<Extent> = HashSet::new();
    for touch in &trace.touches {
        let (extent, writes) = match *touch {
            Touch::Read(extent) => (extent, false),
            Touch::Write(extent) => (extent, true),
            Touch::Free(extent) => {
                known.remove(&extent);
                there.remove(&extent);
                policy.freed(extent);
                continue;
            }
        };
        moved.touches += 1;
        if let Some(written) = there.get_mut(&extent) {
            *written |= writes;
            policy.hit(extent);
            continue;
        }
        let new = known.insert(extent);
        let full = there.len() >= capacity;
        match policy.miss(extent, full) {
            Answer::Leave => {
                moved.fetched += u64::from(!new);
                moved.written_back += u64::from(new);
                continue;
            }
            Answer::Take if full => return Err(Broken::Full(extent)),
            Answer::Take => {}
            Answer::Replace(leaves) => {
                let written = there.remove(&leaves).ok_or(Broken::Away(leaves))?;
                moved.written_back += u64::from(written);
            }
        }
        moved.fetched += u64::from(!new);
        // Host memory has nothing of a new one yet.
        there.insert(extent, writes || new);
    }
    Ok(moved)
}
