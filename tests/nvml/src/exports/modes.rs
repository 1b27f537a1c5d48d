//! Modes of a GPU: persistence, compute mode, drain state, MIG mode.

use std::ffi::{c_char, c_uint};

use nvml::{nvmlDevice_t, nvmlPciInfo_t, nvmlReturn_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{answer, set, shared};
use super::{Out, bus_id, change, gpu, nvml, root_only};
use crate::latency::Cost::{Cached, Driver, Reset};
use crate::mig::Refusal;
use crate::state::{Node, is_root};

/// The GPU at a PCI address.
fn at(node: &Node, info: &nvmlPciInfo_t) -> Answer<usize> {
    let text = |field: &[c_char]| {
        let bytes = field.iter().map(|c| c.to_ne_bytes()[0]);
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).to_ascii_uppercase()
    };
    let wanted = match text(&info.busId) {
        empty if empty.is_empty() => text(&info.busIdLegacy),
        id => id,
    };
    let same = |&gpu: &usize| {
        [4, 8]
            .iter()
            .any(|&digits| bus_id(node.model(), gpu, digits) == wanted)
    };
    (0..node.gpus().len()).find(same).ok_or(code::NOT_FOUND)
}

nvml! {
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.persistence))
    }
    fn nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: c_uint) {
        set(device, |gpu, _| match mode {
            0 | 1 => {
                gpu.persistence = mode;
                Ok(())
            }
            _ => Err(code::INVALID),
        })
    }
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| Ok(view.gpu.compute_mode))
    }
    fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: c_uint) {
        set(device, |gpu, _| match mode {
            nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT
            | nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED
            | nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => {
                gpu.compute_mode = mode;
                Ok(())
            }
            // Exclusive thread mode went with CUDA 8.
            nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_THREAD => Err(code::UNSUPPORTED),
            _ => Err(code::INVALID),
        })
    }
    fn nvmlDeviceGetAPIRestriction(device: nvmlDevice_t, api: c_uint, out: Out<c_uint>) {
        answer(device, &out, Driver, |_| match api {
            nvml::nvmlRestrictedAPI_enum_NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS => Ok(1),
            nvml::nvmlRestrictedAPI_enum_NVML_RESTRICTED_API_COUNT.. => Err(code::INVALID),
            _ => Err(code::UNSUPPORTED),
        })
    }
    fn nvmlDeviceQueryDrainState(info: Out<nvmlPciInfo_t>, out: Out<c_uint>) {
        let info = info.get()?;
        let state = super::node(Driver, |node| Ok(node.gpus()[at(node, &info)?].draining))?;
        out.set(state)
    }
    fn nvmlDeviceModifyDrainState(info: Out<nvmlPciInfo_t>, state: c_uint) {
        let shared = shared()?;
        let info = info.get()?;
        if state > 1 {
            return Err(code::INVALID);
        }
        if !is_root() {
            return Err(code::NO_PERMISSION);
        }
        shared.update(|node| {
            let index = at(node, &info)?;
            node.gpus_mut()[index].draining = state;
            Ok(())
        })
    }
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        let [now, later] = gpu(device, Cached, |view| match view.board.mig {
            Some(_) => Ok(view.gpu.mig),
            None => Err(code::UNSUPPORTED),
        })?;
        current.set(now)?;
        pending.set(later)
    }
    fn nvmlDeviceSetMigMode(
        device: nvmlDevice_t,
        mode: c_uint,
        activation: Out<nvmlReturn_t>,
    ) {
        root_only(device)?;
        if mode > 1 || activation.is_null() {
            return Err(code::INVALID);
        }
        let status = change(device, Reset, |node, index| {
            let board = node.model().board();
            board.mig.ok_or(code::UNSUPPORTED)?;
            let gpu = &mut node.gpus_mut()[index];
            match gpu.set_mig(mode == 1, board.mig_needs_reset) {
                // The mode is noted, or it is refused: the call itself succeeds.
                Err(Refusal::InUse) => Ok(code::IN_USE),
                Err(_) => Err(code::UNKNOWN),
                Ok(()) if gpu.mig[0] != gpu.mig[1] => Ok(code::RESET_REQUIRED),
                Ok(()) => Ok(code::OK),
            }
        })?;
        activation.set(status)
    }
}
