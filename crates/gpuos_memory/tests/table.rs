//! The table against a model that holds every copy of every extent's bytes, as versions.

use std::collections::BTreeMap;

use gpuos_memory::table::{ExtentId, Move, Range, Refused, State, Table, Tier};
use gpuos_model::rng::Rng;

/// Errors that are planted between the table and who asks it: what a table would do that has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// A shadow stays when its extent is written.
    ShadowKept,
    /// An extent without a shadow leaves GPU memory without a copy.
    NotCopied,
    /// A copy that has failed ends as one that was made.
    FailedIsDone,
    /// What could not be read from disk is taken for read.
    LostIsRead,
    /// What moves is parked.
    MovingIsParked,
}

/// The bytes of an extent: what each tier has, and the newest that the program wrote.
#[derive(Clone, Copy)]
struct Bytes {
    blocks: u64,
    newest: u64,
    hbm: Option<u64>,
    host: Option<u64>,
    disk: Option<u64>,
}

struct World {
    mutant: Mutant,
    table: Table,
    ranges: Vec<Range>,
    gone: Vec<Range>,
    bytes: BTreeMap<ExtentId, Bytes>,
    moving: BTreeMap<ExtentId, Tier>,
    budget: [u64; 2],
    versions: u64,
}

impl World {
    fn new(hbm: u64, host: u64, mutant: Mutant) -> World {
        World {
            mutant,
            table: Table::new(hbm, host),
            ranges: Vec::new(),
            gone: Vec::new(),
            bytes: BTreeMap::new(),
            moving: BTreeMap::new(),
            budget: [hbm, host],
            versions: 0,
        }
    }

    /// Blocks that really lie in each tier, with the room that moves have.
    fn lie(&self) -> [u64; 2] {
        let mut lie = [0, 0];
        for (extent, bytes) in &self.bytes {
            let to = self.moving.get(extent);
            let hbm = bytes.hbm.is_some() || to == Some(&Tier::Hbm);
            let host = bytes.host.is_some() || to == Some(&Tier::Host);
            lie[0] += bytes.blocks * u64::from(hbm);
            lie[1] += bytes.blocks * u64::from(host);
        }
        lie
    }

    fn check(&self) {
        let used = [self.table.used(Tier::Hbm), self.table.used(Tier::Host)];
        assert_eq!(used, self.lie());
        for (extent, bytes) in &self.bytes {
            let good = [bytes.hbm, bytes.host, bytes.disk];
            let poisoned = self.table.state(*extent) == Ok(State::Poisoned);
            assert!(
                poisoned || good.contains(&Some(bytes.newest)),
                "{extent:?} has lost its bytes"
            );
            if let Ok(State::HbmWithShadow) = self.table.state(*extent) {
                assert_eq!(
                    (bytes.hbm, bytes.host),
                    (Some(bytes.newest), Some(bytes.newest))
                );
            }
        }
    }

    fn any(&self, rng: &mut Rng) -> Option<ExtentId> {
        let at = rng.below(self.bytes.len() as u64) as usize;
        self.bytes.keys().nth(at).copied()
    }

    fn allocate(&mut self, rng: &mut Rng) {
        let blocks = 1 + rng.below(80);
        let free = self.table.room(Tier::Hbm) + self.table.room(Tier::Host);
        match self.table.allocate(blocks) {
            Ok(range) => {
                let sizes = range
                    .extents
                    .iter()
                    .map(|it| self.table.blocks(*it).expect("there"));
                assert_eq!(sizes.sum::<u64>(), blocks);
                for extent in &range.extents {
                    let in_hbm = self.table.state(*extent) == Ok(State::Hbm);
                    let bytes = Bytes {
                        blocks: self.table.blocks(*extent).expect("there"),
                        newest: 0,
                        hbm: in_hbm.then_some(0),
                        host: (!in_hbm).then_some(0),
                        disk: None,
                    };
                    assert!(
                        self.bytes.insert(*extent, bytes).is_none(),
                        "an id came again"
                    );
                }
                self.ranges.push(range);
            }
            // The part that GPU memory takes is whole extents, so one extent may be left over.
            Err(why) => {
                assert_eq!(
                    why,
                    Refused::Full {
                        wanted: blocks,
                        free
                    }
                );
                assert!(free < blocks + 8, "{free} of {blocks}");
            }
        }
    }

