//! The fabric: `[[fabric.level]]` and `[[fabric.switch]]`, joined with Slurm's topology, or
//! `[[fabric.net]]`.
use std::collections::HashMap;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, NO_DOMAIN};
use gpuos_model::hostlist::{MAX_HOSTS, expand};
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use gpuos_placement::fabric::{Island, Net, Recipe, Uplink, levels_of, units};
use toml::Spanned;

use super::net::{NetConfig, nvlink_level};
use super::raw::{RawFabric, RawLevel, RawSwitch};

/// The most levels; a fat tree has three.
const MAX_LEVELS: usize = 16;

/// The fabric as gpuos.toml describes it, by names.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct FabricConfig {
    levels: Vec<LevelConfig>,
    switches: Vec<SwitchConfig>,
    nets: Vec<NetConfig>,
}

#[derive(Clone, PartialEq, Debug)]
struct LevelConfig {
    name: String,
    gbps: Option<f32>,
    uplink: Uplink,
    rails: bool,
    place: Place,
}

#[derive(Clone, PartialEq, Debug)]
struct SwitchConfig {
    name: String,
    level: usize,
    nodes: Vec<String>,
    children: Vec<String>,
    place: Place,
}

impl FabricConfig {
    pub fn read(check: Check, raw: &RawFabric) -> Result<FabricConfig, ConfigError> {
        let mut fabric = FabricConfig::default();
        for table in &raw.level {
            let header = "[[fabric.level]]";
            let key = check.need(table, header, "name", &table.get_ref().name)?;
            let name = check.name("name", key)?;
            // off undoes --gpuos-topology and --gpuos-exclusive.
            if name != name.to_ascii_lowercase() || ["node", "any", "off"].contains(&&name[..]) {
                let form = "a level name in lower case other than node, any and off";
                return Err(check.refuse("name", key, quoted(&name), form));
            }
            if fabric.levels.iter().any(|level| level.name == name) {
                let message = format!("level {name} is described twice; remove one");
                return Err(check.error(key, message));
            }
            if fabric.levels.len() == MAX_LEVELS {
                return Err(check.error(table, format!("more than {MAX_LEVELS} levels")));
            }
            let gbps = match &table.get_ref().gbps {
                Some(_) => Some(check.gbps("gbps", &table.get_ref().gbps, 0.0)?),
                None => None,
            };
            fabric.levels.push(LevelConfig {
                name,
                gbps,
                uplink: uplink(check, table)?,
                rails: table.get_ref().rails.unwrap_or(false),
                place: check.place(key),
            });
        }
        let mut owners = HashMap::new();
        for table in &raw.switch {
            let switch = fabric.read_switch(check, table)?;
            for node in &switch.nodes {
                let owner = owners.insert((switch.level, node.clone()), switch.name.clone());
                if let Some(other) = owner.filter(|other| *other != switch.name) {
                    let level = &fabric.levels[switch.level].name;
                    return Err(check.error(
                        table,
                        format!(
                            "node {node} is in switch {} and in switch {other} of level {level}; \
                             keep it in one of them",
                            switch.name
                        ),
                    ));
                }
            }
            fabric.switches.push(switch);
        }
        fabric.nets = NetConfig::read_all(check, &raw.net)?;
        fabric
            .check_nets()
            .map_err(|(place, message)| place.error(check.source.file, message))?;
        Ok(fabric)
    }

    /// Levels and nets describe the same thing, but for the level `nvlink`.
    fn check_nets(&self) -> Result<(), (Place, String)> {
        let mut kinds = self.nets.iter().map(NetConfig::is_nvlink);
        let (nvlink, fabric) = (kinds.clone().any(|n| n), kinds.any(|n| !n));
        let twice = |level: &&LevelConfig| match level.name == "nvlink" {
            true => nvlink,
            false => fabric,
        };
        match self.levels.iter().find(twice) {
            Some(level) => Err((
                level.place,
                format!(
                    "level {} is described beside [[fabric.net]], which makes its own levels; keep \
                     one of the two",
                    level.name
                ),
            )),
            None => Ok(()),
        }
    }

    fn read_switch(
        &self,
        check: Check,
        table: &Spanned<RawSwitch>,
    ) -> Result<SwitchConfig, ConfigError> {
        let raw = table.get_ref();
        let header = "[[fabric.switch]]";
        let key = check.need(table, header, "name", &raw.name)?;
        let name = check.name("name", key)?;
        if self.switches.iter().any(|switch| switch.name == name) {
            let message = format!("switch {name} is described twice; remove one");
            return Err(check.error(key, message));
        }
        let level_key = check.need(table, header, "level", &raw.level)?;
        let level = self
            .levels
            .iter()
            .position(|l| &l.name == level_key.get_ref());
        let level = level.ok_or_else(|| {
            let known: Vec<&str> = self.levels.iter().map(|l| l.name.as_str()).collect();
            let form = match known.is_empty() {
                true => "a level, and describe it with [[fabric.level]]".into(),
                false => format!("one of the levels described: {}", known.join(", ")),
            };
            check.refuse("level", level_key, quoted(level_key.get_ref()), form)
        })?;
        let mut nodes = Vec::new();
        let mut children = Vec::new();
        match (&raw.nodes, &raw.switches) {
            (Some(list), None) => nodes = hosts(check, list, list.get_ref())?,
            (None, Some(lists)) => {
                for list in lists.get_ref() {
                    children.extend(hosts(check, lists, list)?);
                    if children.len() > MAX_HOSTS {
                        let message = format!("switches has more than {MAX_HOSTS} names");
                        return Err(check.error(lists, message));
                    }
                }
            }
            _ => {
                let message = format!(
                    "switch {name} needs either nodes = \"n[1-4]\" or switches = [\"l1\", \"l2\"]"
                );
                return Err(check.error(table, message));
            }
        }
        Ok(SwitchConfig {
            name,
            level,
            nodes,
            children,
            place: check.place(key),
        })
    }

