//! Functions of `libcuda.so.1`, found when the first fabric on a GPU is opened.

use std::ffi::CStr;
use std::sync::OnceLock;

use gpuos_driver::Code;

macro_rules! functions {
    ($($name:ident)*) => {
        /// The functions that are called.
        #[allow(non_camel_case_types, reason = "CUDA's names")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Function { $($name),* }

        /// Their names, each with its NUL.
        const NAMES: &[(Function, &str)] = &[$((Function::$name, concat!(stringify!($name), "\0"))),*];
    };
}

functions! {
    cuInit cuDeviceGet cuDeviceGetCount cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2
    cuCtxGetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize cuMemGetInfo_v2 cuGetErrorName
    cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess
    cuMemHostRegister_v2 cuMemHostUnregister cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemsetD8Async
    cuStreamCreate cuStreamDestroy_v2 cuStreamSynchronize cuStreamGetCtx
    cuEventCreate cuEventRecord cuEventSynchronize cuEventDestroy_v2
}

/// Addresses of the functions, by their number.
pub(crate) struct Driver(Vec<usize>);

impl Driver {
    /// The driver of this machine, or why there is none.
    pub(crate) fn get() -> Result<&'static Driver, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(open).as_ref().map_err(String::clone)
    }

    /// Calls a function whose arguments all are numbers and pointers.
    ///
    /// # Safety
    /// The words are the arguments of that function: as many, and pointers to what it wants, as long as it wants them.
    pub(crate) unsafe fn call(&self, function: Function, a: &[u64]) -> Code {
        // SAFETY: the address is that function's, and the words are its arguments by the caller's promise.
        unsafe { gpuos_driver::call(self.0[function as usize], a) }
    }
}

fn open() -> Result<Driver, String> {
    let name = c"libcuda.so.1";
    // SAFETY: a C string. The driver's initialisers run, as in every program that uses the GPU.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err("there is no NVIDIA driver here: the loader finds no libcuda.so.1".to_string());
    }
    let mut found = Vec::with_capacity(NAMES.len());
    for (function, name) in NAMES {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
        // SAFETY: the handle is open and stays so; a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) } as usize;
        if address == 0 {
            return Err(format!(
                "the driver has no {function:?}: it is older than CUDA 12"
            ));
        }
        found.push(address);
    }
    Ok(Driver(found))
}
