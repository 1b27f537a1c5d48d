//! In host memory alone: what several threads read is what they wrote, over all tiers and under pressure.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpuos_fabric::{Advice, Event, Fabric, Failure, ObjectId, Options, Span, Tier, Why};
use gpuos_model::rng::Rng;

const MIB: u64 = 1 << 20;
pub const EXTENT: u64 = 2 * MIB;

/// Extents of near memory, host memory and a file in a folder.
pub fn open(extents: [u64; 3], folder: &Path) -> Fabric {
    let [hbm, host, file] = extents.map(|extents| extents * EXTENT);
    Fabric::open(&Options {
        hbm,
        host,
        file,
        folder: Some(folder.to_path_buf()),
        ..Options::default()
    })
    .expect("opens")
}

pub fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

/// A line of 64 bytes in each extent of an object is this thread's: it writes and reads it by calls and in place, while extents of others move.
fn works(fabric: &Fabric, object: ObjectId, extents: u64, thread: u64, rounds: u64) {
    let mut rng = Rng::new(thread);
    let mut wanted = vec![[0_u8; 64]; extents as usize];
    let (start, _) = fabric.place(object).expect("an object");
    for round in 0..rounds {
        let index = rng.below(extents);
        let offset = index * EXTENT + thread * 64;
        let part = span(offset, 64);
        let line = &mut wanted[index as usize];
        let value = [(round * 7 + thread) as u8; 64];
        match rng.below(6) {
            0 => {
                fabric.write(object, offset, &value).expect("written");
                *line = value;
            }
            1 => fabric.prefetch(object, part).expect("a part"),
            2 => {
                let all = [
                    Advice::Normal,
                    Advice::Hot,
                    Advice::Cold,
                    Advice::ReadMostly,
                ];
                let advice = all[rng.below(4) as usize];
                fabric.advise(object, part, advice).expect("a part");
            }
            3 => {
                let ticket = fabric.acquire(object, part, true, None).expect("a part");
                fabric.wait(ticket, None).expect("there");
                let at = (start + offset) as *mut [u8; 64];
                // SAFETY: acquired, so it is mapped and stays; these 64 bytes are this thread's.
                unsafe {
                    assert_eq!(at.read(), *line, "thread {thread}, round {round}");
                    at.write(value);
                }
                *line = value;
                fabric.release(ticket).expect("a ticket");
            }
            _ => {
                let mut seen = [9; 64];
                fabric.read(object, offset, &mut seen).expect("read");
                assert_eq!(seen, *line, "thread {thread}, round {round}");
            }
        }
    }
}

#[test]
fn threads_read_what_they_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = std::env::var_os("GPUOS_LONG").is_some();
    let rounds = if long { 20_000 } else { 250 };
    for extents in [[3, 2, 12], [4, 12, 0], [3, 0, 12]] {
        let fabric = open(extents, folder.path());
        let objects = [5, 6].map(|extents| {
            let object = fabric.alloc(extents * EXTENT).expect("room");
            (object, extents)
        });
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (object, extents) = objects[thread as usize % 2];
                let fabric = &fabric;
                scope.spawn(move || works(fabric, object, extents, thread, rounds));
            }
            // Pressure: the limit of near memory goes up and down.
            let fabric = &fabric;
            scope.spawn(move || {
                for round in 0..rounds / 10 {
                    let hbm = (2 + round % 3) * EXTENT;
                    let [_, host, file] = extents.map(|extents| extents * EXTENT);
                    fabric.limit([hbm, host, file]).expect("a file");
                    std::thread::yield_now();
                }
                let all = extents.map(|extents| extents * EXTENT);
                fabric.limit(all).expect("a file");
            });
        });
        let stats = fabric.stats().expect("no fork");
        assert!(
            stats.counts.brought > 20 && stats.counts.copied > 5,
            "{stats:?}"
        );
        assert_eq!((stats.tickets, stats.counts.poisoned), (0, 0));
    }
}

#[test]
fn nobody_reads_what_another_object_had() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = open([2, 2, 3], folder.path());
    let pattern = vec![0xA5; EXTENT as usize];
    for _ in 0..3 {
        // Through all tiers.
        let object = fabric.alloc(5 * EXTENT).expect("room");
        let mut seen = vec![1; EXTENT as usize];
        for index in 0..5 {
            fabric
                .read(object, index * EXTENT, &mut seen)
                .expect("read");
            assert!(seen.iter().all(|byte| *byte == 0));
            // A byte is written, so the extent has to come and go with all its others.
            fabric
                .write(object, index * EXTENT + 77, &[1])
                .expect("written");
        }
        for index in 0..5 {
            fabric
                .read(object, index * EXTENT, &mut seen)
                .expect("read");
            assert_eq!(seen[77], 1);
            assert_eq!(seen.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 1);
            fabric
                .write(object, index * EXTENT, &pattern)
                .expect("written");
        }
        fabric.free(object).expect("not held");
    }
    assert_eq!(fabric.stats().expect("no fork").used, [0; 3]);
}

