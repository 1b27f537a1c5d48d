//! Processes on a GPU or MIG device.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_st, nvmlDevice_t, nvmlProcessInfo_v1_st, nvmlProcessInfo_v2_st,
    nvmlProcessUtilizationSample_st,
};

use super::call::{Answer, code};
use super::{Block, Out, gpu, nvml, part};
use crate::latency::Cost::Firmware;
use crate::state::{NO_INSTANCE, Process, now_us};

/// What asks for graphics contexts, and what for compute contexts.
const GRAPHICS: u32 = 1;
const COMPUTE: u32 = 0;

fn found(device: nvmlDevice_t, graphics: u32) -> Answer<Vec<Process>> {
    part(device, Firmware, |part| {
        let inside = |process: &&Process| match part.mig {
            None => true,
            Some((gi, ci)) => process.gpu_instance == gi.id && process.compute_instance == ci.id,
        };
        let own = part
            .whole
            .gpu
            .processes()
            .filter(|p| p.graphics == graphics);
        Ok(own.filter(inside).copied().collect())
    })
}

fn list(
    device: nvmlDevice_t,
    graphics: u32,
    count: &Out<c_uint>,
    out: &Block<nvmlProcessInfo_v2_st>,
) -> Answer<()> {
    let made = |process: Process| nvmlProcessInfo_v2_st {
        pid: process.pid,
        usedGpuMemory: process.memory_mib << 20,
        gpuInstanceId: process.gpu_instance,
        computeInstanceId: process.compute_instance,
    };
    let all: Vec<_> = found(device, graphics)?.into_iter().map(made).collect();
    out.list(count, &all)
}

fn list_v1(
    device: nvmlDevice_t,
    graphics: u32,
    count: &Out<c_uint>,
    out: &Block<nvmlProcessInfo_v1_st>,
) -> Answer<()> {
    let made = |process: Process| nvmlProcessInfo_v1_st {
        pid: process.pid,
        usedGpuMemory: process.memory_mib << 20,
    };
    let all: Vec<_> = found(device, graphics)?.into_iter().map(made).collect();
    out.list(count, &all)
}

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v1_st>,
    ) {
        list_v1(device, COMPUTE, &count, &out)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v2_st>,
    ) {
        list(device, COMPUTE, &count, &out)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v2_st>,
    ) {
        list(device, COMPUTE, &count, &out)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v1_st>,
    ) {
        list_v1(device, GRAPHICS, &count, &out)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v2_st>,
    ) {
        list(device, GRAPHICS, &count, &out)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v2_st>,
    ) {
        list(device, GRAPHICS, &count, &out)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        out: Block<nvmlProcessInfo_v2_st>,
    ) {
        // No MPS server is simulated.
        part(device, Firmware, |_| Ok(()))?;
        out.list(&count, &[])
    }
    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t,
        out: Block<nvmlProcessUtilizationSample_st>,
        count: Out<c_uint>,
        after: c_ulonglong,
    ) {
        let now = now_us();
        let samples = gpu(device, Firmware, |view| {
            if view.gpu.mig_on() {
                return Err(code::UNSUPPORTED);
            }
            let made = |process: &Process| nvmlProcessUtilizationSample_st {
                pid: process.pid,
                timeStamp: now,
                smUtil: process.load,
                memUtil: process.load / 2,
                encUtil: 0,
                decUtil: 0,
            };
            Ok(view.gpu.processes().map(made).collect::<Vec<_>>())
        })?;
        if samples.is_empty() || after >= now {
            count.set(0)?;
            return Err(code::NOT_FOUND);
        }
        out.list(&count, &samples)
    }
    fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, mode: Out<c_uint>) {
        super::session::answer(device, &mode, Firmware, |_| Ok(0))
    }
    fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, size: Out<c_uint>) {
        super::session::answer(device, &size, Firmware, |_| Ok(4000))
    }
    fn nvmlDeviceGetAccountingPids(
        device: nvmlDevice_t,
        count: Out<c_uint>,
        pids: Block<c_uint>,
    ) {
        gpu(device, Firmware, |_| Ok(()))?;
        pids.list(&count, &[])
    }
    fn nvmlDeviceGetAccountingStats(device: nvmlDevice_t, _pid: c_uint, _out: Out<nvmlAccountingStats_st>) {
        // Accounting is off.
        gpu(device, Firmware, |_| Err(code::NOT_FOUND))
    }
}

const _: () = assert!(NO_INSTANCE == u32::MAX, "NVML's value for no instance");
