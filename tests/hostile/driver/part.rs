//! The parts of programs on a simulated GPU: one that computes, one that says what is not so, and one that goes for the processes that
//! gpuosd has call the driver.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use super::watch::callers;
use crate::attacker::{ROLE, WORDS, say};
use crate::memory_grants::Driver;

/// Four fifths of the simulated GPU.
const PARTS: usize = 13;
const PART: u64 = 2 << 20;
/// Between two looks for a process that lives for moments.
const LOOK: Duration = Duration::from_millis(1);

/// A program of a job: `moves`, or `pinned` and what is done meanwhile; or `claims`.
pub fn turns(words: &[&str]) {
    match words {
        ["moves"] => works(false),
        ["pinned", "stays"] => works(true),
        ["pinned", how] => {
            let own = std::env::current_exe().expect("this program");
            let mut child = Command::new(own)
                .args(["--exact", "hostile::plays_its_part", "--nocapture"])
                .env_remove("LD_PRELOAD")
                .env(ROLE, "callers")
                .env(WORDS, format!("{how}\n{}", std::process::id()))
                .spawn()
                .expect("a child");
            works(true);
            child.wait().expect("its end");
        }
        ["claims"] => claims(),
        other => panic!("no such program: {other:?}"),
    }
}

/// Fills its memory again and again and looks at every sum, until the job ends.
fn works(pinned: bool) {
    let cuda = Driver::open();
    cuda.call("cuInit", &[0]);
    cuda.get("cuCtxCreate_v2", &[0, 0]);
    let parts: Vec<u64> = (0..PARTS)
        .map(|_| cuda.get("cuMemAlloc_v2", &[PART]))
        .collect();
    let (fill, add) = cuda.fill_and_add();
    let count = PART / 4;
    let own = u64::from(std::process::id());
    for round in 1_u64.. {
        for (at, part) in parts.iter().enumerate() {
            cuda.launch(fill, &[*part, own + round + at as u64, count]);
        }
        // Each part has the sum of itself and the one before.
        for pair in parts.windows(2) {
            cuda.launch(add, &[pair[1], pair[0], pair[1], count]);
        }
        cuda.call("cuCtxSynchronize", &[]);
        let mut wanted = 0_u32;
        for (at, part) in parts.iter().enumerate() {
            wanted = wanted.wrapping_add((own + round + at as u64) as u32);
            for offset in [0, PART / 2, PART - 4] {
                let mut word = 0_u32;
                let place = &raw mut word as u64;
                cuda.call("cuMemcpyDtoH_v2", &[place, part + offset, 4]);
                if word != wanted {
                    say(&format!("wrong in round {round}: {word} for {wanted}"));
                }
            }
        }
        say(&format!("round {round}"));
        if pinned && round == 1 {
            // It is not simulated, so it fails. That it was called is enough.
            assert_ne!(cuda.code("cuGreenCtxCreate", &[0; 4]), 0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Speaks with gpuosd without having anything on a GPU.
fn claims() {
    let cuda = Driver::open();
    cuda.call("cuInit", &[0]);
    let mut uuid = [0_u8; 16];
    cuda.call("cuDeviceGetUuid_v2", &[uuid.as_mut_ptr() as u64, 0]);
    let gpu: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = std::env::var("GPUOS_MEM_SOCKET").expect("a socket");
    let mut stream = UnixStream::connect(path).expect("gpuosd listens");
    let lines = BufReader::new(stream.try_clone().expect("the same socket"));
    let first = format!("hello 1\nask {gpu} {} {}\n", 600_u64 << 20, 32_u64 << 20);
    let _ = stream.write_all(first.as_bytes());
    // Nobody has told him to.
    let _ = stream.write_all(b"busy\nparked 0 1099511627776 0\nback 0 1099511627776\nmoved 1 1\n");
    for line in lines.lines().map_while(Result::ok) {
        say(&format!("told {line}"));
        match line.split(' ').next() {
            Some("park") => {
                say("was told to park");
                let _ = stream.write_all(b"back 0 1\nbusy\npinned\npinned\n");
            }
            Some("turn") => drop(stream.write_all(b"back 0 1099511627776\nbusy\n")),
            _ => {}
        }
    }
    // The connection alone was closed.
    say("is no longer heard");
    std::thread::sleep(Duration::from_secs(600));
}

/// Goes for each process that calls the driver for this one.
pub fn callers_of(how: &str, target: &str) {
    let target: u32 = target.parse().expect("a number");
    if how == "looks" {
        let all = reached(target);
        say(&format!("reaches his own: {}", all.join(" ")));
    }
    let mut known = Vec::new();
    loop {
        for (caller, of) in callers() {
            if of != target {
                continue;
            }
            match how {
                "looks" => {
                    let all = reached(caller);
                    if !all.is_empty() {
                        say(&format!("reached {caller}: {}", all.join(" ")));
                    }
                    if !known.contains(&caller) {
                        say(&format!("looked into {caller}"));
                    }
                }
                "kills" => signal(caller, libc::SIGKILL, "killed"),
                "stops" if !known.contains(&caller) => signal(caller, libc::SIGSTOP, "stopped"),
                "dies" if known.is_empty() => signal(target, libc::SIGKILL, "died of"),
                _ => {}
            }
            known.push(caller);
        }
        std::thread::sleep(LOOK);
    }
}

fn signal(pid: u32, number: i32, word: &str) {
    // SAFETY: the call takes two numbers.
    let sent = unsafe { libc::kill(pid as i32, number) };
    if sent == 0 {
        say(&format!("{word} {pid}"));
    }
}

/// A way into a process, by its number.
type Way = fn(u32) -> bool;

/// All that a process of the same user may do to one that it may trace.
pub const LOOKS: [(&str, Way); 8] = [
    ("environment", |pid| reads(pid, "environ")),
    ("mappings", |pid| reads(pid, "maps")),
    ("registers", |pid| reads(pid, "auxv")),
    ("program", |pid| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok()
    }),
    ("files", |pid| {
        fs::read_dir(format!("/proc/{pid}/fd")).is_ok()
    }),
    ("memory", |pid| opens(pid, "mem")),
    ("output", takes_output),
    ("traces", traces),
];

fn reached(pid: u32) -> Vec<&'static str> {
    let all = LOOKS.iter().filter(|(_, way)| way(pid));
    all.map(|(name, _)| *name).collect()
}

fn reads(pid: u32, name: &str) -> bool {
    fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|bytes| !bytes.is_empty())
}

fn opens(pid: u32, name: &str) -> bool {
    let path = format!("/proc/{pid}/{name}");
    OpenOptions::new().read(true).write(true).open(path).is_ok()
}

/// A copy of what it writes to, with something in it for whoever reads that.
fn takes_output(pid: u32) -> bool {
    // SAFETY: the calls take numbers, and what they give is checked before it is owned.
    let taken = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let process = i32::try_from(process).unwrap_or(-1);
        if process < 0 {
            return false;
        }
        let process = OwnedFd::from_raw_fd(process);
        let taken = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), 1, 0);
        let taken = i32::try_from(taken).unwrap_or(-1);
        (taken >= 0).then(|| OwnedFd::from_raw_fd(taken))
    };
    let by_name = OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/fd/1"));
    let taken = taken.map(fs::File::from).or(by_name.ok());
    taken.is_some_and(|mut output| output.write_all(b"\n3 801\n").is_ok())
}

/// Attaches, and lets go with the thread that did.
fn traces(pid: u32) -> bool {
    let attach = move || {
        // SAFETY: the call takes numbers; what it attaches to is let go when this thread ends.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_SEIZE,
                pid as libc::pid_t,
                std::ptr::null_mut::<libc::c_void>(),
                std::ptr::null_mut::<libc::c_void>(),
            )
        };
        done == 0
    };
    std::thread::spawn(attach).join().unwrap_or(false)
}
