//! What a program maps itself, by `cuMemMap`: where which part of which handle is, and who has access there. The driver's mappings are
//! smaller, one for each extent; what the program is told and what it may unmap are these.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_driver::{Access, Location, Prop};

use crate::driver::code;
use crate::vmm::Answer;

/// Virtual handles are numbers from here on: no address of a program, and nothing that a driver has.
pub(crate) const FIRST_HANDLE: u64 = 0xA5 << 56;

/// How the program holds physical memory.
pub(crate) struct Held {
    /// What it asked for.
    pub(crate) prop: Prop,
    /// So many times; 0: it is there as long as it is mapped.
    pub(crate) times: u32,
    /// Addresses at which it is mapped.
    pub(crate) maps: BTreeSet<u64>,
}

impl Held {
    /// As `cuMemCreate` gives it.
    pub(crate) fn new(prop: Prop) -> Held {
        Held {
            prop,
            times: 1,
            maps: BTreeSet::new(),
        }
    }

    /// Whether nobody can reach it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.times == 0 && self.maps.is_empty()
    }
}

/// A mapping of the program.
pub(crate) struct Map {
    pub(crate) bytes: u64,
    pub(crate) handle: u64,
    /// Where in the handle's memory it begins.
    pub(crate) offset: u64,
    /// Who has access, and which.
    access: BTreeMap<Location, u32>,
}

impl Map {
    pub(crate) fn new(bytes: u64, handle: u64, offset: u64) -> Map {
        Map {
            bytes,
            handle,
            offset,
            access: BTreeMap::new(),
        }
    }

    /// Notes access that was given or taken.
    pub(crate) fn allow(&mut self, list: &[Access]) {
        for access in list {
            match access.flags {
                0 => self.access.remove(&access.location),
                flags => self.access.insert(access.location, flags),
            };
        }
    }

    /// What is given to whom.
    pub(crate) fn access(&self) -> Vec<Access> {
        let one = |(location, flags): (&Location, &u32)| Access {
            location: *location,
            flags: *flags,
        };
        self.access.iter().map(one).collect()
    }
}

/// All of them, by address.
#[derive(Default)]
pub(crate) struct Maps(BTreeMap<u64, Map>);

impl Maps {
    /// The mapping that an address lies in, with its start.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &Map)> {
        let (start, map) = self.0.range(..=address).next_back()?;
        (address - start < map.bytes).then_some((*start, map))
    }

    /// That which begins here.
    pub(crate) fn get(&self, start: u64) -> Option<&Map> {
        self.0.get(&start)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Map> {
        self.0.get_mut(&start)
    }

    pub(crate) fn insert(&mut self, start: u64, map: Map) {
        self.0.insert(start, map);
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Map> {
        self.0.remove(&start)
    }

    /// Those in a part of the addresses, which has to have each as a whole: the driver would take its own smaller ones.
    ///
    /// # Errors
    /// The part begins or ends inside one of them.
    pub(crate) fn whole(&self, at: u64, bytes: u64) -> Answer<Vec<u64>> {
        let end = at.checked_add(bytes).ok_or(code::INVALID)?;
        let cut = |address: u64| {
            let around = address.checked_sub(1).and_then(|last| self.around(last));
            around.is_some_and(|(start, map)| address < start + map.bytes)
        };
        if cut(at) || cut(end) {
            return Err(code::INVALID);
        }
        Ok(self.0.range(at..end).map(|(start, _)| *start).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_mappings_are_found() {
        let mut maps = Maps::default();
        maps.insert(100, Map::new(50, 1, 0));
        maps.insert(150, Map::new(50, 2, 0));
        assert_eq!(maps.whole(100, 100), Ok(vec![100, 150]));
        assert_eq!(maps.whole(0, 150), Ok(vec![100]));
        assert_eq!(maps.whole(200, 100), Ok(vec![]));
        for (at, bytes) in [(100, 49), (101, 99), (120, 10), (90, 70), (100, u64::MAX)] {
            assert_eq!(maps.whole(at, bytes), Err(code::INVALID), "{at} {bytes}");
        }
        assert_eq!(maps.around(149).map(|(start, _)| start), Some(100));
        assert!(maps.around(200).is_none() && maps.around(99).is_none());
    }

    #[test]
    fn access_is_the_last_that_was_given() {
        let mut map = Map::new(1, 1, 0);
        let one = |flags| Access {
            location: Location::device(0),
            flags,
        };
        map.allow(&[one(1), one(3)]);
        assert_eq!(map.access(), [one(3)]);
        map.allow(&[one(0)]);
        assert!(map.access().is_empty());
    }
}
