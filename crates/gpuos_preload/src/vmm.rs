//! The driver's functions that this library calls itself, under names of their own. Each takes and gives values; the pointers that the
//! driver wants are to places of this module that live until the call is done.

use gpuos_driver::{Access, Kernel2, Location, Memcpy3D, Memset, NO_TIMING, NON_BLOCKING, Prop};

use crate::driver::{self, Code, code};
use crate::table::index;

/// A result, or CUDA's error.
pub(crate) type Answer<T> = Result<T, Code>;

fn call(index: usize, words: &[u64]) -> Answer<()> {
    // SAFETY: each caller in this module gives the arguments of that function, as CUDA's documentation has them.
    match unsafe { driver::call(driver::real(index), words) } {
        code::OK => Ok(()),
        error => Err(error),
    }
}

/// The same of a function that gives a word by its first argument. One of fewer bytes leaves zeros above.
fn get(index: usize, rest: &[u64]) -> Answer<u64> {
    let mut value = 0_u64;
    let mut words = [0; 6];
    words[0] = &raw mut value as u64;
    words[1..=rest.len()].copy_from_slice(rest);
    call(index, &words[..=rest.len()])?;
    Ok(value)
}

/// Where physical memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On a device.
    Device(i32),
    /// On a NUMA node of the host.
    Node(i32),
}

impl Place {
    fn location(self) -> Location {
        match self {
            Place::Device(id) => Location::device(id),
            Place::Node(id) => Location::node(id),
        }
    }

    fn prop(self) -> Prop {
        Prop::at(self.location())
    }
}

/// Bytes that addresses and physical memory of a place are multiples of.
pub(crate) fn granularity(place: Place) -> Answer<u64> {
    let prop = place.prop();
    get(
        index::cuMemGetAllocationGranularity,
        &[&raw const prop as u64, 0],
    )
}

/// Addresses.
pub(crate) fn reserve(bytes: u64) -> Answer<u64> {
    get(index::cuMemAddressReserve, &[bytes, 0, 0, 0])
}

/// Gives addresses back.
pub(crate) fn unreserve(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemAddressFree, &[at, bytes])
}

/// Physical memory, by a handle.
pub(crate) fn create(bytes: u64, place: Place) -> Answer<u64> {
    let prop = place.prop();
    get(index::cuMemCreate, &[bytes, &raw const prop as u64, 0])
}

/// Physical memory with properties of the program's own.
pub(crate) fn create_as(bytes: u64, prop: &Prop) -> Answer<u64> {
    get(
        index::cuMemCreate,
        &[bytes, std::ptr::from_ref(prop) as u64, 0],
    )
}

/// Gives another process a handle, of the program's kind, to where the program wants it.
pub(crate) fn export(to: u64, handle: u64, kind: u64, flags: u64) -> Answer<()> {
    call(
        index::cuMemExportToShareableHandle,
        &[to, handle, kind, flags],
    )
}

/// Binds memory to a multicast object: the arguments of `cuMulticastBindMem`, or those of its second form.
pub(crate) fn bind(words: &[u64]) -> Answer<()> {
    let index = match words.len() {
        6 => index::cuMulticastBindMem,
        _ => index::cuMulticastBindMem_v2,
    };
    call(index, words)
}

/// Lets go of it: it is free when it is mapped nowhere.
pub(crate) fn release(handle: u64) {
    // A handle of ours is one of the driver's; after the driver has ended there is nothing left to free.
    let _ = call(index::cuMemRelease, &[handle]);
}

/// Maps physical memory from an offset on, without access.
pub(crate) fn map(at: u64, bytes: u64, handle: u64, offset: u64) -> Answer<()> {
    call(index::cuMemMap, &[at, bytes, offset, handle, 0])
}

/// Ends a mapping.
pub(crate) fn unmap(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemUnmap, &[at, bytes])
}

/// Gives access to a mapping.
pub(crate) fn access(at: u64, bytes: u64, list: &[Access]) -> Answer<()> {
    call(
        index::cuMemSetAccess,
        &[at, bytes, list.as_ptr() as u64, list.len() as u64],
    )
}