    fn free(&mut self, rng: &mut Rng) {
        if self.ranges.is_empty() {
            return;
        }
        let at = rng.below(self.ranges.len() as u64) as usize;
        let moves = self.ranges[at]
            .extents
            .iter()
            .any(|it| self.moving.contains_key(it));
        let freed = self.table.free(&self.ranges[at]);
        assert_eq!(freed, if moves { Err(Refused::Moving) } else { Ok(()) });
        if freed.is_ok() {
            let range = self.ranges.swap_remove(at);
            for extent in &range.extents {
                self.bytes.remove(extent);
            }
            self.gone.push(range);
        }
    }

    fn touch(&mut self, extent: ExtentId, writes: bool) {
        let told = writes && self.mutant != Mutant::ShadowKept;
        let answer = self.table.touch(extent, told);
        let moves = self.moving.contains_key(&extent);
        let bytes = self.bytes.get_mut(&extent).expect("there");
        match answer {
            Ok(tier) => {
                assert!(!moves && bytes.disk.is_none());
                self.versions += 1;
                let copy = match tier {
                    Tier::Hbm => &mut bytes.hbm,
                    Tier::Host => &mut bytes.host,
                };
                assert_eq!(*copy, Some(bytes.newest), "stale bytes were read");
                if writes {
                    *copy = Some(self.versions);
                    bytes.newest = self.versions;
                    if tier == Tier::Hbm {
                        bytes.host = None;
                    }
                }
            }
            Err(Refused::Moving) => assert!(moves),
            Err(_) => assert!(bytes.hbm.is_none() && bytes.host.is_none()),
        }
    }

    fn begin(&mut self, extent: ExtentId, to: Tier) {
        let bytes = self.bytes.get_mut(&extent).expect("there");
        let mut begun = self.table.begin(extent, to);
        if begun == Ok(Move::Copy) && to == Tier::Host && self.mutant == Mutant::NotCopied {
            self.table.end(extent, true).expect("it moves");
            begun = Ok(Move::Remap);
        }
        match begun {
            Ok(Move::Copy) => {
                assert!(self.moving.insert(extent, to).is_none());
            }
            Ok(Move::Remap) => {
                assert_eq!((to, bytes.host), (Tier::Host, Some(bytes.newest)));
                bytes.hbm = None;
            }
            Err(Refused::Full { wanted, free }) => {
                assert!(wanted == bytes.blocks && free < wanted);
            }
            Err(_) => {}
        }
    }

    fn end(&mut self, extent: ExtentId, done: bool) {
        let Some(to) = self.moving.get(&extent).copied() else {
            assert!(matches!(
                self.table.end(extent, done),
                Err(Refused::NotSo(_))
            ));
            return;
        };
        let told = done || self.mutant == Mutant::FailedIsDone;
        self.table.end(extent, told).expect("it moves");
        self.moving.remove(&extent);
        let bytes = self.bytes.get_mut(&extent).expect("there");
        match (to, done) {
            (Tier::Host, true) => (bytes.host, bytes.hbm) = (bytes.hbm, None),
            (Tier::Hbm, true) => bytes.hbm = bytes.host,
            (_, false) => {}
        }
    }

