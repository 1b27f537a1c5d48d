//! What a fabric is made of, kind by kind, before it becomes a [`super::Net`].
use gpuos_model::cluster::NO_DOMAIN;
use serde::{Deserialize, Serialize};

use super::UNBOUNDED;

/// The most switches of a graph: routes are kept for each pair.
pub const MAX_GRAPH_SWITCHES: usize = 1024;

/// A part of the network with one kind of fabric. A cluster has one island or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Island {
    /// Its name.
    pub name: String,
    /// Node of the cluster at each place of the fabric; `None` where the cluster has no such node.
    pub nodes: Vec<Option<u32>>,
    /// The kind of fabric.
    pub kind: Kind,
    /// Rate of a node's link in hundredths of GB/s: bounds its adapters, and counts where the node
    /// type has none. [`UNBOUNDED`]: the adapters' own rates.
    pub port_units: u32,
    /// All links to other islands together; [`UNBOUNDED`] when they are no bottleneck.
    pub border_units: u32,
}

/// A kind of fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    /// A fat tree or Clos of any depth, rail-optimised or not.
    Tree(Tree),
    /// A torus of any number of dimensions.
    Torus {
        /// Switches in each dimension; places count along the first one first.
        dims: Vec<u32>,
        /// Nodes on each switch.
        per_switch: u32,
        /// Rate of a link between neighbours.
        units: u32,
        /// Whether it is a hypercube: two switches in each dimension, other names for its levels.
        cube: bool,
    },
    /// Groups of switches that are all joined, and groups that are all joined.
    Dragonfly(Dragonfly),
    /// Switches and links as they are.
    Graph(Graph),
}

/// A tree of switches, given by the domains of each level. The switches of a level inside one
/// domain, and their parallel links upwards, count as one.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Tree {
    /// From the leaves upwards.
    pub levels: Vec<TreeLevel>,
    /// Whether a domain of the lowest level has one leaf switch for each rail.
    pub rails: bool,
}

/// One level of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeLevel {
    /// Name of the level.
    pub name: String,
    /// Names of the domains.
    pub domains: Vec<String>,
    /// Domain of each place, or [`NO_DOMAIN`].
    pub of: Vec<u32>,
    /// What a switch of this level has upwards.
    pub uplink: Uplink,
}

/// Capacity of a switch's links upwards, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Uplink {
    /// As much as all its links downwards.
    #[default]
    Full,
    /// A part of that: oversubscription in thousandths, 2000 for 2:1.
    Oversubscribed(u32),
    /// That many hundredths of GB/s.
    Units(u32),
}

impl Uplink {
    /// The capacity of a switch with `down` below it.
    pub(crate) fn capacity(self, down: u64) -> u32 {
        let bounded = |units: u64| units.min(u64::from(UNBOUNDED)) as u32;
        match self {
            Uplink::Full => bounded(down),
            _ if down >= u64::from(UNBOUNDED) && !matches!(self, Uplink::Units(_)) => UNBOUNDED,
            Uplink::Oversubscribed(milli) => {
                bounded((down * 1000 / u64::from(milli.max(1))).max(1))
            }
            Uplink::Units(units) => units,
        }
    }
}

impl Tree {
    /// A regular tree over `places` places: `per_leaf` places on a leaf, then `fanout[i]` switches
    /// under each switch of the next level. Uplinks are given from the leaves upwards; missing ones
    /// are full. Names are `PREFIX-leaf1`, `PREFIX-spine1`, … (no prefix when it is empty).
    pub fn regular(
        prefix: &str,
        places: usize,
        per_leaf: u32,
        fanout: &[u32],
        uplinks: &[Uplink],
        rails: bool,
    ) -> Tree {
        let mut levels = Vec::new();
        let mut width = per_leaf.max(1) as usize;
        for at in 0..=fanout.len() {
            let name = level_name(at);
            let domain = |nth: usize| match prefix {
                "" => format!("{name}{}", nth + 1),
                prefix => format!("{prefix}-{name}{}", nth + 1),
            };
            levels.push(TreeLevel {
                domains: (0..places.div_ceil(width)).map(domain).collect(),
                of: (0..places).map(|place| (place / width) as u32).collect(),
                uplink: uplinks.get(at).copied().unwrap_or_default(),
                name,
            });
            if let Some(&more) = fanout.get(at) {
                width = width.saturating_mul(more.max(1) as usize);
            }
        }
        Tree { levels, rails }
    }

    /// The domain above each domain of a level: that of its first place which has one.
    pub(crate) fn parents(&self, level: usize) -> Vec<u32> {
        let mut parents = vec![NO_DOMAIN; self.levels[level].domains.len()];
        if let Some(above) = self.levels.get(level + 1) {
            for (&domain, &outer) in self.levels[level].of.iter().zip(&above.of) {
                if domain != NO_DOMAIN && parents[domain as usize] == NO_DOMAIN {
                    parents[domain as usize] = outer;
                }
            }
        }
        parents
    }
}

/// A dragonfly with minimal routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dragonfly {
    /// Groups.
    pub groups: u32,
    /// Switches in a group.
    pub routers: u32,
    /// Nodes on a switch.
    pub per_switch: u32,
    /// Rate of the link between two switches of a group.
    pub local_units: u32,
    /// Links between each two groups.
    pub globals: u32,
    /// Rate of one of these.
    pub global_units: u32,
}

/// A graph of switches.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Graph {
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links between them.
    pub links: Vec<GraphLink>,
    /// Where each place hangs: switch by rail, `None` for all rails that are not named.
    pub places: Vec<Vec<(Option<u16>, u32)>>,
}

/// A link of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphLink {
    /// One switch.
    pub a: u32,
    /// The other one.
    pub b: u32,
    /// Rate in each direction.
    pub units: u32,
}

/// Name of a level of a tree, from the leaves upwards.
pub(crate) fn level_name(level: usize) -> String {
    match level {
        0 => "leaf".into(),
        1 => "spine".into(),
        2 => "core".into(),
        more => format!("level{}", more + 1),
    }
}

impl Kind {
    /// Places that the fabric has; `None` when it has as many as are given.
    pub fn places(&self) -> Option<u64> {
        match self {
            Kind::Tree(_) | Kind::Graph(_) => None,
            Kind::Torus {
                dims, per_switch, ..
            } => {
                let switches = dims.iter().map(|&size| u64::from(size));
                Some(switches.fold(u64::from(*per_switch), u64::saturating_mul))
            }
            Kind::Dragonfly(d) => Some(
                u64::from(d.groups)
                    .saturating_mul(d.routers.into())
                    .saturating_mul(d.per_switch.into()),
            ),
        }
    }
}
