//! The recent mix: which slices and which gangs of whole GPUs come, and how much of each.

/// Classes of requests for slices that are kept.
pub const CLASSES: usize = 32;
/// Kinds of GPU that one pool can have.
pub const KINDS: usize = 8;
/// GPUs that one node can have.
pub const NODE_GPUS: usize = 16;
/// Stands for a kind of GPU that does not serve a class.
pub const NO_PROFILE: u8 = u8::MAX;
/// What the weights of all classes add up to, about.
pub const WEIGHTS: u64 = 1 << 16;

/// What serves one instance, by kind of GPU: the number of a profile or [`NO_PROFILE`].
pub type Class = [u8; KINDS];

/// Arrivals after which all counts lose a sixteenth, so that half of what is known is from the last
/// 350 arrivals. Other values were not tried.
const DECAY_EVERY: u32 = 32;
const DECAY_SHIFT: u32 = 4;
/// What one arrival counts, for each thousandth of a GPU. Above 1 so that decay does not round away.
const UNIT: u64 = 64;
/// A gang counts by its GPUs up to so many: one large job is not what is typical.
const HEAVIEST: u64 = 512;
/// What each class counts before it has come: without it a profile that nobody asked for yet would
/// be worth nothing, and its placements would go first.
const PRIOR: u64 = 64 * 1000;

/// Counts of arrivals, in thousandths of a GPU.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    classes: Vec<(Class, u64)>,
    /// By GPUs on each node, from 1 on.
    gangs: [u64; NODE_GPUS],
    arrived: u32,
}

impl Demand {
    /// Nothing has come. Room for all classes is taken at once.
    pub fn new() -> Demand {
        Demand {
            classes: Vec::with_capacity(CLASSES),
            ..Demand::default()
        }
    }

    /// The classes, in no particular order but always in the same.
    pub fn classes(&self) -> &[(Class, u64)] {
        &self.classes
    }

    /// What gangs of so many GPUs on a node count.
    pub fn gang(&self, gpus: usize) -> u64 {
        gpus.checked_sub(1)
            .and_then(|at| self.gangs.get(at))
            .copied()
            .unwrap_or(0)
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        let slices: u64 = self.classes.iter().map(|class| class.1).sum();
        slices + self.gangs.iter().sum::<u64>()
    }

    /// Makes a class known. Gives its number when it is new or has taken the place of the lightest.
    pub fn know(&mut self, class: &Class) -> Option<usize> {
        if self.classes.iter().any(|(known, _)| known == class) {
            return None;
        }
        if self.classes.len() < CLASSES {
            self.classes.push((*class, PRIOR));
            return Some(self.classes.len() - 1);
        }
        let all = self.classes.iter_mut().enumerate();
        let (at, lightest) = all.min_by_key(|(_, class)| class.1)?;
        lightest.0 = *class;
        Some(at)
    }

    /// Instances of a known class have arrived that take so many thousandths of a GPU together.
    pub fn slices(&mut self, class: &Class, milli: u64) {
        if let Some(known) = self.classes.iter_mut().find(|known| known.0 == *class) {
            known.1 += milli.min(HEAVIEST * 1000) * UNIT;
        }
        self.decay();
    }

    /// A job has arrived that asks for so many whole GPUs on each of so many nodes.
    pub fn gang_arrived(&mut self, gpus: usize, nodes: u32) {
        let milli = 1000
            * (gpus as u64)
                .saturating_mul(u64::from(nodes.max(1)))
                .min(HEAVIEST);
        if let Some(count) = gpus.checked_sub(1).and_then(|at| self.gangs.get_mut(at)) {
            *count += milli * UNIT;
        }
        self.decay();
    }

    fn decay(&mut self) {
        self.arrived += 1;
        if self.arrived < DECAY_EVERY {
            return;
        }
        self.arrived = 0;
        for (_, count) in &mut self.classes {
            *count = (*count - (*count >> DECAY_SHIFT)).max(PRIOR);
        }
        for count in &mut self.gangs {
            *count -= *count >> DECAY_SHIFT;
        }
    }
}
