//! `[[fabric.net]]`: a fabric of a known kind, built from its sizes.
use std::collections::HashMap;

use gpuos_model::cluster::{FabricLevel, NO_DOMAIN};
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use gpuos_placement::fabric::{
    Dragonfly, Graph, GraphLink, Island, Kind, MAX_GRAPH_SWITCHES, Tree, UNBOUNDED, Uplink, units,
};
use toml::Spanned;

use super::fabric::hosts;
use super::raw::{RawNet, RawNetLink, RawNetSwitch};

/// The most `[[fabric.net]]` tables.
const MAX_NETS: usize = 64;

const HEADER: &str = "[[fabric.net]]";

/// The words for `kind`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    FatTree,
    Rail,
    Torus,
    Hypercube,
    Dragonfly,
    Graph,
    NvLink,
}

const KINDS: &[(&str, Word)] = &[
    ("fat-tree", Word::FatTree),
    ("rail", Word::Rail),
    ("torus", Word::Torus),
    ("hypercube", Word::Hypercube),
    ("dragonfly", Word::Dragonfly),
    ("graph", Word::Graph),
    ("nvlink", Word::NvLink),
];

/// One `[[fabric.net]]`, by names of nodes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NetConfig {
    pub name: String,
    pub place: Place,
    /// Nodes in the order of their places.
    pub nodes: Vec<String>,
    shape: Shape,
    node_units: u32,
    border_units: u32,
}

#[derive(Clone, PartialEq, Debug)]
enum Shape {
    /// A fabric between adapters; of a tree, what it is made of.
    Fabric(Kind),
    Tree {
        per_leaf: u32,
        fanout: Vec<u32>,
        uplinks: Vec<Uplink>,
        rails: bool,
    },
    /// NVLink domains of that many nodes.
    NvLink { per_domain: u32, gbps: f32 },
}

impl NetConfig {
    /// Reads the tables, and checks that no name and no node stands in two.
    pub fn read_all(
        check: Check,
        tables: &[Spanned<RawNet>],
    ) -> Result<Vec<NetConfig>, ConfigError> {
        let mut nets: Vec<NetConfig> = Vec::new();
        let mut owners: HashMap<(bool, String), usize> = HashMap::new();
        for table in tables {
            if nets.len() == MAX_NETS {
                return Err(check.error(table, format!("more than {MAX_NETS} {HEADER}")));
            }
            let net = read(check, table)?;
            if nets.iter().any(|other| other.name == net.name) {
                let message = format!("net {} is described twice; remove one", net.name);
                return Err(check.error(table, message));
            }
            for node in &net.nodes {
                let key = (net.is_nvlink(), node.clone());
                if let Some(other) = owners.insert(key, nets.len()) {
                    let message = match nets.get(other) {
                        None => format!("node {node} stands in net {} twice", net.name),
                        Some(other) => format!(
                            "node {node} is in net {} and in net {}; keep it in one of them",
                            other.name, net.name
                        ),
                    };
                    return Err(check.error(table, message));
                }
            }
            nets.push(net);
        }
        Ok(nets)
    }

    /// Whether it is NVLink domains, which lie over the other nets.
    pub fn is_nvlink(&self) -> bool {
        matches!(self.shape, Shape::NvLink { .. })
    }

    /// The island, with the nodes that the cluster has; the places of others stay empty. None for
    /// NVLink domains. `alone`: names of domains need no prefix.
    pub fn island(&self, index: &HashMap<&str, usize>, alone: bool) -> Option<Island> {
        let node = |name: &String| index.get(name.as_str()).map(|&at| at as u32);
        let kind = match &self.shape {
            Shape::NvLink { .. } => return None,
            Shape::Fabric(kind) => kind.clone(),
            Shape::Tree {
                per_leaf,
                fanout,
                uplinks,
                rails,
            } => {
                let prefix = if alone { "" } else { &self.name };
                let places = self.nodes.len();
                let tree = Tree::regular(prefix, places, *per_leaf, fanout, uplinks, *rails);
                Kind::Tree(tree)
            }
        };
        Some(Island {
            name: self.name.clone(),
            nodes: self.nodes.iter().map(node).collect(),
            kind,
            port_units: self.node_units,
            border_units: self.border_units,
        })
    }

    /// Adds NVLink domains to their level.
    pub fn nvlink(&self, index: &HashMap<&str, usize>, level: &mut FabricLevel) {
        let Shape::NvLink { per_domain, gbps } = self.shape else {
            return;
        };
        for (nth, nodes) in self.nodes.chunks(per_domain as usize).enumerate() {
            let domain = level.domains.len() as u32;
            level.domains.push(format!("{}-{}", self.name, nth + 1));
            for node in nodes.iter().filter_map(|name| index.get(name.as_str())) {
                level.domain_of[*node] = domain;
            }
        }
        level.gbps = level.gbps.max(gbps);
    }
}