    fn park(&mut self, extent: ExtentId, rng: &mut Rng) {
        let bytes = self.bytes.get_mut(&extent).expect("there");
        if bytes.disk.is_some() {
            let to = [None, Some(Tier::Hbm), Some(Tier::Host)][rng.below(3) as usize];
            let told = match self.mutant {
                Mutant::LostIsRead => to.or(Some(Tier::Host)),
                _ => to,
            };
            if self.table.unpark(extent, told).is_ok() {
                let back = bytes.disk.take();
                match to {
                    Some(Tier::Hbm) => bytes.hbm = back,
                    Some(Tier::Host) => bytes.host = back,
                    None => {}
                }
            }
            return;
        }
        let mut parked = self.table.park(extent);
        if parked == Err(Refused::Moving) && self.mutant == Mutant::MovingIsParked {
            self.table.end(extent, true).expect("it moves");
            parked = self.table.park(extent);
        }
        if parked.is_ok() {
            bytes.disk = bytes.hbm.or(bytes.host);
            (bytes.hbm, bytes.host) = (None, None);
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let Some(extent) = self.any(rng) else {
            return self.allocate(rng);
        };
        let tier = [Tier::Hbm, Tier::Host][rng.below(2) as usize];
        match rng.below(20) {
            0..2 => self.allocate(rng),
            2 => self.free(rng),
            3..8 => self.touch(extent, rng.below(2) == 0),
            8..13 => self.begin(extent, tier),
            13..17 => {
                let moving: Vec<ExtentId> = self.moving.keys().copied().collect();
                let at = rng.below(moving.len() as u64) as usize;
                self.end(moving.get(at).copied().unwrap_or(extent), rng.below(4) > 0);
            }
            17 => self.park(extent, rng),
            18 => {
                if self.table.drop_shadow(extent).is_ok() {
                    self.bytes.get_mut(&extent).expect("there").host = None;
                }
            }
            _ => {
                let which = usize::from(tier == Tier::Host);
                self.budget[which] = rng.below(300);
                let over = self.table.grant(tier, self.budget[which]);
                assert_eq!(over, self.lie()[which].saturating_sub(self.budget[which]));
            }
        }
    }
}

/// A program at random, which panics where something is wrong.
fn history(seed: u64, mutant: Mutant) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(200, 200, mutant);
    for _ in 0..400 {
        let before = world.lie();
        world.step(&mut rng);
        world.check();
        // A budget that was lowered may be exceeded, and nothing is added then.
        for (which, before) in before.into_iter().enumerate() {
            assert!(
                world.lie()[which] <= world.budget[which].max(before),
                "seed {seed}"
            );
        }
    }
    for range in &world.gone {
        assert_eq!(world.table.free(range), Err(Refused::Freed), "freed twice");
        let extent = range.extents[0];
        assert_eq!(
            world.table.touch(extent, true),
            Err(Refused::Freed),
            "touched after it was freed"
        );
    }
}

#[test]
fn no_bytes_are_lost_and_no_room_is_given_twice() {
    (0..200).for_each(|seed| history(seed, Mutant::None));
}

#[test]
fn planted_errors_are_found() {
    for mutant in [
        Mutant::ShadowKept,
        Mutant::NotCopied,
        Mutant::FailedIsDone,
        Mutant::LostIsRead,
        Mutant::MovingIsParked,
    ] {
        let fails = |seed| std::panic::catch_unwind(|| history(seed, mutant)).is_err();
        let found = (0..200).find(|seed| fails(*seed));
        let seed = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        eprintln!("{mutant:?}: seed {seed}");
    }
}

#[test]
fn extents_have_2_to_64_mib_and_a_range_has_several() {
    let mut table = Table::new(1 << 40, 0);
    for (blocks, extents, first) in [
        (1, 1, 1),
        (16, 16, 1),
        (40, 20, 2),
        (512, 16, 32),
        (100_000, 3125, 32),
    ] {
        let range = table.allocate(blocks).expect("room");
        assert_eq!(range.extents.len(), extents, "{blocks}");
        assert_eq!(table.blocks(range.extents[0]), Ok(first), "{blocks}");
    }
}

#[test]
fn what_gpu_memory_does_not_take_lies_in_host_memory() {
    let mut table = Table::new(10, 30);
    let range = table.allocate(32).expect("both together have room");
    let in_hbm = |it: &&ExtentId| table.state(**it) == Ok(State::Hbm);
    assert_eq!(range.extents.iter().filter(in_hbm).count(), 5);
    assert_eq!((table.used(Tier::Hbm), table.used(Tier::Host)), (10, 22));
    let full = Refused::Full { wanted: 9, free: 8 };
    assert_eq!(table.allocate(9), Err(full));
    assert_eq!(full.to_string(), "18 MiB are wanted and 16 MiB are free");
}
