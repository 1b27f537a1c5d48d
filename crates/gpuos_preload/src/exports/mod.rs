//! The wrappers that are written by hand, by theme.

mod context;
mod get;
mod graphs;
mod memory;
mod pools;
mod share;
mod tell;
mod virtual_memory;

pub(crate) use context::{
    cuCtxCreate, cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxDestroy, cuCtxDestroy_v2,
    cuCtxEnablePeerAccess, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxRetain, cuLibraryUnload,
    cuModuleUnload, cuStreamBeginCapture, cuStreamBeginCapture_ptsz, cuStreamBeginCapture_v2,
    cuStreamBeginCapture_v2_ptsz, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
    cuStreamDestroy, cuStreamDestroy_v2, cuStreamEndCapture, cuStreamEndCapture_ptsz,
};
pub(crate) use get::{cuGetProcAddress, cuGetProcAddress_v2, cuInit};
pub(crate) use graphs::{
    cuGraphExecChildGraphNodeSetParams, cuGraphExecDestroy, cuGraphExecKernelNodeSetParams,
    cuGraphExecKernelNodeSetParams_v2, cuGraphExecMemcpyNodeSetParams,
    cuGraphExecMemsetNodeSetParams, cuGraphExecNodeSetParams, cuGraphExecUpdate,
    cuGraphExecUpdate_v2, cuGraphInstantiate, cuGraphInstantiate_v2, cuGraphInstantiateWithFlags,
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
};
pub(crate) use memory::{cuMemAlloc_v2, cuMemAllocPitch_v2, cuMemFree_v2};
pub(crate) use pools::{
    cuMemAllocAsync, cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
    cuMemFreeAsync, cuMemFreeAsync_ptsz, cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolGetAttribute,
    cuMemPoolSetAccess, cuMemPoolSetAttribute, cuMemPoolTrimTo,
};
pub(crate) use share::{cuMemExportToShareableHandle, cuMulticastBindMem, cuMulticastBindMem_v2};
pub(crate) use tell::{
    cuDeviceTotalMem_v2, cuMemGetAddressRange_v2, cuMemGetInfo_v2, cuPointerGetAttribute,
    cuPointerGetAttributes,
};
pub(crate) use virtual_memory::{
    cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemGetAccess,
    cuMemGetAllocationPropertiesFromHandle, cuMemMap, cuMemRelease, cuMemRetainAllocationHandle,
    cuMemSetAccess, cuMemUnmap,
};

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::{self, Code, code};
use crate::vmm::Answer;
use crate::{gate, process};

/// A call of the program.
pub(crate) struct Call<'a> {
    address: usize,
    words: &'a [u64],
}

impl Call<'_> {
    /// Hands it on as it came.
    fn go(&self) -> Answer<()> {
        // SAFETY: the arguments that the program gave for this function.
        match unsafe { driver::call(self.address, self.words) } {
            code::OK => Ok(()),
            error => Err(error),
        }
    }
}

fn run(
    index: usize,
    words: &[u64],
    always: bool,
    body: impl FnOnce(&Call<'_>) -> Answer<()>,
) -> Code {
    let call = Call {
        address: driver::real(index),
        words,
    };
    let answer = if gate::is_off() && !always {
        call.go()
    } else {
        catch_unwind(AssertUnwindSafe(|| body(&call))).unwrap_or_else(|_| {
            process::pin(format_args!("an error of gpuos in a wrapper"));
            Err(code::UNKNOWN)
        })
    };
    match answer {
        Ok(()) => code::OK,
        Err(error) => error,
    }
}

/// Writes wrappers: a body gets the call and answers for it. Where the gate is off the call is handed on.
macro_rules! own {
    ($always:literal $( fn $name:ident($call:ident: $($a:ident),*) $body:block )*) => { $(
        #[allow(non_snake_case, reason = "C's name")]
        #[allow(unused_variables, reason = "some arguments are only handed on")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            $crate::exports::run($crate::table::index::$name, &[$($a),*], $always, |$call| $body)
        }
    )* };
}
pub(crate) use own;
