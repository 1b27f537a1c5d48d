//! Whatever is flipped, cut, moved or exchanged in the store: it is not loaded as something else, and it is told.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_store::coding::Coding;
use gpuos_store::disk::Disk;
use gpuos_store::fake::FakeDisk;
use gpuos_store::restore::{Target, restore};
use gpuos_store::shard::ShardWriter;
use gpuos_store::verify::verify;

use crate::random::Random;
use crate::support::*;

type Files = BTreeMap<String, Vec<u8>>;
pub(crate) type Snapshot = BTreeMap<PathBuf, Vec<u8>>;

const JOBS: [(u32, u32); 3] = [(7, 1000), (8, 1000), (9, 2000)];

/// Some is as in the checkpoint before, some is new, and the last page is not full.
fn files(job: u32, number: u32) -> Files {
    let seed = u64::from(job) * 100;
    let own = seed + u64::from(number);
    Files::from([
        ("same".into(), noise(seed, 2 * EXTENT + 5)),
        ("changing".into(), noise(own, EXTENT + 300)),
    ])
}

/// Two checkpoints of each of three jobs of two users, with a shard and a neighbour's manifest.
fn build(place: &Place) {
    let (store, _) = place.open();
    for (number, uid) in JOBS {
        let job = store.job(&job(number), uid).unwrap();
        let mut previous = None;
        for checkpoint in 1..=2 {
            let id = id(checkpoint, 5);
            let source = FakeDisk::new(uid);
            for (name, bytes) in files(number, checkpoint) {
                let file = source.create(&source.root(), name.as_bytes()).unwrap();
                source.write_at(&file, &bytes, 0).unwrap();
            }
            let mut new = new(id);
            new.nodes = 2;
            let set = NodeSet {
                members: vec![NodeIndex(0), NodeIndex(1)],
                parity: 1,
                chunk: 8 * 4096,
            };
            new.node = NodeIndex(1);
            let draft = job
                .ingest(&new, &source, &source.root(), &limits(), None)
                .unwrap();
            let copy = job.prepare(draft, set.clone()).unwrap().1;
            job.remove(id).unwrap();
            new.node = NodeIndex(0);
            let previous_one = previous.as_ref();
            let root = source.root();
            let draft = job
                .ingest(&new, &source, &root, &limits(), previous_one)
                .unwrap();
            let mut shard = ShardWriter::create(&job, id, 0, 1, 8 * 4096).unwrap();
            shard
                .piece(&noise(u64::from(number * 7 + checkpoint), 8 * 4096))
                .unwrap();
            shard.finish().unwrap();
            previous = Some(job.prepare(draft, set).unwrap().0);
            job.put_copy(id, &copy).unwrap();
            job.commit(id).unwrap();
        }
    }
}

pub(crate) fn snapshot(folder: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                all.insert(path, bytes);
            }
        }
    }
    all
}

/// What is loaded, by job and checkpoint, and what was told.
fn look(place: &Place) -> (Vec<(u32, CheckpointId)>, Vec<String>) {
    let (store, found) = place.open();
    assert_eq!(found.removed, Vec::<String>::new());
    let mut told = found.faults;
    let mut loaded = Vec::new();
    for (number, uid) in JOBS {
        let store_job = match store.existing(&job(number)) {
            Ok(store_job) => store_job,
            Err(error) => {
                told.push(error.to_string());
                continue;
            }
        };
        assert_eq!(store_job.uid(), uid);
        match store_job.current() {
            Ok(current) => assert_eq!(current, Some(id(2, 5))),
            Err(error) => told.push(error.to_string()),
        }
        for checkpoint in [id(1, 5), id(2, 5)] {
            let faults = verify(&store_job, checkpoint);
            let manifest = store_job.manifest(checkpoint);
            match &faults {
                Ok(faults) => told.extend(faults.iter().map(ToString::to_string)),
                Err(error) => told.push(error.to_string()),
            }
            let Ok(manifest) = manifest else {
                continue;
            };
            let target_disk = FakeDisk::new(0);
            let root = target_disk.root();
            let target = Target {
                disk: &target_disk,
                folder: &root,
                name: b"it",
                owner: None,
            };
            if let Err(error) = restore(&store_job, &manifest, &target) {
                // Nothing is visible under the name, and nothing was left under another.
                assert_eq!(target_disk.list(&root, 10).unwrap(), Vec::<Vec<u8>>::new());
                told.push(error.to_string());
                continue;
            }
            if manifest.node == NodeIndex(0) {
                let expected = files(number, checkpoint.number);
                let folder = target_disk.open_folder(&root, b"it").unwrap();
                let names = target_disk.list(&folder, 10).unwrap();
                assert_eq!(names.len(), expected.len());
                for (name, bytes) in expected {
                    let file = target_disk.open(&folder, name.as_bytes()).unwrap();
                    let mut read = vec![0; bytes.len() + 1];
                    let length = target_disk.read_at(&file, &mut read, 0).unwrap();
                    assert!(read[..length] == bytes, "{name} of {checkpoint}");
                }
            }
            loaded.push((number, checkpoint));
        }
    }
    (loaded, told)
}

