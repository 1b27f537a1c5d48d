//! The kinds of node that can be simulated. What gpuos_model knows of a node type comes from there.

use std::sync::{Arc, LazyLock};

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::NodeType;

use super::{BOARDS, Board};

/// A kind of node.
pub struct Kind {
    /// Name, as `gpuos-nvml create` takes it: that of the node type in gpuos_model where it has one.
    pub name: &'static str,
    /// Product name of its GPUs.
    pub board: &'static str,
    /// PCI bus numbers of the GPUs, in the order of their indices.
    pub buses: &'static [u8],
    /// Where the bus numbers come from.
    pub source: &'static str,
}

/// All kinds. The index of one is in state files: new ones come last.
pub static KINDS: [Kind; 8] = [
    Kind {
        name: "dgx-a100",
        board: "NVIDIA A100-SXM4-80GB",
        buses: &[0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD],
        source: "DGX A100 User Guide, nvidia-smi",
    },
    Kind {
        name: "dgx-h100",
        board: "NVIDIA H100 80GB HBM3",
        buses: &[0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF],
        source: "DGX H100 User Guide, nvidia-smi",
    },
    Kind {
        name: "dgx-h200",
        board: "NVIDIA H200",
        buses: &[0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF],
        source: "as DGX H100",
    },
    Kind {
        name: "b200",
        board: "NVIDIA B200",
        buses: &[0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF],
        source: "as DGX H100",
    },
    Kind {
        name: "l40s-8",
        board: "NVIDIA L40S",
        buses: &[0x0A, 0x0B, 0x3A, 0x3B, 0x8A, 0x8B, 0xBA, 0xBB],
        source: "example",
    },
    Kind {
        name: "a30-4",
        board: "NVIDIA A30",
        buses: &[0x17, 0x31, 0xB1, 0xCA],
        source: "example",
    },
    Kind {
        name: "dgx-a100-40gb",
        board: "NVIDIA A100-SXM4-40GB",
        buses: &[0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD],
        source: "DGX A100 User Guide, nvidia-smi",
    },
    Kind {
        name: "v100-4",
        board: "Tesla V100-PCIE-32GB",
        buses: &[0x3B, 0x5E, 0xAF, 0xD8],
        source: "example",
    },
];

/// Node types that gpuos_model does not ship.
const TYPES: &str = r#"
[[node-type]]
name = "a30-4"
gpu = "NVIDIA A30"
gres-type = "a30"
gpus = 4
gpu-memory-mib = 24576
nvlinks = 4
nvlink-pairs = [[0, 1], [2, 3]]
nvlink-gbps = 20.0
pcie-gbps = 24
socket-gbps = 16
sockets = 2
cores-per-socket = 32
memory-gib = 512
gpu-watts = 165
source = "NVIDIA A30 data sheet: 24 GB, PCIe Gen4, a bridge joins two cards with 4 NVLinks; server modelled with 2 AMD EPYC CPUs, a pair on each"

[[node-type]]
name = "dgx-a100-40gb"
base = "dgx-a100"
gpu = "NVIDIA A100-SXM4-40GB"
gpu-memory-mib = 40960
source = "NVIDIA DGX A100 User Guide: as the 640 GB system with 8x A100 40 GB"

[[node-type]]
name = "v100-4"
gpu = "Tesla V100-PCIE-32GB"
gres-type = "v100"
gpus = 4
gpu-memory-mib = 32768
pcie-gbps = 12
socket-gbps = 9
sockets = 2
cores-per-socket = 20
memory-gib = 384
gpu-watts = 250
source = "NVIDIA V100 data sheet: 32 GB, PCIe Gen3; server modelled with 2 Intel Skylake CPUs and two GPUs on each"
"#;

// A test reads all of them, so that an error here cannot pass.
static CONFIG: LazyLock<Option<Config>> = LazyLock::new(|| Config::parse(TYPES, "kinds.rs").ok());
static NODE_TYPES: LazyLock<Vec<Arc<NodeType>>> = LazyLock::new(|| {
    let empty = || Arc::new(gpuos_model::node_types::builtin().swap_remove(0));
    let known = CONFIG.as_ref();
    let find = |kind: &Kind| known.and_then(|config| config.node_type(kind.name));
    KINDS
        .iter()
        .map(|k| find(k).unwrap_or_else(empty))
        .collect()
});

/// The kind with this index; the first one for an index that there is not.
pub fn kind_at(index: u32) -> &'static Kind {
    KINDS.get(index as usize).unwrap_or(&KINDS[0])
}

/// The kind with this name, and its index.
pub fn kind_named(name: &str) -> Option<(u32, &'static Kind)> {
    let mut all = (0..).zip(&KINDS);
    all.find(|(_, kind)| kind.name == name)
}

impl Kind {
    /// Its GPUs.
    pub fn board(&self) -> &'static Board {
        let found = BOARDS.iter().find(|board| board.name == self.board);
        found.unwrap_or(&BOARDS[0])
    }

    /// Links, NUMA nodes, cores and memory.
    pub fn node_type(&self) -> &'static NodeType {
        let index = KINDS.iter().position(|kind| kind.name == self.name);
        &NODE_TYPES[index.unwrap_or(0)]
    }

    /// Memory of a GPU as users see it, in MiB.
    pub fn gpu_memory_mib(&self) -> u64 {
        self.node_type().gpu_memory_mib
    }

    /// NVLinks of a GPU.
    pub fn links(&self) -> usize {
        let node_type = self.node_type();
        let count = (1..node_type.gpus).map(|peer| match node_type.link(0, peer) {
            gpuos_model::cluster::Link::Nv(count) => usize::from(count),
            _ => 0,
        });
        count.max().unwrap_or(0).min(crate::model::MAX_LINKS)
    }

    /// The GPU at the other end of the links, where GPUs are joined in pairs.
    pub fn paired_with(&self, gpu: usize) -> Option<usize> {
        let node_type = self.node_type();
        let linked =
            |&peer: &usize| matches!(node_type.link(gpu, peer), gpuos_model::cluster::Link::Nv(_));
        (0..node_type.gpus)
            .find(linked)
            .filter(|_| !node_type.nvswitch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_board_and_its_node_type() {
        Config::parse(TYPES, "kinds.rs").unwrap();
        for kind in &KINDS {
            assert_eq!(kind.board().name, kind.board);
            let node_type = kind.node_type();
            assert_eq!(node_type.name, kind.name);
            assert_eq!(node_type.gpus, kind.buses.len(), "{}", kind.name);
            assert_eq!(node_type.gpu, kind.board, "{}", kind.name);
            assert!(node_type.gpus <= crate::model::MAX_GPUS);
            let board = kind.board();
            let watts = node_type.figures.gpu_watts;
            assert_eq!(watts, board.watts[2], "{}", kind.name);
            assert_eq!(kind.links() > 0, board.nvlink[0] > 0, "{}", kind.name);
            assert!(kind.source.len() > 5 && board.source.len() > 20);
        }
    }

    #[test]
    fn links_are_those_of_the_machines() {
        let links = |name: &str| kind_named(name).unwrap().1.links();
        assert_eq!(links("dgx-a100"), 12);
        assert_eq!(links("dgx-h100"), 18);
        assert_eq!(links("l40s-8"), 0);
        let (_, a30) = kind_named("a30-4").unwrap();
        assert_eq!((a30.links(), a30.paired_with(2)), (4, Some(3)));
        assert_eq!(kind_named("dgx-a100").unwrap().1.paired_with(2), None);
    }
}
