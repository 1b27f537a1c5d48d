//! Which topology Slurm goes by: of which file, and for which partition.
//!
//! Everything that places jobs or tells of places asks here, so that plugin, command and daemon go by the same one.

use std::collections::HashMap;
use std::path::Path;

use gpuos_model::cluster::Fabric;

use super::{TopologyFile, parse_topology_yaml, read_topology_conf};
use crate::slurm_conf::Read;

/// A release of Slurm, as far as its topology goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SlurmRelease {
    /// 26 of 26.05.5.
    pub major: u32,
    /// 5 of 26.05.5.
    pub minor: u32,
}

/// From this release on Slurm reads topology.yaml, and then no TopologyPlugin and no topology.conf.
const YAML_FROM: SlurmRelease = SlurmRelease {
    major: 25,
    minor: 5,
};

impl SlurmRelease {
    /// Reads `26.05.5`; `None` when it is no release.
    pub fn parse(text: &str) -> Option<SlurmRelease> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let (major, minor) = (parts.next()??, parts.next()??);
        Some(SlurmRelease { major, minor })
    }
}

/// What describes the topology that is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologySource {
    /// topology.yaml, with all topologies in it.
    Yaml,
    /// Switches in topology.conf.
    ConfTree,
    /// Blocks in topology.conf.
    ConfBlock,
    /// Nothing: Slurm knows no domains that jobs could ask for.
    Nothing,
}

/// What describes the topology that is in force. `release`: Slurm's, `None` when it is not known, and then taken for a new one;
/// `plugin`: `TopologyPlugin` as slurm.conf or slurmctld has it, empty when it is not set; `has_yaml`: whether there is a topology.yaml
/// beside slurm.conf.
///
/// It follows `topology_g_init` in Slurm's `topology.c`, and `slurm_topo_init` before 23.11.
pub fn topology_source(
    release: Option<SlurmRelease>,
    plugin: &str,
    has_yaml: bool,
) -> TopologySource {
    if has_yaml && release.is_none_or(|release| release >= YAML_FROM) {
        return TopologySource::Yaml;
    }
    match plugin.strip_prefix("topology/").unwrap_or(plugin) {
        "tree" => TopologySource::ConfTree,
        "block" => TopologySource::ConfBlock,
        _ => TopologySource::Nothing,
    }
}

/// The topologies that are in force. The first one is the cluster's; from 25.05 on a partition may name another.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topologies {
    list: Vec<TopologyFile>,
}

impl Topologies {
    /// Those of a text of topology.yaml, in Slurm's order.
    pub(super) fn new(list: Vec<TopologyFile>) -> Topologies {
        Topologies { list }
    }

    /// The one of a topology.conf.
    pub fn of_conf(file: TopologyFile) -> Topologies {
        Topologies { list: vec![file] }
    }

    /// Reads what [`topology_source`] names. `read` is asked for `topology.yaml` and `topology.conf`, and what the latter includes; where
    /// there is no such file, there is no topology.
    ///
    /// # Errors
    /// A file cannot be read, or has a mistake.
    pub fn read(
        release: Option<SlurmRelease>,
        plugin: &str,
        read: Read<'_>,
    ) -> Result<Topologies, String> {
        const YAML: &str = "topology.yaml";
        // A file that this release does not look at may hold what it likes.
        let yaml = match topology_source(release, plugin, true) {
            TopologySource::Yaml => read(YAML)?,
            _ => None,
        };
        let source = topology_source(release, plugin, yaml.is_some());
        let wanted = match (source, yaml) {
            (TopologySource::Yaml, Some(text)) => {
                return parse_topology_yaml(&text, YAML).map_err(|why| why.to_string());
            }
            (TopologySource::ConfTree, _) => false,
            (TopologySource::ConfBlock, _) => true,
            _ => return Ok(Topologies::default()),
        };
        let file = read_topology_conf(read).map_err(|why| why.to_string())?;
        Ok(match file {
            Some(file) if file.is_block() == Some(!wanted) => {
                let (has, needs) = match wanted {
                    true => ("switches", "blocks"),
                    false => ("blocks", "switches"),
                };
                return Err(format!(
                    "topology.conf has {has}, and TopologyPlugin={plugin} reads {needs}: change one of them"
                ));
            }
            Some(file) => Topologies::of_conf(file),
            None => Topologies::default(),
        })
    }

    /// The same of the files in a folder, which a mistake in one of them names.
    ///
    /// # Errors
    /// As [`Topologies::read`].
    pub fn read_in(
        folder: &Path,
        release: Option<SlurmRelease>,
        plugin: &str,
        read: Read<'_>,
    ) -> Result<Topologies, String> {
        // What cannot be read has its path from `read`.
        Topologies::read(release, plugin, read).map_err(|why| match why.starts_with("topology.") {
            true => folder.join(why).display().to_string(),
            false => why,
        })
    }

