//! The ways in which the kernel copies this process' own memory, and which of them is open here.
//!
//! A way is good where the kernel answers EFAULT for every address at which a plain load would end the process, and
//! gives the bytes for all others. Not among them, and why:
//!
//! - /proc/self/mem also gives what a page without the right to be read has. Slurm's records are read by plain loads
//!   once a check has found them in order, and such a load would fault there. Under user-mode emulation the file is
//!   the emulator's memory, so that other bytes come.
//! - mincore, msync and the list of mappings say what was mapped a moment ago: a load after that can fault.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::messages;

/// One way to copy memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// process_vm_readv on the own pid: one system call.
    Direct = 1,
    /// write into a pipe and read out of it: five, four times as long for a few bytes.
    Pipe = 2,
}

/// The way in use, 0 until one was found to work. Nothing else is told by it, so that no order has to be kept.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Which way works now, and why not the first one; `None`: it is the first one.
///
/// # Errors
/// There is none: the reason, as a sentence's part that says what to do.
pub fn detour() -> Result<Option<String>, String> {
    let way = match way()? {
        way if way.works().is_ok() => way,
        _ => choose()?,
    };
    match way {
        Way::Direct => Ok(None),
        Way::Pipe => Ok(Some(match try_direct() {
            Err(why) => why,
            Ok(()) => "it was refused before".into(),
        })),
    }
}

/// Copies `len` bytes at `address`, which is anywhere, to `to`; false where not all of them can be read.
///
/// # Safety
/// `to` has room for `len` bytes, which are the caller's own.
pub unsafe fn copy(address: usize, to: *mut u8, len: usize) -> bool {
    // Once more only: what is chosen after a refusal is another way, or none.
    for _ in 0..2 {
        let Ok(way) = way() else { return false };
        // SAFETY: by the caller.
        let Err(error) = (unsafe { way.copy(address, to, len) }) else {
            return true;
        };
        // Whether it is the address that is bad, or the way since a filter came, memory that is good tells.
        let of_the_address = error.raw_os_error() == Some(libc::EFAULT);
        if way == Way::Pipe || of_the_address || way.works().is_ok() {
            return false;
        }
        CHOSEN.store(0, Ordering::Relaxed);
    }
    false
}

fn way() -> Result<Way, String> {
    match CHOSEN.load(Ordering::Relaxed) {
        1 => Ok(Way::Direct),
        2 => Ok(Way::Pipe),
        _ => choose(),
    }
}

/// Finds a way that works. Without one it is looked for again at the next read: descriptors may only be scarce.
#[cold]
fn choose() -> Result<Way, String> {
    let way = match try_direct() {
        Ok(()) => Way::Direct,
        Err(direct) => match Way::Pipe.works() {
            Ok(()) => Way::Pipe,
            Err(pipe) => return Err(messages::memory_unreadable(direct, pipe).into()),
        },
    };
    CHOSEN.store(way as u8, Ordering::Relaxed);
    Ok(way)
}

/// Whether the first way works. It is not tried under a seccomp filter: one of systemd's ends the process for a call
/// that it forbids, unless SystemCallErrorNumber= says otherwise, and nobody can ask a filter what it would do.
fn try_direct() -> Result<(), String> {
    const FILTERED: libc::c_int = 2;
    // SAFETY: only asks, and takes no further argument.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } == FILTERED {
        return Err("not tried, as a seccomp filter is in force".into());
    }
    Way::Direct.works().map_err(|error| error.to_string())
}

impl Way {
    /// Copies memory that is known to be good. An emulator may give other bytes rather than an error.
    fn works(self) -> io::Result<()> {
        let good = std::hint::black_box(0x6770_756f_735f_6d65_u64);
        let mut copied = 0_u64;
        let (from, to) = (&raw const good as usize, &raw mut copied);
        // SAFETY: `copied` has the room.
        unsafe { self.copy(from, to.cast(), size_of::<u64>())? };
        match std::hint::black_box(copied) == good {
            true => Ok(()),
            false => Err(io::Error::other("other bytes come than are there")),
        }
    }

    /// # Safety
    /// As [`copy`].
    unsafe fn copy(self, address: usize, to: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: by the caller.
        unsafe {
            match self {
                Way::Direct => direct(address, to, len),
                Way::Pipe => through_pipe(address, to, len),
            }
        }
    }
}

/// Fewer bytes than were asked for: the memory ends among them.
fn ends_early() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