/// The level of all NVLink nets; none without such a net.
pub(crate) fn nvlink_level(
    nets: &[NetConfig],
    index: &HashMap<&str, usize>,
    nodes: usize,
) -> Option<FabricLevel> {
    let mut level = FabricLevel {
        name: "nvlink".into(),
        domains: Vec::new(),
        domain_of: vec![NO_DOMAIN; nodes],
        gbps: 0.0,
    };
    nets.iter().for_each(|net| net.nvlink(index, &mut level));
    (!level.domains.is_empty()).then_some(level)
}

fn read(check: Check, table: &Spanned<RawNet>) -> Result<NetConfig, ConfigError> {
    let raw = table.get_ref();
    let name = check.name("name", check.need(table, HEADER, "name", &raw.name)?)?;
    check.need(table, HEADER, "kind", &raw.kind)?;
    let word = check.word("kind", &raw.kind, KINDS, Word::FatTree)?;
    only_its_keys(check, table, word)?;
    let reader = Reader { check, table };
    let (mut nodes, mut shape) = (Vec::new(), None);
    if word == Word::Graph {
        let (places, graph) = reader.graph()?;
        (nodes, shape) = (places, Some(Shape::Fabric(Kind::Graph(graph))));
    } else {
        let list = check.need(table, HEADER, "nodes", &raw.nodes)?;
        nodes.extend(hosts(check, list, list.get_ref())?);
    }
    let shape = match shape {
        Some(shape) => shape,
        None => reader.shape(word)?,
    };
    if let Shape::Fabric(kind) = &shape
        && let Some(places) = kind.places()
        && (places > 1 << 20 || (nodes.len() as u64) > places)
    {
        let message = format!(
            "net {name} has {} nodes, and its sizes make {places} places; write sizes with a place \
             for each node, and at most 1048576 places",
            nodes.len()
        );
        return Err(check.error(table, message));
    }
    Ok(NetConfig {
        name,
        place: check.place(table),
        nodes,
        shape,
        node_units: reader.rate("node-gbps", &raw.node_gbps)?,
        border_units: reader.rate("border-gbps", &raw.border_gbps)?,
    })
}

/// A key that this kind has no use for is a mistake, not something to pass over.
fn only_its_keys(check: Check, table: &Spanned<RawNet>, word: Word) -> Result<(), ConfigError> {
    use Word::{Dragonfly, FatTree, Graph, Hypercube, NvLink, Rail, Torus};
    let raw = table.get_ref();
    let trees: &[Word] = &[FatTree, Rail];
    let grids: &[Word] = &[FatTree, Rail, Torus, Hypercube, Dragonfly];
    let rows: [(&str, bool, &[Word]); 14] = [
        (
            "nodes",
            raw.nodes.is_some(),
            &[FatTree, Rail, Torus, Hypercube, Dragonfly, NvLink],
        ),
        (
            "border-gbps",
            raw.border_gbps.is_some(),
            &[FatTree, Rail, Torus, Hypercube, Dragonfly, Graph],
        ),
        (
            "nodes-per-switch",
            raw.nodes_per_switch.is_some(),
            &[FatTree, Rail, Torus, Hypercube, Dragonfly, NvLink],
        ),
        ("switch-gbps", raw.switch_gbps.is_some(), grids),
        ("fanout", raw.fanout.is_some(), trees),
        ("uplinks", raw.uplinks.is_some(), trees),
        ("oversubscription", raw.oversubscription.is_some(), trees),
        ("size", raw.size.is_some(), &[Torus]),
        ("dimensions", raw.dimensions.is_some(), &[Hypercube]),
        ("groups", raw.groups.is_some(), &[Dragonfly]),
        (
            "switches-per-group",
            raw.switches_per_group.is_some(),
            &[Dragonfly],
        ),
        ("global-links", raw.global_links.is_some(), &[Dragonfly]),
        ("global-gbps", raw.global_gbps.is_some(), &[Dragonfly]),
        (
            "switch and link",
            raw.switch.is_some() || raw.link.is_some(),
            &[Graph],
        ),
    ];
    let name = |word: &Word| {
        KINDS
            .iter()
            .find(|(_, w)| w == word)
            .map_or("", |(name, _)| name)
    };
    for (key, given, kinds) in rows {
        if given && !kinds.contains(&word) {
            let kinds: Vec<&str> = kinds.iter().map(name).collect();
            let message = format!(
                "kind {} has no {key}; take it out, or write kind = {}",
                quoted(name(&word)),
                kinds
                    .iter()
                    .map(|kind| quoted(kind))
                    .collect::<Vec<_>>()
                    .join(" or ")
            );
            return Err(check.error(table, message));
        }
    }
    Ok(())
}

