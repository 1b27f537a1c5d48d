//! Memory and utilisation.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_st, nvmlDevice_t, nvmlMemory_st, nvmlMemory_v2_st, nvmlUtilization_st,
};

use super::call::{Answer, code};
use super::session::{Part, answer};
use super::{Out, Versioned, nvml, part};
use crate::latency::Cost::Driver;

const MIB: u64 = 1 << 20;

/// Total, reserved and used MiB.
fn memory(part: &Part<'_>) -> Answer<[u64; 3]> {
    let whole = &part.whole;
    let Some((instance, compute)) = part.mig else {
        let total = whole.kind.gpu_memory_mib();
        let reserved = whole.board.reserved_mib;
        return Ok([total, reserved, whole.gpu.used_mib().min(total - reserved)]);
    };
    let profile = whole.board.mig.and_then(|mig| mig.by_id(instance.profile));
    let total = profile.ok_or(code::UNKNOWN)?.memory_mib;
    // Compute instances of a GPU instance share its memory.
    let _ = compute;
    let own = whole
        .gpu
        .processes()
        .filter(|p| p.gpu_instance == instance.id);
    let used: u64 = own.map(|p| p.memory_mib).sum();
    Ok([total, 0, used.min(total)])
}

/// The share of memory bandwidth that a busy GPU is taken to use, in percent.
pub(super) const MEMORY_SHARE: u32 = 60;

nvml! {
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: Out<nvmlMemory_st>) {
        let [total, reserved, used] = part(device, Driver, |part| memory(&part))?;
        // The old structure counts what the driver keeps as used.
        let used = used + reserved;
        out.set(nvmlMemory_st { total: total * MIB, free: (total - used) * MIB, used: used * MIB })
    }
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: Versioned<nvmlMemory_v2_st>) {
        out.check(2)?;
        let [total, reserved, used] = part(device, Driver, |part| memory(&part))?;
        out.set(nvmlMemory_v2_st {
            version: 0,
            total: total * MIB,
            reserved: reserved * MIB,
            free: (total - reserved - used) * MIB,
            used: used * MIB,
        })
    }
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, out: Out<nvmlBAR1Memory_st>) {
        let total = part(device, Driver, |part| Ok(part.whole.board.bar1_mib))?;
        let used = 2;
        out.set(nvmlBAR1Memory_st {
            bar1Total: total * MIB,
            bar1Free: (total - used) * MIB,
            bar1Used: used * MIB,
        })
    }
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, out: Out<nvmlUtilization_st>) {
        answer(device, &out, Driver, |view| match view.gpu.mig_on() {
            // nvidia-smi shows N/A for a divided GPU.
            true => Err(code::UNSUPPORTED),
            false => {
                let load = view.gpu.load();
                Ok(nvmlUtilization_st { gpu: load, memory: load * MEMORY_SHARE / 100 })
            }
        })
    }
    fn nvmlDeviceGetEncoderUtilization(
        device: nvmlDevice_t,
        load: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        engine(device, &load, &period_us)
    }
    fn nvmlDeviceGetDecoderUtilization(
        device: nvmlDevice_t,
        load: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        engine(device, &load, &period_us)
    }
    fn nvmlDeviceGetJpgUtilization(
        device: nvmlDevice_t,
        load: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        engine(device, &load, &period_us)
    }
    fn nvmlDeviceGetOfaUtilization(
        device: nvmlDevice_t,
        load: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        engine(device, &load, &period_us)
    }
    fn nvmlDeviceGetEncoderStats(
        device: nvmlDevice_t,
        sessions: Out<c_uint>,
        frames: Out<c_uint>,
        latency: Out<c_uint>,
    ) {
        super::gpu(device, Driver, |_| Ok(()))?;
        sessions.set(0)?;
        frames.set(0)?;
        latency.set(0)
    }
}

/// Video engines: nothing uses them.
fn engine(device: nvmlDevice_t, load: &Out<c_uint>, period_us: &Out<c_uint>) -> Answer<()> {
    super::gpu(device, Driver, |view| match view.gpu.mig_on() {
        true => Err(code::UNSUPPORTED),
        false => Ok(()),
    })?;
    load.set(0)?;
    period_us.set(167_000)
}
