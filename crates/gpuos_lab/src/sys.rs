//! The system calls that the standard library has no safe form of: device files, file locks,
//! signals through pidfds, and what a child does between fork and exec.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// NVIDIA's major number for `/dev/nvidia*`.
const NVIDIA_MAJOR: u32 = 195;

/// A path as C wants it. Paths with a NUL byte cannot exist.
pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Result of a system call that returns -1 on failure.
fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Unmounts what processes of a lab have mounted beneath its folder, the last first.
pub(crate) fn unmount_below(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = format!("{}/", dir.display());
    // A space in a path is written otherwise there: a path of a lab has none.
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let own: Vec<&str> = places.filter(|at| at.starts_with(&below)).collect();
    for at in own.iter().rev() {
        let at = c_path(Path::new(at));
        // SAFETY: a C string that lives over the call.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    }
}

/// True when the effective user is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Name of this host without its domain, as slurmctld compares it.
pub(crate) fn short_hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = name.trim().split('.').next().unwrap_or_default();
    if short.is_empty() {
        "localhost".to_string()
    } else {
        short.to_string()
    }
}

/// Makes the character device file of GPU `minor`, open to all as NVIDIA's driver makes it.
pub(crate) fn make_gpu_file(path: &Path, minor: u32) -> io::Result<()> {
    make_device_file(path, NVIDIA_MAJOR, minor)
}

/// Makes a character device file, open to all.
pub(crate) fn make_device_file(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let c = c_path(path);
    let dev = libc::makedev(major, minor);
    // SAFETY: `c` is a NUL-terminated string that outlives both calls.
    unsafe {
        check(libc::mknod(c.as_ptr(), libc::S_IFCHR | 0o666, dev))?;
        // The umask does not count for chmod.
        check(libc::chmod(c.as_ptr(), 0o666))
    }
}

/// True when device files on the file system of `path` cannot be opened.
pub(crate) fn is_nodev(path: &Path) -> bool {
    let c = c_path(path);
    // SAFETY: statvfs is plain data for which all zeros is a value.
    let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `c` is NUL-terminated and `info` is a valid place for the answer.
    let rc = unsafe { libc::statvfs(c.as_ptr(), &mut info) };
    rc == 0 && info.f_flag & libc::ST_NODEV != 0
}

/// Locks the file at `path` (made if missing) until the value is dropped; waits for others.
///
/// # Errors
/// It cannot be opened or made for writing.
pub fn lock(path: &Path) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    loop {
        // SAFETY: the descriptor belongs to `file`, which is open.
        match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }) {
            Ok(()) => return Ok(file),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
    }
}

/// A handle on one process that never comes to mean another.
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this pid now.
    pub(crate) fn open(pid: u32) -> io::Result<PidFd> {
        // SAFETY: pidfd_open takes two integers; on success it returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is open; a null siginfo is allowed.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        check(rc as libc::c_int)
    }
}

/// One step of building a private root directory.
pub(crate) enum RootStep {
    /// An empty file system in memory, which later recursive binds leave out.
    Tmpfs(CString),
    /// A directory; may exist.
    Mkdir(CString),
    /// A symbolic link: target, place.
    Link(CString, CString),
    /// A bind mount with all that is mounted below: source, place.
    Bind(CString, CString),
    /// The same, read-only at its top mount.
    BindReadOnly(CString, CString),
}

impl RootStep {
    fn run(&self) -> io::Result<()> {
        let none = std::ptr::null::<libc::c_char>();
        let no_data = std::ptr::null::<libc::c_void>();
        let exists = |result: io::Result<()>| match result {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        };
        // SAFETY: every pointer comes from a CString that lives as long as `self`, or is null
        // where mount(2) allows null.
        unsafe {
            match self {
                RootStep::Tmpfs(at) => {
                    let kind = c"tmpfs".as_ptr();
                    let mode = c"mode=0755".as_ptr().cast();
                    check(libc::mount(kind, at.as_ptr(), kind, 0, mode))?;
                    let flags = libc::MS_UNBINDABLE;
                    check(libc::mount(none, at.as_ptr(), none, flags, no_data))
                }
                RootStep::Mkdir(at) => exists(check(libc::mkdir(at.as_ptr(), 0o755))),
                RootStep::Link(to, at) => check(libc::symlink(to.as_ptr(), at.as_ptr())),
                RootStep::Bind(from, at) => bind(from, at),
                RootStep::BindReadOnly(from, at) => {
                    bind(from, at)?;
                    let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
                    check(libc::mount(none, at.as_ptr(), none, flags, no_data))
                }
            }
        }
    }
}

/// Which files a child sees.
pub(crate) enum View {
    /// Those of this process.
    Host,
    /// Those of this process in a mount namespace of its own: mounts made in it go with it.
    Private,
    /// A new mount namespace whose root is built by these steps; then chroot to the path.
    Build(Vec<RootStep>, CString),
    /// The mount namespace behind the first file, and the root that the second one is opened on;
    /// the working directory is kept where it exists there.
    Join(File, File),
}

/// What a child does between fork and exec.
pub(crate) struct ChildSetup {
    /// Leave the caller's session, so that its Ctrl-C does not reach the child.
    pub(crate) new_session: bool,
    /// `cgroup.procs` files of the cgroups to enter.
    pub(crate) cgroups: Vec<File>,
    /// The files it sees.
    pub(crate) view: View,
}

impl ChildSetup {
    /// Arranges that the child of `command` does this.
    pub(crate) fn apply(self, command: &mut Command) {
        // SAFETY: the closure runs in the child between fork and exec. It makes system calls
        // only, on memory prepared here: no allocation, no lock of the parent.
        unsafe {
            command.pre_exec(move || self.run());
        }
    }

