//! What was saved is what is loaded, and what is no save is refused before anything has changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_fabric::{Fabric, Failure, ObjectId, Options, Stats, Why, saved};
use gpuos_model::rng::Rng;
use tempfile::TempDir;

use crate::host::{EXTENT, lose_the_file, on_a_small_disk, open, span};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// An object of zeros with its name.
fn object(fabric: &Fabric, name: &str, bytes: u64) -> ObjectId {
    let object = fabric.alloc(bytes).expect("room");
    fabric.register(object, Some(name)).expect("a name");
    object
}

fn bytes(fabric: &Fabric, object: ObjectId) -> Vec<u8> {
    let size = fabric.place(object).expect("an object").1;
    let mut bytes = vec![0; size as usize];
    fabric.read(object, 0, &mut bytes).expect("read");
    bytes
}

fn stats(fabric: &Fabric) -> Stats {
    fabric.stats().expect("no fork")
}

#[track_caller]
fn refused(done: Result<(), Failure>, why: Why, says: &str) {
    let failure = done.expect_err("refused");
    assert!(failure.text.contains(says), "{failure}");
    assert_eq!(failure.why, why, "{failure}");
}

/// What an error says, and what is done to a save.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

/// Objects with a plain copy of what they should have.
struct World {
    fabric: Fabric,
    rng: Rng,
    all: BTreeMap<String, (ObjectId, Vec<u8>)>,
}

impl World {
    fn new(seed: u64, folder: &Path) -> World {
        let mut rng = Rng::new(seed);
        let tiers = [[3, 2, 16], [4, 16, 0], [3, 0, 16]][seed as usize % 3];
        let fabric = open(tiers, folder);
        let mut all = BTreeMap::new();
        for name in ["weights", "../step", "a b%2F"] {
            let size = 1 + rng.below(4 * EXTENT);
            let object = object(&fabric, name, size);
            all.insert(name.to_string(), (object, vec![0; size as usize]));
        }
        World { fabric, rng, all }
    }

    /// Writes and reads here and there, so that extents lie in all tiers.
    fn work(&mut self) {
        for (object, wanted) in self.all.values_mut() {
            for _ in 0..3 {
                let size = wanted.len() as u64;
                let offset = self.rng.below(size);
                let length = (1 + self.rng.below(3 << 20)).min(size - offset);
                let part = &mut wanted[offset as usize..(offset + length) as usize];
                if self.rng.below(3) == 0 {
                    let ticket = self.fabric.acquire(*object, span(offset, 1), false, None);
                    let ticket = ticket.expect("a part");
                    self.fabric.wait(ticket, None).expect("there");
                    self.fabric.release(ticket).expect("a ticket");
                } else {
                    part.fill(self.rng.below(256) as u8);
                    self.fabric.write(*object, offset, part).expect("written");
                }
            }
        }
    }
}

#[test]
fn what_was_saved_is_loaded_whatever_tiers_there_are() {
    let long = std::env::var_os("GPUOS_LONG").is_some();
    for seed in 0..if long { 200 } else { 6 } {
        let (own, kept) = (folder(), folder());
        let mut world = World::new(seed, own.path());
        for round in 0..3 {
            world.work();
            let path = kept.path().join(round.to_string());
            let before = stats(&world.fabric);
            world.fabric.save(&path).expect("saved");
            let after = stats(&world.fabric);
            // Nothing came or went for it.
            assert_eq!(before.used, after.used);
            assert_eq!(before.counts, after.counts);
            assert_eq!(after.saves.times, round + 1);
            assert!(after.saves.near - before.saves.near <= before.used[0]);

            // Another process has other tiers and extents, and makes its objects in another order.
            let other = Fabric::open(&Options {
                hbm: 2 * EXTENT * 4,
                host: 16 * EXTENT,
                extent: 2 * EXTENT,
                ..Options::default()
            });
            let other = other.expect("opens");
            let mut objects = saved(&path).expect("a save");
            objects.reverse();
            let made = objects
                .iter()
                .map(|(name, bytes)| object(&other, name, *bytes));
            let made: Vec<ObjectId> = made.collect();
            // What is there already is overwritten, with zeros too.
            let seen = bytes(&other, made[0]).len() as u64;
            other.write(made[0], seen - 1, &[77]).expect("written");
            other.load(&path).expect("loaded");
            for ((name, _), object) in objects.iter().zip(made) {
                assert!(bytes(&other, object) == world.all[name].1, "{seed}, {name}");
            }
        }
    }
}

