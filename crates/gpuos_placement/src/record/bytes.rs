//! Numbers and checks in a ring of bytes. Nothing here fails on short or odd bytes.

/// A number at `at`; 0 past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = at
        .checked_add(4)
        .and_then(|end| bytes.get(at..end))
        .and_then(|four| four.try_into().ok());
    found.map_or(0, u32::from_le_bytes)
}

/// A number at `at`; 0 past the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at.saturating_add(4))) << 32
}

/// Stores what fits.
pub fn store(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes
        .get_mut(at..)
        .and_then(|rest| rest.get_mut(..value.len()))
    {
        place.copy_from_slice(value);
    }
}

/// A check over bytes and over where they belong, eight bytes a step: it tells bytes that are
/// whole and in place from those of an earlier lap or of half a write. Never 0.
#[inline(never)]
pub fn check(seed: u64, bytes: &[u8]) -> u32 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = mix(seed ^ PRIME, bytes.len() as u64);
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    hash = mix(mix(hash, u64::from_le_bytes(last)), PRIME);
    ((hash >> 32) ^ hash) as u32 | 1
}
