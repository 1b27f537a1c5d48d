//! Copies and fills.

use std::ffi::{c_uchar, c_uint, c_ushort};

use super::{cuda, enqueue, finish};
use crate::abi::{
    Answer, MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED, Memcpy2D, Memcpy3D, Side2D, Side3D, code,
};
use crate::engine::driver::driver;
use crate::engine::work::{Copy, Fill, Rows, Work};
use crate::pointer::{In, bytes};

/// Whether the address is memory of the program that no device reaches.
fn is_pageable(address: u64) -> Answer<bool> {
    let space = &driver()?.space;
    Ok(!space.holds(address) && space.look(address, |_, _| ()).is_none())
}

/// An asynchronous copy. From pageable memory the bytes are those of now, to pageable memory it is done
/// when the call returns: as the driver does it.
fn later(to: u64, from: u64, length: usize, stream: u64) -> Answer<()> {
    if length == 0 {
        super::stream_of(stream)?;
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(code::INVALID);
    }
    let copy = Work::Copy(Copy::line(to, from, length as u64));
    let capturing = super::stream_of(stream)?.1.is_capturing();
    let pageable = [
        !capturing && is_pageable(to)?,
        !capturing && is_pageable(from)?,
    ];
    if pageable == [false, true] {
        let now = bytes(from as *const _, length);
        enqueue(stream, Work::Upload(to, now.into()))?;
        return Ok(());
    }
    let queued = enqueue(stream, copy)?;
    if let (Some((context, stream, ticket)), true) = (queued, pageable[0]) {
        stream.wait(ticket);
        context.outcome()?;
    }
    Ok(())
}

/// A copy that is done when the call returns.
pub(super) fn now(to: u64, from: u64, length: usize) -> Answer<()> {
    if length == 0 {
        super::stream_of(0)?;
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(code::INVALID);
    }
    finish(Work::Copy(Copy::line(to, from, length as u64)))
}

/// A copy inside the device: in order with all work, and not waited for.
pub(super) fn inside(to: u64, from: u64, length: usize) -> Answer<()> {
    if length == 0 {
        super::stream_of(0)?;
        return Ok(());
    }
    enqueue(0, Work::Copy(Copy::line(to, from, length as u64))).map(|_| ())
}

fn start(kind: u32, host: u64, device: u64) -> Answer<u64> {
    match kind {
        MEMORY_HOST => Ok(host),
        MEMORY_DEVICE | MEMORY_UNIFIED => Ok(device),
        _ => {
            eprintln!("simulated libcuda: copies of CUDA arrays are not simulated");
            Err(code::NOT_SUPPORTED)
        }
    }
}

fn flat(side: &Side2D, width: usize) -> Answer<Rows> {
    let pitch = if side.pitch == 0 { width } else { side.pitch };
    if pitch < width {
        return Err(code::INVALID);
    }
    Ok(Rows {
        start: start(side.kind, side.host, side.device)? + (side.y * pitch + side.x) as u64,
        pitch: pitch as u64,
        slice: 0,
    })
}

fn rows2(copy: &In<Memcpy2D>) -> Answer<Work> {
    let copy = copy.get()?;
    Ok(Work::Copy(Copy {
        from: flat(&copy.src, copy.width)?,
        to: flat(&copy.dst, copy.width)?,
        width: copy.width as u64,
        height: copy.height as u64,
        depth: 1,
    }))
}

fn deep(side: &Side3D, width: usize, height: usize) -> Answer<Rows> {
    let pitch = if side.pitch == 0 { width } else { side.pitch };
    let rows = if side.height == 0 {
        height
    } else {
        side.height
    };
    if pitch < width || rows < height {
        return Err(code::INVALID);
    }
    let offset = side.z * rows * pitch + side.y * pitch + side.x;
    Ok(Rows {
        start: start(side.kind, side.host, side.device)? + offset as u64,
        pitch: pitch as u64,
        slice: (rows * pitch) as u64,
    })
}

/// The work of a copy of up to three dimensions.
pub(super) fn rows3(copy: &In<Memcpy3D>) -> Answer<Work> {
    let copy = copy.get()?;
    Ok(Work::Copy(Copy {
        from: deep(&copy.src, copy.width, copy.height)?,
        to: deep(&copy.dst, copy.width, copy.height)?,
        width: copy.width as u64,
        height: copy.height as u64,
        depth: copy.depth as u64,
    }))
}

/// The work of a fill.
pub(super) fn fill(
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    [width, height]: [usize; 2],
) -> Answer<Work> {
    if to == 0 || !to.is_multiple_of(u64::from(element)) {
        return Err(code::INVALID);
    }
    Ok(Work::Fill(Fill {
        to: Rows {
            start: to,
            pitch: pitch as u64,
            slice: 0,
        },
        value,
        element,
        width: width as u64,
        height: height as u64,
    }))
}

