//! The typical mix: which requests come, and how often.
use super::request::Request;

/// Classes that a mix keeps at most.
pub const MAX_CLASSES: usize = 256;

/// One class of a mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// What its jobs ask for.
    pub request: Request,
    /// How much it counts, against the sum over the mix.
    pub weight: u64,
}

/// A mix of requests, given or learned. It keeps [`MAX_CLASSES`] classes; past that a new class
/// takes the place of the lightest and its weight (Space-Saving: Metwally, Agrawal, El Abbadi,
/// "Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005), so that
/// the frequent ones stay.
#[derive(Clone, Default, Debug)]
pub struct Mix {
    classes: Vec<Class>,
    total: u64,
}

impl Mix {
    /// A mix with nothing in it.
    pub fn new() -> Mix {
        Mix::default()
    }

    /// The published mix of typical jobs: the requests of `jobs`, memory left aside, by
    /// frequency, cut when `percent` of all jobs are covered. Equal counts are ordered by
    /// request, the larger first. Not bounded: it is made once, from a known workload.
    pub fn typical(jobs: &[Request], percent: u64) -> Mix {
        let mut counts = std::collections::BTreeMap::<Request, u64>::new();
        for job in jobs {
            *counts.entry(Request { memory: 0, ..*job }).or_default() += 1;
        }
        let mut classes: Vec<Class> = counts
            .into_iter()
            .rev()
            .map(|(request, weight)| Class { request, weight })
            .collect();
        classes.sort_by_key(|class| std::cmp::Reverse(class.weight));
        let wanted = jobs.len() as u64 * percent;
        let mut total = 0;
        classes.retain(|class| {
            let keep = total * 100 < wanted;
            total += if keep { class.weight } else { 0 };
            keep
        });
        Mix { classes, total }
    }

    /// Counts one arrival, `weight` times.
    pub fn add(&mut self, request: &Request, weight: u64) {
        self.total += weight;
        if let Some(known) = self.classes.iter_mut().find(|c| c.request == *request) {
            known.weight += weight;
        } else if self.classes.len() < MAX_CLASSES {
            self.classes.push(Class {
                request: *request,
                weight,
            });
        } else if let Some(lightest) = self.classes.iter_mut().min_by_key(|c| c.weight) {
            lightest.request = *request;
            lightest.weight += weight;
        }
    }

    /// The classes, in no particular order but always in the same.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Sum of the weights.
    pub fn total(&self) -> u64 {
        self.total
    }
}
