//! What of a job's nodes fails together, by `[checkpoint] domains`.

use std::collections::HashMap;

use gpuos_checkpoint::sets::NodeDomains;
use gpuos_model::cluster::Fabric;
use gpuos_model::reading::ConfigError;

use super::Config;

/// The word for `[[power-domain]]` in `domains`.
const POWER: &str = "power";

impl Config {
    /// Whether `[checkpoint] domains` names levels of the fabric, for which somebody has to know it.
    pub fn keeps_levels_apart(&self) -> bool {
        let mut named = self.checkpoint.domains.iter();
        named.any(|level| level != POWER)
    }

    /// The failure domains of `nodes`, in their order, and what of `[checkpoint] domains` this cluster does not have, each as a sentence.
    /// `known` are the nodes that `slurm`, the workload manager's fabric, tells of, in its order.
    ///
    /// # Errors
    /// `[fabric]` contradicts the workload manager's fabric.
    pub fn failure_domains(
        &self,
        nodes: &[String],
        known: &[String],
        slurm: &Fabric,
    ) -> Result<(Vec<NodeDomains>, Vec<String>), ConfigError> {
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        let fabric = match self.keeps_levels_apart() {
            true => self.fabric.build(&self.file, &names, Some(slurm))?,
            false => Fabric::default(),
        };
        let index: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
        let mut all = vec![NodeDomains::default(); nodes.len()];
        let mut strange = Vec::new();
        for named in &self.checkpoint.domains {
            let level = fabric.levels.iter().find(|level| level.name == *named);
            let label = |node: &String| match level {
                Some(level) => {
                    let domain = level.domain_of.get(*index.get(node.as_str())?)?;
                    level.domains.get(*domain as usize)
                }
                None if named == POWER => {
                    let mut power = self.apart.rules.power.iter();
                    let own = power.find(|domain| domain.nodes.contains(node))?;
                    Some(&own.name)
                }
                None => None,
            };
            if level.is_none() && named != POWER {
                strange.push(format!(
                    "[checkpoint] domains: this cluster has no level {named}, so it keeps no nodes apart"
                ));
            }
            for (own, node) in all.iter_mut().zip(nodes) {
                if let Some(label) = label(node) {
                    own.0.insert(named.clone(), label.clone());
                }
            }
        }
        Ok((all, strange))
    }
}

#[cfg(test)]
mod tests {
    use gpuos_checkpoint::sets::NodeDomains;
    use gpuos_model::cluster::{Fabric, FabricLevel, NO_DOMAIN};

    use crate::gpuos_toml::Config;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn leaves() -> Fabric {
        let leaf = FabricLevel {
            name: "leaf".into(),
            domains: names(&["s1", "s2"]),
            domain_of: vec![0, 0, 1, NO_DOMAIN],
            gbps: 0.0,
        };
        Fabric { levels: vec![leaf] }
    }

    #[test]
    fn nodes_have_the_domains_that_the_file_wants_apart() {
        let text = "[checkpoint]\ndomains = [\"leaf\", \"power\", \"row\"]\n\
                    [[power-domain]]\nname = \"pdu1\"\nnodes = \"n[2-3]\"\n";
        let config = Config::parse(text, "gpuos.toml").unwrap();
        let known = names(&["n1", "n2", "n3", "n4"]);
        // In the job's order, and one that nobody describes.
        let nodes = names(&["n3", "n1", "n4", "n9", "n2"]);
        let (domains, strange) = config.failure_domains(&nodes, &known, &leaves()).unwrap();
        let wanted = [
            NodeDomains::of([("leaf", "s2"), ("power", "pdu1")]),
            NodeDomains::of([("leaf", "s1")]),
            NodeDomains::default(),
            NodeDomains::default(),
            NodeDomains::of([("leaf", "s1"), ("power", "pdu1")]),
        ];
        assert_eq!(domains, wanted);
        assert_eq!(strange.len(), 1, "{strange:?}");
        assert!(strange[0].contains("no level row"), "{strange:?}");
    }

    #[test]
    fn levels_of_gpuos_toml_count_and_those_of_slurm_below_them() {
        let text = "[checkpoint]\ndomains = [\"row\"]\n[[fabric.level]]\nname = \"leaf\"\n[[fabric.level]]\nname = \"row\"\n\
                    [[fabric.switch]]\nlevel = \"row\"\nname = \"r1\"\nswitches = [\"s1\"]\n";
        let config = Config::parse(text, "gpuos.toml").unwrap();
        let known = names(&["n1", "n2", "n3", "n4"]);
        let nodes = names(&["n1", "n3"]);
        let (domains, _) = config.failure_domains(&nodes, &known, &leaves()).unwrap();
        assert_eq!(
            domains,
            [NodeDomains::of([("row", "r1")]), NodeDomains::default()]
        );
    }

    #[test]
    fn without_the_key_nothing_is_kept_apart_and_no_fabric_is_needed() {
        let config = Config::parse("", "gpuos.toml").unwrap();
        assert!(!config.keeps_levels_apart());
        let text = "[checkpoint]\ndomains = [\"power\"]\n";
        let power = Config::parse(text, "gpuos.toml").unwrap();
        assert!(!power.keeps_levels_apart());
        for config in [config, power] {
            let (domains, strange) = config
                .failure_domains(&names(&["n1"]), &[], &Fabric::default())
                .unwrap();
            assert_eq!((domains, strange), (vec![NodeDomains::default()], vec![]));
        }
    }
}
