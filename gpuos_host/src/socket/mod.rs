//! gpuosd's socket: a file in the file system that everybody may connect to, with the kernel's word for
//! who that is. Messages are [`gpuos_core::wire`]'s.

mod client;
mod gate;
mod listen;
mod serve;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError};
pub use gate::Limits;
pub use listen::{BindError, bind};
pub use serve::{Desk, Server};

use std::os::unix::net::UnixStream;

use gpuos_core::wire::Peer;

/// Name of the socket in gpuosd's runtime directory.
pub const NAME: &str = "gpuosd.sock";

/// Who is at the other end.
fn peer(stream: &UnixStream) -> std::io::Result<Peer> {
    let told = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(Peer {
        uid: told.uid.as_raw(),
        pid: told.pid.as_raw_nonzero().get().unsigned_abs(),
    })
}
