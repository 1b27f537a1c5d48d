//! Links over TCP: a blocking connection with two halves, which may be used in two threads.
//!
//! - [`connect`] and [`Listener`] make a [`Link`];
//! - [`Sender`]: a queue with a bound, and a thread that writes what is in it; [`Receiver`]: reads in the caller's thread, so that
//!   who does not receive is not sent to, either;
//! - [`Options`]: limits of time, memory and rate.
//!
//! **Memory of a link.** The queue ([`Options::queue_bytes`]), the frame that is written, and the frame that comes in.
//!
//! **Time.** A side that has nothing to say sends an empty frame after a third of [`Options::silence`]. A link on which nothing
//! comes, or nothing can be written, for [`Options::silence`] is ended.

mod connect;
mod doorway;
mod error;
mod link;
mod listen;
mod options;
mod queue;
mod receive;
mod send;
mod shake;

pub use connect::connect;
pub use error::Error;
pub use link::Link;
pub use listen::{Failures, Listener};
pub use options::{Options, Pace};
pub use queue::Unsent;
pub use receive::Receiver;
pub use send::Sender;
