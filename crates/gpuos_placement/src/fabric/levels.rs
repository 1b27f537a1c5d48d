//! Nested domains of any kind of fabric, for searches that go from the narrow to the wide.
//!
//! - tree: its own levels; torus: blocks of 2, 4, 8, … switches in each dimension (`block2`, …),
//!   above the switch itself (`leaf`) when it has several nodes; hypercube: subcubes (`cube1`, …);
//! - dragonfly: switch (`leaf`) and `group`;
//! - graph: the switch (`leaf`), then clusters that grow along the widest links (`near1`, …);
//! - several islands: the level `island` above all.
use gpuos_model::cluster::{Fabric, FabricLevel, NO_DOMAIN};

use super::kinds::{Graph, Island, Kind};

/// The most levels that one island gives.
const MAX_LEVELS: usize = 12;

/// A level of one island, by place.
struct Level {
    name: String,
    domains: Vec<String>,
    of: Vec<u32>,
}

/// The levels of a cluster made of islands.
pub(crate) fn of_islands(nodes: usize, islands: &[Island], nvlink: Option<&FabricLevel>) -> Fabric {
    let own: Vec<Vec<Level>> = islands.iter().map(levels).collect();
    let mut names: Vec<String> = Vec::new();
    for levels in &own {
        // A name that is new comes right after the one before it in its island.
        let mut after = 0;
        for level in levels {
            match names.iter().position(|name| *name == level.name) {
                Some(at) => after = after.max(at + 1),
                None => {
                    names.insert(after, level.name.clone());
                    after += 1;
                }
            }
        }
    }
    let mut fabric = Fabric::default();
    fabric.levels.extend(nvlink.cloned());
    for name in names {
        let mut level = empty(&name, nodes);
        for (island, levels) in islands.iter().zip(&own) {
            let base = level.domains.len() as u32;
            if let Some(known) = levels.iter().find(|level| level.name == name) {
                level.domains.extend(known.domains.iter().cloned());
                for (node, &domain) in island.nodes.iter().zip(&known.of) {
                    if let (Some(node), true) = (node, domain != NO_DOMAIN) {
                        level.domain_of[*node as usize] = base + domain;
                    }
                }
            } else if let Some(below) = fabric.levels.last().cloned() {
                // Where an island lacks a level, its narrower domains stand for it.
                let mut moved = vec![NO_DOMAIN; below.domains.len()];
                for node in island.nodes.iter().flatten() {
                    let domain = below.domain_of[*node as usize];
                    let Some(new) = moved.get_mut(domain as usize) else {
                        continue;
                    };
                    if *new == NO_DOMAIN {
                        *new = level.domains.len() as u32;
                        level.domains.push(below.domains[domain as usize].clone());
                    }
                    level.domain_of[*node as usize] = *new;
                }
            }
        }
        fabric.levels.push(level);
    }
    if islands.len() > 1 {
        let mut level = empty("island", nodes);
        for (island, at) in islands.iter().zip(0..) {
            level.domains.push(island.name.clone());
            for node in island.nodes.iter().flatten() {
                level.domain_of[*node as usize] = at;
            }
        }
        fabric.levels.push(level);
    }
    fabric
}

fn empty(name: &str, nodes: usize) -> FabricLevel {
    FabricLevel {
        name: name.into(),
        domains: Vec::new(),
        domain_of: vec![NO_DOMAIN; nodes],
        gbps: 0.0,
    }
}

fn levels(island: &Island) -> Vec<Level> {
    let places = island.nodes.len();
    let prefix = &island.name;
    match &island.kind {
        Kind::Tree(tree) => {
            let level = |level: &super::kinds::TreeLevel| Level {
                name: level.name.clone(),
                domains: level.domains.clone(),
                of: level.of.clone(),
            };
            tree.levels.iter().map(level).collect()
        }
        Kind::Torus {
            dims,
            per_switch,
            cube,
            ..
        } => torus(prefix, places, dims, *per_switch, *cube),
        Kind::Dragonfly(d) => {
            let switch = |nth: u32| {
                let (group, at) = (nth / d.routers + 1, nth % d.routers + 1);
                format!("{prefix}-g{group}-s{at}")
            };
            let leaf = even("leaf", places, d.per_switch, switch);
            let width = d.per_switch * d.routers;
            let group = even("group", places, width, |nth| {
                format!("{prefix}-g{}", nth + 1)
            });
            let mut levels = vec![leaf, group];
            levels.retain(|level| level.name != "leaf" || d.per_switch > 1);
            levels
        }
        Kind::Graph(graph) => closeness(graph),
    }
}

/// Domains of `width` places each.
fn even(name: &str, places: usize, width: u32, domain: impl Fn(u32) -> String) -> Level {
    let width = width.max(1) as usize;
    Level {
        name: name.into(),
        domains: (0..places.div_ceil(width) as u32).map(domain).collect(),
        of: (0..places).map(|place| (place / width) as u32).collect(),
    }
}

