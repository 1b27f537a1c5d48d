//! Devices, and memory that is allocated.

use crate::common::{Cuda, INVALID, NOT_FOUND, OUT_OF_MEMORY, on};

const MIB: u64 = 1 << 20;

fn info(cuda: &Cuda) -> (u64, u64) {
    let (mut free, mut total) = (0_u64, 0_u64);
    cuda.ok(
        "cuMemGetInfo_v2",
        &[&raw mut free as u64, &raw mut total as u64],
    );
    (free, total)
}

#[test]
fn devices_say_what_they_are() {
    on(
        "devices_say_what_they_are",
        "devices=3,memory=64M,version=12.4",
        |cuda| {
            let mut word = 0_u64;
            let out = &raw mut word as u64;
            assert_eq!(cuda.code("cuDeviceGetCount", &[out]), 3);
            assert_eq!(cuda.get("cuDriverGetVersion", &[]), 12_040);
            cuda.ok("cuInit", &[0]);
            assert_eq!(cuda.get("cuDeviceGetCount", &[]), 3);
            let mut name = [0_u8; 64];
            cuda.ok("cuDeviceGetName", &[name.as_mut_ptr() as u64, 64, 2]);
            assert!(name.starts_with(b"NVIDIA H100 80GB HBM3\0"));
            assert_eq!(cuda.get("cuDeviceTotalMem_v2", &[1]), 64 * MIB);
            // Compute capability.
            assert_eq!(cuda.get("cuDeviceGetAttribute", &[75, 0]), 9);
            assert_eq!(cuda.code("cuDeviceGet", &[out, 3]), 101);
            let mut text = std::ptr::null::<std::ffi::c_char>();
            cuda.ok("cuGetErrorName", &[700, &raw mut text as u64]);
            // SAFETY: the function gave a text.
            let text = unsafe { std::ffi::CStr::from_ptr(text) };
            assert_eq!(text.to_str(), Ok("CUDA_ERROR_ILLEGAL_ADDRESS"));
        },
    );
}

#[test]
fn memory_is_allocated_filled_copied_and_used_again() {
    on(
        "memory_is_allocated_filled_copied_and_used_again",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            assert_eq!(info(cuda), (64 * MIB, 64 * MIB));
            for _ in 0..20 {
                let big = cuda.alloc(40 * MIB);
                assert_eq!(info(cuda).0, 24 * MIB);
                let bytes: Vec<u8> = (0..3 * MIB).map(|i| (i % 251) as u8).collect();
                cuda.upload(big + 12_345, &bytes);
                assert!(cuda.download(big + 12_345, bytes.len()) == bytes);
                cuda.ok("cuMemsetD32_v2", &[big, 0xDEAD_BEEF, 10]);
                assert_eq!(
                    cuda.download(big, 40),
                    0xDEAD_BEEF_u32.to_le_bytes().repeat(10)
                );
                cuda.ok("cuMemFree_v2", &[big]);
            }
            assert_eq!(info(cuda).0, 64 * MIB);
            // Small ones share a block, and it goes with the last of them.
            let small: Vec<u64> = (0..100).map(|i| cuda.alloc(1 + i * 100)).collect();
            assert_eq!(info(cuda).0, 62 * MIB);
            for (number, address) in small.iter().enumerate() {
                cuda.ok(
                    "cuMemsetD8_v2",
                    &[*address, number as u64, 1 + number as u64 * 100],
                );
            }
            for (number, address) in small.iter().enumerate().rev() {
                let bytes = cuda.download(*address, 1 + number * 100);
                assert!(bytes.iter().all(|byte| *byte == number as u8));
                cuda.ok("cuMemFree_v2", &[*address]);
            }
            assert_eq!(info(cuda).0, 64 * MIB);
        },
    );
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    on(
        "what_does_not_fit_is_refused_and_changes_nothing",
        "memory=16M",
        |cuda| {
            let context = cuda.context(0);
            let mut out = 0_u64;
            let out = &raw mut out as u64;
            for bytes in [17 * MIB, 1 << 60, u64::MAX] {
                assert_eq!(cuda.code("cuMemAlloc_v2", &[out, bytes]), OUT_OF_MEMORY);
            }
            assert_eq!(cuda.code("cuMemAlloc_v2", &[out, 0]), INVALID);
            let all: Vec<u64> = (0..8).map(|_| cuda.alloc(2 * MIB)).collect();
            assert_eq!(cuda.code("cuMemAlloc_v2", &[out, 1]), OUT_OF_MEMORY);
            // Not in the middle, not twice, not what was never allocated.
            assert_eq!(cuda.code("cuMemFree_v2", &[all[0] + 512]), INVALID);
            cuda.ok("cuMemFree_v2", &[all[0]]);
            assert_eq!(cuda.code("cuMemFree_v2", &[all[0]]), INVALID);
            assert_eq!(cuda.code("cuMemFree_v2", &[0x1000]), INVALID);
            cuda.ok("cuMemFree_v2", &[0]);
            // What is left goes with the context.
            cuda.ok("cuCtxDestroy_v2", &[context]);
            cuda.context(0);
            assert_eq!(info(cuda).0, 16 * MIB);
        },
    );
}

