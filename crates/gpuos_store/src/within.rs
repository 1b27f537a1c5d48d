//! Names in an open folder, on its mount alone.
//!
//! A user can mount file systems of his own in his folders (FUSE), whose every answer is his program's, also none at all. So nothing that
//! is mounted is looked at, opened or asked: the kernel refuses it with `EXDEV`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::path::Arg;

/// Opens what has a name in a folder, never through a link, and without waiting where it is a named pipe.
///
/// # Errors
/// `EXDEV`: something is mounted there, or it was moved away meanwhile; `ELOOP` or `ENOTDIR`: it is a link; else those of `open`.
pub fn open(
    at: impl AsFd,
    name: impl Arg + Copy,
    how: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let flags = how | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // With O_PATH, which waits for nothing, the call refuses the other two.
    let flags = match how.contains(OFlags::PATH) {
        true => flags,
        false => flags | OFlags::NOCTTY | OFlags::NONBLOCK,
    };
    // Not NO_SYMLINKS: with O_PATH a link is opened itself, and otherwise O_NOFOLLOW refuses it.
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let at = at.as_fd();
    match openat2(at, name, flags, mode, within) {
        // Before Linux 5.6, where a filter knows no call that is so new, and where something was renamed meanwhile.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => open_by_steps(at, name, flags, mode),
        opened => opened,
    }
}

/// What a name is and whose, without opening, following or asking what is mounted there.
///
/// # Errors
/// As of [`open`].
pub fn look(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Stat> {
    Ok(fstat(open(at, name, OFlags::PATH, Mode::empty())?)?)
}

/// The same without `openat2`. A descriptor with `O_PATH` asks no file system for anything, and the kernel itself says on which mount it is.
fn open_by_steps(
    at: BorrowedFd<'_>,
    name: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    if flags.contains(OFlags::EXCL) {
        // What is there already is not opened, and nothing is mounted where nothing is.
        return openat(at, name, flags, mode);
    }
    let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(
        at,
        name,
        handle | (flags & OFlags::DIRECTORY),
        Mode::empty(),
    )?;
    if mount_of(found.as_fd())? != mount_of(at)? {
        return Err(Errno::XDEV);
    }
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    // Exactly what was found, whatever has the name now. A link cannot be opened so.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    openat(CWD, path, flags.difference(OFlags::NOFOLLOW), mode)
}

/// The number of the mount on which an open file is.
fn mount_of(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    let file = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(file).map_err(|_| Errno::NOSYS)?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    number
        .and_then(|number| number.trim().parse().ok())
        .ok_or(Errno::NOSYS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    type Open = fn(BorrowedFd<'_>, &str, OFlags) -> rustix::io::Result<OwnedFd>;
    const WAYS: [Open; 2] = [
        |at, name, how| open(at, name, how, Mode::empty()),
        |at, name, how| {
            let flags = how | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            open_by_steps(at, name, flags, Mode::empty())
        },
    ];

    fn folder(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn both_ways_open_what_is_there_and_follow_nothing() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path();
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("f"), b"1").unwrap();
        symlink("f", at.join("l")).unwrap();
        symlink("d", at.join("ld")).unwrap();
        let _socket = UnixListener::bind(at.join("s")).unwrap();
        rustix::fs::mkfifoat(CWD, at.join("p"), Mode::RWXU).unwrap();
        let root = folder(at);
        for open in WAYS {
            let opened = |name, how| open(root.as_fd(), name, how).map(drop);
            assert_eq!(opened("f", OFlags::RDONLY), Ok(()));
            assert_eq!(opened("d", OFlags::RDONLY | OFlags::DIRECTORY), Ok(()));
            // A pipe that nobody writes to does not keep anybody.
            assert_eq!(opened("p", OFlags::RDONLY), Ok(()));
            assert_eq!(opened("l", OFlags::RDONLY), Err(Errno::LOOP));
            let linked = opened("ld", OFlags::RDONLY | OFlags::DIRECTORY);
            assert_eq!(linked, Err(Errno::NOTDIR));
            assert_eq!(opened("s", OFlags::RDONLY), Err(Errno::NXIO));
            assert_eq!(opened("n", OFlags::RDONLY), Err(Errno::NOENT));
            for name in ["f", "d", "l", "s", "p"] {
                assert_eq!(opened(name, OFlags::PATH), Ok(()), "{name}");
            }
        }
    }

    #[test]
    fn both_ways_refuse_what_is_mounted() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path();
        fs::create_dir(at.join("m")).unwrap();
        fs::write(at.join("f"), b"1").unwrap();
        fs::write(at.join("g"), b"1").unwrap();
        let mount = |words: &[&str]| {
            let mut mount = Command::new("mount");
            let done = mount.args(words).current_dir(at).status();
            done.is_ok_and(|status| status.success())
        };
        if !mount(&["-t", "tmpfs", "none", "m"]) {
            eprintln!("nothing can be mounted here");
            return;
        }
        // A mount of the same file system has its device number.
        let bound = mount(&["--bind", "f", "g"]);
        let root = folder(at);
        let refused: Vec<_> = WAYS
            .iter()
            .flat_map(|open| {
                [
                    open(root.as_fd(), "m", OFlags::RDONLY | OFlags::DIRECTORY).map(drop),
                    open(root.as_fd(), "m", OFlags::PATH).map(drop),
                    open(root.as_fd(), "g", OFlags::RDONLY).map(drop),
                ]
            })
            .collect();
        for name in ["m", "g"] {
            let _ = Command::new("umount").arg(at.join(name)).status();
        }
        assert!(bound);
        assert_eq!(refused, vec![Err(Errno::XDEV); 6]);
    }
}
