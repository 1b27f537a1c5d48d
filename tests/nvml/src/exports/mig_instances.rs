//! MIG instances: making, destroying, finding them, and the devices that they are.

use std::ffi::c_uint;

use nvml::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_st, nvmlComputeInstancePlacement_st,
    nvmlDevice_t, nvmlDeviceAttributes_st, nvmlGpuInstance_t, nvmlGpuInstanceInfo_st,
    nvmlGpuInstancePlacement_st, nvmlReturn_t,
};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::handle::{compute_instance, compute_instance_handle, gpu_instance, gpu_instance_handle};
use super::mig_profiles::{compute_profile, mig};
use super::session::{View, instance, shared, update};
use super::{Block, Out, Target, change, device_handle, gpu, nvml, part, root_only};
use crate::hold::Call;
use crate::latency::Cost::{Cached, Create, Destroy, Driver};
use crate::mig::Refusal;
use crate::state::{ComputeInstance, Event, GpuInstance, NO_INSTANCE, Node, is_root};

fn refused(refusal: Refusal) -> nvmlReturn_t {
    match refusal {
        Refusal::NotSupported => code::UNSUPPORTED,
        Refusal::Invalid => code::INVALID,
        Refusal::NoRoom => code::NO_ROOM,
        Refusal::InUse => code::IN_USE,
    }
}

/// Tells who waits for changes of MIG instances.
fn changed(node: &mut Node, gpu: usize) {
    node.post(Event {
        gpu: gpu as u32,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
        kind: nvml::nvmlEventMigConfigChange.into(),
        ..Event::default()
    });
}

fn create(
    device: nvmlDevice_t,
    profile: c_uint,
    start: Option<u32>,
    out: &Out<nvmlGpuInstance_t>,
) -> Answer<()> {
    root_only(device)?;
    if out.is_null() {
        return Err(code::INVALID);
    }
    let make = |node: &mut Node, index: usize| {
        let mig = node.model().board().mig.ok_or(code::UNSUPPORTED)?;
        let serial = node.next_serial();
        let gpu = &mut node.gpus_mut()[index];
        gpu.create_instance(mig, profile, start, serial)
            .map_err(refused)?;
        changed(node, index);
        Ok(gpu_instance_handle(index, serial))
    };
    let handle = shared()?.held(Call::MakeGpu, || change(device, Create, make))?;
    out.set(handle)
}

fn create_compute(
    handle: nvmlGpuInstance_t,
    profile: c_uint,
    start: Option<u32>,
    out: &Out<nvmlComputeInstance_t>,
) -> Answer<()> {
    let shared = shared()?;
    let (index, inside) = gpu_instance(handle)?;
    if !is_root() {
        return Err(code::NO_PERMISSION);
    }
    if out.is_null() {
        return Err(code::INVALID);
    }
    let make = |node: &mut Node, index: usize| {
        let mig = node.model().board().mig.ok_or(code::UNSUPPORTED)?;
        let serial = node.next_serial();
        let gpu = &mut node.gpus_mut()[index];
        gpu.create_compute(mig, inside, profile, start, serial)
            .map_err(refused)?;
        changed(node, index);
        Ok(compute_instance_handle(index, serial))
    };
    let made = shared.held(Call::MakeCompute, || update(&shared, index, Create, make))?;
    out.set(made)
}

/// Destroys what the handle means, with the function that does it.
fn destroy(
    call: Call,
    found: Answer<(usize, u64)>,
    away: impl FnOnce(&mut crate::state::Gpu, u64) -> Result<(), Refusal>,
) -> Answer<()> {
    let shared = shared()?;
    let (index, serial) = found?;
    if !is_root() {
        return Err(code::NO_PERMISSION);
    }
    let away = |node: &mut Node, index: usize| {
        away(&mut node.gpus_mut()[index], serial).map_err(refused)?;
        changed(node, index);
        Ok(())
    };
    shared.held(call, || update(&shared, index, Destroy, away))
}

/// GPU and compute instance of a handle.
fn compute<R>(
    handle: nvmlComputeInstance_t,
    look: impl FnOnce(&Node, usize, (&GpuInstance, &ComputeInstance)) -> Answer<R>,
) -> Answer<R> {
    let (index, serial) = compute_instance(handle)?;
    super::node(Driver, |node| {
        let gpu = node.gpus().get(index).ok_or(code::INVALID)?;
        look(node, index, gpu.mig_device(serial).ok_or(code::NOT_FOUND)?)
    })
}

