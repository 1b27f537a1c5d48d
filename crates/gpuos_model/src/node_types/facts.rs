//! Node types from what Slurm itself knows.
use super::build::{NVLINK_GBPS, PCIE_GBPS, SOCKET_GBPS, pcie_links};
use crate::cluster::{Link, NodeType};

/// What Slurm itself knows of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeFacts {
    /// Node name.
    pub name: String,
    /// GPUs that Slurm counts on it (GRES `gpu`).
    pub gpus: usize,
    /// GRES type of the GPUs; empty when they have none.
    pub gres_type: String,
    /// CPU sockets.
    pub sockets: u16,
    /// Cores per socket.
    pub cores_per_socket: u16,
    /// `Links=` of gres.conf: NVLinks between GPUs `i` and `j` at `i * gpus + j`, -1 for the
    /// GPU itself.
    pub links: Option<Vec<i32>>,
    /// Socket of each GPU, from `Cores=` of gres.conf.
    pub gpu_sockets: Option<Vec<u16>>,
}

impl NodeFacts {
    /// NVLinks between two GPUs, if gres.conf tells them.
    fn nvlinks(&self, a: usize, b: usize) -> Option<u8> {
        let links = self.links.as_ref()?;
        let complete = links.len() == self.gpus * self.gpus;
        let count = complete.then(|| links[a * self.gpus + b])?;
        Some(count.clamp(0, 64) as u8)
    }

    /// Whether a node type can describe this node. A type with NVLink bridges is believed
    /// only when `Links=` shows the bridges: not every server with these GPUs has them. An
    /// NVSwitch machine shows no links there, so that zeros say nothing.
    pub fn fits(&self, node_type: &NodeType) -> bool {
        if node_type.gpus != self.gpus || !self.same_gpu(node_type) {
            return false;
        }
        let pairs = || (0..self.gpus).flat_map(|a| (0..a).map(move |b| (a, b)));
        let has_nvlink = pairs().any(|(a, b)| matches!(node_type.link(a, b), Link::Nv(_)));
        let told = pairs().any(|(a, b)| self.nvlinks(a, b).is_some_and(|n| n > 0));
        match told {
            true => pairs().all(|(a, b)| {
                let linked = matches!(node_type.link(a, b), Link::Nv(_));
                linked == self.nvlinks(a, b).is_some_and(|n| n > 0)
            }),
            false => node_type.nvswitch || !has_nvlink,
        }
    }

    /// Whether the GRES type names the GPU of a node type: as it is, or as a word of the long
    /// names that AutoDetect gives (`nvidia_h100_80gb_hbm3`). MIG slices (`a100_3g.20gb`) are
    /// other things, and cards with a PCIe plug have no NVSwitch.
    pub fn same_gpu(&self, node_type: &NodeType) -> bool {
        let wanted = &node_type.gres_type;
        if wanted.is_empty() || self.gres_type.eq_ignore_ascii_case(wanted) {
            return !wanted.is_empty();
        }
        let given = self.gres_type.to_ascii_lowercase();
        let words = || given.split(|c: char| !c.is_ascii_alphanumeric());
        let slice = |word: &str| {
            word.strip_suffix('g')
                .is_some_and(|n| n.parse::<u8>().is_ok())
        };
        let plug = |word: &str| node_type.nvswitch && (word == "pcie" || word == "nvl");
        words().any(|word| word.eq_ignore_ascii_case(wanted))
            && !words().any(|word| slice(word) || plug(word))
    }

    /// A node type made of the facts alone; `like` gives the rates of a known type with the
    /// same GPUs. Figures that nobody knows are 0.
    pub fn node_type(&self, like: Option<&NodeType>) -> NodeType {
        let gpus = self.gpus;
        let numa = match self.gpu_sockets.as_ref().filter(|list| list.len() == gpus) {
            Some(list) => list.clone(),
            // Nothing is known: no GPU is then nearer to another one than the rest.
            None => vec![0; gpus],
        };
        let mut links = pcie_links(gpus, &numa);
        for a in 0..gpus {
            for b in 0..gpus {
                let count = match a != b {
                    true => self.nvlinks(a, b).max(self.nvlinks(b, a)).unwrap_or(0),
                    false => 0,
                };
                if count > 0 {
                    links[a * gpus + b] = Link::Nv(count);
                }
            }
        }
        let nvlinks = links.iter().any(|link| matches!(link, Link::Nv(_)));
        let rate = like.map(|t| t.nvlink_gbps).filter(|&rate| rate > 0.0);
        let kind = match self.gres_type.is_empty() {
            true => "gpu",
            false => &self.gres_type,
        };
        NodeType {
            name: format!("{kind}-x{gpus}"),
            gpu: like.map(|t| t.gpu.clone()).unwrap_or_default(),
            gres_type: self.gres_type.clone(),
            gpus,
            links,
            numa,
            nics: Vec::new(),
            nvlink_gbps: match nvlinks {
                true => rate.unwrap_or(NVLINK_GBPS),
                false => 0.0,
            },
            pcie_gbps: like.map_or(PCIE_GBPS, |t| t.pcie_gbps),
            socket_gbps: like.map_or(SOCKET_GBPS, |t| t.socket_gbps),
            nvswitch: false,
            sockets: self.sockets.max(1),
            cores_per_socket: self.cores_per_socket.max(1),
            memory_mib: 0,
            gpu_memory_mib: like.map_or(0, |t| t.gpu_memory_mib),
            figures: like.map(|t| t.figures).unwrap_or_default(),
            source: "slurm.conf and gres.conf".into(),
        }
    }
}
