//! Modules, libraries and their kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::cuda;
use crate::abi::{Answer, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::image::{Entry, Image};
use crate::pointer::{Name, Out};

/// Loads a module that ends in a zero byte, as texts do.
fn load(image: *const c_void) -> Answer<u64> {
    if image.is_null() {
        return Err(code::INVALID);
    }
    // SAFETY: not null, and CUDA's contract is that an image is an ELF file, a fat binary or a text with a
    // zero byte at its end. The first two have zero bytes in their headers, where this stops.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
    Ok(driver()?.images.add(Image::parse(text.to_bytes())?))
}

fn load_file(name: &Name) -> Answer<u64> {
    let text = std::fs::read(name.get()?).map_err(|_| code::FILE_NOT_FOUND)?;
    Ok(driver()?.images.add(Image::parse(&text)?))
}

fn function(image: u64, name: &Name) -> Answer<u64> {
    let driver = driver()?;
    let entry = driver.images.get(image)?.entry(&name.get()?)?;
    let handle = driver.functions.fresh();
    driver.functions.insert(handle, entry);
    Ok(handle)
}

fn entry(function: u64) -> Answer<Arc<Entry>> {
    driver()?.functions.get(function)
}

fn attribute(function: u64, number: c_uint) -> Answer<c_int> {
    entry(function)?;
    match number {
        // Threads of a block; then shared, constant, local bytes, registers, versions, and the rest.
        0 => Ok(1024),
        4 => Ok(32),
        5 | 6 => Ok(90),
        8 => Ok(49152),
        1..=15 => Ok(0),
        _ => Err(code::INVALID),
    }
}

fn param(function: u64, index: usize, offset: &Out<usize>, size: &Out<usize>) -> Answer<()> {
    let offsets = entry(function)?.offsets();
    let (at, length) = *offsets.get(index).ok_or(code::INVALID)?;
    offset.offer(at as usize);
    size.offer(length as usize);
    Ok(())
}

cuda! {
    fn cuModuleLoad(out: Out<u64>, file: Name) {
        current()?;
        out.set(load_file(&file)?)
    }
    fn cuModuleLoadData(out: Out<u64>, image: *const c_void) {
        current()?;
        out.set(load(image)?)
    }
    fn cuModuleLoadDataEx(
        out: Out<u64>,
        image: *const c_void,
        _count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
    ) {
        current()?;
        out.set(load(image)?)
    }
    fn cuModuleUnload(module: u64) {
        driver()?.images.remove(module).map(|_| ())
    }
    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Name) {
        out.set(function(module, &name)?)
    }
    fn cuModuleGetFunctionCount(out: Out<c_uint>, module: u64) {
        out.set(driver()?.images.get(module)?.entries.len() as c_uint)
    }
    fn cuModuleGetLoadingMode(out: Out<c_uint>) {
        driver()?;
        // Eager.
        out.set(1)
    }
    fn cuLibraryLoadData(
        out: Out<u64>,
        image: *const c_void,
        _jit: *const c_uint,
        _jit_values: *const *const c_void,
        _jit_count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
        _count: c_uint,
    ) {
        out.set(load(image)?)
    }
    fn cuLibraryLoadFromFile(
        out: Out<u64>,
        file: Name,
        _jit: *const c_uint,
        _jit_values: *const *const c_void,
        _jit_count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
        _count: c_uint,
    ) {
        out.set(load_file(&file)?)
    }
    fn cuLibraryUnload(library: u64) {
        driver()?.images.remove(library).map(|_| ())
    }
    fn cuLibraryGetKernel(out: Out<u64>, library: u64, name: Name) {
        out.set(function(library, &name)?)
    }
    fn cuLibraryGetKernelCount(out: Out<c_uint>, library: u64) {
        out.set(driver()?.images.get(library)?.entries.len() as c_uint)
    }
    fn cuLibraryGetModule(out: Out<u64>, library: u64) {
        driver()?.images.get(library)?;
        out.set(library)
    }
    // A kernel of a library is the same in every context.
    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) {
        current()?;
        entry(kernel)?;
        out.set(kernel)
    }
    fn cuKernelGetAttribute(out: Out<c_int>, number: c_uint, kernel: u64, _device: c_int) {
        out.set(attribute(kernel, number)?)
    }
    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(kernel, index, &offset, &size)
    }
    fn cuFuncGetAttribute(out: Out<c_int>, number: c_uint, function: u64) {
        out.set(attribute(function, number)?)
    }
    fn cuFuncSetAttribute(function: u64, number: c_uint, _value: c_int) {
        attribute(function, number).map(|_| ())
    }
    fn cuFuncSetCacheConfig(function: u64, _config: c_uint) {
        entry(function).map(|_| ())
    }
    fn cuFuncSetSharedMemConfig(function: u64, _config: c_uint) {
        entry(function).map(|_| ())
    }
    fn cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(function, index, &offset, &size)
    }
    fn cuFuncGetName(out: Out<*const c_char>, function: u64) {
        // The name lives as long as the function, that is as long as the process.
        out.set(entry(function)?.c_name.as_ptr())
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, function: u64, threads: c_int, _shared: usize) {
        entry(function)?;
        match threads {
            1..=1024 => out.set((2048 / threads).min(32)),
            _ => Err(code::INVALID),
        }
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<c_int>,
        function: u64,
        threads: c_int,
        _shared: usize,
        _flags: c_uint,
    ) {
        entry(function)?;
        match threads {
            1..=1024 => out.set((2048 / threads).min(32)),
            _ => Err(code::INVALID),
        }
    }
}
