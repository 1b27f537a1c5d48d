//! Frames of a tier, by number.

/// Frames that are given out and taken back. Those that were given back last go out first.
pub(super) struct Pool {
    pub(super) limit: u32,
    pub(super) used: u32,
    back: Vec<u32>,
    /// Frames from here on were never given out.
    next: u32,
}

impl Pool {
    pub(super) fn new(limit: u32) -> Pool {
        Pool {
            limit,
            used: 0,
            back: Vec::new(),
            next: 0,
        }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if self.used >= self.limit {
            return None;
        }
        self.used += 1;
        Some(self.back.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        }))
    }

    pub(super) fn give(&mut self, frame: u32) {
        self.used -= 1;
        self.back.push(frame);
    }

    pub(super) fn over(&self) -> u32 {
        self.used.saturating_sub(self.limit)
    }

    /// Frames that nobody uses, where there are more frames than the tier may have.
    pub(super) fn surplus(&self) -> &[u32] {
        if self.next > self.limit {
            &self.back
        } else {
            &[]
        }
    }
}
