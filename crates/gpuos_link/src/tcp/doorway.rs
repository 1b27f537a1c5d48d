//! Which unfinished handshakes are kept: a table without sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Handshakes under way. Where there are too many the oldest of a stranger makes room for the newest, rather than that strangers
/// who say nothing keep others out. One that root of a node has spoken in is never put out.
#[derive(Debug)]
pub(super) struct Doorway {
    most: usize,
    most_by_source: usize,
    /// By their numbers, and so by age.
    inside: BTreeMap<u64, Visitor>,
    next: u64,
}

#[derive(Debug)]
struct Visitor {
    source: IpAddr,
    known: bool,
}

/// Who came in, and who is to be put out for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entered {
    pub number: u64,
    pub out: Option<u64>,
}

impl Doorway {
    pub fn new(most: usize, most_by_source: usize) -> Doorway {
        Doorway {
            most: most.max(1),
            most_by_source: most_by_source.max(1),
            inside: BTreeMap::new(),
            next: 0,
        }
    }

    /// One more comes; `None`: all that are inside are known, and it has to go.
    pub fn enter(&mut self, address: IpAddr) -> Option<Entered> {
        let source = source(address);
        let of_source = self.inside.values().filter(|one| one.source == source);
        let mut out = None;
        if of_source.count() >= self.most_by_source {
            out = Some(self.oldest(Some(source))?);
        } else if self.inside.len() >= self.most {
            out = Some(self.oldest(self.fullest())?);
        }
        if let Some(number) = out {
            self.inside.remove(&number);
        }
        let number = self.next;
        self.next += 1;
        let known = false;
        self.inside.insert(number, Visitor { source, known });
        Some(Entered { number, out })
    }

    /// Root of a node has spoken.
    pub fn is_known(&mut self, number: u64) {
        if let Some(visitor) = self.inside.get_mut(&number) {
            visitor.known = true;
        }
    }

    /// A handshake is over.
    pub fn leave(&mut self, number: u64) {
        self.inside.remove(&number);
    }

    /// The oldest stranger, of one source or of any.
    fn oldest(&self, source: Option<IpAddr>) -> Option<u64> {
        let mut strangers = self.inside.iter().filter(|(_, one)| !one.known);
        let found = strangers.find(|(_, one)| source.is_none_or(|source| source == one.source));
        found.map(|(number, _)| *number)
    }

    /// The source with the most strangers.
    fn fullest(&self) -> Option<IpAddr> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for visitor in self.inside.values().filter(|one| !one.known) {
            *counts.entry(visitor.source).or_default() += 1;
        }
        let fullest = counts.into_iter().max_by_key(|(_, count)| *count);
        fullest.map(|(source, _)| source)
    }
}

/// Whoever has one address of IPv6 mostly has its whole /64.
fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_oldest_stranger_makes_room() {
        let mut door = Doorway::new(4, 2);
        let mut enter = |last| door.enter(v4(last)).unwrap();
        assert_eq!([enter(1).out, enter(1).out], [None, None]);
        // The source has its share; then the whole is full, and the fullest source gives.
        assert_eq!(
            enter(1),
            Entered {
                number: 2,
                out: Some(0)
            }
        );
        assert_eq!([enter(2).out, enter(3).out], [None, None]);
        assert_eq!(enter(4).out, Some(1));
        assert_eq!(door.inside.len(), 4);
    }

    #[test]
    fn who_is_known_stays() {
        let mut door = Doorway::new(2, 2);
        for _ in 0..2 {
            let entered = door.enter(v4(1)).unwrap();
            door.is_known(entered.number);
        }
        assert_eq!([door.enter(v4(1)), door.enter(v4(2))], [None, None]);
        door.leave(0);
        assert_eq!(
            door.enter(v4(2)),
            Some(Entered {
                number: 2,
                out: None
            })
        );
        assert_eq!(
            door.enter(v4(3)),
            Some(Entered {
                number: 3,
                out: Some(2)
            })
        );
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let mut door = Doorway::new(9, 1);
        let mut enter = |text: &str| door.enter(text.parse().unwrap()).unwrap().out;
        assert_eq!(enter("2001:db8::1"), None);
        assert_eq!(enter("2001:db8::ffff:1"), Some(0));
        assert_eq!(enter("2001:db8:0:1::1"), None);
        assert_eq!(
            [enter("192.0.2.1"), enter("::ffff:192.0.2.1")],
            [None, Some(3)]
        );
    }
}
