//! Contexts.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::cuda;
use crate::abi::{Answer, code};
use crate::engine::context::{Context, current, current_even_failed, stack};
use crate::engine::device::Primary;
use crate::engine::driver::{Driver, driver};
use crate::pointer::Out;

fn primary(driver: &'static Driver, ordinal: c_int) -> Answer<MutexGuard<'static, Primary>> {
    let primary = &driver.device(ordinal)?.primary;
    Ok(primary.lock().unwrap_or_else(PoisonError::into_inner))
}

fn end(driver: &Driver, primary: &mut Primary) {
    primary.holders = 0;
    if let Some(context) = primary.context.take() {
        context.destroy(driver);
    }
}

pub(super) fn create(out: &Out<u64>, flags: c_uint, ordinal: c_int) -> Answer<()> {
    let driver = driver()?;
    let context = Context::new(driver, driver.device(ordinal)?, false, flags);
    stack(|stack| stack.push(context.handle));
    out.set(context.handle)
}

fn known(driver: &Driver, handle: u64) -> Answer<Arc<Context>> {
    driver
        .contexts
        .get(handle)
        .map_err(|_| code::INVALID_CONTEXT)
}

fn primary_release(ordinal: c_int) -> Answer<()> {
    let driver = driver()?;
    let mut primary = primary(driver, ordinal)?;
    match primary.holders {
        0 => return Err(code::INVALID_CONTEXT),
        1 => end(driver, &mut primary),
        _ => primary.holders -= 1,
    }
    Ok(())
}

fn primary_reset(ordinal: c_int) -> Answer<()> {
    let driver = driver()?;
    end(driver, &mut *primary(driver, ordinal)?);
    Ok(())
}

fn primary_flags(ordinal: c_int, flags: c_uint) -> Answer<()> {
    let driver = driver()?;
    let mut primary = primary(driver, ordinal)?;
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags, Ordering::SeqCst);
    }
    Ok(())
}

fn destroy(handle: u64) -> Answer<()> {
    let driver = driver()?;
    let context = known(driver, handle)?;
    if context.primary {
        return Err(code::INVALID_CONTEXT);
    }
    stack(|stack| {
        if stack.last() == Some(&handle) {
            stack.pop();
        }
    });
    context.destroy(driver);
    Ok(())
}

fn push(handle: u64) -> Answer<()> {
    known(driver()?, handle)?;
    stack(|stack| stack.push(handle));
    Ok(())
}

fn pop(out: &Out<u64>) -> Answer<()> {
    driver()?;
    let handle = stack(Vec::pop).ok_or(code::INVALID_CONTEXT)?;
    out.offer(handle);
    Ok(())
}

/// Values of the limits 0 to 6: stack, printf buffer, heap, depth, pending launches, L2.
const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0];

