//! One call from C: results become return codes, and a panic becomes one too.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::session;

/// NVML's return codes under short names.
pub(crate) mod code {
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as NO_DRIVER;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as LOST;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_IN_USE as IN_USE;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as NO_ROOM;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as TOO_SMALL;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as OTHER_DRIVER;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as UNSUPPORTED;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED as RESET_REQUIRED;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED;
    pub(crate) use nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN;
    pub(crate) use nvml::nvmlReturn_enum_NVML_SUCCESS as OK;
    use nvml_wrapper_sys::bindings as nvml;
}

/// What a call gives: a value, or an NVML return code that is an error.
pub(crate) type Answer<T> = Result<T, nvmlReturn_t>;

/// Runs the body of an exported function. A panic is an error of this library, and becomes
/// `NVML_ERROR_UNKNOWN`: it must not cross into C.
pub(crate) fn call(body: impl FnOnce() -> Answer<()>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => code::OK,
        Ok(Err(error)) => error,
        Err(_) => code::UNKNOWN,
    }
}

/// What functions answer that no simulated board supports.
pub(crate) fn unsupported() -> nvmlReturn_t {
    call(|| session::node(crate::latency::Cost::Cached, |_| Err(code::UNSUPPORTED)))
}
