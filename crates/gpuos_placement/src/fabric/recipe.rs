//! What a network is made of beside the cluster itself.
use gpuos_model::cluster::Cluster;
use serde::{Deserialize, Serialize};

use super::{Island, Net, Uplink};

/// The most islands of one network.
const MAX_ISLANDS: usize = 64;

/// What the network of a cluster is made of beside its levels and node types: enough to build the
/// same [`Net`] again, also from a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Recipe {
    /// The levels of the cluster, with what their switches have upwards.
    Levels {
        /// By level of the cluster's fabric; missing ones are full.
        uplinks: Vec<Uplink>,
        /// Whether each domain of the lowest level has a leaf switch for each rail.
        rails: bool,
    },
    /// Islands, below the NVLink domains that the cluster's level `nvlink` has.
    Islands(Vec<Island>),
}

impl Recipe {
    /// The network of the cluster.
    ///
    /// # Errors
    /// A sentence: islands that do not fit the cluster or each other, or sizes that make no fabric.
    pub fn net(&self, cluster: &Cluster) -> Result<Net, String> {
        match self {
            Recipe::Levels { uplinks, rails } => Ok(Net::of_levels(cluster, uplinks, *rails)),
            Recipe::Islands(islands) if islands.len() > MAX_ISLANDS => Err(format!(
                "the network has {} islands; at most {MAX_ISLANDS} are possible",
                islands.len()
            )),
            Recipe::Islands(islands) => {
                let mut levels = cluster.fabric.levels.iter();
                Net::new(cluster, islands, levels.find(|l| l.name == "nvlink"))
            }
        }
    }
}
