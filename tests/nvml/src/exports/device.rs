//! Finding GPUs: number, and handles by index, UUID, PCI address and serial number.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlUUID_v1_t};

use super::call::{Answer, code};
use super::{Name, Out, Target, Versioned, bus_id, device_handle, node, nvml};
use crate::latency::Cost;
use crate::state::{Node, mig_uuid_text, uuid_text};

/// The number of the GPU, if it answers.
fn found(node: &Node, index: Option<usize>) -> Answer<Target> {
    let index = index.ok_or(code::NOT_FOUND)?;
    match node.gpus()[index].lost {
        0 => Ok(Target::Gpu(index)),
        _ => Err(code::LOST),
    }
}

fn hand_out(device: &Out<nvmlDevice_t>, look: impl FnOnce(&Node) -> Answer<Target>) -> Answer<()> {
    let target = node(Cost::Driver, look)?;
    device.set(device_handle(target))
}

fn by_index(index: c_uint, device: &Out<nvmlDevice_t>) -> Answer<()> {
    let index = index as usize;
    hand_out(device, |node| {
        let exists = index < node.gpus().len();
        found(node, Some(index).filter(|_| exists)).map_err(|error| match error {
            code::NOT_FOUND => code::INVALID,
            other => other,
        })
    })
}

/// Short and long domains, upper and lower case are all accepted.
fn by_bus_id(id: &Name, device: &Out<nvmlDevice_t>) -> Answer<()> {
    let id = id.get()?.to_ascii_uppercase();
    let (domain, rest) = match id.matches(':').count() {
        2 => id.split_once(':').unwrap_or_default(),
        _ => ("0", id.as_str()),
    };
    let zero = u32::from_str_radix(domain, 16) == Ok(0);
    let rest = rest.split('.').next().unwrap_or_default();
    hand_out(device, |node| {
        let kind = node.model();
        let same = |&gpu: &usize| zero && bus_id(kind, gpu, 4)[5..].starts_with(rest);
        let index = (0..node.gpus().len())
            .find(same)
            .filter(|_| rest.len() == 5);
        found(node, index)
    })
}

fn by_uuid(uuid: &str, device: &Out<nvmlDevice_t>) -> Answer<()> {
    hand_out(device, |node| {
        for (index, gpu) in node.gpus().iter().enumerate() {
            let part = gpu.mig_devices().into_iter();
            let mut part = part.map(|(_, compute)| compute.serial);
            if let Some(serial) = part.find(|&s| mig_uuid_text(node.seed, s) == uuid) {
                return found(node, Some(index)).map(|_| Target::Mig(index, serial));
            }
        }
        let same = |gpu: &crate::state::Gpu| uuid_text(&gpu.uuid) == uuid;
        found(node, node.gpus().iter().position(same))
    })
}

nvml! {
    fn nvmlDeviceGetCount(count: Out<c_uint>) { count_gpus(&count) }
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) { count_gpus(&count) }
    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<nvmlDevice_t>) {
        by_index(index, &device)
    }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>) {
        by_index(index, &device)
    }
    fn nvmlDeviceGetHandleByPciBusId(id: Name, device: Out<nvmlDevice_t>) {
        by_bus_id(&id, &device)
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(id: Name, device: Out<nvmlDevice_t>) {
        by_bus_id(&id, &device)
    }
    fn nvmlDeviceGetHandleByUUID(uuid: Name, device: Out<nvmlDevice_t>) {
        by_uuid(&uuid.get()?, &device)
    }
    fn nvmlDeviceGetHandleByUUIDV(uuid: Versioned<nvmlUUID_v1_t>, device: Out<nvmlDevice_t>) {
        uuid.check(1)?;
        let text = super::text::uuid_argument(&uuid.get()?).ok_or(code::INVALID)?;
        by_uuid(&text, &device)
    }
    fn nvmlDeviceGetHandleBySerial(serial: Name, device: Out<nvmlDevice_t>) {
        let serial = serial.get()?;
        hand_out(&device, |node| {
            let same = |gpu: &crate::state::Gpu| gpu.serial.to_string() == serial;
            found(node, node.gpus().iter().position(same))
        })
    }
    fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) { count.set(0) }
}

fn count_gpus(count: &Out<c_uint>) -> Answer<()> {
    let number = node(Cost::Cached, |node| Ok(node.gpus().len()))?;
    count.set(number as c_uint)
}