struct Reader<'a> {
    check: Check<'a>,
    table: &'a Spanned<RawNet>,
}

impl Reader<'_> {
    fn rate(&self, key: &str, value: &Option<Spanned<f64>>) -> Result<u32, ConfigError> {
        Ok(match self.check.gbps(key, value, 0.0)? {
            known if known > 0.0 => units(f64::from(known)),
            _ => UNBOUNDED,
        })
    }

    fn count(
        &self,
        key: &str,
        value: &Option<Spanned<i64>>,
        most: i64,
    ) -> Result<u32, ConfigError> {
        self.check.need(self.table, HEADER, key, value)?;
        Ok(self.check.int(key, value, 1..=most, 1)? as u32)
    }

    fn counts(
        &self,
        key: &str,
        value: &Option<Spanned<Vec<i64>>>,
        longest: usize,
        most: i64,
    ) -> Result<Vec<u32>, ConfigError> {
        let Some(list) = value else {
            return Ok(Vec::new());
        };
        let fine = |&n: &i64| (1..=most).contains(&n);
        if list.get_ref().len() > longest || !list.get_ref().iter().all(fine) {
            let form = format!("at most {longest} whole numbers from 1 to {most}");
            let given = format!("{:?}", list.get_ref());
            return Err(self.check.refuse(key, list, given, form));
        }
        Ok(list.get_ref().iter().map(|&n| n as u32).collect())
    }

    fn shape(&self, word: Word) -> Result<Shape, ConfigError> {
        let raw = self.table.get_ref();
        let one = Some(Spanned::new(0..0, 1));
        let per_switch = raw.nodes_per_switch.as_ref().or(match word {
            Word::Torus | Word::Hypercube => one.as_ref(),
            _ => None,
        });
        let per_switch = self.count("nodes-per-switch", &per_switch.cloned(), 1 << 16)?;
        let units = self.rate("switch-gbps", &raw.switch_gbps)?;
        Ok(match word {
            Word::FatTree | Word::Rail => Shape::Tree {
                per_leaf: per_switch,
                fanout: self.counts("fanout", &raw.fanout, 8, 1 << 16)?,
                uplinks: self.uplinks()?,
                rails: word == Word::Rail,
            },
            Word::Torus => {
                let key = self.check.need(self.table, HEADER, "size", &raw.size)?;
                let dims = self.counts("size", &raw.size, 6, 1024)?;
                if dims.is_empty() {
                    let form = "switches in each dimension, such as [8, 8, 8]";
                    return Err(self.check.refuse("size", key, "[]", form));
                }
                Shape::Fabric(Kind::Torus {
                    dims,
                    per_switch,
                    units,
                    cube: false,
                })
            }
            Word::Hypercube => Shape::Fabric(Kind::Torus {
                dims: vec![2; self.count("dimensions", &raw.dimensions, 16)? as usize],
                per_switch,
                units,
                cube: true,
            }),
            Word::Dragonfly => Shape::Fabric(Kind::Dragonfly(Dragonfly {
                groups: self.count("groups", &raw.groups, 4096)?,
                routers: self.count("switches-per-group", &raw.switches_per_group, 1024)?,
                per_switch,
                local_units: units,
                globals: self
                    .check
                    .int("global-links", &raw.global_links, 1..=64, 1)?
                    as u32,
                global_units: self.rate("global-gbps", &raw.global_gbps)?,
            })),
            Word::Graph | Word::NvLink => Shape::NvLink {
                per_domain: per_switch,
                gbps: self.check.gbps("node-gbps", &raw.node_gbps, 0.0)?,
            },
        })
    }

    /// Links of a tree's switches upwards, from the leaves.
    fn uplinks(&self) -> Result<Vec<Uplink>, ConfigError> {
        let raw = self.table.get_ref();
        let links = self.counts("uplinks", &raw.uplinks, 8, 1 << 16)?;
        let units = self.rate("switch-gbps", &raw.switch_gbps)?;
        let Some(list) = &raw.oversubscription else {
            if !links.is_empty() && units == UNBOUNDED {
                let message = "uplinks need the rate of one; add a line switch-gbps = 50";
                return Err(self.check.error(self.table, message));
            }
            let total = |&n: &u32| Uplink::Units(n.saturating_mul(units).min(UNBOUNDED - 1));
            return Ok(links.iter().map(total).collect());
        };
        if !links.is_empty() {
            let message = "write either uplinks or oversubscription";
            return Err(self.check.error(list, message));
        }
        let fine = |&ratio: &f64| (1.0..=1000.0).contains(&ratio);
        if list.get_ref().len() > 8 || !list.get_ref().iter().all(fine) {
            let given = format!("{:?}", list.get_ref());
            let form = "at most 8 ratios from 1 to 1000, from the leaves upwards: [1, 2] for 2:1 at the second level";
            return Err(self.check.refuse("oversubscription", list, given, form));
        }
        let ratio = |&ratio: &f64| Uplink::Oversubscribed((ratio * 1000.0).round() as u32);
        Ok(list.get_ref().iter().map(ratio).collect())
    }

    /// The switches and links of a graph, and its nodes in the order of the switches.
    fn graph(&self) -> Result<(Vec<String>, Graph), ConfigError> {
        let raw = self.table.get_ref();
        let none = Vec::new();
        let switches = raw.switch.as_ref().unwrap_or(&none);
        if switches.is_empty() || switches.len() > MAX_GRAPH_SWITCHES {
            let message = format!(
                "a graph has 1 to {MAX_GRAPH_SWITCHES} switches, and this one {}; describe each \
                 with [[fabric.net.switch]] after it",
                switches.len()
            );
            return Err(self.check.error(self.table, message));
        }
        let mut graph = Graph::default();
        let mut nodes = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for table in switches {
            self.switch(table, &mut graph, &mut nodes, &mut places)?;
        }
        for table in raw.link.iter().flatten() {
            let link = self.link(table, &graph)?;
            graph.links.push(link);
        }
        Ok((nodes, graph))
    }

    fn switch(
        &self,
        table: &Spanned<RawNetSwitch>,
        graph: &mut Graph,
        nodes: &mut Vec<String>,
        places: &mut HashMap<String, usize>,
    ) -> Result<(), ConfigError> {
        let (raw, check) = (table.get_ref(), self.check);
        let header = "[[fabric.net.switch]]";
        let name = check.name("name", check.need(table, header, "name", &raw.name)?)?;
        if graph.switches.contains(&name) {
            let message = format!("switch {name} is described twice; remove one");
            return Err(check.error(table, message));
        }
        let switch = graph.switches.len() as u32;
        let rail = check.int("rail", &raw.rail, 0..=63, -1)?;
        let rail = u16::try_from(rail).ok();
        if let Some(list) = &raw.nodes {
            for node in hosts(check, list, list.get_ref())? {
                let place = *places.entry(node.clone()).or_insert_with(|| {
                    nodes.push(node.clone());
                    graph.places.push(Vec::new());
                    graph.places.len() - 1
                });
                let hung = &mut graph.places[place];
                if let Some((_, other)) = hung.iter().find(|(other, _)| *other == rail) {
                    let other = &graph.switches.get(*other as usize).unwrap_or(&name);
                    let message = format!(
                        "node {node} hangs on switch {other} and on switch {name} with the same \
                         rail; keep it on one, or give each its rail"
                    );
                    return Err(check.error(list, message));
                }
                hung.push((rail, switch));
            }
        }
        graph.switches.push(name);
        Ok(())
    }

    fn link(&self, table: &Spanned<RawNetLink>, graph: &Graph) -> Result<GraphLink, ConfigError> {
        let (raw, check) = (table.get_ref(), self.check);
        let header = "[[fabric.net.link]]";
        let between = check.need(table, header, "between", &raw.between)?;
        let known = |name: &String| graph.switches.iter().position(|other| other == name);
        let ends: Vec<Option<usize>> = between.get_ref().iter().map(known).collect();
        let (a, b) = match ends[..] {
            [Some(a), Some(b)] if a != b => (a as u32, b as u32),
            _ => {
                let unknown = between.get_ref().iter().find(|name| known(name).is_none());
                let given = match unknown {
                    Some(name) => format!("... {} ...", quoted(name)),
                    None => format!("a list of {}", between.get_ref().len()),
                };
                let form = "the names of two switches of this net: [\"a\", \"b\"]";
                return Err(check.refuse("between", between, given, form));
            }
        };
        let gbps = check.need(table, header, "gbps", &raw.gbps)?;
        let one = self.rate("gbps", &Some(gbps.clone()))?;
        let links = check.int("links", &raw.links, 1..=4096, 1)? as u32;
        Ok(GraphLink {
            a,
            b,
            units: match one {
                UNBOUNDED => UNBOUNDED,
                one => one.saturating_mul(links).min(UNBOUNDED - 1),
            },
        })
    }
}
