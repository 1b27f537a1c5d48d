//! Time of a collective by NCCL's model: latency of the steps plus bytes over bandwidth.
//!
//! The latencies are those of NCCL's tuning model (src/graph/tuning.cc, 2.19 to 2.23, tables
//! `baseLat` and `hwLat`), the low-latency protocol's bandwidth half that of the simple one, as
//! there. NCCL takes the quickest of ring and tree in both protocols; so does this.
use crate::fabric::UNBOUNDED;

/// Start of an operation in ns: tree and ring, each low-latency and simple.
const START: [[u64; 2]; 2] = [[6_800, 8_400], [6_600, 8_400]];

/// A step in ns over NVLink, over PCIe, and over the network; tree and ring, low-latency and simple.
const STEP: [[[u64; 2]; 2]; 3] = [
    [[600, 4_000], [600, 3_400]],
    [[1_000, 4_000], [1_000, 5_700]],
    [[5_000, 14_000], [2_700, 14_000]],
];

/// Where the ranks of a collective are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranks {
    /// Ranks in all, one for each GPU.
    pub count: u32,
    /// Nodes (or NVLink domains) that they are spread over.
    pub nodes: u32,
    /// Whether GPUs of a node are joined by NVLink.
    pub nvlink: bool,
}

/// Time of an all-reduce of so many bytes in ns, at a bus bandwidth in hundredths of GB/s
/// ([`UNBOUNDED`] or 0 when not known: then the latency alone).
pub fn allreduce_ns(bytes: u64, ranks: Ranks, bus: u32) -> u64 {
    let count = u64::from(ranks.count);
    if count < 2 {
        return 0;
    }
    let nodes = u64::from(ranks.nodes.clamp(1, ranks.count));
    let near = if ranks.nvlink { 0 } else { 1 };
    // Bus bandwidth counts 2 (n - 1) / n times the bytes (nccl-tests, PERFORMANCE.md).
    let wire = |divide: u64| match bus {
        0 | UNBOUNDED => 0,
        bus => {
            let moved = u128::from(bytes) * 2 * u128::from(count - 1) / u128::from(count);
            // One hundredth of GB/s is 10 MB/s: 100 ns for each byte.
            (moved * 100 * u128::from(divide) / u128::from(bus)).min(u128::from(u64::MAX / 4))
                as u64
        }
    };
    let mut best = u64::MAX;
    for (protocol, divide) in [(0, 2), (1, 1)] {
        let far = if nodes > 1 { 2 * (nodes - 1) } else { 0 };
        let ring = START[1][protocol]
            + (2 * (count - 1) - far) * STEP[near][1][protocol]
            + far * STEP[2][1][protocol];
        let height = u64::from(nodes.next_power_of_two().trailing_zeros());
        let tree = START[0][protocol]
            + 2 * ((count / nodes).max(1) - 1) * STEP[near][0][protocol]
            + 2 * height * STEP[2][0][protocol];
        best = best.min(ring.min(tree).saturating_add(wire(divide)));
    }
    best
}
