//! Reads of the own memory where the kernel forbids them: each case is a process of its own under a real seccomp filter.
//! Whatever is forbidden, and at whatever moment, reads give what is there or nothing.

use std::process::Command;

use slurm_ffi::mem::{detour, in_blocks, read, read_bytes, read_str, read_text};

#[path = "../../../tests/src/filter.rs"]
mod filter;

/// The rules that hold from the start of the reads on.
const FIRST: &str = "GPUOS_TEST_FILTER";
/// The rules that come when memory has been read already.
const LATER: &str = "GPUOS_TEST_FILTER_LATER";
/// What is expected at the end: `direct`, `pipe` or `nothing`.
const WAY: &str = "GPUOS_TEST_WAY";

/// Runs the case below in a process of its own, and says how that ended.
fn case(first: &str, later: &str, way: &str) {
    let own = std::env::current_exe().expect("this program");
    let out = Command::new(own)
        .args(["--exact", "one_case", "--nocapture"])
        .envs([(FIRST, first), (LATER, later), (WAY, way)])
        .output()
        .expect("runs");
    let told = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && told.contains("1 passed"),
        "{first:?}, then {later:?}: {}\n{told}",
        out.status
    );
}

#[test]
fn without_a_filter_the_first_way_is_used() {
    case("", "", "direct");
}

#[test]
fn a_filter_that_is_there_leads_to_the_pipe() {
    for rules in ["refused", "kills", "emulated", "odd"] {
        case(rules, "", "pipe");
    }
}

#[test]
fn a_filter_that_comes_later_is_noticed() {
    for rules in ["refused", "emulated"] {
        case("", rules, "pipe");
    }
    case("refused", "emulated", "pipe");
}

#[test]
fn without_any_way_nothing_is_read_and_nothing_faults() {
    for rules in ["nothing", "emulated-nothing"] {
        case(rules, "", "nothing");
        case("", rules, "nothing");
        case("refused", rules, "nothing");
    }
}

#[test]
fn one_case() {
    let Ok(way) = std::env::var(WAY) else { return };
    let forbid = |name| {
        let name = std::env::var(name).expect("the rules");
        if let Some(rules) = filter::named(&name) {
            filter::forbid(&rules).expect("this machine has seccomp");
        }
    };
    forbid(FIRST);
    if std::env::var(LATER).is_ok_and(|later| !later.is_empty()) {
        reads(true);
    }
    forbid(LATER);
    reads(way != "nothing");
    match (way.as_str(), detour()) {
        ("direct", Ok(None)) => {}
        ("pipe", Ok(Some(why))) => {
            let words = ["filter is in force", "not implemented", "Bad address"];
            assert!(words.iter().any(|word| why.contains(word)), "{why}");
        }
        ("nothing", Err(why)) => {
            for part in [
                "process_vm_readv: ",
                "a pipe: Operation not permitted",
                "SystemCallFilter=",
            ] {
                assert!(why.contains(part), "{why}");
            }
        }
        (_, other) => panic!("{other:?} instead of {way}"),
    }
    // All threads at once, and a child: it has this one's filters, and memory of its own.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| reads(way != "nothing")));
        }
    });
    // SAFETY: the only thread is this one; the child reads and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(|| reads(way != "nothing"));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the child");
}

/// Reads of each kind, of what is there and of what is not. The bad ones come first: they do not lead to another way.
fn reads(readable: bool) {
    for nowhere in [0, 8, 0x10_0000, 1 << 62, usize::MAX - 64] {
        assert_eq!(read::<u64>(nowhere), None);
        assert_eq!(read_str(nowhere, 64), None);
        assert_eq!(read_bytes(nowhere, 100_000), None);
    }
    let own = std::process::id().rotate_left(16);
    let value = std::hint::black_box(own);
    assert_eq!(
        read::<u32>(&raw const value as usize),
        readable.then_some(own)
    );
    let text =
        c"a text that is longer than one chunk of the reader, to cross its border at least once";
    let at = text.as_ptr() as usize;
    let told = text.to_str().expect("UTF-8");
    assert_eq!(read_str(at, 200).as_deref(), readable.then_some(told));
    let longer = readable.then_some(told.as_bytes());
    assert_eq!(read_text(at, 9000).as_deref(), longer);
    let many: Vec<u64> = (0..40_000).collect();
    in_blocks(|| {
        for (index, value) in many.iter().enumerate().step_by(997) {
            let found = read::<u64>(&raw const *value as usize);
            assert_eq!(found, readable.then_some(index as u64));
        }
    });
    // A text that ends just before a hole.
    let page = 65_536;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, of which the first page is written to, and the second one goes.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 2 * page, rights, how, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().write_bytes(b'x', page);
        let last = at.cast::<u8>().add(page - 8);
        assert_eq!(libc::munmap(at.add(page), page), 0);
        assert_eq!(read_str(last as usize, 64), None);
        last.add(7).write(0);
        let told = readable.then_some("xxxxxxx");
        assert_eq!(read_str(last as usize, 64).as_deref(), told);
        libc::munmap(at, page);
    }
}
