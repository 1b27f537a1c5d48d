//! Which node holds which shard of which stripe.
//!
//! A set has `n` members, of which any `m` can be lost. Each member's segment is cut into `k = n - m` equal **chunks**, and the
//! set has `n` **stripes** of `k` chunks and `m` parity shards, on `n` different members. The places of a stripe rotate over
//! the set, as in RAID 5 with rotating parity (Patterson, Gibson, Katz: "A Case for Redundant Arrays of Inexpensive Disks",
//! SIGMOD 1988), so each member gives all its `k` chunks and holds `m` parity shards. For `n = 5`, `m = 2`:
//!
//! ```text
//!            member 0   member 1   member 2   member 3   member 4
//! stripe 0   parity 0   parity 1   chunk 0    chunk 1    chunk 2
//! stripe 1   chunk 2    parity 0   parity 1   chunk 0    chunk 1
//! stripe 2   chunk 1    chunk 2    parity 0   parity 1   chunk 0
//! stripe 3   chunk 0    chunk 1    chunk 2    parity 0   parity 1
//! stripe 4   parity 1   chunk 0    chunk 1    chunk 2    parity 0
//! ```
//!
//! A column is all that a member has: chunks of its own segment, and parity of others. A row is what belongs together: from any
//! `k` of its shards the other `m` can be computed. Members are counted from 0 in the order of the set, stripes too.

use std::ops::Range;

/// Chunks are a multiple of this many bytes: the block of common file systems and NVMe drives, which direct I/O asks for.
pub const ALIGNMENT: u64 = 4096;

/// The most shards of a stripe: Reed-Solomon codes over GF(2^8) have no more.
pub const MOST_SHARDS: usize = 255;

/// The stripes of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    members: u8,
    parity: u8,
}

/// What stands at a place of a stripe. Both have the length of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// A chunk of the segment of the member that holds it, counted from 0.
    Chunk(u8),
    /// A parity shard of the stripe, counted from 0.
    Parity(u8),
}

/// One shard: where it belongs, who holds it, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard {
    /// The stripe.
    pub stripe: u8,
    /// The place in the stripe, which is the row of the code's matrix: 0 to `k - 1` are data, the `m` after them parity.
    pub place: u8,
    /// The member that holds it.
    pub member: u8,
    /// What it is.
    pub part: Part,
}

impl Geometry {
    /// A set of so many members, of which `parity` can be lost. `None`: no member is left for data, or there are more than
    /// [`MOST_SHARDS`].
    pub fn new(members: usize, parity: usize) -> Option<Geometry> {
        let fits = parity < members && members <= MOST_SHARDS;
        Some(Geometry {
            members: u8::try_from(members).ok().filter(|_| fits)?,
            parity: u8::try_from(parity).ok()?,
        })
    }

    /// Members, and stripes (n).
    pub fn members(self) -> u8 {
        self.members
    }

    /// Parity shards of a stripe (m).
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// Data shards of a stripe, and chunks of a segment (k).
    pub fn data(self) -> u8 {
        self.members - self.parity
    }

    /// The length of a chunk in bytes when the members' segments have these lengths: a `k`-th of the longest, rounded up to
    /// [`ALIGNMENT`]. What is missing at the end of shorter segments counts as zeros. `None`: longer than 64 bits can say.
    pub fn chunk_len(self, segments: &[u64]) -> Option<u64> {
        let longest = segments.iter().max().copied().unwrap_or(0);
        longest
            .div_ceil(self.data().into())
            .checked_next_multiple_of(ALIGNMENT)
    }

    /// The bytes of a segment that make up a chunk; zeros follow up to the chunk's length. Empty: zeros only.
    pub fn bytes_of(self, chunk: u8, chunk_len: u64, segment_len: u64) -> Range<u64> {
        let start = chunk_len.saturating_mul(chunk.into()).min(segment_len);
        let end = start.saturating_add(chunk_len).min(segment_len);
        start..end
    }

    /// The shard at a place of a stripe. `None`: there is no such stripe or place.
    pub fn at(self, stripe: u8, place: u8) -> Option<Shard> {
        if stripe >= self.members || place >= self.members {
            return None;
        }
        let (steps, part) = match place.checked_sub(self.data()) {
            Some(parity) => (parity, Part::Parity(parity)),
            None => (self.parity + place, Part::Chunk(place)),
        };
        let member = self.turned(stripe, steps.into());
        Some(Shard {
            stripe,
            place,
            member,
            part,
        })
    }

    /// All shards of a stripe by place, data first; none if there is no such stripe.
    pub fn stripe(self, stripe: u8) -> impl Iterator<Item = Shard> {
        (0..self.members).filter_map(move |place| self.at(stripe, place))
    }

    /// The shard that is a chunk of a member's segment. `None`: there is no such member or chunk.
    pub fn chunk(self, member: u8, chunk: u8) -> Option<Shard> {
        let exists = member < self.members && chunk < self.data();
        let back = i16::from(self.parity) + i16::from(chunk);
        exists
            .then(|| self.turned(member, -back))
            .and_then(|stripe| self.at(stripe, chunk))
    }

    /// The `m` parity shards that a member holds, which it makes when the set is encoded; none if there is no such member.
    pub fn parities(self, member: u8) -> impl Iterator<Item = Shard> {
        let held = (0..self.parity).filter(move |_| member < self.members);
        held.filter_map(move |parity| {
            let stripe = self.turned(member, -i16::from(parity));
            self.at(stripe, self.data() + parity)
        })
    }

    /// All that a member has, one shard of each stripe: what is made again when it is lost. Chunks in the order of the
    /// segment, then parity.
    pub fn held_by(self, member: u8) -> impl Iterator<Item = Shard> {
        let chunks = (0..self.data()).filter_map(move |chunk| self.chunk(member, chunk));
        chunks.chain(self.parities(member))
    }

    /// A member or stripe some steps further round the set. Steps are less than a whole round.
    fn turned(self, from: u8, steps: i16) -> u8 {
        let round = i16::from(self.members);
        // From 0 to 254.
        (i16::from(from) + steps).rem_euclid(round) as u8
    }
}
