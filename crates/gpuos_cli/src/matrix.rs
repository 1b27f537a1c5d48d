//! The links inside a node, as `nvidia-smi topo -m` lays them out.

use gpuos_model::cluster::{Link, NodeType};
use serde_json::{Value, json};

use crate::table::Table;

/// The words of the matrix, in our own.
const LEGEND: &str = "\
Legend:
  X     the GPU itself
  NV#   that many NVLinks between the two, direct or through NVSwitch
  PIX   a single PCIe switch between them
  PXB   several PCIe switches, without passing a CPU
  PHB   through the PCIe host bridge of one CPU
  NODE  between PCIe host bridges of one NUMA node
  SYS   between NUMA nodes, over the link of the CPU sockets
";

/// The matrix of a node type with its legend.
pub fn text(node_type: &NodeType) -> String {
    let t = node_type;
    let gpus: Vec<String> = (0..t.gpus).map(|gpu| format!("GPU{gpu}")).collect();
    let mut headings = vec![""];
    headings.extend(gpus.iter().map(String::as_str));
    headings.extend(t.nics.iter().map(|nic| nic.name.as_str()));
    headings.extend(["CPU Affinity", "NUMA Affinity"]);
    let mut table = Table::new(&headings);
    for (gpu, name) in gpus.iter().enumerate() {
        let mut row = vec![name.clone()];
        row.extend((0..t.gpus).map(|other| t.link(gpu, other).to_string()));
        row.extend(t.nics.iter().map(|nic| nic_link(nic, gpu)));
        row.push(cores(t, gpu).unwrap_or_else(|| "N/A".into()));
        row.push(t.numa.get(gpu).map_or("N/A".into(), u16::to_string));
        table.row(row);
    }
    let mut text = table.render();
    text.push('\n');
    text += LEGEND;
    if !t.nics.is_empty() {
        text += "\nNICs: ";
        let one = |nic: &gpuos_model::cluster::Nic| {
            format!(
                "{} (NUMA node {}, rail {}, {} GB/s)",
                nic.name, nic.numa, nic.rail, nic.gbps
            )
        };
        text += &t.nics.iter().map(one).collect::<Vec<_>>().join(", ");
        text.push('\n');
    }
    text += &format!(
        "\nPer direction, as NCCL models it: NVLink {} GB/s each{}, PCIe {} GB/s, between sockets {} GB/s.\n",
        t.nvlink_gbps,
        if t.nvswitch {
            " (through NVSwitch)"
        } else {
            ""
        },
        t.pcie_gbps,
        t.socket_gbps
    );
    if !t.source.is_empty() {
        text += &format!("Source: {}\n", t.source);
    }
    text
}

fn nic_link(nic: &gpuos_model::cluster::Nic, gpu: usize) -> String {
    nic.links.get(gpu).map_or("N/A".into(), Link::to_string)
}

/// The cores of the GPU's NUMA node: cores are numbered socket by socket, and NUMA nodes
/// share them evenly.
fn cores(t: &NodeType, gpu: usize) -> Option<String> {
    let numa = u32::from(*t.numa.get(gpu)?);
    let last = t
        .numa
        .iter()
        .chain(t.nics.iter().map(|nic| &nic.numa))
        .max()?;
    let nodes = (u32::from(*last) + 1).max(u32::from(t.sockets));
    let all = u32::from(t.sockets) * u32::from(t.cores_per_socket);
    let share = all.checked_div(nodes).filter(|&share| share > 0)?;
    Some(format!("{}-{}", numa * share, (numa + 1) * share - 1))
}

/// The same as JSON.
pub fn json(t: &NodeType) -> Value {
    let row = |gpu: usize| -> Vec<String> {
        (0..t.gpus)
            .map(|other| t.link(gpu, other).to_string())
            .collect()
    };
    let nics: Vec<Value> = t
        .nics
        .iter()
        .map(|nic| {
            let links: Vec<String> = (0..t.gpus).map(|gpu| nic_link(nic, gpu)).collect();
            json!({ "name": nic.name, "numa": nic.numa, "rail": nic.rail, "gbps": nic.gbps, "links": links })
        })
        .collect();
    json!({
        "name": t.name,
        "gpu": t.gpu,
        "gres_type": t.gres_type,
        "gpus": t.gpus,
        "links": (0..t.gpus).map(row).collect::<Vec<_>>(),
        "numa": t.numa,
        "cores": (0..t.gpus).map(|gpu| cores(t, gpu)).collect::<Vec<_>>(),
        "nics": nics,
        "nvlink_gbps": t.nvlink_gbps,
        "pcie_gbps": t.pcie_gbps,
        "socket_gbps": t.socket_gbps,
        "nvswitch": t.nvswitch,
        "source": t.source,
    })
}
