//! A program's folder and manifests by somebody who means harm.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::manifest::Manifest;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::error::Kind;
use gpuos_store::ingest::Limits;
use gpuos_store::restore::{Target, restore};
use rustix::fs::{CWD, FileType, Mode, mkfifoat, mknodat};

use crate::support::*;

/// Ends other threads also when this one panics; they would run for ever, and the test with them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why the program's folder is refused; nothing of the checkpoint is left then.
fn refused_with(place: &Place, limits: &Limits) -> String {
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let draft = store_job.ingest(&new(id(1, 1)), &LinuxDisk, &source, limits, None);
    let error = draft.unwrap_err();
    assert_eq!(error.kind, Kind::Refused, "{error}");
    assert_eq!(store_job.list().unwrap(), []);
    error.to_string()
}

fn refused(place: &Place) -> String {
    refused_with(place, &limits())
}

#[test]
fn links_pipes_sockets_and_devices_are_refused_by_name() {
    type Make = fn(&Path);
    let make: &[(&str, Make)] = &[
        ("a symbolic link", |path| {
            symlink("/etc/shadow", path).unwrap()
        }),
        ("a symbolic link", |path| symlink("/etc", path).unwrap()),
        ("a symbolic link", |path| symlink("a", path).unwrap()),
        ("a symbolic link", |path| symlink("/none", path).unwrap()),
        ("a named pipe", |path| {
            mkfifoat(CWD, path, Mode::RWXU).unwrap()
        }),
        ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("a device", |path| {
            let zero = rustix::fs::makedev(1, 5);
            mknodat(CWD, path, FileType::CharacterDevice, Mode::RWXU, zero).unwrap();
        }),
    ];
    for (what, make) in make {
        if *what == "a device" && me() != 0 {
            eprintln!("not root: a device file cannot be made");
            continue;
        }
        for at in ["bad", "d/bad", "d/e/bad\n"] {
            let place = Place::new();
            place.put("a", b"1");
            place.put("d/e/f", b"2");
            make(&place.path("program").join(at));
            let said = refused(&place);
            assert!(said.contains(&format!("it is {what}")), "{said}");
            let shown = at.replace('\n', "\\n");
            assert!(said.contains(&format!("\"{shown}\"")), "{said}");
            assert!(said.contains("only folders and regular files"), "{said}");
        }
    }
}

#[test]
fn the_folder_itself_is_no_link_and_of_the_user() {
    let place = Place::new();
    symlink(place.path("program"), place.path("link")).unwrap();
    assert!(LinuxDisk::folder(&place.path("link")).is_err());
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me() + 1).unwrap();
    let source = place.folder("program");
    let draft = store_job.ingest(&new(id(1, 1)), &LinuxDisk, &source, &limits(), None);
    let said = draft.unwrap_err().to_string();
    assert!(said.contains("a folder is owned by user"), "{said}");
}

/// Among them hard links to files that the user could not read by himself.
#[test]
fn files_of_others_are_refused() {
    if me() != 0 {
        eprintln!("not root: files of others cannot be made");
        return;
    }
    for at in ["theirs", "d/theirs"] {
        let place = Place::new();
        place.put("d/a", b"1");
        fs::write(place.path("secret"), b"secret").unwrap();
        chown(place.path("secret"), Some(1234), None).unwrap();
        fs::hard_link(place.path("secret"), place.path("program").join(at)).unwrap();
        let said = refused(&place);
        assert!(
            said.contains("a regular file is owned by user 1234"),
            "{said}"
        );
        assert!(said.contains(at), "{said}");
    }
    let place = Place::new();
    place.put("d/a", b"1");
    chown(place.path("program/d"), Some(1234), None).unwrap();
    assert!(refused(&place).contains("a folder is owned by user 1234"));
}

