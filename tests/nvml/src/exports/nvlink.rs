//! NVLinks of a GPU: state, version, the other end, errors.

use std::ffi::{c_uint, c_ulonglong};

use nvml::{nvmlDevice_t, nvmlPciInfo_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer, set};
use super::text::chars;
use super::{Out, bus_id, nvml};
use crate::latency::Cost::{Driver, Firmware};
use crate::model::Kind;
use crate::state::Link;

/// NVSwitches of a node, where there are any: six on A100's board, four on Hopper's, two on
/// Blackwell's.
fn switches(kind: &Kind) -> usize {
    match kind.board().architecture {
        nvml::NVML_DEVICE_ARCH_AMPERE => 6,
        nvml::NVML_DEVICE_ARCH_HOPPER => 4,
        _ => 2,
    }
}

/// The links of a GPU; an error for boards without.
pub(crate) fn links<'a>(view: &View<'a>) -> Answer<&'a [Link]> {
    match view.kind.links() {
        0 => Err(code::UNSUPPORTED),
        count => Ok(&view.gpu.links[..count]),
    }
}

/// One of them.
pub(crate) fn link<'a>(view: &View<'a>, number: c_uint) -> Answer<&'a Link> {
    links(view)?.get(number as usize).ok_or(code::INVALID)
}

/// Whether the link carries data. A link in a pair needs both ends.
pub(crate) fn is_up(view: &View<'_>, number: c_uint) -> Answer<bool> {
    let own = link(view, number)?;
    let peer = view
        .kind
        .paired_with(view.index)
        .and_then(|peer| view.node.gpus().get(peer));
    let far = peer.is_none_or(|gpu| gpu.links[number as usize].down == 0 && gpu.lost == 0);
    Ok(own.down == 0 && far)
}

/// The number of the other end's link.
pub(crate) fn remote_number(view: &View<'_>, number: c_uint) -> Answer<c_uint> {
    link(view, number)?;
    Ok(match view.kind.paired_with(view.index) {
        Some(_) => number,
        None => number + view.index as c_uint * view.kind.links() as c_uint % 64,
    })
}

fn remote(view: &View<'_>, number: c_uint) -> Answer<nvmlPciInfo_t> {
    link(view, number)?;
    if let Some(peer) = view.kind.paired_with(view.index) {
        let [device, subsystem] = view.board.pci_ids;
        return Ok(pci(
            &bus_id(view.kind, peer, 8),
            view.kind.buses[peer],
            [device, subsystem],
        ));
    }
    let bus = 0xC4 + (number as usize % switches(view.kind)) as u8;
    Ok(pci(
        &format!("00000000:{bus:02X}:00.0"),
        bus,
        [0x22A3_10DE, 0],
    ))
}

fn pci(id: &str, bus: u8, [device, subsystem]: [u32; 2]) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        // The old form has a domain of four digits.
        busIdLegacy: chars(&id[4..]),
        domain: 0,
        bus: bus.into(),
        device: 0,
        pciDeviceId: device,
        pciSubSystemId: subsystem,
        busId: chars(id),
    }
}

/// The counters that boards before Blackwell have.
pub(crate) fn counter(link: &Link, counter: c_uint) -> Answer<u64> {
    match counter {
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY => Ok(link.replay),
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY => Ok(link.recovery),
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT => Ok(link.crc_flit),
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA => Ok(link.crc_data),
        nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_ECC_DATA => Ok(link.ecc_data),
        _ => Err(code::INVALID),
    }
}

/// Whether the board counts errors as NVLink 5 does: by field values only.
pub(crate) fn counts_by_field(view: &View<'_>) -> bool {
    view.board.nvlink[0] >= nvml::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0
}

nvml! {
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, number: c_uint, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(is_up(&view, number)?.into()))
    }
    fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, number: c_uint, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| {
            link(&view, number)?;
            Ok(view.board.nvlink[0])
        })
    }
    fn nvmlDeviceGetNvLinkCapability(
        device: nvmlDevice_t,
        number: c_uint,
        capability: c_uint,
        out: Out<c_uint>,
    ) {
        answer(device, &out, Driver, |view| {
            link(&view, number)?;
            match capability {
                nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED
                | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ACCESS
                | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS
                | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SYSMEM_ATOMICS
                | nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID => Ok(1),
                nvml::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_SLI_BRIDGE => Ok(0),
                _ => Err(code::INVALID),
            }
        })
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo(
        device: nvmlDevice_t,
        number: c_uint,
        out: Out<nvmlPciInfo_t>,
    ) {
        answer(device, &out, Driver, |view| remote(&view, number))
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t,
        number: c_uint,
        out: Out<nvmlPciInfo_t>,
    ) {
        answer(device, &out, Driver, |view| remote(&view, number))
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t,
        number: c_uint,
        out: Out<c_uint>,
    ) {
        answer(device, &out, Driver, |view| {
            link(&view, number)?;
            Ok(match view.kind.paired_with(view.index) {
                Some(_) => nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
                None => nvml::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            })
        })
    }
    fn nvmlDeviceGetNvLinkErrorCounter(
        device: nvmlDevice_t,
        number: c_uint,
        kind: c_uint,
        out: Out<c_ulonglong>,
    ) {
        answer(device, &out, Firmware, |view| {
            let found = counter(link(&view, number)?, kind)?;
            match counts_by_field(&view) {
                true => Err(code::UNSUPPORTED),
                false => Ok(found),
            }
        })
    }
    fn nvmlDeviceResetNvLinkErrorCounters(device: nvmlDevice_t, number: c_uint) {
        super::gpu(device, Driver, |view| link(&view, number).map(|_| ()))?;
        set(device, |gpu, _| {
            let link = gpu.links.get_mut(number as usize).ok_or(code::INVALID)?;
            *link = Link { down: link.down, ..Link::default() };
            Ok(())
        })
    }
}
