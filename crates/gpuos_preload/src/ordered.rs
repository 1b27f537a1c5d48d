//! Memory that is allocated and freed in the order of a stream. A large allocation is there when the call returns, which is earlier than its
//! order asks for; what is freed goes when an event in the stream says so, or to who allocates next in the same stream.

use gpuos_driver::code;

use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::process::BLOCK;
use crate::range::{Freed, Ordered, Pool, Small};
use crate::vmm;

/// A stream: its context, and what it is known by, default ones with their thread.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) key: (u64, i32),
    /// As the driver's functions for events take it.
    pub(crate) handle: u64,
}

/// What is known of a pool; a device's default pool is seen here for the first time. `None`: its memory is none of a device whose memory
/// is in tiers, or nobody knows.
pub(crate) fn pool(memory: &mut Memory, handle: u64) -> Option<&mut Pool> {
    if !memory.pools.contains_key(&handle) {
        let devices = (0..vmm::count().unwrap_or(0)).filter_map(|number| vmm::nth(number).ok());
        let mut devices = devices.filter(|device| vmm::default_pool(*device) == Ok(handle));
        let device = devices.next()?;
        saw(memory, handle, device, true);
    }
    memory.pools.get_mut(&handle)
}

/// A pool is there.
pub(crate) fn saw(memory: &mut Memory, handle: u64, device: i32, ours: bool) {
    let pool = Pool {
        device,
        ours,
        threshold: 0,
        used_high: 0,
        own_high: 0,
    };
    memory.pools.insert(handle, pool);
}

/// Allocates from a pool of ours: what was freed before in the same stream, or is kept, or new memory.
pub(crate) fn allocate(
    memory: &mut Memory,
    (handle, device): (u64, i32),
    stream: Stream,
    bytes: u64,
) -> Result<u64, u32> {
    let whole = bytes.checked_next_multiple_of(BLOCK);
    // What was freed before a peer came, that has no access to.
    let alone = memory
        .device(device)
        .is_some_and(|there| there.peers.is_empty());
    let fits = |one: &Ordered| {
        let own = match &one.what {
            Freed::Range(_, range) => {
                range.pool == handle
                    && range.context == stream.context
                    && Some(range.bytes) == whole
                    && !range.pinned
                    // What was lost has addresses alone.
                    && range.extents.iter().all(|extent| extent.handle != 0)
            }
            Freed::Small(_) => false,
        };
        let first = one.event == 0
            || one.context == stream.context && one.stream == Some(stream.key)
            || mutant::is(Mutant::PoolOrder);
        alone && own && first
    };
    if let Some(at) = memory.ordered.iter().position(fits) {
        let one = memory.ordered.swap_remove(at);
        forget_event(&one);
        if let Freed::Range(start, mut range) = one.what {
            range.asked = bytes;
            memory.adopt(start, range);
            return Ok(start);
        }
    }
    let start = memory.allocate(device, stream.context, bytes)?;
    if let Some(range) = memory.ranges.get_mut(&start) {
        range.pool = handle;
    }
    Ok(start)
}

fn forget_event(one: &Ordered) {
    if one.event != 0 {
        let _ = vmm::within(one.context, || vmm::destroy_event(one.event));
    }
}

/// Notes how much a pool had at most.
pub(crate) fn raise(memory: &mut Memory, handle: u64) {
    let (used, own) = (used(memory, handle), own(memory, handle));
    if let Some(pool) = memory.pools.get_mut(&handle) {
        pool.used_high = pool.used_high.max(used);
        pool.own_high = pool.own_high.max(own);
    }
}

/// Bytes of a pool that the program uses: what a stream has not come to yet is used still.
pub(crate) fn used(memory: &Memory, pool: u64) -> u64 {
    let ranges = memory.ranges.values().filter(|range| range.pool == pool);
    let small = memory.small.values().filter(|small| small.pool == pool);
    let under_way = memory
        .ordered
        .iter()
        .filter(|one| one.event != 0 && one.what.pool() == pool);
    ranges.map(|range| range.asked).sum::<u64>()
        + small.map(|small| small.bytes).sum::<u64>()
        + under_way.map(|one| one.what.asked()).sum::<u64>()
}

