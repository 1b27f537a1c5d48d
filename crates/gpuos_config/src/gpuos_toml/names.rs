//! Names in gpuos.toml that only the cluster can confirm: levels of its fabric, partitions, kinds of GPUs. A wrong one is
//! no mistake in the file itself, so that the file is taken; `gpuos doctor` tells of it.
use std::collections::BTreeMap;

use gpuos_model::cluster::Cluster;
use gpuos_model::node_types::NodeFacts;
use gpuos_model::reading::{Check, ConfigError, Place};

use super::raw::{RawCheckpoint, RawPolicy};
use super::{Config, Rule, checkpoint};
use crate::options::topology_of;

/// Keys that have another name since gpuos was first tried, with that name.
const RENAMED: [(&str, &str); 3] = [
    ("moving", "switchable"),
    ("move-after", "switch-after"),
    ("move-hold", "switch-hold"),
];

/// Tells the new name of a key that was renamed, where the reader refuses the old one.
pub(super) fn renamed(mut error: ConfigError) -> ConfigError {
    let new = RENAMED.iter().find(|(old, new)| {
        // Another table may know no key of either name.
        let refused = error.message.strip_prefix("there is no key ");
        let refused = refused.and_then(|rest| rest.strip_prefix(&format!("`{old}`;")));
        refused.is_some_and(|rest| rest.contains(&format!("`{new}`")))
    });
    if let Some((old, new)) = new {
        error.message = format!("the key `{old}` is called `{new}` now: write {new} = ...");
    }
    error
}

/// The names in `[policy]`, `[[policy.rule]]` and `[checkpoint]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Named {
    levels: Vec<(String, Place)>,
    domains: Vec<(String, Place)>,
    partitions: Vec<(String, Place)>,
}

impl Named {
    /// Of tables that were read already: what is wrong in itself was refused.
    pub(super) fn read(check: Check, raw: &RawPolicy, kept: &RawCheckpoint) -> Named {
        let mut named = Named {
            domains: checkpoint::named_levels(check, kept),
            ..Named::default()
        };
        let rules = raw.rule.iter().map(|rule| &rule.get_ref().topology);
        for value in std::iter::once(&raw.topology).chain(rules).flatten() {
            if let Ok(wish) = topology_of("topology", value.get_ref()) {
                named.levels.push((wish.level, check.place(value)));
            }
        }
        for value in raw
            .rule
            .iter()
            .filter_map(|rule| rule.get_ref().partition.as_ref())
        {
            let name = value.get_ref().clone();
            named.partitions.push((name, check.place(value)));
        }
        named
    }
}

impl Config {
    /// Levels in rules, in `[policy]` and in `[checkpoint]` that the cluster does not have: what says so does nothing.
    pub fn unknown_levels(&self, cluster: &Cluster) -> Vec<ConfigError> {
        let levels = cluster.fabric.levels.iter();
        let levels = levels.map(|level| level.name.as_str());
        let known: Vec<&str> = ["node", "nvlink"].into_iter().chain(levels).collect();
        let error = |(level, place): &(String, Place), does: &str, also: &str| {
            let strange = !known.contains(&level.as_str()) && also != level;
            strange.then(|| {
                let known = known.join(", ");
                let also = if also.is_empty() {
                    String::new()
                } else {
                    format!(", {also}")
                };
                let message = format!(
                    "this cluster has no level {level}, so {does}; write one of {known}{also}"
                );
                place.error(&self.file, message)
            })
        };
        let rules = self.apart.levels.iter();
        let rules = rules.filter_map(|named| error(named, "the rule does nothing", ""));
        let wishes = self.named.levels.iter();
        let wishes = wishes.filter_map(|named| error(named, "no job prefers it", "any"));
        let domains = self.named.domains.iter();
        let domains = domains.filter_map(|named| error(named, "it keeps no nodes apart", "power"));
        rules.chain(wishes).chain(domains).collect()
    }

