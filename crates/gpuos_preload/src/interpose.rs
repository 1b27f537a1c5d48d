//! `dlsym` and `dlopen` of the process. Both go on to libc's by a jump, so that libc sees who called: `RTLD_NEXT` and the search path of
//! a library depend on it.
//!
//! They have no symbol version, so callers of either of glibc's two get them.

use std::arch::naked_asm;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{driver, lookup};

/// What is done with a call of `dlsym`: in two registers, by the C ABI of both architectures.
#[repr(C)]
struct Next {
    answer: usize,
    /// Where to jump instead; zero: the answer is given.
    jump: usize,
}

extern "C" fn look(handle: usize, name: *const c_char, caller: usize) -> Next {
    let answer = catch_unwind(AssertUnwindSafe(|| lookup::by_loader(handle, name, caller)));
    match answer {
        Ok(Some(answer)) => Next { answer, jump: 0 },
        _ => Next {
            answer: 0,
            jump: driver::real_dlsym(),
        },
    }
}

/// libc's `dlopen`.
extern "C" fn real_dlopen() -> usize {
    static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| driver::libc_function(c"dlopen"))
}

/// `dlsym`: the driver's functions are answered by their wrappers.
///
/// # Safety
/// As for libc's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "mov rdx, qword ptr [rsp + 16]",
        "sub rsp, 8",
        "call {look}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "jz 2f",
        "jmp rdx",
        "2:",
        "ret",
        look = sym look,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "mov x2, x30",
        "bl {look}",
        "mov x16, x1",
        "mov x17, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        look = sym look,
    );
}

/// `dlopen` without `RTLD_DEEPBIND`, which would have a library find the driver's functions before the wrappers.
///
/// # Safety
/// As for libc's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: i32) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "and esi, -9",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        real = sym real_dlopen,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "and w1, w1, #-9",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "bl {real}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        real = sym real_dlopen,
    );
}
