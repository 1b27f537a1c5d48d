//! The cost of a checkpoint and the rate of failures, from what was seen.
use super::optimum::positive;

/// A new cost counts so much against the ones before: about the last seven count.
const WEIGHT: f64 = 0.25;

/// A running estimate of a cost in seconds: an exponentially weighted mean of the medians of the last three samples. The median keeps
/// any single outlier out (running medians of three: J. W. Tukey, "Exploratory data analysis", 1977). Of two samples the smaller
/// counts, and the first three replace the estimate, so that it does not hang on the first.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    recent: Vec<f64>,
    estimate: Option<f64>,
}

impl Cost {
    /// Takes a sample.
    ///
    /// # Errors
    /// A sentence if it is not a finite number of seconds that is not below 0; the estimate stays.
    pub fn add(&mut self, seconds: f64) -> Result<(), String> {
        if !(seconds.is_finite() && seconds >= 0.0) {
            return Err(format!(
                "a checkpoint cost {seconds} s, which is no time; the sample does not count"
            ));
        }
        let settled = self.recent.len() == 3;
        if settled {
            self.recent.remove(0);
        }
        self.recent.push(seconds);
        let mut sorted = self.recent.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[(sorted.len() - 1) / 2];
        self.estimate = match self.estimate {
            Some(before) if settled => Some(before + WEIGHT * (median - before)),
            _ => Some(median),
        };
        Ok(())
    }

    /// The estimate; `None` before the first sample.
    pub fn seconds(&self) -> Option<f64> {
        self.estimate
    }
}

/// What is known of failures of nodes: a gamma prior for the rate of a Poisson process, updated by exposure and count (A. Gelman et al.,
/// "Bayesian data analysis", 3rd edition, 2013, section 2.6). With the prior Gamma(a, a * M), whose mean is 1/M, and k failures in T
/// node-seconds the rate's mean is (a + k) / (a * M + T).
#[derive(Clone, Debug)]
pub struct Failures {
    /// a: how many failures the site's figure counts as much as.
    weight: f64,
    /// Node-seconds, a * M of the prior included.
    exposure: f64,
    seen: u32,
}

impl Failures {
    /// Begins with the mean time between failures of one node that the site gives. It counts like `weight` failures seen; 2 lets a few
    /// of them change it.
    ///
    /// # Errors
    /// A sentence if one of the two is not a finite number above 0.
    pub fn new(node_mtbf_s: f64, weight: f64) -> Result<Failures, String> {
        let mtbf = positive("the node's mean time between failures", node_mtbf_s)?;
        if !(weight.is_finite() && weight > 0.0) {
            return Err(format!(
                "the weight of the site's figure is {weight}; it has to be above 0, such as 2"
            ));
        }
        let exposure = positive("the weight times that time", mtbf * weight)?;
        Ok(Failures {
            weight,
            exposure,
            seen: 0,
        })
    }

    /// So many nodes ran for so many seconds, and so many of them failed.
    ///
    /// # Errors
    /// A sentence if the time is not a finite number that is not below 0; nothing changes then.
    pub fn observe(&mut self, nodes: u32, seconds: f64, failed: u32) -> Result<(), String> {
        let exposure = self.exposure + f64::from(nodes) * seconds;
        if !(seconds >= 0.0 && exposure.is_finite()) {
            return Err(format!(
                "{nodes} nodes ran for {seconds} s, which is no time; it does not count"
            ));
        }
        self.exposure = exposure;
        self.seen = self.seen.saturating_add(failed);
        Ok(())
    }

    /// How many failures were seen.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// The mean time between failures of one node, in seconds.
    pub fn node_mtbf_s(&self) -> f64 {
        self.exposure / (self.weight + f64::from(self.seen))
    }

    /// The same of a job of so many nodes (0 counts as 1), any of which ends it.
    pub fn job_mtbf_s(&self, nodes: u32) -> f64 {
        self.node_mtbf_s() / f64::from(nodes.max(1))
    }
}
