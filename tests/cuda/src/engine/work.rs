//! What a stream does: kernels, copies, fills, calls of the program, waiting.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::abi::{Answer, Code, code};
use crate::engine::context::Context;
use crate::engine::device::Moved;
use crate::engine::driver::{Driver, driver};
use crate::engine::heap;
use crate::engine::kernel::{Launch, Machine};
use crate::engine::stream::Stream;
use crate::memory::Place;
use crate::space::Who;

/// A piece of work. Graphs keep it and do it again.
#[derive(Clone)]
pub(crate) enum Work {
    Nothing,
    Kernel(Launch),
    Copy(Copy),
    /// Bytes that were the program's when the copy was asked for.
    Upload(u64, Arc<Vec<u8>>),
    Fill(Fill),
    Call(Call),
    Tell(Tell),
    /// Frees an allocation.
    Free(u64),
    /// Notes the time.
    Record(Arc<OnceLock<Instant>>),
    /// Waits for another stream's work.
    After(Arc<Stream>, u64),
    /// The nodes of a graph, in an order that keeps to its edges.
    Graph(Arc<Vec<(u64, Work)>>),
}

/// Rows of bytes: where the first begins, and how far rows and slices are apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) start: u64,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

/// A copy of `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) from: Rows,
    pub(crate) to: Rows,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// `height` rows of `width` elements that get one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) to: Rows,
    pub(crate) value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub(crate) element: u32,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// A function of the program (`CUhostFn`).
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

/// A function of the program that hears how the work before it went (`CUstreamCallback`).
#[derive(Clone, Copy)]
pub(crate) struct Tell {
    pub(crate) function: extern "C" fn(u64, Code, *mut c_void),
    pub(crate) stream: u64,
    pub(crate) data: *mut c_void,
}

// SAFETY: the pointer is the program's, and it gave it to be used on the stream's thread.
unsafe impl Send for Call {}
// SAFETY: as above; nothing here follows the pointer.
unsafe impl Sync for Call {}
// SAFETY: as for Call.
unsafe impl Send for Tell {}
// SAFETY: as for Call.
unsafe impl Sync for Tell {}

impl Copy {
    /// A copy of bytes in a row.
    pub(crate) fn line(to: u64, from: u64, length: u64) -> Copy {
        let rows = |start| Rows {
            start,
            pitch: 0,
            slice: 0,
        };
        Copy {
            from: rows(from),
            to: rows(to),
            width: length,
            height: 1,
            depth: 1,
        }
    }

    fn span(&self, rows: &Rows) -> (u64, u64) {
        let last = (self.depth - 1) * rows.slice + (self.height - 1) * rows.pitch;
        (rows.start, last + self.width)
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl Work {
    /// The addresses that it is told to touch; kernels that follow pointers touch others too.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            Work::Kernel(launch) => launch.ranges(),
            Work::Copy(copy) if !copy.is_empty() => {
                vec![copy.span(&copy.from), copy.span(&copy.to)]
            }
            Work::Upload(to, bytes) => vec![(*to, bytes.len() as u64)],
            Work::Fill(fill) if fill.height > 0 => vec![(
                fill.to.start,
                (fill.height - 1) * fill.to.pitch + fill.width * u64::from(fill.element),
            )],
            Work::Graph(nodes) => nodes.iter().flat_map(|(_, work)| work.ranges()).collect(),
            _ => Vec::new(),
        }
    }

    /// Does it. After an error of the context only those are told who asked to be.
    pub(crate) fn run(&self, context: &Arc<Context>) -> Answer<()> {
        if let Work::Tell(tell) = self {
            let status = context.error();
            crate::engine::driver::calling(|| (tell.function)(tell.stream, status, tell.data));
            return Ok(());
        }
        if context.has_failed() {
            return Ok(());
        }
        let driver = driver()?;
        let mut moved = Moved::default();
        let result = self.act(driver, context, &mut moved);
        context.device.rates.spend(moved);
        result
    }