pub(crate) fn damaged(all: &Snapshot, random: &mut Random) -> Snapshot {
    let paths: Vec<&PathBuf> = all.keys().collect();
    let path = paths[random.index(paths.len())];
    let mut bytes = all[path].clone();
    let mut changed = Snapshot::new();
    match random.below(5) {
        0 => {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        1 => bytes.truncate(random.index(bytes.len())),
        2 => bytes.extend(noise(random.below(1000), 1 + random.index(5000))),
        3 => {
            let size = if bytes.len() > 8192 {
                4096
            } else {
                bytes.len() / 2
            };
            let blocks = bytes.len() / size;
            let (a, b) = (random.index(blocks) * size, random.index(blocks) * size);
            for at in 0..size {
                bytes.swap(a + at, b + at);
            }
        }
        // Another file in its place, of the same name as often as not, and that one in the other's.
        _ => {
            let same_name: Vec<&PathBuf> = paths
                .iter()
                .copied()
                .filter(|other| other.file_name() == path.file_name())
                .collect();
            let from = if random.below(2) == 0 {
                &same_name
            } else {
                &paths
            };
            let other = from[random.index(from.len())];
            if random.below(2) == 0 {
                changed.insert(other.clone(), bytes);
            }
            bytes = all[other].clone();
        }
    }
    changed.insert(path.clone(), bytes);
    changed.retain(|path, bytes| all[path] != *bytes);
    changed
}

#[test]
fn nothing_damaged_is_loaded_and_all_of_it_is_told() {
    in_forms(&FORMS, |form| damage_a_store(form, 300));
}

fn damage_a_store(form: Coding, few: usize) {
    let place = Place::new();
    build(&place);
    let (loaded, told) = look(&place);
    assert_eq!((loaded.len(), told), (6, Vec::new()));
    let all = snapshot(&place.path("store"));
    let (rounds, seed) = flips(if form == PLAIN { few } else { few / 3 });
    let mut random = Random(seed);
    let mut silent = 0;
    for round in 0..rounds {
        let changed = damaged(&all, &mut random);
        if changed.is_empty() {
            silent += 1;
            continue;
        }
        for (path, bytes) in &changed {
            fs::write(path, bytes).unwrap();
        }
        let (_, told) = look(&place);
        assert!(
            !told.is_empty(),
            "{form:?}, round {round} of seed {seed}: {:?}",
            changed.keys()
        );
        for path in changed.keys() {
            fs::write(path, &all[path]).unwrap();
        }
    }
    println!("{rounds} damages of a store ({form:?}), seed {seed}: {silent} changed nothing");
    // Most rounds did change something.
    assert!(silent < rounds / 4, "{silent} of {rounds}");
    let (loaded, told) = look(&place);
    assert_eq!((loaded.len(), told), (6, Vec::new()));
}

#[test]
fn a_damaged_note_of_what_is_committed_is_told_and_the_next_commit_replaces_it() {
    let place = Place::new();
    build(&place);
    let note = place.path("store/7/CURRENT");
    for bytes in [vec![], vec![0; 44], noise(1, 1 << 20)] {
        fs::write(&note, bytes).unwrap();
        let (store, found) = place.open();
        assert!(
            found.faults[0].contains("which checkpoint of job 7 is current"),
            "{found:?}"
        );
        let store_job = store.existing(&job(7)).unwrap();
        assert!(store_job.current().is_err());
        // Nothing is removed while it is not known which one is current.
        assert!(store_job.remove(id(1, 5)).is_err());
        store_job.commit(id(2, 5)).unwrap();
        assert_eq!(store_job.current().unwrap(), Some(id(2, 5)));
    }
    let (store, found) = place.open();
    assert_eq!(found, Default::default());
    let older = store.existing(&job(7)).unwrap().commit(id(1, 5));
    assert!(
        older
            .unwrap_err()
            .to_string()
            .contains("2-0000000000000005 is current")
    );
}

/// What is in the place of a manifest is not followed, and what others need is kept.
#[test]
fn a_link_or_folder_in_place_of_a_manifest_is_told_and_nothing_goes() {
    let place = Place::new();
    build(&place);
    let folder = place.path("store/7/2-0000000000000005");
    let good = fs::read(folder.join("manifest")).unwrap();
    fs::write(place.path("good"), good).unwrap();
    let link = |path: &Path| std::os::unix::fs::symlink(place.path("good"), path).unwrap();
    let dir = |path: &Path| fs::create_dir(path).unwrap();
    fs::remove_file(folder.join("manifest")).unwrap();
    for round in 0..2 {
        if round == 0 {
            link(&folder.join("manifest"));
        } else {
            fs::remove_file(folder.join("manifest")).unwrap();
            dir(&folder.join("manifest"));
        }
        let (store, found) = place.open();
        assert_eq!(found.removed, Vec::<String>::new());
        assert!(
            found.faults[0].contains("read the file manifest of"),
            "{found:?}"
        );
        let store_job = store.existing(&job(7)).unwrap();
        assert!(store_job.manifest(id(2, 5)).is_err());
        store_job.remove(id(1, 5)).unwrap();
        // It may still be needed.
        assert!(place.path("store/7/1-0000000000000005/segment").exists());
    }
}
