//! Allocation against arrived load, and means over seeds.

use crate::protocol::inflation::{ARRIVAL_PERCENT, Standing};

/// Allocation of one run after each whole percent of the cluster's GPUs has arrived, in
/// millionths of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curve {
    ppm: Vec<u64>,
    last: u64,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve::new()
    }
}

impl Curve {
    /// The curve before the first arrival.
    pub fn new() -> Curve {
        Curve {
            ppm: Vec::new(),
            last: 0,
        }
    }

    /// One more arrival.
    pub fn push(&mut self, standing: &Standing) {
        self.last = standing.allocated * 1_000_000 / standing.capacity.max(1);
        let reached = (standing.arrived * 100 / standing.capacity.max(1)).min(ARRIVAL_PERCENT);
        while self.ppm.len() as u64 <= reached {
            self.ppm.push(self.last);
        }
    }

    /// Allocation when `percent` has arrived. The last arrivals may stop just short of 130 %:
    /// from there on it is that at the end.
    pub fn at(&self, percent: usize) -> u64 {
        self.ppm.get(percent).copied().unwrap_or(self.last)
    }
}

/// Mean of some figures, and their standard deviation as a sample's (0 for one figure).
pub fn mean(figures: &[f64]) -> (f64, f64) {
    let count = figures.len() as f64;
    let mean = figures.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = figures.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}
