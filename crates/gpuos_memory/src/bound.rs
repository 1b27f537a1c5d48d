//! The least that can go over the link for a trace that is known beforehand.
//!
//! What is used last gives way, and an extent that is used later than all that are there is not taken in at all (Belady: "A
//! study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5 (2), 1966; with leaving out, Michaud:
//! "Some mathematical facts about optimal cache replacement", ACM TACO 13 (4), 2016). It is the least number of fetches for
//! extents of one size; what is written back beside them it does not minimize.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::trace::{Extent, Touch, Trace};

/// Never again.
const NEVER: usize = usize::MAX;

/// For each touch the next one of the same extent, or [`usize::MAX`] if it is freed first or not touched again.
fn next_uses(trace: &Trace) -> Vec<usize> {
    let mut next = vec![NEVER; trace.touches.len()];
    let mut later: HashMap<Extent, usize> = HashMap::new();
    for (at, touch) in trace.touches.iter().enumerate().rev() {
        let seen = match touch {
            Touch::Free(extent) => later.insert(*extent, NEVER),
            Touch::Read(extent) | Touch::Write(extent) => later.insert(*extent, at),
        };
        next[at] = seen.unwrap_or(NEVER);
    }
    next
}

/// The fetches that no policy can avoid, with room for `capacity` extents.
pub fn fetches(trace: &Trace, capacity: usize) -> u64 {
    let next = next_uses(trace);
    let mut there: HashMap<Extent, usize> = HashMap::new();
    let mut by_use: BTreeSet<(usize, Extent)> = BTreeSet::new();
    // Of all extents that the program has: their bytes exist somewhere.
    let mut known: HashSet<Extent> = HashSet::new();
    let mut fetches = 0;
    for (at, touch) in trace.touches.iter().enumerate() {
        let extent = touch.extent();
        if let Some(used) = there.remove(&extent) {
            by_use.remove(&(used, extent));
        } else if known.contains(&extent) && !matches!(touch, Touch::Free(_)) {
            fetches += 1;
        }
        if let Touch::Free(_) = touch {
            known.remove(&extent);
            continue;
        }
        known.insert(extent);
        let used = next[at];
        if there.len() < capacity {
            there.insert(extent, used);
            by_use.insert((used, extent));
            continue;
        }
        if let Some((last, gives_way)) = by_use.last().copied()
            && last > used
        {
            by_use.remove(&(last, gives_way));
            there.remove(&gives_way);
            there.insert(extent, used);
            by_use.insert((used, extent));
        }
    }
    fetches
}
