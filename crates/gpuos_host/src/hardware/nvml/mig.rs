//! MIG through the driver's library: what a GPU can be divided into, what is on it, making and
//! destroying.

use std::collections::BTreeSet;

use gpuos_core::mig::Shown;
use gpuos_model::mig::profile::bare;
use gpuos_model::mig::{MigPlacement, Profile};
use nvml_wrapper_sys::bindings as nvml;

use super::driver::{instance as some, optional};
use super::raw::{Device, Raw};
use super::raw_mig::{GpuInstance, ProfileInfo, is_invalid, is_not_found};
use super::{Answer, Error};

/// Indexes of profiles that are asked for: drivers to come may know more than NVML's header does here.
const MOST_INDEXES: u32 = 32;

/// The profiles that the board has, in the order of NVML's indexes.
fn infos(raw: &Raw, device: Device) -> Answer<Vec<ProfileInfo>> {
    let mut found = Vec::new();
    for index in 0..MOST_INDEXES {
        match raw.mig_profile(device, index) {
            Ok(info) => found.push(info),
            Err(Error::NotSupported) => {}
            // An index that this driver does not know, and none after it.
            Err(error) if is_invalid(&error) => {
                if index >= nvml::NVML_GPU_INSTANCE_PROFILE_COUNT {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// [`super::GpuLibrary::mig_profiles`].
pub(super) fn profiles(raw: &Raw, device: Device) -> Answer<Vec<Profile>> {
    on(raw, device)?;
    let mut profiles = Vec::new();
    for info in infos(raw, device)? {
        let places = optional(raw.mig_placements(device, info.id))?.unwrap_or_default();
        // A profile without a placement cannot be made.
        let Some(&(_, size)) = places.first() else {
            continue;
        };
        let mut starts: Vec<u8> = places.iter().map(|place| byte(place.0)).collect();
        starts.sort_unstable();
        starts.dedup();
        profiles.push(Profile {
            id: info.id,
            name: bare(&info.name).into(),
            compute: byte(info.slices),
            memory_mib: info.memory_mib,
            most: byte(info.most),
            size: byte(size),
            starts,
            engines: info.engines.map(byte),
        });
    }
    // NVML's indexes follow the history of its header.
    profiles.sort_by_key(|p| (p.size, p.compute, p.suffix().len(), p.id));
    Ok(profiles)
}

/// What does not fit is no number that a check of the geometry lets pass.
fn byte(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// [`Error::NotSupported`] unless MIG mode is on.
pub(super) fn on(raw: &Raw, device: Device) -> Answer<()> {
    let [now, _] = raw.mig_mode(device)?;
    now.then_some(()).ok_or(Error::NotSupported)
}

/// [`super::GpuLibrary::set_mig_mode`].
pub(super) fn set_mode(raw: &Raw, device: Device, on: bool) -> Answer<()> {
    if raw.mig_mode(device)? == [on, on] {
        return Ok(());
    }
    let told = raw.set_mig_mode(device, on);
    let [now, later] = raw.mig_mode(device)?;
    if later != now {
        // What waits for a reset would come with the next one, whoever has the GPU then.
        let _ = raw.set_mig_mode(device, now);
    }
    match told {
        Ok(()) if now == on => Ok(()),
        Ok(()) | Err(Error::ResetRequired) => Err(wants_reset()),
        Err(error) => Err(error),
    }
}

/// What a GPU answers that changes its MIG mode by a reset only.
pub(super) fn wants_reset() -> Error {
    Error::Refused(
        "this GPU changes its MIG mode with a reset only: take it out of `switchable` of its [[mig.pool]] in gpuos.toml".into(),
    )
}

/// GPU instance, compute instance and UUID of each MIG device.
fn devices(raw: &Raw, device: Device) -> Answer<Vec<(u32, u32, String)>> {
    let mut found = Vec::new();
    for index in 0..raw.max_mig_devices(device)? {
        let each = raw.mig_device(device, index).and_then(|device| {
            let gi = raw.gpu_instance_id(device)?;
            Ok((gi, raw.compute_instance_id(device)?, raw.uuid(device)?))
        });
        match each {
            Ok(each) => found.push(each),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

/// Ids of the GPU instances that have a compute instance, ascending.
pub(super) fn instances_in_use(raw: &Raw, device: Device) -> Answer<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for index in 0..raw.max_mig_devices(device)? {
        match raw
            .mig_device(device, index)
            .and_then(|own| raw.gpu_instance_id(own))
        {
            Ok(gi) => _ = found.insert(gi),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// [`super::GpuLibrary::mig_instances`].
pub(super) fn instances(raw: &Raw, device: Device) -> Answer<Vec<Shown>> {
    match on(raw, device) {
        Err(Error::NotSupported) => return Ok(Vec::new()),
        other => other?,
    }
    let devices = devices(raw, device)?;
    let processes = raw.processes(device, false)?;
    let mut used: Vec<u32> = processes
        .iter()
        .filter_map(|p| some(p.gpuInstanceId))
        .collect();
    if let Some(clients) = optional(raw.processes(device, true))? {
        used.extend(clients.iter().filter_map(|p| some(p.gpuInstanceId)));
    }
    let mut shown = Vec::new();
    for profile in infos(raw, device)? {
        for instance in raw.gpu_instances(device, profile.id)? {
            let (gi, (start, size)) = match raw.gpu_instance_info(instance) {
                Ok(info) => info,
                // Destroyed since.
                Err(error) if is_not_found(&error) => continue,
                Err(error) => return Err(error),
            };
            let own = devices.iter().filter(|device| device.0 == gi);
            shown.push(Shown {
                gi,
                profile: profile.id,
                placement: MigPlacement {
                    start: byte(start),
                    size: byte(size),
                },
                computes: own.map(|(_, ci, uuid)| (*ci, uuid.clone())).collect(),
                busy: used.contains(&gi),
            });
        }
    }
    shown.sort_by_key(|instance| instance.gi);
    Ok(shown)
}

/// [`super::GpuLibrary::mig_memory`].
pub(super) fn memory(raw: &Raw, device: Device) -> Answer<Vec<(String, Answer<[u64; 2]>)>> {
    match on(raw, device) {
        Err(Error::NotSupported) => return Ok(Vec::new()),
        other => other?,
    }
    let mut found = Vec::new();
    for index in 0..raw.max_mig_devices(device)? {
        let each = raw
            .mig_device(device, index)
            .and_then(|own| Ok((raw.uuid(own)?, raw.memory(own))));
        match each {
            // Destroyed since.
            Ok((_, Err(error))) if is_not_found(&error) => {}
            Ok((uuid, memory)) => {
                found.push((uuid, memory.map(|bytes| bytes.map(|bytes| bytes >> 20))));
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// [`super::GpuLibrary::mig_make_gpu`].
pub(super) fn make_gpu(
    raw: &Raw,
    device: Device,
    profile: u32,
    placement: MigPlacement,
) -> Answer<u32> {
    let place = (u32::from(placement.start), u32::from(placement.size));
    let made = raw.make_gpu_instance(device, profile, place);
    let made = made.map_err(|error| match is_invalid(&error) {
        true => no_such_placement(profile, placement),
        false => error,
    })?;
    let told = raw.gpu_instance_info(made).and_then(|(gi, at)| {
        // A driver may look at the start alone.
        let exact = at == place;
        exact
            .then_some(gi)
            .ok_or_else(|| no_such_placement(profile, placement))
    });
    if told.is_err() {
        // Nobody would know of it.
        let _ = raw.destroy_gpu_instance(made);
    }
    told
}

/// What a GPU answers to a profile or placement that it does not have.
pub(super) fn no_such_placement(profile: u32, placement: MigPlacement) -> Error {
    let MigPlacement { start, size } = placement;
    Error::Refused(format!(
        "MIG profile {profile} at memory slice {start} ({size} slices): this GPU has no such profile or \
         placement; compare the board in gpuos.toml with gpuos discover"
    ))
}

/// What a GPU answers to the id of a GPU instance that is not there.
pub(super) fn no_such_instance(gi: u32) -> Error {
    Error::Refused(format!("this GPU has no GPU instance {gi} (any more)"))
}

/// A GPU instance, or `None` when there is none with this id.
fn find(raw: &Raw, device: Device, gi: u32) -> Answer<Option<GpuInstance>> {
    match raw.gpu_instance(device, gi) {
        Ok(instance) => Ok(Some(instance)),
        Err(error) if is_not_found(&error) || is_invalid(&error) => Ok(None),
        // MIG mode is off: its instances went with it.
        Err(Error::NotSupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The compute instance profiles of a GPU instance: compute slices, multiprocessors, id.
fn compute_profiles(raw: &Raw, instance: GpuInstance) -> Answer<Vec<(u32, u32, u32)>> {
    let mut found = Vec::new();
    for index in 0..MOST_INDEXES {
        match raw.compute_profile(instance, index) {
            Ok((id, slices, cores)) => found.push((slices, cores, id)),
            Err(Error::NotSupported) => {}
            Err(error) if is_invalid(&error) => {
                if index >= nvml::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// [`super::GpuLibrary::mig_make_compute`].
pub(super) fn make_compute(raw: &Raw, device: Device, gi: u32) -> Answer<(u32, String)> {
    let instance = find(raw, device, gi)?.ok_or_else(|| no_such_instance(gi))?;
    let largest = compute_profiles(raw, instance)?.into_iter().max();
    let (_, _, profile) = largest.ok_or(Error::NotSupported)?;
    let made = raw.make_compute_instance(instance, profile)?;
    let told = raw.id_of_compute(made).and_then(|ci| {
        let mut all = devices(raw, device)?.into_iter();
        let own = all.find(|(of, own, _)| (*of, *own) == (gi, ci));
        let lost = || {
            Error::Refused(format!(
                "compute instance {ci} of GPU instance {gi} is no MIG device"
            ))
        };
        Ok((ci, own.ok_or_else(lost)?.2))
    });
    if told.is_err() {
        let _ = raw.destroy_compute_instance(made);
    }
    told
}

/// [`super::GpuLibrary::mig_destroy_compute`].
pub(super) fn destroy_compute(raw: &Raw, device: Device, gi: u32) -> Answer<()> {
    let Some(instance) = find(raw, device, gi)? else {
        return Ok(());
    };
    for (_, _, profile) in compute_profiles(raw, instance)? {
        for compute in raw.compute_instances(instance, profile)? {
            gone(raw.destroy_compute_instance(compute))?;
        }
    }
    Ok(())
}

/// [`super::GpuLibrary::mig_destroy_gpu`].
pub(super) fn destroy_gpu(raw: &Raw, device: Device, gi: u32) -> Answer<()> {
    match find(raw, device, gi)? {
        Some(instance) => gone(raw.destroy_gpu_instance(instance)),
        None => Ok(()),
    }
}

/// What is not there needs no destroying.
fn gone(answer: Answer<()>) -> Answer<()> {
    match answer {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other,
    }
}
