//! In slurmstepd: the way to a daemon of this node, gpuosd or gpuos_mover, which speak the same protocol.
//!
//! The socket does not block, and two lines go out in one piece that fits into any socket's buffer: what does not go through at once is
//! left out.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use gpuos_core::wire::{
    Code, Lines, MAX_REPLY, MAX_REQUEST, PROTOCOL, Reply, Request, decode, encode, root_socket,
};

/// The value of one of the plugin's arguments, which start with `name` and a `=`; of several the last counts.
///
/// # Safety
/// `argv` has `argc` C strings, as SPANK hands them to every hook.
pub unsafe fn argument(argc: c_int, argv: *const *mut c_char, name: &str) -> Option<String> {
    let count = usize::try_from(argc).unwrap_or(0);
    let mut value = None;
    for at in 0..if argv.is_null() { 0 } else { count } {
        // SAFETY: promised by the caller.
        let word = unsafe { *argv.add(at) };
        if word.is_null() {
            continue;
        }
        // SAFETY: a C string, promised by the caller.
        let word = unsafe { CStr::from_ptr(word) }.to_str().unwrap_or_default();
        let own = word.strip_prefix(name).and_then(|w| w.strip_prefix('='));
        value = own.map(str::to_owned).or(value);
    }
    value
}

/// Whether a value of an answer can be the path of a folder.
pub fn is_path(path: &str) -> bool {
    let plain = path.bytes().all(|b| b.is_ascii_graphic());
    path.starts_with('/') && path.len() < 4096 && plain && path.split('/').all(|part| part != "..")
}

/// What a daemon says to a step.
pub enum Answer {
    /// What was asked for is there, or not.
    Prepared {
        /// For the step's user.
        notes: Vec<String>,
        /// For its tasks.
        environment: BTreeMap<String, String>,
        /// Why they must not run.
        failed: Option<String>,
    },
    /// It says no.
    Refused(Code, String),
    /// A release that knew no such wish.
    Unknown,
}

/// Waits for an answer; none when the time is over or the daemon has gone.
pub fn answer(socket: &OwnedFd, deadline: Instant) -> Option<Answer> {
    let mut lines = Lines::new(MAX_REPLY);
    loop {
        while let Some(line) = lines.next_line().ok()? {
            match decode::<Reply>(&line, MAX_REPLY).ok()? {
                Reply::Hello { .. } => {}
                Reply::Prepared {
                    notes,
                    environment,
                    failed,
                } => {
                    return Some(Answer::Prepared {
                        notes,
                        environment,
                        failed,
                    });
                }
                Reply::Refused { code, message } => return Some(Answer::Refused(code, message)),
                Reply::Done { .. } => return Some(Answer::Unknown),
                _ => return None,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor that is open, and its record.
        if left.is_zero() || unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as i32) } < 0 {
            return None;
        }
        let mut bytes = [0u8; 4096];
        // SAFETY: the buffer has `len` bytes.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(got) {
            Ok(0) => return None,
            Ok(count) => lines.push(&bytes[..count]),
            // Nothing yet: time decides. A daemon that was killed is an error.
            Err(_) if is_for_later(&std::io::Error::last_os_error()) => {}
            Err(_) => return None,
        }
    }
}

fn is_for_later(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Tells a daemon, at once or not at all.
pub fn send(path: &str, request: &Request) -> Option<OwnedFd> {
    let hello = Request::Hello {
        protocol: PROTOCOL,
        client: concat!("spank_gpuos ", env!("CARGO_PKG_VERSION")).into(),
    };
    let mut text = encode(&hello, MAX_REQUEST).ok()?;
    text.extend(encode(request, MAX_REQUEST).ok()?);
    // slurmstepd is root here, and root has a socket of its own that no user can fill.
    let socket = connect(&root_socket(path)).or_else(|| connect(path))?;
    // SAFETY: the descriptor is open and the buffer has `len` bytes. Nobody at the other end is no signal.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            text.as_ptr().cast(),
            text.len(),
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    (usize::try_from(sent) == Ok(text.len())).then_some(socket)
}

/// Whether a daemon listens there.
pub fn listens(path: &str) -> bool {
    connect(&root_socket(path))
        .or_else(|| connect(path))
        .is_some()
}

/// Connects at once or not at all: std's connect would wait for a daemon whose queue is full.
fn connect(path: &str) -> Option<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: sockaddr_un is plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // One zero has to stay at the end.
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as c_char;
    }
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the descriptor is open, the address is whole and of that size.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) };
    (rc == 0).then_some(socket)
}
