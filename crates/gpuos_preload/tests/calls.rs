//! What programs see: memory as the driver's own, but for its size.

use crate::common::{Cuda, INVALID, OUT_OF_MEMORY};
use crate::shim::{MIB, preloaded};

/// An attribute of an address.
fn attribute(cuda: &Cuda, which: u64, at: u64) -> u64 {
    let mut value = 0_u64;
    cuda.ok("cuPointerGetAttribute", &[&raw mut value as u64, which, at]);
    value
}

#[test]
fn a_program_gets_more_than_its_gpu_has() {
    preloaded(
        "a_program_gets_more_than_its_gpu_has",
        [64, 16],
        "memory=32M",
        &[],
        |cuda| {
            cuda.context(0);
            assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
            assert_eq!(cuda.get("cuDeviceTotalMem_v2", &[0]), 64 * MIB);
            // On 32 MiB.
            let all: Vec<u64> = (0..10).map(|_| cuda.alloc(6 * MIB)).collect();
            assert_eq!(cuda.info(), (4 * MIB, 64 * MIB));
            let mut out = 0_u64;
            assert_eq!(
                cuda.code("cuMemAlloc_v2", &[&raw mut out as u64, 6 * MIB]),
                OUT_OF_MEMORY
            );
            for (number, at) in all.iter().enumerate() {
                cuda.ok("cuMemsetD8_v2", &[*at, number as u64, 6 * MIB]);
            }
            for (number, at) in all.iter().enumerate() {
                let bytes = cuda.download(*at, 6 << 20);
                assert!(
                    bytes.iter().all(|byte| usize::from(*byte) == number),
                    "buffer {number}"
                );
                cuda.ok("cuMemFree_v2", &[*at]);
            }
            assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
            assert_eq!(cuda.code("cuMemFree_v2", &[all[0]]), INVALID);
        },
    );
}

#[test]
fn small_allocations_are_the_drivers_and_are_counted() {
    preloaded(
        "small_allocations_are_the_drivers_and_are_counted",
        [64, 16],
        "memory=32M",
        &[],
        |cuda| {
            cuda.context(0);
            let at = cuda.alloc(MIB);
            assert_eq!(cuda.info(), (63 * MIB, 64 * MIB));
            assert_eq!(attribute(cuda, 12, at), MIB);
            cuda.upload(at, &[7; 4096]);
            assert_eq!(cuda.download(at, 4096), [7; 4096]);
            cuda.ok("cuMemFree_v2", &[at]);
            assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
            cuda.alloc(62 * MIB);
            cuda.alloc(MIB);
            cuda.alloc(MIB / 2);
            let mut out = 0_u64;
            assert_eq!(
                cuda.code("cuMemAlloc_v2", &[&raw mut out as u64, MIB]),
                OUT_OF_MEMORY
            );
            // As the driver has it.
            assert_eq!(
                cuda.code("cuMemAlloc_v2", &[&raw mut out as u64, 0]),
                INVALID
            );
            assert_eq!(cuda.code("cuMemAlloc_v2", &[0, 4 * MIB]), INVALID);
        },
    );
}

#[test]
fn addresses_tell_what_the_drivers_own_tell() {
    preloaded(
        "addresses_tell_what_the_drivers_own_tell",
        [64, 16],
        "devices=2,memory=32M",
        &[],
        |cuda| {
            let context = cuda.context(1);
            let at = cuda.alloc(5 * MIB + 3);
            let inside = at + 3 * MIB;
            assert_eq!(attribute(cuda, 1, inside), context);
            assert_eq!(attribute(cuda, 2, inside), 2);
            assert_eq!(attribute(cuda, 9, inside), 1);
            assert_eq!(attribute(cuda, 11, inside), at);
            assert_eq!(attribute(cuda, 12, inside), 5 * MIB + 3);
            let (mut start, mut size) = (0_u64, 0_u64);
            cuda.ok(
                "cuMemGetAddressRange_v2",
                &[&raw mut start as u64, &raw mut size as u64, inside],
            );
            assert_eq!((start, size), (at, 5 * MIB + 3));
            let (mut owner, mut ordinal) = (0_u64, 9_u32);
            let which = [1_u32, 9];
            let places = [&raw mut owner as u64, &raw mut ordinal as u64];
            cuda.ok(
                "cuPointerGetAttributes",
                &[2, which.as_ptr() as u64, places.as_ptr() as u64, inside],
            );
            assert_eq!((owner, ordinal), (context, 1));
            assert_eq!(cuda.code("cuMemFree_v2", &[inside]), INVALID);
        },
    );
}

