//! Programs that manage virtual memory themselves: their handles are the library's, and what is behind them moves while they run.

use std::io::Seek;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use crate::common::{Cuda, INVALID, OUT_OF_MEMORY};
use crate::shim::{MIB, finds, moves, preloaded, prop};

/// Bytes of a block.
const BLOCK: u64 = 2 * MIB;

const SHAKEN: &str = "memory=64M,hbm=8G,link=8G";

/// A segment of handles, some of them mapped at a second address, in parts, while extents move at random.
fn segment(cuda: &Cuda) {
    cuda.context(0);
    let (fill, stream) = (cuda.kernel("fill"), cuda.stream());
    let at = cuda.reserve(96 * MIB);
    let alias = cuda.reserve(64 * MIB);
    // The last one has extents of two blocks.
    let sizes = [1, 3, 2, 34].map(|blocks| blocks * BLOCK);
    let handles = sizes.map(|bytes| cuda.create(bytes, 0));
    let mut offset = 0;
    let starts = sizes.map(|bytes| {
        offset += bytes;
        at + offset - bytes
    });
    for i in 0..4 {
        cuda.map(starts[i], sizes[i], 0, handles[i], 0);
    }
    // The last two blocks of the second one, and some of the fourth, from the middle of an extent on.
    cuda.map(alias, 2 * BLOCK, BLOCK, handles[1], 0);
    cuda.map(alias + 2 * BLOCK, 10 * BLOCK, 3 * BLOCK, handles[3], 0);
    // Without access, it moves all the same.
    cuda.ok("cuMemMap", &[alias + 32 * MIB, sizes[2], 0, handles[2], 0]);
    let pairs = [
        (starts[1] + BLOCK, alias, 2 * BLOCK),
        (starts[3] + 3 * BLOCK, alias + 2 * BLOCK, 10 * BLOCK),
    ];
    for round in 1..150_u64 {
        for (own, other, bytes) in pairs {
            let (write, read) = if round % 2 == 0 {
                (own, other)
            } else {
                (other, own)
            };
            for place in [0, bytes / 2, bytes - 4096] {
                assert_eq!(cuda.launch(fill, stream, &[write + place, round, 1024]), 0);
            }
            cuda.ok("cuStreamSynchronize", &[stream]);
            std::thread::sleep(std::time::Duration::from_micros(200));
            for place in [0, bytes / 2, bytes - 4096] {
                let word = (round as u32).to_le_bytes().repeat(1024);
                assert!(cuda.download(read + place, 4096) == word, "round {round}");
            }
        }
        if round % 10 == 0 {
            // Out and in again, at another place of the segment.
            cuda.ok("cuMemUnmap", &[starts[0], sizes[0]]);
            std::thread::sleep(std::time::Duration::from_millis(2));
            cuda.map(starts[0], sizes[0], 0, handles[0], 0);
            assert_eq!(cuda.launch(fill, stream, &[starts[0], round, 1024]), 0);
            cuda.ok("cuStreamSynchronize", &[stream]);
        }
    }
    cuda.ok("cuMemUnmap", &[alias, 12 * BLOCK]);
    cuda.ok("cuMemUnmap", &[alias + 32 * MIB, sizes[2]]);
    cuda.ok("cuMemUnmap", &[at, 80 * MIB]);
    cuda.ok("cuMemAddressFree", &[at, 96 * MIB]);
    cuda.ok("cuMemAddressFree", &[alias, 64 * MIB]);
    for handle in handles {
        cuda.ok("cuMemRelease", &[handle]);
    }
    let (free, all) = cuda.info();
    assert_eq!(free, all);
}

#[test]
fn a_segment_of_handles_moves_under_all_its_mappings() {
    let test = "a_segment_of_handles_moves_under_all_its_mappings";
    let more = [("GPUOS_PRELOAD_SHAKE", "11")];
    moves(20, || preloaded(test, [256, 16], SHAKEN, &more, segment));
}

