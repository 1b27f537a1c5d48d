//! What the administrator weighs.
use std::fmt;
use std::str::FromStr;

use gpuos_model::hostlist::shorten;

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

    /// What is weighed most; of equals the first.
    pub fn heaviest(&self) -> Objective {
        let weight = |(_, objective): &&(&str, Objective)| self.weight(*objective);
        let most = OBJECTIVES.iter().rev().max_by_key(weight);
        most.map_or(Objective::Throughput, |(_, objective)| *objective)
    }

    /// The weight of an objective in percent.
    pub fn weight(&self, objective: Objective) -> u32 {
        self.weights[objective as usize].into()
    }
}

/// `energy=60,throughput=40`: what has a weight, in the order of [`OBJECTIVES`].
impl fmt::Display for Objectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sign = "";
        for (word, objective) in OBJECTIVES {
            let weight = self.weight(objective);
            if weight > 0 {
                write!(f, "{sign}{word}={weight}")?;
                sign = ",";
            }
        }
        Ok(())
    }
}

/// Reads what [`Objectives`] displays as, in any order. The error is a sentence.
impl FromStr for Objectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Objectives, String> {
        let form = "write percent that add up to 100, such as energy=60,throughput=40";
        let mut weights = [None; 5];
        for part in text.split(',') {
            let (word, number) = part.split_once('=').unwrap_or((part, ""));
            let known = OBJECTIVES.iter().find(|(name, _)| *name == word);
            let Some((_, objective)) = known else {
                let names = OBJECTIVES.map(|(name, _)| name).join(", ");
                return Err(format!("'{}' is not one of {names}; {form}", shorten(word)));
            };
            let number = number
                .parse::<u8>()
                .map_err(|_| format!("{word}: '{}' is no percentage; {form}", shorten(number)))?;
            let slot = &mut weights[*objective as usize];
            if slot.replace(i64::from(number)).is_some() {
                return Err(format!("{word} stands twice; {form}"));
            }
        }
        let weights = weights.map(|weight| weight.unwrap_or(0));
        Objectives::new(weights)
            .map_err(|sum| format!("the weights contradict each other, they make {sum}; {form}"))
    }
}
