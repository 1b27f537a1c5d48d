//! Order of streams and events. Kernel `wait` holds a stream until the test lets it go, so that nothing
//! here depends on how fast anything is.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{Cuda, NOT_READY, on};

fn words(cuda: &Cuda, from: u64, count: usize) -> Vec<u32> {
    let bytes = cuda.download(from, count * 4);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks(4).map(word).collect()
}

#[test]
fn a_stream_works_while_the_program_goes_on_and_in_order() {
    on(
        "a_stream_works_while_the_program_goes_on_and_in_order",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (stream, other, flag) = (cuda.stream(), cuda.stream(), cuda.flag());
            let (a, b) = (cuda.alloc(4096), cuda.alloc(4096));
            let fill = cuda.kernel("fill");
            assert_eq!(cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]), 0);
            assert_eq!(cuda.launch(fill, stream, &[a, 5, 1024]), 0);
            assert_eq!(cuda.launch(cuda.kernel("add"), stream, &[a, a, a, 1024]), 0);
            // The other stream does not wait.
            assert_eq!(cuda.launch(fill, other, &[b, 3, 1024]), 0);
            cuda.ok("cuStreamSynchronize", &[other]);
            assert_eq!(cuda.code("cuStreamQuery", &[stream]), NOT_READY);
            assert_eq!(cuda.code("cuStreamQuery", &[other]), 0);
            flag.set(1);
            cuda.ok("cuStreamSynchronize", &[stream]);
            assert_eq!(words(cuda, a, 1024), [10; 1024]);
            assert_eq!(words(cuda, b, 1024), [3; 1024]);
        },
    );
}

#[test]
fn an_event_marks_what_was_given_before_it_was_recorded() {
    on(
        "an_event_marks_what_was_given_before_it_was_recorded",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (stream, other, flag) = (cuda.stream(), cuda.stream(), cuda.flag());
            let (wait, fill) = (cuda.kernel("wait"), cuda.kernel("fill"));
            let a = cuda.alloc(4096);
            let event = cuda.get("cuEventCreate", &[0]);
            let later = cuda.get("cuEventCreate", &[0]);
            assert_eq!(cuda.code("cuEventQuery", &[event]), 0, "never recorded");
            cuda.launch(wait, stream, &[flag.0, 1]);
            cuda.launch(fill, stream, &[a, 1, 1]);
            cuda.ok("cuEventRecord", &[event, stream]);
            cuda.ok("cuStreamWaitEvent", &[other, event, 0]);
            cuda.launch(fill, other, &[a, 2, 1]);
            assert_eq!(cuda.code("cuEventQuery", &[event]), NOT_READY);
            assert_eq!(cuda.code("cuStreamQuery", &[other]), NOT_READY);
            // Recording again does not change for what the other stream waits.
            cuda.launch(wait, stream, &[flag.0, 2]);
            cuda.ok("cuEventRecord", &[event, stream]);
            cuda.ok("cuEventRecord", &[later, stream]);
            flag.set(1);
            cuda.ok("cuStreamSynchronize", &[other]);
            assert_eq!(cuda.code("cuEventQuery", &[event]), NOT_READY);
            flag.set(2);
            cuda.ok("cuEventSynchronize", &[later]);
            assert_eq!(words(cuda, a, 1), [2]);
            let mut milliseconds = -1.0_f32;
            cuda.ok(
                "cuEventElapsedTime",
                &[&raw mut milliseconds as u64, event, later],
            );
            assert!(milliseconds >= 0.0);
        },
    );
}

#[test]
fn the_default_stream_waits_for_the_others_and_they_for_it() {
    on(
        "the_default_stream_waits_for_the_others_and_they_for_it",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (blocking, free) = (cuda.get("cuStreamCreate", &[0]), cuda.stream());
            let flag = cuda.flag();
            let (wait, fill) = (cuda.kernel("wait"), cuda.kernel("fill"));
            let a = cuda.alloc(4096);
            cuda.launch(wait, blocking, &[flag.0, 1]);
            cuda.launch(fill, blocking, &[a, 1, 1]);
            cuda.launch(fill, 0, &[a, 2, 1]);
            cuda.launch(fill, blocking, &[a + 4, 3, 1]);
            cuda.launch(fill, free, &[a + 8, 4, 1]);
            cuda.ok("cuStreamSynchronize", &[free]);
            assert_eq!(cuda.code("cuStreamQuery", &[0]), NOT_READY);
            flag.set(1);
            cuda.ok("cuCtxSynchronize", &[]);
            assert_eq!(words(cuda, a, 3), [2, 3, 4]);
            // The thread's own default stream is another one.
            cuda.launch(wait, 0, &[flag.0, 5]);
            assert_eq!(cuda.code("cuStreamQuery", &[0]), NOT_READY);
            let own = cuda.get("cuStreamCreate", &[1]);
            assert_eq!(cuda.code("cuStreamQuery", &[own]), 0);
            flag.set(5);
            cuda.ok("cuStreamSynchronize_ptsz", &[0]);
        },
    );
}

static CALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn called(data: *mut c_void) {
    // A function that a stream calls must not call CUDA.
    let inside = Cuda::open().code("cuCtxSynchronize", &[]);
    CALLED.store(data as u32 + inside, Ordering::SeqCst);
}

#[test]
fn a_stream_calls_the_program() {
    on("a_stream_calls_the_program", "memory=64M", |cuda| {
        cuda.context(0);
        let (stream, flag) = (cuda.stream(), cuda.flag());
        cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
        cuda.ok("cuLaunchHostFunc", &[stream, called as *const () as u64, 7]);
        assert_eq!(CALLED.load(Ordering::SeqCst), 0);
        flag.set(1);
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!(CALLED.load(Ordering::SeqCst), 7 + 800);
    });
}

#[test]
fn pageable_memory_is_read_when_a_copy_is_asked_for() {
    on(
        "pageable_memory_is_read_when_a_copy_is_asked_for",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (stream, flag) = (cuda.stream(), cuda.flag());
            let a = cuda.alloc(4096);
            let pinned = cuda.get("cuMemHostAlloc", &[4096, 0]);
            cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
            let mut own = [1_u8; 8];
            cuda.ok("cuMemcpyHtoDAsync_v2", &[a, own.as_ptr() as u64, 8, stream]);
            own.fill(9);
            cuda.ok("cuMemcpyHtoDAsync_v2", &[a + 8, pinned, 8, stream]);
            // SAFETY: the memory is ours, and the copy from it is held back.
            unsafe { std::ptr::write_bytes(pinned as *mut u8, 2, 8) };
            flag.set(1);
            cuda.ok("cuStreamSynchronize", &[stream]);
            assert_eq!(cuda.download(a, 16), [[1_u8; 8], [2; 8]].concat());
        },
    );
}

#[test]
fn bytes_take_the_time_that_link_and_memory_need() {
    // 64 MiB/s and direction: 16 MiB take at least a quarter of a second, whatever the machine does.
    on(
        "bytes_take_the_time_that_link_and_memory_need",
        "memory=64M,link=64M,hbm=64M",
        |cuda| {
            cuda.context(0);
            let bytes = vec![3_u8; 16 << 20];
            let a = cuda.alloc(16 << 20);
            let least = std::time::Duration::from_millis(240);
            let start = std::time::Instant::now();
            cuda.upload(a, &bytes);
            assert!(start.elapsed() >= least);
            // A kernel that reads host memory in place waits for the link as well.
            let host = cuda.get("cuMemHostAlloc", &[16 << 20, 0]);
            let out = cuda.alloc(8);
            let start = std::time::Instant::now();
            cuda.launch(cuda.kernel("checksum"), 0, &[out, host, 16 << 20]);
            cuda.ok("cuCtxSynchronize", &[]);
            assert!(start.elapsed() >= least);
        },
    );
}

#[test]
fn work_of_a_destroyed_stream_is_waited_for() {
    on(
        "work_of_a_destroyed_stream_is_waited_for",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let stream = cuda.get("cuStreamCreate", &[0]);
            let (flag, a) = (cuda.flag(), cuda.alloc(4096));
            let fill = cuda.kernel("fill");
            cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
            cuda.launch(fill, stream, &[a, 5, 1024]);
            cuda.ok("cuStreamDestroy_v2", &[stream]);
            // The default stream's work comes after it.
            cuda.launch(cuda.kernel("add"), 0, &[a, a, a, 1024]);
            assert_eq!(cuda.code("cuStreamQuery", &[0]), NOT_READY);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    flag.set(1);
                });
                cuda.ok("cuCtxSynchronize", &[]);
            });
            assert_eq!(words(cuda, a, 1024), [10; 1024]);
        },
    );
}
