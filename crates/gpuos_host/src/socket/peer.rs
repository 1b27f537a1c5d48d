//! Who is at the other end of a socket, by the kernel's word.

#![allow(
    unsafe_code,
    reason = "getsockopt(2): a process number may be 0, which rustix's type cannot hold"
)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use gpuos_core::wire::Peer;

/// Who is at the other end. The process is 0 where it is in no PID namespace of this one's: gpuosd in a container, and
/// the client outside. Rights go by the user, so that is no reason to refuse it.
///
/// # Errors
/// The kernel does not say.
pub fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut told = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into a structure of that length, for which every value is valid.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut told).cast(),
            &mut length,
        )
    };
    match done {
        0 if length as usize == size_of::<libc::ucred>() => Ok(Peer {
            uid: told.uid,
            pid: told.pid.unsigned_abs(),
        }),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
