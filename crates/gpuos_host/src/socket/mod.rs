//! gpuosd's socket: a file in the file system that everybody may connect to, with the kernel's word for
//! who that is. Messages are [`gpuos_core::wire`]'s.

mod bucket;
mod client;
mod fair;
mod gate;
mod listen;
mod peer;
mod serve;
mod shares;
#[cfg(test)]
mod tests;

pub use bucket::{Bucket, Rate};
pub use client::{Client, ClientError};
pub use fair::Places;
pub use listen::{BindError, bind, bind_for_root};
pub use peer::peer;
pub use serve::{RequestHandler, Server};
pub use shares::{Limits, Need};

/// Name of the socket in gpuosd's runtime directory.
pub const NAME: &str = "gpuosd.sock";

/// Name of the socket of gpuos_mover, in the same directory.
pub const MOVER: &str = "gpuos_mover.sock";