fn compute_info(handle: nvmlComputeInstance_t) -> Answer<nvmlComputeInstanceInfo_st> {
    compute(handle, |node, index, (inside, own)| {
        let profile = node
            .model()
            .board()
            .mig
            .and_then(|mig| mig.by_id(inside.profile));
        let profiles = node.model().board().mig.zip(profile);
        let profiles = profiles.map(|(mig, of)| crate::mig::ComputeProfile::of(mig, of));
        let profiles = profiles.ok_or(code::UNKNOWN)?;
        let of = profiles
            .iter()
            .find(|p| p.index == own.profile)
            .ok_or(code::UNKNOWN)?;
        Ok(nvmlComputeInstanceInfo_st {
            device: device_handle(Target::Gpu(index)),
            gpuInstance: gpu_instance_handle(index, inside.serial),
            id: own.id,
            profileId: of.id,
            placement: nvmlComputeInstancePlacement_st {
                start: own.start,
                size: of.slices,
            },
        })
    })
}

fn attributes(device: nvmlDevice_t) -> Answer<nvmlDeviceAttributes_st> {
    part(device, Driver, |part| {
        let Some((inside, own)) = part.mig else {
            // The attributes are those of MIG devices.
            return Err(code::UNSUPPORTED);
        };
        let (own, of) = compute_profile(&part.whole, inside, |p| p.index == own.profile)?;
        let [copy, decoders, encoders, jpeg, ofa] = of.engines;
        Ok(nvmlDeviceAttributes_st {
            multiprocessorCount: own.cores,
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decoders,
            sharedEncoderCount: encoders,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            gpuInstanceSliceCount: of.slices[0],
            computeInstanceSliceCount: own.slices,
            memorySizeMB: of.memory_mib,
        })
    })
}

/// A number of the two instances of a MIG device.
fn instance_id(
    device: nvmlDevice_t,
    out: &Out<c_uint>,
    pick: fn(&GpuInstance, &ComputeInstance) -> u32,
) -> Answer<()> {
    let id = part(device, Cached, |part| match part.mig {
        Some((inside, own)) => Ok(pick(inside, own)),
        None => Err(code::INVALID),
    })?;
    out.set(id)
}

fn on(view: &View<'_>) -> Answer<()> {
    mig(view)?;
    match view.gpu.mig_on() {
        true => Ok(()),
        false => Err(code::UNSUPPORTED),
    }
}

