//! Removes a folder that is a user's, whatever the user has put there.
//!
//! Root does not go in. A process of its own, [`FLAG`], which takes the rights of the folder's owner and nothing else, makes
//! the folder empty; so a link, a mount or a race leads it no further than the user could go alone. Root removes what
//! is empty then, by its name in a folder of root's. The process uses no recursion and four descriptors however deep
//! folders lie in each other. It ends itself after [`TIME`] or [`MOST`] entries, and is killed soon after: a user may
//! stop it, or have a file system that never answers.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, ResolveFlags, Stat, chmod, chmodat, fstat, openat, openat2,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getppid, setrlimit};

use crate::as_user;

/// The first word; the second one is a number of seconds, and the folder is standard input.
pub const FLAG: &str = "--empty-folder";

/// How long the process works on a folder. `/run` is memory: that is enough for a million entries.
pub const TIME: Duration = Duration::from_secs(30);
/// How long it may take to notice that.
const GRACE: Duration = Duration::from_secs(5);
/// Entries that it looks at, at most: some seconds' work.
const MOST: u64 = 2_000_000;
/// Descriptors that it may have.
const FILES: u64 = 16;
/// Folders that it finds and cannot empty, at most.
const MOST_STAYS: usize = 100_000;
/// How it opens folders.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a folder is not empty, and the exit code that says so: nothing that the user could write is passed on.
const WHY: [(u8, &str); 7] = [
    (3, "something is mounted in it"),
    (4, "something in it may not be removed by its owner"),
    (5, "it was not empty in time"),
    (6, "it has more than 2000000 entries"),
    (7, "it cannot be read"),
    (8, "it was changed while it was emptied"),
    (9, "the rights of its owner cannot be taken"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Mounted = 3,
    Refused = 4,
    Late = 5,
    Many = 6,
    Unread = 7,
    Moved = 8,
    Rights = 9,
}

/// Opens a folder by its name in another one: no link, no other file system, and nothing is asked of what may be
/// mounted there.
///
/// # Errors
/// As of the kernel; [`ErrorKind::CrossesDevices`]: something is mounted on it.
pub fn open_in(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let parent = parent.as_fd();
    match openat2(parent, name, flags, Mode::empty(), within) {
        Ok(folder) => Ok(folder),
        // Before Linux 5.6, and where a filter knows no call that is so new.
        Err(Errno::NOSYS | Errno::PERM) => {
            let folder = openat(parent, name, flags, Mode::empty())?;
            match fstat(&folder)?.st_dev == fstat(parent)?.st_dev {
                true => Ok(folder),
                false => Err(ErrorKind::CrossesDevices.into()),
            }
        }
        Err(e) => Err(e.into()),
    }
}

/// Removes the folder `name` of a user in `parent`, which is root's. `program` is this one. One that is not there is
/// removed. `time` is what the process may take, [`TIME`] as a rule.
///
/// # Errors
/// A sentence; the folder is there, perhaps with less in it.
pub fn remove(program: &Path, parent: &Path, name: &OsStr, time: Duration) -> Result<(), String> {
    let said = |why: &dyn std::fmt::Display| format!("{}: {why}", parent.join(name).display());
    let parent_fd = match File::open(parent) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| said(&e))?,
    };
    let folder = match open_in(&parent_fd, name) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) if e.kind() == ErrorKind::CrossesDevices => {
            return Err(said(&"something is mounted on it"));
        }
        other => other.map_err(|e| said(&e))?,
    };
    let emptied = empty(program, folder, time).map_err(|e| said(&e))?;
    match unlinkat(&parent_fd, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY) => Err(said(&emptied.err().unwrap_or("it is filled again"))),
        Err(e) => Err(said(&io::Error::from(e))),
    }
}

/// Runs the process. `Ok(Err)`: why the folder may not be empty.
fn empty(program: &Path, folder: OwnedFd, time: Duration) -> io::Result<Result<(), &'static str>> {
    let mut process = Command::new(program);
    process
        .arg(FLAG)
        .arg(time.as_secs().to_string())
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(folder))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Some((status, _)) = as_user::run(&mut process, time + GRACE, PAUSE)? else {
        return Ok(Err("it does not answer"));
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let known = |(of, _): &&(u8, &str)| Some(*of) == code;
    Ok(match (code, WHY.iter().find(known)) {
        (Some(0), _) => Ok(()),
        (_, Some((_, why))) => Err(why),
        _ => Err("the process that empties it was ended"),
    })
}

/// The process, with the words after [`FLAG`]: empties the folder that is its standard input.
pub fn run(words: &[OsString]) -> ExitCode {
    let seconds = words.first().and_then(|word| word.to_str()?.parse().ok());
    let time = seconds.map_or(TIME, Duration::from_secs).min(TIME);
    // It does not outlive who started it, and takes no more than it needs.
    let parent = getppid();
    let _ = as_user::ends_with(parent);
    let limits = [
        (Resource::Nofile, FILES),
        (Resource::Cpu, 2 * TIME.as_secs()),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ];
    for (of, most) in limits {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        let _ = setrlimit(of, limit);
    }
    let stdin = io::stdin();
    let owner = fstat(stdin.as_fd());
    let become_owner = |it: Stat| as_user::become_user(it.st_uid, it.st_gid);
    let done = match owner.and_then(become_owner) {
        Ok(()) if as_user::ends_with(parent) => Progress::new(time).all(stdin.as_fd()),
        Ok(()) => Err(Stop::Late),
        Err(_) => Err(Stop::Rights),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => ExitCode::from(stop as u8),
    }
}

