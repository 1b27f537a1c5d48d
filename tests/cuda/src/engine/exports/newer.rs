//! What a driver of a later release has: a function that no list has, and one that is only found by `cuGetProcAddress`.

use crate::abi::{Code, code};
use crate::setup::Setup;

/// The version that brings it.
const SINCE: u32 = 13_050;

extern "C" fn newer() -> Code {
    eprintln!("simulated libcuda: what 13.5 brings does nothing");
    code::NOT_SUPPORTED
}

/// The address of what [`Setup::newer`] names, for who asks for such a version.
pub(super) fn found(setup: &Setup, name: &str, wanted: u32) -> Option<usize> {
    let knows = setup.newer.as_deref() == Some(name);
    (knows && wanted.min(setup.version) >= SINCE).then_some(newer as *const () as usize)
}

/// Exported, and in no list of functions.
#[allow(non_snake_case, reason = "C's name")]
#[unsafe(no_mangle)]
pub extern "C" fn cuGpuosUnlisted() -> Code {
    newer()
}
