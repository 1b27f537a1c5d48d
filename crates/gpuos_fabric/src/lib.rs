//! Objects of a program that says what it uses: in GPU memory, in host memory, and in a file.
//!
//! `gpuos_memory::objects` decides what is where; here it is done. [`Fabric`] is what `libgpuos` gives to programs.
//!
//! - [`fabric`]: objects, tickets and what is asked of them; `saves`: what is read and written by calls, and what has to be saved; `mover`: the thread that moves, and how a task is done; `shared`: what both share,
//! - `near`: what GPU memory has to be able to do; `cuda`: a GPU, by the driver; `plain`: host memory in its place,
//! - `driver`: the functions of `libcuda.so.1`, which is opened when it is wanted and never linked,
//! - `pages`: host memory in frames; `disk`: the file; `bell`: the descriptor that tells of pressure,
//! - `stored`: all registered objects into a folder and back; `listing`: what it says of them; `folder`: its files,
//! - [`failure`]: why a call fails.
//!
//! Unsafe code is in `driver`, `cuda`, `plain`, `pages`, `bell` and `folder`.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a descriptor of the kernel's")]
mod bell;
#[allow(unsafe_code, reason = "addresses of the driver's functions and theirs")]
mod cuda;
mod disk;
#[allow(unsafe_code, reason = "functions found by the loader")]
mod driver;
pub mod fabric;
pub mod failure;
#[allow(unsafe_code, reason = "files by descriptors of folders")]
mod folder;
mod listing;
mod mover;
mod near;
#[allow(unsafe_code, reason = "mapped memory")]
mod pages;
#[allow(unsafe_code, reason = "mapped memory")]
mod plain;
mod saves;
mod shared;
mod stored;

pub use fabric::{Fabric, Options, Stats};
pub use failure::{Failure, Why};
pub use gpuos_memory::objects::{Advice, Event, ObjectId, Span, TicketId, Tier};
pub use shared::Saves;
pub use stored::saved;
