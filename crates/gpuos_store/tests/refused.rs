//! Marks on checkpoints that a program could not load.

use std::fs;

use gpuos_checkpoint::refusal::Refusal;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::Kind;

use crate::support::*;

fn refusal(rank: u16) -> Refusal {
    Refusal {
        rank,
        node: "n3".into(),
        said: "no such layer".into(),
    }
}

#[test]
fn a_mark_stays_with_its_checkpoint_and_goes_with_it() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    place.put("state", b"1");
    let source = place.folder("program");
    for number in 1..=3 {
        write(&job, id(number, 1), &LinuxDisk, &source, None).unwrap();
        job.commit(id(number, 1)).unwrap();
    }
    assert_eq!(job.refusal(id(2, 1)).unwrap(), None);
    job.refuse(id(2, 1), &refusal(2)).unwrap();
    job.refuse(id(2, 1), &refusal(3)).unwrap();
    assert_eq!(job.refusal(id(2, 1)).unwrap(), Some(refusal(2)));
    let kept = job.kept().unwrap();
    let marks: Vec<_> = kept.iter().map(|kept| kept.refused.clone()).collect();
    assert_eq!(marks, [None, Some(refusal(2)), None]);
    let held = job.list().unwrap();
    assert!(held.iter().all(|held| held.faults.is_empty()), "{held:?}");
    job.remove(id(2, 1)).unwrap();
    assert!(!place.path(&format!("store/7/{}", id(2, 1))).exists());
    let nothing = job.refuse(id(9, 1), &refusal(2)).unwrap_err();
    assert_eq!(nothing.kind, Kind::Missing);
}

#[test]
fn no_mark_counts_that_was_changed_or_is_of_another_checkpoint() {
    let place = Place::new();
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    place.put("state", b"1");
    let source = place.folder("program");
    for number in 1..=2 {
        write(&job, id(number, 1), &LinuxDisk, &source, None).unwrap();
    }
    job.refuse(id(1, 1), &refusal(2)).unwrap();
    let file = |number| place.path(&format!("store/7/{}/refused", id(number, 1)));
    let good = fs::read(file(1)).unwrap();
    fs::write(file(2), &good).unwrap();
    let error = job.refusal(id(2, 1)).unwrap_err();
    assert_eq!(error.kind, Kind::Damaged);
    assert!(error.to_string().contains("does not hold"), "{error}");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(file(1), &bad).unwrap();
        assert!(job.refusal(id(1, 1)).is_err(), "{at}");
        fs::write(file(1), &good[..at]).unwrap();
        assert!(job.refusal(id(1, 1)).is_err(), "cut at {at}");
    }
    // It is said by verify, and a new mark takes its place.
    fs::write(file(1), b"x").unwrap();
    let faults = gpuos_store::verify::verify(&job, id(1, 1)).unwrap();
    assert_eq!(faults.len(), 1);
    job.refuse(id(1, 1), &refusal(4)).unwrap();
    assert_eq!(job.refusal(id(1, 1)).unwrap(), Some(refusal(4)));
}
