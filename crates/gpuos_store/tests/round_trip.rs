//! What was a program's folder is one again.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuos_checkpoint::manifest::Manifest;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::ingest::Limits;
use gpuos_store::inventory::{Others, Part};
use gpuos_store::job::JobStore;
use gpuos_store::owned::Owner;
use gpuos_store::restore::{Target, restore};
use gpuos_store::verify::verify;
use proptest::prelude::*;

use crate::support::*;

/// Checkpoint 1 of what lies in `program`, before it is committed.
fn prepared(place: &Place, job: &JobStore<'_, LinuxDisk>) -> Manifest {
    let source = place.folder("program");
    let limits = Limits::default();
    let draft = job.ingest(&new(id(1, 1)), &LinuxDisk, &source, &limits, None);
    job.prepare(draft.unwrap(), alone()).unwrap().0
}

fn restored(place: &Place, job: &JobStore<'_, LinuxDisk>, manifest: &Manifest) -> Seen {
    let name = manifest.id.to_string();
    let folder = place.folder("restored");
    let target = Target {
        disk: &LinuxDisk,
        folder: &folder,
        name: name.as_bytes(),
        owner: None,
    };
    restore(job, manifest, &target).unwrap();
    seen(&place.path("restored").join(name))
}

#[test]
fn files_come_back_with_bytes_modes_and_times_but_without_setuid() {
    let place = Place::new();
    place.put("model/weights.bin", &noise(1, 3 * EXTENT + 17));
    place.put("empty", b"");
    place.put(name(b"new\nline"), b"x");
    place.put(name(b"not utf8 \xff\xfe"), b"y");
    place.put("tool", &noise(2, EXTENT));
    fs::create_dir(place.path("program").join("nothing")).unwrap();
    let mode = |name: &str, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(place.path("program").join(name), mode).unwrap();
    };
    mode("tool", 0o4755);
    mode("nothing", 0o500);
    mode("model", 0o2750);
    let file = fs::File::open(place.path("program/model/weights.bin")).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(old).unwrap();

    let (store, found) = place.open();
    assert_eq!(found, Default::default());
    let job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let manifest = write(&job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    job.commit(id(1, 1)).unwrap();
    assert_eq!(verify(&job, id(1, 1)).unwrap(), []);
    let mut expected = seen(&place.path("program"));
    for (mode, _) in expected.values_mut() {
        *mode &= 0o777;
    }
    assert_eq!(restored(&place, &job, &manifest), expected);
}

#[test]
fn long_files_come_back_with_their_holes_and_their_odd_ends() {
    let place = Place::new();
    let path = place.path("program/long");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&noise(1, 5 << 20)).unwrap();
    file.seek(SeekFrom::Start(20 << 20)).unwrap();
    file.write_all(&noise(2, (3 << 20) + 777)).unwrap();
    place.put("other", &noise(3, (4 << 20) + 1));
    let moved = Arc::new(AtomicU64::new(0));
    let (store, _) = place.open();
    let sum = moved.clone();
    let store = store.at_pace(Box::new(move |bytes| {
        sum.fetch_add(bytes, Ordering::Relaxed);
    }));
    let job = store.job(&job(7), me()).unwrap();
    let manifest = prepared(&place, &job);
    // A disk that has a rate is asked for no more than that, and for all of it.
    let length = manifest.segments[0].length;
    assert_eq!(moved.load(Ordering::Relaxed), length);
    assert_eq!(
        restored(&place, &job, &manifest),
        seen(&place.path("program"))
    );
    assert_eq!(moved.load(Ordering::Relaxed), 2 * length);
    assert_eq!(verify(&job, id(1, 1)).unwrap(), []);
    let restored = place.path("restored").join(id(1, 1).to_string());
    let taken = fs::metadata(restored.join("long"));
    let taken = taken.map(|facts| facts.blocks() * 512);
    assert!(taken.is_ok_and(|taken| taken < 12 << 20), "the hole is one");
}

/// A page of data in each extent: as much as that in the store, too, and as much again when it comes back.
#[test]
fn what_is_thinly_written_takes_about_as_much_in_the_store_as_in_its_folder() {
    let place = Place::new();
    let path = place.path("program/thin");
    let mut file = fs::File::create(&path).unwrap();
    let step = u64::from(Limits::default().extent);
    let pages = 24;
    for page in 0..pages {
        // At other places of each extent, and the last one at the file's odd end.
        file.seek(SeekFrom::Start(page * step + page * 8192))
            .unwrap();
        file.write_all(&random(page + 1, 4096 - 7)).unwrap();
    }
    let taken = |path: std::path::PathBuf| fs::metadata(path).unwrap().blocks() * 512;
    let before = taken(path);
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = prepared(&place, &job);
    job.commit(id(1, 1)).unwrap();
    assert!(
        manifest.segments[0].length <= 2 * pages * 4096,
        "{} bytes are stored of {before}",
        manifest.segments[0].length
    );
    assert_eq!(verify(&job, id(1, 1)).unwrap(), []);
    let expected = seen(&place.path("program"));
    assert_eq!(restored(&place, &job, &manifest), expected);
    let after = taken(
        place
            .path("restored")
            .join(id(1, 1).to_string())
            .join("thin"),
    );
    assert!(after <= 2 * before.max(pages * 4096), "{after} of {before}");
}