    fn run(&self) -> io::Result<()> {
        for procs in &self.cgroups {
            // SAFETY: the descriptor is open and the buffer one byte long. "0" = the writer.
            check(unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } as i32)?;
        }
        if self.new_session {
            // SAFETY: setsid takes nothing; a forked child leads no process group.
            check(unsafe { libc::setsid() })?;
        }
        match &self.view {
            View::Host => Ok(()),
            View::Private => own_mounts(),
            View::Build(steps, root) => {
                own_mounts()?;
                for step in steps {
                    step.run()?;
                }
                enter_root(root)?;
                // SAFETY: a constant NUL-terminated string.
                check(unsafe { libc::chdir(c"/".as_ptr()) })
            }
            View::Join(namespace, root) => {
                let mut cwd = [0 as libc::c_char; libc::PATH_MAX as usize];
                // SAFETY: the buffer is as long as said; the string written is terminated.
                let known = unsafe { !libc::getcwd(cwd.as_mut_ptr(), cwd.len()).is_null() };
                // SAFETY: the descriptor is open. The child of fork shares its root and working
                // directory with nobody, as setns demands.
                check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) })?;
                // The root's path from here is not known where the lab was made in a chroot.
                enter_dir(root)?;
                enter_root(c".")?;
                // SAFETY: `cwd` holds a terminated string (empty when unknown).
                if !known || unsafe { libc::chdir(cwd.as_ptr()) } == -1 {
                    // SAFETY: a constant NUL-terminated string.
                    check(unsafe { libc::chdir(c"/".as_ptr()) })?;
                }
                Ok(())
            }
        }
    }
}

/// A write into a connection that has ended does not end the program: systemd starts its services so. A slurmctld that has
/// not come so far that it sees to it itself would die of a client that does not wait for an answer.
pub(crate) fn ignore_sigpipe(command: &mut Command) {
    // SAFETY: the closure runs in the child between fork and exec, and makes one system call with constants.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            Ok(())
        });
    }
}

/// A mount namespace of its own, that takes unmounts from outside and gives nothing back.
fn own_mounts() -> io::Result<()> {
    // SAFETY: a constant.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    match take_only(c"/") {
        // "/" is a folder and no mount: a plain chroot.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => own_mounts_of_a_chroot(),
        other => other,
    }
}

/// From here on the mount at `at` and all below it give nothing to other namespaces.
fn take_only(at: &CStr) -> io::Result<()> {
    let none = std::ptr::null::<libc::c_char>();
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: a NUL-terminated string, and null where mount(2) allows null.
    check(unsafe { libc::mount(none, at.as_ptr(), none, flags, std::ptr::null()) })
}

/// The mount that a chroot lies in has no name inside the chroot, and binding its root on itself
/// would show outside while that mount is still shared. So the process steps out of the chroot, in
/// its new namespace, for as long as it takes to mark the namespace's root.
fn own_mounts_of_a_chroot() -> io::Result<()> {
    /// No path is deeper; ".." at the top stays there.
    const DEEPEST: u32 = libc::PATH_MAX as u32 / 2;
    let root = open_dir(c"/")?;
    let cwd = open_dir(c".")?;
    enter_dir(&root)?;
    // A root below the working directory does not stop "..".
    enter_root(c"proc")?;
    for _ in 0..DEEPEST {
        // SAFETY: a constant NUL-terminated string.
        check(unsafe { libc::chdir(c"..".as_ptr()) })?;
    }
    take_only(c".")?;
    enter_dir(&root)?;
    enter_root(c".")?;
    enter_dir(&cwd)
}

fn open_dir(at: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: `at` is NUL-terminated and alive.
    let fd = unsafe { libc::open(at.as_ptr(), flags) };
    check(fd)?;
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn enter_dir(dir: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call.
    check(unsafe { libc::fchdir(dir.as_raw_fd()) })
}

/// Shows what is at `from` at `at` too, with all that is mounted below.
fn bind(from: &CStr, at: &CStr) -> io::Result<()> {
    let none = std::ptr::null::<libc::c_char>();
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: two NUL-terminated strings, and null where mount(2) allows null.
    check(unsafe { libc::mount(from.as_ptr(), at.as_ptr(), none, flags, std::ptr::null()) })
}

fn enter_root(root: &CStr) -> io::Result<()> {
    // SAFETY: `root` is NUL-terminated and alive.
    check(unsafe { libc::chroot(root.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a root that is no mount nor mounts made in it keep a child from mounts of its own.
    #[test]
    fn mounts_of_its_own_also_in_a_plain_chroot() {
        if !is_root() {
            eprintln!("SKIPPED mounts in a chroot: only root may make them");
            return;
        }
        let root = std::env::temp_dir().join(format!("gpuos-chroot-{}", std::process::id()));
        for dir in ["proc", "here"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let path = c_path(&root);
        let mut command = Command::new("/nothing");
        // SAFETY: system calls only, on memory prepared here.
        unsafe {
            command.pre_exec(move || {
                check(libc::chroot(path.as_ptr()))?;
                check(libc::chdir(c"/here".as_ptr()))
            });
        }
        let setup = ChildSetup {
            new_session: false,
            cgroups: Vec::new(),
            view: View::Private,
        };
        setup.apply(&mut command);
        // By a relative path: the working directory and the root are what they were.
        let mounted = RootStep::Tmpfs(c"../here".into());
        let made = RootStep::Mkdir(c"/here/new".into());
        // SAFETY: as above; the child ends without returning.
        unsafe {
            command.pre_exec(move || {
                mounted.run()?;
                made.run()?;
                libc::_exit(0)
            });
        }
        let status = command.spawn().and_then(|mut child| child.wait());
        let leaked = root.join("here/new").exists();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(status.unwrap().success());
        assert!(!leaked, "the mount shows outside");
    }
}
