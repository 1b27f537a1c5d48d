//! Functions of a driver that is newer than this library: what they do nobody knows, so nothing is moved any more.

use crate::common::{Cuda, call};
use crate::shim::{MIB, moved, moves, preloaded};

/// A driver that has another `cuMemAlloc` from 13.5 on.
const DRIVER: &str = "memory=64M,version=13.9,newer=cuMemAlloc";
/// Extents go to and fro as long as they may.
const SHAKEN: [(&str, &str); 1] = [("GPUOS_PRELOAD_SHAKE", "5")];

fn ask(cuda: &Cuda, name: &str, version: u64) -> Option<usize> {
    let name = format!("{name}\0");
    let mut found = 0_usize;
    let words = [name.as_ptr() as u64, &raw mut found as u64, version, 0];
    (cuda.code("cuGetProcAddress", &words) == 0).then_some(found)
}

/// Allocates more than the GPU has and uses it for a while.
fn uses_memory(cuda: &Cuda) {
    cuda.context(0);
    let at = cuda.alloc(40 * MIB);
    for round in 0..100_u64 {
        cuda.ok("cuMemsetD8_v2", &[at, round, 40 * MIB]);
        cuda.ok("cuCtxSynchronize", &[]);
        assert_eq!(cuda.download(at + 39 * MIB, 1), [round as u8]);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

/// Nothing was moved, with one sentence that names the function.
fn is_pinned(said: &str, name: &str) {
    assert_eq!(moved(said), 0, "{said}");
    let line = format!(
        "gpuos: the program asks the driver for '{name}', which this gpuos does not know: from now on all memory of the process stays where it is"
    );
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    assert_eq!(said.matches("stays where it is").count(), 1, "{said}");
}

#[test]
fn a_function_of_no_table_by_dlsym_pins_the_process() {
    let test = "a_function_of_no_table_by_dlsym_pins_the_process";
    let said = preloaded(test, [64, 16], DRIVER, &SHAKEN, |cuda| {
        for _ in 0..2 {
            let found = cuda.address("cuGpuosUnlisted").expect("the driver has it");
            // The driver's own, as there is no wrapper.
            assert_eq!(call(found, &[]), 801);
        }
        uses_memory(cuda);
    });
    if let Some(said) = said {
        is_pinned(&said, "cuGpuosUnlisted");
    }
}

#[test]
fn a_function_of_no_table_by_the_driver_pins_the_process() {
    let test = "a_function_of_no_table_by_the_driver_pins_the_process";
    let driver = "memory=64M,version=13.9,newer=cuMemDream";
    let said = preloaded(test, [64, 16], driver, &SHAKEN, |cuda| {
        for version in [13_050, 13_090] {
            let found = ask(cuda, "cuMemDream", version).expect("the driver has it");
            assert_eq!(call(found, &[]), 801);
        }
        uses_memory(cuda);
    });
    if let Some(said) = said {
        is_pinned(&said, "cuMemDream");
    }
}

#[test]
fn a_known_function_of_a_version_above_the_newest_pins_the_process() {
    let test = "a_known_function_of_a_version_above_the_newest_pins_the_process";
    let said = preloaded(test, [64, 16], DRIVER, &SHAKEN, |cuda| {
        let found = ask(cuda, "cuMemAlloc", 13_050).expect("the driver has it");
        assert_eq!(call(found, &[0, 0]), 801);
        uses_memory(cuda);
    });
    if let Some(said) = said {
        is_pinned(&said, "cuMemAlloc");
    }
}

/// The same driver moves as any other does for who asks for nothing of that.
#[test]
fn who_asks_for_what_the_table_knows_has_memory_that_moves() {
    let test = "who_asks_for_what_the_table_knows_has_memory_that_moves";
    moves(2, || {
        let said = preloaded(test, [64, 16], DRIVER, &SHAKEN, |cuda| {
            let ours = cuda.address("cuMemAlloc_v2");
            assert!(ours.is_some());
            // Of the newest version that the table knows, and of a later one with an export that it knows.
            assert_eq!(ask(cuda, "cuMemAlloc", 13_040), ours);
            let free = cuda.address("cuMemFree_v2");
            assert_eq!(ask(cuda, "cuMemFree", 13_090), free);
            // What the driver does not have is no function at all.
            assert_eq!(ask(cuda, "cuMemDream", 13_090), None);
            assert_eq!(cuda.address("cuMemDream"), None);
            uses_memory(cuda);
        })?;
        assert!(!said.contains("stays where it is"), "{said}");
        Some(said)
    });
}
