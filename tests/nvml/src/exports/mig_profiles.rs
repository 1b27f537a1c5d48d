//! What MIG offers: profiles, placements, room.

use std::ffi::c_uint;

use nvml::{
    nvmlComputeInstancePlacement_st, nvmlComputeInstanceProfileInfo_st,
    nvmlComputeInstanceProfileInfo_v2_st, nvmlComputeInstanceProfileInfo_v3_st, nvmlDevice_t,
    nvmlGpuInstance_t, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_st,
    nvmlGpuInstanceProfileInfo_v2_st, nvmlGpuInstanceProfileInfo_v3_st,
};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::handle::gpu_instance;
use super::pointer::version_of;
use super::session::{View, answer, instance};
use super::text::chars;
use super::{Block, Out, Versioned, gpu, nvml};
use crate::latency::Cost::{Cached, Driver};
use crate::mig::ComputeProfile;
use crate::model::{Mig, Profile};
use crate::state::GpuInstance;

/// How the board can be divided.
pub(crate) fn mig(view: &View<'_>) -> Answer<&'static Mig> {
    view.board.mig.ok_or(code::UNSUPPORTED)
}

/// A profile by the index that queries use.
fn by_index(view: &View<'_>, index: c_uint) -> Answer<&'static Profile> {
    if index >= nvml::NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(code::INVALID);
    }
    mig(view)?.by_index(index).ok_or(code::UNSUPPORTED)
}

/// A profile by the id that users know.
fn by_id(view: &View<'_>, id: c_uint) -> Answer<&'static Profile> {
    mig(view)?.by_id(id).ok_or(code::INVALID)
}

fn plain(profile: &Profile) -> nvmlGpuInstanceProfileInfo_st {
    let [copy, decoders, encoders, jpeg, ofa] = profile.engines;
    nvmlGpuInstanceProfileInfo_st {
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.slices[0],
        instanceCount: profile.count,
        multiprocessorCount: profile.cores,
        copyEngineCount: copy,
        decoderCount: decoders,
        encoderCount: encoders,
        jpegCount: jpeg,
        ofaCount: ofa,
        memorySizeMB: profile.memory_mib,
    }
}

/// Answers in the version of the structure that the caller has: 2 or 3.
fn versioned(out: &Versioned<nvmlGpuInstanceProfileInfo_v2_st>, profile: &Profile) -> Answer<()> {
    let info = plain(profile);
    let name = chars(&format!("MIG {}", profile.name));
    let version = out.version()?;
    if version == version_of::<nvmlGpuInstanceProfileInfo_v2_st>(2) {
        return out.set(nvmlGpuInstanceProfileInfo_v2_st {
            version: 0,
            id: info.id,
            isP2pSupported: info.isP2pSupported,
            sliceCount: info.sliceCount,
            instanceCount: info.instanceCount,
            multiprocessorCount: info.multiprocessorCount,
            copyEngineCount: info.copyEngineCount,
            decoderCount: info.decoderCount,
            encoderCount: info.encoderCount,
            jpegCount: info.jpegCount,
            ofaCount: info.ofaCount,
            memorySizeMB: info.memorySizeMB,
            name,
        });
    }
    if version != version_of::<nvmlGpuInstanceProfileInfo_v3_st>(3) {
        return Err(code::VERSION);
    }
    out.cast().set(nvmlGpuInstanceProfileInfo_v3_st {
        version: 0,
        id: info.id,
        sliceCount: info.sliceCount,
        instanceCount: info.instanceCount,
        multiprocessorCount: info.multiprocessorCount,
        copyEngineCount: info.copyEngineCount,
        decoderCount: info.decoderCount,
        encoderCount: info.encoderCount,
        jpegCount: info.jpegCount,
        ofaCount: info.ofaCount,
        memorySizeMB: info.memorySizeMB,
        name,
        capabilities: 0,
    })
}

fn placements(device: nvmlDevice_t, id: c_uint) -> Answer<Vec<nvmlGpuInstancePlacement_st>> {
    gpu(device, Driver, |view| {
        let profile = by_id(&view, id)?;
        if !view.gpu.mig_on() {
            return Err(code::UNSUPPORTED);
        }
        let [_, size] = profile.slices;
        let starts = profile.starts.iter();
        Ok(starts
            .map(|&start| nvmlGpuInstancePlacement_st { start, size })
            .collect())
    })
}

/// The first version has no way to ask for the number alone.
fn list<T: Copy>(out: &Block<T>, count: &Out<c_uint>, all: &[T], ask: bool) -> Answer<()> {
    if !ask && out.is_null() {
        return Err(code::INVALID);
    }
    if ask {
        return out.list_or_count(count, all);
    }
    for (index, value) in all.iter().enumerate() {
        out.put(index, *value)?;
    }
    count.set(all.len() as c_uint)
}

/// A compute instance profile of a GPU instance.
pub(crate) fn compute_profile(
    view: &View<'_>,
    inside: &GpuInstance,
    pick: impl Fn(&ComputeProfile) -> bool,
) -> Answer<(ComputeProfile, &'static Profile)> {
    let mig = mig(view)?;
    let profile = mig.by_id(inside.profile).ok_or(code::UNKNOWN)?;
    let found = ComputeProfile::of(mig, profile).into_iter().find(pick);
    Ok((found.ok_or(code::UNSUPPORTED)?, profile))
}

fn compute_plain(own: &ComputeProfile, of: &Profile) -> nvmlComputeInstanceProfileInfo_st {
    let [copy, decoders, encoders, jpeg, ofa] = of.engines;
    nvmlComputeInstanceProfileInfo_st {
        id: own.id,
        sliceCount: own.slices,
        instanceCount: own.count,
        multiprocessorCount: own.cores,
        // Compute instances share the engines of their GPU instance.
        sharedCopyEngineCount: copy,
        sharedDecoderCount: decoders,
        sharedEncoderCount: encoders,
        sharedJpegCount: jpeg,
        sharedOfaCount: ofa,
    }
}

fn compute_info(
    handle: nvmlGpuInstance_t,
    index: c_uint,
    engines: c_uint,
) -> Answer<(nvmlComputeInstanceProfileInfo_st, String)> {
    if index >= nvml::NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        || engines != nvml::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    {
        return Err(code::INVALID);
    }
    instance(handle, Driver, |view, inside| {
        let (own, of) = compute_profile(&view, inside, |p| p.index == index)?;
        let share = match own.slices == of.slices[0] {
            true => String::new(),
            false => format!("{}c.", own.slices),
        };
        Ok((compute_plain(&own, of), format!("MIG {share}{}", of.name)))
    })
}

nvml! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: nvmlDevice_t,
        index: c_uint,
        out: Out<nvmlGpuInstanceProfileInfo_st>,
    ) {
        answer(device, &out, Driver, |view| Ok(plain(by_index(&view, index)?)))
    }
    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: nvmlDevice_t,
        index: c_uint,
        out: Versioned<nvmlGpuInstanceProfileInfo_v2_st>,
    ) {
        versioned(&out, gpu(device, Driver, |view| by_index(&view, index))?)
    }
    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: nvmlDevice_t,
        id: c_uint,
        out: Versioned<nvmlGpuInstanceProfileInfo_v2_st>,
    ) {
        versioned(&out, gpu(device, Driver, |view| by_id(&view, id))?)
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: nvmlDevice_t,
        id: c_uint,
        out: Block<nvmlGpuInstancePlacement_st>,
        count: Out<c_uint>,
    ) {
        list(&out, &count, &placements(device, id)?, false)
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: nvmlDevice_t,
        id: c_uint,
        out: Block<nvmlGpuInstancePlacement_st>,
        count: Out<c_uint>,
    ) {
        list(&out, &count, &placements(device, id)?, true)
    }
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: nvmlDevice_t,
        id: c_uint,
        out: Out<c_uint>,
    ) {
        answer(device, &out, Driver, |view| {
            let profile = by_id(&view, id)?;
            if !view.gpu.mig_on() {
                return Err(code::UNSUPPORTED);
            }
            let made = view.gpu.gpu_instances().into_iter();
            let made = made.filter(|instance| instance.profile == profile.id).count() as u32;
            let free = view.gpu.free_starts(profile).len() as u32;
            Ok(free.min(profile.count - made.min(profile.count)))
        })
    }
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Cached, |view| Ok(match view.board.mig {
            None => 0,
            Some(mig) => mig.profiles.iter().map(|p| p.count).max().unwrap_or(0),
        }))
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        handle: nvmlGpuInstance_t,
        index: c_uint,
        engines: c_uint,
        out: Out<nvmlComputeInstanceProfileInfo_st>,
    ) {
        out.set(compute_info(handle, index, engines)?.0)
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        handle: nvmlGpuInstance_t,
        index: c_uint,
        engines: c_uint,
        out: Versioned<nvmlComputeInstanceProfileInfo_v2_st>,
    ) {
        let version = out.version()?;
        let second = version == version_of::<nvmlComputeInstanceProfileInfo_v2_st>(2);
        if !second && version != version_of::<nvmlComputeInstanceProfileInfo_v3_st>(3) {
            return Err(code::VERSION);
        }
        let (info, name) = compute_info(handle, index, engines)?;
        // The two differ by what stands after the name.
        macro_rules! named {
            ($form:ident $(, $more:ident)?) => {
                $form {
                    version: 0,
                    id: info.id,
                    sliceCount: info.sliceCount,
                    instanceCount: info.instanceCount,
                    multiprocessorCount: info.multiprocessorCount,
                    sharedCopyEngineCount: info.sharedCopyEngineCount,
                    sharedDecoderCount: info.sharedDecoderCount,
                    sharedEncoderCount: info.sharedEncoderCount,
                    sharedJpegCount: info.sharedJpegCount,
                    sharedOfaCount: info.sharedOfaCount,
                    name: chars(&name),
                    $($more: 0)?
                }
            };
        }
        if second {
            return out.set(named!(nvmlComputeInstanceProfileInfo_v2_st));
        }
        out.cast().set(named!(nvmlComputeInstanceProfileInfo_v3_st, capabilities))
    }
    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        handle: nvmlGpuInstance_t,
        id: c_uint,
        out: Block<nvmlComputeInstancePlacement_st>,
        count: Out<c_uint>,
    ) {
        gpu_instance(handle)?;
        let all = instance(handle, Driver, |view, inside| {
            let (own, of) = compute_profile(&view, inside, |p| p.id == id)?;
            let starts = own.starts(of.slices[0]);
            let size = own.slices;
            Ok(starts
                .map(|start| nvmlComputeInstancePlacement_st { start, size })
                .collect::<Vec<_>>())
        })?;
        out.list_or_count(&count, &all)
    }
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        handle: nvmlGpuInstance_t,
        id: c_uint,
        out: Out<c_uint>,
    ) {
        let free = instance(handle, Driver, |view, inside| {
            let (own, of) = compute_profile(&view, inside, |p| p.id == id)?;
            let profiles = ComputeProfile::of(mig(&view)?, of);
            Ok(inside.free_compute_starts(&profiles, &own, of.slices[0]).len())
        })?;
        out.set(free as c_uint)
    }
}
