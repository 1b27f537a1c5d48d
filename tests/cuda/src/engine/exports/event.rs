//! Events.

use std::ffi::c_uint;
use std::sync::{Arc, OnceLock, PoisonError};

use super::{cuda, enqueue, stream_of};
use crate::abi::{Answer, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::event::{Event, Record, State};
use crate::engine::work::Work;
use crate::pointer::Out;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMES: u32 = 2;

fn record(event: u64, handle: u64) -> Answer<()> {
    let event = driver()?.events.get(event)?;
    let (_, stream) = stream_of(handle)?;
    let capture = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if let Some(capture) = capture {
        event.mark(State::Captured(capture.graph, capture.tails));
        return Ok(());
    }
    let time = Arc::new(OnceLock::new());
    if let Some((_, stream, ticket)) = enqueue(handle, Work::Record(Arc::clone(&time)))? {
        event.mark(State::Recorded(Record {
            stream,
            ticket,
            time,
        }));
    }
    Ok(())
}

fn recorded(event: u64) -> Answer<Option<Record>> {
    match driver()?.events.get(event)?.state() {
        State::Fresh => Ok(None),
        State::Recorded(record) => Ok(Some(record)),
        State::Captured(..) => Err(code::CAPTURED_EVENT),
    }
}

fn destroy(event: u64) -> Answer<()> {
    driver()?.events.remove(event).map(|_| ())
}

fn elapsed(out: &Out<f32>, start: u64, end: u64) -> Answer<()> {
    let driver = driver()?;
    let mut times = Vec::new();
    for event in [start, end] {
        if driver.events.get(event)?.flags & NO_TIMES != 0 {
            return Err(code::INVALID_HANDLE);
        }
        let record = recorded(event)?.ok_or(code::INVALID_HANDLE)?;
        if !record.stream.is_done(record.ticket) {
            return Err(code::NOT_READY);
        }
        // Without a time the work before it has failed.
        times.push(*record.time.get().ok_or(code::LAUNCH_FAILED)?);
    }
    let forth = times[1].saturating_duration_since(times[0]).as_secs_f32();
    let back = times[0].saturating_duration_since(times[1]).as_secs_f32();
    out.set((forth - back) * 1000.0)
}

cuda! {
    fn cuEventCreate(out: Out<u64>, flags: c_uint) {
        current()?;
        match flags & !7 {
            0 => out.set(driver()?.events.add(Event::new(flags))),
            _ => Err(code::INVALID),
        }
    }
    fn cuEventDestroy(event: u64) {
        destroy(event)
    }
    fn cuEventDestroy_v2(event: u64) {
        destroy(event)
    }
    fn cuEventRecord(event: u64, stream: u64) / cuEventRecord_ptsz {
        record(event, stream)
    }
    fn cuEventRecordWithFlags(event: u64, stream: u64, _flags: c_uint) / cuEventRecordWithFlags_ptsz {
        record(event, stream)
    }
    fn cuEventQuery(event: u64) {
        let Some(record) = recorded(event)? else {
            return Ok(());
        };
        let done = record.stream.is_done(record.ticket);
        record.stream.context()?.outcome()?;
        if done { Ok(()) } else { Err(code::NOT_READY) }
    }
    fn cuEventSynchronize(event: u64) {
        let Some(record) = recorded(event)? else {
            return Ok(());
        };
        record.stream.wait(record.ticket);
        record.stream.context()?.outcome()
    }
    fn cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) {
        elapsed(&out, start, end)
    }
    fn cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        elapsed(&out, start, end)
    }
}
