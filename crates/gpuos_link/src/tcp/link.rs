//! A link: both halves, and who is at the other end.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use super::error::Error;
use super::options::Options;
use super::queue::Shared;
use super::receive::Receiver;
use super::send::Sender;
use crate::session::{Peer, Session};

/// A connection whose both ends know each other.
pub struct Link {
    /// The job and the node at the other end, by the word of munge.
    pub peer: Peer,
    /// Address and port of the other end.
    pub address: SocketAddr,
    /// For what is sent.
    pub sender: Sender,
    /// For what comes in.
    pub receiver: Receiver,
}

impl Link {
    /// `rest` is what came in behind the handshake.
    pub(super) fn new(
        stream: TcpStream,
        address: SocketAddr,
        (session, rest): (Session, Vec<u8>),
        options: &Options,
    ) -> Result<Link, Error> {
        let limits = stream
            .set_read_timeout(Some(options.silence))
            .and_then(|()| stream.set_write_timeout(Some(options.silence)));
        limits.map_err(Error::io("set the time limits of a connection"))?;
        let shared = Arc::new(Shared::new(stream, options));
        let receiver = Receiver::new(shared.clone(), session.opener, options.silence, &rest);
        Ok(Link {
            peer: session.peer,
            address,
            sender: Sender::start(shared, session.sealer, options)?,
            receiver,
        })
    }
}