fn torus(prefix: &str, places: usize, dims: &[u32], per_switch: u32, cube: bool) -> Vec<Level> {
    let mut levels = Vec::new();
    let switch = |nth: u32| format!("{prefix}-{}", coordinates(dims, nth));
    if per_switch > 1 {
        levels.push(even("leaf", places, per_switch, switch));
    }
    for step in 1..=MAX_LEVELS as u32 {
        // Side of a block in each dimension: 2, 4, 8 ... ; a subcube takes a dimension more.
        let side = |dim: usize| match cube {
            true if (dim as u32) < step => 2,
            true => 1,
            false => 1u32 << step,
        };
        let (name, done) = match cube {
            true => (format!("cube{step}"), step as usize >= dims.len()),
            false => (
                format!("block{}", 1u32 << step),
                dims.iter().all(|&size| size <= 1 << step),
            ),
        };
        if done {
            break;
        }
        let counts: Vec<u32> = (0..dims.len()).map(|d| dims[d].div_ceil(side(d))).collect();
        let block = |place: usize| {
            let mut switch = place as u32 / per_switch;
            let (mut block, mut stride) = (0, 1);
            for (dim, &size) in dims.iter().enumerate() {
                block += switch % size / side(dim) * stride;
                stride *= counts[dim];
                switch /= size;
            }
            block
        };
        let domain = |nth: u32| format!("{prefix}-{name}-{}", coordinates(&counts, nth));
        levels.push(Level {
            domains: (0..counts.iter().product()).map(domain).collect(),
            of: (0..places).map(block).collect(),
            name,
        });
    }
    levels
}

/// Where something stands: `0.3.1`, the first dimension first.
pub(crate) fn coordinates(dims: &[u32], mut at: u32) -> String {
    let mut parts = Vec::new();
    for &size in dims {
        parts.push((at % size).to_string());
        at /= size;
    }
    parts.join(".")
}

/// Clusters of a graph. In each round every cluster joins the one to which it has the most
/// capacity (the lowest of equals), so that the clusters at least halve; a round is a level.
fn closeness(graph: &Graph) -> Vec<Level> {
    let home: Vec<Option<u32>> = graph
        .places
        .iter()
        .map(|hung| hung.first().map(|&(_, switch)| switch))
        .collect();
    let count = graph.switches.len();
    let mut cluster: Vec<u32> = (0..count as u32).collect();
    let mut levels: Vec<Level> = Vec::new();
    loop {
        let name = match levels.len() {
            0 => "leaf".to_string(),
            nth => format!("near{nth}"),
        };
        // Clusters without nodes give no domain.
        let mut domain = vec![NO_DOMAIN; count];
        let mut domains = Vec::new();
        let of = home.iter().map(|home| {
            let Some(home) = home else { return NO_DOMAIN };
            let at = cluster[*home as usize] as usize;
            if domain[at] == NO_DOMAIN {
                domain[at] = domains.len() as u32;
                domains.push(match levels.len() {
                    0 => graph.switches[at].clone(),
                    _ => format!("{name}-{}", graph.switches[at]),
                });
            }
            domain[at]
        });
        let of: Vec<u32> = of.collect();
        // A round that joins switches without nodes only is no level.
        if levels
            .last()
            .is_none_or(|last| last.domains.len() > domains.len())
        {
            levels.push(Level { name, domains, of });
        }
        if levels.len() == MAX_LEVELS || !join(graph, &mut cluster) {
            break;
        }
    }
    // What holds all nodes of a connected graph is the level `any` already.
    if levels.len() > 1 && levels.last().is_some_and(|level| level.domains.len() == 1) {
        levels.pop();
    }
    levels
}

/// One round of joining; false when nothing is joined any more.
fn join(graph: &Graph, cluster: &mut [u32]) -> bool {
    let count = cluster.len();
    let mut between: Vec<(u32, u32, u64)> = Vec::new();
    for link in &graph.links {
        let (a, b) = (cluster[link.a as usize], cluster[link.b as usize]);
        if a != b {
            between.push((a, b, link.units.into()));
            between.push((b, a, link.units.into()));
        }
    }
    between.sort_unstable();
    let mut best: Vec<Option<(u64, u32)>> = vec![None; count];
    let mut at = 0;
    while at < between.len() {
        let (a, b, _) = between[at];
        let same = between[at..].iter().take_while(|e| (e.0, e.1) == (a, b));
        let (mut units, mut length) = (0, 0);
        for entry in same {
            units += entry.2;
            length += 1;
        }
        at += length;
        if best[a as usize].is_none_or(|(most, _)| units > most) {
            best[a as usize] = Some((units, b));
        }
    }
    let mut any = false;
    for a in 0..count {
        if let Some((_, b)) = best[a] {
            let (one, two) = (cluster[a], cluster[b as usize]);
            // The lower number stands for both.
            if one != two {
                let (low, high) = (one.min(two), one.max(two));
                cluster
                    .iter_mut()
                    .filter(|c| **c == high)
                    .for_each(|c| *c = low);
                any = true;
            }
        }
    }
    any
}
