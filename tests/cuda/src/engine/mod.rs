//! What works, and the C functions that have it work. A context has streams, a stream runs kernels in its context, a graph is captured of a
//! stream and runs on one: these modules name each other, as the things do.

mod checkpoint;
mod context;
mod device;
mod driver;
mod event;
mod exports;
mod graph;
mod heap;
mod image;
mod kernel;
pub mod procs;
mod stream;
mod work;
