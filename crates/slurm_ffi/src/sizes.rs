//! How large Slurm's structures are in this very process, held against the layout table.
//!
//! Slurm's allocator puts a mark and the size that was asked for into the two words before what it gives out
//! (src/common/xmalloc.c, the same in every release of the table), and each record is allocated by itself with the
//! size of its structure. A structure that somebody put a field into is larger; one whose fields only changed
//! places is not: for that there is [`crate::check`].

use std::ffi::{c_int, c_void};

use crate::api;
use crate::mem::read;

/// What Slurm's allocator puts two words before what it gives out.
pub const XMALLOC_MAGIC: u64 = 0x42;

/// How many bytes were asked of Slurm's allocator for what stands at an address; `None` where that is not its own.
pub fn allocated(at: usize) -> Option<usize> {
    let magic: u64 = read(at.checked_sub(16)?)?;
    let size: u64 = read(at - 8)?;
    // Nothing that is looked at here comes near this size.
    (magic == XMALLOC_MAGIC && size < 1 << 32).then_some(size as usize)
}

/// Checks that a record is exactly as large as its rows say.
pub fn exactly(at: usize, structure: &str, whole: usize) -> Result<(), String> {
    match allocated(at) {
        Some(size) if size == whole => Ok(()),
        Some(size) => Err(format!(
            "Slurm's {structure} has {size} bytes, and {whole} in the table"
        )),
        None => Err(format!(
            "what should be a {structure} is nothing that Slurm allocated"
        )),
    }
}

/// Checks that an array has room for so many elements of so many bytes; null has none to be read.
pub fn array(at: usize, count: usize, each: usize, what: &str) -> Result<(), String> {
    if at == 0 || count == 0 {
        return Ok(());
    }
    match allocated(at) {
        Some(size) if size >= count * each && size % each == 0 => Ok(()),
        _ => Err(format!("{what} is no array of {count} elements")),
    }
}

/// The start of glibc's `Elf64_Sym`, all of it that is read, and its `Dl_info`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: [u8; 4],
    value: u64,
    size: u64,
}

/// Size of one of Slurm's global variables, by the symbol table of the file that has it.
pub fn of_variable(name: &std::ffi::CStr) -> Option<usize> {
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut libc::Dl_info,
            extra: *mut *const Symbol,
            flags: c_int,
        ) -> c_int;
    }
    const RTLD_DL_SYMENT: c_int = 1;
    let address = api::symbol(name)?;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol: *const Symbol = std::ptr::null();
    // SAFETY: glibc's function; both places are this function's own, and the entry that it gives lies in the
    // symbol table of a file that stays loaded.
    unsafe {
        let found = dladdr1(address, info.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT);
        if found == 0 || symbol.is_null() || info.assume_init().dli_saddr != address {
            return None;
        }
        Some((*symbol).size as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_allocator_writes_down_is_held_against_the_table() {
        let memory = [XMALLOC_MAGIC, 24, 1, 2, 3];
        let at = &raw const memory[2] as usize;
        assert_eq!(allocated(at), Some(24));
        assert_eq!(exactly(at, "job_record", 24), Ok(()));
        for (at, whole, why) in [
            (at, 32, "has 24 bytes, and 32 in the table"),
            (at + 8, 24, "nothing that Slurm allocated"),
            (0, 24, "nothing that Slurm allocated"),
            (8, 24, "nothing that Slurm allocated"),
        ] {
            let error = exactly(at, "job_record", whole).expect_err("no such record");
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(array(at, 3, 8, "an array"), Ok(()));
        assert_eq!(array(0, 3, 8, "an array"), Ok(()));
        assert!(array(at, 4, 8, "an array").is_err());
    }

    #[test]
    fn sizes_of_variables() {
        // glibc exports `environ`, a pointer.
        assert_eq!(of_variable(c"environ"), Some(size_of::<usize>()));
        assert_eq!(of_variable(c"no such variable"), None);
    }
}
