//! Reads of this process' own memory that cannot fault.
//!
//! A wrong offset in slurmctld must end in a refused check, never in a signal.
//! The kernel copies the bytes (process_vm_readv on the own pid, or by way of a
//! pipe where that is forbidden: `ways`) and answers EFAULT where a plain load
//! would have ended the daemon.

use std::cell::RefCell;
use std::mem::{MaybeUninit, size_of};

mod ways;

pub use ways::detour;

/// Types for which every bit pattern is a value.
///
/// # Safety
/// Implementors have no padding, no invalid bit pattern and no drop glue.
pub unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for u16 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: integers.
unsafe impl Plain for i64 {}
// SAFETY: integers.
unsafe impl Plain for usize {}

/// Reads a value at `address`, or `None` when that memory is not readable.
pub fn read<T: Plain>(address: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    copy(address, value.as_mut_ptr().cast(), size_of::<T>()).then(|| {
        // SAFETY: the kernel filled all size_of::<T>() bytes, and T: Plain takes any of them.
        unsafe { value.assume_init() }
    })
}

/// Reads `len` bytes at `address`.
pub fn read_bytes(address: usize, len: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0u8; len];
    copy(address, buffer.as_mut_ptr(), len).then_some(buffer)
}

/// Reads a NUL-terminated string of at most `max` bytes; not UTF-8 or longer gives `None`.
pub fn read_str(address: usize, max: usize) -> Option<String> {
    const CHUNK: usize = 64;
    if address == 0 {
        return None;
    }
    let mut bytes = Vec::new();
    while bytes.len() <= max {
        let at = address.checked_add(bytes.len())?;
        // Up to the next chunk border: a string may end just before an unmapped page.
        let len = CHUNK - at % CHUNK;
        let chunk = read_bytes(at, len)?;
        if let Some(end) = chunk.iter().position(|b| *b == 0) {
            bytes.extend_from_slice(&chunk[..end]);
            return if bytes.len() <= max {
                String::from_utf8(bytes).ok()
            } else {
                None
            };
        }
        bytes.extend_from_slice(&chunk);
    }
    None
}

/// Reads a NUL-terminated text of at most `max` bytes, page by page: for longer ones than
/// [`read_str`] is meant for, in any encoding. Without the NUL.
pub fn read_text(address: usize, max: usize) -> Option<Vec<u8>> {
    const PAGE: usize = 4096;
    let mut bytes = Vec::new();
    while bytes.len() <= max {
        let at = address.checked_add(bytes.len())?;
        let chunk = read_bytes(at, PAGE - at % PAGE)?;
        if let Some(end) = chunk.iter().position(|b| *b == 0) {
            bytes.extend_from_slice(&chunk[..end]);
            return (bytes.len() <= max).then_some(bytes);
        }
        bytes.extend_from_slice(&chunk);
    }
    None
}

/// Asks the processor to have the memory at an address ready soon. Only a hint: it may be any address, what
/// is there is not read by the program, and nothing happens where it is not mapped.
#[inline]
pub fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch neither faults nor changes anything, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Bytes that [`in_blocks`] has the kernel copy at once: the records of many nodes lie side by side.
const BLOCK: usize = 64 << 10;
/// How many blocks are kept; one is replaced by another whose number leaves the same remainder.
const BLOCKS: usize = 32;

/// One copied block: its number, and its bytes, of which there are none where not all of it is readable.
struct Block {
    number: usize,
    bytes: Vec<u8>,
}

thread_local! {
    static COPIES: RefCell<Option<Vec<Option<Block>>>> = const { RefCell::new(None) };
}

/// Has the reads of `work` on this thread served from copies of whole blocks: one system call for thousands of
/// reads. For checks of many records that nobody changes meanwhile: what is read is as it was when its block was
/// copied. Allocates; not for the hot path.
pub fn in_blocks<R>(work: impl FnOnce() -> R) -> R {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            let _ = COPIES.try_with(|copies| copies.replace(None));
        }
    }
    let _off = Off;
    let _ = COPIES.try_with(|copies| copies.replace(Some((0..BLOCKS).map(|_| None).collect())));
    work()
}

/// Reads from the copy of a block, if copies are kept and the whole block is readable.
fn from_block(address: usize, to: *mut u8, len: usize) -> bool {
    let (number, at) = (address / BLOCK, address % BLOCK);
    if at + len > BLOCK {
        return false;
    }
    COPIES
        .try_with(|copies| {
            let mut copies = copies.borrow_mut();
            let Some(kept) = copies.as_mut() else {
                return false;
            };
            let slot = &mut kept[number % BLOCKS];
            let block = match slot {
                Some(block) if block.number == number => block,
                _ => {
                    let mut bytes = vec![0u8; BLOCK];
                    if !ask_kernel(number * BLOCK, bytes.as_mut_ptr(), BLOCK) {
                        bytes.clear();
                    }
                    slot.insert(Block { number, bytes })
                }
            };
            let Some(found) = block.bytes.get(at..at + len) else {
                return false;
            };
            // SAFETY: `to` has room for `len` bytes, by the callers of the private function `copy`.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to, len) };
            true
        })
        .unwrap_or(false)
}

fn copy(address: usize, to: *mut u8, len: usize) -> bool {
    if address < 4096 || address.checked_add(len).is_none() {
        return false;
    }
    from_block(address, to, len) || ask_kernel(address, to, len)
}

fn ask_kernel(address: usize, to: *mut u8, len: usize) -> bool {
    // SAFETY: `to` has room for `len` bytes that are the callers' own, all in this file.
    unsafe { ways::copy(address, to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_blocks_are_the_same_and_survive_the_same() {
        let many: Vec<u64> = (0..40_000).collect();
        let end = many.as_ptr_range().end as usize;
        in_blocks(|| {
            for (i, value) in many.iter().enumerate().step_by(97) {
                let at = &raw const *value as usize;
                assert_eq!(read::<u64>(at), Some(i as u64));
                // Across the border of two values, and of two blocks.
                assert!(read_bytes(at, 16.min(end - at)).is_some());
            }
            for nothing in [0, 0x10_0000, usize::MAX - 3] {
                assert_eq!(read::<u64>(nothing), None);
            }
        });
        let mut changing = 1u64;
        let at = &raw mut changing;
        // SAFETY: the value of this test, changed by nobody else.
        in_blocks(|| unsafe {
            assert_eq!(read::<u64>(at as usize), Some(1));
            at.write_volatile(2);
        });
        assert_eq!(read::<u64>(at as usize), Some(2));
    }

    #[test]
    fn reads_what_is_there_and_survives_what_is_not() {
        let value = 0x1234_5678_9abc_def0_u64;
        assert_eq!(read::<u64>(&raw const value as usize), Some(value));
        assert_eq!(read::<u64>(0), None);
        assert_eq!(read::<u64>(0x10_0000), None);
        assert_eq!(read::<u64>(usize::MAX - 3), None);
        let text = c"a string that is longer than one chunk of the reader, to cross its border at least once";
        assert_eq!(
            read_str(text.as_ptr() as usize, 200).as_deref(),
            text.to_str().ok()
        );
        assert_eq!(read_str(text.as_ptr() as usize, 10), None);
        for address in [0, 1, usize::MAX, &raw const value as usize] {
            prefetch(address);
        }
        assert_eq!(value, 0x1234_5678_9abc_def0);
    }
}
