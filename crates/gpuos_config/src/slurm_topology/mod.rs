//! Slurm's own topology files: `topology.conf` and, from 25.05 on, `topology.yaml`.
//!
//! A tree becomes the levels `leaf`, `spine`, `core`, `level4`, …; a block topology the level
//! `block` and one for each larger size of blocks. Flat, ring and torus topologies give no level.
use std::collections::HashMap;

use gpuos_model::cluster::{Fabric, FabricLevel, NO_DOMAIN};
use gpuos_model::hostlist::expand;
use gpuos_model::reading::{ConfigError, Place};

mod blocks;
mod conf;
mod in_force;
mod yaml;

use blocks::Blocks;
pub use conf::parse_topology_conf;
use conf::read_topology_conf;
pub use in_force::{SlurmRelease, Topologies, TopologySource, topology_source};
pub use yaml::parse_topology_yaml;

/// The most levels of a tree: Slurm itself stops at 20.
const MAX_LEVELS: usize = 20;

/// One topology of a file, checked.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TopologyFile {
    /// Its name in topology.yaml, by which partitions and nodes name it; `default` for that of topology.conf.
    pub name: String,
    shape: Shape,
}

#[derive(Clone, PartialEq, Debug, Default)]
enum Shape {
    Tree(Vec<Switch>),
    Block(Blocks),
    /// A topology without domains that a job could ask for.
    #[default]
    Other,
}

/// A switch or a block as the file describes it.
#[derive(Clone, PartialEq, Debug, Default)]
struct Switch {
    name: String,
    /// Nodes right under it, by name.
    nodes: Vec<String>,
    /// Switches right under it, by index.
    children: Vec<usize>,
    /// Longest way down to a leaf switch.
    height: usize,
}

/// A switch as it is written, before names are resolved.
struct Written {
    name: String,
    nodes: String,
    children: String,
    place: Place,
    /// The file with the place.
    file: String,
}

impl TopologyFile {
    /// Whether it is made of blocks; `None` when it has neither blocks nor switches.
    fn is_block(&self) -> Option<bool> {
        match &self.shape {
            Shape::Tree(_) => Some(false),
            Shape::Block(_) => Some(true),
            Shape::Other => None,
        }
    }

    fn groups(&self) -> &[Switch] {
        match &self.shape {
            Shape::Tree(switches) => switches,
            Shape::Block(blocks) => &blocks.blocks,
            Shape::Other => &[],
        }
    }

    fn groups_mut(&mut self) -> Option<&mut Vec<Switch>> {
        match &mut self.shape {
            Shape::Tree(groups) | Shape::Block(Blocks { blocks: groups, .. }) => Some(groups),
            Shape::Other => None,
        }
    }

    /// Has nodes be in no leaf or block.
    fn take_out(&mut self, leaves: impl Fn(&str) -> bool) {
        for group in self.groups_mut().into_iter().flatten() {
            group.nodes.retain(|node| !leaves(node));
        }
    }

    /// Puts a node that is in none into a leaf or block: `root:leaf1` is the way down to a leaf, of which the last counts. Switches
    /// that are new are made under the one before.
    fn put(&mut self, node: &str, unit: &str) {
        let is_tree = self.is_block() == Some(false);
        let Some(groups) = self.groups_mut() else {
            return;
        };
        let mut last = None;
        for name in unit.split(':') {
            let known = groups.iter().position(|group| group.name == name);
            last = match (known, last) {
                (Some(at), _) => Some(at),
                (None, Some(above)) if is_tree => Some(add_leaf(groups, above, name)),
                (None, _) => return,
            };
        }
        if let Some(group) = last.map(|at: usize| &mut groups[at])
            && group.children.is_empty()
        {
            group.nodes.push(node.to_owned());
        }
    }

    /// Nodes that the file names, each once.
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes = self.unknown_nodes(&[]);
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Nodes that the file names and that are not among `node_names`: they do no harm, and
    /// `gpuos doctor` shows them.
    pub fn unknown_nodes(&self, node_names: &[String]) -> Vec<String> {
        let known: std::collections::HashSet<&str> =
            node_names.iter().map(String::as_str).collect();
        let named = self.groups().iter().flat_map(|group| &group.nodes);
        named
            .filter(|node| !known.contains(node.as_str()))
            .cloned()
            .collect()
    }

    /// The levels and domains, for nodes in the order of `node_names`. Nodes that the file
    /// does not name are in no domain; a node under two leaf switches counts to the first.
    pub fn fabric(&self, node_names: &[String]) -> Fabric {
        let index: HashMap<&str, usize> = node_names
            .iter()
            .enumerate()
            .map(|(at, name)| (name.as_str(), at))
            .collect();
        match &self.shape {
            Shape::Tree(switches) => tree(switches, &index),
            Shape::Block(blocks) => blocks.fabric(&index),
            Shape::Other => Fabric::default(),
        }
    }
}

fn level_name(level: usize) -> String {
    match level {
        0 => "leaf".into(),
        1 => "spine".into(),
        2 => "core".into(),
        more => format!("level{}", more + 1),
    }
}

/// The switch that each node hangs on.
fn leaf_of(switches: &[Switch], index: &HashMap<&str, usize>) -> Vec<Option<usize>> {
    let mut leaf = vec![None; index.len()];
    for (at, switch) in switches.iter().enumerate() {
        for node in &switch.nodes {
            if let Some(&node) = index.get(node.as_str()) {
                leaf[node] = leaf[node].or(Some(at));
            }
        }
    }
    leaf
}

