//! What it costs others when a job takes a GPU of a kind of node that few nodes are of.
//!
//! Jobs name GPU models, or ask for as many GPUs or cores as only some nodes have. Two jobs of
//! the same size fill a node as well, but one that can run anywhere should stay off the nodes
//! that others have no choice but to wait for. So a GPU of each kind of node has a price, in the
//! manner of the dual prices of a transport problem: how much of the demand leans on it, by how
//! much idle capacity there is that serves the same demand. With `w_c` the part of the mix that a
//! class has, `I` the idle GPUs, `C` all GPUs, and `I_c`, `C_c` those of them that a job of the
//! class could use,
//!
//! `price(k) = sum over the classes c that k can run of w_c * (I + e C) / (I_c + e C_c)`
//!
//! less the same for the cheapest kind. A kind that nobody needs more than another is at 0; where
//! the idle GPUs of a kind run out the price goes up, and jobs with a choice go elsewhere before
//! it is too late. `e`, here [`COMING`], stands for the GPUs that become free again.
use super::learn::WEIGHTS;

/// A price is given in thousandths; 1000 is what a GPU is worth where demand is even.
pub const PRICE_UNIT: u64 = 1000;
/// What counts of a price, in percent: see docs/results/placement-tried.md for others.
pub const PRICE_PERCENT: u64 = 60;
/// Part of all GPUs that counts as idle besides, in thousandths.
const COMING: u64 = 20;
/// A price is at most this: that nothing is idle for a class does not say how long.
const MOST: u64 = 3 * PRICE_UNIT;
/// Kinds of nodes that have prices; those after them are as cheap as the cheapest.
pub const MAX_KINDS: usize = 64;

/// GPUs, in any unit as long as it is the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Supply {
    /// Those that are idle.
    pub idle: u64,
    /// All, idle or not.
    pub all: u64,
}

impl Supply {
    fn counted(self) -> u64 {
        self.idle + self.all * COMING / 1000
    }
}

/// What one class of jobs asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Its part of the mix, of [`WEIGHTS`].
    pub weight: u64,
    /// The kinds of nodes that it can run on: bit `k` is kind `k`.
    pub kinds: u64,
    /// The GPUs that it could use.
    pub supply: Supply,
}

/// Prices by kind of node, of at most [`MAX_KINDS`].
pub type Prices = [u32; MAX_KINDS];

/// The prices of `kinds` kinds of nodes, in [`PRICE_UNIT`]. A class without any supply has no
/// say. Allocates nothing.
pub fn prices(kinds: usize, whole: Supply, demands: impl Iterator<Item = Demand>) -> Prices {
    let kinds = kinds.min(MAX_KINDS);
    let mut prices: Prices = [0; MAX_KINDS];
    for demand in demands.filter(|demand| demand.supply.all > 0) {
        let supply = u128::from(demand.supply.counted().max(1) * WEIGHTS);
        let part = u128::from(PRICE_UNIT * demand.weight) * u128::from(whole.counted()) / supply;
        let part = part.min(u128::from(u32::MAX)) as u32;
        for (kind, price) in prices[..kinds].iter_mut().enumerate() {
            let leans = demand.kinds >> kind & 1 == 1;
            *price = price.saturating_add(if leans { part } else { 0 });
        }
    }
    let least = prices[..kinds].iter().min().copied().unwrap_or(0);
    for price in &mut prices[..kinds] {
        *price = (*price - least).min(MOST as u32);
    }
    prices
}
