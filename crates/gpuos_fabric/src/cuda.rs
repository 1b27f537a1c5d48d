//! A GPU's memory: virtual memory of the driver, in the device's primary context.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuos_driver::{Access, Location, NO_TIMING, NON_BLOCKING, Prop, code};

use crate::driver::{Driver, Function};
use crate::near::{Near, Trouble};
use crate::pages::Pages;

/// See the module.
pub(crate) struct Cuda {
    driver: &'static Driver,
    device: i32,
    context: u64,
    stream: u64,
    extent: u64,
    /// Physical memory of each frame; 0: it has none.
    frames: Mutex<Vec<u64>>,
}

impl Cuda {
    /// The device of this number, and extents of so many bytes, a power of two.
    pub(crate) fn new(number: i32, extent: u64) -> Result<Cuda, Trouble> {
        let driver = Driver::get()?;
        let mut cuda = Cuda {
            driver,
            device: 0,
            context: 0,
            stream: 0,
            extent,
            frames: Mutex::new(Vec::new()),
        };
        cuda.call(Function::cuInit, &[0])?;
        let count = cuda.get(Function::cuDeviceGetCount, &[])? as u32;
        if number < 0 || number.cast_unsigned() >= count {
            return Err(format!(
                "there is no GPU {number}: this process sees {count}, numbered from 0"
            ));
        }
        let device = cuda.get(Function::cuDeviceGet, &[u64::from(number.cast_unsigned())])?;
        cuda.device = (device as u32).cast_signed();
        cuda.context = cuda.get(Function::cuDevicePrimaryCtxRetain, &[device])?;
        let prop = cuda.prop();
        let least = cuda.get(
            Function::cuMemGetAllocationGranularity,
            &[&raw const prop as u64, 0],
        )?;
        if least == 0 || !extent.is_multiple_of(least) {
            return Err(format!(
                "extents of {extent} bytes: on this GPU they are multiples of {least}"
            ));
        }
        cuda.stream = cuda.within(|| cuda.get(Function::cuStreamCreate, &[NON_BLOCKING]))?;
        Ok(cuda)
    }

    /// Bytes that are free on the device now.
    pub(crate) fn free(&self) -> Result<u64, Trouble> {
        let (mut free, mut total) = (0_u64, 0_u64);
        let words = [&raw mut free as u64, &raw mut total as u64];
        self.within(|| self.call(Function::cuMemGetInfo_v2, &words))?;
        Ok(free)
    }

    fn call(&self, function: Function, words: &[u64]) -> Result<(), Trouble> {
        // SAFETY: each caller in this module gives the arguments of that function, as CUDA's documentation has them; pointers are to
        // places that live until it returns, and copies are waited for before theirs end.
        match unsafe { self.driver.call(function, words) } {
            code::OK => Ok(()),
            code => Err(format!("{function:?}: {}", self.name(code))),
        }
    }

    fn name(&self, code: u32) -> String {
        let mut name: *const c_char = std::ptr::null();
        let words = [u64::from(code), &raw mut name as u64];
        // SAFETY: a number, and a place for a pointer.
        let known = unsafe { self.driver.call(Function::cuGetErrorName, &words) } == 0;
        if !known || name.is_null() {
            return format!("error {code}");
        }
        // SAFETY: the driver's text, which stays.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// The same of a function that gives a word by its first argument.
    fn get(&self, function: Function, rest: &[u64]) -> Result<u64, Trouble> {
        let mut value = 0_u64;
        let mut words = vec![&raw mut value as u64];
        words.extend(rest);
        self.call(function, &words)?;
        Ok(value)
    }

    /// Runs with the context of this fabric.
    fn within<T>(&self, body: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        self.with(self.context, body)
    }

    fn with<T>(
        &self,
        context: u64,
        body: impl FnOnce() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.call(Function::cuCtxPushCurrent_v2, &[context])?;
        let done = body();
        self.get(Function::cuCtxPopCurrent_v2, &[])?;
        done
    }

    fn location(&self) -> Location {
        Location::device(self.device)
    }

    fn prop(&self) -> Prop {
        Prop::at(self.location())
    }

    fn frames(&self) -> MutexGuard<'_, Vec<u64>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The physical memory of a frame, made when it is wanted for the first time.
    fn memory(&self, frame: u32) -> Result<u64, Trouble> {
        let mut frames = self.frames();
        let at = frame as usize;
        if frames.len() <= at {
            frames.resize(at + 1, 0);
        }
        if frames[at] == 0 {
            let prop = self.prop();
            frames[at] = self.get(
                Function::cuMemCreate,
                &[self.extent, &raw const prop as u64, 0],
            )?;
        }
        Ok(frames[at])
    }

    fn finish(&self) -> Result<(), Trouble> {
        self.call(Function::cuStreamSynchronize, &[self.stream])
    }
}

impl Near for Cuda {
    fn reserve(&self, bytes: u64) -> Result<u64, Trouble> {
        self.within(|| self.get(Function::cuMemAddressReserve, &[bytes, 0, 0, 0]))
    }

