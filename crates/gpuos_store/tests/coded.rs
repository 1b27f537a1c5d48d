//! What is compressed or encrypted: what can be read of it without the key, with which keys it comes back, and what older stores and
//! other settings have to do with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gpuos_checkpoint::manifest::{Coded, Extent, Kind, Manifest};
use gpuos_store::coding::{Coding, Compress};
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::error::Result;
use gpuos_store::fake::FakeDisk;
use gpuos_store::ingest::Limits;
use gpuos_store::job::JobStore;
use gpuos_store::key::SiteKey;
use gpuos_store::restore::{Target, restore};
use gpuos_store::store::Store;
use gpuos_store::verify::verify;

use crate::damage::snapshot;
use crate::support::*;

const SECRET: &[u8] = b"a sentence that nobody else is to read, forty times. ";
const NAME: &str = "a-name-that-tells-something";

const COMPRESSED: Coding = FORMS[1];
const ENCRYPTED: Coding = FORMS[2];

fn extents(manifest: &Manifest) -> impl Iterator<Item = &Extent> {
    manifest.files.iter().flat_map(|file| &file.extents)
}

fn coded(manifest: &Manifest) -> impl Iterator<Item = &Coded> {
    extents(manifest).filter_map(|extent| match &extent.kind {
        Kind::Coded(coded) => Some(coded),
        _ => None,
    })
}

fn comes_back(place: &Place, job: &JobStore<'_, LinuxDisk>, manifest: &Manifest) -> Result<()> {
    let disk = FakeDisk::new(0);
    let root = disk.root();
    let target = Target {
        disk: &disk,
        folder: &root,
        name: b"it",
        owner: None,
    };
    restore(job, manifest, &target)?;
    let folder = disk.open_folder(&root, b"it").unwrap();
    for (path, (_, file)) in seen(&place.path("program")) {
        let (expected, ..) = file.expect("a file");
        let file = disk.open(&folder, &path).unwrap();
        let mut bytes = vec![0; expected.len() + 1];
        let length = disk.read_at(&file, &mut bytes, 0).unwrap();
        assert!(bytes[..length] == expected, "{}", path.escape_ascii());
    }
    Ok(())
}

/// A checkpoint of what the program's folder has, in a form and with a key.
fn take(place: &Place, coding: Coding, site: SiteKey, number: u32, base: u32) -> Manifest {
    let (store, found) = Store::open(LinuxDisk, place.folder("store"), site).unwrap();
    assert_eq!(found, Default::default());
    let store = store.coded(coding);
    let job = store.job(&job(7), me()).unwrap();
    let base = (base > 0).then(|| job.manifest(id(base, 1)).unwrap());
    let draft = job.ingest(
        &new(id(number, 1)),
        &LinuxDisk,
        &place.folder("program"),
        &Limits {
            extent: 16 << 10,
            ..Limits::default()
        },
        base.as_ref(),
    );
    let manifest = job.prepare(draft.unwrap(), alone()).unwrap().0;
    job.commit(manifest.id).unwrap();
    assert_eq!(verify(&job, manifest.id).unwrap(), []);
    comes_back(place, &job, &manifest).unwrap();
    assert_eq!(job.manifest(manifest.id).as_ref(), Ok(&manifest));
    manifest
}

