//! The node types that gpuos ships, as data: `gpuos_core/data/node-types.toml`, in the format
//! of `[[node-type]]` in gpuos.toml. Each says where its figures come from.

use std::sync::{Arc, LazyLock};

use crate::config::{RawTypes, parse_types};
use crate::model::NodeType;

/// The data file, for people who want a type to start from.
pub const DATA: &str = include_str!("../data/node-types.toml");

const FILE: &str = "node-types.toml";

// A test reads the data file, so that it cannot be broken here.
static SHIPPED: LazyLock<(Vec<Arc<NodeType>>, RawTypes)> = LazyLock::new(|| {
    let (types, raw) = parse_types(DATA, FILE).unwrap_or_default();
    (types.into_iter().map(Arc::new).collect(), raw)
});

/// All shipped node types, in the order of the data file.
pub fn builtin() -> Vec<NodeType> {
    SHIPPED
        .0
        .iter()
        .map(|node_type| (**node_type).clone())
        .collect()
}

/// A shipped node type by name.
pub fn by_name(name: &str) -> Option<NodeType> {
    let found = all().iter().find(|node_type| node_type.name == name);
    found.map(|node_type| (**node_type).clone())
}

/// All shipped node types, shared.
pub(crate) fn all() -> &'static [Arc<NodeType>] {
    &SHIPPED.0
}

/// The shipped types as bases of others.
pub(crate) fn raw() -> &'static RawTypes {
    &SHIPPED.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

    #[test]
    fn data_file_is_whole() {
        let (types, _) = parse_types(DATA, FILE).unwrap();
        let names: Vec<&str> = types.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "dgx-a100",
                "dgx-h100",
                "dgx-h200",
                "b200",
                "gb200-nvl72",
                "l40s-8",
                "a100-pairs-4",
                "pairs-8"
            ]
        );
        for node_type in &types {
            assert!(node_type.source.len() > 20, "{}", node_type.name);
            assert!(!node_type.gpu.is_empty() && !node_type.gres_type.is_empty());
            assert!(node_type.gpu_memory_mib > 40_000 && node_type.memory_mib > 0);
            assert!(!node_type.nics.is_empty(), "{}", node_type.name);
        }
    }

    /// The sums that DESIGN and NCCL give: A100 240, H100 371, B200 722 GB/s.
    #[test]
    fn nvlink_rates_are_those_of_nccl() {
        for (name, count, gbps) in [
            ("dgx-a100", 12, 240.0),
            ("dgx-h100", 18, 371.0),
            ("dgx-h200", 18, 371.0),
            ("b200", 18, 722.0),
            ("gb200-nvl72", 18, 722.0),
            ("a100-pairs-4", 12, 240.0),
        ] {
            let node_type = by_name(name).unwrap();
            assert_eq!(node_type.link(0, 1), Link::Nv(count), "{name}");
            let sum = node_type.nvlink_gbps * f32::from(count);
            assert!((sum - gbps).abs() < 1.0, "{name}: {sum}");
        }
    }

    #[test]
    fn pairs_and_sockets() {
        let pairs = by_name("pairs-8").unwrap();
        assert!(matches!(pairs.link(4, 5), Link::Nv(_)));
        assert_eq!(pairs.link(1, 2), Link::Node);
        assert_eq!(pairs.link(3, 4), Link::Sys);
        let l40s = by_name("l40s-8").unwrap();
        assert_eq!((l40s.link(0, 1), l40s.link(1, 2)), (Link::Pix, Link::Node));
        assert_eq!(l40s.nvlink_gbps, 0.0);
        assert!(by_name("nothing").is_none());
    }
}