#[test]
fn rows_have_a_pitch() {
    preloaded("rows_have_a_pitch", [64, 16], "memory=32M", &[], |cuda| {
        cuda.context(0);
        let (mut at, mut pitch) = (0_u64, 0_u64);
        let places = [&raw mut at as u64, &raw mut pitch as u64];
        cuda.ok("cuMemAllocPitch_v2", &[places[0], places[1], 1000, 8192, 4]);
        assert_eq!(pitch, 1024);
        assert_eq!(cuda.info().0, 56 * MIB);
        cuda.ok("cuMemsetD2D8_v2", &[at, pitch, 5, 1000, 8192]);
        let row = cuda.download(at + 8191 * pitch, 1000);
        assert!(row.iter().all(|byte| *byte == 5));
        cuda.ok("cuMemFree_v2", &[at]);
        cuda.ok("cuMemAllocPitch_v2", &[places[0], places[1], 1000, 8, 4]);
        assert_eq!(pitch, 1024);
        assert_eq!(
            cuda.code("cuMemAllocPitch_v2", &[places[0], places[1], 1000, 8192, 5]),
            INVALID
        );
    });
}

#[test]
fn a_context_takes_its_memory_with_it() {
    preloaded(
        "a_context_takes_its_memory_with_it",
        [64, 16],
        "memory=32M",
        &[],
        |cuda| {
            let one = cuda.context(0);
            cuda.alloc(20 * MIB);
            let two = cuda.get("cuCtxCreate_v2", &[0, 0]);
            let kept = cuda.alloc(10 * MIB);
            cuda.upload(kept, &[9; 4096]);
            cuda.ok("cuCtxDestroy_v2", &[one]);
            assert_eq!(cuda.info(), (54 * MIB, 64 * MIB));
            assert_eq!(cuda.download(kept, 4096), [9; 4096]);
            cuda.ok("cuCtxDestroy_v2", &[two]);
            let primary = cuda.get("cuDevicePrimaryCtxRetain", &[0]);
            assert_eq!(cuda.get("cuDevicePrimaryCtxRetain", &[0]), primary);
            cuda.ok("cuCtxSetCurrent", &[primary]);
            let at = cuda.alloc(10 * MIB);
            cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
            cuda.upload(at, &[1; 4096]);
            cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
            cuda.ok(
                "cuCtxSetCurrent",
                &[cuda.get("cuDevicePrimaryCtxRetain", &[0])],
            );
            assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
        },
    );
}

#[test]
fn functions_are_found_in_every_way() {
    preloaded(
        "functions_are_found_in_every_way",
        [64, 16],
        "memory=32M",
        &[],
        |cuda| {
            cuda.context(0);
            let by_driver = |name: &str, version: u64, flags: u64| {
                let name = format!("{name}\0");
                let mut found = 0_u64;
                let mut status = 9_u32;
                let words = [
                    name.as_ptr() as u64,
                    &raw mut found as u64,
                    version,
                    flags,
                    &raw mut status as u64,
                ];
                let code = cuda.code("cuGetProcAddress_v2", &words);
                (code == 0).then_some(found as usize)
            };
            let by_loader = |name: &str| cuda.address(name);
            // The forms are those of the version, and ours where ours are.
            for (name, version, flags, export) in [
                ("cuMemAlloc", 12_000, 0, "cuMemAlloc_v2"),
                ("cuLaunchKernel", 12_000, 0, "cuLaunchKernel"),
                ("cuLaunchKernel", 12_000, 2, "cuLaunchKernel_ptsz"),
                ("cuMemcpyHtoD", 12_000, 2, "cuMemcpyHtoD_v2_ptds"),
                ("cuCtxCreate", 11_040, 0, "cuCtxCreate_v3"),
                ("cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2"),
                ("cuDeviceGetCount", 12_000, 0, "cuDeviceGetCount"),
            ] {
                assert_eq!(
                    by_driver(name, version, flags),
                    by_loader(export),
                    "{export}"
                );
            }
            assert_eq!(by_driver("cuNoSuchThing", 12_000, 0), None);
            assert_eq!(by_loader("cuNoSuchThing"), None);
            // What is wrapped is not in the driver.
            let inside = |address: usize| {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                let line = maps.lines().find(|line| {
                    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                    let number = |text| usize::from_str_radix(text, 16).unwrap();
                    (number(start)..number(end)).contains(&address)
                });
                line.unwrap().rsplit('/').next().unwrap().to_string()
            };
            assert_eq!(
                inside(by_loader("cuMemAlloc_v2").unwrap()),
                "libgpuos_preload.so"
            );
            assert_eq!(inside(by_loader("cuDeviceGetCount").unwrap()), "libcuda.so");
            // A name of the table that is no function of the driver, and one by the default scope.
            // SAFETY: C strings; the addresses are only looked at.
            let (none, ours) = unsafe {
                (
                    libc::dlsym(libc::RTLD_DEFAULT, c"cuNoSuchThing".as_ptr()),
                    libc::dlsym(libc::RTLD_DEFAULT, c"cuMemAlloc_v2".as_ptr()) as usize,
                )
            };
            assert!(none.is_null());
            assert_eq!(inside(ours), "libgpuos_preload.so");
        },
    );
}
