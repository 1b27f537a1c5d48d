//! The published measure of fragmentation.
use super::mix::Mix;
use super::request::{Request, State};

/// The weights of a mix are scaled so that they add up to about this.
pub const WEIGHT_UNIT: u64 = 1 << 20;

/// `F_n(M)`: the sum over the classes of a mix, by weight, of the idle GPU thousandths of a node
/// that a job of the class cannot use. All of them when it cannot start on the node, else those
/// on GPUs that have less free than it takes of one. For a job without GPUs all idle GPUs count
/// as unusable. Memory is not looked at.
#[derive(Clone, Debug)]
pub struct Fragmentation {
    classes: Vec<(Request, u64)>,
}

impl Fragmentation {
    /// Fragmentation under a mix.
    pub fn new(mix: &Mix) -> Fragmentation {
        let total = mix.total().max(1);
        let scaled =
            |weight: u64| (u128::from(weight) * u128::from(WEIGHT_UNIT)) / u128::from(total);
        let classes = mix.classes().iter();
        Fragmentation {
            classes: classes
                .map(|class| (class.request, scaled(class.weight) as u64))
                .collect(),
        }
    }

    /// Fragmentation of a node state, in thousandths of a GPU times [`WEIGHT_UNIT`].
    pub fn of(&self, state: &State) -> u64 {
        let idle = u64::from(state.idle());
        let unusable = |request: &Request| {
            let starts = request.gpus > 0
                && state.cpu >= request.cpu
                && state.accepts(request)
                && state.gpus_fit(request);
            if !starts {
                return idle;
            }
            let small = state.free.iter().take_while(|&&free| free < request.share);
            small.map(|&free| u64::from(free)).sum()
        };
        self.classes
            .iter()
            .map(|(request, weight)| weight * unusable(request))
            .sum()
    }
}