/// Something that is mounted, until it is dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn tmpfs(on: &'a Path) -> Option<Mounted<'a>> {
        let words = ["-t", "tmpfs", "-o", "size=1m,mode=700", "none"];
        let done = Command::new("mount").args(words).arg(on).status();
        done.is_ok_and(|status| status.success())
            .then_some(Mounted(on))
    }

    /// A file system of a user's program that answers nothing, also not who asks what the folder is. The program is this one.
    fn mute(on: &'a Path) -> Option<(Mounted<'a>, fs::File)> {
        let program = fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .ok()?;
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let done = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", options, "none"])
            .arg(on)
            .stdin(program.try_clone().ok()?)
            .status();
        let done = done.is_ok_and(|status| status.success());
        done.then(|| (Mounted(on), program))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn what_is_mounted_is_refused_and_not_asked() {
    for at in ["m", "d/m"] {
        let place = Place::new();
        place.put("a", b"1");
        fs::create_dir_all(place.path("program").join(at)).unwrap();
        let on = place.path("program").join(at);
        let Some(mounted) = Mounted::tmpfs(&on) else {
            eprintln!("nothing can be mounted here");
            return;
        };
        fs::write(on.join("f"), b"1").unwrap();
        let said = refused(&place);
        assert!(said.contains("something is mounted there"), "{said}");
        assert!(said.contains(&format!("\"{at}\"")), "{said}");
        drop(mounted);
        // Whoever asked it would wait for ever.
        let Some((mounted, program)) = Mounted::mute(&on) else {
            eprintln!("there is no FUSE here");
            continue;
        };
        let (told, hears) = channel();
        thread::scope(|scope| {
            let place = &place;
            scope.spawn(move || told.send(refused(place)));
            let said = hears.recv_timeout(Duration::from_secs(60));
            // With its program gone the file system answers all who wait with an error, so that the test ends in any case.
            drop((mounted, program));
            let said = said.expect("the file system was asked");
            assert!(said.contains("something is mounted there"), "{said}");
        });
    }
}

/// What is new may be limited, and what the checkpoint before has already takes nothing.
#[test]
fn a_checkpoint_adds_no_more_than_there_is_room_for() {
    let place = Place::new();
    place.put("a", &noise(1, 10 * EXTENT));
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let first = write(&store_job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    let used = store.usage().unwrap()[&Some(me())];
    assert!(used >= 10 * EXTENT as u64);
    let mut number = 1;
    let mut again = |most: u64| {
        let limits = Limits {
            room: store.room(me(), most, (3, 4)).unwrap(),
            ..limits()
        };
        number += 1;
        let taken = store_job.ingest(
            &new(id(number, 1)),
            &LinuxDisk,
            &source,
            &limits,
            Some(&first),
        );
        taken.map(|_| store_job.remove(id(number, 1)).unwrap())
    };
    assert_eq!(again(1), Ok(()), "nothing is new");
    place.put("b", &noise(2, 3 * EXTENT));
    let needed = 3 * EXTENT as u64;
    // A quarter is parity.
    assert_eq!(again(used + needed * 4 / 3 + 4), Ok(()));
    let error = again(used + needed * 4 / 3 - 4096).unwrap_err();
    assert_eq!(error.kind, Kind::Full);
    let said = error.to_string();
    assert!(
        said.contains("store \"b\"") && said.contains("user-gib"),
        "{said}"
    );
    assert_eq!(store_job.list().unwrap().len(), 1);
    assert_eq!(again(0), Ok(()), "there is no quota");
}

#[test]
fn limits_hold() {
    let place = Place::new();
    for number in 0..5 {
        place.put(format!("d/{number}"), &[1; 100]);
    }
    let all = limits();
    for most in 0..6 {
        let said = refused_with(&place, &Limits { files: most, ..all });
        assert!(
            said.contains(&format!("more than {most} files and folders")),
            "{said}"
        );
    }
    let said = refused_with(&place, &Limits { bytes: 499, ..all });
    assert!(said.contains("more than 499 bytes"), "{said}");
    let said = refused_with(&place, &Limits { depth: 0, ..all });
    assert!(said.contains("more than 0 folders deep"), "{said}");
    for extent in [0, 1, 4097, 128 << 20, u32::MAX] {
        let said = refused_with(&place, &Limits { extent, ..all });
        assert!(said.contains("multiple of 4096"), "{said}");
    }
    let deep = "d/".repeat(70);
    place.put(format!("{deep}f"), b"");
    let said = refused_with(&place, &all);
    assert!(said.contains("63 folders deep"), "{said}");
    // A file of 4 EiB that takes nothing on the disk.
    let place = Place::new();
    let file = fs::File::create(place.path("program/huge")).unwrap();
    let size = (1..63)
        .rev()
        .find(|bits| file.set_len(1 << bits).is_ok())
        .unwrap();
    if size > 50 {
        assert!(refused(&place).contains("more than"));
    }
}

/// Bytes of secrets that a user would like to have in his checkpoint.
fn leaked(place: &Place, secret: &[u8]) -> bool {
    let mut folders = vec![place.path("store")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read(&path)
                .unwrap()
                .windows(secret.len())
                .any(|at| at == secret)
            {
                return true;
            }
        }
    }
    false
}

/// Each is exchanged with a link to a secret again and again, while the folder is read.
#[test]
fn links_that_come_while_the_folder_is_walked_lead_nowhere() {
    let place = Place::new();
    let secret = noise(77, 200);
    fs::create_dir(place.path("outside")).unwrap();
    fs::write(place.path("outside/f"), &secret).unwrap();
    place.put("d/f", b"mine");
    place.put("d/g/f", b"mine");
    place.put("h", b"mine");
    let program = place.path("program");
    symlink(place.path("outside"), place.path("link-d")).unwrap();
    symlink(place.path("outside/f"), place.path("link-f")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut taken, mut told) = (0, 0);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for (own, link) in [("d/g", "link-d"), ("h", "link-f")] {
            let (own, link) = (program.join(own), place.path(link));
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &own, CWD, &link, flags).unwrap();
                    thread::yield_now();
                }
            });
        }
        let (store, _) = place.open();
        let store_job = store.job(&job(7), me()).unwrap();
        let rounds = if long() { 5_000 } else { 60 };
        for number in 1..100_000 {
            // The other threads may not run for a while.
            if number > rounds && told > 0 {
                break;
            }
            let source = place.folder("program");
            match write(&store_job, id(number, 1), &LinuxDisk, &source, None) {
                Ok(_) => {
                    taken += 1;
                    assert!(!leaked(&place, &secret));
                    store_job.remove(id(number, 1)).unwrap();
                }
                Err(error) => {
                    told += 1;
                    assert_eq!(error.kind, Kind::Refused, "{error}");
                }
            }
        }
    });
    assert!(told > 0, "{taken} taken, {told} told");
}