fn key_file(place: &Place, name: &str, seed: u64) -> PathBuf {
    let path = place.path(name);
    fs::write(&path, random(seed, 64)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    path
}

fn with(files: &[&Path]) -> SiteKey {
    key().with_files(files).unwrap()
}

#[test]
fn nothing_of_names_and_bytes_can_be_read_where_they_are_encrypted() {
    for (coding, readable) in FORMS.into_iter().zip([true, true, false, false]) {
        let place = Place::new();
        place.put(NAME, &SECRET.repeat(1000));
        place.put("short", SECRET);
        take(&place, coding, key(), 1, 0);
        let all = snapshot(&place.path("store"));
        let has = |what: &[u8]| {
            let mut files = all.values();
            files.any(|bytes| bytes.windows(what.len()).any(|it| it == what))
        };
        assert_eq!(has(NAME.as_bytes()), readable, "{coding:?}");
        assert_eq!(has(b"nobody else"), readable, "{coding:?}");
    }
}

#[test]
fn the_same_bytes_are_other_ones_each_time_they_are_encrypted() {
    let place = Place::new();
    place.put("a", &SECRET.repeat(1000));
    // The same again, once in the segment; and once more from another place in it.
    place.put("b", &SECRET.repeat(1000));
    place.put("c", &[&[1; 16 << 10][..], &SECRET.repeat(1000)].concat());
    let first = take(&place, ENCRYPTED, key(), 1, 0);
    let second = take(&place, ENCRYPTED, key(), 2, 0);
    let lengths = [&first, &second].map(|it| it.segments[0].length);
    assert_eq!(
        lengths,
        [(1 + 4) * (16 << 10); 2].map(|most: u64| most.min(lengths[0]))
    );
    let segments: Vec<Vec<u8>> = [1, 2]
        .map(|number| fs::read(place.path(&format!("store/7/{}/segment", id(number, 1)))).unwrap())
        .into();
    let mut pages: Vec<&[u8]> = segments.iter().flat_map(|it| it.chunks(4096)).collect();
    let all = pages.len();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), all, "no page of one is in the other");
    // A third one that is made with the first at hand has nothing of its own.
    let third = take(&place, ENCRYPTED, key(), 3, 1);
    assert_eq!((third.segments[0].length, third.segments.len()), (0, 2));
    assert!(coded(&third).all(|it| it.stored.segment == 1));
}

#[test]
fn a_key_takes_the_place_of_another_and_what_that_encrypted_stays_readable() {
    let place = Place::new();
    place.put("a", &SECRET.repeat(1000));
    let (one, two) = (key_file(&place, "one", 1), key_file(&place, "two", 2));
    let first = take(&place, ENCRYPTED, with(&[&one]), 1, 0);
    let second = take(&place, ENCRYPTED, with(&[&two, &one]), 2, 1);
    // It was written anew.
    let key_of = |manifest: &Manifest| manifest.segments[0].encryption.unwrap().key;
    assert_ne!(key_of(&first), key_of(&second));
    assert_eq!(
        (second.segments.len(), second.segments[0].length),
        (1, first.segments[0].length)
    );
    // Encryption was turned off again: what is there can be referred to.
    let third = take(&place, PLAIN, with(&[&two, &one]), 3, 2);
    assert_eq!(third.segments[0].length, 0);
    assert_eq!(third.segments[1].encryption, second.segments[0].encryption);
    let before = snapshot(&place.path("store"));
    for (files, lost) in [
        (vec![two.as_path()], vec![1]),
        (vec![one.as_path()], vec![2]),
        (vec![], vec![1, 2]),
    ] {
        let (store, found) = Store::open(LinuxDisk, place.folder("store"), with(&files)).unwrap();
        assert_eq!(found.faults.len(), lost.len(), "{found:?}");
        let job = store.existing(&job(7)).unwrap();
        for number in [1, 2] {
            let manifest = job.manifest(id(number, 1));
            assert_eq!(manifest.is_err(), lost.contains(&number), "{number}");
            if let Err(error) = manifest {
                let name = key_of(if number == 1 { &first } else { &second });
                let said = error.to_string();
                let wanted = format!("encrypted with the key {name}, which is not among");
                assert!(
                    said.contains(&wanted) && said.contains("encrypt-keys"),
                    "{said}"
                );
            }
        }
        // The manifest of the third is not encrypted. What it refers to is whole, and does not come back without its key.
        let third = job.manifest(id(3, 1)).unwrap();
        assert_eq!(verify(&job, id(3, 1)).unwrap(), []);
        match (comes_back(&place, &job, &third), lost.contains(&2)) {
            (Ok(()), false) => {}
            (Err(error), true) => {
                let said = error.to_string();
                assert!(
                    said.contains("which is not here") && said.contains("encrypt-keys"),
                    "{said}"
                );
            }
            (other, _) => panic!("{other:?}"),
        }
    }
    // Nothing of what cannot be read was touched.
    assert!(snapshot(&place.path("store")) == before);
}