    /// Node names that switches and nets list, with the place of the switch or net.
    pub fn node_names(&self) -> impl Iterator<Item = (&str, Place)> {
        let switches = self
            .switches
            .iter()
            .map(|switch| (&switch.nodes, switch.place));
        let nets = self.nets.iter().map(|net| (&net.nodes, net.place));
        let all = switches.chain(nets);
        all.flat_map(|(nodes, place)| nodes.iter().map(move |node| (node.as_str(), place)))
    }

    /// Whether there are `[[fabric.net]]` tables.
    pub fn has_nets(&self) -> bool {
        !self.nets.is_empty()
    }

    fn islands(&self, index: &HashMap<&str, usize>) -> Vec<Island> {
        let alone = self.nets.iter().filter(|net| !net.is_nvlink()).count() == 1;
        let island = |net: &NetConfig| net.island(index, alone);
        self.nets.iter().filter_map(island).collect()
    }

    /// What the network of the cluster that [`FabricConfig::build`] made the levels of is made of.
    pub fn recipe(&self, cluster: &Cluster) -> Recipe {
        let names = cluster.nodes.iter().enumerate();
        let index = names.map(|(at, node)| (node.name.as_str(), at)).collect();
        let islands = self.islands(&index);
        if islands.is_empty() {
            let level = |name: &str| self.levels.iter().find(|level| level.name == name);
            let levels = cluster.fabric.levels.iter().map(|l| level(&l.name));
            let uplinks: Vec<Uplink> = levels
                .clone()
                .map(|level| level.map_or(Uplink::Full, |level| level.uplink))
                .collect();
            let rails = levels.flatten().any(|level| level.rails);
            return Recipe::Levels { uplinks, rails };
        }
        Recipe::Islands(islands)
    }

    /// The network of the same cluster.
    pub fn net(&self, file: &str, cluster: &Cluster) -> Result<Net, ConfigError> {
        self.recipe(cluster).net(cluster).map_err(|message| {
            let place = self.nets.first().map(|net| net.place).unwrap_or_default();
            place.error(file, message)
        })
    }

    /// The levels in the order of gpuos.toml, then those that only Slurm knows. A level
    /// without switches of its own takes Slurm's domains and adds its rate.
    pub fn build(
        &self,
        file: &str,
        node_names: &[&str],
        from_slurm: Option<&Fabric>,
    ) -> Result<Fabric, ConfigError> {
        let empty = Fabric::default();
        let slurm = from_slurm.unwrap_or(&empty);
        let index: HashMap<&str, usize> = node_names
            .iter()
            .enumerate()
            .map(|(at, name)| (*name, at))
            .collect();
        let islands = self.islands(&index);
        let nvlink = nvlink_level(&self.nets, &index, node_names.len());
        // A net of its own is the whole fabric: Slurm's topology says nothing then.
        let slurm = if islands.is_empty() { slurm } else { &empty };
        let mut levels: Vec<FabricLevel> = nvlink.into_iter().collect();
        for (at, level) in self.levels.iter().enumerate() {
            let switches: Vec<&SwitchConfig> = self
                .switches
                .iter()
                .filter(|switch| switch.level == at)
                .collect();
            let known = slurm.levels.iter().find(|other| other.name == level.name);
            let mut built = match (switches.is_empty(), known) {
                (true, Some(known)) => known.clone(),
                (true, None) => {
                    let message = format!(
                        "level {} has no [[fabric.switch]], and Slurm's topology has no such \
                         level; describe its switches or remove it",
                        level.name
                    );
                    return Err(level.place.error(file, message));
                }
                (false, _) => {
                    let below: Vec<&FabricLevel> = levels.iter().chain(&slurm.levels).collect();
                    join(file, &level.name, &switches, &self.switches, &index, &below)?
                }
            };
            built.gbps = level.gbps.unwrap_or(built.gbps);
            levels.push(built);
        }
        levels.extend(levels_of(node_names.len(), &islands).levels);
        for level in &slurm.levels {
            if !levels.iter().any(|other| other.name == level.name) {
                levels.push(level.clone());
            }
        }
        let levels_at = self.levels.iter().map(|level| level.place);
        if let Some(first) = levels_at
            .chain(self.nets.iter().map(|net| net.place))
            .next()
        {
            nested(&levels, node_names).map_err(|message| first.error(file, message))?;
        }
        Ok(Fabric { levels })
    }
}

