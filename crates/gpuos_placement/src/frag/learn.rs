//! The mix of jobs as a scheduler learns it: what each job asks of one node, counted as it arrives.
use serde::{Deserialize, Serialize};

/// Classes that are counted at most.
const COUNTED: usize = 256;
/// Classes that values are computed from, the heaviest ones: the work grows with them.
const MOST: usize = 96;
/// Arrivals before anything is concluded from them: first conclusions at 64 lost 0.1 points on openb.
const FIRST: u64 = 16;
/// A job counts by its GPUs, up to so many: one large gang is not what is typical.
const HEAVIEST: u64 = 512;
/// What the weights of all classes add up to, about.
pub const WEIGHTS: u64 = 1 << 16;

/// What jobs of one class ask of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Share {
    /// GPUs.
    pub gpus: u8,
    /// CPUs.
    pub cpus: u32,
    /// Host memory in GiB, rounded up.
    pub memory_gib: u32,
    /// The node types that it accepts, by number; bit `n` is type `n`. 0 = any.
    pub types: u64,
}

/// The mix of jobs that is expected, and how large idle nodes are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Expected {
    /// Classes and their weights, the heaviest first.
    pub classes: Vec<(Share, u32)>,
    /// By node type: the most CPUs, and the most memory in MiB, that a node of it has.
    pub nodes: Vec<(u32, u64)>,
}

impl Expected {
    /// The part of the mix that asks for each number of GPUs per node, in percent, the largest
    /// part first.
    pub fn sizes(&self) -> Vec<(u8, u32)> {
        let mut sums = [0u64; 256];
        for (share, weight) in &self.classes {
            sums[usize::from(share.gpus)] += u64::from(*weight);
        }
        let all = sums.iter().sum::<u64>().max(1);
        let part = |(gpus, &sum): (usize, &u64)| (gpus as u8, ((sum * 100 + all / 2) / all) as u32);
        let mut sizes: Vec<(u8, u32)> = sums.iter().enumerate().map(part).collect();
        sizes.retain(|size| size.1 > 0);
        sizes.sort_by_key(|&(gpus, percent)| (std::cmp::Reverse(percent), gpus));
        sizes
    }
}

/// Counts jobs as they arrive, and says when enough has changed to draw conclusions anew: after
/// the first 16, then whenever twice as many have arrived. Past 256 classes a new one takes the
/// place of the lightest and its weight, as in [`super::Mix`].
#[derive(Clone, Debug, Default)]
pub struct Learner {
    classes: Vec<(Share, u64)>,
    arrived: u64,
    concluded: u64,
}

impl Learner {
    /// Knows nothing yet.
    pub fn new() -> Learner {
        Learner {
            classes: Vec::with_capacity(COUNTED),
            ..Learner::default()
        }
    }

    /// A job has arrived that asks this of each of so many nodes. Without GPUs it does not count.
    pub fn arrives(&mut self, share: Share, nodes: u32) {
        if share.gpus == 0 {
            return;
        }
        self.arrived += 1;
        let weight = (u64::from(share.gpus) * u64::from(nodes.max(1))).min(HEAVIEST);
        if let Some(known) = self.classes.iter_mut().find(|class| class.0 == share) {
            known.1 += weight;
        } else if self.classes.len() < COUNTED {
            self.classes.push((share, weight));
        } else if let Some(lightest) = self.classes.iter_mut().min_by_key(|class| class.1) {
            *lightest = (share, lightest.1 + weight);
        }
    }

    /// Jobs with GPUs that have arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Whether [`Learner::expected`] would say something new.
    pub fn due(&self) -> bool {
        self.arrived >= FIRST.max(self.concluded * 2)
    }

    /// The mix so far, for nodes of these sizes (see [`Expected::nodes`]).
    pub fn expected(&mut self, nodes: Vec<(u32, u64)>) -> Expected {
        self.concluded = self.arrived;
        let mut heaviest = self.classes.clone();
        heaviest.sort_by_key(|&(share, weight)| (std::cmp::Reverse(weight), share));
        heaviest.truncate(MOST);
        let all = heaviest.iter().map(|class| class.1).sum::<u64>().max(1);
        let scaled =
            |weight: u64| (u128::from(weight) * u128::from(WEIGHTS) / u128::from(all)) as u32;
        Expected {
            classes: heaviest
                .into_iter()
                .map(|(share, weight)| (share, scaled(weight).max(1)))
                .collect(),
            nodes,
        }
    }

    /// Forgets what was concluded, not what was counted: for a planner that begins anew.
    pub fn reset_conclusions(&mut self) {
        self.concluded = 0;
    }
}
