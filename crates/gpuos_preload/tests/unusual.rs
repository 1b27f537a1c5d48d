//! What is never moved, children of `fork`, grants that are none, and what else is unusual.

use crate::common::{call, with};
use crate::shim::{MIB, finds, folder, moved, preload, preloaded, variables};

/// Moves at random while bytes are written by one mapping and read by another: what a program holds a handle of stays where it is.
#[test]
fn what_a_program_has_a_handle_of_stays() {
    let test = "what_a_program_has_a_handle_of_stays";
    preloaded(
        test,
        [256, 16],
        "memory=64M",
        &[("GPUOS_PRELOAD_SHAKE", "5")],
        |cuda| {
            cuda.context(0);
            let at = cuda.alloc(2 * MIB);
            let handle = cuda.get("cuMemRetainAllocationHandle", &[at]);
            let alias = cuda.get("cuMemAddressReserve", &[2 * MIB, 0, 0, 0]);
            cuda.ok("cuMemMap", &[alias, 2 * MIB, 0, handle, 0]);
            let access = [1_u32, 0, 3];
            cuda.ok(
                "cuMemSetAccess",
                &[alias, 2 * MIB, access.as_ptr() as u64, 1],
            );
            let other = cuda.alloc(8 * MIB);
            for round in 0..200_u64 {
                cuda.ok("cuMemsetD8_v2", &[at, round, 4096]);
                cuda.ok("cuMemsetD8_v2", &[other, round, 4096]);
                cuda.ok("cuCtxSynchronize", &[]);
                assert_eq!(cuda.download(alias, 4096), vec![round as u8; 4096]);
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        },
    );
}

#[test]
fn found_what_is_pinned_moves() {
    if cfg!(debug_assertions) {
        let test = "unusual::what_a_program_has_a_handle_of_stays";
        let more = [("GPUOS_PRELOAD_SHAKE", "5")];
        let found = finds(test, "pinned", "memory=64M", &more);
        assert!(found, "nobody found it");
    }
}

#[test]
fn found_more_than_was_granted() {
    if cfg!(debug_assertions) {
        let test = "calls::a_program_gets_more_than_its_gpu_has";
        let more = [("GPUOS_MEM_GRANT", "67108864")];
        let found = finds(test, "grant", "memory=32M", &more);
        assert!(found, "nobody found it");
    }
}

#[test]
fn memory_of_which_a_peer_has_access_stays_and_is_reached() {
    let test = "memory_of_which_a_peer_has_access_stays_and_is_reached";
    preloaded(
        test,
        [64, 16],
        "devices=2,memory=64M",
        &[("GPUOS_PRELOAD_SHAKE", "6")],
        |cuda| {
            let owner = cuda.context(1);
            let before = cuda.alloc(4 * MIB);
            cuda.ok("cuMemsetD8_v2", &[before, 3, 4 * MIB]);
            cuda.ok("cuCtxSynchronize", &[]);
            cuda.get("cuCtxCreate_v2", &[0, 0]);
            let own = cuda.alloc(4 * MIB);
            cuda.ok("cuCtxEnablePeerAccess", &[owner, 0]);
            cuda.ok("cuCtxPushCurrent_v2", &[owner]);
            let after = cuda.alloc(4 * MIB);
            cuda.ok("cuMemsetD8_v2", &[after, 4, 4 * MIB]);
            cuda.ok("cuCtxSynchronize", &[]);
            let mut popped = 0_u64;
            cuda.ok("cuCtxPopCurrent_v2", &[&raw mut popped as u64]);
            // Kernels of device 0 read memory of device 1.
            let copy = cuda.kernel("copy");
            for (from, byte) in [(before, 3), (after, 4)] {
                assert_eq!(cuda.launch(copy, 0, &[own, from, 4 * MIB]), 0);
                cuda.ok("cuCtxSynchronize", &[]);
                assert!(
                    cuda.download(own, 4 << 20)
                        .iter()
                        .all(|found| *found == byte)
                );
            }
        },
    );
}

#[test]
fn handles_for_other_processes_are_refused() {
    let said = preloaded(
        "handles_for_other_processes_are_refused",
        [64, 16],
        "memory=32M",
        &[],
        |cuda| {
            cuda.context(0);
            let mut handle = [0_u8; 64];
            let at = cuda.alloc(4 * MIB);
            assert_eq!(
                cuda.code("cuIpcGetMemHandle", &[handle.as_mut_ptr() as u64, at]),
                801
            );
        },
    );
    if let Some(said) = said {
        assert!(
            said.contains("gpuos: cuIpcGetMemHandle: memory in tiers has no such handle"),
            "{said}"
        );
    }
}

#[test]
fn a_child_of_fork_has_no_driver_and_its_parent_goes_on() {
    let test = "a_child_of_fork_has_no_driver_and_its_parent_goes_on";
    preloaded(
        test,
        [256, 16],
        "memory=64M",
        &[("GPUOS_PRELOAD_SHAKE", "7")],
        |cuda| {
            cuda.context(0);
            let a = cuda.alloc(8 * MIB);
            cuda.upload(a, &[3; 4096]);
            let calls = [
                "cuInit",
                "cuMemAlloc_v2",
                "cuMemsetD8_v2",
                "cuMemGetInfo_v2",
                "cuMemGetAddressRange_v2",
                "cuMemFree_v2",
            ]
            .map(|name| cuda.address(name).unwrap());
            for _ in 0..20 {
                let mut out = [0_u64; 2];
                let (first, second) = (&raw mut out[0] as u64, &raw mut out[1] as u64);
                // SAFETY: the child calls these functions, which take no lock before they see that it is one, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // One that waits for a lock or the gate waits for ever.
                    // SAFETY: the signal ends the child.
                    unsafe { libc::alarm(30) };
                    let codes = [
                        call(calls[0], &[0]),
                        call(calls[1], &[first, 4 * MIB]),
                        call(calls[2], &[a, 1, 4096]),
                        call(calls[3], &[first, second]),
                        // It knows of no memory.
                        call(calls[4], &[first, second, a]),
                        call(calls[5], &[a]),
                    ];
                    let wrong = codes.iter().any(|code| *code != 3);
                    // SAFETY: ends the child without handlers of the parent's.
                    unsafe { libc::_exit(wrong.into()) };
                }
                let mut status = 0;
                // SAFETY: waits for the child above.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
                assert_eq!(cuda.download(a, 4096), [3; 4096]);
            }
        },
    );
}

