//! Ports for what tests start.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody has, below those of labs and those that the kernel gives to who names none, and no two tests of this program
/// the same.
///
/// # Panics
/// There is none.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 500) as u16 * 10;
    let is_free = |port: &u16| {
        let tcp = TcpListener::bind(("0.0.0.0", *port));
        tcp.is_ok() && UdpSocket::bind(("0.0.0.0", *port)).is_ok()
    };
    let next = |_| 5000 + (first + NEXT.fetch_add(1, Ordering::Relaxed) % 5000) % 5000;
    let mut ports = (0..1000).map(next);
    ports.find(is_free).expect("a free port")
}
