//! Virtual memory: what the memory fabric does with it.

use crate::common::{Cuda, ILLEGAL_ADDRESS, INVALID, OUT_OF_MEMORY, on};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 2 * MIB;

/// CUmemAllocationProp: pinned, no handle type, location.
fn prop(kind: u32, id: i32) -> [u32; 8] {
    [1, 0, kind, id as u32, 0, 0, 0, 0]
}

/// CUmemAccessDesc.
fn access(kind: u32, flags: u32) -> [u32; 3] {
    [kind, 0, flags]
}

fn create(cuda: &Cuda, bytes: u64, kind: u32) -> u64 {
    cuda.get("cuMemCreate", &[bytes, prop(kind, 0).as_ptr() as u64, 0])
}

fn allow(cuda: &Cuda, at: u64, bytes: u64, desc: [u32; 3]) -> u32 {
    cuda.code("cuMemSetAccess", &[at, bytes, desc.as_ptr() as u64, 1])
}

fn put(cuda: &Cuda, at: u64, bytes: u64, handle: u64) {
    cuda.ok("cuMemMap", &[at, bytes, 0, handle, 0]);
    assert_eq!(allow(cuda, at, bytes, access(1, 3)), 0);
}

#[test]
fn an_extent_moves_to_the_host_and_back_under_its_address() {
    on(
        "an_extent_moves_to_the_host_and_back_under_its_address",
        "memory=16M",
        |cuda| {
            cuda.context(0);
            let free = || {
                let (mut free, mut total) = (0_u64, 0_u64);
                cuda.ok(
                    "cuMemGetInfo_v2",
                    &[&raw mut free as u64, &raw mut total as u64],
                );
                free
            };
            let bytes = 3 * BLOCK;
            let at = cuda.get("cuMemAddressReserve", &[bytes, 0, 0, 0]);
            let hbm = create(cuda, bytes, 1);
            put(cuda, at, bytes, hbm);
            assert_eq!(free(), 16 * MIB - bytes);
            // A chain of pointers through the extent, block by block.
            let places: Vec<u64> = (0..300).map(|i| at + (i % 3) * BLOCK + i * 64).collect();
            for pair in places.windows(2) {
                cuda.upload(pair[0], &pair[1].to_le_bytes());
            }
            let before = cuda.download(at, bytes as usize);
            let out = cuda.alloc(8);
            let chase = |steps: u64| {
                cuda.launch(cuda.kernel("chase"), 0, &[out, at, steps]);
                let end = cuda.download(out, 8);
                u64::from_le_bytes(end.try_into().unwrap())
            };
            assert_eq!(chase(299), places[299]);
            for kind in [2, 3, 1] {
                // Copy to new memory by a second address, then take the place of the old.
                let new = create(cuda, bytes, kind);
                let aside = cuda.get("cuMemAddressReserve", &[bytes, 0, 0, 0]);
                put(cuda, aside, bytes, new);
                cuda.ok("cuMemcpyDtoD_v2", &[aside, at, bytes]);
                cuda.ok("cuCtxSynchronize", &[]);
                cuda.ok("cuMemUnmap", &[aside, bytes]);
                cuda.ok("cuMemAddressFree", &[aside, bytes]);
                let old = cuda.get("cuMemRetainAllocationHandle", &[at + BLOCK]);
                cuda.ok("cuMemUnmap", &[at, bytes]);
                cuda.ok("cuMemRelease", &[old]);
                cuda.ok("cuMemRelease", &[old]);
                assert_eq!(cuda.code("cuMemRelease", &[old]), INVALID);
                put(cuda, at, bytes, new);
                assert!(cuda.download(at, bytes as usize) == before);
                assert_eq!(chase(299), places[299]);
                let used = if kind == 1 { bytes } else { 0 };
                assert_eq!(
                    free(),
                    16 * MIB - used - BLOCK,
                    "and a block for the small allocation"
                );
            }
        },
    );
}

#[test]
fn only_whole_mappings_are_unmapped_and_only_whole_reservations_freed() {
    on(
        "only_whole_mappings_are_unmapped_and_only_whole_reservations_freed",
        "memory=16M",
        |cuda| {
            cuda.context(0);
            let at = cuda.get("cuMemAddressReserve", &[4 * BLOCK, 0, 0, 0]);
            let two = create(cuda, 2 * BLOCK, 1);
            put(cuda, at, 2 * BLOCK, two);
            // The same memory again, at a second address.
            cuda.ok("cuMemMap", &[at + 2 * BLOCK, BLOCK, BLOCK, two, 0]);
            assert_eq!(allow(cuda, at + 2 * BLOCK, BLOCK, access(1, 3)), 0);
            cuda.upload(at + BLOCK, b"hello");
            assert_eq!(cuda.download(at + 2 * BLOCK, 5), b"hello");
            let refused = [
                ("cuMemUnmap", vec![at, BLOCK]),
                ("cuMemUnmap", vec![at + BLOCK, BLOCK]),
                ("cuMemUnmap", vec![at, 4 * BLOCK]),
                ("cuMemMap", vec![at + BLOCK, BLOCK, 0, two, 0]),
                ("cuMemMap", vec![at + 3 * BLOCK, 2 * BLOCK, 0, two, 0]),
                ("cuMemMap", vec![at + 3 * BLOCK, BLOCK, 2 * BLOCK, two, 0]),
                ("cuMemMap", vec![at + 3 * BLOCK + 4096, BLOCK, 0, two, 0]),
                ("cuMemMap", vec![at + 3 * BLOCK, 4096, 0, two, 0]),
                ("cuMemMap", vec![at + 3 * BLOCK, BLOCK, 0, two + 16, 0]),
                ("cuMemAddressFree", vec![at, 4 * BLOCK]),
                ("cuMemAddressFree", vec![at, BLOCK]),
            ];
            for (name, arguments) in refused {
                assert_eq!(
                    cuda.code(name, &arguments),
                    INVALID,
                    "{name} {arguments:x?}"
                );
            }
            // Several whole mappings go together; the memory goes with the last handle.
            cuda.ok("cuMemUnmap", &[at, 3 * BLOCK]);
            cuda.ok("cuMemAddressFree", &[at, 4 * BLOCK]);
            let mut out = 0_u64;
            let device = prop(1, 0);
            let more = [&raw mut out as u64, 7 * BLOCK, device.as_ptr() as u64, 0];
            assert_eq!(cuda.code("cuMemCreate", &more), OUT_OF_MEMORY);
            cuda.ok("cuMemRelease", &[two]);
            assert_eq!(cuda.code("cuMemCreate", &more), 0);
        },
    );
}