/// A folder, by the numbers of its file system and of itself.
type Id = (u64, u64);

fn id(folder: &OwnedFd) -> Result<Id, Stop> {
    let of = fstat(folder).map_err(|_| Stop::Unread)?;
    Ok((of.st_dev, of.st_ino))
}

struct Progress {
    until: Instant,
    /// Entries that were looked at.
    visited: u64,
    /// Folders that stay, and why something does.
    stays: BTreeSet<Id>,
    blocked: Option<Stop>,
}

/// What became of an entry.
enum Gone {
    Yes,
    /// It is a folder with something in it.
    Full,
    No,
}

impl Progress {
    fn new(time: Duration) -> Progress {
        Progress {
            until: Instant::now() + time,
            visited: 0,
            stays: BTreeSet::new(),
            blocked: None,
        }
    }

    /// Removes all that can be removed in `top`: goes down into the first folder that has something in it, and up again
    /// when nothing more can be done there.
    fn all(&mut self, top: BorrowedFd<'_>) -> Result<(), Stop> {
        let mut here = readable(top).map_err(|_| Stop::Unread)?;
        let mut above: Vec<Id> = Vec::new();
        loop {
            if let Some(below) = self.sweep(&here)? {
                above.push(id(&here)?);
                here = below;
                continue;
            }
            let Some(parent) = above.pop() else { break };
            let own = id(&here)?;
            here = openat(&here, c"..", FOLDER, Mode::empty()).map_err(|_| Stop::Unread)?;
            // It was moved elsewhere meanwhile: what is there now is not asked for.
            if id(&here)? != parent {
                return Err(Stop::Moved);
            }
            // Where it is empty, it goes with the next look; else it is left alone.
            self.stays.insert(own);
            if self.stays.len() > MOST_STAYS {
                return Err(self.blocked.unwrap_or(Stop::Many));
            }
        }
        self.blocked.map_or(Ok(()), Err)
    }

    /// Removes what is no folder with something in it, until nothing more goes. Gives the first such folder.
    fn sweep(&mut self, here: &OwnedFd) -> Result<Option<OwnedFd>, Stop> {
        let device = id(here)?.0;
        loop {
            let mut any = false;
            let again = openat(here, c".", FOLDER, Mode::empty()).map_err(|_| Stop::Unread)?;
            let mut buffer = [MaybeUninit::uninit(); 8192];
            let mut entries = RawDir::new(&again, &mut buffer);
            while let Some(entry) = entries.next() {
                let entry = entry.map_err(|_| Stop::Unread)?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                match self.unlink(here, name)? {
                    Gone::Yes => {
                        any = true;
                        self.stays.remove(&(device, entry.ino()));
                    }
                    Gone::No => {}
                    Gone::Full => {
                        let stays = self.stays.contains(&(device, entry.ino()));
                        let below = match stays {
                            true => None,
                            false => self.down(here, device, name),
                        };
                        if below.is_some() {
                            return Ok(below);
                        }
                    }
                }
            }
            if !any {
                return Ok(None);
            }
            self.time()?;
        }
    }

    /// Opens a folder to be emptied; `None`: it stays.
    fn down(&mut self, here: &OwnedFd, device: u64, name: &CStr) -> Option<OwnedFd> {
        let open = || openat(here, name, FOLDER, Mode::empty());
        let opened = open().or_else(|_| {
            // Its owner may have forbidden himself to read it. A link put here now leads to what is his, or to an error.
            let _ = chmodat(here, name, Mode::RWXU, AtFlags::empty());
            open()
        });
        let Ok(folder) = opened else {
            self.blocked = Some(Stop::Refused);
            return None;
        };
        if fstat(&folder).map(|of| of.st_dev) != Ok(device) {
            self.blocked = Some(Stop::Mounted);
            return None;
        }
        let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
        Some(folder)
    }

    /// Removes an entry, whatever it is; a folder only if nothing is in it.
    fn unlink(&mut self, folder: &OwnedFd, name: &CStr) -> Result<Gone, Stop> {
        self.count()?;
        let removed = match unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => unlinkat(folder, name, AtFlags::REMOVEDIR),
            other => other,
        };
        Ok(match removed {
            Ok(()) | Err(Errno::NOENT) => Gone::Yes,
            Err(Errno::NOTEMPTY | Errno::EXIST) => Gone::Full,
            Err(Errno::BUSY) => {
                self.blocked = Some(Stop::Mounted);
                Gone::No
            }
            Err(_) => {
                self.blocked = Some(Stop::Refused);
                Gone::No
            }
        })
    }

    fn count(&mut self) -> Result<(), Stop> {
        self.visited += 1;
        if self.visited > MOST {
            return Err(Stop::Many);
        }
        match self.visited.is_multiple_of(64) {
            true => self.time(),
            false => Ok(()),
        }
    }

    fn time(&self) -> Result<(), Stop> {
        match Instant::now() >= self.until {
            true => Err(Stop::Late),
            false => Ok(()),
        }
    }
}

/// The folder itself, to be read and written in, also where its owner has forbidden himself to.
fn readable(top: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let open = || openat(top, c".", FOLDER, Mode::empty());
    let folder = open().or_else(|_| {
        // What was opened for its path alone cannot be changed in another way.
        chmod("/proc/self/fd/0", Mode::RWXU)?;
        open()
    })?;
    let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
    Ok(folder)
}
