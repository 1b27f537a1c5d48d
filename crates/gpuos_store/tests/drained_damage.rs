//! Whatever is flipped, cut, moved or exchanged in what is drained: it comes back on no node as something else.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_store::coding::Coding;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::drained::DrainedStore;
use gpuos_store::fake::FakeDisk;

use crate::damage::{damaged, snapshot};
use crate::drained::{ONE, UID, ZERO, assert_whole, drain, fetch, node, open};
use crate::random::Random;
use crate::support::*;

/// Fetches the parts of both nodes onto new disks: whether one could not be had. What could is what the programs had.
fn look(place: &Place) -> bool {
    let beside = open(&FakeDisk::new(0));
    let far = DrainedStore::open(&beside, LinuxDisk, place.folder("program")).unwrap();
    let Ok(Some(far_job)) = far.existing(&job(7)) else {
        return true;
    };
    let mut told = false;
    for node in [ZERO, ONE] {
        for number in 1..=2 {
            let new = FakeDisk::new(0);
            match fetch(&far_job, &new, node, id(number, 5)) {
                Ok(_) => assert_whole(&new, node, id(number, 5)),
                Err(_) => told = true,
            }
        }
    }
    told
}

#[test]
fn nothing_drained_and_damaged_comes_back() {
    in_forms(&FORMS, |form| damage_what_is_drained(form, 100));
}

fn damage_what_is_drained(form: Coding, few: usize) {
    let place = Place::new();
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(place.path("program"), private).unwrap();
    let nodes: [FakeDisk; 2] = [ZERO, ONE].map(|own: NodeIndex| node(own, 2));
    {
        let store = open(&nodes[0]);
        let far = DrainedStore::open(&store, LinuxDisk, place.folder("program")).unwrap();
        let far_job = far.make(&job(7), UID).unwrap();
        for (own, disk) in [ZERO, ONE].into_iter().zip(&nodes) {
            drain(disk, &far_job, own, id(1, 5)).unwrap();
            drain(disk, &far_job, own, id(2, 5)).unwrap();
        }
    }
    assert!(!look(&place));
    let all = snapshot(&place.path("program"));
    let (rounds, seed) = flips(if form == PLAIN { few } else { few / 3 });
    let mut random = Random(seed);
    let (mut changes, mut found) = (0, 0);
    for _ in 0..rounds {
        let changed = damaged(&all, &mut random);
        for (path, bytes) in &changed {
            fs::write(path, bytes).unwrap();
        }
        changes += usize::from(!changed.is_empty());
        found += usize::from(look(&place));
        for path in changed.keys() {
            fs::write(path, &all[path]).unwrap();
        }
    }
    println!(
        "{rounds} damages of what is drained ({form:?}), seed {seed}: {changes} changed something, {found} kept a part from coming back"
    );
    // What stands beyond a segment's end is of no matter.
    assert!(found * 2 > changes && changes * 2 > rounds);
    assert!(!look(&place));
}
