//! Which node types are scarce: the prices of [`crate::frag::prices`], kept current by events.
//!
//! A class of jobs leans on the node types that it accepts and fits when they are idle, and finds
//! the GPUs of those nodes that have as many free as it takes of one. Cores and memory in use are
//! not looked at: that would have to go through the nodes at each decision.
use super::values::{Needs, STEP};
use crate::frag::{Demand, MAX_KINDS, PRICE_PERCENT, PRICE_UNIT, Supply, prices};

/// More GPUs than this on a node count as so many.
const MOST_GPUS: usize = 16;

/// What a class, or several alike, lean on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preference {
    /// GPUs on one node.
    pub gpus: u8,
    /// Node types, by number.
    pub types: u64,
    /// Of [`crate::frag::WEIGHTS`].
    pub weight: u64,
}

/// The GPUs of the cluster by node type: of all nodes on offer, also those that the job at hand may not use.
#[derive(Debug)]
pub struct Supplies {
    /// By type: GPUs of all nodes.
    all: Vec<u64>,
    /// By type and number: idle GPUs on nodes with at least so many of them.
    idle: Vec<[u64; MOST_GPUS + 1]>,
}

/// By node type: what the price of a job adds to the steps by which nodes are compared.
pub type Surcharge = [u16; MAX_KINDS];

impl Supplies {
    /// Nothing is idle.
    pub fn new(gpus: impl Iterator<Item = (u16, usize)>, types: usize) -> Supplies {
        let mut all = vec![0; types];
        for (node_type, gpus) in gpus {
            all[usize::from(node_type)] += gpus as u64;
        }
        Supplies {
            idle: vec![[0; MOST_GPUS + 1]; all.len()],
            all,
        }
    }

    /// A node has other GPUs free than before.
    pub fn change(&mut self, node_type: u16, old: usize, new: usize) {
        let idle = &mut self.idle[usize::from(node_type)];
        for count in &mut idle[..=old.min(MOST_GPUS)] {
            *count -= old as u64;
        }
        for count in &mut idle[..=new.min(MOST_GPUS)] {
            *count += new as u64;
        }
    }

    /// What a job pays on nodes of each type; `None` when it is the same on all.
    pub fn surcharge(&self, leanings: &[Preference], needs: &Needs) -> Option<Surcharge> {
        if leanings.is_empty() {
            return None;
        }
        let sum = |types: u64, gpus: usize| {
            let counted = self.all.iter().zip(&self.idle).enumerate();
            let counted = counted.filter(|(number, _)| types >> number & 1 == 1);
            counted.fold(Supply::default(), |sum, (_, (all, idle))| Supply {
                idle: sum.idle + idle[gpus.min(MOST_GPUS)],
                all: sum.all + all,
            })
        };
        let demands = leanings.iter().map(|leaning| Demand {
            weight: leaning.weight,
            kinds: leaning.types,
            supply: sum(leaning.types, usize::from(leaning.gpus)),
        });
        let prices = prices(self.all.len(), sum(u64::MAX, 0), demands);
        let step = u64::from(STEP) * 100;
        let steps = |price| u64::from(price) * u64::from(needs.gpus) * PRICE_PERCENT / step;
        let steps = prices.map(|price| steps(price).min(u64::from(u16::MAX)) as u16);
        steps.iter().any(|&step| step > 0).then_some(steps)
    }
}

const _: () = assert!(PRICE_UNIT == super::gpus::MILLI as u64);

/// Sums up what classes lean on; nothing when that makes no difference between the types.
pub fn sum_preferences(classes: impl Iterator<Item = Preference>, types: usize) -> Vec<Preference> {
    let mut leanings: Vec<Preference> = Vec::new();
    if !(2..=MAX_KINDS).contains(&types) {
        return leanings;
    }
    let every = u64::MAX >> (64 - types);
    for class in classes.filter(|class| class.types != 0) {
        let same = |l: &&mut Preference| (l.gpus, l.types) == (class.gpus, class.types);
        match leanings.iter_mut().find(same) {
            Some(known) => known.weight += class.weight,
            None => leanings.push(class),
        }
    }
    if leanings.iter().all(|leaning| leaning.types == every) {
        leanings.clear();
    }
    leanings
}