/// What a switch of a level has upwards.
fn uplink(check: Check, table: &Spanned<RawLevel>) -> Result<Uplink, ConfigError> {
    let raw = table.get_ref();
    let links = check.int("uplinks", &raw.uplinks, 1..=1 << 16, 1)?;
    let gbps = check.gbps("uplink-gbps", &raw.uplink_gbps, 0.0)?;
    match (&raw.oversubscription, &raw.uplink_gbps) {
        (Some(ratio), None) if raw.uplinks.is_none() => {
            match (1.0..=1000.0).contains(ratio.get_ref()) {
                true => Ok(Uplink::Oversubscribed(
                    (ratio.get_ref() * 1000.0).round() as u32
                )),
                false => {
                    let form = "a ratio from 1 to 1000: 2 for 2:1";
                    Err(check.refuse("oversubscription", ratio, ratio.get_ref(), form))
                }
            }
        }
        (Some(ratio), _) => {
            let message = "write either oversubscription, or uplinks and uplink-gbps";
            Err(check.error(ratio, message))
        }
        (None, Some(_)) if gbps > 0.0 => Ok(Uplink::Units(units(f64::from(gbps) * links as f64))),
        (None, _) => match &raw.uplinks {
            Some(links) => Err(check.error(
                links,
                "uplinks need the rate of one; add a line uplink-gbps = 50",
            )),
            None => Ok(Uplink::Full),
        },
    }
}

pub(crate) fn hosts<T>(
    check: Check,
    at: &Spanned<T>,
    list: &str,
) -> Result<Vec<String>, ConfigError> {
    let names = expand(list).map_err(|error| check.error(at, error.to_string()))?;
    match names.is_empty() {
        true => Err(check.error(at, "the list is empty; write names such as n[1-4]")),
        false => Ok(names),
    }
}

/// One level made of switches.
fn join(
    file: &str,
    level: &str,
    switches: &[&SwitchConfig],
    all: &[SwitchConfig],
    index: &HashMap<&str, usize>,
    below: &[&FabricLevel],
) -> Result<FabricLevel, ConfigError> {
    let mut domain_of = vec![NO_DOMAIN; index.len()];
    for (domain, switch) in switches.iter().enumerate() {
        let mut members: Vec<usize> = switch
            .nodes
            .iter()
            .filter_map(|node| index.get(node.as_str()).copied())
            .collect();
        for child in &switch.children {
            let found = below.iter().find_map(|level| {
                let domain = level.domains.iter().position(|name| name == child)?;
                Some((*level, domain as u32))
            });
            let (level, domain) = found.ok_or_else(|| {
                let message = match all.iter().any(|other| other.name == *child) {
                    true => format!(
                        "switch {} of level {level} has {child} below it, which is of the same or a \
                         wider level: that makes a circle, or the levels are in the wrong order; \
                         name switches of narrower levels",
                        switch.name
                    ),
                    false => format!(
                        "switch {} has no switch {child} below it; name switches of narrower levels",
                        switch.name
                    ),
                };
                switch.place.error(file, message)
            })?;
            let nodes = level.domain_of.iter().enumerate();
            members.extend(nodes.filter(|(_, of)| **of == domain).map(|(node, _)| node));
        }
        for node in members {
            let owner = domain_of[node];
            if owner != NO_DOMAIN && owner != domain as u32 {
                let message = format!(
                    "switch {} and switch {} of level {level} have nodes in common; \
                     keep each node in one of them",
                    switch.name, switches[owner as usize].name
                );
                return Err(switch.place.error(file, message));
            }
            domain_of[node] = domain as u32;
        }
    }
    Ok(FabricLevel {
        name: level.into(),
        domains: switches.iter().map(|switch| switch.name.clone()).collect(),
        domain_of,
        gbps: 0.0,
    })
}

/// Checks that each domain lies inside one domain of the next level.
fn nested(levels: &[FabricLevel], node_names: &[&str]) -> Result<(), String> {
    for pair in levels.windows(2) {
        let (narrow, wide) = (&pair[0], &pair[1]);
        let mut seen: Vec<Option<(u32, usize)>> = vec![None; narrow.domains.len()];
        for (node, (&inner, &outer)) in narrow.domain_of.iter().zip(&wide.domain_of).enumerate() {
            let Some(first) = seen.get_mut(inner as usize) else {
                continue;
            };
            let &mut (expected, other) = first.get_or_insert((outer, node));
            if expected != outer {
                return Err(format!(
                    "nodes {} and {} share {} of level {} but no domain of the next level, {}; \
                     list the levels from the narrowest to the widest and each switch whole",
                    node_names[other],
                    node_names[node],
                    narrow.domains[inner as usize],
                    narrow.name,
                    wide.name
                ));
            }
        }
    }
    Ok(())
}
