//! `cuGetProcAddress`, and functions that are only there to fail.

use crate::common::{Cuda, NOT_FOUND, call, on};

fn ask(cuda: &Cuda, name: &str, version: u64, flags: u64) -> (u32, usize, i32) {
    let (mut address, mut status) = (1_usize, -1_i32);
    let name = format!("{name}\0");
    let out = [
        name.as_ptr() as u64,
        &raw mut address as u64,
        version,
        flags,
        &raw mut status as u64,
    ];
    let code = cuda.code("cuGetProcAddress_v2", &out);
    (code, address, status)
}

#[test]
fn a_program_gets_the_form_of_its_version() {
    on(
        "a_program_gets_the_form_of_its_version",
        "version=12.4",
        |cuda| {
            // Before cuInit, as programs do it.
            for (name, version, export) in [
                ("cuMemAlloc", 12_000, "cuMemAlloc_v2"),
                ("cuCtxCreate", 3_020, "cuCtxCreate_v2"),
                ("cuCtxCreate", 12_040, "cuCtxCreate_v3"),
                ("cuCtxCreate", 12_050, "cuCtxCreate_v3"),
                ("cuStreamBeginCapture", 10_000, "cuStreamBeginCapture"),
                ("cuStreamBeginCapture", 12_040, "cuStreamBeginCapture_v2"),
                ("cuLaunchHostFunc", 12_040, "cuLaunchHostFunc"),
                ("cuGetProcAddress", 12_000, "cuGetProcAddress_v2"),
                ("cuGetProcAddress", 11_030, "cuGetProcAddress"),
            ] {
                let (code, address, status) = ask(cuda, name, version, 0);
                assert_eq!((code, status), (0, 0), "{name} {version}");
                assert_eq!(Some(address), cuda.address(export), "{name} {version}");
            }
            assert_eq!(
                ask(cuda, "cuLaunchKernel", 12_000, 2).1,
                cuda.address("cuLaunchKernel_ptsz").unwrap()
            );
            // Unknown, of a later driver, and of a later program.
            assert_eq!(ask(cuda, "cuNoSuchThing", 12_040, 0), (NOT_FOUND, 0, 1));
            assert_eq!(ask(cuda, "cuCtxFromGreenCtx", 12_040, 0).0, 0);
            assert_eq!(
                ask(cuda, "cuMemcpyBatchAsync", 12_080, 0),
                (NOT_FOUND, 0, 1)
            );
            assert_eq!(ask(cuda, "cuLibraryLoadData", 11_080, 0), (NOT_FOUND, 0, 2));
        },
    );
}

#[test]
fn a_later_driver_has_functions_that_no_list_has() {
    on(
        "a_later_driver_has_functions_that_no_list_has",
        "version=13.9,newer=cuMemAlloc",
        |cuda| {
            let export = cuda.address("cuMemAlloc_v2").unwrap();
            assert_eq!(ask(cuda, "cuMemAlloc", 13_040, 0).1, export);
            let (code, newer, status) = ask(cuda, "cuMemAlloc", 13_050, 0);
            assert_eq!((code, status), (0, 0));
            assert!(newer != 0 && newer != export);
            assert_eq!(call(newer, &[0, 0]), 801);
            assert_eq!(cuda.code("cuGpuosUnlisted", &[]), 801);
            assert_eq!(ask(cuda, "cuGpuosUnlisted", 13_090, 0), (NOT_FOUND, 0, 1));
        },
    );
}

#[test]
fn what_is_not_simulated_fails_with_its_name() {
    let Some(errors) = on("what_is_not_simulated_fails_with_its_name", "", |cuda| {
        cuda.ok("cuInit", &[0]);
        let (code, address, _) = ask(cuda, "cuArrayCreate", 13_000, 0);
        assert_eq!(code, 0);
        assert_eq!(call(address, &[0, 0]), 801);
        let mut table = 0_u64;
        assert_eq!(
            cuda.code("cuGetExportTable", &[&raw mut table as u64, 0]),
            NOT_FOUND
        );
    }) else {
        return;
    };
    assert!(
        errors.contains("cuArrayCreate_v2 is not simulated"),
        "{errors}"
    );
}

#[test]
fn the_library_exports_every_function_and_nothing_of_nvml() {
    let cuda = Cuda::open();
    for (name, forms) in cuda::procs::functions() {
        for form in forms {
            assert!(
                cuda.address(form.export).is_some(),
                "{name}: {}",
                form.export
            );
        }
    }
    assert!(cuda.address("nvmlInit_v2").is_none());
}

#[test]
fn wrong_settings_are_a_sentence_and_no_driver() {
    let Some(errors) = on(
        "wrong_settings_are_a_sentence_and_no_driver",
        "memory=lots",
        |cuda| {
            assert_eq!(cuda.code("cuInit", &[0]), 802);
            assert_eq!(cuda.code("cuCtxSynchronize", &[]), 3);
        },
    ) else {
        return;
    };
    assert!(
        errors.contains("GPUOS_CUDA: 'memory=lots': give bytes"),
        "{errors}"
    );
}
