//! gpuos.toml of sites that several tests use.

/// Eight nodes, two on a leaf, in two halves with an uplink each: gangs over both leaves of a half share it.
pub const TWO_HALVES: &str = r#"
[[fabric.net]]
name = "ib"
kind = "fat-tree"
nodes = "n[1-8]"
node-gbps = 25
nodes-per-switch = 2
fanout = [2, 2]
oversubscription = [4, 4]
"#;

/// L40S servers at a low price, n1 and n2, and DGX H100 at a high one.
pub const TWO_PRICES: &str = r#"
[[node-type]]
name = "cheap"
base = "l40s-8"
price-per-gpu-hour = 1.0

[[node-type]]
name = "fast"
base = "dgx-h100"
price-per-gpu-hour = 6.0

[[nodes]]
match = "n[1-2]"
type = "cheap"
"#;
