//! The fabric: `[[fabric.level]]` and `[[fabric.switch]]`, joined with Slurm's topology.

use std::collections::HashMap;

use toml::Spanned;

use super::check::{Check, quoted};
use super::error::{ConfigError, Place};
use super::raw::{RawFabric, RawSwitch};
use crate::hostlist::{MAX_HOSTS, expand};
use crate::model::{Fabric, FabricLevel, NO_DOMAIN};

/// The most levels; a fat tree has three.
const MAX_LEVELS: usize = 16;

/// The fabric as gpuos.toml describes it, by names.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct FabricConfig {
    levels: Vec<LevelConfig>,
    switches: Vec<SwitchConfig>,
}

#[derive(Clone, PartialEq, Debug)]
struct LevelConfig {
    name: String,
    gbps: Option<f32>,
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
            if name != name.to_ascii_lowercase() || name == "node" || name == "any" {
                let form = "a level name in lower case other than node and any";
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
        Ok(fabric)
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

    /// Node names that switches list, with the place of the switch.
    pub fn node_names(&self) -> impl Iterator<Item = (&str, Place)> {
        let of = |switch: &'_ SwitchConfig| switch.place;
        self.switches
            .iter()
            .flat_map(move |s| s.nodes.iter().map(move |node| (node.as_str(), of(s))))
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
        let mut levels: Vec<FabricLevel> = Vec::new();
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
                    join(file, &level.name, &switches, &index, &below)?
                }
            };
            built.gbps = level.gbps.unwrap_or(built.gbps);
            levels.push(built);
        }
        for level in &slurm.levels {
            if !levels.iter().any(|other| other.name == level.name) {
                levels.push(level.clone());
            }
        }
        if let Some(first) = self.levels.first() {
            nested(&levels, node_names).map_err(|message| first.place.error(file, message))?;
        }
        Ok(Fabric { levels })
    }
}

fn hosts<T>(check: Check, at: &Spanned<T>, list: &str) -> Result<Vec<String>, ConfigError> {
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
                let message = format!(
                    "switch {} has no switch {child} below it; name switches of narrower levels",
                    switch.name
                );
                switch.place.error(file, message)
            })?;
            let all = level.domain_of.iter().enumerate();
            members.extend(all.filter(|(_, of)| **of == domain).map(|(node, _)| node));
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
