//! In slurmstepd: the folder in memory of a job with `l0=`, a tmpfs mounted at `JOB/memory` before the step's tasks start.
//!
//! slurmstepd has what gpuos_mover lacks: the mount namespace that tasks have, and the right to mount. The mover finds the mount by looking.
//! Its pages count against who writes them first, which are the job's tasks. All folders here are root's, so that no user can
//! put something else in their place. What is mounted in the trash is unmounted by whichever step comes next.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpuos_core::wire::{MEMORY_FOLDER, MEMORY_UNSEEN};

/// What `findmnt` shows as the source.
const SOURCE: &CStr = c"gpuos";
/// Files and folders at most: programs may have a million files on a node.
const INODES: u32 = 1_200_000;
/// One step mounts at a time, and holds this file meanwhile.
const LOCK: &str = ".memory";
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);
/// Jobs that are over and are looked at by a step at most.
const MOST_LEFT: usize = 256;

/// What the tasks of this step are to see.
static MOUNTED: OnceLock<Mounted> = OnceLock::new();

struct Mounted {
    /// The folder of the job.
    folder: PathBuf,
    /// The number of the tmpfs.
    device: u64,
}

/// Mounts it in the folder of a job, if no other step has, with so many MiB at most. Before, what jobs that are over have left is unmounted.
///
/// # Errors
/// A sentence. The job's programs then write to the disk.
pub fn prepare(folder: &Path, mib: u32) -> Result<(), String> {
    let base = folder.parent().unwrap_or(folder);
    let _held = lock(base).map_err(|error| said("hold", &base.join(LOCK), &error))?;
    unmount_left(base);
    let memory = folder.join(MEMORY_FOLDER);
    for own in [base, folder] {
        is_ours(own).map_err(|error| said("use", own, &error))?;
    }
    match DirBuilder::new().mode(0o755).create(&memory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(said("make", &memory, &error));
        }
        _ => is_ours(&memory).map_err(|error| said("use", &memory, &error))?,
    }
    if !is_mounted(folder) {
        mount(&memory, mib).map_err(|error| said("mount a tmpfs at", &memory, &error))?;
    }
    let device = fs::symlink_metadata(&memory).map(|facts| facts.dev());
    let device = device.map_err(|error| said("look at", &memory, &error))?;
    let folder = folder.to_owned();
    let _ = MOUNTED.set(Mounted { folder, device });
    Ok(())
}

/// In a task, as the user: where it does not see what was mounted, as in a container of the job with mounts of its own, the mover is told by a file
/// in the user's folder. A user who makes or removes it has his own files on the disk, or nowhere.
pub fn look() {
    let Some(Mounted { folder, device }) = MOUNTED.get() else {
        return;
    };
    let seen = fs::symlink_metadata(folder.join(MEMORY_FOLDER));
    if !seen.is_ok_and(|seen| seen.dev() == *device) {
        let _ = File::create(folder.join("ranks").join(MEMORY_UNSEEN));
    }
}

fn said(tried: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {tried} {}: {error}", path.display())
}

/// A folder of root's in which nobody else can write.
fn is_ours(folder: &Path) -> io::Result<()> {
    let facts = fs::symlink_metadata(folder)?;
    match facts.is_dir() && facts.uid() == us() && facts.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::other("others can write there")),
    }
}

fn us() -> u32 {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

/// Waits for its turn; it ends when the file is closed.
fn lock(base: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    let file = options
        .custom_flags(libc::O_NOFOLLOW)
        .open(base.join(LOCK))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // SAFETY: a descriptor that is open over the call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(AGAIN);
    }
}

/// Whether the folder of a job has a tmpfs of root's mounted in it.
fn is_mounted(folder: &Path) -> bool {
    let memory = folder.join(MEMORY_FOLDER);
    let [around, facts] = [folder, &memory].map(fs::symlink_metadata);
    let mounted = around.ok().zip(facts.ok()).is_some_and(|(around, own)| {
        own.is_dir() && own.uid() == us() && own.dev() != around.dev()
    });
    mounted && c_path(&memory).is_ok_and(|memory| is_tmpfs(&memory))
}