    /// The cluster's own topology, for partitions that name none.
    pub fn of_cluster(&self) -> Option<&TopologyFile> {
        self.list.first()
    }

    /// All topologies, the cluster's own first: the numbers that Slurm has for them.
    pub fn all(&self) -> &[TopologyFile] {
        &self.list
    }

    /// The number of a topology by the name that a partition gives; an empty one stands for the cluster's. `None`: there is none of that
    /// name.
    pub fn number(&self, name: &str) -> Option<usize> {
        match name {
            "" => Some(0),
            _ => self.list.iter().position(|one| one.name == name),
        }
    }

    /// The levels and domains of each topology, for nodes in the order of `node_names`.
    pub fn fabrics(&self, node_names: &[String]) -> Vec<Fabric> {
        let fabrics = self.list.iter().map(|one| one.fabric(node_names));
        fabrics.collect()
    }

    /// Nodes that the topologies name and that are not among `node_names`, each once.
    pub fn unknown_nodes(&self, node_names: &[String]) -> Vec<String> {
        let all = self.list.iter();
        let mut nodes: Vec<String> = all.flat_map(|one| one.unknown_nodes(node_names)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Puts nodes where their `Topology=` says (25.05 and later): `default:root:leaf1,blocks:b2`. In a topology that it does not name a
    /// node is in no domain. An empty text leaves the node where the file has it; of several the last one counts.
    pub fn move_nodes<'a>(&mut self, texts: impl Iterator<Item = (&'a str, &'a str)>) {
        let texts: Vec<_> = texts.filter(|(_, text)| !text.is_empty()).collect();
        let nodes = texts.iter().map(|(node, _)| *node);
        let last: HashMap<&str, usize> = nodes.zip(0..).collect();
        for topology in &mut self.list {
            topology.take_out(|node| last.contains_key(node));
            for (at, (node, text)) in texts.iter().enumerate() {
                let mut named = text.split(',').filter_map(|part| part.split_once(':'));
                let unit = named.find(|(name, _)| *name == topology.name);
                if let Some((_, unit)) = unit.filter(|_| last[node] == at) {
                    topology.put(node, unit);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_that_of_slurm() {
        use TopologySource::{ConfBlock, ConfTree, Nothing, Yaml};
        for (release, plugin, has_yaml, source) in [
            ("22.05.8", "topology/none", true, Nothing),
            ("22.05.8", "topology/tree", true, ConfTree),
            ("22.05.8", "topology/hypercube", false, Nothing),
            ("24.11.5", "topology/default", true, Nothing),
            ("24.11.5", "tree", false, ConfTree),
            ("24.11.5", "topology/block", true, ConfBlock),
            ("25.05.0", "", true, Yaml),
            ("25.05.0", "topology/block", true, Yaml),
            ("26.05.5", "topology/flat", false, Nothing),
            ("26.05.5", "topology/ring", false, Nothing),
            ("26.05.5", "topology/tree", false, ConfTree),
            ("", "topology/tree", true, Yaml),
        ] {
            let found = topology_source(SlurmRelease::parse(release), plugin, has_yaml);
            assert_eq!(found, source, "{release} {plugin} {has_yaml}");
        }
        assert!(SlurmRelease::parse("25.05") < SlurmRelease::parse("25.11.2"));
        assert_eq!(SlurmRelease::parse("x.1"), None);
    }

    #[test]
    fn a_file_that_is_not_in_force_is_not_read() {
        let read = |name: &str| match name {
            "topology.yaml" => Ok(Some("[[broken".to_owned())),
            _ => Ok(Some("SwitchName=a Nodes=n1\n".to_owned())),
        };
        let old = SlurmRelease::parse("24.11.5");
        let found = Topologies::read(old, "topology/tree", &read).unwrap();
        assert_eq!(found.all().len(), 1);
        let none = Topologies::read(old, "topology/default", &read).unwrap();
        assert_eq!(none, Topologies::default());
        let broken = Topologies::read(SlurmRelease::parse("25.05.1"), "", &read);
        assert!(broken.unwrap_err().starts_with("topology.yaml:"));
        let mixed = Topologies::read(old, "topology/block", &read).unwrap_err();
        assert!(mixed.contains("has switches"), "{mixed}");
        let none = Topologies::read(old, "topology/tree", &|_| Ok(None)).unwrap();
        assert_eq!(none, Topologies::default());
    }
}
