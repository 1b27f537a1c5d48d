//! Memory that is parked on NVMe: what comes back, what never does, and who cannot do anything about another's.

mod client;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuos_memory::stow::{FromProgram, MOST_SLOTS, PIECE, SLACK, ToProgram, VERSION};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::support::is_root;
use client::{Client, LIMIT, Site, memory, ring, send};

const MIB: u64 = 1 << 20;

/// Bytes that are of this place and no other.
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let word = |at: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).to_le_bytes();
    (0..bytes / 8).flat_map(word).collect()
}

#[test]
fn what_is_put_comes_back_whole_and_the_file_goes() {
    let site = Site::new(64 * MIB);
    let mut client = Client::connect(&site);
    for round in 0..3 {
        // All slots at once, pieces of several lengths.
        let pieces: Vec<(u64, u64)> = (0..MOST_SLOTS)
            .map(|slot| {
                (
                    u64::from(slot) * 6 * MIB,
                    [PIECE, 2 * MIB, 4096][slot as usize % 3],
                )
            })
            .collect();
        for (slot, (at, bytes)) in (0..).zip(&pieces) {
            client.fill(slot, &pattern(round * 100 + at, *bytes));
            let (at, bytes) = (*at, *bytes);
            client.say(&FromProgram::Put { slot, at, bytes });
        }
        let mut digests = vec![None; pieces.len()];
        for _ in &pieces {
            match client.told() {
                Some(ToProgram::Done { slot, digest }) => digests[slot as usize] = Some(digest),
                other => panic!("{other:?}"),
            }
        }
        for ((at, bytes), digest) in pieces.iter().zip(&digests).rev() {
            let back = client.get(*at, *bytes, digest.unwrap()).unwrap();
            assert!(back == pattern(round * 100 + at, *bytes));
        }
    }
    let files = site.segments();
    assert_eq!(files.len(), 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&files[0]), mode(&site.folder())), (0o600, 0o700));
    client.say(&FromProgram::Drop);
    assert_eq!(client.told(), Some(ToProgram::Dropped));
    assert!(site.segments().is_empty());
    assert_eq!(client.told(), None);
}

#[test]
fn what_was_damaged_or_is_of_another_place_is_an_error_and_reaches_nobody() {
    let site = Site::new(64 * MIB);
    let mut client = Client::connect(&site);
    let [one, other] = [0, 4].map(|at| pattern(at, PIECE));
    let digests = [
        client.put(0, &one).unwrap(),
        client.put(PIECE, &other).unwrap(),
    ];
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&site.segments()[0])
        .unwrap();
    for at in [0, 1, 4095, 2 * MIB, PIECE - 1] {
        for bit in [0, 7] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            file.sync_all().unwrap();
            let why = client.get(0, PIECE, digests[0]).unwrap_err();
            assert!(why.contains("are not what was written there"), "{why}");
            file.write_all_at(&byte, at).unwrap();
            file.sync_all().unwrap();
        }
    }
    assert!(client.get(0, PIECE, digests[0]).unwrap() == one);
    // Each at the place of the other.
    file.write_all_at(&other, 0).unwrap();
    file.write_all_at(&one, PIECE).unwrap();
    file.sync_all().unwrap();
    for (at, digest) in [(0, 0), (PIECE, 1), (0, 1), (PIECE, 0)] {
        assert!(client.get(at, PIECE, digests[digest]).is_err());
    }
    // Cut off.
    file.write_all_at(&one, 0).unwrap();
    file.sync_all().unwrap();
    assert!(client.get(0, PIECE, digests[0]).unwrap() == one);
    file.set_len(PIECE / 2).unwrap();
    let why = client.get(0, PIECE, digests[0]).unwrap_err();
    assert!(
        why.contains("does not give it back") || why.contains("are not what"),
        "{why}"
    );
}

