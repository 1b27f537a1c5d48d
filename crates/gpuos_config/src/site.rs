//! A site's configuration, read from the folder of slurm.conf: gpuos.toml, the nodes of slurm.conf
//! and gres.conf, and Slurm's topology.
use std::collections::HashMap;

use gpuos_model::cluster::Cluster;
use gpuos_model::node_types::NodeFacts;

use crate::gpuos_toml::Config;
use crate::slurm_conf::{GresConf, NodeLines, Read, TopologyKeys, lines_of_slurm_conf};
use crate::slurm_topology::{SlurmRelease, Topologies};

/// The files, read and checked.
#[derive(Clone, Debug)]
pub struct Site {
    /// gpuos.toml; the defaults when there is none.
    pub config: Config,
    /// Nodes and their GPUs.
    pub nodes: NodeLines,
    /// The topologies that are in force.
    pub topologies: Topologies,
    /// The topology that a partition names, by the partition's name.
    partitions: HashMap<String, String>,
}

impl Site {
    /// Reads all files. `read` is asked for `gpuos.toml`, `slurm.conf`, `gres.conf`, `topology.yaml`,
    /// `topology.conf` and what these include. `release` is Slurm's, where it is known.
    ///
    /// # Errors
    /// The first mistake in one of our files or in Slurm's topology; a file that cannot be read.
    pub fn read(release: Option<SlurmRelease>, read: Read<'_>) -> Result<Site, String> {
        let config = match read("gpuos.toml")? {
            Some(text) => Config::parse(&text, "gpuos.toml").map_err(|e| e.to_string())?,
            None => Config::default(),
        };
        let slurm_conf = lines_of_slurm_conf(read)?;
        let nodes = NodeLines::of(&slurm_conf, GresConf::read(read)?);
        let keys = TopologyKeys::of(&slurm_conf);
        let mut topologies = Topologies::read(release, &keys.plugin, read)?;
        topologies.move_nodes(keys.moves());
        Ok(Site {
            config,
            nodes,
            topologies,
            partitions: keys.partitions,
        })
    }

    /// The cluster made of these nodes, with the topology that the cluster has for partitions without one of their own.
    ///
    /// # Errors
    /// As [`Config::cluster`].
    pub fn cluster(&self, nodes: &[NodeFacts]) -> Result<Cluster, String> {
        self.with_topology(nodes, 0)
    }

    /// The cluster made of these nodes, as jobs in a partition see it.
    ///
    /// # Errors
    /// As [`Config::cluster`]; the partition names a topology that there is not.
    pub fn cluster_in(&self, nodes: &[NodeFacts], partition: &str) -> Result<Cluster, String> {
        let name = self.partitions.get(partition).map_or("", String::as_str);
        let number = self.topologies.number(name).ok_or_else(|| {
            format!("slurm.conf: partition {partition} has Topology={name}, and topology.yaml has no such topology")
        })?;
        self.with_topology(nodes, number)
    }

    /// The clusters of all topologies that are told apart ([`Config::views`]), that of the cluster itself first.
    ///
    /// # Errors
    /// As [`Config::cluster`].
    pub fn clusters(&self, nodes: &[NodeFacts]) -> Result<Vec<Cluster>, String> {
        (0..self.config.views(&self.topologies))
            .map(|number| self.with_topology(nodes, number))
            .collect()
    }

    fn with_topology(&self, nodes: &[NodeFacts], number: usize) -> Result<Cluster, String> {
        let names: Vec<String> = nodes.iter().map(|facts| facts.name.clone()).collect();
        let topology = self.topologies.all().get(number);
        let fabric = topology.map(|topology| topology.fabric(&names));
        let cluster = self.config.cluster(nodes, fabric.as_ref());
        cluster.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(gpuos: Option<&str>, topology: Option<&str>) -> Result<Site, String> {
        Site::read(None, &|name| {
            Ok(match name {
                "gpuos.toml" => gpuos.map(str::to_owned),
                "topology.conf" => topology.map(str::to_owned),
                "slurm.conf" => {
                    Some("TopologyPlugin=topology/tree\nNodeName=n[1-4] Gres=gpu:2\n".into())
                }
                _ => None,
            })
        })
    }

    #[test]
    fn files_come_together_to_a_cluster() {
        let site = site(
            None,
            Some("SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n[3-4]\n"),
        )
        .unwrap();
        let cluster = site.cluster(&site.nodes.all()).unwrap();
        assert_eq!(cluster.nodes.len(), 4);
        assert_eq!(cluster.fabric.levels[0].name, "leaf");
        assert_eq!(cluster.fabric.levels[0].domain_of, [0, 0, 1, 1]);
    }

    #[test]
    fn a_partition_sees_its_own_topology() {
        let yaml = "- topology: main\n  tree: {switches: [{switch: s1, nodes: 'n[1-2]'}, {switch: s2, nodes: 'n[3-4]'}]}\n\
                    - topology: other\n  block: {blocks: [{block: b1, nodes: 'n[2-3]'}, {block: b2, nodes: n4}]}\n";
        let read = |name: &str| {
            Ok(match name {
                "slurm.conf" => Some(
                    "NodeName=n[1-3] Gres=gpu:2\nNodeName=n4 Gres=gpu:2 Topology=other:b1\nPartitionName=a Nodes=ALL\n\
                     PartitionName=b Nodes=ALL Topology=other\nPartitionName=c Nodes=ALL Topology=none\n"
                        .to_owned(),
                ),
                "topology.yaml" => Some(yaml.to_owned()),
                "topology.conf" => Some("SwitchName=old Nodes=n[1-4]\n".to_owned()),
                _ => None,
            })
        };
        let leaf_of = |release: &str, partition: &str| {
            let site = Site::read(SlurmRelease::parse(release), &read)?;
            let cluster = site.cluster_in(&site.nodes.all(), partition)?;
            let level = cluster.fabric.levels.first();
            Ok::<_, String>(level.map(|level| (level.name.clone(), level.domain_of.clone())))
        };
        let none = gpuos_model::cluster::NO_DOMAIN;
        let leaf = Some(("leaf".to_owned(), vec![0, 0, 1, none]));
        assert_eq!(leaf_of("26.05.5", "a"), Ok(leaf));
        let block = Some(("block".to_owned(), vec![none, 0, 0, 0]));
        assert_eq!(leaf_of("26.05.5", "b"), Ok(block));
        assert!(
            leaf_of("26.05.5", "c")
                .unwrap_err()
                .contains("Topology=none")
        );
        // Before 25.05 there is neither topology.yaml nor a plugin that reads topology.conf by itself.
        assert_eq!(leaf_of("24.11.5", "a"), Ok(None));
    }

    #[test]
    fn a_mistake_in_any_file_is_named() {
        assert!(
            site(Some("[polic]\n"), None)
                .unwrap_err()
                .starts_with("gpuos.toml:1:")
        );
        assert!(
            site(None, Some("SwitchName\n"))
                .unwrap_err()
                .starts_with("topology.conf:1:")
        );
        let denied = Site::read(None, &|name| Err(format!("{name}: denied")));
        assert_eq!(denied.unwrap_err(), "gpuos.toml: denied");
    }
}