/// # Safety
/// As [`copy`].
unsafe fn direct(address: usize, to: *mut u8, len: usize) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: `local` names `len` writable bytes, by the caller; the remote side is checked by the kernel.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match usize::try_from(got) {
        Ok(got) if got == len => Ok(()),
        Ok(_) => Err(ends_early()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A pipe that is made for one copy and closed after it. Kept, it would be shared by threads and by parent and child,
/// and could be closed under it by who closes all descriptors: a number that has become somebody's socket would
/// then be written to.
struct Pipe {
    from: libc::c_int,
    to: libc::c_int,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let [from, to] = ends;
        let pipe = Pipe { from, to };
        // In a process without one of the first three, anybody who writes to standard output or error would write
        // into the pipe.
        if from.min(to) <= libc::STDERR_FILENO {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(pipe)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: made by this process, and known to nobody else.
        unsafe {
            libc::close(self.from);
            libc::close(self.to);
        }
    }
}

/// # Safety
/// As [`copy`].
unsafe fn through_pipe(address: usize, to: *mut u8, len: usize) -> io::Result<()> {
    let pipe = Pipe::new()?;
    let mut done = 0;
    while done < len {
        let from = (address + done) as *const libc::c_void;
        // SAFETY: what is to be written is checked by the kernel.
        let put = unsafe { libc::write(pipe.to, from, len - done) };
        let Ok(put) = usize::try_from(put) else {
            return Err(io::Error::last_os_error());
        };
        if put == 0 {
            return Err(ends_early());
        }
        // What does not fit into the pipe takes several turns; neither call ever waits.
        let end = done + put;
        while done < end {
            // SAFETY: `to` has room for `len` bytes, by the caller, and `end` is no more than these.
            let got = unsafe { libc::read(pipe.from, to.add(done).cast(), end - done) };
            match usize::try_from(got) {
                Ok(got) if got > 0 => done += got,
                _ => return Err(io::Error::last_os_error()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [Way; 2] = [Way::Direct, Way::Pipe];

    fn bytes(way: Way, address: usize, len: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; len];
        // SAFETY: the buffer has the room.
        unsafe { way.copy(address, buffer.as_mut_ptr(), len) }.map(|()| buffer)
    }

    fn is_bad(way: Way, address: usize, len: usize) {
        let error = bytes(way, address, len).expect_err("bad memory");
        let code = error.raw_os_error();
        assert_eq!(code, Some(libc::EFAULT), "{way:?} {address:#x}+{len}");
    }

    /// Three pages: one that can be read, one that is mapped and cannot be, and a hole.
    struct Pages(usize);

    const PAGE: usize = 65_536;

    impl Pages {
        fn new() -> Pages {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory, of which only the first page is written to.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE, rights, how, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                at.cast::<u8>().write_bytes(7, 2 * PAGE);
                assert_eq!(libc::mprotect(at.add(PAGE), PAGE, libc::PROT_NONE), 0);
                assert_eq!(libc::munmap(at.add(2 * PAGE), PAGE), 0);
                Pages(at as usize)
            }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: mapped by this test.
            unsafe { libc::munmap(self.0 as *mut libc::c_void, 2 * PAGE) };
        }
    }

    #[test]
    fn each_way_gives_what_is_there_and_refuses_what_is_not() {
        let many: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let pages = Pages::new();
        for way in WAYS {
            way.works().expect("works here");
            for len in [1, 8, 4095, 4096, 4097, 65_536, 65_537, many.len()] {
                let from = many.len() - len;
                let got = bytes(way, many[from..].as_ptr() as usize, len).expect("readable");
                assert_eq!(got, many[from..], "{way:?} {len}");
            }
            assert_eq!(bytes(way, pages.0, PAGE).expect("readable"), [7; PAGE]);
            is_bad(way, pages.0, PAGE + 1);
            is_bad(way, pages.0 + PAGE - 4, 8);
            // Mapped, and a load would fault all the same; then nothing at all.
            is_bad(way, pages.0 + PAGE, 8);
            is_bad(way, pages.0 + 2 * PAGE, 8);
            for nowhere in [8, 0x10_0000, 1 << 62, usize::MAX - 64] {
                is_bad(way, nowhere, 8);
            }
        }
    }

    #[test]
    fn threads_and_children_never_get_each_others_bytes() {
        let open = || {
            let folder = std::fs::read_dir("/proc/self/fd").expect("reads");
            let links = folder.filter_map(|one| std::fs::read_link(one.ok()?.path()).ok());
            let pipes = links.filter(|link| link.to_string_lossy().starts_with("pipe:"));
            pipes.count()
        };
        /// Reads a pattern of its own, whatever others do meanwhile.
        fn loops(own: u8) -> bool {
            let pattern = vec![own; 9000];
            (0..300).all(|i| {
                let len = 1 + i * 29;
                let got = bytes(Way::Pipe, pattern.as_ptr() as usize, len);
                got.is_ok_and(|got| got == pattern[..len])
            })
        }
        let before = open();
        std::thread::scope(|scope| {
            for own in 1..8 {
                scope.spawn(move || assert!(loops(own)));
            }
            for own in 100..108 {
                // SAFETY: the child only allocates, whose lock glibc takes over a fork, calls the kernel and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let done = loops(own);
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!done)) };
                }
                let mut status = -1;
                // SAFETY: a child of this test.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                assert_eq!(status, 0, "child {own}");
            }
        });
        // Other tests of this program run beside this one, and use a few.
        assert!(open() <= before + 8, "{before} pipes, then {}", open());
    }

    #[test]
    fn a_process_without_standard_output_is_not_read_by_a_pipe() {
        let good = 5_u64;
        // SAFETY: the child calls only the kernel, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut copied = 0_u64;
            // SAFETY: descriptors of the child's own; room for the value.
            let refused = unsafe {
                libc::close(libc::STDERR_FILENO);
                let to = (&raw mut copied).cast();
                through_pipe(&raw const good as usize, to, 8).is_err() && libc::close(2) == -1
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = -1;
        // SAFETY: a child of this test.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
