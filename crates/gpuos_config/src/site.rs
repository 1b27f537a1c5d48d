//! A site's configuration, read from the folder of slurm.conf: gpuos.toml, the nodes of slurm.conf
//! and gres.conf, and Slurm's topology.
use gpuos_model::cluster::{Cluster, Fabric};
use gpuos_model::node_types::NodeFacts;

use crate::gpuos_toml::Config;
use crate::slurm_conf::{NodeLines, Read};
use crate::slurm_topology::{TopologyFile, parse_topology_conf, parse_topology_yaml};

/// The files, read and checked.
#[derive(Clone, Debug)]
pub struct Site {
    /// gpuos.toml; the defaults when there is none.
    pub config: Config,
    /// Nodes and their GPUs.
    pub nodes: NodeLines,
    topology: Option<TopologyFile>,
}

impl Site {
    /// Reads all files. `read` is asked for `gpuos.toml`, `slurm.conf`, `gres.conf`, `topology.yaml`,
    /// `topology.conf` and what slurm.conf and gres.conf include.
    ///
    /// # Errors
    /// The first mistake in one of our files or in Slurm's topology; a file that cannot be read.
    pub fn read(read: Read<'_>) -> Result<Site, String> {
        let config = match read("gpuos.toml")? {
            Some(text) => Config::parse(&text, "gpuos.toml").map_err(|e| e.to_string())?,
            None => Config::default(),
        };
        // Slurm prefers topology.yaml where both are there.
        let topology = match (read("topology.yaml")?, read("topology.conf")?) {
            (Some(text), _) => Some(parse_topology_yaml(&text, "topology.yaml")),
            (None, Some(text)) => Some(parse_topology_conf(&text, "topology.conf")),
            (None, None) => None,
        };
        Ok(Site {
            config,
            nodes: NodeLines::read(read)?,
            topology: topology.transpose().map_err(|e| e.to_string())?,
        })
    }

    /// The cluster made of these nodes.
    ///
    /// # Errors
    /// As [`Config::cluster`].
    pub fn cluster(&self, nodes: &[NodeFacts]) -> Result<Cluster, String> {
        let fabric = self.fabric(nodes);
        self.config
            .cluster(nodes, fabric.as_ref())
            .map_err(|e| e.to_string())
    }

    fn fabric(&self, nodes: &[NodeFacts]) -> Option<Fabric> {
        let names: Vec<String> = nodes.iter().map(|facts| facts.name.clone()).collect();
        self.topology
            .as_ref()
            .map(|topology| topology.fabric(&names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(gpuos: Option<&str>, topology: Option<&str>) -> Result<Site, String> {
        Site::read(&|name| {
            Ok(match name {
                "gpuos.toml" => gpuos.map(str::to_owned),
                "topology.conf" => topology.map(str::to_owned),
                "slurm.conf" => Some("NodeName=n[1-4] Gres=gpu:2\n".into()),
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
        let denied = Site::read(&|name| Err(format!("{name}: denied")));
        assert_eq!(denied.unwrap_err(), "gpuos.toml: denied");
    }
}
