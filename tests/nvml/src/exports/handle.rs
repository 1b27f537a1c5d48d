//! Handles. C sees pointers; they lead nowhere and are numbers, so that any value, also one from
//! before the last change, is understood or refused.
//!
//! Bits: 56.. kind, 48..56 GPU, 1..48 number of the instance. Bit 0 stays clear as in a pointer.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlDevice_t, nvmlGpmSample_t, nvmlGpuInstance_t,
};

use super::call::{Answer, code};

const GPU: usize = 0x51;
const MIG: usize = 0x52;
const GPU_INSTANCE: usize = 0x53;
const COMPUTE_INSTANCE: usize = 0x54;
const SAMPLE: usize = 0x55;

/// What a device handle means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A whole GPU, by index.
    Gpu(usize),
    /// A MIG device: the compute instance with this serial number on that GPU.
    Mig(usize, u64),
}

fn pack(kind: usize, gpu: usize, serial: u64) -> usize {
    kind << 56 | gpu << 48 | (serial as usize) << 1
}

fn unpack(value: usize) -> Option<(usize, usize, u64)> {
    (value & 1 == 0).then_some((
        value >> 56,
        value >> 48 & 0xFF,
        (value as u64 & 0xFFFF_FFFF_FFFF) >> 1,
    ))
}

/// The handle of a GPU or a MIG device.
pub(crate) fn device_handle(target: Target) -> nvmlDevice_t {
    let value = match target {
        // A GPU's number is never 0 in a handle, so that no handle looks like a small offset.
        Target::Gpu(gpu) => pack(GPU, gpu, 1),
        Target::Mig(gpu, serial) => pack(MIG, gpu, serial),
    };
    std::ptr::without_provenance_mut(value)
}

/// What a device handle means.
pub(crate) fn device(handle: nvmlDevice_t) -> Answer<Target> {
    match unpack(handle.addr()) {
        Some((GPU, gpu, 1)) => Ok(Target::Gpu(gpu)),
        Some((MIG, gpu, serial)) => Ok(Target::Mig(gpu, serial)),
        _ => Err(code::INVALID),
    }
}

/// The handle of a GPU instance.
pub(crate) fn gpu_instance_handle(gpu: usize, serial: u64) -> nvmlGpuInstance_t {
    std::ptr::without_provenance_mut(pack(GPU_INSTANCE, gpu, serial))
}

/// GPU and serial number of a GPU instance.
pub(crate) fn gpu_instance(handle: nvmlGpuInstance_t) -> Answer<(usize, u64)> {
    match unpack(handle.addr()) {
        Some((GPU_INSTANCE, gpu, serial)) => Ok((gpu, serial)),
        _ => Err(code::INVALID),
    }
}

/// The handle of a compute instance.
pub(crate) fn compute_instance_handle(gpu: usize, serial: u64) -> nvmlComputeInstance_t {
    std::ptr::without_provenance_mut(pack(COMPUTE_INSTANCE, gpu, serial))
}

/// GPU and serial number of a compute instance.
pub(crate) fn compute_instance(handle: nvmlComputeInstance_t) -> Answer<(usize, u64)> {
    match unpack(handle.addr()) {
        Some((COMPUTE_INSTANCE, gpu, serial)) => Ok((gpu, serial)),
        _ => Err(code::INVALID),
    }
}

/// The handle of a GPM sample.
pub(crate) fn sample_handle(serial: u64) -> nvmlGpmSample_t {
    std::ptr::without_provenance_mut(pack(SAMPLE, 0, serial))
}

/// Serial number of a GPM sample.
pub(crate) fn sample(handle: nvmlGpmSample_t) -> Answer<u64> {
    match unpack(handle.addr()) {
        Some((SAMPLE, 0, serial)) => Ok(serial),
        _ => Err(code::INVALID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_way_through_c() {
        for target in [Target::Gpu(0), Target::Gpu(15), Target::Mig(3, 77)] {
            assert_eq!(device(device_handle(target)), Ok(target));
        }
        assert_eq!(gpu_instance(gpu_instance_handle(2, 5)), Ok((2, 5)));
        assert_eq!(compute_instance(compute_instance_handle(2, 6)), Ok((2, 6)));
    }

    #[test]
    fn other_values_are_refused() {
        for value in [
            0,
            1,
            0x1234,
            usize::MAX,
            pack(GPU, 1, 1) | 1,
            pack(GPU, 1, 2),
        ] {
            let handle = std::ptr::without_provenance_mut(value);
            assert_eq!(device(handle), Err(code::INVALID), "{value:#x}");
        }
        let other = gpu_instance_handle(0, 1).addr();
        assert_eq!(
            compute_instance(std::ptr::without_provenance_mut(other)),
            Err(code::INVALID)
        );
    }
}
