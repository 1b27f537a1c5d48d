//! C's codes and structures, as cuda.h has them.

use std::ffi::c_void;

/// CUresult.
pub(crate) type Code = u32;

/// What a call gives: a value, or a CUresult that is an error.
pub(crate) type Answer<T> = Result<T, Code>;

macro_rules! codes {
    ($( $name:ident = $number:literal, $c:literal, $text:literal; )*) => {
        /// CUDA's error codes under short names.
        pub(crate) mod code {
            $( pub(crate) const $name: super::Code = $number; )*
        }

        /// Number, C's name and sentence of each code, both with a final zero byte.
        pub(crate) const CODES: &[(Code, &str, &str)] =
            &[ $( ($number, concat!($c, "\0"), concat!($text, "\0")), )* ];
    };
}

codes! {
    OK = 0, "CUDA_SUCCESS", "no error";
    INVALID = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    PEER_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled";
    PEER_NOT_ENABLED = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
    CONTEXT_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    NOT_READY_SYSTEM = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
    CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not begun in this stream";
    CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// One of the constants below.
    pub(crate) kind: u32,
    /// Device ordinal or NUMA node.
    pub(crate) id: i32,
}

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const LOCATION_HOST: u32 = 2;
pub(crate) const LOCATION_HOST_NUMA: u32 = 3;
pub(crate) const LOCATION_HOST_NUMA_CURRENT: u32 = 4;

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// CUmemPoolProps.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// One side of CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side2D {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) kind: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) pitch: usize,
}

/// CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy2D {
    pub(crate) src: Side2D,
    pub(crate) dst: Side2D,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// One side of CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side3D {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) lod: usize,
    pub(crate) kind: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) reserved: usize,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy3D {
    pub(crate) src: Side3D,
    pub(crate) dst: Side3D,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// CUmemorytype: what a side of a copy is.
pub(crate) const MEMORY_HOST: u32 = 1;
pub(crate) const MEMORY_DEVICE: u32 = 2;
pub(crate) const MEMORY_UNIFIED: u32 = 4;

/// CUDA_MEMSET_NODE_PARAMS.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemsetNode {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// CUDA_KERNEL_NODE_PARAMS, version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNode {
    pub(crate) function: u64,
    pub(crate) dims: [u32; 6],
    pub(crate) shared: u32,
    pub(crate) params: *const *const c_void,
    pub(crate) extra: *const *const c_void,
}

/// CUDA_KERNEL_NODE_PARAMS, version 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNode2 {
    pub(crate) first: KernelNode,
    pub(crate) kernel: u64,
    pub(crate) context: u64,
}

/// CUDA_HOST_NODE_PARAMS.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostNode {
    pub(crate) function: Option<extern "C" fn(*mut c_void)>,
    pub(crate) data: *mut c_void,
}

/// CUlaunchConfig.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub(crate) dims: [u32; 6],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: *const c_void,
    pub(crate) attribute_count: u32,
}
