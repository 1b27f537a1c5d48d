//! What a GPU can do and takes.
use serde::{Deserialize, Serialize};

/// Number formats whose rates are told apart. Rates are dense, without sparsity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Precision {
    /// Double precision (tensor cores where they have it).
    Fp64,
    /// TensorFloat-32.
    Tf32,
    /// bfloat16 and FP16: what most training uses.
    #[default]
    Bf16,
    /// FP8 and INT8.
    Fp8,
    /// FP4.
    Fp4,
}

impl Precision {
    /// All formats, the widest first, with the words of gpuos.toml.
    pub const ALL: [(&'static str, Precision); 5] = [
        ("fp64", Precision::Fp64),
        ("tf32", Precision::Tf32),
        ("bf16", Precision::Bf16),
        ("fp8", Precision::Fp8),
        ("fp4", Precision::Fp4),
    ];
}

/// Figures of one GPU of a node type, and its share of the node. 0 = not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Compute in tenths of TFLOPS, by [`Precision`].
    pub tflops: [u32; 5],
    /// Memory bandwidth in GB/s.
    pub memory_gbps: u32,
    /// Power limit of the GPU in W.
    pub gpu_watts: u32,
    /// Most power of a whole node in W, GPUs included.
    pub node_watts: u32,
    /// Temperature at which the GPU slows down, in degrees Celsius.
    pub slowdown_celsius: u32,
    /// Price of a GPU and hour in thousandths of the site's currency.
    pub price_milli: u32,
}

impl Figures {
    /// Slowdown temperature where nobody says: NVIDIA's data center GPUs slow down between 83 and
    /// 93 degrees; `nvidia-smi -q -d TEMPERATURE` tells it for each.
    pub const SLOWDOWN_CELSIUS: u32 = 85;

    /// Compute in tenths of TFLOPS. A format that the GPU does not have runs at the rate of the next
    /// wider one that it has; 0 when none is known.
    pub fn rate(&self, precision: Precision) -> u32 {
        let known = self.tflops[..=precision as usize].iter().rev();
        known.copied().find(|&rate| rate > 0).unwrap_or(0)
    }

    /// Power of so many GPUs in W with their share of the rest of a node of `gpus` GPUs; 0 when
    /// the GPUs' power is not known.
    pub fn watts(&self, used: u32, gpus: u32) -> u32 {
        let own = self.gpu_watts * used;
        let rest = self.node_watts.saturating_sub(self.gpu_watts * gpus);
        match own {
            0 => 0,
            own => own + rest * used / gpus.max(1),
        }
    }
}