fn is_tmpfs(path: &CStr) -> bool {
    let mut facts = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a C string, and a structure that the call fills; zeroed it is one, too.
    let (done, facts) = unsafe {
        let done = libc::statfs(path.as_ptr(), facts.as_mut_ptr());
        (done, facts.assume_init())
    };
    done == 0 && facts.f_type == libc::TMPFS_MAGIC
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// With huge pages, without which each 4 KiB cost a fault; a kernel that has none takes it without.
fn mount(memory: &Path, mib: u32) -> io::Result<()> {
    let path = c_path(memory)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME;
    let mut tried = Ok(());
    for huge in [",huge=always", ""] {
        let data = format!("size={mib}m,nr_inodes={INODES},mode=0755{huge}");
        let data = CString::new(data).map_err(io::Error::other)?;
        // SAFETY: C strings that live over the call.
        let done = unsafe {
            let kind = c"tmpfs".as_ptr();
            libc::mount(
                SOURCE.as_ptr(),
                path.as_ptr(),
                kind,
                flags,
                data.as_ptr().cast(),
            )
        };
        tried = match done {
            0 => return Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
    }
    tried
}

/// What jobs that are over have left lies in the trash, into which no user can look. The mover frees its memory, and may not unmount it
/// where it has a namespace of its own.
fn unmount_left(base: &Path) {
    let left = fs::read_dir(base.join(".gone/jobs"));
    for folder in left.into_iter().flatten().flatten().take(MOST_LEFT) {
        let folder = folder.path();
        if is_mounted(&folder)
            && let Ok(memory) = c_path(&folder.join(MEMORY_FOLDER))
        {
            let how = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
            // SAFETY: a C string that lives over the call.
            unsafe { libc::umount2(memory.as_ptr(), how) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Base(PathBuf);

    impl Base {
        fn new(name: &str) -> Base {
            let name = format!("gpuos-memory-{name}-{}", std::process::id());
            let base = std::env::temp_dir().join(name);
            fs::create_dir_all(base.join("7")).unwrap();
            for path in [base.clone(), base.join("7")] {
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            Base(base)
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            for folder in [self.0.join("7"), self.0.join(".gone/jobs/1f-0")] {
                let memory = c_path(&folder.join(MEMORY_FOLDER)).unwrap();
                // SAFETY: a C string that lives over the call.
                unsafe { libc::umount2(memory.as_ptr(), libc::MNT_DETACH) };
            }
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_is_mounted_once_and_unmounted_from_the_trash() {
        let base = Base::new("once");
        let job = base.0.join("7");
        if let Err(why) = prepare(&job, 8) {
            eprintln!("nothing can be mounted here: {why}");
            assert!(us() != 0 || why.contains("mount a tmpfs at"), "{why}");
            return;
        }
        let memory = job.join(MEMORY_FOLDER);
        let facts = fs::metadata(&memory).unwrap();
        assert_eq!((facts.uid(), facts.mode() & 0o7777), (us(), 0o755));
        fs::write(memory.join("f"), vec![1; 1 << 20]).unwrap();
        let full = fs::write(memory.join("g"), vec![1; 9 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        // Another step finds it.
        assert_eq!(prepare(&job, 8), Ok(()));
        assert!(memory.join("f").exists() && is_mounted(&job));
        // It goes when the job is over, and that of a job that runs stays.
        fs::create_dir_all(base.0.join(".gone/jobs")).unwrap();
        let gone = base.0.join(".gone/jobs/1f-0");
        fs::rename(&job, &gone).unwrap();
        assert!(is_mounted(&gone));
        fs::create_dir(&job).unwrap();
        fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(prepare(&job, 8), Ok(()));
        assert!(is_mounted(&job) && !is_mounted(&gone));
    }

    #[test]
    fn what_others_could_write_is_not_mounted_on() {
        let base = Base::new("others");
        let job = base.0.join("7");
        fs::set_permissions(&job, fs::Permissions::from_mode(0o777)).unwrap();
        let why = prepare(&job, 8).unwrap_err();
        assert!(why.ends_with("others can write there"), "{why}");
        fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("/tmp", job.join(MEMORY_FOLDER)).unwrap();
        assert!(prepare(&job, 8).is_err());
        assert!(!is_mounted(&job));
    }
}