#[test]
fn a_mapped_file_is_read_and_shared_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights");
    let bytes: Vec<u8> = (0..5 * MIB).map(|at| (at / 4096) as u8).collect();
    std::fs::write(&path, &bytes).expect("written");
    let fabric = open([2, 0, 0], folder.path());
    let object = fabric.map(&path).expect("a file");
    assert_eq!(fabric.place(object).expect("an object").1, 5 * MIB);
    for offset in [4 * MIB, 0, 2 * MIB] {
        let part = span(offset, MIB);
        let ticket = fabric.acquire(object, part, false, None).expect("a part");
        fabric.wait(ticket, None).expect("there");
        let at = fabric.place(object).expect("an object").0 + offset;
        // SAFETY: acquired.
        let here = unsafe { std::slice::from_raw_parts(at as *const u8, MIB as usize) };
        assert!(here == &bytes[offset as usize..][..MIB as usize]);
        fabric.release(ticket).expect("a ticket");
    }
    let refused = |done: Result<ObjectId, Failure>| done.expect_err("refused").text;
    assert!(refused(fabric.map(folder.path())).contains("no regular file"));
    std::fs::write(&path, "").expect("written");
    assert!(refused(fabric.map(&path)).contains("is empty"));
}

#[test]
fn a_ticket_that_is_released_while_it_waits_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = open([2, 4, 0], folder.path());
    let object = fabric.alloc(4 * EXTENT).expect("room");
    let first = fabric.acquire(object, span(0, 2 * EXTENT), true, None);
    let first = first.expect("a part");
    fabric.wait(first, None).expect("there");
    let second = fabric.acquire(object, span(2 * EXTENT, EXTENT), true, None);
    let second = second.expect("a part");
    let failure = fabric.wait(second, Some(Duration::from_millis(1)));
    assert_eq!(failure.expect_err("not there").why, Why::Timeout);
    fabric.release(second).expect("a ticket");
    fabric.release(first).expect("a ticket");
    fabric.free(object).expect("not held");
    let stats = fabric.stats().expect("no fork");
    assert_eq!((stats.used, stats.tickets, stats.objects), ([0; 3], 0, 0));
}

#[test]
fn the_file_has_no_name_and_is_the_users_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = open([1, 0, 8], folder.path());
    let object = fabric.alloc(4 * EXTENT).expect("room");
    for index in 0..4 {
        fabric
            .write(object, index * EXTENT, b"secret")
            .expect("written");
    }
    assert!(fabric.stats().expect("no fork").counts.filed > 0);
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        0
    );
}

/// Runs a test in a process of its own where files have 4 MiB at most, which is a disk of that size; `true`: this is that process.
pub fn on_a_small_disk(test: &str) -> bool {
    const INSIDE: &str = "GPUOS_FABRIC_FULL";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let script = r#"trap '' XFSZ; ulimit -f 8192; exec "$0" --exact "$1" --nocapture"#;
    let out = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().expect("own path"))
        .arg(test)
        .env(INSIDE, "1")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
    false
}

/// The file of the lowest tier, which is in this folder, loses all that it has.
pub fn lose_the_file(folder: &Path) {
    let own = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let is_its =
        |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.starts_with(folder));
    let file = own.flatten().map(|entry| entry.path()).find(is_its);
    let file = std::fs::File::options()
        .write(true)
        .open(file.expect("the file"));
    file.expect("opens").set_len(0).expect("cut");
}

#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    if !on_a_small_disk("host::a_full_disk_is_told_and_loses_nothing") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = open([2, 0, 8], folder.path());
    let object = fabric.alloc(8 * EXTENT).expect("room");
    let write = |index: u64| fabric.write(object, index * EXTENT, &[index as u8 + 1; 100]);
    let written = (0..8).take_while(|index| write(*index).is_ok()).count() as u64;
    assert!((2..8).contains(&written), "{written}");
    let failure = write(written).expect_err("no room");
    assert_eq!(failure.why, Why::Full);
    assert!(failure.text.contains("File too large"), "{failure}");
    let (event, bytes) = fabric.event().expect("no fork").expect("an event");
    assert!(matches!(event, Event::Less(Tier::File, _)), "{event:?}");
    assert_eq!(bytes, (written - 2) * EXTENT);
    for index in 0..written {
        let mut seen = [0; 100];
        fabric
            .read(object, index * EXTENT, &mut seen)
            .expect("read");
        assert_eq!(seen, [index as u8 + 1; 100]);
    }
}

#[test]
fn what_cannot_be_read_back_is_poisoned_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = open([1, 0, 4], folder.path());
    let object = fabric.alloc(2 * EXTENT).expect("room");
    fabric.write(object, 0, b"lost").expect("written");
    let other = span(EXTENT, 4);
    let ticket = fabric.acquire(object, other, false, None).expect("a part");
    fabric.wait(ticket, None).expect("there");
    fabric.release(ticket).expect("a ticket");
    // The first is in the file now.
    lose_the_file(folder.path());
    let part = span(0, 4);
    let ticket = fabric.acquire(object, part, true, None).expect("a part");
    let failure = fabric.wait(ticket, None).expect_err("lost");
    assert_eq!(failure.why, Why::Poisoned);
    assert!(failure.text.contains("extent 0 are lost"), "{failure}");
    for _ in 0..2 {
        let failure = fabric.acquire(object, part, false, None).expect_err("lost");
        assert_eq!(failure.why, Why::Poisoned);
        let failure = fabric.read(object, 0, &mut [0; 4]).expect_err("lost");
        assert_eq!(failure.why, Why::Poisoned);
    }
    fabric.write(object, EXTENT, b"kept").expect("written");
    let mut seen = [0; 4];
    fabric.read(object, EXTENT, &mut seen).expect("read");
    assert_eq!(&seen, b"kept");
    fabric.free(object).expect("not held");
    let object = fabric.alloc(2 * EXTENT).expect("room");
    fabric.read(object, 0, &mut seen).expect("read");
    assert_eq!(seen, [0; 4]);
}