#[test]
fn addresses_say_what_they_are() {
    on(
        "addresses_say_what_they_are",
        "memory=64M,devices=2",
        |cuda| {
            let context = cuda.context(1);
            let attribute = |number: u64, address: u64| {
                let mut value = 0_u64;
                let code = cuda.code(
                    "cuPointerGetAttribute",
                    &[&raw mut value as u64, number, address],
                );
                (code == 0).then_some(value)
            };
            let device = cuda.alloc(3 * MIB);
            let inside = device + 4096;
            assert_eq!(attribute(1, inside), Some(context));
            assert_eq!(attribute(2, inside), Some(2));
            assert_eq!(attribute(9, inside), Some(1));
            assert_eq!(attribute(11, inside), Some(device));
            assert_eq!(attribute(12, inside), Some(3 * MIB));
            let host = cuda.get("cuMemHostAlloc", &[10_000, 2]);
            assert_eq!(attribute(2, host), Some(1));
            assert_eq!(cuda.get("cuMemHostGetDevicePointer_v2", &[host, 0]), host);
            let managed = cuda.get("cuMemAllocManaged", &[10_000, 1]);
            assert_eq!(attribute(8, managed), Some(1));
            let own = vec![0_u8; 1 << 16];
            assert_eq!(attribute(2, own.as_ptr() as u64), None);
            cuda.ok("cuMemHostRegister_v2", &[own.as_ptr() as u64, 1 << 16, 0]);
            assert_eq!(attribute(2, own.as_ptr() as u64), Some(1));
            assert_eq!(
                cuda.code("cuMemHostRegister_v2", &[own.as_ptr() as u64 + 8, 8, 0]),
                712
            );
            cuda.ok("cuMemHostUnregister", &[own.as_ptr() as u64]);
            assert_eq!(
                cuda.code("cuMemHostUnregister", &[own.as_ptr() as u64]),
                713
            );
            let mut range = 0_u64;
            let nothing = cuda.code(
                "cuMemGetAddressRange_v2",
                &[&raw mut range as u64, 0, device + 3 * MIB],
            );
            assert_eq!(nothing, NOT_FOUND);
        },
    );
}

#[test]
fn pools_count_what_streams_allocate() {
    on("pools_count_what_streams_allocate", "memory=64M", |cuda| {
        cuda.context(0);
        let stream = cuda.stream();
        let pool = cuda.get("cuDeviceGetDefaultMemPool", &[0]);
        let used = || {
            let mut value = 0_u64;
            cuda.ok("cuMemPoolGetAttribute", &[pool, 7, &raw mut value as u64]);
            value
        };
        let address = cuda.get("cuMemAllocAsync", &[4 * MIB, stream]);
        assert_eq!(used(), 4 * MIB);
        cuda.ok("cuMemsetD8Async", &[address, 7, 4 * MIB, stream]);
        // The free is the stream's: not before what was given earlier.
        let flag = cuda.flag();
        cuda.launch(cuda.kernel("wait"), stream, &[flag.0, 1]);
        cuda.ok("cuMemFreeAsync", &[address, stream]);
        assert_eq!(used(), 4 * MIB);
        flag.set(1);
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!(used(), 0);
        assert_eq!(info(cuda).0, 64 * MIB);
        let mut threshold = u64::MAX;
        cuda.ok(
            "cuMemPoolSetAttribute",
            &[pool, 4, &raw mut threshold as u64],
        );
    });
}

#[test]
fn rows_are_copied_and_filled_by_their_pitch() {
    on(
        "rows_are_copied_and_filled_by_their_pitch",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let (mut address, mut pitch) = (0_u64, 0_u64);
            let out = [&raw mut address as u64, &raw mut pitch as u64, 100, 10, 4];
            cuda.ok("cuMemAllocPitch_v2", &out);
            assert!(pitch >= 100 && pitch.is_multiple_of(512));
            cuda.ok("cuMemsetD8_v2", &[address, 0, pitch * 10]);
            cuda.ok("cuMemsetD2D8_v2", &[address, pitch, 9, 100, 10]);
            let all = cuda.download(address, (pitch * 10) as usize);
            let rows = all.chunks(pitch as usize);
            assert!(
                rows.clone()
                    .all(|row| row[..100] == [9; 100] && row[100..].iter().all(|b| *b == 0))
            );
            // CUDA_MEMCPY2D: x, y, kind, host, device, array, pitch of both sides, width, height.
            let bytes: Vec<u8> = (0..60).collect();
            let copy = [
                0,
                0,
                1,
                bytes.as_ptr() as u64,
                0,
                0,
                20, // from the host, rows of 20
                4,
                2,
                2,
                0,
                address,
                0,
                pitch, // to x 4, y 2 of the device
                20,
                3,
            ];
            cuda.ok("cuMemcpy2D_v2", &[copy.as_ptr() as u64]);
            let row = |y: u64| cuda.download(address + y * pitch, 30);
            for y in 0..3_u8 {
                let got = row(2 + u64::from(y));
                assert_eq!(got[4..24], bytes[usize::from(y) * 20..][..20]);
                assert_eq!((got[3], got[24]), (9, 9));
            }
            assert_eq!(row(5), [9; 30]);
        },
    );
}