/// A property of a device.
pub(crate) fn attribute(number: u64, device: i32) -> Answer<i32> {
    let value = get(
        index::cuDeviceGetAttribute,
        &[number, u64::from(device.cast_unsigned())],
    )?;
    Ok((value as u32).cast_signed())
}

/// How many devices there are.
pub(crate) fn count() -> Answer<i32> {
    Ok((get(index::cuDeviceGetCount, &[])? as u32).cast_signed())
}

/// The device of a number.
pub(crate) fn nth(number: i32) -> Answer<i32> {
    let device = get(index::cuDeviceGet, &[u64::from(number.cast_unsigned())])?;
    Ok((device as u32).cast_signed())
}

/// Who a device is.
pub(crate) fn uuid(device: i32) -> Answer<[u8; 16]> {
    let mut uuid = [0_u8; 16];
    let words = [&raw mut uuid as u64, u64::from(device.cast_unsigned())];
    call(index::cuDeviceGetUuid_v2, &words).or_else(|_| call(index::cuDeviceGetUuid, &words))?;
    Ok(uuid)
}

/// All memory of a device.
pub(crate) fn total(device: i32) -> Answer<u64> {
    get(
        index::cuDeviceTotalMem_v2,
        &[u64::from(device.cast_unsigned())],
    )
}

/// The thread's context; zero where it has none.
pub(crate) fn current() -> Answer<u64> {
    get(index::cuCtxGetCurrent, &[])
}

/// The device of the thread's context.
pub(crate) fn device() -> Answer<i32> {
    Ok((get(index::cuCtxGetDevice, &[])? as u32).cast_signed())
}

/// The device of a context.
pub(crate) fn device_of(context: u64) -> Answer<i32> {
    within(context, device)
}

/// Runs with another context.
pub(crate) fn within<T>(context: u64, body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    call(index::cuCtxPushCurrent_v2, &[context])?;
    let done = body();
    get(index::cuCtxPopCurrent_v2, &[])?;
    done
}

/// Waits for all work of the thread's context.
pub(crate) fn synchronize() -> Answer<()> {
    call(index::cuCtxSynchronize, &[])
}

/// A stream that waits for no other.
pub(crate) fn stream() -> Answer<u64> {
    get(index::cuStreamCreate, &[NON_BLOCKING])
}

/// Waits for a stream.
pub(crate) fn finish(stream: u64) -> Answer<()> {
    call(index::cuStreamSynchronize, &[stream])
}

/// Copies on a stream.
pub(crate) fn copy(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyDtoDAsync_v2, &[to, from, bytes, stream])
}

/// Copies to memory of this process, on a stream.
pub(crate) fn download(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyDtoHAsync_v2, &[to, from, bytes, stream])
}

/// Copies from memory of this process, on a stream.
pub(crate) fn upload(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyHtoDAsync_v2, &[to, from, bytes, stream])
}

/// Pins memory of this process, for all contexts: copies are faster then.
pub(crate) fn register(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemHostRegister_v2, &[at, bytes, 1])
}

/// The end of that.
pub(crate) fn unregister(at: u64) -> Answer<()> {
    call(index::cuMemHostUnregister, &[at])
}

/// Whether the primary context of a device is there.
pub(crate) fn primary_is_active(device: i32) -> bool {
    let mut active = 0_i32;
    let mut flags = 0_u32;
    let words = [
        u64::from(device.cast_unsigned()),
        &raw mut flags as u64,
        &raw mut active as u64,
    ];
    call(index::cuDevicePrimaryCtxGetState, &words).is_ok() && active != 0
}

/// Whether a stream captures.
pub(crate) fn is_capturing(stream: u64) -> bool {
    let mut status = 0_u32;
    call(
        index::cuStreamIsCapturing,
        &[stream, &raw mut status as u64],
    )
    .is_ok()
        && status != 0
}

/// Lets this thread do what a capture of another one forbids it else: `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) fn relax() {
    let mut mode = 2_u32;
    let _ = call(
        index::cuThreadExchangeStreamCaptureMode,
        &[&raw mut mode as u64],
    );
}

