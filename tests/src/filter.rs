//! Seccomp filters, for tests of what happens where the kernel forbids a call. slurm_ffi's tests include this file.

use std::ffi::{c_long, c_ulong};
use std::io;

/// How one call is forbidden.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    call: c_long,
    /// Number and test of an argument that the rule is limited to.
    only: Option<(usize, u32, u32)>,
    answer: u32,
}

/// The architecture that the filter is for: a number means another call on another one.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// process_vm_readv.
pub const READ: Rule = Rule {
    call: libc::SYS_process_vm_readv,
    only: None,
    answer: ALLOW,
};

/// pipe2 with O_NONBLOCK, which gpuos alone asks for: slurmctld does not live without other pipes.
pub const PIPE: Rule = Rule {
    call: libc::SYS_pipe2,
    only: Some((1, libc::BPF_JSET, libc::O_NONBLOCK as u32)),
    answer: ALLOW,
};

/// prctl(PR_GET_SECCOMP): whether there is a filter.
pub const ASK: Rule = Rule {
    call: libc::SYS_prctl,
    only: Some((0, libc::BPF_JEQ, libc::PR_GET_SECCOMP as u32)),
    answer: ALLOW,
};

impl Rule {
    /// The call fails with this error.
    pub const fn fails(mut self, errno: i32) -> Rule {
        self.answer = libc::SECCOMP_RET_ERRNO | errno as u32;
        self
    }

    /// The call ends the process, as with systemd's SystemCallFilter=.
    pub const fn kills(mut self) -> Rule {
        self.answer = libc::SECCOMP_RET_KILL_PROCESS;
        self
    }
}

/// The rules by their name, for programs that are started under them.
pub fn named(name: &str) -> Option<Vec<Rule>> {
    const EPERM: i32 = libc::EPERM;
    Some(match name {
        "refused" => vec![READ.fails(EPERM)],
        "kills" => vec![READ.kills()],
        // User-mode emulators know neither of the two.
        "emulated" => vec![ASK.fails(libc::EINVAL), READ.fails(libc::ENOSYS)],
        "odd" => vec![ASK.fails(libc::EINVAL), READ.fails(libc::EFAULT)],
        "nothing" => vec![READ.fails(EPERM), PIPE.fails(EPERM)],
        "emulated-nothing" => vec![
            ASK.fails(libc::EINVAL),
            READ.fails(libc::ENOSYS),
            PIPE.fails(EPERM),
        ],
        _ => return None,
    })
}

/// Puts the calling thread, and all that it starts, under a filter.
pub fn forbid(rules: &[Rule]) -> io::Result<()> {
    let one = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // Of struct seccomp_data: number at 0, architecture at 4, arguments from 16 on, with their low words first.
    let load = |at: usize| one(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at as u32);
    // Where the test fails, so many instructions are left out.
    let unless = |how: u32, k: u32, over: u8| one(libc::BPF_JMP | how | libc::BPF_K, 0, over, k);
    let give = |answer: u32| one(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    let foreign = one(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        1,
        0,
        ARCHITECTURE,
    );
    let mut program = vec![load(4), foreign, give(ALLOW)];
    for rule in rules {
        let rest = if rule.only.is_some() { 3 } else { 1 };
        program.push(load(0));
        program.push(unless(libc::BPF_JEQ, rule.call as u32, rest));
        if let Some((argument, how, value)) = rule.only {
            program.push(load(16 + 8 * argument));
            program.push(unless(how, value, 1));
        }
        program.push(give(rule.answer));
    }
    program.push(give(ALLOW));
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // prctl takes its arguments as unsigned longs.
    let (yes, no): (c_ulong, c_ulong) = (1, 0);
    let mode = c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the program lives over the calls, which concern this thread alone.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) == 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
