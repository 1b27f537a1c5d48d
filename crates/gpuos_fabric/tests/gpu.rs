//! On the simulated driver: kernels find what they wrote, on streams, while extents come and go.

use std::time::Duration;

use gpuos_fabric::{Event, Fabric, Options, Span, Tier, Why};
use gpuos_model::rng::Rng;

use crate::common::{Cuda, library, with};

const MIB: u64 = 1 << 20;
const EXTENT: u64 = 2 * MIB;

/// Runs `body` in a process of its own that finds the driver by its name, with so much memory on the device.
#[track_caller]
fn on_gpu(test: &str, memory: &str, body: impl FnOnce(&Cuda)) {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("libcuda.so.1");
    std::os::unix::fs::symlink(library(), link).expect("a link");
    let path = folder.path().to_str().expect("a path");
    let settings = format!("memory={memory}");
    let variables = [("LD_LIBRARY_PATH", path), ("GPUOS_CUDA", settings.as_str())];
    with(test, &variables, body);
}

fn open(extents: [u64; 3], folder: &tempfile::TempDir) -> Fabric {
    let [hbm, host, file] = extents.map(|extents| extents * EXTENT);
    Fabric::open(&Options {
        device: Some(0),
        hbm,
        host,
        file,
        folder: Some(folder.path().to_path_buf()),
        ..Options::default()
    })
    .expect("opens")
}

fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

/// Fills words of extents by kernels on a stream of its own, releases at once, and reads them by calls.
fn works(cuda: &Cuda, context: u64, fabric: &Fabric, thread: u64) {
    cuda.ok("cuCtxSetCurrent", &[context]);
    let (fill, stream) = (cuda.kernel("fill"), cuda.stream());
    let mut rng = Rng::new(thread);
    let extents = 4;
    let object = fabric.alloc(extents * EXTENT).expect("room");
    let (start, _) = fabric.place(object).expect("an object");
    let mut wanted = [0_u32; 4];
    for round in 0..120 {
        let index = rng.below(extents);
        let offset = index * EXTENT + 4096 * thread;
        match rng.below(3) {
            0 | 1 => {
                let part = span(offset, 4096);
                let ticket = fabric.acquire(object, part, true, Some(stream));
                let ticket = ticket.expect("a part");
                fabric.wait(ticket, None).expect("there");
                let value = (round << 8 | thread) as u32;
                let words = [start + offset, value.into(), 1024];
                assert_eq!(cuda.launch(fill, stream, &words), 0);
                fabric.release(ticket).expect("a ticket");
                wanted[index as usize] = value;
            }
            _ => {
                let mut seen = [0; 4096];
                fabric.read(object, offset, &mut seen).expect("read");
                let word = wanted[index as usize].to_le_bytes();
                let right = seen.chunks(4).all(|each| each == word);
                assert!(right, "thread {thread}, round {round}");
            }
        }
    }
    fabric.free(object).expect("not held");
}

#[test]
fn kernels_find_what_they_wrote() {
    on_gpu("kernels_find_what_they_wrote", "32M", |cuda| {
        let folder = tempfile::tempdir().expect("a folder");
        let context = cuda.context(0);
        for extents in [[4, 3, 12], [3, 12, 0], [4, 0, 12]] {
            let fabric = open(extents, &folder);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let fabric = &fabric;
                    scope.spawn(move || works(cuda, context, fabric, thread));
                }
            });
            let stats = fabric.stats().expect("no fork");
            assert!(stats.counts.copied > 10, "{stats:?}");
            assert_eq!((stats.used, stats.counts.poisoned), ([0; 3], 0));
        }
        // All of the device's memory is free again.
        let (mut free, mut total) = (0_u64, 0_u64);
        let places = [&raw mut free as u64, &raw mut total as u64];
        cuda.ok("cuMemGetInfo_v2", &places);
        assert_eq!(free, total);
    });
}

#[test]
fn what_was_launched_keeps_its_memory_after_the_release() {
    on_gpu(
        "what_was_launched_keeps_its_memory_after_the_release",
        "32M",
        |cuda| {
            let folder = tempfile::tempdir().expect("a folder");
            cuda.context(0);
            let fabric = open([1, 4, 0], &folder);
            let (stream, flag) = (cuda.stream(), cuda.flag());
            let one = fabric.alloc(EXTENT).expect("room");
            let other = fabric.alloc(EXTENT).expect("room");
            let all = span(0, EXTENT);
            let ticket = fabric
                .acquire(one, all, true, Some(stream))
                .expect("a part");
            fabric.wait(ticket, None).expect("there");
            let at = fabric.place(one).expect("an object").0;
            cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
            cuda.launch(cuda.kernel("fill"), stream, &[at, 7, EXTENT / 4]);
            fabric.release(ticket).expect("a ticket");
            let ticket = fabric.acquire(other, all, true, None).expect("a part");
            let early = fabric.wait(ticket, Some(Duration::from_millis(50)));
            assert_eq!(early.expect_err("in use").why, Why::Timeout);
            flag.set(1);
            fabric.wait(ticket, None).expect("there");
            fabric.release(ticket).expect("a ticket");
            let mut seen = vec![0; EXTENT as usize];
            fabric.read(one, 0, &mut seen).expect("read");
            assert!(seen.chunks(4).all(|word| word == [7, 0, 0, 0]));
            // Freeing waits as well.
            fabric.free(one).expect("not held");
            cuda.ok("cuCtxSynchronize", &[]);
        },
    );
}

