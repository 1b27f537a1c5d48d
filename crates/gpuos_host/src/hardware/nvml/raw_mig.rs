//! NVML's C functions for MIG, with Rust's types. What makes the unsafe code sound stands in
//! [`super::raw`]; handles of instances come from the library only, too.

#![allow(unsafe_code, reason = "C functions of a library opened at run time")]

use nvml_wrapper_sys::bindings as nvml;

use super::error::{Answer, Error};
use super::raw::{Device, Raw, answer, call, text, version_of, zeroed};

/// A GPU instance's handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuInstance(nvml::nvmlGpuInstance_t);

/// A compute instance's handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComputeInstance(nvml::nvmlComputeInstance_t);

/// Instances of one profile that a GPU can have at once, with room to spare: 7 is the most known.
/// NVML takes no length with the buffer; it writes as many handles as the profile allows.
const MOST_INSTANCES: usize = 64;

/// What NVML says of a GPU instance profile.
pub(super) struct ProfileInfo {
    /// The id that creation takes.
    pub id: u32,
    /// With or without `MIG ` before it.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Instances that fit on an empty GPU.
    pub most: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Decoders, encoders, JPEG decoders, optical flow engines.
    pub engines: [u32; 4],
}

/// First slice and number of slices.
pub(super) type Placement = (u32, u32);

impl Raw {
    /// Sets MIG mode. The error is of the mode that came into force, or did not, if not of the call.
    pub(super) fn set_mig_mode(&self, device: Device, on: bool) -> Answer<()> {
        let mut status = nvml::nvmlReturn_enum_NVML_SUCCESS;
        call!(
            self,
            nvmlDeviceSetMigMode(device.0, on.into(), &raw mut status)
        )?;
        answer("nvmlDeviceSetMigMode", status)
    }