fn set(stream: u64, work: Answer<Work>) -> Answer<()> {
    enqueue(stream, work?).map(|_| ())
}

cuda! {
    fn cuMemcpy(to: u64, from: u64, length: usize) / cuMemcpy_ptds {
        now(to, from, length)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: u64, length: usize) / cuMemcpyHtoD_v2_ptds {
        now(to, from, length)
    }
    fn cuMemcpyDtoH_v2(to: u64, from: u64, length: usize) / cuMemcpyDtoH_v2_ptds {
        now(to, from, length)
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, length: usize) / cuMemcpyDtoD_v2_ptds {
        inside(to, from, length)
    }
    fn cuMemcpyPeer(to: u64, _one: u64, from: u64, _other: u64, length: usize) / cuMemcpyPeer_ptds {
        now(to, from, length)
    }
    fn cuMemcpyAsync(to: u64, from: u64, length: usize, stream: u64) / cuMemcpyAsync_ptsz {
        later(to, from, length, stream)
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, length: usize, stream: u64) / cuMemcpyHtoDAsync_v2_ptsz {
        later(to, from, length, stream)
    }
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, length: usize, stream: u64) / cuMemcpyDtoHAsync_v2_ptsz {
        later(to, from, length, stream)
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: u64) / cuMemcpyDtoDAsync_v2_ptsz {
        later(to, from, length, stream)
    }
    fn cuMemcpyPeerAsync(
        to: u64,
        _one: u64,
        from: u64,
        _other: u64,
        length: usize,
        stream: u64,
    ) / cuMemcpyPeerAsync_ptsz {
        later(to, from, length, stream)
    }
    fn cuMemcpy2D_v2(copy: In<Memcpy2D>) / cuMemcpy2D_v2_ptds {
        finish(rows2(&copy)?)
    }
    fn cuMemcpy2DUnaligned_v2(copy: In<Memcpy2D>) / cuMemcpy2DUnaligned_v2_ptds {
        finish(rows2(&copy)?)
    }
    fn cuMemcpy2DAsync_v2(copy: In<Memcpy2D>, stream: u64) / cuMemcpy2DAsync_v2_ptsz {
        set(stream, rows2(&copy))
    }
    fn cuMemcpy3D_v2(copy: In<Memcpy3D>) / cuMemcpy3D_v2_ptds {
        finish(rows3(&copy)?)
    }
    fn cuMemcpy3DAsync_v2(copy: In<Memcpy3D>, stream: u64) / cuMemcpy3DAsync_v2_ptsz {
        set(stream, rows3(&copy))
    }
    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) / cuMemsetD8_v2_ptds {
        set(0, fill(to, 0, value.into(), 1, [count, 1]))
    }
    fn cuMemsetD16_v2(to: u64, value: c_ushort, count: usize) / cuMemsetD16_v2_ptds {
        set(0, fill(to, 0, value.into(), 2, [count, 1]))
    }
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) / cuMemsetD32_v2_ptds {
        set(0, fill(to, 0, value, 4, [count, 1]))
    }
    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: u64) / cuMemsetD8Async_ptsz {
        set(stream, fill(to, 0, value.into(), 1, [count, 1]))
    }
    fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: u64) / cuMemsetD16Async_ptsz {
        set(stream, fill(to, 0, value.into(), 2, [count, 1]))
    }
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: u64) / cuMemsetD32Async_ptsz {
        set(stream, fill(to, 0, value, 4, [count, 1]))
    }
    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize) / cuMemsetD2D8_v2_ptds {
        set(0, fill(to, pitch, value.into(), 1, [width, height]))
    }
    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize) / cuMemsetD2D16_v2_ptds {
        set(0, fill(to, pitch, value.into(), 2, [width, height]))
    }
    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize) / cuMemsetD2D32_v2_ptds {
        set(0, fill(to, pitch, value, 4, [width, height]))
    }
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: c_uchar, width: usize, height: usize, stream: u64) / cuMemsetD2D8Async_ptsz {
        set(stream, fill(to, pitch, value.into(), 1, [width, height]))
    }
    fn cuMemsetD2D16Async(to: u64, pitch: usize, value: c_ushort, width: usize, height: usize, stream: u64) / cuMemsetD2D16Async_ptsz {
        set(stream, fill(to, pitch, value.into(), 2, [width, height]))
    }
    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: u64) / cuMemsetD2D32Async_ptsz {
        set(stream, fill(to, pitch, value, 4, [width, height]))
    }
}