#[test]
fn a_process_finds_nothing_of_another_one() {
    let site = Site::new(16 * MIB);
    let secret = pattern(1, PIECE);
    let mut client = Client::connect(&site);
    let digest = client.put(0, &secret).unwrap();
    // Another process, which has what the first one was told, too.
    site.kernel.started.store(71, Ordering::SeqCst);
    let mut other = Client::connect(&site);
    assert!(other.get(0, PIECE, digest).is_err());
    // Where nothing was written there are zeros: a digest of these is all that finds something.
    let zeros = vec![0; PIECE as usize];
    let of_zeros = other.put(PIECE, &zeros).unwrap();
    assert!(other.get(PIECE, PIECE, of_zeros).unwrap() == zeros);
    // The first one is dead by what the kernel says, so its file is gone, and its connection has ended.
    site.until("what the dead have is removed", || {
        site.segments().len() == 1
    });
    while client.told().is_some() {}
    // Nothing of the secret lies in what is left.
    let left = fs::read(&site.segments()[0]).unwrap();
    let found = left
        .windows(64)
        .step_by(8)
        .any(|part| part == &secret[..64]);
    assert!(!found);
}

#[test]
fn without_a_promise_there_is_no_segment_and_what_is_there_can_still_be_had() {
    let site = Site::new(0);
    let (_, told) = Client::with(&site, ring(1), 1);
    let wanted = "gpuosd has not promised this process room on NVMe";
    assert_eq!(told, ToProgram::Refused { why: wanted.into() });
    assert!(site.segments().is_empty());
    site.promised.0.store(8 * MIB, Ordering::SeqCst);
    let mut client = Client::connect(&site);
    let bytes = pattern(5, PIECE);
    let digest = client.put(0, &bytes).unwrap();
    // gpuosd is not there.
    site.promised.0.store(0, Ordering::SeqCst);
    let mut client = Client::connect(&site);
    assert!(client.get(0, PIECE, digest).unwrap() == bytes);
    let why = client.put(0, &bytes).unwrap_err();
    assert!(
        why.contains("outside of what the process may have"),
        "{why}"
    );
    site.kernel.dead.store(70, Ordering::SeqCst);
    site.until("what the dead have is removed", || {
        site.segments().is_empty()
    });
}

#[test]
fn what_was_promised_once_is_not_written_when_it_is_promised_no_more() {
    let site = Site::new(256 * MIB);
    let mut client = Client::connect(&site);
    let (at, bytes) = (128 * MIB, pattern(6, PIECE));
    let digest = client.put(at, &bytes).unwrap();
    // It has said that it gives nothing, or less, and the connection is still there.
    site.promised.0.store(MIB, Ordering::SeqCst);
    let again = std::cell::RefCell::new(client);
    site.until("it may write there no more", || {
        let put = again.borrow_mut().put(at, &bytes);
        put.is_err_and(|why| why.contains("outside of what the process may have"))
    });
    let mut client = Client::connect(&site);
    assert!(client.get(at, PIECE, digest).unwrap() == bytes);
    client.put(0, &bytes).unwrap();
}

#[test]
fn what_an_earlier_run_has_left_is_removed_and_two_do_not_share_a_folder() {
    let site = Site::without(MIB);
    fs::create_dir(site.folder()).unwrap();
    // An administrator's files are none of gpuos, whatever the folder was before.
    let others = ["x", "1.2", "70.7.70.70", "7.70.boot", ".70.0a"];
    for name in ["7.70.0123abcd", "70.7."].iter().chain(&others) {
        fs::write(site.folder().join(name), "left").unwrap();
    }
    site.start(0).unwrap();
    let left: BTreeSet<PathBuf> = site.segments().into_iter().collect();
    let others = others.map(|name| site.folder().join(name));
    assert_eq!(left, others.into());
    let why = site.start(0).unwrap_err();
    assert!(why.contains("another gpuos_mover parks memory in"), "{why}");
}

