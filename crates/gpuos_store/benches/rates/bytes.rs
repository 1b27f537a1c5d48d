//! Bytes that do not compress, and the time that something takes with them.

use std::time::Instant;

pub const MIB: usize = 1 << 20;

/// Bytes that no other seed has.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// MiB/s of what is done with so many bytes.
pub fn rate(bytes: usize, what: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    what();
    bytes as f64 / MIB as f64 / begun.elapsed().as_secs_f64()
}
