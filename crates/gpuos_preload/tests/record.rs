//! `GPUOS_MEM_TRACE`: what a program touches, in a file that can be replayed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gpuos_memory::bound;
use gpuos_memory::policy::named;
use gpuos_memory::replay::{Moved, replay};
use gpuos_memory::trace::{Extent, HEAD, Touch, Trace};

use crate::common::{Cuda, call};
use crate::shim::{MIB, moved, preloaded};
use crate::staging::{LAYERS, trains};

/// Where the trace of a test is, and the folder that goes with it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("my.trace");
    (folder, file)
}

/// Runs `body` with a trace in this file.
#[track_caller]
fn recorded(
    test: &str,
    memory: [u64; 2],
    file: &Path,
    more: &[(&str, &str)],
    body: impl FnOnce(&Cuda),
) -> Option<String> {
    let mut all = vec![("GPUOS_MEM_TRACE", file.to_str().expect("a path"))];
    all.extend(more);
    preloaded(test, memory, "memory=256M", &all, body)
}

fn read(file: &Path) -> Trace {
    let trace = Trace::read(&fs::read_to_string(file).expect("a trace")).expect("a trace");
    assert_eq!(trace.extent_mib, 2);
    trace
}

fn write(numbers: impl IntoIterator<Item = u32>) -> impl Iterator<Item = Touch> {
    let numbers = numbers.into_iter();
    numbers.map(|number| Touch::Write(Extent(number)))
}

/// A line of a trace about several of its numbers.
fn lines(text: &str) -> Vec<Touch> {
    let text = text.split(',').map(str::trim).collect::<Vec<_>>();
    let text = format!("{HEAD}\nextent-mib 2\n{}", text.join("\n"));
    Trace::read(&text).expect("a trace").touches
}

const STEPS: u32 = 12;

/// What [`trains`] touches: buffers of four blocks in the order of their allocation, after one of one block.
fn training() -> Vec<Touch> {
    let buffer = |layer: usize, which: usize| {
        let first = 1 + 4 * (layer * 4 + which) as u32;
        first..first + 4
    };
    let last = |layer, which| buffer(layer, which).next_back().expect("four");
    let data = || 0..1;
    let mut all: Vec<Touch> = write(data()).collect();
    for layer in 0..LAYERS {
        for which in 0..4 {
            all.extend(write(buffer(layer, which)));
            all.extend(write([last(layer, which)]));
        }
    }
    for _ in 0..STEPS {
        for layer in 0..LAYERS {
            all.extend(write(data().chain(buffer(layer, 0))));
        }
        for layer in (0..LAYERS).rev() {
            all.extend(write(
                buffer(layer, 1).chain(data()).chain(buffer(layer, 0)),
            ));
        }
        for layer in 0..LAYERS {
            for moment in 2..4 {
                for _ in 0..3 {
                    all.extend(write(buffer(layer, moment).chain(buffer(layer, 1))));
                }
            }
            let [weights, first, second] = [0, 2, 3].map(|which| buffer(layer, which));
            all.extend(write(weights.chain(first).chain(second)));
        }
    }
    let mut read = |number| all.push(Touch::Read(Extent(number)));
    read(0);
    for layer in 0..LAYERS {
        for which in 0..4 {
            read(buffer(layer, which).start);
            read(last(layer, which));
        }
    }
    all
}

/// Extents that a policy moves, with so much room.
fn moves(trace: &Trace, capacity: usize, policy: &str) -> Moved {
    let mut policy = named(policy, capacity).expect("a policy");
    replay(trace, capacity, policy.as_mut()).expect("no rule is broken")
}

fn is_that_of_the_program(file: &Path) {
    let trace = read(file);
    assert_eq!(trace.touches, training());
    let all = 1 + 16 * LAYERS;
    assert_eq!(trace.footprint(), all);
    for policy in ["gpuos", "lru"] {
        let fits = moves(&trace, all, policy);
        assert_eq!((fits.fetched, fits.written_back), (0, 0), "{policy}");
    }
    let three_quarters = all * 3 / 4;
    let [gpuos, lru] = ["gpuos", "lru"].map(|policy| moves(&trace, three_quarters, policy).fetched);
    let least = bound::fetches(&trace, three_quarters);
    assert!(
        least > 0 && least <= gpuos && gpuos <= lru,
        "{least} {gpuos} {lru}"
    );
    // All of what a step touches leaves before it is touched again.
    assert!(
        lru >= u64::from(STEPS - 1) * (all - three_quarters) as u64,
        "{lru}"
    );
}

