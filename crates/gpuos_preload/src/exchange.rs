//! Exchanging extents of a GPU's memory and of the host's, while both ways of the link carry. The gate is sealed meanwhile.

use std::collections::BTreeSet;

use gpuos_memory::table::Tier;

use crate::device::BATCH;
use crate::memory::Memory;
use crate::process::BLOCK;
use crate::range::LARGEST;
use crate::shift::Stride;

/// What comes is brought in so many parts, so that most of what leaves does so meanwhile.
const PARTS: u64 = 4;

/// Moves these to host memory and these to the device's, those beside the ones before. What cannot be moved stays, and what finds no room.
pub(crate) fn exchange(memory: &mut Memory, device: i32, down: &BTreeSet<u32>, up: &BTreeSet<u32>) {
    let bytes = up.iter().map(|number| memory.bytes_of(*number));
    let part = (bytes.sum::<u64>() / PARTS).clamp(BLOCK, LARGEST);
    // An extent that is larger than a part is one by itself.
    let part = |next: Option<&u32>, memory: &Memory| {
        let first = next.map_or(0, |number| memory.bytes_of(*number));
        part.max(first)
    };
    let mut down = down.iter().copied().peekable();
    let mut up = up.iter().copied().peekable();
    let (mut leaving, mut coming): (Option<Stride>, Option<Stride>) = (None, None);
    loop {
        let left = (down.len(), up.len());
        if let Some(stride) = leaving.take() {
            memory.finish(device, stride);
        }
        let most = part(down.peek(), memory);
        let next = memory.stride(device, &mut down, Tier::Host, 0, most);
        leaving = Some(next.0).filter(|stride| !stride.moving.is_empty());
        if let Some(stride) = coming.take() {
            memory.finish(device, stride);
        }
        let most = part(up.peek(), memory).min(memory.room_on(device));
        let next = memory.stride(device, &mut up, Tier::Hbm, BATCH / 2, most);
        coming = Some(next.0).filter(|stride| !stride.moving.is_empty());
        // One that could not be begun is left out, and the next is tried.
        let stands = (down.len(), up.len()) == left;
        if leaving.is_none() && coming.is_none() && stands {
            return;
        }
    }
}
