//! A link: both halves, and who is at the other end.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;

use super::error::Error;
use super::options::Options;
use super::queue::Shared;
use super::receive::Receiver;
use super::send::Sender;
use crate::session::{Peer, Session};

/// Questions of the kernel's without an answer after which a connection is ended.
const KEEPALIVES: u32 = 3;

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
        limits
            .and_then(|()| end_unacknowledged(&stream, options.unacknowledged))
            .map_err(Error::io("set the time limits of a connection"))?;
        let shared = Arc::new(Shared::new(stream, options));
        let receiver = Receiver::new(shared.clone(), session.opener, options, &rest);
        Ok(Link {
            peer: session.peer,
            address,
            sender: Sender::start(shared, session.sealer, options)?,
            receiver,
        })
    }
}

/// Has the kernel end a connection on which the other side acknowledges nothing for `limit`: what was sent, or, where nothing is, a
/// question of the kernel's own, of which there are some in that time.
fn end_unacknowledged(stream: &TcpStream, limit: Duration) -> std::io::Result<()> {
    let questions = u64::from(KEEPALIVES) + 1;
    let every = Duration::from_secs((limit.as_secs() / questions).max(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, every)?;
    sockopt::set_tcp_keepintvl(stream, every)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVES)?;
    let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, millis)?)
}