#[test]
fn gpu_memory_is_scrubbed_before_another_object_has_it() {
    on_gpu(
        "gpu_memory_is_scrubbed_before_another_object_has_it",
        "8M",
        |cuda| {
            let folder = tempfile::tempdir().expect("a folder");
            cuda.context(0);
            let fabric = open([2, 4, 0], &folder);
            let secret = vec![0x5A; 2 * EXTENT as usize];
            let object = fabric.alloc(2 * EXTENT).expect("room");
            fabric.write(object, 0, &secret).expect("written");
            fabric.free(object).expect("not held");
            let object = fabric.alloc(2 * EXTENT).expect("room");
            let ticket = fabric.acquire(object, span(0, 2 * EXTENT), false, None);
            let ticket = ticket.expect("a part");
            fabric.wait(ticket, None).expect("there");
            // As a kernel or a copy of the program sees it, past the library.
            let at = fabric.place(object).expect("an object").0;
            let seen = cuda.download(at, 2 * EXTENT as usize);
            assert!(seen.iter().all(|byte| *byte == 0));
            fabric.release(ticket).expect("a ticket");
        },
    );
}

#[test]
fn a_gpu_that_has_less_than_it_was_to_have_is_told_and_used() {
    on_gpu(
        "a_gpu_that_has_less_than_it_was_to_have_is_told_and_used",
        "8M",
        |cuda| {
            let folder = tempfile::tempdir().expect("a folder");
            cuda.context(0);
            // Somebody else has a quarter of it.
            let taken = cuda.alloc(EXTENT);
            let fabric = open([8, 8, 0], &folder);
            let object = fabric.alloc(8 * EXTENT).expect("room");
            for index in 0..8 {
                let bytes = vec![index as u8 + 1; EXTENT as usize];
                fabric
                    .write(object, index * EXTENT, &bytes)
                    .expect("written");
            }
            let event = fabric.event().expect("no fork");
            assert_eq!(event, Some((Event::Less(Tier::Hbm, 3), 3 * EXTENT)));
            for index in 0..8 {
                let mut seen = vec![0; EXTENT as usize];
                fabric
                    .read(object, index * EXTENT, &mut seen)
                    .expect("read");
                assert!(seen.iter().all(|byte| u64::from(*byte) == index + 1));
            }
            let four = fabric.acquire(object, span(0, 4 * EXTENT), false, None);
            assert_eq!(four.expect_err("too large").why, Why::Full);
            // What is lowered is given back to the driver, what is held as soon as it is released.
            let held = fabric.acquire(object, span(0, 3 * EXTENT), false, None);
            let held = held.expect("a part");
            fabric.wait(held, None).expect("there");
            fabric.limit([EXTENT, 8 * EXTENT, 0]).expect("no file");
            fabric.release(held).expect("a ticket");
            let free = || {
                let (mut free, mut total) = (0_u64, 0_u64);
                let places = [&raw mut free as u64, &raw mut total as u64];
                cuda.ok("cuMemGetInfo_v2", &places);
                free
            };
            while free() != 2 * EXTENT {
                std::thread::sleep(Duration::from_millis(1));
            }
            let ticket = fabric.acquire(object, span(0, 1), false, None);
            fabric.wait(ticket.expect("a part"), None).expect("there");
            cuda.ok("cuMemFree_v2", &[taken]);
        },
    );
}

#[test]
fn without_a_gpu_of_that_number_there_is_a_sentence() {
    on_gpu(
        "without_a_gpu_of_that_number_there_is_a_sentence",
        "8M",
        |_| {
            let options = |device, extent| Options {
                device: Some(device),
                hbm: 4 * EXTENT,
                extent,
                ..Options::default()
            };
            for device in [1, -7, i32::MAX] {
                let failure = Fabric::open(&options(device, 0))
                    .err()
                    .expect("no such GPU");
                assert_eq!(failure.why, Why::NoDriver);
                assert!(failure.text.contains("numbered from 0"), "{failure}");
            }
            let wrong = Fabric::open(&options(0, 3 * MIB))
                .err()
                .expect("no power of two");
            assert_eq!(wrong.why, Why::Wrong);
            assert!(Fabric::open(&options(0, 0)).is_ok());
        },
    );
}
