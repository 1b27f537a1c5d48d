//! What is kept and removed, against what the rules say one by one, with a crash after any step.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::retention::{Holding, Policy, Removal, Stage, plan, room};
use proptest::prelude::*;

fn id(number: u32) -> CheckpointId {
    CheckpointId {
        number,
        attempt: u64::from(number) * 7,
    }
}

fn committed(number: u32, needs: &[u32]) -> Holding {
    Holding {
        id: id(number),
        stage: Stage::Committed,
        level: 1,
        pinned: false,
        reading: false,
        good: true,
        bytes: 1 << 30,
        needs: needs.iter().map(|n| id(*n)).collect(),
    }
}

#[test]
fn the_newest_two_and_what_they_refer_to() {
    let held = [
        committed(1, &[]),
        committed(2, &[1]),
        committed(3, &[1]),
        committed(4, &[3]),
        committed(5, &[4, 3]),
    ];
    // 3 is referred to by 5, and 1 only by 3, whose manifest goes.
    let expected = [
        Removal::Manifests(id(1)),
        Removal::Manifests(id(2)),
        Removal::Manifests(id(3)),
        Removal::Barrier,
        Removal::Data(id(1)),
        Removal::Data(id(2)),
    ];
    assert_eq!(plan(&held, Policy::default()), expected);
    assert_eq!(plan(&held[..2], Policy::default()), []);
    // 0 counts as 1: the last one is never removed.
    assert_eq!(plan(&held[4..], Policy { keep: 0 }), []);
}

#[test]
fn damaged_ones_do_not_count() {
    let bad = |number| Holding {
        good: false,
        ..committed(number, &[])
    };
    let held = [committed(1, &[]), bad(2), bad(3)];
    assert_eq!(plan(&held, Policy { keep: 2 }), []);
    assert_eq!(plan(&held, Policy { keep: 1 }), []);
    assert_eq!(plan(&[bad(1), bad(2)], Policy { keep: 1 }), []);
    let newer = [bad(1), committed(2, &[])];
    let removed = [
        Removal::Manifests(id(1)),
        Removal::Barrier,
        Removal::Data(id(1)),
    ];
    assert_eq!(plan(&newer, Policy { keep: 1 }), removed);
}

#[test]
fn nothing_goes_that_is_used_or_undecided() {
    let with = |change: fn(&mut Holding)| {
        let mut first = committed(1, &[]);
        change(&mut first);
        plan(&[first, committed(2, &[])], Policy { keep: 1 }).len()
    };
    assert_eq!(with(|_| ()), 3);
    assert_eq!(with(|h| h.pinned = true), 0);
    assert_eq!(with(|h| h.reading = true), 0);
    assert_eq!(with(|h| h.level = 2), 0);
    assert_eq!(with(|h| h.stage = Stage::Making), 0);
    // Older than what is kept, it is decided.
    assert_eq!(with(|h| h.stage = Stage::Prepared), 3);
    let newer = |stage| Holding {
        stage,
        ..committed(3, &[])
    };
    for stage in [Stage::Prepared, Stage::DataOnly] {
        assert_eq!(
            plan(&[committed(2, &[]), newer(stage)], Policy { keep: 1 }),
            []
        );
    }
    // What a part refers to that is being made is not known.
    let all = [committed(1, &[]), committed(2, &[]), newer(Stage::Making)];
    assert_eq!(plan(&all, Policy { keep: 1 }), []);
}

#[test]
fn room_is_made_or_it_is_said_why_not() {
    let gib = 1_u64 << 30;
    let held = [committed(1, &[]), committed(2, &[]), committed(3, &[2])];
    let policy = Policy::default();
    let easy = room(&held, policy, gib, 2 * gib).unwrap();
    assert_eq!((easy.free, easy.early.len()), (2 * gib, 0));
    // 2 goes early, but 3 refers to its segment.
    let why = room(&held, policy, gib, 3 * gib).unwrap_err();
    assert_eq!(
        why,
        "a checkpoint of about 3.0 GiB does not fit: 2.0 GiB can be made free, and held are 2.0 GiB by the newest and what it \
         refers to; raise the quota, unpin one, or checkpoint less"
    );
    let held = [committed(1, &[]), committed(2, &[]), committed(3, &[])];
    let early = room(&held, policy, gib, 3 * gib).unwrap();
    assert_eq!((early.free, early.early), (3 * gib, vec![id(2)]));
    let pinned = Holding {
        pinned: true,
        ..committed(1, &[])
    };
    let why = room(&[pinned], policy, 0, u64::MAX).unwrap_err();
    assert!(
        why.contains("16777215.9 TiB does not fit") && why.contains("1.0 GiB pinned"),
        "{why}"
    );
    assert!(room(&[], policy, 5, 5).is_ok() && room(&[], policy, 0, 1).is_err());
}