    fn unreserve(&self, at: u64, bytes: u64) {
        // A range of ours of which nothing is mapped; after the driver's end there is nothing to give back.
        let _ = self.call(Function::cuMemAddressFree, &[at, bytes]);
    }

    fn attach(&self, frame: u32, at: u64) -> Result<(), Trouble> {
        self.within(|| {
            let memory = self.memory(frame)?;
            self.call(Function::cuMemMap, &[at, self.extent, 0, memory, 0])?;
            let access = Access {
                location: self.location(),
                flags: Access::READ_WRITE,
            };
            let words = [at, self.extent, &raw const access as u64, 1];
            let given = self.call(Function::cuMemSetAccess, &words);
            if given.is_err() {
                self.call(Function::cuMemUnmap, &[at, self.extent])?;
            }
            given
        })
    }

    fn detach(&self, frame: u32, at: u64) -> Result<(), Trouble> {
        let gone = self.within(|| self.call(Function::cuMemUnmap, &[at, self.extent]));
        if gone.is_err() {
            self.trim(frame);
        }
        gone
    }

    fn trim(&self, frame: u32) {
        let memory = self.frames().get_mut(frame as usize).map(std::mem::take);
        if let Some(memory) = memory.filter(|memory| *memory != 0) {
            let _ = self.call(Function::cuMemRelease, &[memory]);
        }
    }

    fn zero(&self, at: u64) -> Result<(), Trouble> {
        self.within(|| {
            self.call(
                Function::cuMemsetD8Async,
                &[at, 0, self.extent, self.stream],
            )?;
            self.finish()
        })
    }

    fn upload(&self, at: u64, from: &[u8]) -> Result<(), Trouble> {
        let words = [at, from.as_ptr() as u64, from.len() as u64, self.stream];
        self.within(|| {
            let asked = self.call(Function::cuMemcpyHtoDAsync_v2, &words);
            asked.and(self.finish())
        })
    }

    fn download(&self, at: u64, to: &mut [u8]) -> Result<(), Trouble> {
        let words = [to.as_mut_ptr() as u64, at, to.len() as u64, self.stream];
        self.within(|| {
            let asked = self.call(Function::cuMemcpyDtoHAsync_v2, &words);
            asked.and(self.finish())
        })
    }

    fn mark(&self, stream: u64) -> Result<u64, Trouble> {
        // 0, 1 and 2 are the default streams, of the thread's context.
        let context = match stream {
            0..=2 => self.get(Function::cuCtxGetCurrent, &[])?,
            stream => {
                let mut context = 0_u64;
                let words = [stream, &raw mut context as u64];
                self.call(Function::cuStreamGetCtx, &words)?;
                context
            }
        };
        let context = if context == 0 { self.context } else { context };
        self.with(context, || {
            let event = self.get(Function::cuEventCreate, &[NO_TIMING])?;
            let recorded = self.call(Function::cuEventRecord, &[event, stream]);
            if let Err(trouble) = recorded {
                self.forget(event);
                return Err(trouble);
            }
            Ok(event)
        })
    }

    fn wait(&self, mark: u64) {
        // An event whose context has ended, or whose work has failed, has nothing before it that still runs.
        let _ = self.call(Function::cuEventSynchronize, &[mark]);
    }

    fn forget(&self, mark: u64) {
        let _ = self.call(Function::cuEventDestroy_v2, &[mark]);
    }

    fn drain(&self) {
        let _ = self.within(|| self.call(Function::cuCtxSynchronize, &[]));
    }

    fn lock(&self, pages: &Pages) {
        let bytes = pages.bytes();
        let words = [bytes.as_ptr() as u64, bytes.len() as u64, 0];
        // Without it copies are slower and as right.
        let _ = self.within(|| self.call(Function::cuMemHostRegister_v2, &words));
    }

    fn unlock(&self, pages: &Pages) {
        let words = [pages.bytes().as_ptr() as u64];
        let _ = self.within(|| self.call(Function::cuMemHostUnregister, &words));
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        for memory in std::mem::take(&mut *self.frames()) {
            if memory != 0 {
                let _ = self.call(Function::cuMemRelease, &[memory]);
            }
        }
        if self.stream != 0 {
            let _ = self.within(|| self.call(Function::cuStreamDestroy_v2, &[self.stream]));
        }
        if self.context != 0 {
            let device = u64::from(self.device.cast_unsigned());
            let _ = self.call(Function::cuDevicePrimaryCtxRelease_v2, &[device]);
        }
    }
}