#[test]
fn what_was_never_written_takes_no_room() {
    let (own, kept) = (folder(), folder());
    let fabric = open([2, 8, 0], own.path());
    let cache = object(&fabric, "cache", 6 * EXTENT);
    let all = span(0, EXTENT);
    let ticket = fabric.acquire(cache, all, false, None).expect("a part");
    fabric.wait(ticket, None).expect("there");
    fabric
        .write(cache, 4 * EXTENT + 5, b"here")
        .expect("written");
    fabric.release(ticket).expect("a ticket");
    fabric.save(&kept.path().join("1")).expect("saved");
    let saves = stats(&fabric).saves;
    assert_eq!((saves.bytes, saves.near, saves.shared), (EXTENT, EXTENT, 0));
    let about = fs::metadata(kept.path().join("1/cache.memory")).expect("a file");
    assert_eq!(about.len(), 6 * EXTENT);
    assert!(about.blocks() * 512 < 3 * EXTENT, "{about:?}");
    assert_eq!(about.mode() & 0o777, 0o600);

    let other = open([2, 8, 0], own.path());
    let cache = object(&other, "cache", 6 * EXTENT);
    other.load(&kept.path().join("1")).expect("loaded");
    assert_eq!(stats(&other).counts.brought, 1);
    assert!(bytes(&other, cache)[4 * EXTENT as usize + 5..].starts_with(b"here"));
}

#[test]
fn what_is_no_whole_save_of_these_objects_is_refused_and_nothing_changes() {
    let own = folder();
    let fabric = open([4, 4, 0], own.path());
    let cache = object(&fabric, "cache", EXTENT + 3);
    fabric.write(cache, 0, b"kept").expect("written");
    let mapped = own.path().join("mapped");
    fs::write(&mapped, "a file").expect("written");
    let weights = fabric.map(&mapped).expect("a file");
    fabric.register(weights, Some("weights")).expect("a name");
    let good = own.path().join("good");
    fabric.save(&good).expect("saved");
    let names = saved(&good).expect("a save");
    assert_eq!(
        names,
        [
            ("cache".to_string(), EXTENT + 3),
            ("weights".to_string(), 6)
        ]
    );
    let now = bytes(&fabric, cache);
    fabric.write(cache, 0, b"new!").expect("written");
    let changed = bytes(&fabric, cache);

    let list = |path: &Path| path.join("gpuos-memory");
    let data = |path: &Path| path.join("cache.memory");
    let cut = |path: PathBuf, by: i64| {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("a file");
        let length = file.metadata().expect("a file").len();
        file.set_len(length.saturating_add_signed(by)).expect("cut");
    };
    let replace = |path: PathBuf| {
        fs::rename(&path, path.with_extension("other")).expect("renamed");
        symlink(path.with_extension("other"), path).expect("a link");
    };
    let damages: [Damage<'_>; 9] = [
        ("no whole save", &|path| {
            fs::remove_file(list(path)).expect("gone")
        }),
        ("has no end", &|path| cut(list(path), -23)),
        ("is damaged", &|path| cut(list(path), -1)),
        ("is a symbolic link", &|path| replace(list(path))),
        ("cache.memory has 2097154 bytes", &|path| {
            cut(data(path), -1)
        }),
        ("cache.memory has 2097156 bytes", &|path| cut(data(path), 1)),
        ("cache.memory: No such file", &|path| {
            fs::remove_file(data(path)).expect("gone")
        }),
        ("is a symbolic link", &|path| replace(data(path))),
        ("is no regular file", &|path| {
            fs::remove_file(data(path)).expect("gone");
            let made = Command::new("mkfifo").arg(data(path)).status();
            assert!(made.expect("runs").success());
        }),
    ];
    for (nth, (says, damage)) in damages.iter().enumerate() {
        let path = own.path().join(format!("damaged-{nth}"));
        fs::create_dir(&path).expect("made");
        for file in [list(&good), data(&good)] {
            let name = file.file_name().expect("a name");
            fs::copy(&file, path.join(name)).expect("copied");
        }
        damage(&path);
        refused(fabric.load(&path), Why::File, says);
        assert!(bytes(&fabric, cache) == changed, "{says}");
    }
    refused(
        fabric.load(&own.path().join("none")),
        Why::File,
        "No such file",
    );

    // Other objects than were saved.
    let extra = object(&fabric, "extra", 1);
    refused(
        fabric.load(&good),
        Why::File,
        "\"extra\" is registered, and was not saved",
    );
    fabric.register(extra, None).expect("an object");
    fabric.register(weights, None).expect("an object");
    refused(
        fabric.load(&good),
        Why::File,
        "\"weights\" was saved, and none",
    );
    fabric.register(extra, Some("weights")).expect("a name");
    refused(
        fabric.load(&good),
        Why::File,
        "was a mapped file when it was saved",
    );
    fabric.register(extra, None).expect("an object");
    fabric.register(weights, Some("weights")).expect("a name");
    fabric.register(cache, None).expect("an object");
    let short = object(&fabric, "cache", EXTENT);
    refused(
        fabric.load(&good),
        Why::File,
        "had 2097155 bytes when it was saved, and has 2097152",
    );
    fabric.free(short).expect("not held");
    fabric.register(cache, Some("cache")).expect("a name");
    assert!(bytes(&fabric, cache) == changed);
    fabric.load(&good).expect("loaded");
    assert!(bytes(&fabric, cache) == now);
}

