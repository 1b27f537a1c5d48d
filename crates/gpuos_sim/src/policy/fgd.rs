//! Fragmentation gradient descent as its authors evaluated it.

use std::collections::HashMap;

use gpuos_placement::frag::{Fragmentation, Mix, Request, Score, Slot, State, WEIGHT_UNIT};

/// The score that the published figures come from: `100 * sigmoid(loss / 1000)` cut to a whole
/// number, where the loss is the fragmentation before the placement less that after it, in
/// thousandths of a GPU. The cut matters: many nodes are equal, and the first of them in the
/// (random, but fixed) order of nodes is taken, which fills them one after the other.
pub struct Fgd {
    fragmentation: Fragmentation,
    /// `thresholds[k - 1]`: the least loss whose score is `k`.
    thresholds: Vec<i64>,
    memo: HashMap<State, i64>,
}

/// Losses this close to 0 count as 0, for what the integer weights round off; in thousandths of a
/// GPU times [`WEIGHT_UNIT`].
const TOLERANCE: i64 = 50;

impl Fgd {
    /// FGD under a mix.
    pub fn new(mix: &Mix) -> Fgd {
        // The inverse of the sigmoid, once and rounded, so that scores are integers.
        let threshold = |score: u32| {
            let part = f64::from(score) / 100.0;
            let logit = (part / (1.0 - part)).ln();
            (logit * 1000.0 * WEIGHT_UNIT as f64).round() as i64 - TOLERANCE
        };
        Fgd {
            fragmentation: Fragmentation::new(mix),
            thresholds: (1..100).map(threshold).collect(),
            memo: HashMap::new(),
        }
    }

    fn of(&mut self, state: &State) -> i64 {
        // Memory does not count in the measure.
        let key = State {
            memory: 0,
            ..*state
        };
        let fragmentation = &self.fragmentation;
        let of = || fragmentation.of(&key) as i64;
        *self.memo.entry(key).or_insert_with(of)
    }
}

impl Score for Fgd {
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let before = self.of(state);
        let mut best: Option<(i64, Slot)> = None;
        for slot in state.slots(request) {
            let gain = before - self.of(&state.after(request, slot));
            let score = self.thresholds.partition_point(|&least| least <= gain) as i64;
            if best.is_none_or(|(known, _)| score > known) {
                best = Some((score, slot));
            }
        }
        best
    }
}
