//! The state in a file that every process maps. All of the crate's memory mapping, locking and
//! waiting is here.
//!
//! The file begins with a lock and two copies of [`Node`]. An update writes the copy that is not
//! current and then makes it current with one store: a process that is killed in the middle leaves
//! the state as it was. The lock is robust: when its owner dies, the next one gets it.

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Node;
use crate::hold::Call;

/// First bytes of a state file. The digit changes with the layout.
const MAGIC: [u8; 8] = *b"gpuosml2";

#[repr(C)]
struct Layout {
    magic: [u8; 8],
    /// Size of the whole file: an older layout has another.
    size: u64,
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Counts updates; processes sleep on it.
    changes: AtomicU32,
    /// Which of the copies holds.
    current: AtomicU32,
    copies: [UnsafeCell<Node>; 2],
}

/// An open state file.
pub struct Shared {
    map: NonNull<Layout>,
}

// SAFETY: what the pointer leads to is only touched under the lock in the file, or is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Microseconds since 1970.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_micros() as u64)
}

/// Whether this process may change settings.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

impl Shared {
    /// Writes a new state file, readable and writable for all users as the driver's device files
    /// are. A file of that name is replaced: processes that have it open keep the old one.
    pub fn create(path: &Path, node: &Node) -> io::Result<Shared> {
        let temporary = path.with_extension(format!("new.{}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o666)
            .open(&temporary)?;
        // The umask does not apply to this.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        file.set_len(size_of::<Layout>() as u64)?;
        let map = map(&file)?;
        // SAFETY: the mapping is as large as Layout, writable, and nobody else knows the file yet.
        unsafe {
            let layout = map.as_ptr();
            init_lock((*layout).lock.get())?;
            (&raw mut (*layout).magic).write(MAGIC);
            (&raw mut (*layout).size).write(size_of::<Layout>() as u64);
            for copy in &raw_copies(map) {
                copy.write(*node);
            }
        }
        let shared = Shared { map };
        std::fs::rename(&temporary, path)?;
        Ok(shared)
    }

    /// Opens a state file. The error says when the file is none, or one of another build.
    pub fn open(path: &Path) -> io::Result<Shared> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let foreign = || {
            let text = format!(
                "{}: not a state file of this version of gpuos-nvml",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        if file.metadata()?.len() != size_of::<Layout>() as u64 {
            return Err(foreign());
        }
        let shared = Shared { map: map(&file)? };
        let layout = shared.layout();
        if layout.magic != MAGIC || layout.size != size_of::<Layout>() as u64 {
            return Err(foreign());
        }
        Ok(shared)
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `map` made the mapping with the size of Layout and it lasts as long as `self`;
        // a file that shrinks under us is a SIGBUS, as for every program that maps files. What
        // changes behind this reference is atomic or inside an UnsafeCell.
        unsafe { self.map.as_ref() }
    }

    /// Looks at the state. Do not call back into this type from inside.
    pub fn read<R>(&self, look: impl FnOnce(&Node) -> R) -> R {
        let lock = Lock::take(self.layout());
        // SAFETY: the lock is held, so nobody writes, and every pattern of bytes is a Node.
        look(unsafe { &*lock.copy(0) })
    }

    /// Changes the state. Others see all of it or, if `change` panics or the process is killed,
    /// nothing of it. Wakes all who wait.
    pub fn update<R>(&self, change: impl FnOnce(&mut Node) -> R) -> R {
        let layout = self.layout();
        let lock = Lock::take(layout);
        // SAFETY: the lock is held; the two copies do not overlap; the second is used by nobody else.
        let next = unsafe {
            std::ptr::copy_nonoverlapping(lock.copy(0), lock.copy(1), 1);
            &mut *lock.copy(1)
        };
        let result = change(next);
        layout.current.fetch_xor(1, Ordering::Release);
        drop(lock);
        layout.changes.fetch_add(1, Ordering::Release);
        futex(&layout.changes, libc::FUTEX_WAKE, i32::MAX as u32, None);
        result
    }

    /// A number that every update changes.
    pub fn changes(&self) -> u32 {
        self.layout().changes.load(Ordering::Acquire)
    }

    /// Sleeps until the number is not `seen` any more, but not longer than `limit`. May return early:
    /// after a second in any case, since a process that dies between its update and the wake-up
    /// leaves nobody to tell.
    pub fn wait(&self, seen: u32, limit: Duration) {
        let limit = limit.min(Duration::from_secs(1));
        futex(&self.layout().changes, libc::FUTEX_WAIT, seen, Some(limit));
    }

    /// Runs a call, and waits before or after it where that is wanted. One that fails has no point after it.
    pub(crate) fn held<R, E>(
        &self,
        call: Call,
        work: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        self.hold_at(call as u32 + 1);
        let done = work()?;
        self.hold_at(call as u32 + 2);
        Ok(done)
    }

    fn hold_at(&self, point: u32) {
        let here = || self.read(|node| node.hold.is_at(point));
        if !here() || !self.update(|node| node.hold.catch(point, std::process::id())) {
            return;
        }
        loop {
            let seen = self.changes();
            if !here() {
                return;
            }
            self.wait(seen, Duration::from_secs(1));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), size_of::<Layout>()) };
    }
}

/// The lock, held.
struct Lock<'a>(&'a Layout);

impl<'a> Lock<'a> {
    fn take(layout: &'a Layout) -> Lock<'a> {
        // SAFETY: `create` made the lock before the file got its name. It fails only when somebody
        // wrote over it; then the copies are of nobody's making either, and still plain numbers.
        unsafe {
            if libc::pthread_mutex_lock(layout.lock.get()) == libc::EOWNERDEAD {
                // The dead owner changed the copy that is not current at most: nothing to repair.
                libc::pthread_mutex_consistent(layout.lock.get());
            }
        }
        Lock(layout)
    }

    /// The current copy (0) or the other one (1).
    fn copy(&self, other: u32) -> *mut Node {
        let current = self.0.current.load(Ordering::Acquire);
        self.0.copies[((current ^ other) & 1) as usize].get()
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread took the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.lock.get()) };
    }
}

fn map(file: &File) -> io::Result<NonNull<Layout>> {
    // SAFETY: a fresh shared mapping of a file that is as large as Layout, aligned to pages.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Layout>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)
}

/// Pointers to the copies of a mapping.
///
/// # Safety
/// The mapping must last while the pointers are used.
unsafe fn raw_copies(map: NonNull<Layout>) -> [*mut Node; 2] {
    // SAFETY: as the caller promises; UnsafeCell<Node> has the layout of Node.
    unsafe {
        let copies = &raw mut (*map.as_ptr()).copies;
        [(*copies)[0].get(), (*copies)[1].get()]
    }
}

/// Makes the lock one that processes share and that survives its owner.
///
/// # Safety
/// `lock` must point to writable memory that no thread uses as a lock.
unsafe fn init_lock(lock: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are initialised by the first call before the others use them, and the
    // caller answers for `lock`.
    let failed = unsafe {
        let attributes = attributes.as_mut_ptr();
        libc::pthread_mutexattr_init(attributes)
            | libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED)
            | libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST)
            | libc::pthread_mutex_init(lock, attributes)
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::other("no lock that processes can share")),
    }
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|d| libc::timespec {
        tv_sec: d.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: d.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is a mapped, aligned u32 and the time is null or valid for the call. Errors
    // (interrupted, value changed, time over) all mean: look again, which the caller does.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
}
