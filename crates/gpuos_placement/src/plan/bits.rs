//! Sets of nodes as bits by position, 64 to a word: the planner's way to look at many at once.

/// Words for so many positions.
pub fn words_for(positions: usize) -> usize {
    positions.div_ceil(64)
}

/// The words that hold the positions `start..end`, each with a mask of those in the range.
pub fn words(start: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (start / 64, end.div_ceil(64));
    (first..last).map(move |word| {
        let mut mask = u64::MAX;
        if word == first {
            mask <<= start % 64;
        }
        if (word + 1) * 64 > end {
            mask &= u64::MAX >> (64 - end % 64);
        }
        (word as usize, mask)
    })
}

/// How many positions of the range are in the set.
pub fn count(set: &[u64], start: u32, end: u32) -> u32 {
    words(start, end)
        .map(|(word, mask)| (set[word] & mask).count_ones())
        .sum()
}

/// How many positions are in the set.
pub fn count_all(set: &[u64]) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}

/// How many positions of the range are in both sets.
pub fn count_both(a: &[u64], b: &[u64], start: u32, end: u32) -> u32 {
    words(start, end)
        .map(|(word, mask)| (a[word] & b[word] & mask).count_ones())
        .sum()
}

/// How many positions are in both sets.
pub fn count_both_all(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

/// Whether both sets have a position in common within the range.
pub fn meet(a: &[u64], b: &[u64], start: u32, end: u32) -> bool {
    words(start, end).any(|(word, mask)| a[word] & b[word] & mask != 0)
}

/// The lowest position in the set that is not below `from`.
pub fn next(set: &[u64], from: u32) -> Option<u32> {
    let mut word = from as usize / 64;
    let mut bits = set.get(word)? & u64::MAX << (from % 64);
    while bits == 0 {
        word += 1;
        bits = *set.get(word)?;
    }
    Some(word as u32 * 64 + bits.trailing_zeros())
}

/// The positions in one word of a set, ascending.
pub fn each(word: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        (bits != 0).then(|| {
            bits &= bits - 1;
            word as u32 * 64 + at
        })
    })
}

/// Whether a position is in the set.
pub fn has(set: &[u64], at: u32) -> bool {
    set[at as usize / 64] >> (at % 64) & 1 == 1
}

/// Puts a position into the set, or takes it out.
pub fn set_member(set: &mut [u64], at: u32, member: bool) {
    let bit = 1 << (at % 64);
    if member {
        set[at as usize / 64] |= bit;
    } else {
        set[at as usize / 64] &= !bit;
    }
}
