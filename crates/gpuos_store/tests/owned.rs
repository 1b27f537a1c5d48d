//! What is kept of a job goes at its owner's word alone, and what a drill has copied in with the drill.

use std::fs;

use gpuos_core::wire::Peer;
use gpuos_store::marks::{adopt, begin_drill, note_over, over_since};
use gpuos_store::owned::Owner;

use crate::support::*;

#[test]
fn what_is_anothers_is_not_removed_and_what_is_damaged_by_root_alone() {
    let place = Place::new();
    let (store, _) = place.open();
    store.job(&job(7), me()).unwrap();
    let other = store.owned(&job(7), Owner::user(me() + 1));
    let why = other.err().expect("refused").to_string();
    assert!(why.contains("job 7: they are another user's"), "{why}");
    assert!(store.owned(&job(8), Owner::user(me())).unwrap().is_none());

    fs::write(place.path("store/7/owner"), [0; 36]).unwrap();
    let damaged = store.owned(&job(7), Owner::user(me()));
    let why = damaged.err().expect("refused").to_string();
    assert!(why.contains("root alone can remove them"), "{why}");
    // The daemon's own user counts as root.
    let peer = |uid| Peer { uid, pid: 1 };
    assert!(store.owned(&job(7), Owner::of(peer(4711), 0)).is_err());
    let root = Owner::of(peer(0), me());
    let owned = store.owned(&job(7), root).unwrap().expect("it is there");
    assert_eq!(owned.uid(), None);
    owned.remove().unwrap();
    assert_eq!(store.jobs().unwrap(), []);
}

#[test]
fn a_drill_knows_what_it_has_copied_in_and_what_was_there_or_has_come_since() {
    let place = Place::new();
    let (store, _) = place.open();
    let drill = |number: u32| begin_drill(&store, &job(7), me(), &job(number));
    assert!(drill(20).unwrap(), "nothing was there");
    assert!(drill(20).unwrap(), "its mover was started anew");
    assert!(!drill(21).unwrap(), "it is another drill's");
    let why = begin_drill(&store, &job(7), me() + 1, &job(20)).unwrap_err();
    assert!(why.to_string().contains("as one of user"), "{why}");
    adopt(&store, &job(7), me()).unwrap();
    assert!(!drill(20).unwrap(), "the job has run here");
    // Of what is not there no folder is made.
    adopt(&store, &job(8), me()).unwrap();
    assert_eq!(store.jobs().unwrap(), [job(7)]);

    let mine = begin_drill(&store, &job(9), me(), &job(20));
    assert!(mine.unwrap());
    let path = place.path("store/9/drill");
    fs::write(path, [b'2'; 40]).unwrap();
    let forged = begin_drill(&store, &job(9), me(), &job(2));
    assert!(forged.is_err(), "a note that is not signed");
}

#[test]
fn a_job_is_over_until_it_begins_again() {
    let place = Place::new();
    let (store, _) = place.open();
    let seven = store.job(&job(7), me()).unwrap();
    assert_eq!(over_since(&seven).unwrap(), None);
    note_over(&seven, Some(1234)).unwrap();
    assert_eq!(over_since(&seven).unwrap(), Some(1234));
    adopt(&store, &job(7), me()).unwrap();
    assert_eq!(over_since(&seven).unwrap(), None);
}
