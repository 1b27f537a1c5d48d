//! Limits of a link.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::session::Settings;

/// What holds for the links of a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of the protocol.
    pub settings: Settings,
    /// A connection may take so long to come about.
    pub connect: Duration,
    /// The whole handshake may take so long.
    pub handshake: Duration,
    /// A link on which nothing comes or goes for so long is ended. Both ends have about the same, and at least a second.
    pub silence: Duration,
    /// A link is ended where the other node acknowledges nothing for so long: it, or the network, is gone. A node that has much to do
    /// still acknowledges, for its kernel does. At least some seconds.
    pub unacknowledged: Duration,
    /// Bodies that may wait to be sent.
    pub queue: usize,
    /// Bytes of bodies that may wait to be sent. One body may always wait, however long it is.
    pub queue_bytes: usize,
    /// How fast may be sent; `None`: as fast as it goes. Shared by all links that have the same one. The other end takes it for silence
    /// if less than 64 KiB for each of these links go in [`silence`](Options::silence).
    pub pace: Option<Arc<Pace>>,
    /// Handshakes that a listener has under way in all, with those that it does not know yet.
    pub unfinished: usize,
    /// Of these, from one address (with IPv6 from one /64 network).
    pub unfinished_by_source: usize,
}

/// The figures are choices, not measurements: 16 MiB are eight pieces of parity, 30 s outlive a disk that hangs for a while, and 10 s
/// a switch that forgets a way.
impl Default for Options {
    fn default() -> Options {
        Options {
            settings: Settings::default(),
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            unacknowledged: Duration::from_secs(10),
            queue: 256,
            queue_bytes: 16 << 20,
            pace: None,
            unfinished: 64,
            unfinished_by_source: 16,
        }
    }
}

/// A [`Bucket`] for several links or threads, with the clock.
#[derive(Debug)]
pub struct Pace {
    bucket: Mutex<Bucket>,
    since: Instant,
}

impl Pace {
    /// Sends at the bucket's rate.
    pub fn new(bucket: Bucket) -> Pace {
        Pace {
            bucket: Mutex::new(bucket),
            since: Instant::now(),
        }
    }

    /// How long to wait before so many bytes are moved.
    pub fn take(&self, bytes: usize) -> Duration {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(bytes, self.since.elapsed())
    }
}

/// The time after so long a wait. One of centuries is one of a year: a clock that overflows would be a panic.
pub(super) fn after(patience: Duration) -> Instant {
    Instant::now() + patience.min(Duration::from_secs(365 * 24 * 3600))
}
