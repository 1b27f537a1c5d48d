//! Beginning, and getting functions.

use super::{Call, own};
use crate::driver::code;
use crate::vmm::Answer;
use crate::{life, lookup, pointer, process};

/// Looks up a function: the driver's answer, or our wrapper of it.
fn look(call: &Call<'_>, name: u64, to: u64, version: u64, flags: u64) -> Answer<()> {
    call.go()?;
    if let Some(found) = pointer::take::<usize>(to).filter(|found| *found != 0)
        && process::grant().is_some()
    {
        pointer::give(
            to,
            lookup::by_driver(pointer::text(name), found, version as u32, flags),
        );
    }
    Ok(())
}

own! { true
    fn cuInit(call: flags) {
        call.go()?;
        life::begin();
        match life::is_denied() {
            true => Err(code::OUT_OF_MEMORY),
            false => Ok(()),
        }
    }
    fn cuGetProcAddress(call: name, to, version, flags) {
        look(call, name, to, version, flags)
    }
    fn cuGetProcAddress_v2(call: name, to, version, flags, status) {
        look(call, name, to, version, flags)
    }
}
