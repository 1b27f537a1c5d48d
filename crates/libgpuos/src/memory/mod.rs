//! Memory of GPUs in tiers: `gpuos_mem_*` and `gpuos_torch_*` of `include/gpuos.h`.
//!
//! - `opened`: which fabric a `gpuos_mem *` is, and why the last call of a thread failed,
//! - `calls`: the functions of C; `saves`: those about checkpoints; `place`: numbers and texts at C's pointers,
//! - `torch`: segments of PyTorch's memory pools.

#[allow(unsafe_code, reason = "pointers of C")]
mod calls;
mod opened;
#[allow(unsafe_code, reason = "pointers of C")]
mod place;
#[allow(unsafe_code, reason = "pointers of C")]
mod saves;
mod torch;