/// Bytes of ranges of ours that a pool has, in use or not.
pub(crate) fn own(memory: &Memory, pool: u64) -> u64 {
    let ranges = memory.ranges.values().filter(|range| range.pool == pool);
    ranges.map(|range| range.bytes).sum::<u64>() + freed(memory, pool, false)
}

/// Bytes of ranges that were freed; only of those that nothing uses any more, where that is asked.
fn freed(memory: &Memory, pool: u64, idle: bool) -> u64 {
    let ordered = memory.ordered.iter().filter(|one| !idle || one.event == 0);
    let ranges = ordered.filter_map(|one| match &one.what {
        Freed::Range(_, range) if range.pool == pool => Some(range.bytes),
        _ => None,
    });
    ranges.sum()
}

/// Frees in the order of a stream: what is given here goes when that has come to the event.
pub(crate) fn free(memory: &mut Memory, what: Freed, event: u64, stream: Stream) {
    memory.ordered.push(Ordered {
        what,
        event,
        context: stream.context,
        stream: Some(stream.key),
    });
}

/// Gives back what streams have come to. `keep`: as much as its pool may keep stays for who allocates next.
pub(crate) fn settle(memory: &mut Memory, keep: bool) {
    let waiting = std::mem::take(&mut memory.ordered);
    for mut one in waiting {
        if one.event != 0 {
            // Of a context that has failed or ended nothing is under way.
            if vmm::within(one.context, || vmm::is_done(one.event)) == Err(code::NOT_READY) {
                memory.ordered.push(one);
                continue;
            }
            forget_event(&one);
            one.event = 0;
        }
        match one.what {
            Freed::Small(small) => memory.uncount(&small),
            Freed::Range(start, range) => {
                let pool = memory
                    .pools
                    .get(&range.pool)
                    .filter(|pool| pool.ours && keep);
                let room = pool.map_or(0, |pool| pool.threshold);
                if freed(memory, range.pool, true).saturating_add(range.bytes) <= room {
                    let what = Freed::Range(start, range);
                    memory.ordered.push(Ordered { what, ..one });
                } else {
                    memory.give(start, range);
                }
            }
        }
    }
}

/// Gives back what a pool keeps beyond so many bytes.
pub(crate) fn trim(memory: &mut Memory, pool: u64, most: u64) {
    settle(memory, true);
    let mut at = 0;
    while at < memory.ordered.len() && own(memory, pool) > most {
        let one = &memory.ordered[at];
        if one.event == 0
            && one.what.pool() == pool
            && let Freed::Range(start, range) = memory.ordered.swap_remove(at).what
        {
            memory.give(start, range);
        } else {
            at += 1;
        }
    }
}

/// Gives back what pools keep, where a device has too little left for so many bytes.
pub(crate) fn make_room(memory: &mut Memory, device: i32, bytes: u64) {
    if !memory.ordered.is_empty() && memory.info(device).is_some_and(|(free, _)| bytes > free) {
        settle(memory, false);
    }
}

/// Whether something of a device is to come back.
pub(crate) fn is_under_way(memory: &Memory, device: i32) -> bool {
    memory.ordered.iter().any(|one| one.what.device() == device)
}

/// A stream ends: who has its number next is another one.
pub(crate) fn ended(memory: &mut Memory, key: (u64, i32)) {
    for one in &mut memory.ordered {
        if one.stream == Some(key) {
            one.stream = None;
        }
    }
}

/// An allocation of a pool that the driver made.
pub(crate) fn saw_small(memory: &mut Memory, at: u64, small: Small) {
    if !mutant::is(Mutant::PoolCount) {
        memory.saw_small(at, small);
    }
}