/// A level whose domains are the groups that have nodes, in their order; `label` names one.
fn level(name: String, group_of: &[Option<usize>], label: impl Fn(usize) -> String) -> FabricLevel {
    let mut used: Vec<usize> = group_of.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    let domain = |group: usize| used.binary_search(&group).map_or(NO_DOMAIN, |at| at as u32);
    let domain_of = group_of.iter().map(|of| of.map_or(NO_DOMAIN, domain));
    FabricLevel {
        name,
        domain_of: domain_of.collect(),
        domains: used.iter().map(|&group| label(group)).collect(),
        gbps: 0.0,
    }
}

/// The levels of a tree. Where a branch is shorter than others, its top switch stands for
/// the missing levels too, so that domains always lie inside each other.
fn tree(switches: &[Switch], index: &HashMap<&str, usize>) -> Fabric {
    let mut parent = vec![None; switches.len()];
    for (at, switch) in switches.iter().enumerate() {
        for &child in &switch.children {
            parent[child] = parent[child].or(Some(at));
        }
    }
    let mut at = leaf_of(switches, index);
    let top = at.iter().flatten().map(|&leaf| {
        let path = std::iter::successors(Some(leaf), |&switch| parent[switch]);
        path.last().map_or(0, |switch| switches[switch].height)
    });
    let depth = top.max().map_or(0, |height| height + 1);
    let mut levels = Vec::new();
    for height in 0..depth {
        for switch in at.iter_mut().flatten() {
            while let Some(up) = parent[*switch].filter(|&up| switches[up].height <= height) {
                *switch = up;
            }
        }
        let name_of = |switch: usize| switches[switch].name.clone();
        levels.push(level(level_name(height), &at, name_of));
    }
    Fabric { levels }
}

/// A new leaf under a switch: its index. The switches above grow as high as they have to.
fn add_leaf(switches: &mut Vec<Switch>, above: usize, name: &str) -> usize {
    let leaf = switches.len();
    switches.push(Switch {
        name: name.to_owned(),
        ..Switch::default()
    });
    switches[above].children.push(leaf);
    let (mut child, mut parent) = (leaf, Some(above));
    while let Some(at) = parent {
        switches[at].height = switches[at].height.max(switches[child].height + 1);
        child = at;
        parent = switches
            .iter()
            .position(|switch| switch.children.contains(&at));
    }
    leaf
}

/// Resolves names and checks that the switches form trees.
fn build_tree(written: Vec<Written>) -> Result<Vec<Switch>, ConfigError> {
    let mut index = HashMap::new();
    for (at, switch) in written.iter().enumerate() {
        if index.insert(switch.name.as_str(), at).is_some() {
            let message = format!("switch {} is described twice; remove one", switch.name);
            return Err(switch.place.error(&switch.file, message));
        }
    }
    let mut switches = Vec::with_capacity(written.len());
    for (at, switch) in written.iter().enumerate() {
        let error = |message: String| switch.place.error(&switch.file, message);
        let nodes = names(&switch.nodes).map_err(error)?;
        let mut children = Vec::new();
        for child in names(&switch.children).map_err(error)? {
            match index.get(child.as_str()) {
                Some(&child) if child != at => children.push(child),
                _ => {
                    let message = format!(
                        "switch {} has the child {child}, and no other switch has that name",
                        switch.name
                    );
                    return Err(error(message));
                }
            }
        }
        if !nodes.is_empty() && !children.is_empty() {
            let message = format!(
                "switch {} has nodes and switches; it needs either nodes or switches",
                switch.name
            );
            return Err(error(message));
        }
        switches.push(Switch {
            name: switch.name.clone(),
            nodes,
            children,
            height: 0,
        });
    }
    // Heights settle after as many rounds as there are levels, unless there is a circle.
    for round in 0.. {
        let mut settled = true;
        for at in 0..switches.len() {
            let below = switches[at]
                .children
                .iter()
                .map(|&c| switches[c].height + 1);
            let height = below.max().unwrap_or(0);
            settled &= height == switches[at].height;
            switches[at].height = height;
        }
        if settled {
            break;
        }
        if round > MAX_LEVELS {
            // A switch above the circle is as high as one in it: go down from the highest until a
            // switch comes again.
            let higher = |&at: &usize| (switches[at].height, usize::MAX - at);
            let mut at = (0..switches.len()).max_by_key(higher).unwrap_or(0);
            let mut seen = vec![false; switches.len()];
            while !std::mem::replace(&mut seen[at], true) {
                let below = switches[at].children.iter().copied();
                at = below.max_by_key(higher).unwrap_or(at);
            }
            let message = format!(
                "the switches form a circle through {}, or more than {MAX_LEVELS} levels; \
                 each switch belongs under one other switch",
                switches[at].name
            );
            return Err(written[at].place.error(&written[at].file, message));
        }
    }
    Ok(switches)
}

fn build_blocks(written: Vec<Written>) -> Result<Vec<Switch>, ConfigError> {
    let mut blocks: Vec<Switch> = Vec::with_capacity(written.len());
    let mut seen = std::collections::HashSet::new();
    for block in written {
        if !seen.insert(block.name.clone()) {
            let message = format!("block {} is described twice; remove one", block.name);
            return Err(block.place.error(&block.file, message));
        }
        let nodes =
            names(&block.nodes).map_err(|message| block.place.error(&block.file, message))?;
        blocks.push(Switch {
            name: block.name,
            nodes,
            ..Switch::default()
        });
    }
    Ok(blocks)
}

fn names(list: &str) -> Result<Vec<String>, String> {
    expand(list).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
