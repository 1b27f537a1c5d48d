//! Forms of before CUDA 4.0 whose arguments are those of today, for programs that load them by name.
//! Forms with addresses of 32 bits are only there to fail.

use std::ffi::{c_int, c_uint};

use super::{context, cuda};
use crate::abi::code;
use crate::engine::driver::driver;
use crate::pointer::Out;

cuda! {
    fn cuCtxCreate(out: Out<u64>, flags: c_uint, ordinal: c_int) {
        context::create(&out, flags, ordinal)
    }
    // There is no OpenGL here: no device shows its context.
    fn cuGLGetDevices_v2(count: Out<c_uint>, _devices: Out<c_int>, _room: c_uint, _list: c_uint) {
        driver()?;
        count.set(0)?;
        Err(code::NO_DEVICE)
    }
}