#[test]
fn found_a_child_that_takes_itself_for_its_parent() {
    if cfg!(debug_assertions) {
        let test = "unusual::a_child_of_fork_has_no_driver_and_its_parent_goes_on";
        let found = finds(test, "fork", "memory=64M", &[("GPUOS_PRELOAD_SHAKE", "7")]);
        assert!(found, "nobody found it");
    }
}

/// A kernel that waits for what another thread writes by a copy, while somebody wants to move: the gate is given up.
#[test]
fn a_kernel_that_waits_for_another_thread_gets_it() {
    let test = "a_kernel_that_waits_for_another_thread_gets_it";
    preloaded(
        test,
        [256, 16],
        "memory=64M",
        &[("GPUOS_PRELOAD_SHAKE", "8")],
        |cuda| {
            cuda.context(0);
            let at = cuda.alloc(8 * MIB);
            cuda.ok("cuMemsetD8_v2", &[at, 0, 4096]);
            let wait = cuda.kernel("wait");
            let (one, two) = (cuda.stream(), cuda.stream());
            for round in 1..6_u32 {
                assert_eq!(cuda.launch(wait, one, &[at, round.into()]), 0);
                std::thread::sleep(std::time::Duration::from_millis(2));
                let bytes = round.to_le_bytes();
                cuda.ok("cuMemcpyHtoDAsync_v2", &[at, bytes.as_ptr() as u64, 4, two]);
                cuda.ok("cuStreamSynchronize", &[one]);
            }
        },
    );
}