/// A file is in a checkpoint as it was at one moment, or the checkpoint is refused.
#[test]
fn a_file_that_grows_or_shrinks_while_it_is_read_is_refused() {
    let place = Place::new();
    place.put("a", &noise(1, 40 * EXTENT));
    let path = place.path("program/a");
    let stop = AtomicBool::new(false);
    let mut told = Vec::new();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut file = fs::File::options().append(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.write_all(&[1; 1000]).unwrap();
                if file.metadata().unwrap().len() > 100 * EXTENT as u64 {
                    file.set_len(40 * EXTENT as u64).unwrap();
                }
            }
        });
        let (store, _) = place.open();
        let store_job = store.job(&job(7), me()).unwrap();
        // Until it has happened a few times: the other thread may not run for a while.
        for number in 1..5_000 {
            let source = place.folder("program");
            let written = write(&store_job, id(number, 1), &LinuxDisk, &source, None);
            if written.is_ok() {
                store_job.remove(id(number, 1)).unwrap();
            }
            told.extend(written.err().map(|error| error.to_string()));
            if told.len() >= 3 {
                break;
            }
        }
    });
    assert!(!told.is_empty());
    for said in told {
        assert!(
            said.contains("\"a\"") && said.contains("while it was read"),
            "{said}"
        );
    }
}

