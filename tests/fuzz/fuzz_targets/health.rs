#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| gpuos_fuzz::targets::health(text));