nvml! {
    fn nvmlDeviceCreateGpuInstance(
        device: nvmlDevice_t,
        profile: c_uint,
        out: Out<nvmlGpuInstance_t>,
    ) {
        create(device, profile, None, &out)
    }
    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: nvmlDevice_t,
        profile: c_uint,
        placement: Out<nvmlGpuInstancePlacement_st>,
        out: Out<nvmlGpuInstance_t>,
    ) {
        create(device, profile, Some(placement.get()?.start), &out)
    }
    fn nvmlGpuInstanceDestroy(handle: nvmlGpuInstance_t) {
        destroy(Call::DestroyGpu, gpu_instance(handle), |gpu, serial| {
            let id = gpu.instance(serial).map(|instance| instance.id);
            let used = gpu.processes().any(|process| Some(process.gpu_instance) == id);
            match used {
                true => Err(Refusal::InUse),
                false => gpu.destroy_instance(serial),
            }
        })
    }
    fn nvmlDeviceGetGpuInstances(
        device: nvmlDevice_t,
        profile: c_uint,
        out: Block<nvmlGpuInstance_t>,
        count: Out<c_uint>,
    ) {
        let all = gpu(device, Driver, |view| {
            on(&view)?;
            mig(&view)?.by_id(profile).ok_or(code::INVALID)?;
            let own = view.gpu.gpu_instances().into_iter().filter(|i| i.profile == profile);
            Ok(own.map(|i| gpu_instance_handle(view.index, i.serial)).collect::<Vec<_>>())
        })?;
        // The caller's buffer holds as many as the profile allows.
        for (index, handle) in all.iter().enumerate() {
            out.put(index, *handle)?;
        }
        count.set(all.len() as c_uint)
    }
    fn nvmlDeviceGetGpuInstanceById(
        device: nvmlDevice_t,
        id: c_uint,
        out: Out<nvmlGpuInstance_t>,
    ) {
        let handle = gpu(device, Driver, |view| {
            on(&view)?;
            let found = view.gpu.gpu_instances().into_iter().find(|i| i.id == id);
            let found = found.ok_or(code::NOT_FOUND)?;
            Ok(gpu_instance_handle(view.index, found.serial))
        })?;
        out.set(handle)
    }
    fn nvmlGpuInstanceGetInfo(handle: nvmlGpuInstance_t, out: Out<nvmlGpuInstanceInfo_st>) {
        let info = instance(handle, Driver, |view, inside| Ok(nvmlGpuInstanceInfo_st {
            device: device_handle(Target::Gpu(view.index)),
            id: inside.id,
            profileId: inside.profile,
            placement: nvmlGpuInstancePlacement_st { start: inside.start, size: inside.size },
        }))?;
        out.set(info)
    }
    fn nvmlGpuInstanceCreateComputeInstance(
        handle: nvmlGpuInstance_t,
        profile: c_uint,
        out: Out<nvmlComputeInstance_t>,
    ) {
        create_compute(handle, profile, None, &out)
    }
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        handle: nvmlGpuInstance_t,
        profile: c_uint,
        placement: Out<nvmlComputeInstancePlacement_st>,
        out: Out<nvmlComputeInstance_t>,
    ) {
        create_compute(handle, profile, Some(placement.get()?.start), &out)
    }
    fn nvmlComputeInstanceDestroy(handle: nvmlComputeInstance_t) {
        destroy(Call::DestroyCompute, compute_instance(handle), |gpu, serial| gpu.destroy_compute(serial))
    }
    fn nvmlGpuInstanceGetComputeInstances(
        handle: nvmlGpuInstance_t,
        profile: c_uint,
        out: Block<nvmlComputeInstance_t>,
        count: Out<c_uint>,
    ) {
        let all = instance(handle, Driver, |view, inside| {
            let (own, _) = compute_profile(&view, inside, |p| p.id == profile)?;
            let made = inside.computes().into_iter().filter(|c| c.profile == own.index);
            Ok(made.map(|c| compute_instance_handle(view.index, c.serial)).collect::<Vec<_>>())
        })?;
        for (index, handle) in all.iter().enumerate() {
            out.put(index, *handle)?;
        }
        count.set(all.len() as c_uint)
    }
    fn nvmlGpuInstanceGetComputeInstanceById(
        handle: nvmlGpuInstance_t,
        id: c_uint,
        out: Out<nvmlComputeInstance_t>,
    ) {
        let found = instance(handle, Driver, |view, inside| {
            let own = inside.computes().into_iter().find(|c| c.id == id);
            let own = own.ok_or(code::NOT_FOUND)?;
            Ok(compute_instance_handle(view.index, own.serial))
        })?;
        out.set(found)
    }
    fn nvmlComputeInstanceGetInfo(
        handle: nvmlComputeInstance_t,
        out: Out<nvmlComputeInstanceInfo_st>,
    ) {
        out.set(compute_info(handle)?)
    }
    fn nvmlComputeInstanceGetInfo_v2(
        handle: nvmlComputeInstance_t,
        out: Out<nvmlComputeInstanceInfo_st>,
    ) {
        out.set(compute_info(handle)?)
    }
    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, out: Out<c_uint>) {
        out.set(part(device, Cached, |part| Ok(part.mig.is_some().into()))?)
    }
    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, out: Out<c_uint>) {
        instance_id(device, &out, |inside, _| inside.id)
    }
    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, out: Out<c_uint>) {
        instance_id(device, &out, |_, own| own.id)
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: nvmlDevice_t,
        index: c_uint,
        out: Out<nvmlDevice_t>,
    ) {
        let handle = gpu(device, Driver, |view| {
            on(&view)?;
            let devices = view.gpu.mig_devices();
            let (_, own) = devices.get(index as usize).ok_or(code::NOT_FOUND)?;
            Ok(device_handle(Target::Mig(view.index, own.serial)))
        })?;
        out.set(handle)
    }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        device: nvmlDevice_t,
        out: Out<nvmlDevice_t>,
    ) {
        let parent = part(device, Cached, |part| match part.mig {
            Some(_) => Ok(device_handle(Target::Gpu(part.whole.index))),
            None => Err(code::INVALID),
        })?;
        out.set(parent)
    }
    fn nvmlDeviceGetAttributes(device: nvmlDevice_t, out: Out<nvmlDeviceAttributes_st>) {
        out.set(attributes(device)?)
    }
    fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, out: Out<nvmlDeviceAttributes_st>) {
        out.set(attributes(device)?)
    }
}