    /// Partitions in rules and in `[[policy.rule]]` that Slurm does not have.
    pub fn unknown_partitions(&self, partitions: &[&str]) -> Vec<ConfigError> {
        let named = self.apart.partitions.iter().chain(&self.named.partitions);
        let strange = named.filter(|(name, _)| !partitions.contains(&name.as_str()));
        let error = |(name, place): &(String, Place)| {
            place.error(&self.file, format!("partition {name} is not in slurm.conf"))
        };
        strange.map(error).collect()
    }

    /// `[[nodes]]` whose type has other GPUs than Slurm says of the node: its links and rates are then those of
    /// another machine.
    pub fn foreign_types(&self, nodes: &[NodeFacts]) -> Vec<ConfigError> {
        let facts: BTreeMap<&str, &NodeFacts> = nodes
            .iter()
            .map(|facts| (facts.name.as_str(), facts))
            .collect();
        let foreign = |rule: &Rule| {
            let wanted = &rule.node_type;
            let own = rule
                .nodes
                .iter()
                .filter_map(|name| facts.get(name.as_str()));
            let strange = |facts: &&&NodeFacts| {
                let told = !wanted.gres_type.is_empty() && !facts.gres_type.is_empty();
                told && !facts.same_gpu(wanted)
            };
            let first = own.into_iter().find(strange)?;
            let message = format!(
                "node {} has GPUs of type {} in Slurm (Gres=), and node type {} is for {}: name the type of these GPUs, or \
                 leave the node out of match",
                first.name, first.gres_type, wanted.name, wanted.gres_type
            );
            Some(rule.place.error(&self.file, message))
        };
        self.rules.iter().filter_map(foreign).collect()
    }

    /// GRES types of GPUs that no node type is for, with the nodes that have them and that no `[[nodes]]` describes.
    pub fn unknown_gpus(&self, nodes: &[NodeFacts]) -> BTreeMap<String, Vec<String>> {
        let mut unknown: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for facts in nodes
            .iter()
            .filter(|facts| facts.gpus > 0 && !facts.gres_type.is_empty())
        {
            let ruled = self
                .rules
                .iter()
                .any(|rule| rule.nodes.contains(&facts.name));
            if !ruled && !self.all_types().any(|known| facts.same_gpu(known)) {
                let own = unknown.entry(facts.gres_type.clone()).or_default();
                own.push(facts.name.clone());
            }
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_cluster_lacks_are_told_with_their_lines() {
        let text = "[policy]\ntopology = \"pod\"\n[[policy.rule]]\npartition = \"gone\"\ntopology = \"any\"\n\
                    [[policy.rule]]\npartition = \"main\"\ntopology = \"Leef\"\n\
                    [[nodes]]\nmatch = \"n[1-2]\"\ntype = \"dgx-a100\"\n";
        let config = Config::parse(text, "g").unwrap();
        let facts = |name: &str, gres_type: &str| NodeFacts {
            name: name.into(),
            gpus: 8,
            gres_type: gres_type.into(),
            ..NodeFacts::default()
        };
        let nodes = [
            facts("n1", "a100"),
            facts("n2", "h100"),
            facts("n3", "h9"),
            facts("n4", ""),
        ];
        let told = |errors: Vec<ConfigError>| -> Vec<String> {
            errors.iter().map(ToString::to_string).collect()
        };
        let levels = told(config.unknown_levels(&Cluster::default()));
        assert_eq!(levels.len(), 2, "{levels:?}");
        assert!(
            levels[0].starts_with("g:2:") && levels[0].contains("no level pod"),
            "{levels:?}"
        );
        assert!(
            levels[1].starts_with("g:8:") && levels[1].contains("no level leef"),
            "{levels:?}"
        );
        let partitions = told(config.unknown_partitions(&["main"]));
        assert_eq!(partitions.len(), 1, "{partitions:?}");
        let types = told(config.foreign_types(&nodes));
        assert_eq!(types.len(), 1, "{types:?}");
        assert!(
            types[0].starts_with("g:10:") && types[0].contains("node n2 has GPUs of type h100"),
            "{types:?}"
        );
        assert_eq!(
            config.unknown_gpus(&nodes),
            BTreeMap::from([("h9".to_string(), vec!["n3".to_string()])])
        );
    }
}
