//! Three or more levels that cross each other: a search by seeded swaps.

use gpuos_model::rng::Rng;

use super::cross::cross;
use super::domains::Level;

/// The same on all nodes of a job, which have to find the same.
const SEED: u64 = 0x6770_756f_7353_6574;

/// Pairs of nodes that are compared for each node and number of sets, and at least in all. Own choice: a search in vain among 1,250
/// nodes takes a second without optimisation.
const LOOKS: usize = 2000;
const LEAST_LOOKS: usize = 50_000;

/// Nodes that a node in the wrong set is tried against before the best exchange is made.
const TRIED: usize = 40;

/// One exchange in so many is made though it helps nobody, to leave a dead end.
const UPHILL: u64 = 150;

/// The set of each node, with sets of `least` to `2 * least - 1` members and nothing shared in a set; `None` if none is found.
///
/// Fewer and larger sets are harder for domains and easier for sizes, so these come after `most_sets`.
pub(super) fn search(levels: &[&Level], least: usize, most_sets: usize) -> Option<Vec<usize>> {
    let count = levels.first()?.domain.len();
    let crowd = levels
        .iter()
        .flat_map(|level| level.sizes.iter().copied())
        .max()?;
    let fewest = count.div_ceil(2 * least - 1).max(crowd);
    let tried = (fewest..=most_sets).rev().take(3);
    tried
        .into_iter()
        .find_map(|sets| Table::new(levels, least, sets).settle())
}

/// Nodes at their places, some of them wrong.
struct Table<'a> {
    levels: &'a [&'a Level],
    least: usize,
    set_of: Vec<usize>,
    members: Vec<Vec<usize>>,
    looks: usize,
    rng: Rng,
}

/// A change: who goes where, and who comes back for it.
struct Change {
    to: usize,
    back: Option<usize>,
    /// Shared domains after it less those before.
    gain: i64,
}

impl<'a> Table<'a> {
    /// Begins with the two levels of the largest domains, which can be kept apart in any case.
    fn new(levels: &'a [&'a Level], least: usize, sets: usize) -> Table<'a> {
        let mut largest = levels.to_vec();
        largest.sort_by_key(|level| level.sizes.iter().max().map(|size| usize::MAX - size));
        let set_of = match largest[..] {
            [one, other, ..] => cross(one, other, sets),
            _ => Vec::new(),
        };
        let mut members = vec![Vec::new(); sets];
        for (node, set) in set_of.iter().enumerate() {
            members[*set].push(node);
        }
        Table {
            levels,
            least,
            set_of,
            members,
            looks: 0,
            rng: Rng::new(SEED),
        }
    }

    fn settle(mut self) -> Option<Vec<usize>> {
        let count = self.set_of.len();
        let most = count.saturating_mul(LOOKS).max(LEAST_LOOKS);
        let (mut node, mut right) = (0, 0);
        // A whole round of nodes without a wrong one ends it.
        while right < count {
            if self.looks > most {
                return None;
            }
            match self.shared(node, self.set_of[node], None) {
                0 => right += 1,
                before => {
                    right = 0;
                    self.improve(node, before);
                }
            }
            node = (node + 1) % count;
        }
        Some(self.set_of)
    }

    /// How many domains a node shares with the members of a set, without itself and without `gone`.
    fn shared(&mut self, node: usize, set: usize, gone: Option<usize>) -> i64 {
        let others = self.members[set]
            .iter()
            .filter(|o| **o != node && Some(**o) != gone);
        let levels = self.levels;
        let same = |other: &usize| {
            levels
                .iter()
                .filter(|l| l.domain[*other] == l.domain[node])
                .count()
        };
        self.looks += self.members[set].len();
        others.map(|other| same(other) as i64).sum()
    }

    fn improve(&mut self, node: usize, before: i64) {
        let mut best: Option<Change> = None;
        for _ in 0..TRIED {
            let change = self.change(node, before);
            if let Some(change) = change.filter(|c| best.as_ref().is_none_or(|b| c.gain < b.gain)) {
                best = Some(change);
            }
        }
        let Some(best) = best else { return };
        if best.gain <= 0 || self.rng.below(UPHILL) == 0 {
            let from = self.set_of[node];
            self.seat(node, best.to);
            if let Some(back) = best.back {
                self.seat(back, from);
            }
        }
    }

    /// A change by chance: an exchange with another node, or a move if the sizes of both sets allow it. `None`: this one is of no use.
    fn change(&mut self, node: usize, before: i64) -> Option<Change> {
        let from = self.set_of[node];
        let other = self.rng.below(self.set_of.len() as u64) as usize;
        let to = self.set_of[other];
        if to == from {
            return None;
        }
        let moves =
            self.members[from].len() > self.least && self.members[to].len() < 2 * self.least - 1;
        let back = (!moves || self.rng.below(4) > 0).then_some(other);
        let gain = self.shared(node, to, back) - before;
        // Where this node is worse off, it does not pay to look how the other one would fare.
        let gain = match back {
            _ if gain > 0 => return None,
            Some(other) => {
                gain + self.shared(other, from, Some(node)) - self.shared(other, to, None)
            }
            None => gain,
        };
        Some(Change { to, back, gain })
    }

    fn seat(&mut self, node: usize, to: usize) {
        self.members[self.set_of[node]].retain(|member| *member != node);
        self.members[to].push(node);
        self.set_of[node] = to;
    }
}
