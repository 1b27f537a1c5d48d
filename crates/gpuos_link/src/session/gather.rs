//! Collects bytes as they come in, up to a length that is known.

/// Bytes of one message so far.
#[derive(Debug, Default)]
pub(super) struct Gather(Vec<u8>);

impl Gather {
    /// Takes of `input` what is missing to `wanted` bytes, and tells how many it took. Memory at most doubles what has arrived.
    pub fn take(&mut self, input: &[u8], wanted: usize) -> usize {
        let taken = input.len().min(wanted.saturating_sub(self.0.len()));
        let needed = self.0.len() + taken;
        if needed > self.0.capacity() {
            let grown = needed.max(self.0.capacity().saturating_mul(2).min(wanted));
            self.0.reserve_exact(grown - self.0.len());
        }
        self.0.extend_from_slice(&input[..taken]);
        taken
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Memory that is held, in bytes.
    pub fn held(&self) -> usize {
        self.0.capacity()
    }

    /// Hands out what was collected, and begins again.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}