    fn act(
        &self,
        driver: &'static Driver,
        context: &Arc<Context>,
        moved: &mut Moved,
    ) -> Answer<()> {
        match self {
            Work::Nothing | Work::Tell(_) => {}
            Work::Kernel(launch) => {
                let mut machine = Machine::new(driver, context, moved);
                launch.run(&mut machine)?;
            }
            Work::Copy(copy) => rows(driver, context, copy, moved)?,
            Work::Upload(to, bytes) => write(driver, context, *to, bytes, Who::Copy, moved)?,
            Work::Fill(fill) => self::fill(driver, context, fill, moved)?,
            Work::Call(call) => crate::engine::driver::calling(|| (call.function)(call.data)),
            Work::Free(address) => heap::free(driver, *address)?,
            Work::Record(time) => {
                let _ = time.set(Instant::now());
            }
            Work::After(stream, ticket) => stream.wait(*ticket),
            Work::Graph(nodes) => {
                for (_, work) in nodes.iter() {
                    work.run(context)?;
                    if context.has_failed() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

fn rows(driver: &Driver, context: &Context, copy: &Copy, moved: &mut Moved) -> Answer<()> {
    if copy.is_empty() {
        return Ok(());
    }
    let mut buffer = vec![0; copy.width.min(1 << 20) as usize];
    for slice in 0..copy.depth {
        for row in 0..copy.height {
            let from = copy.from.start + slice * copy.from.slice + row * copy.from.pitch;
            let to = copy.to.start + slice * copy.to.slice + row * copy.to.pitch;
            let mut done = 0;
            while done < copy.width {
                let piece = (copy.width - done).min(buffer.len() as u64) as usize;
                let buffer = &mut buffer[..piece];
                // Device memory counts once for a copy inside it and what crosses the link once.
                read(driver, context, from + done, buffer, Who::Copy, moved)?;
                write(driver, context, to + done, buffer, Who::Copy, moved)?;
                done += piece as u64;
            }
        }
    }
    Ok(())
}

fn fill(driver: &Driver, context: &Context, fill: &Fill, moved: &mut Moved) -> Answer<()> {
    let element = &fill.value.to_le_bytes()[..fill.element as usize];
    let bytes = fill.width * u64::from(fill.element);
    let pattern = element.repeat((bytes.min(1 << 18) as usize) / element.len());
    for row in 0..fill.height {
        let start = fill.to.start + row * fill.to.pitch;
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(pattern.len() as u64);
            let part = &pattern[..piece as usize];
            write(driver, context, start + done, part, Who::Copy, moved)?;
            done += piece;
        }
    }
    Ok(())
}

/// Reads device or host memory as the context's device.
pub(crate) fn read(
    driver: &Driver,
    context: &Context,
    address: u64,
    into: &mut [u8],
    who: Who,
    moved: &mut Moved,
) -> Answer<()> {
    let mut rest = into;
    let device = context.device.index;
    let done = driver.space.touch(
        address,
        rest.len() as u64,
        who,
        false,
        |from, size, place| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            // SAFETY: `touch` gives memory of that size that stays mapped while it holds its lock, or the
            // program's own, which by CUDA's contract is there; `part` is ours. Others may write there
            // at the same time, as kernels of a GPU do: then the bytes are whatever they are.
            unsafe { libc::memcpy(part.as_mut_ptr().cast(), from.cast(), size) };
            rest = after;
            match place == Place::Device(device) {
                true => moved.memory += size as u64,
                false => moved.to_device += size as u64,
            }
        },
    );
    done.map_err(|fault| illegal(&fault, "read"))
}

/// Writes device or host memory as the context's device.
pub(crate) fn write(
    driver: &Driver,
    context: &Context,
    address: u64,
    bytes: &[u8],
    who: Who,
    moved: &mut Moved,
) -> Answer<()> {
    let mut rest = bytes;
    let device = context.device.index;
    let done = driver
        .space
        .touch(address, rest.len() as u64, who, true, |to, size, place| {
            let (part, after) = rest.split_at(size);
            // SAFETY: as in `read`, with writing.
            unsafe { libc::memcpy(to.cast(), part.as_ptr().cast(), size) };
            rest = after;
            match place == Place::Device(device) {
                true => moved.memory += size as u64,
                false => moved.from_device += size as u64,
            }
        });
    done.map_err(|fault| illegal(&fault, "written"))
}

fn illegal(fault: &crate::space::Fault, how: &str) -> Code {
    eprintln!(
        "simulated libcuda: {:#x} is {how} by a device and is not mapped with that access",
        fault.0
    );
    code::ILLEGAL_ADDRESS
}
