//! A new node: GPUs as they come out of a cold boot.

use super::{Gpu, Node, now_us};
use crate::model::Kind;

/// What can be chosen when a node is made.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// What UUIDs and serial numbers are made from: the same seed gives the same ones.
    pub seed: u64,
    /// Clique of the NVLink fabric.
    pub clique: u32,
    /// UUID of that fabric's cluster; zero for a fabric inside the node.
    pub cluster: [u8; 16],
    /// Whether calls take as long as on real hardware.
    pub real_latency: bool,
}

/// A node of the kind with this index.
pub fn node(index: u32, kind: &Kind, options: Options) -> Box<Node> {
    let mut node = Box::new(Node {
        kind: index,
        gpu_count: kind.buses.len() as u32,
        real_latency: options.real_latency.into(),
        clique: options.clique,
        cluster: options.cluster,
        seed: options.seed,
        ..Node::default()
    });
    let board = kind.board();
    let now = now_us();
    for (number, gpu) in (0..).zip(node.gpus_mut()) {
        *gpu = Gpu {
            uuid: uuid(options.seed, number),
            serial: 1_650_000_000_000 + (hash(options.seed, number) >> 20) % 999_999_999,
            power_limit_mw: board.watts[2] * 1000,
            persistence: 1,
            ecc: [1, 1],
            energy_at_us: now,
            ..Gpu::default()
        };
    }
    node
}

/// 16 bytes that look random: version 4 of RFC 9562.
fn uuid(seed: u64, number: u64) -> [u8; 16] {
    let high = hash(seed, number * 2);
    let low = hash(seed ^ 0x5EED, number * 2 + 1);
    let mut bytes = ((u128::from(high) << 64) | u128::from(low)).to_be_bytes();
    bytes[6] = (bytes[6] & 0x0F) | 0x40;
    bytes[8] = (bytes[8] & 0x3F) | 0x80;
    bytes
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    format!("GPU-{}", plain(uuid))
}

/// The UUID of a MIG device, made from the number of its compute instance.
pub(crate) fn mig_uuid_text(seed: u64, serial: u64) -> String {
    let uuid = uuid(seed ^ 0x4D49_4700, serial);
    format!("MIG-{}", plain(&uuid))
}

fn plain(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// SplitMix64's finaliser.
fn hash(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
