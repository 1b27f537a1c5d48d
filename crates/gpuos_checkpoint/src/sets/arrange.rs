//! Nodes dealt into sets.

use gpuos_model::hostlist::shorten;

use crate::ids::NodeIndex;
use crate::stripe::Geometry;

use super::cross::cross;
use super::deal::deal;
use super::domains::{Level, NodeDomains, demanding};
use super::refusal::NoSets;
use super::scheme::Scheme;
use super::search::search;

/// Nodes that keep redundancy for each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// In neighbour order, which is that of the job's nodes and goes round: the next one is the right neighbour and has the second
    /// copy of the manifest.
    pub members: Vec<NodeIndex>,
    /// Data shards of a stripe (k): members less parity.
    pub data: u8,
    /// Parity shards of a stripe (m): so many members can be lost.
    pub parity: u8,
}

impl Set {
    /// The stripes of the set, of which members are named by their places here. `None`: the numbers contradict each other, as
    /// those that [`arrange`] gives never do.
    pub fn geometry(&self) -> Option<Geometry> {
        let stripes = Geometry::new(self.members.len(), self.parity.into());
        stripes.filter(|stripes| stripes.data() == self.data)
    }

    /// The place of a node in the set.
    pub fn position(&self, node: NodeIndex) -> Option<usize> {
        self.members.iter().position(|member| *member == node)
    }

    /// Who has the second copy of a member's manifest. `None`: the node is no member, or has no neighbour.
    pub fn right_of(&self, node: NodeIndex) -> Option<NodeIndex> {
        let next = (self.position(node)? + 1) % self.members.len();
        self.members
            .get(next)
            .copied()
            .filter(|right| *right != node)
    }
}

/// The sets of a job's nodes, in the order of their first members; the node at place `i` of `nodes` is `NodeIndex(i)`.
///
/// With `n` the size that the scheme names, sets have `n` to `2n - 1` members. There are `N / n` of them, rounded down, with
/// sizes that differ by one at most: what is left over makes sets larger, with more data and the same parity. No two members
/// of a set share a domain at any level that `nodes` name.
///
/// With one level, with levels of which the coarser contain the finer, and with two that cross each other, sets are found
/// whenever there are any. Three or more that cross make it a colouring of a general graph, which no known algorithm does in
/// bounded time: a search of bounded length then may end without an answer, and may use fewer and larger sets of other sizes.
///
/// # Errors
///
/// [`NoSets`] says whether it is impossible or was not found, and what can be asked for instead.
pub fn arrange(nodes: &[NodeDomains], scheme: Scheme) -> Result<Vec<Set>, NoSets> {
    let scheme = scheme.check().map_err(NoSets::Scheme)?;
    let count = nodes.len();
    if count > usize::from(u16::MAX) + 1 {
        return Err(NoSets::TooMany { nodes: count });
    }
    if scheme == Scheme::Single {
        return Ok(sets_of(&(0..count).collect::<Vec<usize>>(), scheme));
    }
    let levels = Level::all(nodes);
    let crowds = levels
        .iter()
        .filter_map(|level| Some((level.largest()?, level)));
    let crowded = crowds.max_by_key(|((crowd, _), _)| *crowd);
    let crowd = crowded.as_ref().map_or(1, |((crowd, _), _)| *crowd);
    // As many sets as the largest domain has nodes need sets of this size or less.
    let fits = scheme.smaller(count / crowd.max(1));
    if count < scheme.nodes() {
        return Err(NoSets::TooFew {
            scheme,
            nodes: count,
            fits,
        });
    }
    let sets = count / scheme.nodes();
    if let Some(((crowd, node), level)) = crowded.filter(|((crowd, _), _)| *crowd > sets) {
        let label = nodes[node].0.get(&level.name).map(String::as_str);
        return Err(NoSets::Crowded {
            scheme,
            nodes: count,
            level: shorten(&level.name),
            label: shorten(label.unwrap_or_default()),
            crowd,
            sets,
            fits,
        });
    }
    let demanded = demanding(&levels);
    let found = match demanded[..] {
        [] => Some(deal(&vec![0; count], &[count], sets)),
        [level] => Some(deal(&level.domain, &level.sizes, sets)),
        [one, other] => Some(cross(one, other, sets)),
        _ => search(&demanded, scheme.nodes(), sets),
    };
    let found = found.ok_or_else(|| NoSets::NotFound {
        scheme,
        nodes: count,
        levels: demanded.iter().map(|level| shorten(&level.name)).collect(),
        fits: scheme.smaller(scheme.nodes() - 1),
    })?;
    Ok(sets_of(&found, scheme))
}

/// Sets from the number of each node's set.
fn sets_of(set_of: &[usize], scheme: Scheme) -> Vec<Set> {
    let count = set_of.iter().max().map_or(0, |last| last + 1);
    let mut members: Vec<Vec<NodeIndex>> = vec![Vec::new(); count];
    for (node, set) in set_of.iter().enumerate() {
        members[*set].extend(u16::try_from(node).map(NodeIndex));
    }
    members.sort();
    let parity = scheme.parity();
    let set = |members: Vec<NodeIndex>| Set {
        // At most 127 members, of which the scheme has at least one for data.
        data: u8::try_from(members.len())
            .unwrap_or(u8::MAX)
            .saturating_sub(parity),
        members,
        parity,
    };
    members.into_iter().map(set).collect()
}