fn any_holdings() -> impl Strategy<Value = Vec<Holding>> {
    let stage = prop_oneof![
        6 => Just(Stage::Committed),
        1 => Just(Stage::Prepared),
        1 => Just(Stage::DataOnly),
    ];
    let one = (stage, 1..3_u8, 0..12_u8, 0..100_u64, any::<u16>());
    prop::collection::vec(one, 0..9).prop_map(|all| {
        let numbered = (1_u32..).zip(all);
        let hold =
            |(number, (stage, level, flags, bytes, refers)): (u32, (Stage, u8, u8, u64, u16))| {
                Holding {
                    stage,
                    level,
                    pinned: flags == 0,
                    reading: flags == 1,
                    good: flags != 2,
                    bytes,
                    ..committed(
                        number,
                        &(1..number)
                            .filter(|n| refers & (1 << n) != 0 && refers & 1 == 1)
                            .collect::<Vec<_>>(),
                    )
                }
            };
        numbered.map(hold).collect()
    })
}

/// What stands on the disk: manifests and data.
#[derive(Clone, PartialEq, Debug)]
struct Disk {
    manifests: BTreeMap<CheckpointId, Vec<CheckpointId>>,
    data: BTreeSet<CheckpointId>,
}

impl Disk {
    fn of(holdings: &[Holding]) -> Disk {
        let manifest = |h: &&Holding| h.stage != Stage::DataOnly;
        Disk {
            manifests: holdings
                .iter()
                .filter(manifest)
                .map(|h| (h.id, h.needs.clone()))
                .collect(),
            data: holdings.iter().map(|h| h.id).collect(),
        }
    }

    fn remove(&mut self, removal: Removal) {
        match removal {
            Removal::Manifests(id) => drop(self.manifests.remove(&id)),
            Removal::Barrier => {}
            Removal::Data(id) => assert!(self.data.remove(&id)),
        }
    }

    fn whole(&self, id: &CheckpointId, needs: &[CheckpointId]) -> bool {
        self.data.contains(id) && needs.iter().all(|need| self.data.contains(need))
    }
}

/// After a crash: removals before the last barrier that was reached are durable, of the others any may be.
fn crashes(before: &Disk, removals: &[Removal], at: usize, some: u64) -> Disk {
    let barrier = removals[..at]
        .iter()
        .rposition(|r| *r == Removal::Barrier)
        .unwrap_or(0);
    let mut disk = before.clone();
    for (nth, removal) in removals[..at].iter().enumerate() {
        if nth < barrier || some & (1 << (nth % 64)) != 0 {
            disk.remove(*removal);
        }
    }
    disk
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_crash_leaves_a_manifest_without_its_data(
        holdings in any_holdings(), keep in 0..4_u32, more in 0..400_u64, some: u64,
    ) {
        let before = Disk::of(&holdings);
        let whole: Vec<CheckpointId> =
            before.manifests.iter().filter(|(id, n)| before.whole(id, n)).map(|(id, _)| *id).collect();
        let room = room(&holdings, Policy { keep }, 0, more);
        let plans = [Some(plan(&holdings, Policy { keep })), room.ok().map(|room| room.removals)];
        for removals in plans.into_iter().flatten() {
            for at in 0..=removals.len() {
                let disk = crashes(&before, &removals, at, some);
                for id in &whole {
                    let needs = disk.manifests.get(id);
                    prop_assert!(needs.is_none_or(|needs| disk.whole(id, needs)), "{id} of {disk:?} after {removals:?}");
                }
                // What must stay, stays: pinned, read, undecided and newer than all, and the newest good one of each level.
                for level in 1..3 {
                    let good = |h: &&Holding| h.stage == Stage::Committed && h.good && h.level == level;
                    if let Some(newest) = holdings.iter().rev().find(good) {
                        prop_assert!(disk.manifests.contains_key(&newest.id));
                    }
                }
                for held in holdings.iter().filter(|h| h.pinned || h.reading) {
                    prop_assert_eq!(disk.manifests.get(&held.id), before.manifests.get(&held.id));
                    prop_assert!(disk.data.contains(&held.id));
                }
            }
        }
    }

    #[test]
    fn a_plan_leaves_what_the_policy_wants_and_no_more(holdings in any_holdings(), keep in 1..4_u32) {
        let mut disk = Disk::of(&holdings);
        plan(&holdings, Policy { keep }).into_iter().for_each(|removal| disk.remove(removal));
        for held in holdings.iter().filter(|h| h.stage == Stage::Committed) {
            let newer = holdings.iter().filter(|h| h.stage == Stage::Committed && h.good && h.level == held.level && h.id > held.id);
            let late = newer.count() >= keep as usize;
            let stays = !late || held.pinned || held.reading;
            prop_assert_eq!(disk.manifests.contains_key(&held.id), stays);
        }
        // A second plan finds nothing to do.
        let left: Vec<Holding> = holdings.into_iter().filter(|h| disk.data.contains(&h.id)).map(|h| Holding {
            stage: if disk.manifests.contains_key(&h.id) { h.stage } else { Stage::DataOnly },
            ..h
        }).collect();
        prop_assert_eq!(plan(&left, Policy { keep }), vec![]);
    }
}
