//! Structures of cuda.h, 12.0 to 13.x, for machines with pointers of 64 bits.

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Location {
    /// What `id` counts.
    pub kind: u32,
    /// The device, or the NUMA node.
    pub id: i32,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub const DEVICE: u32 = 1;
    /// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
    pub const NODE: u32 = 3;

    /// On a device.
    pub const fn device(id: i32) -> Location {
        Location {
            kind: Location::DEVICE,
            id,
        }
    }

    /// On a NUMA node of the host.
    pub const fn node(id: i32) -> Location {
        Location {
            kind: Location::NODE,
            id,
        }
    }
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prop {
    /// [`Prop::PINNED`].
    pub kind: u32,
    /// What other processes may get it by; 0: nothing.
    pub handle_types: u32,
    /// Where it is.
    pub location: Location,
    /// For Windows.
    pub win32: usize,
    /// 1: the driver may compress it.
    pub compression: u8,
    /// 1: for RDMA of other devices.
    pub rdma: u8,
    /// For arrays of tiles and decompression; 0: for neither.
    pub usage: u16,
    /// 0.
    pub reserved: [u8; 4],
}

impl Prop {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    pub const PINNED: u32 = 1;
    /// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    pub const DESCRIPTOR: u32 = 1;

    /// Memory at a place, for this process alone.
    pub const fn at(location: Location) -> Prop {
        Prop {
            kind: Prop::PINNED,
            handle_types: 0,
            location,
            win32: 0,
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Who.
    pub location: Location,
    /// 0, [`Access::READ`] or [`Access::READ_WRITE`].
    pub flags: u32,
}

impl Access {
    /// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
    pub const READ: u32 = 1;
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    pub const READ_WRITE: u32 = 3;
}

/// CUmemPoolProps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProp {
    /// [`Prop::PINNED`].
    pub kind: u32,
    /// What other processes may get it by; 0: nothing.
    pub handle_types: u32,
    /// Where it is.
    pub location: Location,
    /// For Windows.
    pub win32: usize,
    /// The most bytes; 0: no bound of its own.
    pub most: usize,
    /// As of [`Prop`].
    pub usage: u16,
    /// 0.
    pub reserved: [u8; 54],
}

/// CUDA_KERNEL_NODE_PARAMS, the first form.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Kernel {
    /// A CUfunction; 0: see [`Kernel2::kernel`].
    pub function: u64,
    /// Blocks of the grid and threads of a block.
    pub dims: [u32; 6],
    /// Bytes.
    pub shared: u32,
    /// Places of the arguments; 0: see `extra`.
    pub places: u64,
    /// Pairs of a number and a pointer, up to a 0.
    pub extra: u64,
}

/// CUDA_KERNEL_NODE_PARAMS of 12.0 and later; that of a [`GraphNode`] begins like it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Kernel2 {
    /// As before.
    pub first: Kernel,
    /// A CUkernel, where there is no function.
    pub kernel: u64,
    /// The context that it runs in.
    pub context: u64,
}

/// CUDA_MEMSET_NODE_PARAMS.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Memset {
    /// The first address.
    pub to: u64,
    /// Bytes from row to row.
    pub pitch: usize,
    /// What is written.
    pub value: u32,
    /// Bytes of an element.
    pub element: u32,
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// One side of CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Side3D {
    /// Where in it the copy begins.
    pub offset: [usize; 4],
    /// A `CUmemorytype`.
    pub kind: u32,
    /// Memory of the host.
    pub host: u64,
    /// Memory of a device.
    pub device: u64,
    /// An array.
    pub array: u64,
    /// 0, or a context.
    pub reserved: usize,
    /// Bytes from row to row.
    pub pitch: usize,
    /// Rows from slice to slice.
    pub height: usize,
}

/// CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Memcpy3D {
    /// From there.
    pub from: Side3D,
    /// To there.
    pub to: Side3D,
    /// Bytes of a row, rows and slices.
    pub extent: [usize; 3],
}

/// The begin of CUgraphNodeParams: the parameters of a kernel where `kind` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphNode {
    /// CUgraphNodeType.
    pub kind: u32,
    /// 0.
    pub reserved: [u32; 3],
    /// What kernels have there.
    pub kernel: Kernel2,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// By cuda.h of 12.8 and 13.0, as a C compiler lays them out.
    #[test]
    fn sizes_and_offsets_are_those_of_c() {
        assert_eq!(size_of::<Prop>(), 32);
        assert_eq!(offset_of!(Prop, usage), 26);
        assert_eq!(size_of::<Access>(), 12);
        assert_eq!(size_of::<PoolProp>(), 88);
        assert_eq!(size_of::<Kernel>(), 56);
        assert_eq!(offset_of!(Kernel, places), 40);
        assert_eq!(size_of::<Kernel2>(), 72);
        assert_eq!(size_of::<Memset>(), 40);
        assert_eq!(size_of::<Side3D>(), 88);
        assert_eq!(size_of::<Memcpy3D>(), 200);
        assert_eq!(offset_of!(GraphNode, kernel), 16);
    }
}
