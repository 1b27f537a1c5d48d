//! What gpuosd says of memory that is short, for a program that wants to know: a descriptor to wait for, and a word. A program that does not
//! look loses nothing.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use gpuos_memory::protocol::Short;

use crate::process;

/// As [`gpuos_mem_short`] answers it.
static STATE: AtomicI32 = AtomicI32::new(0);
/// The descriptor; -1: nobody has asked for it.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// gpuosd says that memory is short, or is not any more.
pub(crate) fn tell(what: Short) {
    let (state, sentence) = match what {
        Short::Calm => (0, None),
        Short::Node => (1, Some("the node is short of host memory")),
        Short::Job => (2, Some("the job is short of its host memory")),
    };
    if STATE.swap(state, Ordering::SeqCst) == state {
        return;
    }
    ring();
    if let Some(sentence) = sentence {
        process::say(format_args!("{sentence}: what can be freed should be"));
    }
}

/// Whether memory is short now.
pub(crate) fn is_short() -> bool {
    STATE.load(Ordering::Relaxed) != 0
}

/// Nothing is kept for now: the process is about to be saved as a whole.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Has nothing kept from now on, or again.
pub(crate) fn pause(paused: bool) {
    PAUSED.store(paused, Ordering::SeqCst);
}

/// Whether host memory that nothing is in may be kept.
pub(crate) fn may_keep() -> bool {
    !is_short() && !process::is_pinned() && !PAUSED.load(Ordering::SeqCst)
}

fn ring() {
    let bell = BELL.load(Ordering::SeqCst);
    if bell >= 0 {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of this frame. A descriptor that the program has closed is an error, which changes nothing; the counter
        // does not block.
        unsafe { libc::write(bell, one.as_ptr().cast(), one.len()) };
    }
}

/// A descriptor for `poll` that is readable when host memory has become short, or is not any more; -1: there can be none. It is the
/// library's: a program neither reads nor closes it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpuos_mem_short_fd() -> i32 {
    let known = BELL.load(Ordering::SeqCst);
    if known >= 0 {
        return known;
    }
    // SAFETY: no pointers.
    let new = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if new < 0 {
        return -1;
    }
    match BELL.compare_exchange(-1, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            // What was told before is to be seen, too.
            if STATE.load(Ordering::SeqCst) != 0 {
                ring();
            }
            new
        }
        Err(other) => {
            // SAFETY: it was made above, and nobody else knows its number.
            unsafe { libc::close(new) };
            other
        }
    }
}

/// What is short: 0 nothing, 1 the host memory of the node, 2 that of the job. The descriptor is not readable until it changes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn gpuos_mem_short() -> i32 {
    let bell = BELL.load(Ordering::SeqCst);
    if bell >= 0 {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes of this frame. The read does not block.
        unsafe { libc::read(bell, count.as_mut_ptr().cast(), count.len()) };
    }
    STATE.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(bell: i32) -> bool {
        let mut poll = libc::pollfd {
            fd: bell,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure of this frame.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn what_is_short_is_told_once_by_the_descriptor() {
        tell(Short::Node);
        let bell = gpuos_mem_short_fd();
        assert!(bell >= 0 && gpuos_mem_short_fd() == bell);
        assert!(readable(bell), "what was told before");
        assert_eq!(gpuos_mem_short(), 1);
        assert!(!readable(bell));
        tell(Short::Node);
        assert!(!readable(bell), "nothing has changed");
        tell(Short::Calm);
        assert!(readable(bell));
        assert_eq!((gpuos_mem_short(), readable(bell)), (0, false));
    }
}
