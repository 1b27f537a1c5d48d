//! Launching kernels.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use super::{cuda, enqueue};
use crate::abi::{Answer, LaunchConfig, code};
use crate::engine::driver::driver;
use crate::engine::image::Entry;
use crate::engine::kernel::{Args, Launch};
use crate::engine::work::Work;
use crate::pointer::{In, bytes};

/// Words of `extra`: a buffer with all arguments, its size, the end.
const BUFFER: u64 = 1;
const SIZE: u64 = 2;

/// The arguments of a kernel: a pointer to each, or one buffer with all of them.
fn args(entry: &Entry, params: *const *const c_void, extra: *const *const c_void) -> Answer<Args> {
    let offsets = entry.offsets();
    if params.is_null() == extra.is_null() && !offsets.is_empty() {
        return Err(code::INVALID);
    }
    let word = |from: &[u8]| {
        let mut word = [0; 8];
        let length = from.len().min(8);
        word[..length].copy_from_slice(&from[..length]);
        u64::from_le_bytes(word)
    };
    if !params.is_null() {
        let pointers = pointers(params, offsets.len());
        if pointers.contains(&0) {
            return Err(code::INVALID);
        }
        let each = pointers.iter().zip(&offsets);
        let values =
            each.map(|(from, (_, size))| word(&bytes(*from as *const c_void, *size as usize)));
        return Ok(Args::new(values.collect()));
    }
    let words = if extra.is_null() {
        vec![0]
    } else {
        pointers(extra, 5)
    };
    let (mut buffer, mut size) = (0, 0);
    for pair in words.chunks(2).take_while(|pair| pair[0] != 0) {
        match (pair[0], pair.get(1)) {
            (BUFFER, Some(at)) => buffer = *at,
            (SIZE, Some(at)) => size = word(&bytes(*at as *const c_void, 8)),
            _ => return Err(code::INVALID),
        }
    }
    let whole = offsets
        .last()
        .map_or(0, |(offset, size)| u64::from(offset + size));
    if size < whole || (buffer == 0 && whole > 0) {
        return Err(code::INVALID);
    }
    let all = bytes(buffer as *const c_void, whole as usize);
    let value =
        |(offset, size): &(u32, u32)| word(&all[*offset as usize..(*offset + *size) as usize]);
    Ok(Args::new(offsets.iter().map(value).collect()))
}

/// Words at an address that C gave; only as many as there are before a zero.
fn pointers(from: *const *const c_void, count: usize) -> Vec<u64> {
    let mut words = Vec::new();
    for index in 0..count {
        let at = from.wrapping_add(index).cast::<c_void>();
        let word: [u8; 8] = bytes(at, 8).try_into().unwrap_or_default();
        words.push(u64::from_le_bytes(word));
        if words.last() == Some(&0) {
            break;
        }
    }
    words
}

/// A launch with its arguments as they are now. One of an unknown kernel fails with a sentence: a kernel that did
/// nothing would pass for one that worked.
pub(super) fn launch(
    function: u64,
    dims: [c_uint; 6],
    shared: c_uint,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Answer<Work> {
    let entry: Arc<Entry> = driver()?.functions.get(function)?;
    let threads: u64 = dims[3..]
        .iter()
        .map(|size| u64::from(*size).min(2048))
        .product();
    if dims.contains(&0) || threads > 1024 {
        return Err(code::INVALID);
    }
    if entry.kernel.is_none() {
        eprintln!(
            "simulated libcuda: kernel '{}' with arguments of {:?} bytes is not simulated and cannot be launched",
            entry.name, entry.params
        );
        return Err(code::LAUNCH_FAILED);
    }
    let args = Arc::new(args(&entry, params, extra)?);
    Ok(Work::Kernel(Launch {
        function,
        entry,
        args,
        dims,
        shared,
    }))
}

cuda! {
    fn cuLaunchKernel(
        function: u64,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: u64,
        params: *const *const c_void,
        extra: *const *const c_void,
    ) / cuLaunchKernel_ptsz {
        let dims = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        enqueue(stream, launch(function, dims, shared, params, extra)?).map(|_| ())
    }
    fn cuLaunchCooperativeKernel(
        function: u64,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: u64,
        params: *const *const c_void,
    ) / cuLaunchCooperativeKernel_ptsz {
        let dims = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        enqueue(stream, launch(function, dims, shared, params, std::ptr::null())?).map(|_| ())
    }
    fn cuLaunchKernelEx(
        config: In<LaunchConfig>,
        function: u64,
        params: *const *const c_void,
        extra: *const *const c_void,
    ) / cuLaunchKernelEx_ptsz {
        let config = config.get()?;
        let work = launch(function, config.dims, config.shared, params, extra)?;
        enqueue(config.stream, work).map(|_| ())
    }
}
