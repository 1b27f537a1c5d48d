//! Programs of the kernel that deny device files to a control group of version 2, as Slurm attaches them.

#![allow(unsafe_code, reason = "bpf(2)")]

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

const PROG_LOAD: c_long = 5;
const PROG_ATTACH: c_long = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_DEVICE: u32 = 6;

/// What programs of groups below mean for the one that is attached.
#[derive(Clone, Copy, Debug)]
pub enum Below {
    /// The nearest one decides: so Slurm attaches its own.
    Override = 1,
    /// All of them have to allow.
    Multi = 2,
}

/// The start of `union bpf_attr` for `BPF_PROG_LOAD`; the kernel takes what is left out for zero.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
}

/// The same for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    group: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// One instruction: operation, registers, jump, number.
fn op(code: u8, registers: u8, jump: i16, number: u32) -> u64 {
    u64::from(code)
        | u64::from(registers) << 8
        | u64::from(jump as u16) << 16
        | u64::from(number) << 32
}

fn bpf<T>(command: c_long, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the kernel reads that many bytes of a value that lives during the call, and what it points to does too.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// Denies NVIDIA's device files with these minor numbers to a group, until the group goes.
pub fn deny(group: &Path, minors: &[u32], below: Below) -> io::Result<()> {
    // The context in r1: kind of access, major, minor.
    let mut code = vec![
        op(0x61, 0x12, 4, 0),
        op(0x55, 0x02, minors.len() as i16 + 1, 195),
    ];
    code.push(op(0x61, 0x12, 8, 0));
    for (at, minor) in minors.iter().enumerate() {
        let rest = minors.len() - at - 1;
        code.push(op(0x15, 0x02, rest as i16 + 2, *minor));
    }
    // r0 = 1 and out, or r0 = 0 and out.
    code.extend([
        op(0xb7, 0, 0, 1),
        op(0x95, 0, 0, 0),
        op(0xb7, 0, 0, 0),
        op(0x95, 0, 0, 0),
    ]);
    let license = c"MIT";
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    let program = bpf(PROG_LOAD, &load)? as i32;
    // SAFETY: the kernel just gave it, and nobody else has it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let folder = File::open(group)?;
    let attach = Attach {
        group: folder.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        kind: ATTACH_DEVICE,
        flags: below as u32,
    };
    bpf(PROG_ATTACH, &attach).map(drop)
}