#[test]
fn two_files_with_one_key_are_refused() {
    let place = Place::new();
    let (one, same) = (key_file(&place, "one", 1), key_file(&place, "same", 1));
    let refused = key().with_files(&[&one, &same]).err().unwrap().to_string();
    assert!(
        refused.contains("another file has the same one"),
        "{refused}"
    );
    let refused = key()
        .with_files(&[&one, &place.path("none")])
        .err()
        .unwrap();
    assert!(refused.to_string().contains("No such file"), "{refused}");
}

#[test]
fn keys_are_of_one_site_job_user_and_file() {
    let place = Place::new();
    let (one, two) = (key_file(&place, "one", 1), key_file(&place, "two", 2));
    let names = [with(&[]), with(&[&one]), with(&[&two])].map(|site| site.encrypts_with());
    let other = SiteKey::derive(b"another key").with_files(&[&one]).unwrap();
    let all = [names[0], names[1], names[2], other.encrypts_with()];
    let distinct: std::collections::BTreeSet<_> = all.into_iter().collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn what_was_stored_before_is_read_and_referred_to() {
    let place = Place::new();
    place.put("stays", &SECRET.repeat(2000));
    place.put("changes", &SECRET.repeat(1000));
    let first = take(&place, PLAIN, key(), 1, 0);
    let head = fs::read(place.path(&format!("store/7/{}/manifest", id(1, 1)))).unwrap();
    assert_eq!(head[8..10], [1, 0], "an older release reads it");
    place.put("changes", &[b"x", &SECRET.repeat(1000)[..]].concat());
    let second = take(&place, COMPRESSED, key(), 2, 1);
    assert_eq!(second.segments.len(), 2);
    assert!(second.segments[0].length < first.segments[0].length / 4);
    assert!(coded(&second).count() > 0 && coded(&second).count() < extents(&second).count());
    // Encrypted is all of it, or it would not be: nothing is referred to that is not.
    let third = take(&place, ENCRYPTED, key(), 3, 2);
    assert_eq!(third.segments.len(), 1);
    assert_eq!(coded(&third).count(), extents(&third).count());
}

#[test]
fn only_what_becomes_shorter_is_compressed_and_what_is_stored_counts() {
    let place = Place::new();
    place.put("text", &SECRET.repeat(10_000));
    place.put("noise", &random(5, 256 << 10));
    place.put("page", &[7; 4096]);
    place.put("zero", &[0; 100_000]);
    let plain = Place::new();
    for (path, (_, file)) in seen(&place.path("program")) {
        plain.put(name(&path), &file.unwrap().0);
    }
    let manifest = take(&place, COMPRESSED, key(), 1, 0);
    let before = take(&plain, PLAIN, key(), 1, 0);
    for file in &manifest.files {
        let packed = file
            .extents
            .iter()
            .filter(|it| matches!(it.kind, Kind::Coded(_)));
        let all = file.extents.len();
        let expected = if file.path == b"text" { all } else { 0 };
        assert_eq!(packed.count(), expected, "{}", file.path.escape_ascii());
    }
    let (store, _) = place.open();
    let kept = store.existing(&job(7)).unwrap().kept().unwrap();
    let forms = kept[0].forms;
    assert_eq!(forms.plain, manifest.counts.bytes - 100_000);
    assert!(forms.compressed && forms.encrypted == 0);
    assert!(forms.kept < forms.plain - 300_000, "{forms:?}");
    // Quotas and disks are asked for what is stored.
    let used = |place: &Place| place.open().0.usage().unwrap()[&Some(me())];
    assert!(used(&place) + 300_000 < used(&plain));
    assert!(manifest.segments[0].length + 300_000 < before.segments[0].length);
}

/// Whatever else happens to be slow: without a disk that has too much to do nothing is compressed.
#[test]
fn where_it_depends_only_what_waits_for_the_disk_is_compressed() {
    let program = FakeDisk::new(7);
    const LONG: usize = 256 << 10;
    for nth in 0..40_u8 {
        let file = program.create(&program.root(), &[nth + 1]).unwrap();
        let bytes: Vec<u8> = (0..LONG).map(|at| (at >> 8) as u8 ^ nth).collect();
        program.write_at(&file, &bytes, 0).unwrap();
    }
    let disk = FakeDisk::new(0);
    let (store, _) = opened(disk.clone(), disk.root()).unwrap();
    let store = store.coded(Coding {
        compress: Compress::Behind,
        encrypt: false,
    });
    let job = store.job(&job(7), 7).unwrap();
    let limits = Limits {
        extent: LONG as u32,
        ..Limits::default()
    };
    let draft = job.ingest(&new(id(1, 1)), &program, &program.root(), &limits, None);
    let manifest = job.prepare(draft.unwrap(), alone()).unwrap().0;
    let packed: Vec<bool> = extents(&manifest)
        .map(|extent| matches!(extent.kind, Kind::Coded(_)))
        .collect();
    // Nothing waits at first, and then as much as may.
    assert!(!packed[0] && packed.contains(&true), "{packed:?}");
    assert_eq!(verify(&job, id(1, 1)).unwrap(), []);
}

/// Bytes that a decompressor would choke on are never given to it: their digest is looked at first.
#[test]
fn what_was_changed_is_told_by_its_digest_before_it_is_decrypted_or_decompressed() {
    for coding in &FORMS[1..] {
        let place = Place::new();
        place.put("text", &SECRET.repeat(1000));
        let manifest = take(&place, *coding, key(), 1, 0);
        let path = place.path(&format!("store/7/{}/segment", id(1, 1)));
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (store, _) = place.open();
        let job = store.existing(&job(7)).unwrap();
        let refused = comes_back(&place, &job, &manifest).unwrap_err().to_string();
        assert!(
            refused.contains("its digest does not hold"),
            "{coding:?}: {refused}"
        );
        let faults = verify(&job, id(1, 1)).unwrap();
        assert_eq!((faults.len(), &faults[0].file[..]), (1, &b"text"[..]));
    }
}

#[test]
fn what_the_key_before_has_signed_is_read_and_nothing_is_signed_with_it() {
    let old = || SiteKey::derive(b"the key before, which is long enough");
    let new = || SiteKey::derive(b"the key after, which is as long as it");
    let both = || new().with_others(vec![old()]).unwrap();
    for coding in FORMS {
        let place = Place::new();
        place.put("stays", &SECRET.repeat(2000));
        let first = take(&place, coding, old(), 1, 0);
        let second = take(&place, coding, both(), 2, 1);
        assert_eq!(second.segments.len(), 1, "none that another key has signed");
        let open = |site| Store::open(LinuxDisk, place.folder("store"), site).unwrap();
        let (store, found) = open(both());
        assert_eq!(found, Default::default());
        let job_store = store.existing(&job(7)).unwrap();
        assert_eq!(verify(&job_store, first.id).unwrap(), []);
        comes_back(&place, &job_store, &first).unwrap();
        // The one before may go once nothing is wanted that it has signed.
        let (store, _) = open(new());
        let job_store = store.existing(&job(7)).unwrap();
        assert_eq!(job_store.manifest(second.id).as_ref(), Ok(&second));
        assert!(job_store.manifest(first.id).is_err());
    }
    let same = old()
        .with_others(vec![new(), old()])
        .err()
        .unwrap()
        .to_string();
    assert!(same.contains("other-keys"), "{same}");
    let ids = [old().ids(false), both().ids(false)];
    assert!(ids[1].knows.contains(&ids[0].makes[0]) && ids[0].makes != ids[1].makes);
}
