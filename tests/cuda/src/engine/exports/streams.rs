//! Streams, and capturing what they are given.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{cuda, enqueue, stream_of};
use crate::abi::{Answer, Code, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::event::State;
use crate::engine::graph::{Capture, Graph};
use crate::engine::work::{Call, Tell, Work};
use crate::pointer::Out;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// The most urgent priority.
const URGENT: c_int = -5;

fn create(out: &Out<u64>, flags: c_uint, priority: c_int) -> Answer<()> {
    if flags & !NON_BLOCKING != 0 {
        return Err(code::INVALID);
    }
    out.set(current()?.stream(flags, priority.clamp(URGENT, 0))?.handle)
}

fn destroy(handle: u64) -> Answer<()> {
    let driver = driver()?;
    let stream = driver.streams.remove(handle)?;
    if let Some(capture) = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        let _ = driver.graphs.remove(capture.graph);
    }
    stream.context()?.forget(&stream);
    Ok(())
}

/// Begins a capture in a stream.
fn begin(handle: u64, mode: c_uint) -> Answer<()> {
    let (context, stream) = stream_of(handle)?;
    if mode > 2 {
        return Err(code::INVALID);
    }
    if std::sync::Arc::ptr_eq(&stream, &context.null) {
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    let mut capture = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if capture.is_some() {
        return Err(code::ILLEGAL_STATE);
    }
    static IDS: AtomicU64 = AtomicU64::new(1);
    *capture = Some(Capture {
        graph: driver()?.graphs.add(Graph::new()),
        origin: true,
        tails: Vec::new(),
        id: IDS.fetch_add(1, Ordering::Relaxed),
    });
    Ok(())
}

/// Ends a capture: the streams that joined it must have been waited for.
fn end(handle: u64) -> Answer<u64> {
    let driver = driver()?;
    let (_, stream) = stream_of(handle)?;
    let mut own = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if !own.as_ref().ok_or(code::ILLEGAL_STATE)?.origin {
        return Err(code::CAPTURE_UNMATCHED);
    }
    let capture = own.take().ok_or(code::ILLEGAL_STATE)?;
    // Another thread may end its capture, and look at this stream.
    drop(own);
    let graph = driver.graphs.get(capture.graph)?;
    let before = graph.before(&capture.tails);
    let mut joined = true;
    driver.streams.each(|other| {
        if other.handle == stream.handle {
            return;
        }
        let mut other = other.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if other
            .as_ref()
            .is_some_and(|other| other.graph == capture.graph)
        {
            let tails = other.take().map(|other| other.tails).unwrap_or_default();
            joined &= tails.iter().all(|tail| before.contains(tail));
        }
    });
    match joined {
        true => Ok(capture.graph),
        false => {
            let _ = driver.graphs.remove(capture.graph);
            Err(code::CAPTURE_UNJOINED)
        }
    }
}

/// Lets a stream wait for what an event marks now.
fn wait(handle: u64, event: u64) -> Answer<()> {
    let driver = driver()?;
    let event = driver.events.get(event)?;
    let (_, stream) = stream_of(handle)?;
    let mut capture = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    match (event.state(), capture.as_mut()) {
        (State::Fresh, _) => Ok(()),
        (State::Recorded(_), Some(_)) => Err(code::CAPTURE_ISOLATION),
        (State::Recorded(record), None) => {
            drop(capture);
            enqueue(handle, Work::After(record.stream, record.ticket)).map(|_| ())
        }
        (State::Captured(graph, tails), Some(own)) if own.graph == graph => {
            own.tails.extend(tails);
            own.tails.sort_unstable();
            own.tails.dedup();
            Ok(())
        }
        (State::Captured(..), Some(_)) => Err(code::CAPTURE_ISOLATION),
        (State::Captured(graph, tails), None) => {
            // The stream joins the capture.
            driver.graphs.get(graph)?;
            *capture = Some(Capture {
                graph,
                origin: false,
                tails,
                id: graph,
            });
            Ok(())
        }
    }
}

fn info(handle: u64) -> Answer<Option<Capture>> {
    let (_, stream) = stream_of(handle)?;
    Ok(stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone())
}

cuda! {
    fn cuStreamCreate(out: Out<u64>, flags: c_uint) {
        create(&out, flags, 0)
    }
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: c_uint, priority: c_int) {
        create(&out, flags, priority)
    }
    fn cuStreamDestroy(stream: u64) {
        destroy(stream)
    }
    fn cuStreamDestroy_v2(stream: u64) {
        destroy(stream)
    }
    fn cuStreamSynchronize(stream: u64) / cuStreamSynchronize_ptsz {
        let (context, stream) = stream_of(stream)?;
        if stream.is_capturing() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        stream.wait(stream.given());
        context.outcome()
    }
    fn cuStreamQuery(stream: u64) / cuStreamQuery_ptsz {
        let (context, stream) = stream_of(stream)?;
        if stream.is_capturing() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        let done = stream.is_done(stream.given());
        context.outcome()?;
        if done { Ok(()) } else { Err(code::NOT_READY) }
    }
    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) / cuStreamWaitEvent_ptsz {
        wait(stream, event)
    }
    fn cuStreamAddCallback(
        stream: u64,
        function: Option<extern "C" fn(u64, Code, *mut c_void)>,
        data: *mut c_void,
        _flags: c_uint,
    ) / cuStreamAddCallback_ptsz {
        let function = function.ok_or(code::INVALID)?;
        if stream_of(stream)?.1.is_capturing() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        enqueue(stream, Work::Tell(Tell { function, stream, data })).map(|_| ())
    }
    fn cuLaunchHostFunc(
        stream: u64,
        function: Option<extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) / cuLaunchHostFunc_ptsz {
        let function = function.ok_or(code::INVALID)?;
        enqueue(stream, Work::Call(Call { function, data })).map(|_| ())
    }
    fn cuStreamGetFlags(stream: u64, out: Out<c_uint>) / cuStreamGetFlags_ptsz {
        out.set(stream_of(stream)?.1.flags)
    }
    fn cuStreamGetPriority(stream: u64, out: Out<c_int>) / cuStreamGetPriority_ptsz {
        out.set(stream_of(stream)?.1.priority)
    }
    fn cuStreamGetId(stream: u64, out: Out<c_ulonglong>) / cuStreamGetId_ptsz {
        out.set(stream_of(stream)?.1.id)
    }
    fn cuStreamGetCtx(stream: u64, out: Out<u64>) / cuStreamGetCtx_ptsz {
        out.set(stream_of(stream)?.0.handle)
    }
    fn cuStreamGetDevice(stream: u64, out: Out<c_int>) / cuStreamGetDevice_ptsz {
        out.set(stream_of(stream)?.0.device.index as c_int)
    }
    fn cuStreamAttachMemAsync(stream: u64, _address: u64, _length: usize, _flags: c_uint) / cuStreamAttachMemAsync_ptsz {
        stream_of(stream).map(|_| ())
    }
    fn cuStreamBeginCapture(stream: u64) / cuStreamBeginCapture_ptsz {
        begin(stream, 0)
    }
    fn cuStreamBeginCapture_v2(stream: u64, mode: c_uint) / cuStreamBeginCapture_v2_ptsz {
        begin(stream, mode)
    }
    fn cuStreamEndCapture(stream: u64, out: Out<u64>) / cuStreamEndCapture_ptsz {
        let graph = end(stream);
        out.set(*graph.as_ref().unwrap_or(&0))?;
        graph.map(|_| ())
    }
    fn cuStreamIsCapturing(stream: u64, out: Out<c_uint>) / cuStreamIsCapturing_ptsz {
        out.set(stream_of(stream)?.1.is_capturing().into())
    }
    fn cuStreamGetCaptureInfo(stream: u64, status: Out<c_uint>, id: Out<c_ulonglong>) / cuStreamGetCaptureInfo_ptsz {
        let capture = info(stream)?;
        status.set(capture.is_some().into())?;
        id.offer(capture.map_or(0, |capture| capture.id));
        Ok(())
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: u64,
        status: Out<c_uint>,
        id: Out<c_ulonglong>,
        graph: Out<u64>,
        _tails: Out<*const u64>,
        count: Out<usize>,
    ) / cuStreamGetCaptureInfo_v2_ptsz {
        let capture = info(stream)?;
        status.set(capture.is_some().into())?;
        if let Some(capture) = capture {
            id.offer(capture.id);
            graph.offer(capture.graph);
            // The list itself is not shown: nobody who asked it was tried.
            count.offer(0);
        }
        Ok(())
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        driver()?;
        // All modes are as the relaxed one here.
        match mode.get()? {
            0..=2 => Ok(()),
            _ => Err(code::INVALID),
        }
    }
}
