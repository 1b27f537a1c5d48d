//! How many datagrams of a sender are looked at: munge's time is not for everybody to spend.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

/// Datagrams of one address in a second, and at once.
const RATE: f64 = 400.0;
const BURST: f64 = 800.0;
/// Addresses that are told apart.
const MOST: usize = 4096;

/// Who sent a datagram: an address, and whether from the port of the heartbeat. Users of that machine do not have that
/// port, so what they send uses up none of their gpuosd's share.
pub(super) type Sender = (IpAddr, bool);

/// A bucket for each sender.
#[derive(Default)]
pub(super) struct Gate(HashMap<Sender, (Instant, f64)>);

impl Gate {
    /// Whether one more of that sender is looked at.
    pub fn lets(&mut self, from: Sender, now: Instant) -> bool {
        if self.0.len() >= MOST && !self.0.contains_key(&from) {
            // Those that were quiet have a full bucket anyway.
            self.0
                .retain(|_, (at, _)| now.duration_since(*at).as_secs() < 2);
            if self.0.len() >= MOST {
                return false;
            }
        }
        let (at, left) = self.0.entry(from).or_insert((now, BURST));
        *left = (*left + now.duration_since(*at).as_secs_f64() * RATE).min(BURST);
        *at = now;
        let lets = *left >= 1.0;
        if lets {
            *left -= 1.0;
        }
        lets
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_cut_and_others_are_not() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        let address = |n: u32| (IpAddr::V4(Ipv4Addr::from(n)), false);
        let through = (0..5000).filter(|_| gate.lets(address(1), now)).count();
        assert_eq!(through, BURST as usize);
        assert!(gate.lets(address(2), now));
        // The gpuosd of the same machine.
        assert!(gate.lets((address(1).0, true), now));
        let later = now + Duration::from_secs(1);
        let through = (0..5000).filter(|_| gate.lets(address(1), later)).count();
        assert_eq!(through, RATE as usize);
        // Any number of made-up addresses.
        for n in 0..20_000 {
            gate.lets(address(n), later);
        }
        assert!(gate.0.len() <= MOST);
        assert!(gate.lets(address(90_000), later + Duration::from_secs(3)));
    }
}