/// Parts of thin extents are written from buffers of their own, which no full extent may be read into afterwards.
#[test]
fn full_extents_come_back_after_thin_ones() {
    let place = Place::new();
    let step = Limits::default().extent as usize;
    let mut bytes = random(1, 22 * step);
    for thin in [9, 15] {
        bytes[thin * step + 4096..(thin + 1) * step].fill(0);
    }
    place.put("mixed", &bytes);
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = prepared(&place, &job);
    job.commit(id(1, 1)).unwrap();
    assert_eq!(
        restored(&place, &job, &manifest),
        seen(&place.path("program"))
    );
}

#[test]
fn holes_take_nothing_in_the_store_and_stay_holes() {
    let place = Place::new();
    let path = place.path("program/sparse");
    let mut file = fs::File::create(&path).unwrap();
    let far = 1 << 30;
    file.write_all(&noise(1, 100)).unwrap();
    file.seek(SeekFrom::Start(far + 5)).unwrap();
    file.write_all(&noise(2, 100)).unwrap();
    file.set_len(far * 2).unwrap();
    // Zeros that are written take nothing either.
    place.put("zeros", &vec![0; 10 * EXTENT]);
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let manifest = write(&job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    assert!(manifest.segments[0].length <= 2 * EXTENT as u64);
    assert_eq!(manifest.counts.extents, 5);
    let folder = place.folder("restored");
    let target = Target {
        disk: &LinuxDisk,
        folder: &folder,
        name: b"it",
        owner: None,
    };
    restore(&job, &manifest, &target).unwrap();
    let facts = fs::metadata(place.path("restored/it/sparse")).unwrap();
    assert_eq!(facts.len(), far * 2);
    assert!(facts.blocks() * 512 < 1 << 20, "{}", facts.blocks());
    let usage = store.usage().unwrap();
    assert_eq!(usage.keys().collect::<Vec<_>>(), [&Some(me())]);
    assert!(usage[&Some(me())] < 1 << 20);
    let of_jobs = || store.usage_of_jobs().unwrap();
    assert_eq!(of_jobs()[0].bytes, usage[&Some(me())]);
    let all = of_jobs();
    let [one] = &all[..] else {
        panic!("one job");
    };
    assert_eq!((one.job.to_string(), one.owner), ("7".into(), Some(me())));
    let before = one.committed;
    job.commit(id(1, 1)).unwrap();
    assert_eq!((before, of_jobs()[0].committed), (false, true));
}

#[test]
fn equal_extents_are_written_once_and_segments_stay_while_they_are_needed() {
    let place = Place::new();
    place.put("a", &noise(1, 4 * EXTENT));
    place.put("b", &noise(1, EXTENT));
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let first = write(&job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    assert_eq!(first.segments[0].length, 4 * EXTENT as u64);
    job.commit(id(1, 1)).unwrap();

    place.put("b", &noise(2, EXTENT));
    let second = write(&job, id(2, 1), &LinuxDisk, &source, Some(&first)).unwrap();
    job.commit(id(2, 1)).unwrap();
    assert_eq!(second.segments[0].length, EXTENT as u64);

    let refused = job.remove(id(2, 1)).unwrap_err().to_string();
    assert!(refused.contains("it is the current one"), "{refused}");
    job.remove_keeping(id(1, 1), Others::Keep).unwrap();
    let list = job.list().unwrap();
    let parts: Vec<_> = list
        .iter()
        .map(|held| (&held.part, held.committed))
        .collect();
    let Part::Prepared(summary) = parts[1].0 else {
        panic!("{parts:?}");
    };
    assert_eq!(parts[0], (&Part::SegmentOnly, false));
    assert!(parts[1].1);
    assert_eq!(summary.needs, [id(1, 1)]);
    assert_eq!(verify(&job, id(2, 1)).unwrap(), []);
    assert_eq!(
        restored(&place, &job, &second),
        seen(&place.path("program"))
    );

    // A third that needs nothing of them: both segments go with the second.
    place.put("a", &noise(3, EXTENT));
    place.put("b", &noise(4, EXTENT));
    write(&job, id(3, 1), &LinuxDisk, &source, Some(&second)).unwrap();
    job.commit(id(3, 1)).unwrap();
    job.remove(id(2, 1)).unwrap();
    let left: Vec<_> = job.list().unwrap().iter().map(|held| held.id).collect();
    assert_eq!(left, [id(3, 1)]);
    let seven = gpuos_core::job::JobId::from(7);
    let owned = store.owned(&seven, Owner::user(me())).unwrap();
    owned.unwrap().remove().unwrap();
    assert_eq!(store.jobs().unwrap(), []);
    assert_eq!(fs::read_dir(place.path("store")).unwrap().count(), 0);
}

#[test]
fn a_name_that_is_taken_is_left_alone() {
    let place = Place::new();
    place.put("a", b"1");
    let (store, _) = place.open();
    let job = store.job(&job(7), me()).unwrap();
    let manifest = write(&job, id(1, 1), &LinuxDisk, &place.folder("program"), None).unwrap();
    let folder = place.folder("restored");
    let target = Target {
        disk: &LinuxDisk,
        folder: &folder,
        name: b"it",
        owner: None,
    };
    fs::write(place.path("restored/it"), b"mine").unwrap();
    let refused = restore(&job, &manifest, &target).unwrap_err().to_string();
    assert!(refused.contains("the name is taken"), "{refused}");
    assert_eq!(fs::read(place.path("restored/it")).unwrap(), b"mine");
    let again = write(&job, id(1, 1), &LinuxDisk, &place.folder("program"), None);
    assert!(again.unwrap_err().to_string().contains("there already"));
    assert_eq!(verify(&job, id(1, 1)).unwrap(), []);
}

/// What a program does to its folder between two checkpoints.
#[derive(Clone, Debug)]
enum Step {
    /// Writes a file: which, its pieces by their seeds (0 is zeros), and bytes after the last.
    Write(u8, Vec<u8>, usize),
    Delete(u8),
    /// Removes all checkpoints but the current one.
    Prune,
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let tail = prop_oneof![
        Just(0),
        Just(1),
        Just(4095),
        Just(4096),
        Just(4097),
        Just(EXTENT - 1)
    ];
    let pieces = prop::collection::vec(0u8..5, 0..4);
    let step = prop_oneof![
        6 => (0u8..6, pieces, tail).prop_map(|(file, pieces, tail)| Step::Write(file, pieces, tail)),
        1 => (0u8..6).prop_map(Step::Delete),
        1 => Just(Step::Prune),
    ];
    prop::collection::vec(prop::collection::vec(step, 0..5), 1..6)
}

const PATHS: [&str; 6] = ["a", "b", "d/a", "d/e/f", "d/b", "g/h/i/j"];

fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if long() { 500 } else { 12 })
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_folder_comes_back_from_any_chain_of_checkpoints(rounds in steps(), form in 0..5usize) {
        let place = Place::new();
        // The last one is another form for each checkpoint.
        set_form(*FORMS.get(form).unwrap_or(&PLAIN));
        let mut previous: Option<Manifest> = None;
        for (number, steps) in (1..).zip(rounds) {
            for step in steps {
                match step {
                    Step::Write(file, pieces, tail) => {
                        let mut bytes = Vec::new();
                        for seed in pieces {
                            bytes.extend(match seed {
                                0 => vec![0; EXTENT],
                                seed => noise(seed.into(), EXTENT),
                            });
                        }
                        bytes.extend(noise(99, tail));
                        place.put(PATHS[usize::from(file)], &bytes);
                    }
                    Step::Delete(file) => {
                        let _ = fs::remove_file(place.path("program").join(PATHS[usize::from(file)]));
                    }
                    Step::Prune => {
                        let (store, _) = place.open();
                        let job = store.job(&job(7), me()).unwrap();
                        for held in job.list().unwrap() {
                            if job.current().unwrap() != Some(held.id) {
                                job.remove(held.id).unwrap();
                            }
                        }
                    }
                }
            }
            if form == FORMS.len() {
                set_form(FORMS[number as usize % FORMS.len()]);
            }
            let (store, _) = place.open();
            let job = store.job(&job(7), me()).unwrap();
            let id = id(number, 3);
            let source = place.folder("program");
            let manifest = write(&job, id, &LinuxDisk, &source, previous.as_ref()).unwrap();
            job.commit(id).unwrap();
            prop_assert_eq!(&job.manifest(id).unwrap(), &manifest);
            prop_assert_eq!(verify(&job, id).unwrap(), []);
            prop_assert_eq!(restored(&place, &job, &manifest), seen(&place.path("program")));
            previous = Some(manifest);
        }
        // Everything holds after a restart as well, and nothing was left over.
        let (again, found) = place.open();
        prop_assert_eq!(found, Default::default());
        let again = again.existing(&gpuos_core::job::JobId::from(7)).unwrap();
        prop_assert!(again.list().unwrap().iter().all(|held| held.faults.is_empty()));
        prop_assert_eq!(again.current().unwrap(), previous.map(|manifest| manifest.id));
    }
}
