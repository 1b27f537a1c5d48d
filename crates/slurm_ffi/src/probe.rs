//! Probe objects: records that Slurm's own functions make or read, in which every field has a value of its own.
//!
//! A structure whose fields only changed places has the size that its rows say. Here Slurm unpacks buffers that
//! were written in the format of its release, copies records that were filled by the table, and makes new ones; what
//! comes of it must show each value where the table says. That is done in a child of slurmctld while it starts:
//! whatever a patched Slurm does with such a record, slurmctld lives.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::time::{Duration, Instant};

use crate::api;
use crate::layout::{Fields, Layout};
use crate::mem::{Plain, read, read_str};
use crate::release::Release;
use crate::{log, messages};

mod gres;
mod jobs;
mod wire;

/// How long the child may take. It needs a few milliseconds; a machine that is busy gives it less than all of a core.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a probe gave no answer.
#[derive(Debug)]
enum No {
    /// The table is wrong.
    Misfit(String),
    /// This Slurm lacks the function, or is not configured for what it makes.
    Skip(String),
}

impl From<String> for No {
    fn from(why: String) -> No {
        No::Misfit(why)
    }
}

type Answer = Result<(), No>;

/// What a probe works with.
struct Probe<'a> {
    fields: &'a Fields,
    layout: &'a Layout,
    release: Release,
}

