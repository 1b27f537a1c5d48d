//! The library and the driver: opening, closing, versions, texts for errors.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlReturn_t, nvmlSystemDriverBranchInfo_v1_t};

use super::call::code;
use super::{Chars, Out, Versioned, node, nvml, session};
use crate::latency::Cost;

/// The driver that is simulated, and the CUDA version that it brings.
const DRIVER: &str = "580.95.05";
const BRANCH: &str = "r580_00";
const CUDA: c_int = 13_000;

nvml! {
    fn nvmlInit() { session::open() }
    fn nvmlInit_v2() { session::open() }
    fn nvmlInitWithFlags(_flags: c_uint) { session::open() }
    fn nvmlShutdown() { session::close() }

    fn nvmlSystemGetDriverVersion(text: Chars, room: c_uint) {
        node(Cost::Cached, |_| Ok(()))?;
        text.set(room, DRIVER)
    }
    fn nvmlSystemGetNVMLVersion(text: Chars, room: c_uint) {
        // Needs no open library.
        text.set(room, &format!("13.{DRIVER}"))
    }
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) { version.set(CUDA) }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) { version.set(CUDA) }

    fn nvmlSystemGetDriverBranch(
        info: Versioned<nvmlSystemDriverBranchInfo_v1_t>,
        room: c_uint,
    ) {
        node(Cost::Cached, |_| Ok(()))?;
        info.check(1)?;
        if (room as usize) <= BRANCH.len() {
            return Err(code::TOO_SMALL);
        }
        info.set(nvmlSystemDriverBranchInfo_v1_t { version: 0, branch: super::text::chars(BRANCH) })
    }

    fn nvmlSystemGetProcessName(pid: c_uint, text: Chars, room: c_uint) {
        node(Cost::Driver, |_| Ok(()))?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| code::NOT_FOUND)?;
        let name = String::from_utf8_lossy(&line);
        let name = name.split('\0').next().unwrap_or_default();
        // The driver cuts names that are longer than the buffer.
        let fits = (room as usize).saturating_sub(1);
        let end = (0..=fits.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
        text.set(room, &name[..end.unwrap_or(0)])
    }
}

/// A text for a return code.
#[allow(non_snake_case, reason = "C's name")]
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    // The driver's own words.
    let text = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => {
            c"The requested vgpu operation is not available on target device because ECC is enabled"
        }
        23 => c"Insufficient Resources",
        24 => c"The requested frequency is not supported",
        25 => c"Argument version mismatch",
        26 => c"The requested functionality is deprecated",
        27 => c"The system is not ready for the request",
        28 => c"No GPUs found",
        29 => c"Resource not in correct state to perform requested operation",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
