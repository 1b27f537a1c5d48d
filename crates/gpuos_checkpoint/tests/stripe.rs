//! Which member holds what: every chunk once, every stripe on as many members as it has shards.

use std::collections::BTreeSet;

use gpuos_checkpoint::stripe::{ALIGNMENT, Geometry, MOST_SHARDS, Part, Shard};
use proptest::prelude::*;

fn sizes() -> impl Strategy<Value = Geometry> {
    let members = prop_oneof![4 => 1..=16_usize, 1 => 17..=MOST_SHARDS];
    let sizes = members.prop_flat_map(|members| (Just(members), 0..members.min(17)));
    sizes.prop_map(|(members, parity)| Geometry::new(members, parity).unwrap())
}

#[test]
fn it_is_as_drawn() {
    let set = Geometry::new(5, 2).unwrap();
    let drawn = [
        ["p0", "p1", "c0", "c1", "c2"],
        ["c2", "p0", "p1", "c0", "c1"],
        ["c1", "c2", "p0", "p1", "c0"],
        ["c0", "c1", "c2", "p0", "p1"],
        ["p1", "c0", "c1", "c2", "p0"],
    ];
    for (stripe, row) in (0..).zip(drawn) {
        let mut found = [""; 5].map(String::from);
        for shard in set.stripe(stripe) {
            found[usize::from(shard.member)] = match shard.part {
                Part::Chunk(chunk) => format!("c{chunk}"),
                Part::Parity(parity) => format!("p{parity}"),
            };
        }
        assert_eq!(found, row, "stripe {stripe}");
    }
}

#[test]
fn a_copy_is_a_stripe_of_one_chunk() {
    let pair = Geometry::new(2, 1).unwrap();
    let parity: Vec<Shard> = pair.parities(0).collect();
    assert_eq!((parity.len(), parity[0].stripe), (1, 0));
    assert_eq!(pair.chunk(1, 0).map(|shard| shard.stripe), Some(0));
    // Alone, there is nothing to hold.
    let alone = Geometry::new(1, 0).unwrap();
    assert_eq!(alone.parities(0).count(), 0);
    assert_eq!(alone.held_by(0).count(), 1);
}

#[test]
fn chunks_are_long_enough_and_no_number_overflows() {
    let set = Geometry::new(8, 2).unwrap();
    assert_eq!(set.chunk_len(&[]), Some(0));
    assert_eq!(set.chunk_len(&[0, 1]), Some(ALIGNMENT));
    assert_eq!(set.chunk_len(&[6 * ALIGNMENT, 5]), Some(ALIGNMENT));
    assert_eq!(set.chunk_len(&[6 * ALIGNMENT + 1]), Some(2 * ALIGNMENT));
    assert!(set.chunk_len(&[u64::MAX]).is_some());
    assert_eq!(Geometry::new(2, 1).unwrap().chunk_len(&[u64::MAX]), None);
    assert_eq!(set.bytes_of(255, u64::MAX, u64::MAX), u64::MAX..u64::MAX);
    assert_eq!(set.bytes_of(1, 4096, 5000), 4096..5000);
    assert!(set.bytes_of(2, 4096, 5000).is_empty());
}

#[test]
fn what_is_not_there_is_not_found() {
    assert_eq!(Geometry::new(0, 0), None);
    assert_eq!(Geometry::new(3, 3), None);
    assert_eq!(Geometry::new(MOST_SHARDS + 1, 1), None);
    assert_eq!(Geometry::new(usize::MAX, 300), None);
    let set = Geometry::new(4, 1).unwrap();
    for beyond in [4, 255] {
        assert_eq!(set.at(beyond, 0), None);
        assert_eq!(set.at(0, beyond), None);
        assert_eq!(set.stripe(beyond).count(), 0);
        assert_eq!(set.chunk(beyond, 0), None);
        assert_eq!(set.chunk(0, beyond), None);
        assert_eq!(set.held_by(beyond).count(), 0);
    }
    assert_eq!(set.chunk(0, 3), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_stripe_is_on_different_members_and_every_chunk_in_one_stripe(set in sizes()) {
        let (n, m, k) = (set.members(), set.parity(), set.data());
        let mut chunks = BTreeSet::new();
        for stripe in 0..n {
            let shards: Vec<Shard> = set.stripe(stripe).collect();
            let members: BTreeSet<u8> = shards.iter().map(|shard| shard.member).collect();
            prop_assert_eq!(members.len(), usize::from(n));
            for (place, shard) in (0..=u8::MAX).zip(&shards) {
                prop_assert_eq!((shard.stripe, shard.place), (stripe, place));
                match shard.part {
                    Part::Chunk(chunk) => {
                        prop_assert!(place < k && chunks.insert((shard.member, chunk)));
                        prop_assert_eq!(set.chunk(shard.member, chunk), Some(*shard));
                    }
                    Part::Parity(parity) => prop_assert_eq!(place, k + parity),
                }
            }
        }
        prop_assert_eq!(chunks.len(), usize::from(n) * usize::from(k));
        for member in 0..n {
            let held: Vec<Shard> = set.held_by(member).collect();
            let stripes: BTreeSet<u8> = held.iter().map(|shard| shard.stripe).collect();
            prop_assert_eq!(stripes.len(), usize::from(n));
            prop_assert!(held.iter().all(|shard| shard.member == member));
            prop_assert_eq!(set.parities(member).count(), usize::from(m));
            prop_assert_eq!(&held[usize::from(k)..], &set.parities(member).collect::<Vec<_>>()[..]);
        }
    }

    #[test]
    fn any_lost_members_leave_enough_of_each_stripe(set in sizes(), picks: [u8; 16]) {
        let picked = picks.iter().take(set.parity().into()).map(|pick| pick % set.members());
        let lost: BTreeSet<u8> = picked.collect();
        for stripe in 0..set.members() {
            let left = set.stripe(stripe).filter(|shard| !lost.contains(&shard.member));
            prop_assert!(left.count() >= usize::from(set.data()));
        }
    }

    #[test]
    fn chunks_cover_a_segment_without_gaps(set in sizes(), lens in prop::collection::vec(0..1_u64 << 40, 1..9)) {
        let chunk_len = set.chunk_len(&lens).unwrap();
        prop_assert_eq!(chunk_len % ALIGNMENT, 0);
        // No longer than it has to be.
        let longest = lens.iter().max().unwrap();
        prop_assert!(chunk_len < longest / u64::from(set.data()) + ALIGNMENT + 1);
        for len in &lens {
            let mut covered = 0;
            for chunk in 0..set.data() {
                let bytes = set.bytes_of(chunk, chunk_len, *len);
                prop_assert!(bytes.start == covered || bytes.is_empty());
                prop_assert!(bytes.end - bytes.start <= chunk_len);
                covered = bytes.end.max(covered);
            }
            prop_assert_eq!(covered, *len);
        }
    }
}