    /// A profile by its index (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub(super) fn mig_profile(&self, device: Device, index: u32) -> Answer<ProfileInfo> {
        let mut info = nvml::nvmlGpuInstanceProfileInfo_v2_t {
            version: version_of::<nvml::nvmlGpuInstanceProfileInfo_v2_t>(2),
            ..zeroed()
        };
        call!(
            self,
            nvmlDeviceGetGpuInstanceProfileInfoV(device.0, index, &raw mut info)
        )?;
        Ok(ProfileInfo {
            id: info.id,
            name: text(&info.name),
            slices: info.sliceCount,
            most: info.instanceCount,
            memory_mib: info.memorySizeMB,
            engines: [
                info.decoderCount,
                info.encoderCount,
                info.jpegCount,
                info.ofaCount,
            ],
        })
    }

    /// Placements of a profile, by its id.
    pub(super) fn mig_placements(&self, device: Device, profile: u32) -> Answer<Vec<Placement>> {
        let mut list = [zeroed::<nvml::nvmlGpuInstancePlacement_t>(); MOST_INSTANCES];
        let mut count = MOST_INSTANCES as u32;
        let (buffer, out) = (list.as_mut_ptr(), &raw mut count);
        call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(device.0, profile, buffer, out)
        )?;
        let found = list.iter().take(count as usize);
        Ok(found.map(|place| (place.start, place.size)).collect())
    }

    /// The GPU instances of a profile, by its id.
    pub(super) fn gpu_instances(&self, device: Device, profile: u32) -> Answer<Vec<GpuInstance>> {
        let mut list = [std::ptr::null_mut(); MOST_INSTANCES];
        let mut count = MOST_INSTANCES as u32;
        let (buffer, out) = (list.as_mut_ptr(), &raw mut count);
        call!(
            self,
            nvmlDeviceGetGpuInstances(device.0, profile, buffer, out)
        )?;
        let found = list.into_iter().take(count as usize);
        Ok(found.map(GpuInstance).collect())
    }

    /// A GPU instance by its id.
    pub(super) fn gpu_instance(&self, device: Device, id: u32) -> Answer<GpuInstance> {
        let mut handle = std::ptr::null_mut();
        call!(
            self,
            nvmlDeviceGetGpuInstanceById(device.0, id, &raw mut handle)
        )?;
        Ok(GpuInstance(handle))
    }

    /// Id and placement of a GPU instance.
    pub(super) fn gpu_instance_info(&self, instance: GpuInstance) -> Answer<(u32, Placement)> {
        let mut info: nvml::nvmlGpuInstanceInfo_t = zeroed();
        call!(self, nvmlGpuInstanceGetInfo(instance.0, &raw mut info))?;
        Ok((info.id, (info.placement.start, info.placement.size)))
    }

    /// Makes a GPU instance at a placement.
    pub(super) fn make_gpu_instance(
        &self,
        device: Device,
        profile: u32,
        (start, size): Placement,
    ) -> Answer<GpuInstance> {
        let placement = nvml::nvmlGpuInstancePlacement_t { start, size };
        let mut handle = std::ptr::null_mut();
        let (at, out) = (&raw const placement, &raw mut handle);
        call!(
            self,
            nvmlDeviceCreateGpuInstanceWithPlacement(device.0, profile, at, out)
        )?;
        Ok(GpuInstance(handle))
    }

    /// Destroys a GPU instance.
    pub(super) fn destroy_gpu_instance(&self, instance: GpuInstance) -> Answer<()> {
        call!(self, nvmlGpuInstanceDestroy(instance.0))
    }

    /// A compute instance profile by its index (`NVML_COMPUTE_INSTANCE_PROFILE_*`): id, compute slices,
    /// multiprocessors.
    pub(super) fn compute_profile(
        &self,
        instance: GpuInstance,
        index: u32,
    ) -> Answer<(u32, u32, u32)> {
        let mut info: nvml::nvmlComputeInstanceProfileInfo_t = zeroed();
        let (shared, out) = (
            nvml::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            &raw mut info,
        );
        call!(
            self,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(instance.0, index, shared, out)
        )?;
        Ok((info.id, info.sliceCount, info.multiprocessorCount))
    }

    /// The compute instances of a profile, by its id.
    pub(super) fn compute_instances(
        &self,
        instance: GpuInstance,
        profile: u32,
    ) -> Answer<Vec<ComputeInstance>> {
        let mut list = [std::ptr::null_mut(); MOST_INSTANCES];
        let mut count = MOST_INSTANCES as u32;
        let (buffer, out) = (list.as_mut_ptr(), &raw mut count);
        call!(
            self,
            nvmlGpuInstanceGetComputeInstances(instance.0, profile, buffer, out)
        )?;
        let found = list.into_iter().take(count as usize);
        Ok(found.map(ComputeInstance).collect())
    }

    /// Makes a compute instance; gives its handle.
    pub(super) fn make_compute_instance(
        &self,
        instance: GpuInstance,
        profile: u32,
    ) -> Answer<ComputeInstance> {
        let mut handle = std::ptr::null_mut();
        let out = &raw mut handle;
        call!(
            self,
            nvmlGpuInstanceCreateComputeInstance(instance.0, profile, out)
        )?;
        Ok(ComputeInstance(handle))
    }

    /// Id of a compute instance.
    pub(super) fn id_of_compute(&self, instance: ComputeInstance) -> Answer<u32> {
        let mut info: nvml::nvmlComputeInstanceInfo_t = zeroed();
        call!(
            self,
            nvmlComputeInstanceGetInfo_v2(instance.0, &raw mut info)
        )?;
        Ok(info.id)
    }

    /// Destroys a compute instance.
    pub(super) fn destroy_compute_instance(&self, instance: ComputeInstance) -> Answer<()> {
        call!(self, nvmlComputeInstanceDestroy(instance.0))
    }

    /// A MIG device of a GPU by its index.
    pub(super) fn mig_device(&self, device: Device, index: u32) -> Answer<Device> {
        let mut handle = std::ptr::null_mut();
        call!(
            self,
            nvmlDeviceGetMigDeviceHandleByIndex(device.0, index, &raw mut handle)
        )?;
        Ok(Device(handle))
    }
}

/// Whether NVML says that there is no such thing.
pub(super) fn is_not_found(error: &Error) -> bool {
    let code = nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
    matches!(error, Error::Other { code: given, .. } if *given == code)
}

/// Whether NVML does not accept an argument.
pub(super) fn is_invalid(error: &Error) -> bool {
    let code = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
    matches!(error, Error::Other { code: given, .. } if *given == code)
}
