//! Stream-ordered allocations: memory in tiers in the order of streams, and what pools tell of it.

use std::time::Duration;

use crate::common::{Cuda, INVALID, OUT_OF_MEMORY};
use crate::shim::{MIB, finds, moves, preloaded};

/// Attributes of pools.
const THRESHOLD: u64 = 4;
const RESERVED: u64 = 5;
const USED: u64 = 7;
const USED_HIGH: u64 = 8;

/// What one stream frees, no other has before that one has come there; the same stream has it at once.
fn order(cuda: &Cuda) {
    cuda.context(0);
    let (one, two, flag) = (cuda.stream(), cuda.stream(), cuda.flag());
    let (fill, copy) = (cuda.kernel("fill"), cuda.kernel("copy"));
    let bytes = 4 * MIB;
    let kept = cuda.alloc(bytes);
    let first = cuda.alloc_async(bytes, one);
    assert_eq!(cuda.launch(fill, one, &[first, 7, bytes / 4]), 0);
    cuda.held(one, &flag);
    assert_eq!(cuda.launch(copy, one, &[kept, first, bytes]), 0);
    cuda.free_async(first, one);
    let second = cuda.alloc_async(bytes, two);
    assert_eq!(cuda.launch(fill, two, &[second, 8, bytes / 4]), 0);
    cuda.ok("cuStreamSynchronize", &[two]);
    let third = cuda.alloc_async(bytes, one);
    assert_eq!(third, first, "in the same stream it is there again");
    assert_eq!(cuda.launch(fill, one, &[third, 9, bytes / 4]), 0);
    flag.set(1);
    cuda.ok("cuStreamSynchronize", &[one]);
    for (at, value) in [(kept, 7_u32), (second, 8), (third, 9)] {
        for place in [0, bytes / 2, bytes - 4] {
            assert_eq!(cuda.download(at + place, 4), value.to_le_bytes());
        }
    }
    cuda.free_async(second, two);
    cuda.free_async(third, two);
    cuda.ok("cuMemFree_v2", &[kept]);
    cuda.ok("cuStreamSynchronize", &[two]);
    let (free, all) = cuda.info();
    assert_eq!(free, all);
}

#[test]
fn memory_is_freed_in_the_order_of_streams() {
    let test = "memory_is_freed_in_the_order_of_streams";
    preloaded(test, [256, 16], "memory=64M", &[], order);
}

#[test]
fn found_another_streams_memory() {
    if cfg!(debug_assertions) {
        let test = "pools::memory_is_freed_in_the_order_of_streams";
        let found = finds(test, "pool-order", "memory=64M", &[]);
        assert!(found, "nobody found it");
    }
}

/// Attributes, memory information, and what a pool keeps.
fn counts(cuda: &Cuda) {
    cuda.context(0);
    let stream = cuda.stream();
    let pool = cuda.get("cuDeviceGetMemPool", &[0]);
    // On 32 MiB of memory.
    let large = cuda.alloc_async(40 * MIB, stream);
    let small = cuda.alloc_async(MIB, stream);
    assert_eq!(cuda.info(), (23 * MIB, 64 * MIB));
    assert_eq!(cuda.pool_attribute(pool, USED), 41 * MIB);
    assert!(cuda.pool_attribute(pool, RESERVED) >= 41 * MIB);
    let mut found = 0_u64;
    cuda.ok(
        "cuPointerGetAttribute",
        &[&raw mut found as u64, 17, large + 5 * MIB],
    );
    assert_eq!(found, pool);
    let mut out = 0_u64;
    let more = [&raw mut out as u64, 24 * MIB, stream];
    assert_eq!(cuda.code("cuMemAllocAsync", &more), OUT_OF_MEMORY);
    assert_eq!(
        cuda.code("cuMemFreeAsync", &[large + 2 * MIB, stream]),
        INVALID
    );
    assert_eq!(
        cuda.code("cuMemAllocAsync", &[&raw mut out as u64, 0, stream]),
        INVALID
    );
    for at in [large, small] {
        cuda.free_async(at, stream);
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!(
            cuda.code("cuMemFreeAsync", &[at, stream]),
            INVALID,
            "it was freed"
        );
    }
    assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
    assert_eq!(cuda.pool_attribute(pool, USED), 0);
    assert_eq!(cuda.pool_attribute(pool, USED_HIGH), 41 * MIB);
    cuda.set_pool_attribute(pool, USED_HIGH, 0);
    assert_eq!(cuda.pool_attribute(pool, USED_HIGH), 0);
    // It keeps as much as it is told to, for who allocates next, and gives it where there is no other.
    cuda.set_pool_attribute(pool, THRESHOLD, 16 * MIB);
    let (one, two) = (
        cuda.alloc_async(16 * MIB, stream),
        cuda.alloc_async(16 * MIB, stream),
    );
    cuda.free_async(one, stream);
    cuda.free_async(two, stream);
    cuda.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(cuda.pool_attribute(pool, RESERVED), 16 * MIB);
    assert_eq!(cuda.info().0, 48 * MIB);
    let other = cuda.stream();
    let again = cuda.alloc_async(16 * MIB, other);
    assert!(again == one || again == two);
    cuda.free_async(again, other);
    cuda.ok("cuStreamSynchronize", &[other]);
    let all = cuda.alloc(64 * MIB);
    cuda.ok("cuMemFree_v2", &[all]);
    let last = cuda.alloc_async(16 * MIB, other);
    cuda.free_async(last, other);
    cuda.ok("cuStreamSynchronize", &[other]);
    cuda.ok("cuMemPoolTrimTo", &[pool, 0]);
    assert_eq!(cuda.info().0, 64 * MIB);
    // A pool of the program's own; memory of pools can be freed as any other.
    let mut props = [0_u32; 22];
    (props[0], props[2]) = (1, 1);
    let own = cuda.get("cuMemPoolCreate", &[props.as_ptr() as u64]);
    let at = cuda.get("cuMemAllocFromPoolAsync", &[50 * MIB, own, stream]);
    assert_eq!(cuda.info().0, 14 * MIB);
    cuda.ok("cuMemFree_v2", &[at]);
    cuda.ok("cuMemPoolDestroy", &[own]);
    assert_eq!(cuda.info().0, 64 * MIB);
}

