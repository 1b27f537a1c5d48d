//! Starting, versions, texts of errors, addresses of functions.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::{cuda, newer};
use crate::abi::{Answer, CODES, Code, code};
use crate::engine::driver::{driver, init};
use crate::engine::procs::{self, Missing};
use crate::pointer::{Name, Out};
use crate::setup::setup;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: c_ulonglong = 2;

fn find(name: &Name, version: c_int, flags: c_ulonglong) -> Answer<Result<usize, Missing>> {
    let name = name.get()?;
    if flags & !3 != 0 {
        return Err(code::INVALID);
    }
    let setup = setup().ok_or(code::NOT_READY_SYSTEM)?;
    let wanted = u32::try_from(version).map_err(|_| code::INVALID)?;
    if let Some(found) = newer::found(setup, &name, wanted) {
        return Ok(Ok(found));
    }
    let form = procs::form(&name, wanted, setup.version);
    Ok(form
        .and_then(|form| procs::address(form.export, flags & PER_THREAD != 0).ok_or(Missing::Name)))
}

fn text(error: Code) -> Answer<&'static (Code, &'static str, &'static str)> {
    CODES
        .iter()
        .find(|(number, ..)| *number == error)
        .ok_or(code::INVALID)
}

cuda! {
    fn cuInit(flags: c_uint) {
        match flags {
            0 => init(),
            _ => Err(code::INVALID),
        }
    }
    fn cuDriverGetVersion(version: Out<c_int>) {
        let setup = setup().ok_or(code::NOT_READY_SYSTEM)?;
        version.set(setup.version as c_int)
    }
    fn cuGetErrorName(error: Code, name: Out<*const c_char>) {
        let found = text(error);
        name.set(found.map_or(std::ptr::null(), |(_, name, _)| name.as_ptr().cast()))?;
        found.map(|_| ())
    }
    fn cuGetErrorString(error: Code, name: Out<*const c_char>) {
        let found = text(error);
        name.set(found.map_or(std::ptr::null(), |(.., text)| text.as_ptr().cast()))?;
        found.map(|_| ())
    }
    fn cuGetProcAddress(name: Name, address: Out<usize>, version: c_int, flags: c_ulonglong) {
        match find(&name, version, flags)? {
            Ok(found) => address.set(found),
            Err(_) => {
                address.set(0)?;
                Err(code::NOT_FOUND)
            }
        }
    }
    fn cuGetProcAddress_v2(
        name: Name,
        address: Out<usize>,
        version: c_int,
        flags: c_ulonglong,
        status: Out<c_int>,
    ) {
        let found = find(&name, version, flags)?;
        address.set(found.unwrap_or(0))?;
        status.offer(match found {
            Ok(_) => 0,
            Err(Missing::Name) => 1,
            Err(Missing::Version) => 2,
        });
        found.map(|_| ()).map_err(|_| code::NOT_FOUND)
    }
    // The CUDA runtime asks for tables that are not documented: here there are none.
    fn cuGetExportTable(_table: Out<*const c_void>, _id: *const c_void) {
        Err(code::NOT_FOUND)
    }
    fn cuProfilerStart() {
        driver().map(|_| ())
    }
    fn cuProfilerStop() {
        driver().map(|_| ())
    }
}