type Check = fn(&Probe<'_>) -> Answer;

/// Name of Slurm's function, and what is done with it.
const ALL: [(&str, Check); 7] = [
    ("gres_job_state_unpack", gres::unpacked_request),
    ("gres_job_state_dup", gres::copied_request),
    ("gres_node_state_unpack", gres::unpacked_node),
    ("gres_node_state_list_dup", gres::copied_node),
    ("unpack_job_resources", jobs::resources),
    ("copy_job_record_to_job_desc", jobs::description),
    ("part_record_create", jobs::partition),
];

/// Holds the table against probe objects.
///
/// # Errors
/// A sentence that says which field of the table is not this Slurm's.
pub fn objects(fields: &Fields, layout: &Layout, release: Release) -> Result<(), String> {
    let probe = Probe {
        fields,
        layout,
        release,
    };
    for tried in 0..2 {
        match in_child(&probe) {
            Ok(Some(told)) => return judge(&told),
            // A lock that another thread of slurmctld had when the child was made is never released there.
            Ok(None) if tried == 0 => {}
            Ok(None) => return Err("Slurm's own functions do not return from the test".into()),
            Err(why) => {
                log::info(&messages::no_probe_objects(why));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What the child's lines say: each probe has `at`, and then `ok`, `skip` or `no`.
fn judge(told: &str) -> Result<(), String> {
    let mut last = None;
    for line in told.lines() {
        match line.split_once(' ') {
            Some(("at", name)) => last = Some(name),
            Some(("no", why)) => return Err(why.to_owned()),
            Some(("skip", why)) => log::debug(&format!("a probe is left out: {why}")),
            _ => {}
        }
    }
    match (told.ends_with("end\n"), last) {
        (true, _) => Ok(()),
        (false, Some(name)) => Err(format!(
            "Slurm's {name} does not survive a record made by the table"
        )),
        (false, None) => Err("the child that makes probe objects ended at once".into()),
    }
}

/// Runs all probes in a child; gives what it wrote, `None` where it took too long.
fn in_child(probe: &Probe<'_>) -> Result<Option<String>, String> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: both are this process' own and nobody else's.
    let (mut from, to) = unsafe { ends.map(|end| std::fs::File::from_raw_fd(end)).into() };
    // SAFETY: the child calls nothing but Slurm's functions and the allocator, whose lock glibc takes over a fork,
    // and ends by _exit.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(std::io::Error::last_os_error().to_string()),
        0 => {
            let to: std::fs::File = to;
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child(probe, &to)));
            // SAFETY: ends the child without anything that slurmctld does at its end.
            unsafe { libc::_exit(0) }
        }
        pid => {
            drop(to);
            let told = listen(&mut from);
            // SAFETY: a child of this process that nobody has waited for.
            unsafe {
                if told.is_none() {
                    libc::kill(pid, libc::SIGKILL);
                }
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
            Ok(told)
        }
    }
}

/// Reads until the child has ended; `None` after [`PATIENCE`].
fn listen(from: &mut std::fs::File) -> Option<String> {
    let until = Instant::now() + PATIENCE;
    let mut told = Vec::new();
    loop {
        let left = until.checked_duration_since(Instant::now())?;
        let mut poll = libc::pollfd {
            fd: from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let wait = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: one descriptor of this function's own.
        if unsafe { libc::poll(&raw mut poll, 1, wait) } <= 0 {
            continue;
        }
        let mut some = [0; 4096];
        match from.read(&mut some) {
            Ok(0) => return Some(String::from_utf8_lossy(&told).into_owned()),
            Ok(count) => told.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Some(String::from_utf8_lossy(&told).into_owned()),
        }
    }
}

/// The child's work: one line to the parent before and after each probe.
fn child(probe: &Probe<'_>, to: &std::fs::File) {
    let tell = |line: &str| {
        let line = format!("{}\n", line.replace('\n', " "));
        // SAFETY: bytes of this function's own; a lost line is one that the parent misses.
        unsafe { libc::write(to.as_raw_fd(), line.as_ptr().cast(), line.len()) };
    };
    tell("at the start");
    be_quiet(to.as_raw_fd(), probe.release);
    for (name, check) in ALL {
        tell(&format!("at {name}"));
        match check(probe) {
            Ok(()) => tell(&format!("ok {name}")),
            Err(No::Skip(why)) => tell(&format!("skip {name}: {why}")),
            Err(No::Misfit(why)) => tell(&format!("no {why}, by {name}")),
        }
    }
    tell("end");
}

/// Keeps the child's words out of slurmctld's log, its end out of everybody's sight, and the node's memory out of a
/// core file.
fn be_quiet(keep: c_int, release: Release) {
    // SAFETY: all of it is the child's own: the descriptors are copies, limits and handlers not the parent's.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        for signal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGABRT,
            libc::SIGILL,
            libc::SIGFPE,
        ] {
            libc::signal(signal, libc::SIG_DFL);
        }
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        if nowhere >= 0 {
            for fd in 0..1024 {
                if fd != keep && fd != nowhere && libc::fcntl(fd, libc::F_GETFD) >= 0 {
                    libc::dup2(nowhere, fd);
                }
            }
        }
    }
    // Zeros say "quiet".
    match release >= WITH_FORMAT_FROM {
        true => alter_log([0; 5]),
        false => alter_log([0; 4]),
    }
}

/// The options of Slurm's log say in which form lines are written from here on, and have five words in place of four.
/// That decides how they are handed over: four words in two registers; more of them on the stack under the C ABI of
/// x86-64, and by their address under that of aarch64.
const WITH_FORMAT_FROM: Release = Release::new(23, 2, 0);

/// Calls Slurm's `log_alter(log_options_t, log_facility_t, char *)`.
fn alter_log<const WORDS: usize>(options: [u32; WORDS]) {
    #[repr(C)]
    struct Options<const WORDS: usize>([u32; WORDS]);
    type Alter<const WORDS: usize> =
        unsafe extern "C" fn(Options<WORDS>, c_int, *mut c_char) -> c_int;
    if let Ok(alter) = function::<Alter<WORDS>>(c"slurm_log_alter") {
        // SAFETY: Slurm's function of this name, with options as large as those of its release. Without a file's name
        // it opens none.
        unsafe { alter(Options(options), 0, std::ptr::null_mut()) };
    }
}

/// One of Slurm's functions, which has the type that the caller says.
fn function<F: Copy>(name: &CStr) -> Result<F, No> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let at = api::symbol(name)
        .ok_or_else(|| No::Skip(format!("this Slurm has no {}", name.to_string_lossy())))?;
    // SAFETY: a function's address, of the type that every release of the table gives it.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&at) })
}

/// Makes a `buf_t` of Slurm's with these bytes, which stay for as long as the child.
fn buffer(bytes: Vec<u8>) -> Result<*mut c_void, No> {
    type Create = unsafe extern "C" fn(*mut c_char, u32) -> *mut c_void;
    let create = function::<Create>(c"slurm_create_buf")?;
    let bytes = bytes.leak();
    // SAFETY: buf_t *create_buf(char *data, uint32_t size), which takes the bytes over.
    Ok(unsafe { create(bytes.as_mut_ptr().cast(), bytes.len() as u32) })
}

/// Zeroed memory, larger than any record, that stays for as long as the child.
fn zeroed() -> usize {
    vec![0u64; 2048].leak().as_mut_ptr() as usize
}

/// Puts a value into a record that was made by [`zeroed`].
fn store<T: Plain>(at: usize, offset: usize, value: T) {
    assert!(offset + size_of::<T>() <= 16_384);
    // SAFETY: within the room, which is the child's own.
    unsafe { ((at + offset) as *mut T).write_unaligned(value) }
}

/// A text that stays for as long as the child.
fn text(words: &str) -> usize {
    let mut bytes = words.as_bytes().to_vec();
    bytes.push(0);
    bytes.leak().as_ptr() as usize
}

/// Checks that a field has a value.
fn same<T: Plain + PartialEq + std::fmt::Debug>(
    at: usize,
    offset: usize,
    expected: T,
    what: &str,
) -> Result<(), String> {
    match read::<T>(at + offset) {
        Some(value) if value == expected => Ok(()),
        Some(value) => Err(format!(
            "{what} is {value:?}, where it was made {expected:?}"
        )),
        None => Err(format!("{what} is unreadable")),
    }
}

/// Checks that a field points at a text.
fn same_text(at: usize, offset: usize, expected: &str, what: &str) -> Result<(), String> {
    let found = read::<usize>(at + offset).and_then(|text| read_str(text, 256));
    match found.as_deref() == Some(expected) {
        true => Ok(()),
        false => Err(format!("{what} is not the text that it was made with")),
    }
}

/// Checks that a field points at a bitmap of so many bits, the first ones of which are these.
fn same_bits(at: usize, offset: usize, bits: usize, first: u64, what: &str) -> Result<(), String> {
    let map = read::<usize>(at + offset).unwrap_or(0);
    let found = crate::bits::probe(map).map(|(len, _)| len);
    let word = read::<u64>(map.wrapping_add(16));
    match found == Some(bits) && word == Some(first) {
        true => Ok(()),
        false => Err(format!("{what} is not the bitmap that it was made with")),
    }
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn the_child_is_believed_when_it_came_to_its_end() {
        for (told, good) in [
            (
                "at the start\nat a\nok a\nat b\nskip b: no such function\nend\n",
                true,
            ),
            ("at the start\nat a\nok a\nat b\n", false),
            (
                "at the start\nat a\nno job_details.min_nodes is 3\nend\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(judge(told).is_ok(), good, "{told}");
        }
        let why = judge("at the start\nat gres_job_state_dup\n").expect_err("ended");
        assert!(why.contains("gres_job_state_dup"), "{why}");
    }
}
