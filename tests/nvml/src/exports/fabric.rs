//! The NVLink fabric that a GPU is registered in: cluster, clique, health.

use std::ffi::c_uint;

use nvml::{nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::pointer::version_of;
use super::session::View;
use super::{Out, Versioned, gpu, nvml};
use crate::latency::Cost::Driver;

const STATE: u8 = nvml::NVML_GPU_FABRIC_STATE_COMPLETED as u8;

/// What all versions of the structure say.
struct Info {
    cluster: [u8; 16],
    clique: c_uint,
    links_down: bool,
}

fn info(view: &View<'_>) -> Answer<Info> {
    if !view.board.fabric {
        return Err(code::UNSUPPORTED);
    }
    let links = super::nvlink::links(view)?;
    Ok(Info {
        cluster: view.node.cluster,
        clique: view.node.clique,
        links_down: links.iter().any(|link| link.down != 0),
    })
}

/// Bandwidth degraded or not, as both later versions tell it.
fn degraded(info: &Info) -> c_uint {
    let value = match info.links_down {
        true => nvml::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE,
        false => nvml::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE,
    };
    value << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW
}

nvml! {
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, out: Out<nvmlGpuFabricInfo_t>) {
        let info = gpu(device, Driver, |view| info(&view))?;
        out.set(nvmlGpuFabricInfo_t {
            clusterUuid: info.cluster,
            status: code::OK,
            cliqueId: info.clique,
            state: STATE,
        })
    }
    fn nvmlDeviceGetGpuFabricInfoV(
        device: nvmlDevice_t,
        out: Versioned<nvmlGpuFabricInfo_v3_t>,
    ) {
        let version = out.version()?;
        let second = version == version_of::<nvmlGpuFabricInfo_v2_t>(2);
        if !second && version != version_of::<nvmlGpuFabricInfo_v3_t>(3) {
            return Err(code::VERSION);
        }
        let info = gpu(device, Driver, |view| info(&view))?;
        if second {
            return out.cast::<nvmlGpuFabricInfo_v2_t>().set(nvmlGpuFabricInfo_v2_t {
                version: 0,
                clusterUuid: info.cluster,
                status: code::OK,
                cliqueId: info.clique,
                state: STATE,
                healthMask: degraded(&info),
            });
        }
        let fine = nvml::NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE;
        let links = match info.links_down {
            true => nvml::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS,
            false => nvml::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE,
        };
        let summary = match info.links_down {
            true => nvml::NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY,
            false => nvml::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY,
        };
        out.set(nvmlGpuFabricInfo_v3_t {
            version: 0,
            clusterUuid: info.cluster,
            status: code::OK,
            cliqueId: info.clique,
            state: STATE,
            healthMask: degraded(&info)
                | fine << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY
                | fine << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY
                | fine << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY
                | links << nvml::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION,
            healthSummary: summary as u8,
        })
    }
}