#[test]
fn what_a_program_touches_is_written_where_all_of_it_fits() {
    let test = "what_a_program_touches_is_written_where_all_of_it_fits";
    let (_folder, file) = place();
    let said = recorded(test, [256, 240], &file, &[], |cuda| {
        drop(trains(cuda, STEPS))
    });
    if let Some(said) = said {
        assert_eq!(moved(&said), 0, "{said}");
        is_that_of_the_program(&file);
    }
}

#[test]
fn and_it_is_the_same_while_extents_move() {
    let test = "and_it_is_the_same_while_extents_move";
    let (_folder, file) = place();
    let more = [("GPUOS_PRELOAD_STAGE", "1"), ("GPUOS_PRELOAD_SHAKE", "3")];
    let said = recorded(test, [256, 128], &file, &more, |cuda| {
        drop(trains(cuda, STEPS));
    });
    if let Some(said) = said {
        assert!(moved(&said) > 0, "{said}");
        is_that_of_the_program(&file);
    }
}

/// Buffers of one and of two blocks, copies, a fill, a graph, and what is freed and allocated again.
fn varied(cuda: &Cuda) {
    cuda.context(0);
    let fill = cuda.kernel("fill");
    let one = cuda.alloc(2 * MIB);
    let two = cuda.alloc(4 * MIB);
    cuda.upload(two, &vec![1; 4 * MIB as usize]);
    cuda.ok("cuMemsetD32_v2", &[two, 7, MIB / 2]);
    cuda.ok("cuMemsetD32_v2", &[two, 7, MIB / 2 + 1]);
    cuda.ok("cuMemcpyDtoD_v2", &[one, two + 2 * MIB, 4096]);
    // Too small to be in tiers.
    let small = cuda.alloc(4096);
    cuda.upload(small, &[1; 4096]);
    let graph = cuda.get("cuGraphCreate", &[0]);
    let context = cuda.get("cuCtxGetCurrent", &[]);
    // CUDA_MEMSET_NODE_PARAMS.
    let node = [one, 0, 7 | 4 << 32, 16, 1];
    cuda.get(
        "cuGraphAddMemsetNode",
        &[graph, 0, 0, node.as_ptr() as u64, context],
    );
    let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
    cuda.ok("cuGraphLaunch", &[exec, 0]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuMemFree_v2", &[two]);
    // Never touched, so that there is nothing to free.
    let other = cuda.alloc(4 * MIB);
    cuda.ok("cuMemFree_v2", &[other]);
    let again = cuda.alloc(4 * MIB);
    assert_eq!(cuda.launch(fill, 0, &[again + 2 * MIB, 1, 16]), 0);
    cuda.ok("cuCtxSynchronize", &[]);
}

const VARIED: &str = "w 1, w 2, w 1, w 1, w 2, w 0, r 2, w 0, f 1, f 2, w 2";

#[test]
fn copies_fills_graphs_and_freed_memory_are_in_a_trace() {
    let test = "copies_fills_graphs_and_freed_memory_are_in_a_trace";
    let (_folder, file) = place();
    // One of before gives way, of which not all is written over.
    fs::write(
        &file,
        format!("{HEAD}\nextent-mib 64\n{}", "w 5\n".repeat(99)),
    )
    .expect("a file");
    let name = file.with_file_name("my-%p.trace");
    for (name, numbered) in [(&file, false), (&name, true)] {
        let said = recorded(test, [64, 32], name, &[], |cuda| {
            eprintln!("number {}", std::process::id());
            varied(cuda);
        });
        let Some(said) = said else { return };
        let number = said.lines().find_map(|line| line.strip_prefix("number "));
        let written = match numbered {
            true => file.with_file_name(format!("my-{}.trace", number.expect("a number"))),
            false => file.clone(),
        };
        assert_eq!(read(&written).touches, lines(VARIED), "{said}");
    }
}

#[test]
fn what_a_program_maps_itself_is_in_a_trace() {
    let test = "what_a_program_maps_itself_is_in_a_trace";
    let (_folder, file) = place();
    let said = recorded(test, [64, 32], &file, &[], |cuda| {
        cuda.context(0);
        let fill = cuda.kernel("fill");
        let at = cuda.reserve(8 * MIB);
        let handles: Vec<u64> = (0..3).map(|_| cuda.create(2 * MIB, 0)).collect();
        for (place, handle) in [(0, 2), (1, 0), (3, 1)] {
            cuda.map(at + place * 2 * MIB, 2 * MIB, 0, handles[handle], 0);
        }
        // Up to where nothing is mapped.
        assert_eq!(cuda.launch(fill, 0, &[at, 1, 16]), 0);
        cuda.ok("cuCtxSynchronize", &[]);
        cuda.ok("cuMemsetD8_v2", &[at + 6 * MIB, 1, 16]);
    });
    if let Some(said) = said {
        assert_eq!(read(&file).touches, lines("w 2, w 0, w 1"), "{said}");
    }
}

#[test]
fn a_child_of_fork_writes_nothing_to_the_trace_of_its_parent() {
    let test = "a_child_of_fork_writes_nothing_to_the_trace_of_its_parent";
    let (_folder, file) = place();
    let said = recorded(test, [64, 48], &file, &[], |cuda| {
        varied(cuda);
        let fill = cuda.address("cuMemsetD8_v2").expect("a function");
        let bytes = 32 * MIB;
        let at = cuda.alloc(bytes);
        // SAFETY: the child calls a function that takes no lock before it sees that it is one, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the signal ends a child that waits for a lock.
            unsafe { libc::alarm(30) };
            // More than is kept until it is written.
            let is_none = (0..1500).all(|_| call(fill, &[at, 1, bytes]) == 3);
            // With the handlers of the parent's: what that has kept is not the child's to write.
            // SAFETY: ends the child.
            unsafe { libc::exit((!is_none).into()) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    });
    if let Some(said) = said {
        assert_eq!(read(&file).touches, lines(VARIED), "{said}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_a_sentence_and_the_program_goes_on() {
    let test = "a_file_that_cannot_be_written_is_a_sentence_and_the_program_goes_on";
    let (folder, file) = place();
    let of = |name: &str| folder.path().join(name);
    fs::write(of("train.py"), "print('gpuos')").expect("a file");
    fs::write(&file, "").expect("a file");
    symlink(&file, of("link")).expect("a link");
    fs::create_dir(of("folder")).expect("a folder");
    let pipe = std::process::Command::new("mkfifo")
        .arg(of("pipe"))
        .status();
    assert!(pipe.expect("mkfifo of coreutils").success());
    for (name, why) in [
        ("nowhere/my.trace", "No such file"),
        ("train.py", "what is in it is no trace, and stays"),
        ("link", "it is a link"),
        ("folder", "directory"),
        ("pipe", "it is no file of yours"),
    ] {
        let Some(said) = recorded(test, [64, 32], &of(name), &[], varied) else {
            return;
        };
        let sentences: Vec<&str> = said
            .lines()
            .filter(|it| it.contains("GPUOS_MEM_TRACE"))
            .collect();
        let [sentence] = sentences[..] else {
            panic!("{name}: {said}");
        };
        let says = sentence.contains(why) && sentence.ends_with("; nothing is recorded");
        assert!(says && sentence.starts_with("gpuos: "), "{sentence}");
    }
    assert_eq!(
        fs::read_to_string(of("train.py")).expect("a file"),
        "print('gpuos')"
    );
    assert_eq!(fs::read_to_string(&file).expect("a file"), "");
}

#[test]
fn two_processes_do_not_write_the_same_file() {
    let test = "two_processes_do_not_write_the_same_file";
    let (_folder, file) = place();
    let held = fs::File::create(&file).expect("a file");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    let said = recorded(test, [64, 32], &file, &[], varied);
    if let Some(said) = said {
        assert!(
            said.contains("another process may be writing it; write %p in the name"),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&file).expect("a file"), "");
    }
}

/// Has files of this process grow to so many bytes; one more is a signal, which ends it.
fn may_write(most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one structure of this frame.
    let set = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit), 0);
        limit.rlim_cur = most;
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
    };
    assert_eq!(set, 0);
}

