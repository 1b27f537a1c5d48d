//! `gpuos discover`: what this machine is made of, as lines for the configuration files.

use anyhow::{Result, anyhow, bail};
use gpuos_host::hardware::discover::{
    Divided, GpuHardware, NodeHardware, Sysfs, cores, described, discover_switchable, mig_modes,
    print, shipped,
};
use gpuos_host::hardware::nvml::Driver;
use gpuos_host::{Machine, host_name};
use gpuos_model::cluster::NodeType;
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::numbering::GpuNumbering;
use serde_json::{Value, json};

use crate::cli::{DiscoverArgs, HardwareArgs};
use crate::matrix;
use crate::reply::Reply;

pub fn run(machine: &dyn Machine, args: &DiscoverArgs) -> Result<Reply> {
    let switchable = args.switchable.unwrap_or(GpuSet::EMPTY);
    let (name, found) = read_hardware(
        machine,
        &args.hardware,
        &GpuNumbering::identity(),
        switchable,
    )?;
    let whole = switchable.minus(found.switchable());
    if !whole.is_empty() {
        bail!(
            "--switchable {switchable}: {name} shows no GPU {whole} in MIG mode, and only then the driver tells how one is divided: \
             give NVML's indexes, and turn MIG mode on for all GPUs of the pool (`nvidia-smi -i {whole} -mig 1`)"
        );
    }
    let Some(printed) = print(&found, &name) else {
        bail!(
            "{name}: the driver's library shows no GPU that answers: `nvidia-smi` and dmesg say more"
        );
    };
    let node_type = described(&found).map(|mine| shipped(&mine).unwrap_or(mine));
    let mut kinds: Vec<String> = node_type
        .iter()
        .map(|whole| format!("{} x {}", whole.gpus, whole.gpu))
        .collect();
    if let Some(first) = found.divided.first() {
        let count = found.divided.len();
        let both = match switchable.is_empty() {
            true => String::new(),
            false => format!(" (GPU {switchable} is counted twice: it is MIG-switchable)"),
        };
        kinds.push(format!(
            "{count} x {} in MIG mode{both}",
            first.gpu.identity.name
        ));
    }
    let mut notes = found.notes.clone();
    notes.extend(printed.notes.iter().cloned());
    let mut text = format!(
        "# {name}: {}, driver {}\n{}\n# gpuos.toml\n{}\n# gres.conf\n{}\n# slurm.conf\n{}",
        kinds.join(", "),
        found.driver,
        mig_modes(&found)
            .map(|line| format!("# {line}\n"))
            .unwrap_or_default(),
        printed.gpuos_toml,
        printed.gres_conf,
        printed.slurm_conf
    );
    for (nth, note) in notes.iter().enumerate() {
        text += &format!("{}# note: {note}\n", if nth == 0 { "\n" } else { "" });
    }
    Ok(Reply {
        schema: "gpuos.discover/1",
        json: json!({
            "node": name,
            "driver": found.driver,
            "type": printed.type_name,
            "shipped": printed.shipped,
            "gpuos_toml": printed.gpuos_toml,
            "gres_conf": printed.gres_conf,
            "slurm_conf": printed.slurm_conf,
            "gpus": gpus(&found),
            "divided": divided(&found),
            "adapters": adapters(&found, node_type.as_ref()),
            "nvswitches": found.nvswitches,
            "node_type": node_type.as_ref().map(matrix::json),
            "notes": notes,
        }),
        text,
        yes: true,
    })
}

/// Opens the library and looks at this machine, of whose GPUs these are MIG-switchable; with its name in Slurm.
pub fn read_hardware(
    machine: &dyn Machine,
    args: &HardwareArgs,
    order: &GpuNumbering,
    switchable: GpuSet,
) -> Result<(String, NodeHardware)> {
    let name = node_name(machine, args)
        .ok_or_else(|| anyhow!("this machine has no host name: give --node-name"))?;
    let path = args.nvml.as_deref().map(|path| {
        path.to_str()
            .ok_or_else(|| anyhow!("--nvml {}: write a path in UTF-8", path.display()))
    });
    let library = Driver::open(path.transpose()?)?;
    let found = discover_switchable(&library, &Sysfs::at(&args.sysfs), order, switchable)?;
    Ok((name, found))
}

/// What Slurm calls this machine.
pub fn node_name(machine: &dyn Machine, args: &HardwareArgs) -> Option<String> {
    args.node_name.clone().or_else(|| host_name(machine))
}

fn gpus(found: &NodeHardware) -> Vec<Value> {
    let one = |(index, gpu): (usize, &GpuHardware)| {
        let who = &gpu.identity;
        let up = gpu.nvlinks.iter().filter(|link| link.up).count();
        json!({
            "index": index,
            "uuid": who.uuid,
            "minor": who.minor,
            "pci": who.pci,
            "name": who.name,
            "memory_mib": who.memory_mib,
            "numa": gpu.numa(),
            "cores": cores(found, index),
            "nvlinks": gpu.nvlinks.len(),
            "nvlinks_up": up,
            "mig": who.mig.map(|mig| json!({ "on": mig.on, "most": mig.most })),
            "fabric": who.fabric.as_ref().map(|f| json!({ "cluster": f.cluster, "clique": f.clique })),
        })
    };
    found.gpus.iter().enumerate().map(one).collect()
}

/// GPUs in MIG mode, by NVML index.
fn divided(found: &NodeHardware) -> Vec<Value> {
    let one = |one: &Divided| {
        let who = &one.gpu.identity;
        let told = one.geometry.as_ref();
        json!({
            "gpu": one.index,
            "switchable": one.gpu.number.is_some(),
            "uuid": who.uuid,
            "minor": who.minor,
            "pci": who.pci,
            "name": who.name,
            "memory_mib": who.memory_mib,
            "numa": one.gpu.numa(),
            "slices": told.ok().map(|geometry| geometry.slices()),
            "profiles": told.ok().map(|geometry| geometry.profiles()),
        })
    };
    found.divided.iter().map(one).collect()
}

fn adapters(found: &NodeHardware, node_type: Option<&NodeType>) -> Vec<Value> {
    let one = |adapter: &gpuos_host::hardware::discover::Adapter| {
        let nics = node_type.map_or(&[][..], |node_type| &node_type.nics);
        let used = nics.iter().any(|nic| nic.name == adapter.name);
        json!({
            "name": adapter.name,
            "gbits": adapter.gbits,
            "up": adapter.up,
            "numa": adapter.place.numa,
            "for_gpus": used,
        })
    };
    found.adapters.iter().map(one).collect()
}
