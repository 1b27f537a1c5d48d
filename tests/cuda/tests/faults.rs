//! What must not be touched: the error stays with the context.

use crate::common::{ILLEGAL_ADDRESS, INVALID, on};

const MIB: u64 = 1 << 20;

#[test]
fn an_illegal_address_is_told_at_the_next_synchronizing_call_and_stays() {
    let test = "an_illegal_address_is_told_at_the_next_synchronizing_call_and_stays";
    let Some(errors) = on(test, "memory=64M", |cuda| {
        let context = cuda.context(0);
        let (stream, fill) = (cuda.stream(), cuda.kernel("fill"));
        let a = cuda.alloc(2 * MIB);
        cuda.ok("cuMemsetD8_v2", &[a, 1, 16]);
        // Four bytes past the mapping.
        assert_eq!(cuda.launch(fill, stream, &[a, 7, MIB / 2 + 1]), 0);
        assert_eq!(cuda.code("cuStreamSynchronize", &[stream]), ILLEGAL_ADDRESS);
        // From now on every call says so, and nothing is done.
        assert_eq!(cuda.launch(fill, stream, &[a, 9, 1]), ILLEGAL_ADDRESS);
        assert_eq!(cuda.code("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
        let mut byte = [0_u8; 1];
        let down = cuda.code("cuMemcpyDtoH_v2", &[byte.as_mut_ptr() as u64, a, 1]);
        assert_eq!(down, ILLEGAL_ADDRESS);
        // Another context of the same process is well, and so is the next one.
        let other = cuda.get("cuCtxCreate_v2", &[0, 0]);
        let b = cuda.alloc(4096);
        cuda.upload(b, &[5; 4096]);
        assert_eq!(cuda.download(b, 4096), [5; 4096]);
        cuda.ok("cuCtxDestroy_v2", &[other]);
        cuda.ok("cuCtxDestroy_v2", &[context]);
        cuda.context(0);
        let c = cuda.alloc(60 * MIB);
        assert_eq!(cuda.launch(cuda.kernel("fill"), 0, &[c, 7, 10]), 0);
        cuda.ok("cuCtxSynchronize", &[]);
    }) else {
        return;
    };
    let sentence = "is written by a device and is not mapped with that access";
    assert!(errors.contains(sentence), "{errors}");
}

#[test]
fn memory_of_the_program_is_illegal_for_kernels_until_it_is_registered() {
    let test = "memory_of_the_program_is_illegal_for_kernels_until_it_is_registered";
    on(test, "memory=64M", |cuda| {
        let context = cuda.context(0);
        let own = vec![1_u8; 4096];
        let at = own.as_ptr() as u64;
        let out = cuda.alloc(8);
        cuda.ok("cuMemHostRegister_v2", &[at, 4096, 0]);
        cuda.launch(cuda.kernel("checksum"), 0, &[out, at, 4096]);
        cuda.ok("cuCtxSynchronize", &[]);
        cuda.ok("cuMemHostUnregister", &[at]);
        cuda.launch(cuda.kernel("checksum"), 0, &[out, at, 4096]);
        assert_eq!(cuda.code("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
        cuda.ok("cuCtxDestroy_v2", &[context]);
    });
}

#[test]
fn memory_of_another_device_is_illegal_without_peer_access() {
    on(
        "memory_of_another_device_is_illegal_without_peer_access",
        "memory=64M,devices=2",
        |cuda| {
            let first = cuda.context(0);
            let far = cuda.alloc(4096);
            cuda.upload(far, &[4; 4096]);
            let second = cuda.get("cuCtxCreate_v2", &[0, 1]);
            let near = cuda.alloc(4096);
            // Copies go by the host where they must.
            cuda.ok("cuMemcpyPeer", &[near, second, far, first, 4096]);
            assert_eq!(cuda.download(near, 4096), [4; 4096]);
            let copy = cuda.kernel("copy");
            cuda.ok("cuCtxEnablePeerAccess", &[first, 0]);
            assert_eq!(cuda.code("cuCtxEnablePeerAccess", &[first, 0]), 704);
            cuda.launch(copy, 0, &[near, far, 4096]);
            cuda.ok("cuCtxSynchronize", &[]);
            cuda.ok("cuCtxDisablePeerAccess", &[first]);
            cuda.launch(copy, 0, &[near, far, 4096]);
            assert_eq!(cuda.code("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
        },
    );
}

#[test]
fn a_kernel_that_is_not_simulated_fails_with_its_name() {
    let test = "a_kernel_that_is_not_simulated_fails_with_its_name";
    let Some(errors) = on(test, "memory=64M", |cuda| {
        cuda.context(0);
        let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry gemm(.param .u64 a) { ret; }\n\
                   .visible .entry fill(.param .u64 a, .param .u32 v, .param .u64 n) { ret; }\0";
        let module = cuda.get("cuModuleLoadData", &[ptx.as_ptr() as u64]);
        let gemm = cuda.function(module, "gemm");
        assert_eq!(cuda.launch(gemm, 0, &[1]), 719);
        let a = cuda.alloc(8);
        assert_eq!(
            cuda.launch(cuda.function(module, "fill"), 0, &[a, 0x0101_0101, 2]),
            0
        );
        assert_eq!(cuda.download(a, 8), [1; 8]);
        let mut out = 0_u64;
        let name = "gpuos-cubin 1\nkernel gemm\0";
        let refused = cuda.code(
            "cuModuleLoadData",
            &[&raw mut out as u64, name.as_ptr() as u64],
        );
        assert_eq!(refused, 200);
        let zero = [module, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0];
        assert_ne!(cuda.code("cuLaunchKernel", &zero), 0);
        assert_eq!(
            cuda.code("cuLaunchKernel", &[gemm, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
            INVALID
        );
    }) else {
        return;
    };
    assert!(
        errors.contains("kernel 'gemm' with arguments of [8] bytes is not simulated"),
        "{errors}"
    );
    assert!(
        errors.contains("'kernel gemm': the kernels are fill, copy"),
        "{errors}"
    );
}
