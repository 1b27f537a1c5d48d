//! `gpuos discover`: what this machine is made of, as lines for the configuration files.

use anyhow::{Result, anyhow, bail};
use gpuos_core::model::NodeType;
use gpuos_host::discover::{Found, FoundGpu, Sysfs, cores, described, discover, print, shipped};
use gpuos_host::nvml::Driver;
use gpuos_host::{GresIndex, Machine, host_name};
use serde_json::{Value, json};

use crate::cli::HardwareArgs;
use crate::matrix;
use crate::reply::Reply;

pub fn run(machine: &dyn Machine, args: &HardwareArgs) -> Result<Reply> {
    let (name, found) = look(machine, args, &GresIndex::identity())?;
    let (Some(printed), Some(mine)) = (print(&found, &name), described(&found)) else {
        bail!(
            "{name}: the driver's library shows no GPU that answers: `nvidia-smi` and dmesg say more"
        );
    };
    let node_type = shipped(&mine).unwrap_or(mine);
    let mut notes = found.notes.clone();
    notes.extend(printed.notes.iter().cloned());
    let mut text = format!(
        "# {name}: {} x {}, driver {}\n\n# gpuos.toml\n{}\n# gres.conf\n{}\n# slurm.conf\n{}",
        node_type.gpus,
        node_type.gpu,
        found.driver,
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
            "adapters": adapters(&found, &node_type),
            "nvswitches": found.nvswitches,
            "node_type": matrix::json(&node_type),
            "notes": notes,
        }),
        text,
        yes: true,
    })
}

/// Opens the library and looks at this machine; with its name in Slurm.
pub fn look(
    machine: &dyn Machine,
    args: &HardwareArgs,
    order: &GresIndex,
) -> Result<(String, Found)> {
    let name = node_name(machine, args)
        .ok_or_else(|| anyhow!("this machine has no host name: give --node-name"))?;
    let path = args.nvml.as_deref().map(|path| {
        path.to_str()
            .ok_or_else(|| anyhow!("--nvml {}: write a path in UTF-8", path.display()))
    });
    let library = Driver::open(path.transpose()?)?;
    let found = discover(&library, &Sysfs::at(&args.sysfs), order)?;
    Ok((name, found))
}

/// What Slurm calls this machine.
pub fn node_name(machine: &dyn Machine, args: &HardwareArgs) -> Option<String> {
    args.node_name.clone().or_else(|| host_name(machine))
}

fn gpus(found: &Found) -> Vec<Value> {
    let one = |(index, gpu): (usize, &FoundGpu)| {
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

fn adapters(found: &Found, node_type: &NodeType) -> Vec<Value> {
    let one = |adapter: &gpuos_host::discover::Adapter| {
        let used = node_type.nics.iter().any(|nic| nic.name == adapter.name);
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
