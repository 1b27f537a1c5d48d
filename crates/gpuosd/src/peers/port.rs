//! The UDP port of the heartbeat: bound when gpuosd starts, and kept.
//!
//! Its number is above 1024, so anybody may bind it; whoever has it first keeps the node's heartbeat out. gpuosd starts before
//! users do, and lets the port go only where gpuos.toml turns the heartbeat off or names another one. Neither SO_REUSEADDR nor
//! SO_REUSEPORT is set: with the first, Linux lets two sockets of UDP have one port, and gives what comes to the newer one.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// Binds `address`, or the same port of all addresses where that one is not this machine's.
///
/// # Errors
/// A clause: who has the port, where somebody else does.
pub fn bind(address: SocketAddr, proc: &Path) -> Result<UdpSocket, String> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bound = UdpSocket::bind(address).or_else(|e| match e.kind() {
        ErrorKind::AddrNotAvailable => UdpSocket::bind((any, address.port())),
        _ => Err(e),
    });
    bound.map_err(|e| {
        let port = address.port();
        match e.kind() {
            ErrorKind::AddrInUse => format!("UDP port {port} is taken by {}", holders(proc, port)),
            _ => format!("cannot listen to UDP port {port}: {e}"),
        }
    })
}

/// Who has sockets at a port, by the kernel's list: `uid 1001 (at 0.0.0.0)`.
fn holders(proc: &Path, port: u16) -> String {
    let mut found: Vec<String> = Vec::new();
    for name in ["net/udp", "net/udp6"] {
        let text = std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        for uid in text.lines().skip(1).filter_map(|line| holder(line, port)) {
            let uid = format!("a program of uid {uid}");
            if !found.contains(&uid) {
                found.push(uid);
            }
        }
    }
    match found.is_empty() {
        true => "somebody in another network namespace, or who has just let it go".into(),
        false => format!(
            "{}: `ss -ulpn sport = :{port}` names it; end it, or set [heartbeat] port in gpuos.toml",
            found.join(" and ")
        ),
    }
}

/// The user of a line of `/proc/net/udp`, if it is about that port: `sl local_address rem_address st tx:rx tr:when retr uid`.
fn holder(line: &str, port: u16) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?.rsplit_once(':')?.1;
    let own = u16::from_str_radix(local, 16).ok()? == port;
    fields.nth(5)?.parse().ok().filter(|_| own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_port_is_named() {
        let first = bind("127.0.0.1:0".parse().unwrap(), Path::new("/proc")).unwrap();
        let address = first.local_addr().unwrap();
        let why = bind(address, Path::new("/proc")).unwrap_err();
        let uid = rustix::process::getuid().as_raw();
        let named = format!(
            "UDP port {} is taken by a program of uid {uid}:",
            address.port()
        );
        assert!(why.starts_with(&named), "{why}");
        drop(first);
        // A child that another test starts just now has it as well, until it runs its program.
        let begun = std::time::Instant::now();
        while let Err(why) = bind(address, Path::new("/proc")) {
            assert!(begun.elapsed().as_secs() < 60, "{why}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn an_address_that_is_not_this_machines_is_all_of_them() {
        let socket = bind("192.0.2.1:0".parse().unwrap(), Path::new("/proc")).unwrap();
        assert!(socket.local_addr().unwrap().ip().is_unspecified());
    }

    #[test]
    fn lines_of_the_kernel() {
        let line = "  123: 0100007F:1A85 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 5 2 0 0";
        assert_eq!(holder(line, 0x1a85), Some(1001));
        assert_eq!(holder(line, 0x1a86), None);
        for cut in 0..line.len() {
            holder(&line[..cut], 0x1a85);
        }
    }
}
