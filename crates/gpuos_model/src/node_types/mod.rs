//! The node types that gpuos ships, as data: `crates/gpuos_model/data/node-types.toml`, in the format
//! of `[[node-type]]` in gpuos.toml. Each says where its figures come from.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use toml::Spanned;

use crate::cluster::NodeType;
use crate::reading::{Check, ConfigError, quoted, read};

mod build;
mod facts;
mod raw;

pub use facts::NodeFacts;
pub use raw::RawType;

/// The data file, for people who want a type to start from.
pub const DATA: &str = include_str!("../../data/node-types.toml");

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
pub fn all() -> &'static [Arc<NodeType>] {
    &SHIPPED.0
}

/// The shipped types as bases of others.
pub fn raw() -> &'static RawTypes {
    &SHIPPED.1
}

/// Node types in their raw form, by name: bases for others.
pub type RawTypes = HashMap<String, RawType>;

/// Builds node types in order, and gives their raw forms with the bases merged in. Each may
/// build on `known` types and on those before it.
///
/// # Errors
/// The first mistake: a value that is not accepted, a base that is not known, a type described twice.
pub fn build_types(
    check: Check,
    tables: Vec<Spanned<RawType>>,
    known: &RawTypes,
) -> Result<(Vec<NodeType>, RawTypes), ConfigError> {
    let mut own = RawTypes::new();
    let mut built: Vec<NodeType> = Vec::new();
    for table in tables {
        let span = table.span();
        let mut raw = table.into_inner();
        if let Some(name) = &raw.base {
            let base = own.get(name.get_ref()).or(known.get(name.get_ref()));
            let base = base.ok_or_else(|| {
                let names = known.keys().chain(own.keys()).map(String::as_str);
                let mut names: Vec<&str> = names.collect();
                names.sort_unstable();
                let form = format!("a node type described before: {}", names.join(", "));
                check.refuse("base", name, quoted(name.get_ref()), form)
            })?;
            raw = raw.over(base, span.clone());
        }
        let raw = Spanned::new(span, raw);
        let node_type = build::build(check, &raw)?;
        if own.contains_key(&node_type.name) {
            let message = format!(
                "node type {} is described twice; remove one",
                node_type.name
            );
            return Err(check.error(&raw, message));
        }
        own.insert(node_type.name.clone(), raw.into_inner());
        built.push(node_type);
    }
    Ok((built, own))
}

/// A file that has node types only.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    node_type: Vec<Spanned<RawType>>,
}

/// Reads it.
fn parse_types(text: &str, file: &str) -> Result<(Vec<NodeType>, RawTypes), ConfigError> {
    let (raw, check): (File, _) = read(text, file)?;
    build_types(check, raw.node_type, &RawTypes::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Link;
    use crate::figures::Precision;

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
            ],
            "add a new type to this list"
        );
        for node_type in &types {
            let missing = [
                ("source", node_type.source.len() > 20),
                ("gpu", !node_type.gpu.is_empty()),
                ("gres-type", !node_type.gres_type.is_empty()),
                ("gpu-memory-mib", node_type.gpu_memory_mib > 4096),
                ("memory-gib", node_type.memory_mib > 0),
                ("a [[node-type.nic]]", !node_type.nics.is_empty()),
                ("tflops", node_type.figures.rate(Precision::Bf16) > 0),
                ("gpu-memory-gbps", node_type.figures.memory_gbps > 0),
                ("gpu-watts", node_type.figures.gpu_watts > 0),
            ];
            let missing = missing.iter().filter(|(_, there)| !there);
            let missing: Vec<&str> = missing.map(|(what, _)| *what).collect();
            assert!(missing.is_empty(), "{}: say {missing:?}", node_type.name);
        }
    }

    #[test]
    fn the_pages_name_every_type() {
        let sample = include_str!("../../../../packaging/gpuos.toml.sample");
        let (_, shipped) = sample.split_once("Shipped types: ").expect("the list");
        let (shipped, _) = shipped.split_once('.').expect("its end");
        let words = shipped.split([' ', ',', '\n', '#']);
        let shipped: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let names: Vec<&str> = all().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(shipped, names, "\"Shipped types\" of gpuos.toml.sample");
        let costs = include_str!("../../../../docs/internals/cost.md");
        for name in names {
            let is_row = |line: &str| line.split([' ', '|']).find(|w| !w.is_empty()) == Some(name);
            assert!(
                costs.lines().any(is_row),
                "docs/internals/cost.md has no row of {name}, with its figures and their source"
            );
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
