//! Sets of simulated nodes that encode their segments, lose members and make them again, with real bytes over a network that
//! loses, repeats, delays and damages messages. What must hold whatever happens: a shard that is done has the right bytes, no
//! piece is written twice with different bytes, memory stays within its bound, and everything ends.

use std::collections::BTreeSet;

use gpuos_checkpoint::stripe::Geometry;
use gpuos_model::rng::Rng;

use crate::pull_support::{Due, Faults, Member, Sent, World};

/// How many seeds: 300, and 20,000 with `$GPUOS_LONG` (`make random`).
fn seeds() -> u64 {
    match std::env::var_os("GPUOS_LONG") {
        Some(_) => 20_000,
        None => 300,
    }
}

#[test]
fn whatever_happens_lost_members_are_made_again() {
    let (mut replaced, mut too_many, mut resumed, mut in_vain, mut all) = (0, 0, 0, 0, 0);
    for seed in 0..seeds() {
        let mut rng = Rng::new(seed ^ 0x7075_6c6c);
        let parity = 1 + rng.below(3) as usize;
        let members = parity + 1 + rng.below(6) as usize;
        let set = Geometry::new(members, parity).unwrap();
        let faults = Faults {
            lost: rng.below(25),
            repeated: rng.below(25),
            damaged: rng.below(3),
            crashes: rng.below(4),
            latest_ms: 1 + rng.below(150),
        };
        let len = rng.below(900) as usize;
        let piece_len = 40 + rng.below(200) as u32;
        let window = 1 + rng.below(6) as u16;
        let mut world = World::new(set, len, faults, seed);
        world.encode(len, piece_len, window);

        // Some are lost at once, others while it is repaired; now and then one more than can be.
        let at_once = 1 + world.rng.below(parity as u64) as usize;
        let lost = world.some_members(at_once);
        let rest: Vec<u8> = (0..set.members())
            .filter(|member| !lost.contains(member))
            .collect();
        let mut falls = world.rng.below((parity - at_once) as u64 + 1) as usize;
        let hopeless = world.rng.below(8) == 0;
        if hopeless {
            falls = parity - at_once + 1;
        }
        for member in rest.into_iter().take(falls) {
            let kinds = [Member::Dead, Member::Empty, Member::Rotten];
            let to = kinds[world.rng.below(3) as usize];
            let after = world.rng.below(300);
            world.later(after, Due::Falls { member, to });
        }
        world.rebuild(&lost, len, piece_len, window);
        resumed += world.resumed;
        in_vain += world.in_vain;
        all += world.makers.len() + members * parity;
        for maker in &world.makers {
            assert!(
                hopeless || maker.ended == Some(true),
                "seed {seed}: {:?}",
                maker.wanted
            );
            replaced += usize::from(maker.made_of.len() > 1);
            too_many += usize::from(maker.ended == Some(false));
        }
    }
    eprintln!(
        "{all} shards, {replaced} of several choices of sources, {resumed} resumed, {in_vain} times in vain, {too_many} given up"
    );
    assert!(replaced > 10 && too_many > 10 && resumed > 10);
    // A source counts as silent when five questions in a row are lost, which so bad a network does now and then.
    assert!(in_vain < all / 20);
}

#[test]
fn all_choices_of_lost_members_can_be_made_again() {
    for (members, parity) in [(2, 1), (3, 1), (4, 2), (5, 2), (5, 3), (6, 3)] {
        let set = Geometry::new(members, parity).unwrap();
        let quiet = Faults {
            latest_ms: 5,
            ..Faults::default()
        };
        let mut world = World::new(set, 300, quiet, 7);
        world.encode(300, 100, 3);
        for bits in 1_u32..1 << members {
            let lost: BTreeSet<u8> = (0..set.members())
                .filter(|m| bits & (1 << m) != 0)
                .collect();
            if lost.len() <= parity {
                world.rebuild(&lost, 300, 100, 3);
                assert!(
                    world
                        .makers
                        .drain(..)
                        .all(|maker| maker.ended == Some(true))
                );
            }
        }
    }
}

/// The figures of the documents: a node of a set sends its segment once for each parity shard of a stripe, and gets as much.
#[test]
fn to_encode_each_node_sends_its_segment_once_for_each_parity_shard() {
    let (members, parity, piece_len) = (8, 2, 1024);
    let set = Geometry::new(members, parity).unwrap();
    let segments = [24_000_u64; 8];
    let chunk_len = set.chunk_len(&segments).unwrap();
    assert_eq!(chunk_len, 4096);
    let quiet = Faults {
        latest_ms: 5,
        ..Faults::default()
    };
    let mut world = World::new(set, chunk_len as usize, quiet, 1);
    world.encode(chunk_len as usize, piece_len, 4);
    let padded = chunk_len * u64::from(set.data());
    let pieces = padded / u64::from(piece_len);
    for sent in &world.sent {
        assert_eq!(sent.bytes, padded * parity as u64);
        // An answer for each piece of its own, a question for each piece of others, for each parity shard.
        assert_eq!(sent.messages, 2 * pieces * parity as u64);
    }
    // To make a node again, the others send k shards for each of its n; spread over them by the rotation.
    let before: Vec<Sent> = world.sent.clone();
    world.rebuild(&BTreeSet::from([3]), chunk_len as usize, piece_len, 4);
    let sent: Vec<u64> = world
        .sent
        .iter()
        .zip(&before)
        .map(|(after, before)| after.bytes - before.bytes)
        .collect();
    assert_eq!(
        sent.iter().sum::<u64>(),
        chunk_len * 8 * u64::from(set.data())
    );
    assert_eq!(sent[3], 0);
    let most = sent.iter().max().unwrap();
    assert!(*most <= 8 * chunk_len, "{sent:?}");
}