#[test]
fn pools_tell_what_they_have_and_it_counts() {
    let test = "pools_tell_what_they_have_and_it_counts";
    preloaded(test, [64, 16], "memory=32M", &[], counts);
}

#[test]
fn found_what_does_not_count() {
    if cfg!(debug_assertions) {
        let test = "pools::pools_tell_what_they_have_and_it_counts";
        let more = [("GPUOS_MEM_GRANT", "67108864")];
        let found = finds(test, "pool-count", "memory=32M", &more);
        assert!(found, "nobody found it");
    }
}

/// Who allocates when all is freed, but by a stream that has not come there, waits for it.
#[test]
fn an_allocation_waits_for_what_is_being_freed() {
    let test = "an_allocation_waits_for_what_is_being_freed";
    preloaded(test, [64, 16], "memory=32M", &[], |cuda| {
        let context = cuda.context(0);
        let (one, two, flag) = (cuda.stream(), cuda.stream(), cuda.flag());
        let all = cuda.alloc_async(60 * MIB, one);
        cuda.held(one, &flag);
        cuda.free_async(all, one);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cuda.ok("cuCtxSetCurrent", &[context]);
                std::thread::sleep(Duration::from_millis(50));
                flag.set(1);
            });
            let at = cuda.alloc_async(40 * MIB, two);
            cuda.free_async(at, two);
        });
        cuda.ok("cuStreamDestroy_v2", &[one]);
        cuda.ok("cuCtxSynchronize", &[]);
        assert_eq!(cuda.info().0, 64 * MIB);
    });
}

/// Memory of pools moves as other memory does, and is freed while a stream captures.
#[test]
fn memory_of_pools_moves() {
    let test = "memory_of_pools_moves";
    let settings = "memory=64M,hbm=8G,link=8G";
    let more = [("GPUOS_PRELOAD_SHAKE", "21")];
    let body = |cuda: &Cuda| {
        cuda.context(0);
        let (fill, stream, other) = (cuda.kernel("fill"), cuda.stream(), cuda.stream());
        for round in 1..80_u64 {
            let at = cuda.alloc_async((2 + round % 5) * MIB, stream);
            assert_eq!(cuda.launch(fill, stream, &[at, round, MIB / 2]), 0);
            cuda.ok("cuStreamSynchronize", &[stream]);
            std::thread::sleep(Duration::from_micros(500));
            assert_eq!(
                cuda.download(at + 2 * MIB - 4, 4),
                (round as u32).to_le_bytes()
            );
            let captures = round % 8 == 0;
            if captures {
                cuda.ok("cuStreamBeginCapture_v2", &[other, 2]);
                assert_eq!(cuda.code("cuMemFreeAsync", &[at, other]), INVALID);
            }
            cuda.free_async(at, stream);
            if captures {
                let mut graph = 0_u64;
                cuda.ok("cuStreamEndCapture", &[other, &raw mut graph as u64]);
                cuda.ok("cuGraphDestroy", &[graph]);
            }
        }
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!(cuda.info(), (256 * MIB, 256 * MIB));
    };
    moves(10, || preloaded(test, [256, 16], settings, &more, body));
}
