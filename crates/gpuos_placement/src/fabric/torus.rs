//! The order of a torus.

/// The sizes of a torus.
#[derive(Clone, Debug)]
pub(crate) struct Torus(pub Vec<u32>);

impl Torus {
    /// Rank of a switch on a walk that goes from neighbour to neighbour: the reflected code (Gray
    /// code on a hypercube), rows back and forth on a torus.
    pub fn snake(&self, switch: u32) -> u64 {
        let mut rank = 0u64;
        for dim in (0..self.0.len()).rev() {
            let size = self.0[dim];
            let stride: u32 = self.0[..dim].iter().product();
            let at = switch / stride % size;
            let digit = if rank % 2 == 1 { size - 1 - at } else { at };
            rank = rank * u64::from(size) + u64::from(digit);
        }
        rank
    }
}
