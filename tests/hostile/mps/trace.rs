//! Has a process of the same user execute another program: ptrace(2), as a debugger does.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::attacker::say;

/// Attaches to a process and has it execute a program.
#[cfg(target_arch = "x86_64")]
pub fn execute(pid: &str, program: &str) {
    const EXECVE: u64 = 59;
    let pid: libc::pid_t = pid.trim().parse().expect("a number");
    let ask = |request: libc::c_uint, place: u64, value: u64| {
        // SAFETY: the requests read and write registers and words of a process that this one has stopped; what they write here is `registers`,
        // which outlives them.
        unsafe { libc::ptrace(request, pid, place as *mut c_void, value as *mut c_void) }
    };
    if ask(libc::PTRACE_ATTACH, 0, 0) != 0 {
        return say("not traced");
    }
    let mut status = 0;
    // SAFETY: the status is a place of this function's.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    // SAFETY: registers are numbers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    assert_eq!(ask(libc::PTRACE_GETREGS, 0, &raw mut registers as u64), 0);
    // A page below what it uses: the program's name, and a list with it.
    let name = (registers.rsp - 4096) & !15;
    let list = name - 64;
    let mut bytes = program.as_bytes().to_vec();
    bytes.resize((bytes.len() / 8 + 1) * 8, 0);
    for (at, word) in (name..).step_by(8).zip(bytes.chunks_exact(8)) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        assert_eq!(ask(libc::PTRACE_POKEDATA, at, word), 0);
    }
    for (at, word) in [(list, name), (list + 8, 0)] {
        assert_eq!(ask(libc::PTRACE_POKEDATA, at, word), 0);
    }
    // It waits in a call, which it makes once more with other words.
    registers.rip -= 2;
    registers.rax = EXECVE;
    registers.orig_rax = u64::MAX;
    (registers.rdi, registers.rsi, registers.rdx) = (name, list, 0);
    assert_eq!(ask(libc::PTRACE_SETREGS, 0, &raw mut registers as u64), 0);
    // SAFETY: as above.
    unsafe {
        libc::ptrace(
            libc::PTRACE_DETACH,
            pid,
            null_mut::<c_void>(),
            null_mut::<c_void>(),
        )
    };
    say("traced");
}

/// Elsewhere it is not tried.
#[cfg(not(target_arch = "x86_64"))]
pub fn execute(_pid: &str, _program: &str) {
    say("not traced");
}