/// What the driver says of the same calls is said of virtual handles.
#[test]
fn handles_are_what_the_drivers_own_are() {
    let test = "handles_are_what_the_drivers_own_are";
    preloaded(test, [64, 16], "memory=32M", &[], |cuda| {
        cuda.context(0);
        // More than the GPU has.
        let one = cuda.create(40 * MIB, 0);
        assert_eq!(cuda.info(), (24 * MIB, 64 * MIB));
        assert_eq!(
            cuda.create_code(26 * MIB, &prop(0, 0, 0)),
            Err(OUT_OF_MEMORY)
        );
        let wrong = [
            (0, prop(0, 0, 0)),
            (4096, prop(0, 0, 0)),
            (BLOCK + 4096, prop(0, 0, 0)),
        ];
        for (bytes, prop) in wrong {
            assert_eq!(cuda.create_code(bytes, &prop), Err(INVALID), "{bytes}");
        }
        assert_eq!(
            cuda.create_code(u64::MAX - 8191, &prop(0, 0, 0)),
            Err(INVALID)
        );
        assert!(cuda.create_code(BLOCK, &prop(0, 7, 0)).is_err());
        let mut asked = [0_u32; 8];
        let properties = [asked.as_mut_ptr() as u64, one];
        cuda.ok("cuMemGetAllocationPropertiesFromHandle", &properties);
        assert_eq!(asked, prop(0, 0, 0));
        let at = cuda.reserve(64 * MIB);
        let refused = [
            ("cuMemMap", vec![at, 42 * MIB, 0, one, 0]),
            ("cuMemMap", vec![at, BLOCK, 40 * MIB, one, 0]),
            ("cuMemMap", vec![at, BLOCK, u64::MAX - BLOCK + 1, one, 0]),
            ("cuMemMap", vec![at, BLOCK, 4096, one, 0]),
            ("cuMemMap", vec![at + 4096, BLOCK, 0, one, 0]),
            ("cuMemMap", vec![at, 4096, 0, one, 0]),
            ("cuMemMap", vec![at, 0, 0, one, 0]),
            ("cuMemMap", vec![at, BLOCK, 0, one, 1]),
            ("cuMemMap", vec![at, BLOCK, 0, one + 16, 0]),
            ("cuMemMap", vec![at + 62 * MIB, 4 * MIB, 0, one, 0]),
        ];
        for (name, words) in refused {
            assert_eq!(cuda.code(name, &words), INVALID, "{name} {words:x?}");
        }
        cuda.map(at, 20 * MIB, 0, one, 0);
        cuda.map(at + 20 * MIB, 20 * MIB, 20 * MIB, one, 0);
        let whole = [
            (at, BLOCK),
            (at + BLOCK, 18 * MIB),
            (at, 22 * MIB),
            (at + 10 * MIB, 20 * MIB),
        ];
        for (at, bytes) in whole {
            assert_eq!(
                cuda.code("cuMemUnmap", &[at, bytes]),
                INVALID,
                "{at:x} {bytes}"
            );
            assert_eq!(cuda.allow(at, bytes, 0, 1), INVALID, "{at:x} {bytes}");
        }
        assert_eq!(
            cuda.code("cuMemMap", &[at + BLOCK, BLOCK, 0, one, 0]),
            INVALID
        );
        assert_eq!(cuda.code("cuMemAddressFree", &[at, 64 * MIB]), INVALID);
        assert_eq!(cuda.code("cuMemFree_v2", &[at]), INVALID);
        assert_eq!(cuda.code("cuMemFree_v2", &[one]), INVALID);
        // The address leads to the handle, and tells of the mapping.
        assert_eq!(
            cuda.get("cuMemRetainAllocationHandle", &[at + 25 * MIB]),
            one
        );
        let (mut start, mut size) = (0_u64, 0_u64);
        let places = [&raw mut start as u64, &raw mut size as u64, at + 25 * MIB];
        cuda.ok("cuMemGetAddressRange_v2", &places);
        assert_eq!((start, size), (at + 20 * MIB, 20 * MIB));
        let place = [1_u32, 0];
        let flags = cuda.get("cuMemGetAccess", &[place.as_ptr() as u64, at]);
        assert_eq!(flags, 3);
        // Released as often as it is held; the memory stays until nothing of it is mapped.
        cuda.ok("cuMemRelease", &[one]);
        cuda.ok("cuMemRelease", &[one]);
        assert_eq!(cuda.code("cuMemRelease", &[one]), INVALID);
        assert_eq!(
            cuda.code("cuMemGetAllocationPropertiesFromHandle", &properties),
            INVALID
        );
        assert_eq!(
            cuda.code("cuMemMap", &[at + 40 * MIB, BLOCK, 0, one, 0]),
            INVALID
        );
        cuda.upload(at + 39 * MIB, &[7; 4096]);
        assert_eq!(cuda.download(at + 39 * MIB, 4096), [7; 4096]);
        cuda.ok("cuMemUnmap", &[at, 20 * MIB]);
        assert_eq!(cuda.info().0, 24 * MIB);
        cuda.ok("cuMemUnmap", &[at + 20 * MIB, 20 * MIB]);
        assert_eq!(cuda.info().0, 64 * MIB);
        assert_eq!(cuda.code("cuMemUnmap", &[at + 20 * MIB, 20 * MIB]), INVALID);
        cuda.ok("cuMemAddressFree", &[at, 64 * MIB]);
    });
}