#[test]
fn a_trace_ends_at_its_most_bytes_and_the_program_goes_on() {
    let test = "a_trace_ends_at_its_most_bytes_and_the_program_goes_on";
    let (_folder, file) = place();
    let most = 100 << 10;
    let said = recorded(test, [64, 32], &file, &[], |cuda| {
        cuda.context(0);
        let (fill, at) = (cuda.kernel("fill"), cuda.alloc(32 * MIB));
        may_write(most);
        for _ in 0..2000 {
            assert_eq!(cuda.launch(fill, 0, &[at, 7, 16]), 0);
        }
        assert_eq!(cuda.download(at, 1), [7]);
    });
    if let Some(said) = said {
        let sentence = "' may have 100 KiB, and what comes after them is not recorded";
        assert_eq!(said.matches(sentence).count(), 1, "{said}");
        let bytes = fs::metadata(&file).expect("a file").len();
        assert!((64 << 10..=most).contains(&bytes), "{bytes}");
        assert!(read(&file).touches.len() > 10_000);
    }
}

/// A program that closes what it did not open has its own file under the trace's number next.
#[test]
fn a_trace_that_the_program_has_closed_is_not_written_to_another_file() {
    let test = "a_trace_that_the_program_has_closed_is_not_written_to_another_file";
    let (folder, file) = place();
    let own = folder.path().join("own");
    let text = own.to_str().expect("a path");
    let said = recorded(test, [64, 32], &file, &[("OWN", text)], |cuda| {
        cuda.context(0);
        let own = std::env::var_os("OWN").expect("a path");
        let trace = std::env::var_os("GPUOS_MEM_TRACE").expect("a path");
        let mut open = fs::read_dir("/proc/self/fd")
            .expect("descriptors")
            .flatten();
        let number = open.find(|it| fs::read_link(it.path()).is_ok_and(|to| to == *trace));
        let number = number.expect("it is open").file_name();
        let number: i32 = number
            .to_str()
            .expect("a number")
            .parse()
            .expect("a number");
        let taken = fs::File::create(own).expect("a file");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&taken);
        // SAFETY: the trace's descriptor is another file from here on.
        assert_eq!(unsafe { libc::dup2(fd, number) }, number);
        let (fill, at) = (cuda.kernel("fill"), cuda.alloc(32 * MIB));
        // More than is kept: it is written, and fails, while the program runs.
        for _ in 0..2000 {
            assert_eq!(cuda.launch(fill, 0, &[at, 7, 16]), 0);
        }
        // What is the program's is not closed.
        // SAFETY: the number is that of the program's file, and the text is there.
        assert_eq!(unsafe { libc::write(number, b"own".as_ptr().cast(), 3) }, 3);
    });
    if let Some(said) = said {
        assert_eq!(
            said.matches("the program has closed '").count(),
            1,
            "{said}"
        );
        assert_eq!(fs::read_to_string(&own).expect("a file"), "own");
        assert!(read(&file).touches.is_empty());
    }
}

#[test]
fn without_memory_of_gpuos_there_is_no_trace_and_a_sentence() {
    let test = "without_memory_of_gpuos_there_is_no_trace_and_a_sentence";
    let (_folder, file) = place();
    let more = [("GPUOS_MEM_GRANT", "much")];
    if let Some(said) = recorded(test, [64, 32], &file, &more, varied) {
        let sentence =
            "GPUOS_MEM_TRACE: the program runs without gpuos's memory, and nothing is recorded";
        assert_eq!(said.matches(sentence).count(), 1, "{said}");
        assert!(!file.exists());
    }
}
