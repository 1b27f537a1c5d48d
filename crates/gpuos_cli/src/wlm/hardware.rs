//! The GPUs of this host: by NVIDIA's library, or by the node type that an administrator names.

use std::sync::Arc;

use anyhow::{Result, bail};
use gpuos_host::Machine;
use gpuos_host::hardware::discover::{described, shipped};
use gpuos_model::gpuset::GpuSet;
use gpuos_wlm::host::{Gpu, Host};
use gpuos_workload::numbering::GpuNumbering;

use crate::cli::WlmHostArgs;
use crate::discover::read_hardware;

/// How GPUs are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// By the minor numbers of their device files, which stay when another GPU fails.
    Minor,
    /// As NVIDIA's library has them, and as `CUDA_VISIBLE_DEVICES` has them of a workload manager that chooses GPUs itself.
    Nvml,
}

/// Looks at them.
///
/// # Errors
/// The library cannot be opened, or shows no GPU that answers.
pub fn host(machine: &dyn Machine, args: &WlmHostArgs, numbers: Numbers) -> Result<Host> {
    if let Some(kind) = &args.node_type {
        return Ok(Host::of_kind(Arc::clone(kind)));
    }
    let order = GpuNumbering::identity();
    let (name, found) = read_hardware(machine, &args.hardware, &order, GpuSet::EMPTY)?;
    let Some(kind) = described(&found) else {
        bail!("{name}: the driver's library shows no GPU that answers and is not divided");
    };
    // Not its place among those that answer: the others would move up when one fails, and jobs' GPUs with them.
    let minor = |minor: Option<u32>| minor.and_then(|minor| u8::try_from(minor).ok());
    let gpus = found.gpus.iter().map(|gpu| Gpu {
        number: match numbers {
            Numbers::Minor => minor(gpu.identity.minor).unwrap_or(gpu.index),
            Numbers::Nvml => gpu.index,
        },
        uuid: gpu.identity.uuid.clone(),
    });
    Ok(Host {
        gpus: gpus.collect(),
        kind: shipped(&kind).unwrap_or(kind).into(),
    })
}