#[test]
fn a_save_that_fails_leaves_nothing_and_counts_for_nothing() {
    if !on_a_small_disk("stored::a_save_that_fails_leaves_nothing_and_counts_for_nothing") {
        return;
    }
    let (own, kept) = (folder(), folder());
    let fabric = open([4, 8, 0], own.path());
    let small = object(&fabric, "small", EXTENT);
    fabric.write(small, 0, b"one").expect("written");
    let large = object(&fabric, "large", 4 * EXTENT);
    fabric.write(large, 3 * EXTENT, b"one").expect("written");
    let path = kept.path().join("new");
    refused(
        fabric.save(&path),
        Why::File,
        "large.memory: File too large",
    );
    assert_eq!(fs::read_dir(kept.path()).expect("a folder").count(), 0);
    // In a folder that was there its other files stay.
    fs::create_dir(&path).expect("made");
    fs::write(path.join("state"), "of the program").expect("written");
    refused(fabric.save(&path), Why::File, "File too large");
    assert_eq!(fs::read_dir(&path).expect("a folder").count(), 1);
    assert_eq!(stats(&fabric).saves, gpuos_fabric::Saves::default());

    fabric.register(large, None).expect("an object");
    fabric.save(&path).expect("saved");
    assert_eq!(fs::read_dir(&path).expect("a folder").count(), 3);
    // One save does not overwrite another one.
    fabric.write(small, 0, b"two").expect("written");
    refused(fabric.save(&path), Why::File, "small.memory: File exists");
    fabric.load(&path).expect("loaded");
    assert!(bytes(&fabric, small).starts_with(b"one"));
    refused(fabric.save(&path.join("a/b")), Why::File, "No such file");
}

#[test]
fn bytes_that_are_lost_are_no_save() {
    let (own, kept) = (folder(), folder());
    let fabric = open([1, 0, 4], own.path());
    let object = object(&fabric, "object", 2 * EXTENT);
    fabric.write(object, 0, b"lost").expect("written");
    fabric.write(object, EXTENT, b"there").expect("written");
    lose_the_file(own.path());
    let path = kept.path().join("1");
    refused(fabric.save(&path), Why::Poisoned, "object \"object\": ");
    assert!(!path.exists());
    refused(fabric.save(&path), Why::Poisoned, "extent 0 are lost");
}

#[test]
fn names_that_could_be_no_files_are_refused_when_they_are_given() {
    let own = folder();
    let fabric = open([2, 0, 0], own.path());
    let object = fabric.alloc(1).expect("room");
    refused(
        fabric.register(object, Some("")),
        Why::Wrong,
        "an empty name",
    );
    let long = "n".repeat(241);
    refused(
        fabric.register(object, Some(&long)),
        Why::Wrong,
        "240 are the most",
    );
    assert_eq!(fabric.registered().expect("no fork"), []);
    for name in ["..", "/etc/passwd", "\n", &long[1..]] {
        fabric.register(object, Some(name)).expect("a name");
        let path = own.path().join("save");
        fabric.save(&path).expect("saved");
        assert_eq!(saved(&path).expect("a save"), [(name.to_string(), 1)]);
        fs::remove_dir_all(&path).expect("a folder of files");
    }
}
