//! A recording that somebody cuts short does not end slurmctld.
//!
//! A store into a mapped file past its end is a SIGBUS, which ends a process that does not handle it.
//! Whoever owns the ring of decisions, SlurmUser or root, can cut it short at any moment. So a handler
//! lays memory of this process alone over the ring, once, and the store goes on there: nothing more
//! can be read of what is recorded until the ring is made anew, and slurmctld lives. A SIGBUS from
//! anywhere else goes to whoever handled it before, as a rule to the kernel, which ends the process as it
//! would have.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The mapping that is watched; length 0 = none.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Whether its file was cut short.
static CUT: AtomicBool = AtomicBool::new(false);
/// Who handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// From now on the mapping at `start` outlives its file's length. One mapping at a time is watched, the
/// last one.
///
/// # Errors
/// The handler cannot be set.
pub fn watch(start: usize, length: usize) -> io::Result<()> {
    if BEFORE.get().is_none() {
        let before = set_handler()?;
        // Set twice if two threads are as early as this; both are then right.
        let _ = BEFORE.set(before);
    }
    LENGTH.store(0, Ordering::SeqCst);
    CUT.store(false, Ordering::SeqCst);
    START.store(start, Ordering::SeqCst);
    LENGTH.store(length, Ordering::SeqCst);
    Ok(())
}

/// The mapping at `start` is about to go.
pub fn unwatch(start: usize) {
    if START.load(Ordering::SeqCst) == start {
        LENGTH.store(0, Ordering::SeqCst);
    }
}

/// Whether the file of the mapping that is watched was cut short, and nobody reads what is stored there.
pub fn was_cut() -> bool {
    CUT.load(Ordering::Relaxed)
}

fn set_handler() -> io::Result<libc::sigaction> {
    // SAFETY: all zeros is a valid sigaction: no flags, nothing blocked.
    let mut ours: libc::sigaction = unsafe { zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let mut before = MaybeUninit::uninit();
    // SAFETY: both point to sigactions; the handler has the form that SA_SIGINFO asks for, and is never
    // unmapped: the plugin is linked with -z nodelete.
    match unsafe { libc::sigaction(libc::SIGBUS, &ours, before.as_mut_ptr()) } {
        // SAFETY: sigaction has written it.
        0 => Ok(unsafe { before.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs in the thread that stored, at any of its instructions: it only loads atomics and makes system
/// calls.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a siginfo_t that lives until the handler returns.
    let (sent, at) = unsafe { ((*info).si_code <= 0, (*info).si_addr() as usize) };
    let (start, length) = (START.load(Ordering::SeqCst), LENGTH.load(Ordering::SeqCst));
    if !sent && at.wrapping_sub(start) < length && replace_mapping(start, length) {
        CUT.store(true, Ordering::SeqCst);
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: what sigaction gave for this signal; the fault comes again after the return, and goes there.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
    if sent {
        // SAFETY: delivered when this handler returns, to whom it was meant for.
        unsafe { libc::raise(signal) };
    }
}

/// Puts memory of this process in the place of the mapping.
fn replace_mapping(start: usize, length: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: errno belongs to the thread that was interrupted and is put back. The range is the mapping
    // that its owner watches, whole, and no reference into it depends on what it holds.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let got = libc::mmap(start as *mut c_void, length, protection, flags, -1, 0);
        *errno = kept;
        got != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const PAGES: usize = 16;
    const CHILD: &str = "GPUOS_TEST_SIGBUS";

    /// What a file is mapped in: 4 KiB on x86-64, up to 64 KiB on aarch64.
    fn page() -> usize {
        // SAFETY: only asks.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }

    /// A file in memory of so many pages, mapped, and its descriptor.
    fn mapped() -> (*mut u8, c_int) {
        let length = PAGES * page();
        // SAFETY: a new file in memory and a new mapping of it, at an address that the kernel chooses.
        unsafe {
            let fd = libc::memfd_create(c"cut".as_ptr(), 0);
            assert!(fd >= 0 && libc::ftruncate(fd, length as libc::off_t) == 0);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            let at = libc::mmap(null, length, protection, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            (at.cast(), fd)
        }
    }

    #[test]
    fn a_store_past_the_end_of_a_cut_file_goes_on() {
        let length = PAGES * page();
        for left in [0, page(), 3 * page() + 7] {
            let (at, fd) = mapped();
            watch(at as usize, length).expect("sets the handler");
            for round in 0..3u8 {
                if round == 1 {
                    // SAFETY: the descriptor is open.
                    assert_eq!(unsafe { libc::ftruncate(fd, left as libc::off_t) }, 0);
                }
                for byte in 0..length {
                    // SAFETY: inside the mapping.
                    unsafe { at.add(byte).write_volatile(round) };
                }
                assert_eq!(was_cut(), round > 0, "{left} bytes left, round {round}");
                // SAFETY: as above.
                assert_eq!(unsafe { at.add(length - 1).read_volatile() }, round);
            }
            unwatch(at as usize);
        }
    }

    #[test]
    fn other_faults_end_the_process_as_before() {
        if std::env::var_os(CHILD).is_some() {
            // SAFETY: the default ends a process, as it does in slurmctld.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            let ((ours, _), (other, fd)) = (mapped(), mapped());
            watch(ours as usize, PAGES * page()).expect("sets the handler");
            // SAFETY: the descriptor is open; the store is the fault that this test is about.
            unsafe {
                libc::ftruncate(fd, 0);
                other.write_volatile(1);
            }
            return;
        }
        let me = std::env::current_exe().expect("a path");
        let mut child = Command::new(me);
        child.args([
            "--exact",
            "tell::sigbus::tests::other_faults_end_the_process_as_before",
        ]);
        let ended = child.env(CHILD, "1").output().expect("runs");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
