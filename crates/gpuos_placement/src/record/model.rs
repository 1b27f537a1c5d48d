//! The cluster as a recording carries it: node types once, nodes by name and type.
use std::borrow::Cow;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, NO_DOMAIN, Node, NodeType};
use gpuos_model::gpuset::MAX_GPUS;
use serde::{Deserialize, Serialize};

use crate::fabric::Recipe;

/// A cluster to be written or as it was read.
#[derive(Serialize, Deserialize)]
pub struct Model<'a> {
    pub types: Vec<Cow<'a, NodeType>>,
    pub nodes: Vec<(Cow<'a, str>, Option<u16>)>,
    pub fabric: Cow<'a, Fabric>,
    pub net: Option<Cow<'a, Recipe>>,
}

impl<'a> Model<'a> {
    pub fn of(cluster: &'a Cluster, net: Option<&'a Recipe>) -> Model<'a> {
        let mut types: Vec<&Arc<NodeType>> = Vec::new();
        let mut nodes = Vec::with_capacity(cluster.nodes.len());
        for node in &cluster.nodes {
            let at = node.node_type.as_ref().map(|mine| {
                let same = |other: &&Arc<NodeType>| Arc::ptr_eq(other, mine) || *other == mine;
                types.iter().position(same).unwrap_or_else(|| {
                    types.push(mine);
                    types.len() - 1
                }) as u16
            });
            nodes.push((Cow::Borrowed(node.name.as_str()), at));
        }
        Model {
            types: types.into_iter().map(|t| Cow::Borrowed(&**t)).collect(),
            nodes,
            fabric: Cow::Borrowed(&cluster.fabric),
            net: net.map(Cow::Borrowed),
        }
    }

    /// The cluster, if it is one that plans can be made for, and what its network is made of: bytes can
    /// say anything.
    pub fn cluster(self) -> Option<(Cluster, Option<Recipe>)> {
        let sound = |t: &NodeType| {
            (1..=MAX_GPUS).contains(&t.gpus)
                && t.links.len() == t.gpus * t.gpus
                && t.numa.len() == t.gpus
                && t.nics.iter().all(|nic| nic.links.len() == t.gpus)
        };
        if !self.types.iter().all(|t| sound(t)) || !nested(&self.fabric, self.nodes.len()) {
            return None;
        }
        let types: Vec<Arc<NodeType>> = self
            .types
            .into_iter()
            .map(|t| Arc::new(t.into_owned()))
            .collect();
        let node = |(name, at): (Cow<str>, Option<u16>)| {
            let node_type = match at {
                Some(at) => Some(types.get(usize::from(at))?.clone()),
                None => None,
            };
            Some(Node {
                name: name.into_owned(),
                node_type,
            })
        };
        let cluster = Cluster {
            nodes: self.nodes.into_iter().map(node).collect::<Option<_>>()?,
            fabric: self.fabric.into_owned(),
        };
        Some((cluster, self.net.map(Cow::into_owned)))
    }
}

/// Whether every node is in a domain that exists or in none, and domains lie inside those of the
/// next level.
fn nested(fabric: &Fabric, nodes: usize) -> bool {
    let whole = fabric.levels.iter().all(|level| {
        let known = |&of: &u32| of == NO_DOMAIN || (of as usize) < level.domains.len();
        level.domain_of.len() == nodes && level.domain_of.iter().all(known)
    });
    whole
        && fabric.levels.windows(2).all(|pair| {
            let mut outer = vec![None; pair[0].domains.len()];
            pair[0]
                .domain_of
                .iter()
                .zip(&pair[1].domain_of)
                .all(|(&of, &wider)| {
                    let Some(slot) = outer.get_mut(of as usize) else {
                        return true;
                    };
                    *slot.get_or_insert(wider) == wider
                })
        })
}
