//! The connection between the movers of two nodes of a job: TCP, a handshake by munge credentials, every frame authenticated.
//!
//! - [`session`]: the protocol, as state and bytes in, bytes out;
//! - [`munge`]: credentials by munge;
//! - [`bucket`]: how fast may be sent;
//! - [`tcp`]: sockets, threads and time limits around it.
//!
//! What the movers say is opaque bytes here. The link vouches for the job and the node that they come from.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod munge;
pub mod session;
pub mod tcp;
