//! What the administrator weighs.

/// Something to be weighed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// Work done in a time.
    Throughput = 0,
    /// Quick small exchanges between the GPUs of a job.
    Latency = 1,
    /// Work for the energy.
    Energy = 2,
    /// Work for the price.
    Cost = 3,
    /// The best places to those who had less than their share.
    Fairness = 4,
}

/// All objectives with their words in gpuos.toml.
pub const OBJECTIVES: [(&str, Objective); 5] = [
    ("throughput", Objective::Throughput),
    ("latency", Objective::Latency),
    ("energy", Objective::Energy),
    ("cost", Objective::Cost),
    ("fairness", Objective::Fairness),
];

/// Weights in percent, together 100.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objectives {
    weights: [u8; 5],
}

impl Default for Objectives {
    /// Throughput alone.
    fn default() -> Objectives {
        Objectives {
            weights: [100, 0, 0, 0, 0],
        }
    }
}

impl Objectives {
    /// Weights in the order of [`OBJECTIVES`].
    ///
    /// # Errors
    /// They are not 0 to 100 each and 100 together: the sum.
    pub fn new(weights: [i64; 5]) -> Result<Objectives, i64> {
        let sum = weights.iter().fold(0i64, |sum, w| sum.saturating_add(*w));
        let fine = weights.iter().all(|weight| (0..=100).contains(weight));
        match fine && sum == 100 {
            true => Ok(Objectives {
                weights: weights.map(|weight| weight as u8),
            }),
            false => Err(sum),
        }
    }

    /// The weight of an objective in percent.
    pub fn weight(&self, objective: Objective) -> u32 {
        self.weights[objective as usize].into()
    }
}
