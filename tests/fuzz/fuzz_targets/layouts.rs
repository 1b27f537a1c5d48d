// SPDX-License-Identifier: GPL-3.0-or-later
#![no_main]

use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::release::Release;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(fields) = Fields::of(Release::new(27, 5, 1), Some(text)) {
        let _ = Layout::of(&fields);
    }
});
