//! Numbers from a seed, the same in every run and on every machine. The figures of docs/internals/defrag.md hang on them.
#![allow(dead_code, reason = "each test uses its part")]

/// Knuth's linear congruential generator (MMIX), of which the upper bits count.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`; 0 when that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit.max(1)
    }

    /// The same for an index.
    pub fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}
