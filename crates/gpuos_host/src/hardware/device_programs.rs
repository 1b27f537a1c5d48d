//! Programs of the kernel that keep a control group of version 2 to its device files: one is loaded, and attached to a group. Whether
//! the kernel has such there is no file that says so on all hosts, so it is asked: a program of two instructions is loaded, attached to
//! nothing, and gone with its descriptor.

#![allow(unsafe_code, reason = "bpf(2)")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// What the kernel answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DevicePrograms {
    /// It has them.
    Yes,
    /// It is built without them.
    No,
    /// It does not tell this process, which is not root or is confined.
    #[default]
    Unknown,
}

/// `BPF_PROG_LOAD`, `BPF_PROG_ATTACH`, `BPF_PROG_TYPE_CGROUP_DEVICE` and `BPF_CGROUP_DEVICE` of linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_DEVICE: u32 = 6;

/// `r0 = 1` and `exit`: everything may be opened.
const ALLOW: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];

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

/// Has the kernel check and keep a program for groups, one instruction a number. It is gone with the descriptor, unless it is attached.
///
/// # Errors
/// The kernel has no such programs, does not take this one, or does not let this process.
pub fn load(code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: u32::try_from(code.len()).map_err(io::Error::other)?,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads that many bytes of `load`, which lives during the call, as do the program and the text that it points
    // to; it writes nowhere, because there is no log.
    let program = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            std::ptr::from_ref(&load),
            size_of::<Load>(),
        )
    };
    if program < 0 {
        return Err(io::Error::last_os_error());
    }
    let program = i32::try_from(program).map_err(io::Error::other)?;
    // SAFETY: the kernel just gave it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

/// Attaches a program to a group, whose folder is open, in the place of the one that was attached so before: it holds for all processes in the
/// group and below until the group goes, whoever loaded it. Programs of groups above hold as well; below, nobody can attach another.
///
/// # Errors
/// It is no group of version 2, somebody else has attached a program to it, or the kernel does not let this process.
pub fn attach(program: impl AsFd, group: impl AsFd) -> io::Result<()> {
    let number = |of: &dyn AsRawFd| u32::try_from(of.as_raw_fd()).map_err(io::Error::other);
    let attach = Attach {
        group: number(&group.as_fd())?,
        program: number(&program.as_fd())?,
        kind: ATTACH_DEVICE,
        flags: 0,
    };
    // SAFETY: the kernel reads that many bytes of `attach`, which lives during the call; both descriptors are borrowed for as long.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_ATTACH,
            std::ptr::from_ref(&attach),
            size_of::<Attach>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the kernel of this machine. Nothing is confined by it, before or after.
pub fn ask() -> DevicePrograms {
    match load(&ALLOW) {
        Ok(_) => DevicePrograms::Yes,
        Err(error) => refused(error.raw_os_error().unwrap_or(0)),
    }
}

/// What an error says of the kernel.
fn refused(error: i32) -> DevicePrograms {
    match error {
        // There is no such call, or no such kind of program.
        libc::ENOSYS | libc::EINVAL => DevicePrograms::No,
        // EPERM: rights are looked at first.
        _ => DevicePrograms::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_of_the_kernel_or_of_who_asks() {
        assert_eq!(refused(libc::ENOSYS), DevicePrograms::No);
        assert_eq!(refused(libc::EINVAL), DevicePrograms::No);
        assert_eq!(refused(libc::EPERM), DevicePrograms::Unknown);
        assert_eq!(refused(libc::ENOMEM), DevicePrograms::Unknown);
    }

    /// A kernel that has the programs by its own list of symbols loads one for root, and tells nobody else that it has none.
    #[test]
    fn this_kernel_is_not_slandered() {
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let has = symbols
            .lines()
            .any(|line| line.split(' ').nth(2) == Some("cgroup_dev_is_valid_access"));
        if has {
            assert_ne!(ask(), DevicePrograms::No);
        }
    }
}