/// It outlives contexts, and is there with another one.
#[test]
fn physical_memory_belongs_to_no_context() {
    let test = "physical_memory_belongs_to_no_context";
    let more = [("GPUOS_PRELOAD_SHAKE", "12")];
    preloaded(test, [64, 16], "memory=32M", &more, |cuda| {
        let first = cuda.context(0);
        let handle = cuda.create(8 * MIB, 0);
        let at = cuda.reserve(8 * MIB);
        cuda.map(at, 8 * MIB, 0, handle, 0);
        cuda.upload(at + 5 * MIB, &[9; 4096]);
        cuda.ok("cuCtxDestroy_v2", &[first]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        cuda.get("cuCtxCreate_v2", &[0, 0]);
        for _ in 0..20 {
            assert_eq!(cuda.download(at + 5 * MIB, 4096), [9; 4096]);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(cuda.info().0, 56 * MIB);
    });
}

/// What has a special use is the driver's, counts, stays where it is, and takes no more of the GPU than the process has.
#[test]
fn what_is_special_is_the_drivers_and_counts() {
    let test = "what_is_special_is_the_drivers_and_counts";
    let said = preloaded(test, [64, 16], "devices=2,memory=32M", &[], |cuda| {
        cuda.context(0);
        // Compressed.
        let mut special = prop(0, 0, 0);
        special[6] = 1;
        let own = cuda.create_code(8 * MIB, &special).expect("memory");
        assert_eq!(cuda.info().0, 56 * MIB);
        assert_eq!(
            cuda.create_code(10 * MIB, &special),
            Err(OUT_OF_MEMORY),
            "of 16 MiB"
        );
        let at = cuda.reserve(8 * MIB);
        cuda.map(at, 8 * MIB, 0, own, 0);
        cuda.ok("cuMemRelease", &[own]);
        assert_eq!(cuda.info().0, 56 * MIB, "it is mapped");
        cuda.ok("cuMemUnmap", &[at, 8 * MIB]);
        assert_eq!(cuda.info().0, 64 * MIB);
        // Another type than descriptors the simulated driver does not have; what it says is said.
        assert_eq!(cuda.create_code(BLOCK, &prop(8, 0, 0)), Err(801));
        let own = cuda.create(BLOCK, 0);
        let mut file = 0_u64;
        let words = [&raw mut file as u64, own, 1, 0];
        assert_eq!(cuda.code("cuMemExportToShareableHandle", &words), 801);
        assert_eq!(
            cuda.code("cuMulticastBindMem", &[1, 0, own, 0, BLOCK, 0]),
            801
        );
        assert_eq!(cuda.allow(at, 8 * MIB, 0, 3), INVALID);
    });
    if let Some(said) = said {
        for call in ["cuMemExportToShareableHandle", "cuMulticastBindMem"] {
            let line = format!(
                "gpuos: {call}: memory in tiers has no such handle; ask cuMemCreate for one by its handle type"
            );
            assert!(said.contains(&line), "{said}");
        }
    }
}

/// What PyTorch's expandable segments consist of may be handed to others: it moves until it is, and is in the GPU's memory from then on.
fn descriptors(cuda: &Cuda) {
    cuda.context(0);
    let fill = cuda.kernel("fill");
    const SIZE: u64 = 10 * MIB;
    let handles = [(); 5].map(|()| cuda.create_code(SIZE, &prop(1, 0, 1)).expect("memory"));
    assert_eq!(cuda.info().0, 14 * MIB, "they count");
    let at = cuda.reserve(5 * SIZE);
    for (handle, start) in handles.iter().zip((at..).step_by(SIZE as usize)) {
        cuda.map(start, SIZE, 0, *handle, 0);
    }
    let mut given: [Option<std::fs::File>; 5] = [const { None }; 5];
    for round in 1..100_u64 {
        for which in 0..5 {
            let start = at + which * SIZE;
            assert_eq!(
                cuda.launch(fill, 0, &[start, round * 8 + which, SIZE / 4]),
                0
            );
        }
        cuda.ok("cuCtxSynchronize", &[]);
        // The last ones lie in host memory at first. Two of them, with what they hold now, are given to others.
        if matches!(round, 20 | 40) {
            let which = 5 - round as usize / 20;
            let mut file = -1_i32;
            let words = [&raw mut file as u64, handles[which], 1, 0];
            cuda.ok("cuMemExportToShareableHandle", &words);
            // SAFETY: the descriptor is new.
            given[which] = Some(unsafe { std::fs::File::from_raw_fd(file) });
        }
        for which in 0..5 {
            let word = ((round * 8 + which) as u32).to_le_bytes();
            let start = at + which * SIZE;
            assert_eq!(cuda.download(start, 4), word, "round {round}");
            assert_eq!(cuda.download(start + SIZE - 4, 4), word, "round {round}");
            // Who has the descriptor sees what is written.
            if let Some(file) = &given[which as usize] {
                let place = (&*file).stream_position().unwrap();
                let mut seen = [0; 4];
                file.read_exact_at(&mut seen, place).unwrap();
                assert_eq!(seen, word, "round {round}, by the descriptor");
            }
        }
    }
    cuda.ok("cuMemUnmap", &[at, 5 * SIZE]);
    for handle in handles {
        cuda.ok("cuMemRelease", &[handle]);
    }
    assert_eq!(cuda.info().0, 64 * MIB);
}

#[test]
fn what_may_be_for_others_moves_until_it_is() {
    let test = "what_may_be_for_others_moves_until_it_is";
    let more = [("GPUOS_PRELOAD_SHAKE", "14")];
    moves(20, || {
        preloaded(test, [64, 32], "memory=64M", &more, descriptors)
    });
}

/// A second device reads what the first writes, by a mapping that both have access to.
fn peers(cuda: &Cuda) {
    cuda.context(0);
    let handle = cuda.create(4 * MIB, 0);
    let at = cuda.reserve(4 * MIB);
    cuda.map(at, 4 * MIB, 0, handle, 0);
    assert_eq!(cuda.allow(at, 4 * MIB, 1, 3), 0);
    let access = [2_u32, 0, 3];
    let host = [at, 4 * MIB, access.as_ptr() as u64, 1];
    assert_eq!(cuda.code("cuMemSetAccess", &host), INVALID);
    let fill = cuda.kernel("fill");
    let second = cuda.get("cuCtxCreate_v2", &[0, 1]);
    let own = cuda.alloc(4 * MIB);
    let copy = cuda.kernel("copy");
    for round in 1..60_u64 {
        let mut popped = 0_u64;
        cuda.ok("cuCtxPopCurrent_v2", &[&raw mut popped as u64]);
        assert_eq!(cuda.launch(fill, 0, &[at, round, MIB]), 0);
        cuda.ok("cuCtxSynchronize", &[]);
        cuda.ok("cuCtxPushCurrent_v2", &[second]);
        assert_eq!(cuda.launch(copy, 0, &[own, at, 4 * MIB]), 0);
        cuda.ok("cuCtxSynchronize", &[]);
        let word = (round as u32).to_le_bytes();
        assert_eq!(cuda.download(own + 4 * MIB - 4, 4), word);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[test]
fn a_peer_reads_what_is_mapped_for_it() {
    let test = "a_peer_reads_what_is_mapped_for_it";
    let more = [("GPUOS_PRELOAD_SHAKE", "13")];
    preloaded(test, [64, 16], "devices=2,memory=32M", &more, peers);
}

/// Errors that are planted in what moves handles are found by the segment.
macro_rules! planted {
    ($($name:ident $mutant:literal;)*) => { $(
        #[test]
        fn $name() {
            if cfg!(debug_assertions) {
                let test = "handles::a_segment_of_handles_moves_under_all_its_mappings";
                let found = finds(test, $mutant, SHAKEN, &[("GPUOS_PRELOAD_SHAKE", "11")]);
                assert!(found, "nobody found '{}'", $mutant);
            }
        }
    )* };
}

planted! {
    found_moved_in_its_first_mapping_alone "first-map";
    found_mapped_from_the_first_byte "map-offset";
    found_unmapped_and_there_again "unmapped";
    found_memory_of_a_handle_that_is_kept "handle-kept";
}
