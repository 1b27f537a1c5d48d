//! Contexts, peers and captures: whose work has to be waited for, and when it cannot be.

use std::time::Duration;

use super::{Call, own};
use crate::driver::code;
use crate::vmm::{self, Answer};
use crate::{gate, life, memory, mover, ordered, pointer};

/// A context that the call gives by its first argument, and makes the current one.
fn made(call: &Call<'_>, to: u64) -> Answer<()> {
    // A program that has not looked at what `cuInit` answered.
    if life::is_denied() {
        return Err(code::OUT_OF_MEMORY);
    }
    call.go()?;
    if let Some(context) = pointer::take::<u64>(to) {
        memory::lock().saw_context(context);
    }
    Ok(())
}

/// Ends a context: the mover does not use it meanwhile.
fn end(call: &Call<'_>, context: u64) -> Answer<()> {
    let _held = mover::hold(Duration::MAX);
    let _inside = gate::enter();
    call.go()?;
    memory::lock().end_context(context);
    Ok(())
}

/// Lets a device's primary context go, which may end it.
fn let_go(call: &Call<'_>, device: u64) -> Answer<()> {
    let device = (device as u32).cast_signed();
    let _held = mover::hold(Duration::MAX);
    let _inside = gate::enter();
    call.go()?;
    if !vmm::primary_is_active(device) {
        let mut memory = memory::lock();
        if let Some(context) = memory.primaries.remove(&device) {
            memory.end_context(context);
        }
    }
    Ok(())
}

/// Handles below are default streams, of which each thread has one.
const OWN_STREAMS: u64 = 3;

/// What a capture is known by.
pub(super) fn key(stream: u64) -> (u64, i32) {
    if stream >= OWN_STREAMS {
        return (stream, 0);
    }
    // SAFETY: it has no arguments and always succeeds.
    let thread = unsafe { libc::gettid() };
    (stream, thread)
}

fn begin(call: &Call<'_>, stream: u64) -> Answer<()> {
    let _inside = gate::enter();
    call.go()?;
    memory::lock().captures.insert(key(stream));
    Ok(())
}

fn finish(call: &Call<'_>, stream: u64) -> Answer<()> {
    let _inside = gate::enter();
    let done = call.go();
    // An error may leave the capture going on.
    if done.is_ok() || !vmm::is_capturing(stream) {
        memory::lock().captures.remove(&key(stream));
    }
    done
}

fn destroy(call: &Call<'_>, stream: u64) -> Answer<()> {
    let _inside = gate::enter();
    call.go()?;
    let mut memory = memory::lock();
    memory.captures.remove(&key(stream));
    ordered::ended(&mut memory, key(stream));
    Ok(())
}

own! { false
    // A handle of a kernel may be another kernel's afterwards.
    fn cuModuleUnload(call: module) {
        memory::lock().kernels.clear();
        call.go()
    }
    fn cuLibraryUnload(call: library) {
        memory::lock().kernels.clear();
        call.go()
    }
    fn cuCtxCreate(call: to, flags, device) {
        made(call, to)
    }
    fn cuCtxCreate_v2(call: to, flags, device) {
        made(call, to)
    }
    fn cuCtxCreate_v3(call: to, affinity, count, flags, device) {
        made(call, to)
    }
    fn cuCtxCreate_v4(call: to, params, flags, device) {
        made(call, to)
    }
    fn cuCtxDestroy(call: context) {
        end(call, context)
    }
    fn cuCtxDestroy_v2(call: context) {
        end(call, context)
    }
    fn cuDevicePrimaryCtxRetain(call: to, device) {
        call.go()?;
        if let Some(context) = pointer::take::<u64>(to) {
            let device = (device as u32).cast_signed();
            let mut memory = memory::lock();
            memory.primaries.insert(device, context);
            memory.saw_context(context);
        }
        Ok(())
    }
    fn cuDevicePrimaryCtxRelease(call: device) {
        let_go(call, device)
    }
    fn cuDevicePrimaryCtxRelease_v2(call: device) {
        let_go(call, device)
    }
    fn cuDevicePrimaryCtxReset(call: device) {
        let_go(call, device)
    }
    fn cuDevicePrimaryCtxReset_v2(call: device) {
        let_go(call, device)
    }
    fn cuCtxEnablePeerAccess(call: context, flags) {
        call.go()?;
        let (own, other) = (vmm::device()?, vmm::device_of(context)?);
        let _inside = gate::enter();
        memory::lock().peer(other, own)
    }
    fn cuStreamBeginCapture(call: stream) {
        begin(call, stream)
    }
    fn cuStreamBeginCapture_ptsz(call: stream) {
        begin(call, stream)
    }
    fn cuStreamBeginCapture_v2(call: stream, mode) {
        begin(call, stream)
    }
    fn cuStreamBeginCapture_v2_ptsz(call: stream, mode) {
        begin(call, stream)
    }
    fn cuStreamBeginCaptureToGraph(call: stream, graph, after, edges, count, mode) {
        begin(call, stream)
    }
    fn cuStreamBeginCaptureToGraph_ptsz(call: stream, graph, after, edges, count, mode) {
        begin(call, stream)
    }
    fn cuStreamEndCapture(call: stream, to) {
        finish(call, stream)
    }
    fn cuStreamEndCapture_ptsz(call: stream, to) {
        finish(call, stream)
    }
    fn cuStreamDestroy(call: stream) {
        destroy(call, stream)
    }
    fn cuStreamDestroy_v2(call: stream) {
        destroy(call, stream)
    }
}
