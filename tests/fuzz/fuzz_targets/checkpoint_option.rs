#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpuos_fuzz::checkpoints::option(bytes));