/// Where an argument of a kernel lies among them, and its bytes. `None` past the last one.
pub(crate) fn argument(function: u64, which: u64) -> Option<(usize, usize)> {
    let (mut offset, mut size) = (0_usize, 0_usize);
    let words = [
        function,
        which,
        &raw mut offset as u64,
        &raw mut size as u64,
    ];
    let found = call(index::cuFuncGetParamInfo, &words)
        .or_else(|_| call(index::cuKernelGetParamInfo, &words));
    found.is_ok().then_some((offset, size))
}

/// The pool that a device allocates from.
pub(crate) fn pool_of(device: i32) -> Answer<u64> {
    get(
        index::cuDeviceGetMemPool,
        &[u64::from(device.cast_unsigned())],
    )
}

/// The pool that it has of itself.
pub(crate) fn default_pool(device: i32) -> Answer<u64> {
    get(
        index::cuDeviceGetDefaultMemPool,
        &[u64::from(device.cast_unsigned())],
    )
}

/// The context of a stream.
pub(crate) fn context_of(stream: u64) -> Answer<u64> {
    let mut context = 0_u64;
    call(index::cuStreamGetCtx, &[stream, &raw mut context as u64])?;
    Ok(context)
}

/// An event that marks how far a stream of a context is.
pub(crate) fn mark(context: u64, stream: u64) -> Answer<u64> {
    within(context, || {
        let event = get(index::cuEventCreate, &[NO_TIMING])?;
        match call(index::cuEventRecord, &[event, stream]) {
            Ok(()) => Ok(event),
            Err(error) => {
                let _ = destroy_event(event);
                Err(error)
            }
        }
    })
}

/// Whether a stream has come to an event: an error where it has not.
pub(crate) fn is_done(event: u64) -> Answer<()> {
    call(index::cuEventQuery, &[event])
}

/// Waits for an event.
pub(crate) fn wait_for(event: u64) -> Answer<()> {
    call(index::cuEventSynchronize, &[event])
}

/// Ends an event.
pub(crate) fn destroy_event(event: u64) -> Answer<()> {
    call(index::cuEventDestroy_v2, &[event])
}

/// The nodes of a graph; at most so many.
pub(crate) fn nodes(graph: u64, most: usize) -> Answer<Vec<u64>> {
    let mut count = 0_usize;
    call(index::cuGraphGetNodes, &[graph, 0, &raw mut count as u64])?;
    if count > most {
        return Err(code::NOT_SUPPORTED);
    }
    let mut nodes = vec![0_u64; count];
    if count > 0 {
        let words = [graph, nodes.as_mut_ptr() as u64, &raw mut count as u64];
        call(index::cuGraphGetNodes, &words)?;
    }
    Ok(nodes)
}

/// What a node is: a `CUgraphNodeType`.
pub(crate) fn kind_of(node: u64) -> Answer<u32> {
    let mut kind = 0_u32;
    call(index::cuGraphNodeGetType, &[node, &raw mut kind as u64])?;
    Ok(kind)
}

/// Parameters of a node, of which all bits are good: a structure of numbers.
fn parameters<T: Default>(index: usize, node: u64) -> Answer<T> {
    let mut found = T::default();
    call(index, &[node, &raw mut found as u64])?;
    Ok(found)
}

/// The kernel of a node.
pub(crate) fn kernel_of(node: u64) -> Answer<Kernel2> {
    parameters(index::cuGraphKernelNodeGetParams_v2, node)
}

/// What a node fills.
pub(crate) fn fill_of(node: u64) -> Answer<Memset> {
    parameters(index::cuGraphMemsetNodeGetParams, node)
}

/// What a node copies.
pub(crate) fn copy_of(node: u64) -> Answer<Memcpy3D> {
    parameters(index::cuGraphMemcpyNodeGetParams, node)
}

/// The graph inside a node.
pub(crate) fn child_of(node: u64) -> Answer<u64> {
    parameters(index::cuGraphChildGraphNodeGetGraph, node)
}
