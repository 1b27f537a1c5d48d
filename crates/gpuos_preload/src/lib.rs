//! `libgpuos_preload.so`: CUDA programs as they are, with more memory than their GPU has.
//!
//! Loaded by `LD_PRELOAD`, it stands between a program and the driver (`libcuda.so.1`). Allocations of 2 MiB and more become ranges of
//! virtual memory in extents, each backed by the GPU's memory or by memory of the host that the GPU reads in place. Which are where, a
//! policy of `gpuos_memory` decides; an extent is moved while no work is under way. docs/internals/preload.md has the whole of it.
//!
//! - [`gate`]: calls go in, and nothing moves while they are inside,
//! - [`table`]: all functions of the driver and what is done with each,
//! - [`driver`]: the real ones; `vmm`: those that this library calls itself,
//! - [`process`]: what it is told by the environment, and why nothing moves any more; `lease`: what gpuosd gives instead; `life`: `cuInit`,
//!   `fork`, the end,
//! - [`memory`]: all that the process has, of `range`s and `device`s; `maps`: what the program maps itself; `ordered`: what it frees in the order
//!   of streams,
//! - `heat`, `graphs`: what a program touches; `watch`: why that is of use; `record`, `recorder`: a file of it; `plan`: what is to move; `mover`: the thread that moves; `shift`, `exchange`: how it does; `needs`: what has to;
//!   `staging`: what is moved before a kernel that needs it,
//! - `spare`: host memory that nothing is in; `ahead`: making it before it is needed,
//! - [`broker`]: the thread that talks to gpuosd; [`park`]: giving the GPU to the next job, and having it again; `stow`: what goes to NVMe
//!   meanwhile, by gpuos_mover; `aside`: what takes as long as the program's work; `window`: how much of that it gives at once; [`resize`]: having less of it; [`budget`]: what may move over the link,
//! - [`short`]: memory that is short, for programs that want to know; [`figures`]: what is known of the process's memory, for gpuosd,
//! - `wrappers`, `exports`: the functions that programs get; `lookup`: how they get them; `interpose`: `dlsym` and `dlopen`.
//!
//! A panic ends in the wrapper: the call goes to the driver or fails, and the process is pinned.

#[cfg(panic = "abort")]
compile_error!("a panic must not end the program that this library is loaded into");

mod ahead;
mod aside;
mod broker;
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no `dlsym` of ours"))]
mod budget;
mod device;
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no `dlsym` of ours"))]
mod driver;
mod exchange;
mod exports;
mod figures;
mod gate;
mod graphs;
mod heat;
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no `dlsym` of ours"))]
mod interpose;
mod lease;
mod life;
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no `dlsym` of ours"))]
mod lookup;
mod maps;
mod memory;
mod mover;
mod mutant;
mod needs;
mod ordered;
mod park;
mod plan;
mod pointer;
mod process;
mod range;
mod record;
mod recorder;
mod resize;
mod shift;
mod short;
mod spare;
mod staging;
mod stow;
mod table;
mod vmm;
mod watch;
mod window;
mod wrappers;