#[test]
fn a_folder_of_everybody_is_not_taken() {
    let site = Site::without(MIB);
    fs::create_dir(site.folder()).unwrap();
    fs::set_permissions(site.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let why = site.start(0).unwrap_err();
    assert!(why.contains("everybody may write in"), "{why}");
}

#[test]
fn a_disk_has_its_rate() {
    let site = Site::at_rate(64 * MIB, 20);
    let mut client = Client::connect(&site);
    let begun = Instant::now();
    // The first 16 MiB go at once.
    for piece in 0..6 {
        client.put(piece * PIECE, &pattern(piece, PIECE)).unwrap();
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(350), "{took:?}");
}

/// A small file system in memory, until it is dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path, options: &str) -> Option<Mount> {
        use rustix::mount::{MountFlags, mount};
        fs::create_dir_all(at).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let mounted = is_root() && mount("tmpfs", at, "tmpfs", flags, options.as_c_str()).is_ok();
        mounted.then(|| Mount(at.to_path_buf()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_an_error_that_is_told_and_what_was_written_stays() {
    let site = Site::without(64 * MIB);
    let Some(_mount) = Mount::new(&site.folder(), "size=9M,mode=700") else {
        return;
    };
    site.start(0).unwrap();
    let mut client = Client::connect(&site);
    let digests: Vec<_> = (0..2)
        .map(|piece| client.put(piece * PIECE, &pattern(piece, PIECE)).unwrap())
        .collect();
    let why = client.put(2 * PIECE, &pattern(2, PIECE)).unwrap_err();
    assert!(why.starts_with("NVMe does not take it: "), "{why}");
    for (piece, digest) in (0..).zip(digests) {
        let back = client.get(piece * PIECE, PIECE, digest).unwrap();
        assert!(back == pattern(piece, PIECE));
    }
}

#[test]
fn a_disk_that_can_only_be_read_is_an_error_that_is_told() {
    use rustix::mount::{MountFlags, mount_remount};
    let site = Site::without(8 * MIB);
    let Some(mount) = Mount::new(&site.folder(), "size=64M,mode=700") else {
        return;
    };
    site.start(0).unwrap();
    mount_remount(&mount.0, MountFlags::RDONLY, "").unwrap();
    let (_, told) = Client::with(&site, ring(1), 1);
    let ToProgram::Refused { why } = told else {
        panic!("{told:?}");
    };
    assert!(why.starts_with("NVMe cannot be used: "), "{why}");
}

#[test]
fn only_a_sealed_file_in_memory_is_taken_as_a_ring() {
    let site = Site::new(MIB);
    let kept = SealFlags::SHRINK | SealFlags::GROW;
    let sparse = || {
        let file = memfd_create("ring", MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(file);
        file.set_len(PIECE).unwrap();
        fcntl_add_seals(&file, kept).unwrap();
        file
    };
    let read_only = || {
        use std::os::fd::AsRawFd;
        let file = ring(1);
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
    };
    let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
    let in_folder = site.place.path().join("file");
    fs::write(&in_folder, vec![0; PIECE as usize]).unwrap();
    for (name, ring) in [
        ("not sealed", memory(PIECE, SealFlags::empty())),
        ("may shrink", memory(PIECE, SealFlags::GROW)),
        ("may grow", memory(PIECE, SealFlags::SHRINK)),
        ("cannot be written", memory(PIECE, kept | SealFlags::WRITE)),
        (
            "cannot be written later",
            memory(PIECE, kept | SealFlags::FUTURE_WRITE),
        ),
        ("takes no seals", memory(PIECE, kept | SealFlags::SEAL)),
        ("too short", memory(PIECE - 4096, kept)),
        ("too long", memory(PIECE + 4096, kept)),
        ("without pages", sparse()),
        ("only read", read_only()),
        ("a pipe", pipe.into()),
        (
            "a file",
            File::options()
                .read(true)
                .write(true)
                .open(&in_folder)
                .unwrap(),
        ),
        (
            "a device",
            File::options()
                .read(true)
                .write(true)
                .open("/dev/zero")
                .unwrap(),
        ),
        ("a folder", File::open("/").unwrap()),
    ] {
        let (_, told) = Client::with(&site, ring, 1);
        let ToProgram::Refused { why } = told else {
            panic!("{name}: {told:?}");
        };
        assert!(why.starts_with("the ring is not taken: "), "{name}: {why}");
    }
    for slots in [0, MOST_SLOTS + 1, u32::MAX] {
        let (_, told) = Client::with(&site, ring(1), slots);
        assert!(
            matches!(told, ToProgram::Refused { .. }),
            "{slots}: {told:?}"
        );
    }
    // None or several, or another line than a hello.
    let hello = FromProgram::Hello {
        version: VERSION,
        slots: 1,
    };
    let (one, other) = (ring(1), ring(1));
    let newer = format!("hello {} 1\n", VERSION + 1);
    let long = format!("hello {}\n", "1".repeat(450));
    for (line, files) in [
        (hello.line(), vec![]),
        (hello.line(), vec![&one, &other]),
        (hello.line(), vec![&one; 8]),
        ("drop\n".into(), vec![&one]),
        ("put 0 0 4096\n".into(), vec![&one]),
        (newer, vec![&one]),
        (long, vec![&one]),
        ("\u{1b}[2J\n".into(), vec![&one]),
    ] {
        let stream = UnixStream::connect(site.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        send(&stream, &line, &files);
        let mut client = Client {
            lines: BufReader::new(stream),
            ring: ring(1),
            window: None,
        };
        let told = client.told();
        assert!(
            matches!(told, Some(ToProgram::Refused { .. })),
            "{line:?}: {told:?}"
        );
        assert_eq!(client.told(), None);
    }
    Client::connect(&site).put(0, &pattern(1, PIECE)).unwrap();
}

#[test]
fn who_breaks_the_rules_loses_the_connection_and_nobody_else_does() {
    let site = Site::new(8 * MIB);
    let beyond = 8 * MIB + SLACK;
    for lines in [
        format!("put 0 {beyond} 4096\n"),
        format!("put 0 {} {PIECE}\n", beyond - 4096),
        format!("put 0 {} 4096\n", u64::MAX - 4095),
        "put 0 18446744073709551616 4096\n".into(),
        format!("put {MOST_SLOTS} 0 4096\n"),
        "put 0 0 0\n".into(),
        format!("put 0 0 {}\n", PIECE + 4096),
        "put 0 1 4096\n".into(),
        "put 0 0 4097\n".into(),
        "put 0 0 4096 4096\n".into(),
        "get 0 0 4096 ff\n".into(),
        "hello 1 8\n".into(),
        "../../etc/shadow\n".into(),
        "x".repeat(5000),
        format!("put 0 0 {PIECE}\nput 0 0 {PIECE}\n"),
        format!("put 0 0 {PIECE}\ndrop\n"),
    ] {
        let mut client = Client::connect(&site);
        client.line(&lines);
        while client.told().is_some() {}
    }
    // One that reads no answers, and many that say nothing.
    let mut deaf = Client::connect(&site);
    let silent: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(site.socket()).unwrap())
        .collect();
    for _ in 0..20_000 {
        deaf.line("put 0 0 4096\n");
    }
    drop(silent);
    site.until("a place", || {
        matches!(Client::with(&site, ring(1), 1).1, ToProgram::Ready { .. })
    });
    let mut client = Client::connect(&site);
    let bytes = pattern(9, PIECE);
    let digest = client.put(0, &bytes).unwrap();
    assert!(client.get(0, PIECE, digest).unwrap() == bytes);
}

#[test]
fn bytes_that_change_while_they_are_written_are_one_of_what_they_were() {
    let site = Site::new(8 * MIB);
    let mut client = Client::connect(&site);
    let window = client.window.take().unwrap();
    let stop = Arc::new(AtomicU64::new(0));
    let stops = stop.clone();
    // A process that writes its ring all the time.
    let writer = std::thread::spawn(move || {
        let mut byte = 0_u8;
        while stops.load(Ordering::SeqCst) == 0 {
            byte = byte.wrapping_add(1);
            window.put(MIB as usize, &[byte; 4096]).unwrap();
        }
    });
    for _ in 0..20 {
        client.say(&FromProgram::Put {
            slot: 0,
            at: 0,
            bytes: PIECE,
        });
        let digest = client.done().unwrap();
        // Whatever was written, its digest is of that.
        client.say(&FromProgram::Get {
            slot: 1,
            at: 0,
            bytes: PIECE,
            digest,
        });
        client.done().unwrap();
    }
    stop.store(1, Ordering::SeqCst);
    writer.join().unwrap();
}

/// Its pages would be gpuos_mover's the next time that something is put there, and last as long as the file.
#[test]
fn nobody_takes_pages_out_of_a_ring_that_was_taken() {
    let site = Site::new(8 * MIB);
    let client = Client::connect(&site);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&client.ring, hole, 0, PIECE), Err(Errno::PERM));
    assert!(client.ring.set_len(0).is_err());
    assert!(fcntl_add_seals(&client.ring, SealFlags::WRITE).is_err());
    // And it is no ring a second time.
    let again = client.ring.try_clone().unwrap();
    let (_, told) = Client::with(&site, again, MOST_SLOTS);
    let ToProgram::Refused { why } = told else {
        panic!("{told:?}");
    };
    assert!(why.starts_with("the ring is not taken: "), "{why}");
}

/// To close a file may take for ever, so that it is not even taken from a process that has nothing here.
#[test]
fn nothing_is_taken_from_who_has_no_promise_and_what_passes_is_no_refusal() {
    let site = Site::new(0);
    let told = |files: &[&File]| {
        let stream = UnixStream::connect(site.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        send(&stream, "no hello\n", files);
        let mut client = Client {
            lines: BufReader::new(stream),
            ring: ring(1),
            window: None,
        };
        client.told()
    };
    let refused = |why: &str| Some(ToProgram::Refused { why: why.into() });
    let file = ring(1);
    let unpromised = refused("gpuosd has not promised this process room on NVMe");
    assert_eq!(told(&[&file]), unpromised);
    site.promised.0.store(MIB, Ordering::SeqCst);
    let unseen = "gpuos_mover cannot see this process: it runs in another PID namespace";
    site.kernel.of_another.store(true, Ordering::SeqCst);
    assert_eq!(told(&[&file]), refused(unseen));
    site.kernel.of_another.store(false, Ordering::SeqCst);
    site.kernel.hidden.store(true, Ordering::SeqCst);
    assert_eq!(told(&[&file]), Some(ToProgram::Busy));
    site.kernel.hidden.store(false, Ordering::SeqCst);
    let hello = refused("the first line has to be a hello, and come with a ring");
    assert_eq!(told(&[&file]), hello);
}

#[test]
fn a_hello_that_comes_byte_by_byte_ends_in_time() {
    use std::io::Write;
    let site = Site::new(MIB);
    let mut stream = UnixStream::connect(site.socket()).unwrap();
    let begun = Instant::now();
    send(&stream, "h", &[&ring(1)]);
    while begun.elapsed() < LIMIT && stream.write_all(b"h").is_ok() {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
}

/// However often it connects: its pieces of before are waited for.
#[test]
fn a_process_that_connects_again_has_no_more_pieces_under_way() {
    // The pieces of which it is not told at once take seconds.
    let site = Site::at_rate(64 * MIB, 4);
    let mut client = Client::connect(&site);
    for slot in 0..MOST_SLOTS {
        client.say(&FromProgram::Put {
            slot,
            at: u64::from(slot) * PIECE,
            bytes: PIECE,
        });
    }
    // The first answer says that the line of all of them was read.
    client.done().unwrap();
    let (_, told) = Client::with(&site, ring(1), 1);
    assert_eq!(told, ToProgram::Busy);
    // The older one has ended all the same, and when its pieces are done there is a place again.
    while client.told().is_some() {}
    Client::connect(&site).put(0, &pattern(1, PIECE)).unwrap();
}
