//! What fails together: failure domains by level.

use std::collections::{BTreeMap, BTreeSet};

/// The failure domains of a node: level (`chassis`, `power`, `leaf`) to label. A node without a label at a level, or with an
/// empty one, shares nothing there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeDomains(pub BTreeMap<String, String>);

impl NodeDomains {
    /// From pairs of level and label.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> NodeDomains {
        let owned = pairs.into_iter();
        NodeDomains(
            owned
                .map(|(level, label)| (level.into(), label.into()))
                .collect(),
        )
    }

    fn label(&self, level: &str) -> Option<&str> {
        let label = self.0.get(level).map(String::as_str);
        label.filter(|label| !label.is_empty())
    }
}

/// A level with its domains as numbers, which cost less to compare than texts.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub name: String,
    /// The domain of each node. A node that is alone has a number of its own.
    pub domain: Vec<usize>,
    /// How many nodes each domain has.
    pub sizes: Vec<usize>,
}

impl Level {
    /// All levels that any node names.
    pub fn all(nodes: &[NodeDomains]) -> Vec<Level> {
        let names: BTreeSet<&String> = nodes.iter().flat_map(|node| node.0.keys()).collect();
        names
            .into_iter()
            .map(|name| Level::of(nodes, name))
            .collect()
    }

    fn of(nodes: &[NodeDomains], name: &str) -> Level {
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sizes: Vec<usize> = Vec::new();
        let mut domain = Vec::with_capacity(nodes.len());
        for node in nodes {
            let fresh = sizes.len();
            let number = match node.label(name) {
                Some(label) => *known.entry(label).or_insert(fresh),
                None => fresh,
            };
            if number == fresh {
                sizes.push(0);
            }
            sizes[number] += 1;
            domain.push(number);
        }
        Level {
            name: name.into(),
            domain,
            sizes,
        }
    }

    /// The domain with the most nodes: how many, and one of them. `None` without nodes.
    pub fn largest(&self) -> Option<(usize, usize)> {
        let crowd = self.sizes.iter().max()?;
        let node = self.domain.iter().position(|d| self.sizes[*d] == *crowd)?;
        Some((*crowd, node))
    }

    /// Whether each domain here lies within one domain of `coarser`: who keeps that one apart keeps these apart.
    fn is_within(&self, coarser: &Level) -> bool {
        let mut outer = vec![None; self.sizes.len()];
        let pairs = self.domain.iter().zip(&coarser.domain);
        pairs
            .into_iter()
            .all(|(inner, other)| *outer[*inner].get_or_insert(*other) == *other)
    }
}

/// The levels that say something: of nested ones the coarsest, of equal ones the first, and none without shared domains.
pub(super) fn demanding(levels: &[Level]) -> Vec<&Level> {
    let mut kept: Vec<&Level> = Vec::new();
    for level in levels {
        let shares = level.sizes.iter().any(|size| *size > 1);
        if shares && !kept.iter().any(|coarser| level.is_within(coarser)) {
            kept.retain(|finer| !finer.is_within(level));
            kept.push(level);
        }
    }
    kept
}