#[test]
fn memory_that_is_mapped_without_access_is_illegal() {
    on(
        "memory_that_is_mapped_without_access_is_illegal",
        "memory=16M",
        |cuda| {
            cuda.ok("cuInit", &[0]);
            for flags in [None, Some(1), Some(0)] {
                let context = cuda.context(0);
                let at = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
                cuda.ok("cuMemMap", &[at, BLOCK, 0, create(cuda, BLOCK, 1), 0]);
                if let Some(flags) = flags {
                    assert_eq!(allow(cuda, at, BLOCK, access(1, 3)), 0);
                    assert_eq!(allow(cuda, at, BLOCK, access(1, flags)), 0);
                }
                let place = [1_u32, 0];
                let now = cuda.get("cuMemGetAccess", &[place.as_ptr() as u64, at]);
                assert_eq!(now, u64::from(flags.unwrap_or(0)));
                let out = cuda.alloc(8);
                if flags == Some(1) {
                    cuda.launch(cuda.kernel("checksum"), 0, &[out, at, 100]);
                    cuda.ok("cuCtxSynchronize", &[]);
                }
                cuda.launch(cuda.kernel("fill"), 0, &[at, 1, 1]);
                assert_eq!(cuda.code("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
                cuda.ok("cuCtxDestroy_v2", &[context]);
            }
        },
    );
}

#[test]
fn unmapping_what_work_is_to_touch_is_told() {
    let Some(errors) = on(
        "unmapping_what_work_is_to_touch_is_told",
        "memory=16M",
        |cuda| {
            cuda.context(0);
            let (stream, flag) = (cuda.stream(), cuda.flag());
            let at = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
            let memory = create(cuda, BLOCK, 1);
            put(cuda, at, BLOCK, memory);
            cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
            cuda.launch(cuda.kernel("fill"), stream, &[at + 4096, 1, 1]);
            // Though it is mapped again before the kernel comes to it.
            cuda.ok("cuMemUnmap", &[at, BLOCK]);
            put(cuda, at, BLOCK, memory);
            flag.set(1);
            assert_eq!(cuda.code("cuStreamSynchronize", &[stream]), ILLEGAL_ADDRESS);
        },
    ) else {
        return;
    };
    assert!(
        errors.contains("work that is not done was to touch it"),
        "{errors}"
    );
}

#[test]
fn a_kernel_that_follows_a_pointer_to_what_was_unmapped_is_told() {
    on(
        "a_kernel_that_follows_a_pointer_to_what_was_unmapped_is_told",
        "memory=16M",
        |cuda| {
            cuda.context(0);
            let (stream, flag) = (cuda.stream(), cuda.flag());
            let at = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
            put(cuda, at, BLOCK, create(cuda, BLOCK, 1));
            let start = cuda.alloc(16);
            cuda.upload(start, &at.to_le_bytes());
            cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
            cuda.launch(cuda.kernel("chase"), stream, &[start + 8, start, 2]);
            // No argument names the extent: only the access itself tells.
            cuda.ok("cuMemUnmap", &[at, BLOCK]);
            flag.set(1);
            assert_eq!(cuda.code("cuStreamSynchronize", &[stream]), ILLEGAL_ADDRESS);
        },
    );
}

#[test]
fn the_process_sees_host_memory_to_which_it_gave_itself_access() {
    on(
        "the_process_sees_host_memory_to_which_it_gave_itself_access",
        "memory=16M",
        |cuda| {
            cuda.context(0);
            let at = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
            put(cuda, at, BLOCK, create(cuda, BLOCK, 2));
            assert_eq!(allow(cuda, at, BLOCK, access(2, 3)), 0);
            cuda.launch(cuda.kernel("fill"), 0, &[at, 0x0202_0202, 4]);
            cuda.ok("cuCtxSynchronize", &[]);
            // SAFETY: mapped for the process by the call above.
            let seen = unsafe { std::slice::from_raw_parts(at as *const u8, 16) };
            assert_eq!(seen, [2; 16]);
            cuda.ok("cuMemUnmap", &[at, BLOCK]);
            put(cuda, at, BLOCK, create(cuda, BLOCK, 1));
            assert_eq!(
                allow(cuda, at, BLOCK, access(2, 3)),
                INVALID,
                "no BAR: device memory stays the device's"
            );
        },
    );
}
