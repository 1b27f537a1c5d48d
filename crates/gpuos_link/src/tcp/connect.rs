//! The side that connects.

use std::net::{SocketAddr, TcpStream};

use gpuos_checkpoint::ids::NodeIndex;

use super::error::Error;
use super::link::Link;
use super::options::{Options, after};
use super::shake::{Shake, nonce};
use crate::session::{Credentials, Handshake, Place};

/// Connects the node at `place` with the node `peer` of its job, which listens at `address`. Takes [`Options::connect`] and
/// [`Options::handshake`] at most, and what the credentials take.
///
/// # Errors
/// Nobody listens there ([`Error::Unreached`]), or not that node of that job, or the time is up.
pub fn connect(
    address: SocketAddr,
    place: Place,
    peer: NodeIndex,
    credentials: &dyn Credentials,
    options: &Options,
) -> Result<Link, Error> {
    let stream = TcpStream::connect_timeout(&address, options.connect);
    let stream = stream.map_err(|error| Error::Unreached(error.to_string()))?;
    let deadline = after(options.handshake);
    // Questions and answers are short, and each is waited for.
    let quick = stream.set_nodelay(true);
    quick.map_err(Error::io("set up a connection"))?;
    let (handshake, hello) =
        Handshake::initiate(place, peer, nonce()?, options.settings, credentials)?;
    let shake = Shake {
        stream: &stream,
        credentials,
        limit: options.handshake,
        deadline,
    };
    let done = shake.run(handshake, &hello, || {})?;
    Link::new(stream, address, done, options)
}
