//! Whether this machine is what Slurm and gpuos.toml say of it.

use gpuos_config::slurm_conf::{GpuDevice, gpu_devices};
use gpuos_host::Machine;
use gpuos_host::hardware::discover::{
    NodeHardware, cores, described, differences, mig_differences,
};
use gpuos_host::slurm::numbering;
use gpuos_host::slurm::site::Site;
use gpuos_model::cluster::NodeType;
use gpuos_model::gpuset::GpuSet;

use super::Findings;
use super::about::{self, About};
use crate::cli::HardwareArgs;
use crate::discover;

const NAME: About = about::HARDWARE;

/// Looks only where the machine is a node of the cluster.
pub fn check(machine: &dyn Machine, site: &Site, args: &HardwareArgs, findings: &mut Findings) {
    let Some(name) = discover::node_name(machine, args) else {
        return;
    };
    let Some(at) = site.nodes.iter().position(|node| node.name == name) else {
        return;
    };
    let configured = site.nodes[at].gpu_count();
    let folder = site.running.directory();
    let order = numbering::read(machine, &folder, &name).unwrap_or_default();
    let pool = site.config.mig.pool_of(&name);
    let switchable = pool.map_or(GpuSet::EMPTY, |(pool, _)| pool.switchable.0);
    let found = match discover::read_hardware(machine, args, &order, switchable) {
        Ok((_, found)) => found,
        // A node without GPUs has no driver.
        Err(_) if configured == 0 => return,
        Err(error) => {
            findings.warn(
                NAME,
                format!("{name} cannot be compared with its hardware: {error:#}"),
                "run `gpuos doctor` again once the driver answers",
            );
            return;
        }
    };
    let before = findings.0.len();
    if found.gpus.len() != configured {
        findings.fail(
            NAME,
            format!("slurm.conf gives {name} {configured} GPUs, the driver shows {}", found.gpus.len()),
            format!("bring the missing ones back (`nvidia-smi`, dmesg), or write the lines that `gpuos discover --node-name {name}` prints"),
        );
    }
    for note in &found.notes {
        findings.warn(
            NAME,
            note.clone(),
            "see to the GPU, or take it out: `gpuos drain`",
        );
    }
    let node_type = site.cluster.nodes[at].node_type.as_deref();
    if let (Some(configured), Some(mine)) = (node_type, described(&found)) {
        types(site, configured, &mine, findings);
    }
    for (sentence, advice) in mig_differences(&found, &site.config.mig, &name) {
        findings.warn(NAME, sentence, advice);
    }
    let read = |file: &str| match machine.read(&folder.join(file)) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) => Err(format!("{file}: {error}")),
    };
    if let Ok(devices) = gpu_devices(&name, &read) {
        // Where GPUs are MIG-switchable the order is NVML's, and was looked at above.
        if switchable.is_empty() {
            in_order(&name, &devices, &found, findings);
        }
        gres_conf(&name, &devices, &found, findings);
    }
    if findings.0.len() == before {
        let kind = node_type.map_or("no type", |kind| kind.name.as_str());
        findings.ok(
            NAME,
            format!("{name} is what {kind} says: {configured} GPUs, links, NUMA nodes, adapters"),
        );
    }
}

/// The node type, key by key.
fn types(site: &Site, configured: &NodeType, found: &NodeType, findings: &mut Findings) {
    let own = site
        .config
        .node_types
        .iter()
        .any(|own| own.name == configured.name);
    for difference in differences(configured, found) {
        findings.warn(
            NAME,
            difference.sentence(&configured.name),
            difference.advice(&configured.name, own),
        );
    }
}

/// gres.conf: the order of the files. It is to be NVML's, which need not be that of the minor numbers in the names.
fn in_order(node: &str, devices: &[GpuDevice], found: &NodeHardware, findings: &mut Findings) {
    // Where one is missing nobody knows which is which; that is told elsewhere.
    if found.gpus.len() != devices.len() || devices.iter().any(|device| device.minor().is_none()) {
        return;
    }
    let indexes: Vec<u8> = found.gpus.iter().map(|gpu| gpu.index).collect();
    if !indexes.is_sorted() {
        let names: Vec<&str> = devices.iter().map(|device| device.file.as_str()).collect();
        let mut sorted: Vec<(u8, &GpuDevice)> = indexes.iter().copied().zip(devices).collect();
        sorted.sort_by_key(|(index, _)| *index);
        let files: Vec<&str> = sorted
            .iter()
            .map(|(_, device)| device.file.as_str())
            .collect();
        findings.warn(
            NAME,
            format!(
                "gres.conf names the GPUs of {node} in the order {}: Slurm's and nvidia-smi's numbers differ",
                names.join(", ")
            ),
            format!(
                "name them in the order of nvidia-smi -L: File={}",
                files.join(",")
            ),
        );
    }
}

/// gres.conf: the cores beside each GPU.
fn gres_conf(node: &str, devices: &[GpuDevice], found: &NodeHardware, findings: &mut Findings) {
    for (gpu, device) in devices.iter().enumerate().take(found.gpus.len()) {
        let Some(near) = cores(found, gpu) else {
            continue;
        };
        if !device.cores.is_empty() && device.cores != near {
            findings.warn(
                NAME,
                format!(
                    "gres.conf says Cores={} for {}, beside it are {near}",
                    device.cores, device.file
                ),
                format!(
                    "write NodeName={node} Name=gpu Type={} File={} Cores={near}",
                    device.gres_type, device.file
                ),
            );
        }
    }
}