cuda! {
    fn cuDevicePrimaryCtxRetain(out: Out<u64>, ordinal: c_int) {
        let driver = driver()?;
        let mut primary = primary(driver, ordinal)?;
        let flags = primary.flags;
        let device = driver.device(ordinal)?;
        let make = || Context::new(driver, device, true, flags);
        let handle = primary.context.get_or_insert_with(make).handle;
        primary.holders += 1;
        out.set(handle)
    }
    fn cuDevicePrimaryCtxRelease(ordinal: c_int) {
        primary_release(ordinal)
    }
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        primary_release(ordinal)
    }
    fn cuDevicePrimaryCtxReset(ordinal: c_int) {
        primary_reset(ordinal)
    }
    fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) {
        primary_reset(ordinal)
    }
    fn cuDevicePrimaryCtxSetFlags(ordinal: c_int, flags: c_uint) {
        primary_flags(ordinal, flags)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, flags: c_uint) {
        primary_flags(ordinal, flags)
    }
    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let primary = primary(driver()?, ordinal)?;
        flags.set(primary.flags)?;
        active.set(primary.context.is_some().into())
    }
    fn cuCtxCreate_v2(out: Out<u64>, flags: c_uint, ordinal: c_int) {
        create(&out, flags, ordinal)
    }
    fn cuCtxCreate_v3(
        out: Out<u64>,
        _affinity: *const c_void,
        count: c_int,
        flags: c_uint,
        ordinal: c_int,
    ) {
        match count {
            0 => create(&out, flags, ordinal),
            _ => Err(code::NOT_SUPPORTED),
        }
    }
    fn cuCtxCreate_v4(out: Out<u64>, params: *const c_void, flags: c_uint, ordinal: c_int) {
        match params.is_null() {
            true => create(&out, flags, ordinal),
            false => Err(code::NOT_SUPPORTED),
        }
    }
    fn cuCtxDestroy(handle: u64) {
        destroy(handle)
    }
    fn cuCtxDestroy_v2(handle: u64) {
        destroy(handle)
    }
    fn cuCtxPushCurrent(handle: u64) {
        push(handle)
    }
    fn cuCtxPushCurrent_v2(handle: u64) {
        push(handle)
    }
    fn cuCtxPopCurrent(out: Out<u64>) {
        pop(&out)
    }
    fn cuCtxPopCurrent_v2(out: Out<u64>) {
        pop(&out)
    }
    fn cuCtxSetCurrent(handle: u64) {
        let driver = driver()?;
        if handle != 0 {
            known(driver, handle)?;
        }
        stack(|stack| {
            stack.pop();
            if handle != 0 {
                stack.push(handle);
            }
        });
        Ok(())
    }
    fn cuCtxGetCurrent(out: Out<u64>) {
        driver()?;
        out.set(stack(|stack| stack.last().copied().unwrap_or(0)))
    }
    fn cuCtxGetDevice(out: Out<c_int>) {
        out.set(current_even_failed()?.device.index as c_int)
    }
    fn cuCtxGetDevice_v2(out: Out<c_int>, handle: u64) {
        let context = match handle {
            0 => current_even_failed()?,
            _ => known(driver()?, handle)?,
        };
        out.set(context.device.index as c_int)
    }
    fn cuCtxGetFlags(out: Out<c_uint>) {
        out.set(current()?.flags.load(Ordering::SeqCst))
    }
    fn cuCtxSetFlags(flags: c_uint) {
        current()?.flags.store(flags, Ordering::SeqCst);
        Ok(())
    }
    fn cuCtxGetId(handle: u64, out: Out<u64>) {
        let context = match handle {
            0 => current()?,
            _ => known(driver()?, handle)?,
        };
        out.set(context.handle)
    }
    fn cuCtxGetApiVersion(handle: u64, out: Out<c_uint>) {
        if handle != 0 {
            known(driver()?, handle)?;
        }
        out.set(3020)
    }
    fn cuCtxSynchronize() {
        current()?.synchronize()
    }
    fn cuCtxSynchronize_v2(handle: u64) {
        match handle {
            0 => current()?.synchronize(),
            _ => known(driver()?, handle)?.synchronize(),
        }
    }
    fn cuCtxGetLimit(out: Out<usize>, limit: c_uint) {
        current()?;
        out.set(*LIMITS.get(limit as usize).ok_or(code::INVALID)?)
    }
    fn cuCtxSetLimit(limit: c_uint, _value: usize) {
        current()?;
        LIMITS.get(limit as usize).map(|_| ()).ok_or(code::INVALID)
    }
    fn cuCtxGetCacheConfig(out: Out<c_uint>) {
        current()?;
        out.set(0)
    }
    fn cuCtxSetCacheConfig(_config: c_uint) {
        current().map(|_| ())
    }
    fn cuCtxGetSharedMemConfig(out: Out<c_uint>) {
        current()?;
        out.set(1)
    }
    fn cuCtxSetSharedMemConfig(_config: c_uint) {
        current().map(|_| ())
    }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }
    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }
    fn cuCtxEnablePeerAccess(other: u64, flags: c_uint) {
        let (driver, own) = (driver()?, current()?);
        let other = known(driver, other)?;
        if flags != 0 || other.device.index == own.device.index {
            return Err(code::INVALID);
        }
        match driver.space.peer(own.device.index, other.device.index, true) {
            true => Err(code::PEER_ENABLED),
            false => Ok(()),
        }
    }
    fn cuCtxDisablePeerAccess(other: u64) {
        let (driver, own) = (driver()?, current()?);
        let other = known(driver, other)?;
        match driver.space.peer(own.device.index, other.device.index, false) {
            true => Ok(()),
            false => Err(code::PEER_NOT_ENABLED),
        }
    }
}
