//! What slurm.conf says of topologies: the plugin, and which topology partitions and nodes name.

use std::collections::HashMap;

use gpuos_model::hostlist::expand;

use super::{ConfLine, Read, lines_of};

/// What slurm.conf says of topologies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TopologyKeys {
    /// `TopologyPlugin`; empty when it is not given.
    pub plugin: String,
    /// `Topology=` by the name of the partition, where one is given (25.05 and later).
    pub partitions: HashMap<String, String>,
    /// `Topology=` by the name of the node, where one is given (25.05 and later).
    pub nodes: Vec<NodeTopology>,
}

/// A node that slurm.conf puts somewhere itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeTopology {
    /// Name of the node.
    pub node: String,
    /// `NAME:UNIT,…` as it is written.
    pub text: String,
}

impl TopologyKeys {
    /// The nodes and their texts, as [`Topologies::move_nodes`] takes them.
    ///
    /// [`Topologies::move_nodes`]: crate::slurm_topology::Topologies::move_nodes
    pub fn moves(&self) -> impl Iterator<Item = (&str, &str)> {
        let nodes = self.nodes.iter();
        nodes.map(|one| (one.node.as_str(), one.text.as_str()))
    }

    /// Reads slurm.conf with the files that it includes.
    ///
    /// # Errors
    /// A file cannot be read; the sentence names it.
    pub fn read(read: Read<'_>) -> Result<TopologyKeys, String> {
        let lines = lines_of("slurm.conf", read)?;
        Ok(TopologyKeys::of(&lines.unwrap_or_default()))
    }

    /// What the lines of slurm.conf say.
    pub(crate) fn of(lines: &[ConfLine]) -> TopologyKeys {
        let mut keys = TopologyKeys::default();
        let (mut of_nodes, mut of_partitions) = (None, None);
        for line in lines {
            let Some((first, name)) = line.pairs.first() else {
                continue;
            };
            let topology = line.get("topology");
            let default = match first.as_str() {
                "topologyplugin" => {
                    keys.plugin.clone_from(name);
                    continue;
                }
                "nodename" => &mut of_nodes,
                "partitionname" => &mut of_partitions,
                _ => continue,
            };
            if name.eq_ignore_ascii_case("DEFAULT") {
                *default = topology.or(*default);
                continue;
            }
            let Some(text) = topology.or(*default) else {
                continue;
            };
            match first.as_str() {
                "nodename" => {
                    let names = expand(name).unwrap_or_default().into_iter();
                    keys.nodes.extend(names.map(|node| NodeTopology {
                        node,
                        text: text.to_owned(),
                    }));
                }
                _ => {
                    keys.partitions.insert(name.clone(), text.to_owned());
                }
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_nodes_have_their_own_or_the_default() {
        let conf = "TopologyPlugin=topology/tree\nNodeName=n[1-2] Topology=main:l1\nNodeName=DEFAULT Topology=b:b1\nNodeName=n3\n\
                    PartitionName=a Nodes=n1\nPartitionName=DEFAULT Topology=b State=UP\nPartitionName=DEFAULT MaxTime=1\n\
                    PartitionName=b Nodes=n2\nPartitionName=c Nodes=n3 Topology=\"main\"\n";
        let keys = TopologyKeys::read(&|_| Ok(Some(conf.into()))).unwrap();
        assert_eq!(keys.plugin, "topology/tree");
        let of = |name: &str| keys.partitions.get(name).map(String::as_str);
        assert_eq!([of("a"), of("b"), of("c")], [None, Some("b"), Some("main")]);
        let nodes = keys
            .nodes
            .iter()
            .map(|one| format!("{}={}", one.node, one.text));
        let nodes: Vec<String> = nodes.collect();
        assert_eq!(nodes, ["n1=main:l1", "n2=main:l1", "n3=b:b1"]);
    }
}
