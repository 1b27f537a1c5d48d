//! What a GPU is: name, architecture, numbers, versions, modes that never change.

use std::ffi::{c_int, c_uint};

use nvml::{nvmlDevice_t, nvmlPciInfo_t, nvmlPciInfoExt_v1_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{Part, View, answer};
use super::text::chars;
use super::{Chars, Out, Versioned, bus_id, gpu, nvml, part};
use crate::latency::Cost::{Cached, Driver};
use crate::mig::ComputeProfile;
use crate::state::{mig_uuid_text, uuid_text};

/// What a MIG device is called: `NVIDIA … MIG 1c.3g.40gb`, without `1c.` where it has all of it.
fn name(part: &Part<'_>) -> Option<String> {
    let board = part.whole.board;
    let Some((instance, compute)) = part.mig else {
        return Some(board.name.to_string());
    };
    let mig = board.mig?;
    let profile = mig.by_id(instance.profile)?;
    let profiles = ComputeProfile::of(mig, profile);
    let own = profiles.iter().find(|p| p.index == compute.profile)?;
    let share = match own.slices == profile.slices[0] {
        true => String::new(),
        false => format!("{}c.", own.slices),
    };
    Some(format!("{} MIG {share}{}", board.name, profile.name))
}

fn pci_info(view: &View<'_>) -> nvmlPciInfo_t {
    let [device, subsystem] = view.board.pci_ids;
    nvmlPciInfo_t {
        busIdLegacy: chars(&bus_id(view.kind, view.index, 4)),
        domain: 0,
        bus: view.kind.buses[view.index].into(),
        device: 0,
        pciDeviceId: device,
        pciSubSystemId: subsystem,
        busId: chars(&bus_id(view.kind, view.index, 8)),
    }
}

fn text(
    device: nvmlDevice_t,
    out: &Chars,
    room: c_uint,
    look: fn(&View<'_>) -> String,
) -> Answer<()> {
    out.set(room, &gpu(device, Driver, |view| Ok(look(&view)))?)
}

nvml! {
    fn nvmlDeviceGetName(device: nvmlDevice_t, out: Chars, room: c_uint) {
        let name = part(device, Cached, |part| name(&part).ok_or(code::UNKNOWN))?;
        out.set(room, &name)
    }
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, out: Chars, room: c_uint) {
        let uuid = part(device, Cached, |part| Ok(match part.mig {
            None => uuid_text(&part.whole.gpu.uuid),
            Some((_, compute)) => mig_uuid_text(part.whole.node.seed, compute.serial),
        }))?;
        out.set(room, &uuid)
    }
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<c_uint>) {
        let number = part(device, Cached, |part| Ok(match part.mig {
            None => part.whole.index,
            Some((_, compute)) => {
                let devices = part.whole.gpu.mig_devices();
                let own = devices.iter().position(|(_, c)| c.serial == compute.serial);
                own.ok_or(code::UNKNOWN)?
            }
        }))?;
        index.set(number as c_uint)
    }
    fn nvmlDeviceGetBrand(device: nvmlDevice_t, brand: Out<c_uint>) {
        answer(device, &brand, Cached, |view| Ok(match view.board.architecture {
            nvml::NVML_DEVICE_ARCH_VOLTA => nvml::nvmlBrandType_enum_NVML_BRAND_TESLA,
            _ => nvml::nvmlBrandType_enum_NVML_BRAND_NVIDIA,
        }))
    }
    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, architecture: Out<c_uint>) {
        let found = part(device, Cached, |part| Ok(part.whole.board.architecture))?;
        architecture.set(found)
    }
    fn nvmlDeviceGetCudaComputeCapability(
        device: nvmlDevice_t,
        major: Out<c_int>,
        minor: Out<c_int>,
    ) {
        let [first, second] = part(device, Cached, |part| Ok(part.whole.board.capability))?;
        major.set(first)?;
        minor.set(second)
    }
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: Out<c_uint>) {
        let index = part(device, Cached, |part| Ok(part.whole.index))?;
        minor.set(index as c_uint)
    }
    fn nvmlDeviceGetSerial(device: nvmlDevice_t, out: Chars, room: c_uint) {
        text(device, &out, room, |view| view.gpu.serial.to_string())
    }
    fn nvmlDeviceGetModuleId(device: nvmlDevice_t, id: Out<c_uint>) {
        answer(device, &id, Cached, |view| Ok(view.index as c_uint + 1))
    }
    fn nvmlDeviceGetBoardId(device: nvmlDevice_t, id: Out<c_uint>) {
        // The PCI address of the board, as drivers give it for boards with one GPU.
        answer(device, &id, Cached, |view| Ok(c_uint::from(view.kind.buses[view.index]) << 8))
    }
    fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, several: Out<c_uint>) {
        answer(device, &several, Cached, |_| Ok(0))
    }
    fn nvmlDeviceOnSameBoard(first: nvmlDevice_t, second: nvmlDevice_t, same: Out<c_int>) {
        let other = gpu(second, Cached, |view| Ok(view.index))?;
        answer(first, &same, Cached, |view| Ok(c_int::from(view.index == other)))
    }
    fn nvmlDeviceGetBoardPartNumber(device: nvmlDevice_t, out: Chars, room: c_uint) {
        text(device, &out, room, |view| view.board.parts[0].to_string())
    }
    fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, out: Chars, room: c_uint) {
        text(device, &out, room, |view| view.board.vbios.to_string())
    }
    fn nvmlDeviceGetInforomImageVersion(device: nvmlDevice_t, out: Chars, room: c_uint) {
        text(device, &out, room, |view| view.board.inforom.to_string())
    }
    fn nvmlDeviceGetInforomVersion(
        device: nvmlDevice_t,
        object: c_uint,
        out: Chars,
        room: c_uint,
    ) {
        gpu(device, Driver, |_| Ok(()))?;
        match object {
            nvml::nvmlInforomObject_enum_NVML_INFOROM_OEM => out.set(room, "2.1"),
            nvml::nvmlInforomObject_enum_NVML_INFOROM_ECC => out.set(room, "7.16"),
            nvml::nvmlInforomObject_enum_NVML_INFOROM_POWER => Err(code::UNSUPPORTED),
            _ => Err(code::INVALID),
        }
    }
    fn nvmlDeviceValidateInforom(device: nvmlDevice_t) { gpu(device, Driver, |_| Ok(())) }
    fn nvmlDeviceGetGspFirmwareVersion(device: nvmlDevice_t, out: Chars) {
        gpu(device, Driver, |_| Ok(()))?;
        out.set(nvml::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, "580.95.05")
    }
    fn nvmlDeviceGetGspFirmwareMode(
        device: nvmlDevice_t,
        enabled: Out<c_uint>,
        default: Out<c_uint>,
    ) {
        gpu(device, Driver, |_| Ok(()))?;
        enabled.set(1)?;
        default.set(1)
    }
    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, info: Out<nvmlPciInfo_t>) {
        info.set(part(device, Cached, |part| Ok(pci_info(&part.whole)))?)
    }
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, info: Out<nvmlPciInfo_t>) {
        info.set(part(device, Cached, |part| Ok(pci_info(&part.whole)))?)
    }
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, info: Out<nvmlPciInfo_t>) {
        info.set(part(device, Cached, |part| Ok(pci_info(&part.whole)))?)
    }
    fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, info: Versioned<nvmlPciInfoExt_v1_t>) {
        info.check(1)?;
        let plain = gpu(device, Cached, |view| Ok(pci_info(&view)))?;
        info.set(nvmlPciInfoExt_v1_t {
            version: 0,
            domain: plain.domain,
            bus: plain.bus,
            device: plain.device,
            pciDeviceId: plain.pciDeviceId,
            pciSubSystemId: plain.pciSubSystemId,
            // A 3D controller.
            baseClass: 3,
            subClass: 2,
            busId: plain.busId,
        })
    }
    fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, cores: Out<c_uint>) {
        answer(device, &cores, Driver, |view| Ok(view.board.cores.iter().product()))
    }
    fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, bits: Out<c_uint>) {
        answer(device, &bits, Driver, |view| Ok(view.board.bus_bits))
    }
    fn nvmlDeviceGetBusType(device: nvmlDevice_t, kind: Out<c_uint>) {
        answer(device, &kind, Cached, |_| Ok(nvml::NVML_BUS_TYPE_PCIE))
    }
    fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, enabled: Out<c_uint>) {
        answer(device, &enabled, Cached, |_| Ok(0))
    }
    fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, active: Out<c_uint>) {
        answer(device, &active, Cached, |_| Ok(0))
    }
    fn nvmlDeviceGetVirtualizationMode(device: nvmlDevice_t, mode: Out<c_uint>) {
        answer(device, &mode, Cached, |_| Ok(0))
    }
    fn nvmlDeviceGetIrqNum(device: nvmlDevice_t, number: Out<c_uint>) {
        answer(device, &number, Driver, |view| Ok(64 + view.index as c_uint))
    }
}