#[test]
fn a_name_is_one_part_of_a_path() {
    let place = Place::new();
    let folder = place.folder("program");
    fs::write(place.path("outside"), b"1").unwrap();
    for bad in [
        &b""[..],
        b".",
        b"..",
        b"../outside",
        b"/etc/passwd",
        b"a/b",
        b"a\0",
    ] {
        assert!(LinuxDisk.open(&folder, bad).is_err());
        assert!(LinuxDisk.create(&folder, bad).is_err());
        assert!(LinuxDisk.open_folder(&folder, bad).is_err());
        assert!(LinuxDisk.make_folder(&folder, bad).is_err());
        assert!(LinuxDisk.look(&folder, bad).is_err());
        assert!(LinuxDisk.unlink(&folder, bad).is_err());
        assert!(LinuxDisk.remove_folder(&folder, bad).is_err());
        assert!(LinuxDisk.rename(&folder, bad, b"x", true).is_err());
        assert!(LinuxDisk.rename(&folder, b"x", bad, true).is_err());
    }
    assert!(place.path("outside").exists());
}

fn one(place: &Place) -> (Manifest, std::path::PathBuf) {
    place.put("dir/file", &noise(1, 100));
    let (store, _) = place.open();
    let store_job = store.job(&job(7), me()).unwrap();
    let source = place.folder("program");
    let manifest = write(&store_job, id(1, 1), &LinuxDisk, &source, None).unwrap();
    (manifest, place.path("store/7/1-0000000000000001/manifest"))
}

/// Signed with the right key, as by a fault of ours: what its fields say is still held against each other.
#[test]
fn a_manifest_with_a_code_that_holds_and_a_path_that_leads_out_is_refused() {
    for path in [
        &b"../xfile"[..],
        b"/etc/abc",
        b"dir/./ab",
        b"dir//abc",
        b"dir\0file",
        b"dir/..\0a",
    ] {
        let place = Place::new();
        let (_, at) = one(&place);
        let mut bytes = fs::read(&at).unwrap();
        let found = bytes.windows(8).position(|it| it == b"dir/file").unwrap();
        bytes[found..found + 8].copy_from_slice(path);
        bytes.truncate(bytes.len() - 32);
        let code = key().of_job(&job(7), me()).manifest_code(&bytes);
        bytes.extend(code);
        fs::write(&at, &bytes).unwrap();
        let (store, found) = place.open();
        assert!(found.faults[0].contains("the path"), "{found:?}");
        let store_job = store.existing(&job(7)).unwrap();
        let said = store_job.manifest(id(1, 1)).unwrap_err().to_string();
        assert!(said.contains("the path"), "{said}");
        assert!(store_job.commit(id(1, 1)).is_err());
    }
}

#[test]
fn files_are_restored_only_to_a_name_of_the_given_folder() {
    let place = Place::new();
    let (manifest, _) = one(&place);
    let (store, _) = place.open();
    let store_job = store.existing(&job(7)).unwrap();
    let folder = place.folder("restored");
    let to = |name: &'static [u8], owner| Target {
        disk: &LinuxDisk,
        folder: &folder,
        name,
        owner,
    };
    for bad in [&b""[..], b"..", b"../x", b"/tmp/x", b"a/b"] {
        // Of an empty name the folder that is not complete yet can be made, and the name itself cannot be given.
        assert!(restore(&store_job, &manifest, &to(bad, None)).is_err());
        assert_eq!(fs::read_dir(place.path("restored")).unwrap().count(), 0);
    }
    // What has the name of the folder that is not complete yet is not touched, and no link is followed.
    symlink(place.path("outside"), place.path("restored/it.restoring-0")).unwrap();
    fs::create_dir(place.path("restored/it.restoring-1")).unwrap();
    fs::write(place.path("restored/it.restoring-1/f"), b"1").unwrap();
    let owner = (me() == 0).then_some((1234, 1235));
    restore(&store_job, &manifest, &to(b"it", owner)).unwrap();
    assert!(place.path("restored/it.restoring-1/f").exists());
    assert!(!place.path("outside").exists());
    assert_eq!(
        fs::read(place.path("restored/it/dir/file")).unwrap(),
        noise(1, 100)
    );
    if me() == 0 {
        for path in ["it", "it/dir", "it/dir/file"] {
            let facts = fs::metadata(place.path("restored").join(path)).unwrap();
            assert_eq!((facts.uid(), facts.gid()), (1234, 1235), "{path}");
        }
    }
}
