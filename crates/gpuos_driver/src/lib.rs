//! CUDA's driver by its ABI: the structures and numbers of cuda.h that gpuos uses, and calls by words.
//!
//! What stands between programs and the driver, what calls it for programs, and the clients of tests have them from here. The simulated
//! driver (tests/cuda) has its own, so that an error in one of the two is found.
//!
//! Who opens `libcuda.so.1`, and how a function's address is found, is each user's own: the library that is loaded before the driver
//! must not find itself.

mod call;
pub mod code;
mod layout;

pub use call::call;
pub use layout::{
    Access, GraphNode, Kernel, Kernel2, Location, Memcpy3D, Memset, PoolProp, Prop, Side3D,
};

/// CUresult: 0 is success.
pub type Code = u32;

/// `CUdevice_attribute`: what a device can do, and where it is.
pub mod attribute {
    /// Virtual memory can be managed: `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
    pub const VIRTUAL_MEMORY: u64 = 102;
    /// The NUMA node of the host that is nearest: `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`.
    pub const HOST_NODE: u64 = 134;
    /// Memory of the host's NUMA nodes can be mapped: `CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
    pub const VIRTUAL_MEMORY_OF_HOST: u64 = 141;
}

/// `CUpointer_attribute`: what an address tells.
pub mod pointer {
    /// The context of the allocation.
    pub const CONTEXT: u32 = 1;
    /// Its kind of memory, a `CUmemorytype`.
    pub const KIND: u32 = 2;
    /// Tokens for RDMA.
    pub const P2P_TOKENS: u32 = 5;
    /// A number that no other allocation of the process has.
    pub const BUFFER_ID: u32 = 7;
    /// The device.
    pub const ORDINAL: u32 = 9;
    /// The first address of the allocation.
    pub const START: u32 = 11;
    /// Its bytes.
    pub const SIZE: u32 = 12;
    /// The pool that it was allocated from.
    pub const POOL: u32 = 17;
    /// The first address of the mapping.
    pub const MAPPING_START: u32 = 19;
    /// The mapping's bytes.
    pub const MAPPING_SIZE: u32 = 18;
}

/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORY_DEVICE: u32 = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u64 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const NO_TIMING: u64 = 2;
/// `CU_STREAM_LEGACY`: the default stream of a context. 0 is the same.
pub const LEGACY_STREAM: u64 = 1;
/// `CU_STREAM_PER_THREAD`: a thread's own default stream.
pub const THREAD_STREAM: u64 = 2;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`: after it comes the address of all arguments in a row.
pub const LAUNCH_BUFFER: u64 = 1;