/// A program that sweeps over more than the GPU has: extents come in by what is launched, and the process tells of it.
#[test]
fn what_is_used_comes_in() {
    let said = preloaded(
        "what_is_used_comes_in",
        [64, 16],
        "memory=64M",
        &[],
        |cuda| {
            cuda.context(0);
            let fill = cuda.kernel("fill");
            let cold = cuda.alloc(16 * MIB);
            let place = |at: u64| {
                let mut place = 0_u64;
                // The driver says where the memory is to which the host has no address.
                cuda.ok("cuMemRetainAllocationHandle", &[&raw mut place as u64, at]);
                let mut prop = [0_u32; 8];
                cuda.ok(
                    "cuMemGetAllocationPropertiesFromHandle",
                    &[prop.as_mut_ptr() as u64, place],
                );
                cuda.ok("cuMemRelease", &[place]);
                prop[2]
            };
            // Where it is looked at it stays: on a machine with much else to do another one is used for longer.
            let comes_in = |attempt: u64| {
                let hot = cuda.alloc(8 * MIB);
                for round in 0..200 << (2 * attempt) {
                    assert_eq!(cuda.launch(fill, 0, &[hot, round, 1024]), 0);
                    cuda.ok("cuCtxSynchronize", &[]);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                place(hot) == 1
            };
            let is_near = (0..4).any(comes_in);
            let ended = cuda.alloc(2 * MIB);
            assert_eq!(
                place(ended),
                3,
                "new memory is the host's, the GPU's is full"
            );
            assert!(is_near, "hot memory is the GPU's");
            assert!(cold != 0);
        },
    );
    if let Some(said) = said {
        assert!(moved(&said) >= 8, "{said}");
    }
}

#[test]
fn managed_memory_is_the_drivers() {
    let test = "managed_memory_is_the_drivers";
    let more = [("GPUOS_PRELOAD_SHAKE", "14")];
    preloaded(test, [64, 16], "memory=32M", &more, |cuda| {
        cuda.context(0);
        let stream = cuda.stream();
        let managed = cuda.get("cuMemAllocManaged", &[40 * MIB, 1]);
        let own = cuda.alloc(4 * MIB);
        assert_eq!(cuda.info(), (60 * MIB, 64 * MIB));
        cuda.ok("cuMemPrefetchAsync", &[managed, 40 * MIB, 0, stream]);
        cuda.ok("cuMemAdvise", &[managed, 40 * MIB, 1, 0]);
        let (fill, copy) = (cuda.kernel("fill"), cuda.kernel("copy"));
        assert_eq!(cuda.launch(fill, stream, &[managed, 9, MIB]), 0);
        assert_eq!(cuda.launch(copy, stream, &[own, managed, 4 * MIB]), 0);
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!(cuda.download(own + 4 * MIB - 4, 4), 9_u32.to_le_bytes());
        cuda.ok("cuMemFree_v2", &[managed]);
        assert_eq!(cuda.info(), (60 * MIB, 64 * MIB));
    });
}

/// Sizes that are none, memory that was freed: each call says what the driver says of its own.
#[test]
fn what_is_wrong_is_said_as_the_driver_says_it() {
    let wrong = |cuda: &crate::common::Cuda| {
        cuda.context(0);
        let mut out = 0_u64;
        let to = &raw mut out as u64;
        let at = cuda.alloc(4 * MIB);
        let bytes = [1_u8; 4096];
        let source = bytes.as_ptr() as u64;
        cuda.ok("cuMemcpyHtoD_v2", &[at, source, 4096]);
        cuda.ok("cuMemFree_v2", &[at]);
        let stream = cuda.stream();
        let calls: [(&str, &[u64]); 10] = [
            ("cuMemAlloc_v2", &[to, 0]),
            ("cuMemAlloc_v2", &[to, u64::MAX]),
            ("cuMemAlloc_v2", &[to, u64::MAX - (4 << 20)]),
            ("cuMemAlloc_v2", &[0, 4 * MIB]),
            ("cuMemAllocAsync", &[to, u64::MAX, stream]),
            ("cuMemAllocAsync", &[0, 4 * MIB, stream]),
            ("cuMemFree_v2", &[at]),
            ("cuMemFree_v2", &[at + 4096]),
            ("cuMemFreeAsync", &[at, stream]),
            ("cuMemRelease", &[at]),
        ];
        let said: Vec<u32> = calls
            .iter()
            .map(|(name, words)| cuda.code(name, words))
            .collect();
        // The last one: what it touches is gone, and the context has failed.
        let gone = cuda.code("cuMemcpyHtoD_v2", &[at, source, 4096]);
        println!("said {said:?} {}", gone != 0);
        assert_eq!(said, [1, 2, 2, 1, 2, 1, 1, 1, 1, 1]);
        assert!(gone != 0);
    };
    let test = "what_is_wrong_is_said_as_the_driver_says_it";
    let none = with(test, &[("GPUOS_CUDA", "memory=32M")], wrong);
    if none.is_some() {
        preloaded(test, [64, 16], "memory=32M", &[], wrong);
    }
}

#[test]
fn a_grant_that_is_none_changes_nothing() {
    let folder = folder();
    let mut all = variables(folder.path(), 64, 16, "memory=32M");
    all.retain(|(name, _)| name != "GPUOS_MEM_GRANT");
    let mut all: Vec<(&str, &str)> = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    all.push(("GPUOS_MEM_GRANT", "80G"));
    let said = with("a_grant_that_is_none_changes_nothing", &all, |cuda| {
        cuda.context(0);
        assert_eq!(cuda.info(), (32 * MIB, 32 * MIB));
        let at = cuda.alloc(4 * MIB);
        cuda.upload(at, &[1; 4096]);
        cuda.ok("cuMemFree_v2", &[at]);
    });
    if let Some(said) = said {
        assert_eq!(
            said.matches("GPUOS_MEM_GRANT='80G' is not a number of bytes")
                .count(),
            1,
            "{said}"
        );
    }
}

#[test]
fn beside_an_mps_daemon_the_program_runs_without_it() {
    let pipe = tempfile::tempdir().unwrap();
    std::fs::write(pipe.path().join("control"), "").unwrap();
    let more = [("CUDA_MPS_PIPE_DIRECTORY", pipe.path().to_str().unwrap())];
    let test = "beside_an_mps_daemon_the_program_runs_without_it";
    let said = preloaded(test, [64, 16], "memory=32M", &more, |cuda| {
        cuda.context(0);
        assert_eq!(cuda.info(), (32 * MIB, 32 * MIB));
    });
    if let Some(said) = said {
        assert!(
            said.contains("MPS does not go with memory in tiers"),
            "{said}"
        );
    }
}

#[test]
fn green_contexts_pin_the_process() {
    let test = "green_contexts_pin_the_process";
    let said = preloaded(test, [64, 16], "memory=32M", &[], |cuda| {
        cuda.context(0);
        for _ in 0..2 {
            assert_eq!(cuda.code("cuGreenCtxCreate", &[0, 0, 0, 1]), 801);
        }
        let at = cuda.alloc(20 * MIB);
        cuda.upload(at, &[1; 4096]);
    });
    if let Some(said) = said {
        let line = "gpuos: the program calls cuGreenCtxCreate, and work that comes of it cannot be waited for: from now on all memory of the process stays where it is";
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
}

/// The symbols that programs get instead of the driver's and libc's, four of our own, and no other.
#[test]
fn exports_are_those_of_the_table() {
    use object::{Object, ObjectSymbol};
    let bytes = std::fs::read(preload()).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let symbols = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global());
    let found: std::collections::BTreeSet<String> = symbols
        .filter_map(|symbol| Some(symbol.name().ok()?.to_string()))
        .collect();
    let table = include_str!("../data/functions.tsv");
    let wrapped = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        (fields[3] != "pass").then(|| fields[0].to_string())
    });
    let wanted: std::collections::BTreeSet<String> = wrapped
        .chain(["dlsym", "dlopen"].map(String::from))
        // For a checkpoint of the program.
        .chain(["gpuos_mem_connect", "gpuos_mem_disconnect"].map(String::from))
        // For a program that wants to know whether memory is short.
        .chain(["gpuos_mem_short", "gpuos_mem_short_fd"].map(String::from))
        .collect();
    assert_eq!(found, wanted);
}

/// Its number would be that of the program's next open file, which a child of `fork` would close.
#[test]
fn a_connection_that_comes_to_nothing_leaves_no_number() {
    use crate::played::{Talk, inside, plays};
    let test = "unusual::a_connection_that_comes_to_nothing_leaves_no_number";
    if inside().is_some() {
        crate::common::Cuda::open().context(0);
        // SAFETY: it is loaded already.
        let library = unsafe { libloading::Library::new(preload()) }.unwrap();
        // SAFETY: the function has no arguments and answers a number.
        let call = unsafe { library.get::<extern "C" fn() -> i32>(b"gpuos_mem_disconnect") };
        assert_eq!(call.unwrap()(), 0, "it is open still");
        return;
    }
    plays(test, &[], |listener, _| {
        Talk::accept(&listener).begin(None).map(drop)
    })
    .unwrap();
}
